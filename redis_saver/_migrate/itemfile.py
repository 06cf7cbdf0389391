r"""A file of items: those of a store, by namespace and key.

The first line is `redis-saver items 1`; `framed_file.py` has the form of the rest. The records:

    ["item", [label, ...], key,      its namespace and key
        type, bytes,                 of its value, as LangGraph's serializer gave them
        created_at, updated_at,      microseconds since 1970
        ttl, expires_at]             milliseconds that it lives after each put, or read; milliseconds since 1970; 0: none
    ["end", items]                   how many there were; the last record
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._common.display import error_text
from redis_saver._migrate import framed_file
from redis_saver._migrate.framed_file import FramedFile
from redis_saver._migrate.item_endpoints import Failure, Written, named, not_moved
from redis_saver._store.transfer import StoredItem
from redis_saver.errors import RedisSaverError, decoding_item

FIRST_LINE = b"redis-saver items 1\n"
_ITEM = (list, str, str, bytes, int, int, int, int)


class ItemFileSource:
    """A file of items. Opening it checks all of it."""

    def __init__(self, path: Path, serde: SerializerProtocol) -> None:
        """Check a file.

        Raises:
            FileDamaged: It is no such file, or not all of it.
            OSError: It cannot be read.
        """
        self.name: str = framed_file.name_of(path)
        self._serde = serde
        self._file = path.open("rb")
        with ExitStack() as unless_sound:
            unless_sound.callback(self._file.close)
            self._check()
            unless_sound.pop_all()

    def _check(self) -> None:
        framed_file.check_first_line(self._file, FIRST_LINE, self.name)
        items, end = 0, 0
        for kind, *rest in framed_file.records_to_end(self._file, self.name, _is_record):
            items += kind == "item"
            end = rest[0] if kind == "end" else 0
        if end != items:
            raise framed_file.not_whole(self.name, f"it has {items} items, and its end says {end}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def items(self, labels: tuple[str, ...]) -> Iterator[StoredItem | RedisSaverError]:
        """The items whose namespaces begin with these labels, in the order of the file; an error in place of one that cannot be read."""
        self._file.seek(len(FIRST_LINE))
        for kind, *rest in framed_file.records(self._file, self.name, _is_record):
            if kind == "item" and tuple(rest[0][: len(labels)]) == labels:
                yield self._item(*rest)

    def _item(self, labels: list[str], key: str, kind: str, data: bytes, *moments: Any) -> StoredItem | RedisSaverError:
        namespace = tuple(labels)
        try:
            with decoding_item("item {!r} of namespace {!r}", key, namespace):
                value = self._serde.loads_typed((kind, data))
        except RedisSaverError as error:
            return error
        created_at, updated_at, ttl, expires_at = moments
        return StoredItem(namespace, key, value, created_at, updated_at, ttl, expires_at, len(data))


class ItemFileTarget(FramedFile):
    """A file of items that gets its name when it is complete."""

    def __init__(self, path: Path, serde: SerializerProtocol) -> None:
        """Begin a file.

        Raises:
            EndpointError: A file, or a link, of that name exists already.
            OSError: It cannot be written.
        """
        super().__init__(path, FIRST_LINE)
        self.name: str = framed_file.name_of(path)
        self._serde, self._items = serde, 0

    def look_up(self, items: Sequence[StoredItem]) -> list[StoredItem | RedisSaverError | None]:
        """Nothing: a file is always new."""
        return [None] * len(items)

    def write(self, wanted: Sequence[tuple[StoredItem, int]]) -> Written:
        """Add items."""
        failed: list[Failure] = []
        for item, _ in wanted:
            try:
                kind, data = self._serde.dumps_typed(item.value)
                self._add("item", item.namespace, item.key, kind, data, *item[3:7])
            except (TypeError, ValueError) as error:  # noqa: PERF203
                said = f"{named(item)} cannot be written to {self.name}: {error_text(error)}"
                failed.append((item, not_moved(said, error)))
            else:
                self._items += 1
        return Written([], failed)

    def _end(self) -> tuple[int]:
        return (self._items,)


def _is_record(found: list[Any]) -> bool:
    """Whether this has the form of a record."""
    if found[0] == "end":
        return len(found) == 2 and type(found[1]) is int
    return (
        found[0] == "item"
        and tuple(map(type, found[1:])) == _ITEM
        and bool(found[1])
        and all(isinstance(label, str) for label in found[1])
        and min(found[5:]) >= 0
    )
