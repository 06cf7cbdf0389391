"""Stores as sources and targets of items: a `RedisStore`, and the table of LangGraph's `PostgresStore`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from redis_saver import errors
from redis_saver._common.display import error_text, kind_of
from redis_saver._common.store_names import PARTITION_LABELS, Partition, member
from redis_saver._engine.requests import Operation, T
from redis_saver._migrate.endpoints import ItemOrError, Items, NotStored, item_name, not_moved
from redis_saver._storage import opaque
from redis_saver._storage.encryption import unguarded
from redis_saver._storage.rewrapping import Holder, first_encrypted
from redis_saver._store import namespaces, writing
from redis_saver._store.context import StoreContext
from redis_saver._store.reading import list_fields
from redis_saver._store.scripts import together
from redis_saver._store.store import Store, context_of, driver_of
from redis_saver._store.writing import Import, StoredItem
from redis_saver._tiered_store.copies import holds_copies

_OF_ONE_PARTITION = (
    *(errors.StoreDamaged, errors.KeyConflict, errors.UnsupportedFormat, errors.StoreBusy),
    *(errors.KeyMismatch, errors.KeyUnavailable, errors.DecodeError),
)
"""Errors of a single partition. Items of other partitions are still moved."""
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that Postgres does not take."""
_ROWS_PER_PAGE = 100
_MICROSECONDS = "(extract(epoch from {}) * 1000000)::bigint"
_ROW = (
    f"store.prefix, store.key, store.value::text, {_MICROSECONDS.format('COALESCE(store.created_at, now())')}, "
    f"{_MICROSECONDS.format('COALESCE(store.updated_at, now())')}, {_MICROSECONDS.format('store.expires_at')}, "
    "store.ttl_minutes"
)
_BELOW = r"(store.prefix = %(prefix)s OR store.prefix LIKE %(below)s ESCAPE '\')"
_SELECT = f"SELECT {_ROW} FROM store WHERE {{}} ORDER BY store.prefix, store.key"  # noqa: S608 - of constants
_LOOK_UP = (
    f"SELECT {_ROW} FROM store JOIN unnest(%s::text[], %s::text[]) AS asked(prefix, key) "  # noqa: S608 - of constants
    "ON store.prefix = asked.prefix AND store.key = asked.key "
    "WHERE store.expires_at IS NULL OR store.expires_at > now()"
)
_MOMENT = "timestamptz 'epoch' + %({})s * interval '1 microsecond'"
_PUT = f"""
INSERT INTO store (prefix, key, value, created_at, updated_at, expires_at, ttl_minutes)
VALUES (%(prefix)s, %(key)s, %(value)s::jsonb, {_MOMENT.format("created_at")}, {_MOMENT.format("updated_at")},
    {_MOMENT.format("expires_at")}, %(ttl)s)
ON CONFLICT (prefix, key) DO UPDATE
SET value = EXCLUDED.value, created_at = EXCLUDED.created_at, updated_at = EXCLUDED.updated_at,
    expires_at = EXCLUDED.expires_at, ttl_minutes = EXCLUDED.ttl_minutes
WHERE {_MICROSECONDS.format("store.updated_at")} = %(expected)s OR store.expires_at <= now()
RETURNING 1
"""  # noqa: S608 - of constants


def same_value(mine: Any, theirs: Any) -> bool:
    """True if two values are equal. The order in dicts does not matter, and a number never equals a bool."""
    pairs = [(mine, theirs)]
    while pairs:
        here, there = pairs.pop()
        if isinstance(here, dict) and isinstance(there, dict):
            if here.keys() != there.keys():
                return False
            pairs += [(value, there[key]) for key, value in here.items()]
        elif isinstance(here, list) and isinstance(there, list):
            if len(here) != len(there):
                return False
            pairs += zip(here, there, strict=True)
        elif isinstance(here, bool) is not isinstance(there, bool) or not opaque.same(here, there):
            return False
    return True


