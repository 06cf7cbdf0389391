"""A `PostgresStore` of LangGraph's, as a source and target of items.

Its interface sets `created_at`, `updated_at` and deadlines itself, so its table `store` is read and written by the statements here. It keeps JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from redis_saver._common.display import error_text, printable, shown
from redis_saver._migrate.item_endpoints import Failure, Written, named, not_moved, same_value
from redis_saver._store.transfer import StoredItem
from redis_saver.errors import EndpointError, ItemMigrationError, RedisSaverError

ROWS_PER_PAGE = 100
_MICROSECONDS = "(extract(epoch from {}) * 1000000)::bigint"
_ROW = (
    f"store.prefix, store.key, store.value::text, {_MICROSECONDS.format('COALESCE(store.created_at, now())')}, "
    f"{_MICROSECONDS.format('COALESCE(store.updated_at, now())')}, {_MICROSECONDS.format('store.expires_at')}, store.ttl_minutes"
)
_BELOW = r"(store.prefix = %(prefix)s OR store.prefix LIKE %(below)s ESCAPE '\')"
_SELECT = f"SELECT {_ROW} FROM store WHERE {{}} ORDER BY store.prefix, store.key"  # noqa: S608 - of constants
_LOOK_UP = (
    f"SELECT {_ROW} FROM store JOIN unnest(%s::text[], %s::text[]) AS asked(prefix, key) "  # noqa: S608 - of constants
    "ON store.prefix = asked.prefix AND store.key = asked.key WHERE store.expires_at IS NULL OR store.expires_at > now()"
)
_MOMENT = "timestamptz 'epoch' + %({})s * interval '1 microsecond'"
_PUT = f"""
INSERT INTO store (prefix, key, value, created_at, updated_at, expires_at, ttl_minutes)
VALUES (%(prefix)s, %(key)s, %(value)s::jsonb, {_MOMENT.format("created_at")}, {_MOMENT.format("updated_at")}, {_MOMENT.format("expires_at")}, %(ttl)s)
ON CONFLICT (prefix, key) DO UPDATE
SET value = EXCLUDED.value, created_at = EXCLUDED.created_at, updated_at = EXCLUDED.updated_at, expires_at = EXCLUDED.expires_at,
    ttl_minutes = EXCLUDED.ttl_minutes
