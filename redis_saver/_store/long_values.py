"""Long values of items, as a process knows them: those that it put or read, and those of its pages and mirrors.

A put names itself (16 random digits in the record), and what it stored of an item stays what it is. So a value that is known under the name of its put needs
no more than the server's word that the record is of that put: a read is answered without the value, and a put sends what changed (`splices.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias
from weakref import ref

from redis_saver._common.store_names import Partition
from redis_saver._storage import compression, encryption
from redis_saver._storage.framing import first
from redis_saver._store.items import Entry
from redis_saver._store.remembered import Remembered
from redis_saver._store.splices import splice

MIN_BYTES = 2048
"""Bytes from which on a value is long."""
_PUT_DIGITS = 16
"""What names a put; a copy of a cold store's item has fewer digits there, which name nothing."""


class PutValue:
    """A value that this process has put."""

    __slots__ = ("__weakref__", "data", "made_by")

    def __init__(self, made_by: bytes, data: bytes) -> None:
        """Of this put, as the record has it."""
        self.made_by, self.data = made_by, data


Known: TypeAlias = PutValue | Entry


class _Reference(ref[Known]):
    """A weak reference to what is known, with the item's name."""

    __slots__ = ("name",)
    name: tuple[bytes, bytes]


class LongValues:
    """The long values that something remembers, by item: pages, mirrors, and for themselves those that `get` and `put` passed. OS threads share them."""

    def __init__(self, remembered: Remembered) -> None:
        """Keep values in this memory."""
        self._remembered = remembered
        self._known: dict[tuple[bytes, bytes], _Reference] = {}

    def get(self, partition: Partition, field: bytes) -> Known | None:
        """What is known of an item."""
        if (reference := self._known.get((partition.member, field))) is None:
            return None
        self._remembered.get(("value", reference.name))  # it was used
        return reference()

    def known(self, partition: Partition, fields: Sequence[bytes]) -> dict[int, Known]:
        """What is known of some items, by their positions."""
        if not self._known:
            return {}
        found = ((position, self.get(partition, field)) for position, field in enumerate(fields))
        return {position: known for position, known in found if known is not None}

    def note(self, partition: Partition, entry: Entry) -> None:
        """Note an item that is remembered elsewhere, if it is long."""
        if len(entry.data) >= MIN_BYTES and len(entry.made_by) == _PUT_DIGITS:
            self._refer((partition.member, entry.field), entry)

    def keep(self, partition: Partition, field: bytes, known: Known) -> None:
        """Remember a long value."""
        if len(known.made_by) == _PUT_DIGITS:
            name = partition.member, field
            self._refer(name, known)
            self._remembered.put(("value", name), known, 400 + len(field) + len(known.data))

    def keep_put(self, partition: Partition, made_by: str, fields: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Remember those values of a put that are long, and forget what is known of the other items."""
        for field, value in zip(fields, values, strict=True):
            if len(value) >= MIN_BYTES:
                self.keep(partition, field, PutValue(made_by.encode(), value))
            elif self._known and self._known.pop((partition.member, field), None) is not None:
                self._remembered.forget(("value", (partition.member, field)))

    def splices(self, partition: Partition, fields: Sequence[bytes], values: Sequence[bytes]) -> dict[int, bytes]:
        """Splices of those values that have much in common with what is known, by their positions."""
        found = {}
        for position, value in enumerate(values):
            if len(value) >= MIN_BYTES and (known := self.get(partition, fields[position])) and _may_be_alike(value):
                short = splice(known.made_by, known.data, value)
                if short is not None:
                    found[position] = short
        return found

    def _refer(self, name: tuple[bytes, bytes], known: Known) -> None:
        reference = _Reference(known, self._ended)
        reference.name = name
        self._known[name] = reference

    def _ended(self, reference: ref[Known]) -> None:
        """Nothing remembers a value any more. One that comes into its place at this moment may be forgotten, too."""
        if isinstance(reference, _Reference) and self._known.get(reference.name) is reference:
            self._known.pop(reference.name, None)


def _may_be_alike(value: bytes) -> bool:
    """Whether a value may have something in common with the one before: not if it is encrypted or compressed."""
    kind, _ = first(value)
    return not encryption.names_cipher(kind) and not compression.is_compressed(kind)
