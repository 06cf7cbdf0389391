"""Names of a store's keys, fields and members. `names.py` has those of threads.

`docs/storage-format.md` shows all of them. Keys of threads and stores never collide. With the same prefix, `<prefix>:{`
and `<prefix>:store:{` differ. With the prefixes `p:store` and `p`, the endings differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from redis_saver._common.names import Keyspace, after, component, components, decode, encode, glob

PARTITION_LABELS = 2
"""Number of labels of a namespace that name its partition."""
_ITEMS = b"items"
_ENDINGS = (_ITEMS, b"order", b"expiring", b"namespaces", b"vectors", b"retired")
_ESCAPED = re.compile(rb"[%{}/]")


class Partition(NamedTuple):
    """The items whose namespaces share their first two labels, or have only this one label."""

    member: bytes
    """Its labels, as a member of the directory."""
    keys: tuple[bytes, ...]
    """Its six keys, in the order of the scripts. All are in one cluster slot."""
    labels: tuple[str, ...]
    """Its one or two labels."""

    @property
    def name(self) -> str:
        """Its name for providers of keys: its labels joined by `/`. In a label, `%`, `{`, `}` and `/` are escaped."""
        return decode(_tag(self.labels))


class StoreKeyspace:
    """The keys of a store with one prefix."""

    def __init__(self, prefix: str) -> None:
        """Check the prefix.

        Raises:
            TypeError, ValueError: As in `Keyspace`.
        """
        self.prefix: str = Keyspace(prefix).prefix
        self._stem = encode(prefix) + b":store:{"
        self.directory: tuple[bytes, ...] = tuple(
            self._stem + b"%}:" + ending for ending in (b"partitions", b"deadlines", b"tokens")
        )
        """The keys of the directory. Their tag is a lone `%`, which no escaped label is."""
        self.documents: bytes = encode(prefix) + b":store:documents:{"
        """Beginning of the keys of documents."""
        self.pattern: bytes = glob(self._stem) + b"*}:" + _ITEMS
        """SCAN pattern of the partitions."""

    def partition(self, member: bytes) -> Partition:
        """Return a partition by its member of the directory."""
        labels = tuple(components(member))
        tag = _tag(labels)
        return Partition(member, tuple([self._stem + tag + b"}:" + ending for ending in _ENDINGS]), labels)

    def member_of(self, key: bytes) -> bytes | None:
        """Return the directory's member of the partition with this key of items, or None for another program's key."""
        try:
            labels = _labels(key[len(self._stem) :].rpartition(b"}:")[0])
        except (UnicodeDecodeError, ValueError):
            return None
        member = b"".join(map(component, labels))
        return member if all(labels) and self.partition(member).keys[0] == key else None

    def item_of(self, document: bytes) -> tuple[Partition, bytes]:
        """Return the partition and the field of the item of a document, by the document's key.

        Raises:
            ValueError: It is not the key of a document of this store.
        """
        tag, separator, field = document[len(self.documents) :].partition(b"}:")
        if not document.startswith(self.documents) or not separator:
            raise ValueError(f"{document!r} is not the key of a document")
        return self.partition(member(tuple(_labels(tag)))), bytes.fromhex(field.decode("ascii"))


def document_keys(partition: Partition, fields: Sequence[bytes]) -> list[bytes]:
    """Return the keys of the items' documents, in the partition's slot."""
    stem, _, tag = partition.keys[0][: -len(_ITEMS)].rpartition(b"{")
    begin = stem + b"documents:{" + tag
    return [begin + field.hex().encode() for field in fields]


def with_notes(partition: Partition, *, writing: bool) -> Partition:
    """Return a partition with the extra keys that it has before a cold store.

    These are the notes about items that are being written, or were just written. For `writing`, add the key with the
    times when the notes may be removed.
    """
    stem = partition.keys[0][: -len(_ITEMS)]
    more = (stem + b"notes", stem + b"noted") if writing else (stem + b"notes",)
    return partition._replace(keys=(*partition.keys, *more))


def namespace_and_key(partition: Partition, field: bytes) -> tuple[tuple[str, ...], str]:
    """Return the namespace and the key of an item.

    Raises:
        ValueError: The field is not one of an item.
    """
    if field.find(b"\0") == len(field) - 1 and b"\1" not in field:  # most are in the partition's own namespace
        return partition.labels, decode(field[:-1])
    *labels, key = components(field)
    return (*partition.labels, *labels), key


def member(labels: tuple[str, ...]) -> bytes:
    """Return labels as a member of the directory or the beginning of a field."""
    return b"".join([component(label) for label in labels])


def bounds(labels: tuple[str, ...]) -> tuple[bytes, bytes]:
    """Return the ZRANGEBYLEX range of the directory's members that begin with these labels."""
    begins = member(labels)
    return (b"[" + begins, b"(" + after(begins)) if begins else (b"-", b"+")


def _tag(labels: Sequence[str]) -> bytes:
    """Return the hash tag of a partition."""
    return b"/".join([_escaped(encode(label)) for label in labels])


def _labels(tag: bytes) -> list[str]:
    """Return the labels in a partition's hash tag."""
    return [decode(_unescaped(part)) for part in tag.split(b"/")]


def _escaped(raw: bytes) -> bytes:
    return _ESCAPED.sub(lambda match: b"%%%02X" % match[0][0], raw)


def _unescaped(raw: bytes) -> bytes:
    return re.sub(rb"%(25|7B|7D|2F)", lambda match: bytes([int(match[1], 16)]), raw)