WHERE {_MICROSECONDS.format("store.updated_at")} = %(expected)s OR store.expires_at <= now()
RETURNING 1
"""  # noqa: S608 - of constants


class PostgresItems:
    """The table of a `PostgresStore`, on a connection in autocommit."""

    def __init__(self, connection: Any, name: str) -> None:
        """Use a connection. The caller closes it."""
        self._connection, self.name = connection, name
        psycopg: Any = import_module("psycopg")
        self.failures: tuple[type[Exception], ...] = (psycopg.Error,)
        self._refusals: tuple[type[Exception], ...] = (
            ItemMigrationError,
            TypeError,
            ValueError,
            RecursionError,
            psycopg.DataError,
            psycopg.errors.ProgramLimitExceeded,
        )
        """What is raised for one item: a name or a value that Postgres does not take."""

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except self.failures as error:
            raise EndpointError(f"{self.name}: {printable(str(error))}") from error

    def has_table(self) -> bool:
        """Whether there is a table of a `PostgresStore`."""
        with self._asking():
            return bool(self._connection.execute("SELECT to_regclass('store')").fetchone()[0])

    def _has_vectors(self) -> bool:
        return bool(self._connection.execute("SELECT to_regclass('store_vectors')").fetchone()[0])

    def items(self, labels: tuple[str, ...]) -> Iterator[StoredItem | RedisSaverError]:
        """The items, as they are at one moment. A hundred are in memory."""
        where, bounds = _below(labels)
        with (
            self._asking(),
            self._connection.transaction(),
            self._connection.cursor(name="redis_saver_items") as cursor,
        ):
            cursor.itersize = ROWS_PER_PAGE
            for row in cursor.execute(_SELECT.format(where), bounds):
                yield self._item(*row)

    def _item(
        self, prefix: str, key: str, text: str, created: int, updated: int, expires: int | None, minutes: int | None
    ) -> StoredItem | RedisSaverError:
        namespace = tuple(prefix.split("."))
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            return not_moved(
                f"{self.name} has item {shown(key)} of namespace {shown(namespace)}, whose value cannot be read: {error_text(error)}",
                error,
            )
        expires_at = 0 if expires is None else max(1, expires // 1000)
        ttl = 0 if expires is None else (minutes or 0) * 60_000 or max(1, expires_at - updated // 1000)
        return StoredItem(namespace, key, value, created, updated, ttl, expires_at, len(text))

    def look_up(self, items: Sequence[StoredItem]) -> list[StoredItem | RedisSaverError | None]:
        """What the table has of each of these."""
        storable = [item for item in items if _has_storable_names(item)]  # `write` says what is wrong with the others
        found: dict[tuple[tuple[str, ...], str], StoredItem | RedisSaverError] = {}
        with self._asking():
            asked = [[".".join(item.namespace) for item in storable], [item.key for item in storable]]
            for row in self._connection.execute(_LOOK_UP, asked):
                found[tuple(row[0].split(".")), row[1]] = self._item(*row)
        return [found.get((item.namespace, item.key)) for item in items]

    def write(self, wanted: Sequence[tuple[StoredItem, int]]) -> Written:
        """Store items in one transaction. If Postgres refuses one of them, each has a transaction of its own."""
        rows: list[tuple[StoredItem, dict[str, Any]]] = []
        failed: list[Failure] = []
        for item, expected in wanted:
            try:
                rows.append((item, self._row(item, expected)))
            except self._refusals as error:  # noqa: PERF203
                failed.append((item, self._refused(item, error)))
        with self._asking():
            try:
                return Written(self._put(rows), failed)
            except self._refusals:
                pass
            changed = []
            for item, row in rows:
                try:
                    changed += self._put([(item, row)])
                except self._refusals as error:  # noqa: PERF203
                    failed.append((item, self._refused(item, error)))
        return Written(changed, failed)

    def _put(self, rows: Sequence[tuple[StoredItem, dict[str, Any]]]) -> list[StoredItem]:
        """Store items, all or none. Returns those that were left, because another one is there than was expected."""
        changed: list[StoredItem] = []
        if not rows:
            return changed
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(_PUT, [row for _, row in rows], returning=True)
            for item, _ in rows:
                if cursor.fetchone() is None:
                    changed.append(item)
                cursor.nextset()
            replaced = [row for item, row in rows if row["expected"] and item not in changed]
            if replaced and self._has_vectors():  # those of the value that was there before
                cursor.executemany("DELETE FROM store_vectors WHERE prefix = %(prefix)s AND key = %(key)s", replaced)
        return changed

    def _row(self, item: StoredItem, expected: int) -> dict[str, Any]:
        if not _has_storable_names(item):
            raise ItemMigrationError(
                "Postgres takes no NUL and no half of a surrogate pair in a name, and a PostgresStore no period in a label"
            )
        text = json.dumps(item.value, allow_nan=False)
        if not same_value(json.loads(text), item.value):
            raise ItemMigrationError("its value is not the same as JSON, and a PostgresStore keeps JSON")
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

    def _refused(self, item: StoredItem, error: BaseException) -> ItemMigrationError:
        return not_moved(f"{self.name} cannot store {named(item)}: {error_text(error)}", error)

    def count(self, labels: tuple[str, ...]) -> int:
        """How many items a namespace and those below it have."""
        where, bounds = _below(labels)
        with self._asking():
            row = self._connection.execute(f"SELECT count(*) FROM store WHERE {where}", bounds).fetchone()  # noqa: S608 - of constants
        return int(row[0])

    def delete_namespace(self, labels: tuple[str, ...]) -> int:
        """Delete all items of a namespace and of those below it, with their vectors. Returns how many."""
        where, bounds = _below(labels)
        with self._asking():
            return int(self._connection.execute(f"DELETE FROM store WHERE {where}", bounds).rowcount)  # noqa: S608 - of constants


def _below(labels: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """The condition for a namespace and those below it, and its parameters."""
    if not labels:
        return "TRUE", {}
    prefix = ".".join(labels)
    escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return _BELOW, {"prefix": prefix, "below": f"{escaped}.%"}


def _has_storable_names(item: StoredItem) -> bool:
    return not any("." in label for label in item.namespace) and all(
        "\0" not in name and not any("\ud800" <= one <= "\udfff" for one in name)
        for name in (*item.namespace, item.key)
    )
