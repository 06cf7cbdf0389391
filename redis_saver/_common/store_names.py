"""The names of a store's keys, fields and members; `names.py` has those of threads.

`docs/storage-format.md` shows all of them.

No key of a thread is one of a store: with the same prefix, `<prefix>:{` and `<prefix>:store:{` differ; with the
prefixes `p:store` and `p`, the endings do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from redis_saver._common.names import Keyspace, after, component, components, decode, encode

PARTITION_LABELS = 2
"""So many labels of a namespace name its partition."""
_ITEMS = b"items"
_ENDINGS = (_ITEMS, b"order", b"expiring", b"namespaces", b"vectors", b"retired")
_ESCAPED = re.compile(rb"[%{}/]")


class Partition(NamedTuple):
    """The items whose namespaces share their first two labels, or all of a namespace of one label."""

    member: bytes
    """Its labels, as the directory names it."""
    keys: tuple[bytes, ...]
    """Its six keys, as the scripts take them; all in one cluster slot."""
    labels: tuple[str, ...]
    """Its one or two labels."""


class StoreKeyspace:
    """The keys of a store with one prefix."""

    def __init__(self, prefix: str) -> None:
        """Check the prefix.

        Raises:
            TypeError, ValueError: As those of `Keyspace`.
        """
        self.prefix: str = Keyspace(prefix).prefix
        self._stem = encode(prefix) + b":store:{"
        self.directory: tuple[bytes, ...] = tuple(
            self._stem + b"%}:" + ending for ending in (b"partitions", b"deadlines", b"tokens")
        )
        """The keys of the directory. A lone `%` stands for no label, as escaped labels never do."""
        self.documents: bytes = encode(prefix) + b":store:documents:{"
        """The beginning of the keys of documents."""
        self.pattern: bytes = re.sub(rb"([*?\[\]\\^])", rb"\\\1", self._stem) + b"*}:" + _ITEMS
        """The pattern of SCAN for the partitions."""

    def partition(self, member: bytes) -> Partition:
        """A partition by its labels, as the directory names it."""
        labels = tuple(components(member))
        tag = b"/".join([_escaped(encode(label)) for label in labels])
        return Partition(member, tuple([self._stem + tag + b"}:" + ending for ending in _ENDINGS]), labels)

    def member_of(self, key: bytes) -> bytes | None:
        """The labels of the partition that this key of items belongs to; None if it is another program's."""
        tag, ending = key[len(self._stem) :].rpartition(b"}:")[::2]
        try:
            labels = _labels(tag)
        except (UnicodeDecodeError, ValueError):
            return None
        member = b"".join(map(component, labels))
        is_ours = (
            all(labels) and key.startswith(self._stem) and ending == _ITEMS and self.partition(member).keys[0] == key
        )
        return member if is_ours else None

    def item_of(self, document: bytes) -> tuple[Partition, bytes]:
        """The partition and the field of the item that a document is of, by its key.

        Raises:
            ValueError: It is no key of a document of this store.
        """
        tag, separator, field = document[len(self.documents) :].partition(b"}:")
        if not document.startswith(self.documents) or not separator:
            raise ValueError(f"{document!r} is no key of a document")
        return self.partition(member(tuple(_labels(tag)))), bytes.fromhex(field.decode("ascii"))


def document_keys(partition: Partition, fields: Sequence[bytes]) -> list[bytes]:
    """The keys of the documents of items, in the partition's slot."""
    stem, _, tag = partition.keys[0][: -len(_ITEMS)].rpartition(b"{")
    begin = stem + b"documents:{" + tag
    return [begin + field.hex().encode() for field in fields]


def with_notes(partition: Partition, *, writing: bool) -> Partition:
    """Return a partition with the keys that it has in front of a cold store.

    These are the notes about items that are written, or were lately; for `writing`, also when the notes may go.
    """
    stem = partition.keys[0][: -len(_ITEMS)]
    more = (stem + b"notes", stem + b"noted") if writing else (stem + b"notes",)
    return partition._replace(keys=(*partition.keys, *more))


def member(labels: tuple[str, ...]) -> bytes:
    """Labels, as a member of the directory or the beginning of a field."""
    return b"".join([component(label) for label in labels])


def bounds(labels: tuple[str, ...]) -> tuple[bytes, bytes]:
    """The range of the directory's members that begin with these labels, as ZRANGEBYLEX takes it."""
    begins = member(labels)
    return (b"[" + begins, b"(" + after(begins)) if begins else (b"-", b"+")


def _labels(tag: bytes) -> list[str]:
    """The labels of a partition, of its hash tag."""
    return [decode(_unescaped(part)) for part in tag.split(b"/")]


def _escaped(raw: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: b"%%%02X" % found[0][0], raw)


def _unescaped(raw: bytes) -> bytes:
    return re.sub(rb"%(25|7B|7D|2F)", lambda found: bytes([int(found[1], 16)]), raw)
