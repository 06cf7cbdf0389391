"""Long values of items, as a process knows them: those that it put or read, and those of its pages and mirrors.

The put of an item has a name (16 random digits in the record), and what it stored stays what it is. So a value that is known under the name of its put needs
no more than the server's word that the record is of that put: a read is answered without the value, and a put sends what changed (`splices.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
MAX_NAMED = 20
"""So many puts, the last ones, are named in a search, in some hundred bytes."""
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
    """A weak reference to what is known, with the item's name, and with how the server answered it last."""

    __slots__ = ("field", "member", "seen")
    member: bytes
    field: bytes
    seen: bytes
    """The partition's token, and what stands in front of the record, as `get_items.lua` takes both."""


class LongValues:
    """The long values that something remembers, by item: pages, mirrors, and for themselves those that `get` and `put` passed. OS threads share them."""

    def __init__(self, remembered: Remembered) -> None:
        """Keep values in this memory."""
        self._remembered = remembered
        self._known: dict[bytes, dict[bytes, _Reference]] = {}
        """By partition and field, those that came last at the end."""

    def get(self, partition: Partition, field: bytes) -> Known | None:
        """What is known of an item."""
        if (of_partition := self._known.get(partition.member)) is None or (found := of_partition.get(field)) is None:
            return None
        self._remembered.get(("value", partition.member, field))  # it was used
        return found()

    def known(self, partition: Partition, fields: Sequence[bytes]) -> dict[int, Known]:
        """What is known of some items, by their positions."""
        if partition.member not in self._known:
            return {}
        found = ((position, self.get(partition, field)) for position, field in enumerate(fields))
        return {position: known for position, known in found if known is not None}

    def described(self, partition: Partition, fields: Sequence[bytes], known: Mapping[int, Known]) -> bytes:
        """What is known of some items, as `get_items.lua` takes it."""
        of_partition, parts = self._known.get(partition.member, {}), []
        for position, one in known.items():
            reference = of_partition.get(fields[position])
            seen = reference.seen if reference is not None and reference() is one else b""
            parts.append(b"%d %b" % (position + 1, seen or b"0 0 0 0 %b " % one.made_by))
        return b"".join(parts)

    def see(self, partition: Partition, entry: Entry, token: bytes) -> None:
        """Note how the server answered an item that is known, in a partition with this token."""
        reference = self._known.get(partition.member, {}).get(entry.field)
        if reference is not None and (known := reference()) is not None and known.made_by == entry.made_by:
            reference.seen = b"%b %b" % (token, entry.head)

    def put_here(self, partition: Partition) -> dict[bytes, bytes]:
        """What this process put since it last read a page or a mirror with it, by the names of the puts. Each put of ours names one item."""
        references = list(self._known.get(partition.member, {}).values())[-MAX_NAMED:]
        values = (reference() for reference in references)
        return {value.made_by: value.data for value in values if isinstance(value, PutValue)}

    def note(self, partition: Partition, entry: Entry) -> None:
        """Note an item that is remembered elsewhere, if it is long."""
        if len(entry.data) >= MIN_BYTES and len(entry.made_by) == _PUT_DIGITS:
            self._refer(partition.member, entry.field, entry)

    def keep(self, partition: Partition, field: bytes, known: Known) -> None:
        """Remember a long value."""
        if len(known.made_by) == _PUT_DIGITS:
            self._refer(partition.member, field, known)
            self._remembered.put(("value", partition.member, field), known, 400 + len(field) + len(known.data))

    def keep_put(
        self, partition: Partition, fields: Sequence[bytes], names: Sequence[str], values: Sequence[bytes]
    ) -> None:
        """Remember those values that were put and are long, and forget what is known of the other items."""
        for field, name, value in zip(fields, names, values, strict=True):
            if len(value) >= MIN_BYTES:
                self.keep(partition, field, PutValue(name.encode(), value))
            elif partition.member in self._known:
                self._known.get(partition.member, {}).pop(field, None)
                self._remembered.forget(("value", partition.member, field))

    def splices(self, partition: Partition, fields: Sequence[bytes], values: Sequence[bytes]) -> dict[int, bytes]:
        """Splices of those values that have much in common with what is known, by their positions."""
        found = {}
        for position, value in enumerate(values):
            if len(value) >= MIN_BYTES and (known := self.get(partition, fields[position])) and _may_be_alike(value):
                short = splice(known.made_by, known.data, value)
                if short is not None:
                    found[position] = short
        return found

    def _refer(self, member: bytes, field: bytes, known: Known) -> None:
        reference = _Reference(known, self._ended)
        reference.member, reference.field, reference.seen = member, field, b""
        of_partition = self._known.setdefault(member, {})
        of_partition.pop(field, None)
        of_partition[field] = reference

    def _ended(self, reference: ref[Known]) -> None:
        """Nothing remembers a value any more. One that comes into its place at this moment may be forgotten, too."""
        if isinstance(reference, _Reference) and (of_partition := self._known.get(reference.member)) is not None:
            if of_partition.get(reference.field) is reference:
                of_partition.pop(reference.field, None)
            if not of_partition:
                self._known.pop(reference.member, None)


def names_of(puts: Collection[bytes]) -> bytes:
    """The names of puts, as scripts take them: a blank in front of and behind each."""
    return b" %b " % b" ".join(puts) if puts else b""


def _may_be_alike(value: bytes) -> bool:
    """Whether a value may have something in common with the one before: not if it is encrypted or compressed."""
    kind, _ = first(value)
    return not encryption.names_cipher(kind) and not compression.is_compressed(kind)