def as_items(role: str, value: Any) -> Items:
    """Turn an argument of `migrate_items` into an endpoint, unless it is one already.

    Raises:
        TypeError: The argument is neither a store of ours nor an endpoint.
    """
    if isinstance(value, Store):
        return OurItems(value, type(value).__name__)
    if isinstance(value, Items):
        return value
    hint = "open the store's URL by `with opened_store(url, target=...) as ...`"
    raise TypeError(
        f"{role}: {kind_of(value)}; migrate_items takes a RedisStore or the value of opened_store(): {hint}"
    )


class OurItems(Items):
    """A `RedisStore`."""

    def __init__(self, store: Store[Any], name: str) -> None:
        """Use a store. The caller closes it."""
        self.store, self.name = store, name
        self._context: StoreContext = context_of(store)
        self.failures = driver_of(store).failures
        self.has_keys: bool = self._context.values.data_keys is not None
        self.encrypts: bool = self.has_keys or isinstance(unguarded(self._context.values.serde), EncryptedSerializer)
        self.count: Callable[[tuple[str, ...]], int] = store.count
        self.delete_namespace: Callable[[tuple[str, ...]], int] = store.delete_namespace

    def _run(self, operation: Operation[T]) -> T:
        with self.doing():
            return driver_of(self.store).run(operation)

    def _run_each(
        self, operations: Mapping[Partition, Callable[[], Operation[T]]]
    ) -> dict[Partition, T | errors.RedisSaverError]:
        """Run an operation on each partition, in one batch. If one fails, run each alone, and return their errors."""
        try:
            results = self._run(together(self._context, [begin() for begin in operations.values()]))
        except _OF_ONE_PARTITION:
            return {partition: self._run_or_error(begin()) for partition, begin in operations.items()}
        return dict(zip(operations, results, strict=True))

    def _run_or_error(self, operation: Operation[T]) -> T | errors.RedisSaverError:
        try:
            return self._run(operation)
        except _OF_ONE_PARTITION as error:
            return error

    def items(self, labels: tuple[str, ...]) -> Iterator[ItemOrError]:
        """Iterate over the items by partition. Memory holds a partition's names and a page of its items."""
        for partition in self._partitions(labels):
            try:
                fields = self._run(list_fields(self._context, partition, member(labels[PARTITION_LABELS:])))
                while fields:
                    some = fields[: writing.FIELDS_PER_READ]
                    page = self._run(writing.read_items(self._context, partition, some))
                    fields = fields[len(page) :]
                    yield from (item for item in page if item is not None)
            except _OF_ONE_PARTITION as error:  # noqa: PERF203
                yield error

    def first_encrypted(self, labels: tuple[str, ...]) -> str | None:
        """Return a partition that has a data key. One round trip for 500 partitions."""
        holders = [Holder(partition.name, partition.keys[:1]) for partition in self._partitions(labels)]
        return self._run(first_encrypted("store", holders))

    def refuse_copies(self, labels: tuple[str, ...]) -> None:
        """Refuse copies. Up to three round trips for 256 partitions."""
        if self._run(holds_copies(self._context, labels)):
            raise errors.EndpointError(
                f"{self.name} has copies of items of a cold store, which may have others. Nothing was written. Name "
                "the cold store instead: postgresql://..., in Python opened_store('postgresql://...', target=...)"
            )

    def _partitions(self, labels: tuple[str, ...]) -> Iterator[Partition]:
        page = self._run(namespaces.partition_page(self._context, labels))
        yield from (partition for partition, _ in page)
        while len(page) == namespaces.PARTITIONS_PER_CALL:
            page = self._run(namespaces.partition_page(self._context, labels, after=page[-1][0]))
            yield from (partition for partition, _ in page)

    def look_up(self, items: Sequence[StoredItem]) -> list[ItemOrError | None]:
        """Return the store's version of each item, in one round trip, plus one per megabyte of a partition."""
        asked: dict[Partition, dict[bytes, int]] = {}
        results: list[ItemOrError | None] = [None] * len(items)
        for position, item in enumerate(items):
            try:
                partition, field = writing.find_place(self._context, item)
            except (errors.RedisSaverError, TypeError, ValueError):  # `write` reports the error
                continue
            asked.setdefault(partition, {})[field] = position
        reads = {each: partial(_read_all, self._context, each, list(some)) for each, some in asked.items()}
        for partition, answer in self._run_each(reads).items():
            for at, position in enumerate(asked[partition].values()):
                if isinstance(answer, errors.RedisSaverError):
                    results[position] = self.not_stored(items[position], answer)
                else:
                    results[position] = answer[at]
        return results

    def write(self, wanted: Sequence[tuple[StoredItem, int]]) -> NotStored:
        """Store items in three round trips, because this adds partitions to the directory and changes their tokens."""
        imports: dict[Partition, list[Import]] = {}
        not_stored: NotStored = []
        for item, expected in wanted:
            try:
                item_import = writing.as_import(self._context, item, expected)
            except (errors.RedisSaverError, TypeError, ValueError) as error:  # noqa: PERF203
                not_stored.append((item, self.not_stored(item, error)))
            else:
                imports.setdefault(item_import.partition, []).append(item_import)
        put = writing.new_put()
        calls = {each: partial(writing.import_items, self._context, each, some, put) for each, some in imports.items()}
        for partition, left in self._run_each(calls).items():
            if isinstance(left, errors.RedisSaverError):
                not_stored += [(each.item, self.not_stored(each.item, left)) for each in imports[partition]]
            else:
                not_stored += [(each.item, None) for each in left]
        return not_stored


