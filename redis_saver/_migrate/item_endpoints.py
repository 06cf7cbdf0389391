"""Where items are moved from and to: a store of ours here; Postgres in `item_postgres.py`, files in `itemfile.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from redis_saver._common.display import printable, shown
from redis_saver._common.store_names import Partition
from redis_saver._engine.requests import Operation, T
from redis_saver._storage import opaque
from redis_saver._store import namespaces, transfer
from redis_saver._store.calling import together
from redis_saver._store.context import StoreContext
from redis_saver._store.store import Store, context_of, driver_of
from redis_saver._store.transfer import Import, StoredItem
from redis_saver.errors import (
    EndpointError,
    ItemMigrationError,
    KeyConflict,
    RedisSaverError,
    StoreBusy,
    StoreDamaged,
    UnsupportedFormat,
)

Failure: TypeAlias = tuple[StoredItem, RedisSaverError]
"""An item that cannot be written, and why."""


class Written(NamedTuple):
    """What became of items that were to be written. All others are written."""

    changed: list[StoredItem]
    """Those whose items in the target are other ones than were looked up: somebody wrote there meanwhile. These were not written."""
    failed: list[Failure]


class ItemSource(Protocol):
    """Where items are read from."""

    name: str
    """Its name in messages, without a password."""

    def items(self, labels: tuple[str, ...]) -> Iterator[StoredItem | RedisSaverError]:
        """The items whose namespaces begin with these labels; an error in place of one that cannot be read."""


class ItemTarget(Protocol):
    """Where items are written to."""

    name: str

    def look_up(self, items: Sequence[StoredItem]) -> list[StoredItem | RedisSaverError | None]:
        """What the target has of each of these; an error in place of one that cannot be read."""

    def write(self, wanted: Sequence[tuple[StoredItem, int]]) -> Written:
        """Store items. The number is the `updated_at` of what the target has to have in its place, 0 for nothing. Each item once."""


def named(item: StoredItem) -> str:
    """An item, as messages name it."""
    return f"item {shown(item.key)} of namespace {shown(item.namespace)}"


def not_moved(said: str, cause: BaseException) -> ItemMigrationError:
    """The error of an item that cannot be moved."""
    error = ItemMigrationError(f"{said}. Other items are moved all the same")
    error.__cause__ = cause
    return error


def same_value(one: Any, other: Any) -> bool:
    """Whether two values are the same: lists and dicts with equal members, whatever their order in a dict. A number is not a bool."""
    pairs = [(one, other)]
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


_OF_ONE_PARTITION = (StoreDamaged, KeyConflict, UnsupportedFormat, StoreBusy)
"""What a call raises if something is wrong with its partition. Those of other partitions are moved all the same."""


class OurItems:
    """A store of ours."""

    def __init__(self, store: Store[Any], name: str) -> None:
        """Use a store. The caller closes it."""
        self.store, self.name = store, name
        self.failures: tuple[type[Exception], ...] = driver_of(store).failures

    @property
    def _context(self) -> StoreContext:
        return context_of(self.store)

    def _run(self, operation: Operation[T]) -> T:
        try:
            return driver_of(self.store).run(operation)
        except RedisSaverError:
            raise
        except self.failures as error:
            raise EndpointError(f"{self.name}: {printable(str(error))}") from error

    def _run_each(
        self, operations: Mapping[Partition, Callable[[], Operation[T]]]
    ) -> dict[Partition, T | RedisSaverError]:
        """Run an operation on each of some partitions, together; where one fails, each alone. An error in place of the result of one that fails.

        The operations may run twice.
        """
        try:
            results = self._run(together(self._context, [begin() for begin in operations.values()]))
        except _OF_ONE_PARTITION:
            return {partition: self._run_or_error(begin()) for partition, begin in operations.items()}
        return dict(zip(operations, results, strict=True))

    def _run_or_error(self, operation: Operation[T]) -> T | RedisSaverError:
        try:
            return self._run(operation)
        except _OF_ONE_PARTITION as error:
            return error

    def items(self, labels: tuple[str, ...]) -> Iterator[StoredItem | RedisSaverError]:
        """The items, partition after partition. In memory are the names of those of one partition, a page of them, and a page of the directory."""
        for partition in self._partitions(labels):
            try:
                yield from self._items(partition, labels)
            except _OF_ONE_PARTITION as error:  # noqa: PERF203
                yield error

    def _partitions(self, labels: tuple[str, ...]) -> Iterator[Partition]:
        page = self._run(namespaces.partition_page(self._context, labels))
        yield from (partition for partition, _ in page)
        while len(page) == namespaces.PARTITIONS_PER_CALL:
            page = self._run(namespaces.partition_page(self._context, labels, after=page[-1][0]))
            yield from (partition for partition, _ in page)

    def _items(self, partition: Partition, labels: tuple[str, ...]) -> Iterator[StoredItem | RedisSaverError]:
        fields = self._run(transfer.list_fields(self._context, partition, labels))
        at = 0
        while at < len(fields):
            page = self._run(transfer.read_items(self._context, partition, fields[at : at + transfer.FIELDS_PER_CALL]))
            at += len(page)
            yield from (item for item in page if item is not None)

    def count(self, labels: tuple[str, ...]) -> int:
        """How many items a namespace and those below it have."""
        return self.store.count(labels)

    def delete_namespace(self, labels: tuple[str, ...]) -> int:
        """Delete all items of a namespace and of those below it. Returns how many."""
        return self.store.delete_namespace(labels)

    def look_up(self, items: Sequence[StoredItem]) -> list[StoredItem | RedisSaverError | None]:
        """What the store has of each of these. A round trip; more for each megabyte of a partition."""
        asked: dict[Partition, dict[bytes, int]] = {}
        found: list[StoredItem | RedisSaverError | None] = [None] * len(items)
        for position, item in enumerate(items):
            try:
                one = transfer.find_place(self._context, item)
            except (RedisSaverError, TypeError, ValueError):  # `write` says what is wrong with it
                continue
            asked.setdefault(one.partition, {})[one.field] = position
        answers = self._run_each(
            {partition: partial(_read_all, self._context, partition, list(some)) for partition, some in asked.items()}
        )
        for partition, answer in answers.items():
            positions = asked[partition].values()
            if isinstance(answer, RedisSaverError):
                for position in positions:
                    found[position] = self._not_stored(items[position], answer)
            else:
                for position, has in zip(positions, answer, strict=True):
                    found[position] = has
        return found

    def write(self, wanted: Sequence[tuple[StoredItem, int]]) -> Written:
        """Store items. Three round trips: partitions are announced, as an import gives each another token."""
        imports: dict[Partition, list[Import]] = {}
        written = Written([], [])
        for item, expected in wanted:
            try:
                one = transfer.as_import(self._context, item, expected)
            except (RedisSaverError, TypeError, ValueError) as error:  # noqa: PERF203
                written.failed.append((item, self._not_stored(item, error)))
            else:
                imports.setdefault(one.partition, []).append(one)
        put = transfer.new_put()
        answers = self._run_each(
            {
                partition: partial(transfer.import_items, self._context, partition, some, put)
                for partition, some in imports.items()
            }
        )
        for partition, left in answers.items():
            if isinstance(left, RedisSaverError):
                written.failed.extend((one.item, self._not_stored(one.item, left)) for one in imports[partition])
            else:
                written.changed.extend(one.item for one in left)
        return written

    def _not_stored(self, item: StoredItem, error: Exception) -> ItemMigrationError:
        return not_moved(f"{self.name} cannot store {named(item)}: {error}", error)


def _read_all(
    context: StoreContext, partition: Partition, fields: list[bytes]
) -> Operation[list[StoredItem | RedisSaverError | None]]:
    found: list[StoredItem | RedisSaverError | None] = []
    while len(found) < len(fields):
        found += yield from transfer.read_items(context, partition, fields[len(found) :])
    return found
