"""Long values of items, as a process knows them: those that it put or read, and those of its pages and mirrors.

A put names itself (16 random digits in the record), and what it stored of an item stays what it is. So a value that is known under the name of its put needs
no more than the server's word that the record is of that put: a read is answered without the value, and a put sends what changed (`splices.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias
from weakref import WeakValueDictionary

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


class LongValues:
    """The long values that something remembers, by item: pages, mirrors, and for themselves those that `get` and `put` passed. OS threads share them."""

    def __init__(self, remembered: Remembered) -> None:
        """Keep values in this memory."""
        self._remembered = remembered
        self._known: WeakValueDictionary[tuple[bytes, bytes], Known] = WeakValueDictionary()

    def get(self, partition: Partition, field: bytes) -> Known | None:
        """What is known of an item."""
        name = partition.member, field
        if (known := self._known.get(name)) is not None:
            self._remembered.get(("value", name))  # it was used
        return known

    def note(self, partition: Partition, entry: Entry) -> None:
        """Note an item that is remembered elsewhere, if it is long."""
        if len(entry.data) >= MIN_BYTES and len(entry.made_by) == _PUT_DIGITS:
            self._known[partition.member, entry.field] = entry

    def keep(self, partition: Partition, field: bytes, known: Known) -> None:
        """Remember what was read or put, if it is long."""
        name = partition.member, field
        if len(known.data) >= MIN_BYTES and len(known.made_by) == _PUT_DIGITS:
            self._known[name] = known
            self._remembered.put(("value", name), known, 400 + len(field) + len(known.data))
        elif self._known.pop(name, None) is not None:
            self._remembered.forget(("value", name))

    def splices(self, partition: Partition, values: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Splices of those values, by field, that have much in common with what is known."""
        found = {}
        for field, value in values.items():
            if len(value) >= MIN_BYTES and (known := self.get(partition, field)) is not None and _may_be_alike(value):
                short = splice(known.made_by, known.data, value)
                if short is not None:
                    found[field] = short
        return found


def _may_be_alike(value: bytes) -> bool:
    """Whether a value may have something in common with the one before: not if it is encrypted or compressed."""
    kind, _ = first(value)
    return not encryption.names_cipher(kind) and not compression.is_compressed(kind)