def _read_all(context: StoreContext, partition: Partition, fields: list[bytes]) -> Operation[list[ItemOrError | None]]:
    items: list[ItemOrError | None] = []
    while len(items) < len(fields):
        items += yield from writing.read_items(context, partition, fields[len(items) :])
    return items


class PostgresItems(Items):
    """The table of a `PostgresStore`, on a connection in autocommit. It stores values as JSON.

    The store's interface would set its own times and deadlines, so this class reads and writes the table.
    """

    def __init__(self, connection: Any, name: str) -> None:
        """Use a connection. The caller closes it."""
        self._connection, self.name = connection, name
        psycopg: Any = import_module("psycopg")
        self.failures: tuple[type[Exception], ...] = (psycopg.Error,)
        self._refusals: tuple[type[Exception], ...] = (
            *(errors.ItemMigrationError, TypeError, ValueError, RecursionError),
            *(psycopg.DataError, psycopg.errors.ProgramLimitExceeded),
        )
        """Errors of a single item, whose name or value Postgres does not take."""

    def has_table(self, name: str = "store") -> bool:
        """True if the database has this table of a `PostgresStore`."""
        with self.doing():
            return bool(self._connection.execute("SELECT to_regclass(%s)", [name]).fetchone()[0])

    def items(self, labels: tuple[str, ...]) -> Iterator[ItemOrError]:
        """Iterate over the items in one snapshot. Memory holds a hundred rows."""
        condition, bounds = _below(labels)
        with self.doing(), self._connection.transaction(), self._connection.cursor(name="redis_saver_items") as cursor:
            cursor.itersize = _ROWS_PER_PAGE
            for row in cursor.execute(_SELECT.format(condition), bounds):
                yield self._item(row)

    def _item(self, row: Sequence[Any]) -> ItemOrError:
        """Return the item of a row with the columns `_ROW`."""
        prefix, key, text, created, updated, expires, minutes = row
        expires_at = 0 if expires is None else max(1, expires // 1000)
        ttl = 0 if expires is None else (minutes or 0) * 60_000 or max(1, expires_at - updated // 1000)
        item = StoredItem(tuple(prefix.split(".")), key, None, created, updated, ttl, expires_at, len(text))
        try:
            return item._replace(value=json.loads(text))
        except (ValueError, RecursionError) as error:
            why = f"whose value cannot be read: {error_text(error)}"
            return not_moved(f"{self.name} has {item_name(item)}, {why}", error)

    def look_up(self, items: Sequence[StoredItem]) -> list[ItemOrError | None]:
        """Return the table's version of each item."""
        storable = [item for item in items if _has_storable_names(item)]  # `write` reports the others
        stored: dict[tuple[tuple[str, ...], str], ItemOrError] = {}
        with self.doing():
            asked = [[".".join(item.namespace) for item in storable], [item.key for item in storable]]
            for row in self._connection.execute(_LOOK_UP, asked):
                stored[tuple(row[0].split(".")), row[1]] = self._item(row)
        return [stored.get((item.namespace, item.key)) for item in items]

    def write(self, wanted: Sequence[tuple[StoredItem, int]]) -> NotStored:
        """Store items in one transaction. If Postgres refuses an item, use a transaction for each item."""
        rows: list[tuple[StoredItem, dict[str, Any]]] = []
        not_stored: NotStored = []
        for item, expected in wanted:
            try:
                rows.append((item, _row(item, expected)))
            except self._refusals as error:  # noqa: PERF203
                not_stored.append((item, self.not_stored(item, error, error_text(error))))
        with self.doing():
            return not_stored + self._put_or_each(rows)

    def _put_or_each(self, rows: Sequence[tuple[StoredItem, dict[str, Any]]]) -> NotStored:
        try:
            return [(item, None) for item in self._put(rows)]
        except self._refusals as error:
            if len(rows) == 1:
                item = rows[0][0]
                return [(item, self.not_stored(item, error, error_text(error)))]
        return [left for row in rows for left in self._put_or_each([row])]

    def _put(self, rows: Sequence[tuple[StoredItem, dict[str, Any]]]) -> list[StoredItem]:
        """Store all items or none. Skip and return those whose rows have changed."""
        changed: list[StoredItem] = []
        if not rows:
            return changed
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(_PUT, [row for _, row in rows], returning=True)
            for item, _ in rows:
                changed += [item] if cursor.fetchone() is None else []
                cursor.nextset()
            replaced = [row for item, row in rows if row["expected"] and item not in changed]
            if replaced and self.has_table("store_vectors"):  # the vectors of the old values
                cursor.executemany("DELETE FROM store_vectors WHERE prefix = %(prefix)s AND key = %(key)s", replaced)
        return changed

    def count(self, labels: tuple[str, ...]) -> int:
        """Count the items of a namespace and its children."""
        condition, bounds = _below(labels)
        with self.doing():
            count = f"SELECT count(*) FROM store WHERE {condition}"  # noqa: S608 - of constants
            return int(self._connection.execute(count, bounds).fetchone()[0])

    def delete_namespace(self, labels: tuple[str, ...]) -> int:
        """Delete all items of a namespace and its children, with their vectors. Return their number."""
        condition, bounds = _below(labels)
        with self.doing():
            delete = f"DELETE FROM store WHERE {condition}"  # noqa: S608 - of constants
            return int(self._connection.execute(delete, bounds).rowcount)


def _row(item: StoredItem, expected: int) -> dict[str, Any]:
    """Return an item as parameters of `_PUT`.

    Raises:
        ItemMigrationError, TypeError, ValueError, RecursionError: Postgres or JSON cannot represent the item.
    """
    if not _has_storable_names(item):
        raise errors.ItemMigrationError("Postgres takes no NUL and no lone surrogate in names, and no period in labels")
    text = json.dumps(item.value, allow_nan=False)
    if not same_value(json.loads(text), item.value):
        raise errors.ItemMigrationError("its value changes as JSON, which a PostgresStore keeps")
    return {
        "prefix": ".".join(item.namespace),
        "key": item.key,
        "value": text,
        "created_at": item.created_at,
        "updated_at": item.updated_at,
        "expires_at": 1000 * item.expires_at or None,
        "ttl": max(1, round(item.ttl / 60_000)) if item.expires_at else None,
        "expected": expected,
    }


def _below(labels: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """Return the SQL condition for a namespace and its children, with its parameters."""
    if not labels:
        return "TRUE", {}
    prefix = ".".join(labels)
    escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return _BELOW, {"prefix": prefix, "below": f"{escaped}.%"}


def _has_storable_names(item: StoredItem) -> bool:
    return "." not in "".join(item.namespace) and not _NOT_TEXT.search("".join((*item.namespace, item.key)))
