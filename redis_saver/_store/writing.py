"""Operations that change items."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redis_saver._common.display import shown
from redis_saver._common.store_names import Partition
from redis_saver._engine import scripts
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.requests import Argument, Call, Operation
from redis_saver._store.answers import checked, item_at
from redis_saver._store.calling import ask
from redis_saver._store.context import StoreContext
from redis_saver._store.listing import list_versions
from redis_saver._store.places import namespace_and_key
from redis_saver._store.texts import Texts
from redis_saver.errors import Conflict, reading_store

if TYPE_CHECKING:
    from redis_saver._store.vectors import Rows

MAX_PUTS, MAX_BYTES = 1000, 8_000_000
"""So many items, and about so many bytes, are stored in one step."""
ANY_VERSION = b""


class Write(NamedTuple):
    """What is to become of an item."""

    value: bytes
    """What a record has of it; nothing: it is deleted."""
    ttl: int = 0
    """Milliseconds; 0: none."""
    expected: bytes = ANY_VERSION
    """The version it has to have; `0`: it must not be there."""
    texts: Sequence[str] = ()
    """Those whose vectors it has."""


DELETION = Write(b"")


def put(context: StoreContext, partition: Partition, writes: Mapping[bytes, Write], texts: Texts) -> Operation[None]:
    """Store and delete items of a partition, by their fields. A thousand (8 MB) are one step; more are several.

    Args:
        context: The store.
        partition: Where the items are.
        writes: What is to become of them.
        texts: What was embedded for these writes.

    Raises:
        Conflict: An item has another version than expected.
    """
    for fields in _steps(context, writes) if writes else ():
        arguments: list[Argument] = []
        names = _new_names(len(fields))
        for field, made_by in zip(fields, names, strict=True):
            write = writes[field]
            vectors = _vectors(context, partition, field, texts.rows(write.texts)) if write.texts else b""
            arguments += (field, write.expected, write.ttl, made_by, write.value, vectors)
        reply = yield from ask(context, partition, scripts.PUT_ITEMS, arguments, fields)
        code, *said = reply or (0,)
        if code == StoreReply.CONFLICT:
            with reading_store(partition.keys[0]):
                field, version = fields[item_at(said[0], len(fields))], int(said[1])
            raise _conflict(partition, field, version, writes)
        if code == StoreReply.EMPTIED:
            yield Call(scripts.WITHDRAW, context.keyspace.directory, (partition.member, said[0]))


def _new_names(count: int) -> list[str]:
    """A name for the put of each item: the script recognizes a request that is sent twice by it."""
    digits = os.urandom(8 * count).hex()
    return [digits[at : at + 16] for at in range(0, len(digits), 16)]


def _vectors(context: StoreContext, partition: Partition, field: bytes, rows: Rows) -> bytes:
    assert context.embedder is not None  # noqa: S101 - else nothing is embedded
    return context.embedder.encode(context.values, *namespace_and_key(partition, field), rows)


def _steps(context: StoreContext, writes: Mapping[bytes, Write]) -> Sequence[list[bytes]]:
    steps: list[list[bytes]] = [[]]
    size, of_vector = 0, 4 * context.embedder.dims if context.embedder else 0
    for field, write in writes.items():
        own = len(field) + len(write.value) + of_vector * len(write.texts)
        size += own
        if steps[-1] and (len(steps[-1]) >= MAX_PUTS or size > MAX_BYTES):
            steps.append([])
            size = own
        steps[-1].append(field)
    return steps


def _conflict(partition: Partition, field: bytes, found: int, writes: Mapping[bytes, Write]) -> Conflict:
    namespace, key = namespace_and_key(partition, field)
    expected = int(writes[field].expected)
    there = f"has version {found}" if found else "is not there"
    was = f"version {expected}" if expected else "that it is not there"
    return Conflict(
        f"item {shown(key)} of namespace {shown(namespace)} {there}, and if_version expects {was}. Nothing was written now. It may have been "
        "written before only if the client sent it twice after a lost reply, and 16 other puts with if_version, or a deletion of all items, came in "
        "between. Read the item again, apply the change to what it is now, and put that with its version",
        found,
    )


def delete_below(context: StoreContext, partition: Partition, prefix: bytes) -> Operation[int]:
    """Delete the items of a partition whose fields begin so, a thousand at a time. Returns how many."""
    removed, above, is_last = 0, 0, False
    while not is_last:
        page = yield from list_versions(context, partition, above)
        fields = [field for field in page.found if field.startswith(prefix)]
        yield from put(context, partition, dict.fromkeys(fields, DELETION), Texts())
        removed, above, is_last = removed + len(fields), page.above, not page.above
    return removed


def clean(context: StoreContext, partition: Partition, token: Any, what: str = "expired") -> Operation[int]:
    """Remove what has expired in a partition, or `all` of it; if nothing is left, it leaves the directory. Returns how many items went.

    Args:
        context: The store.
        partition: The partition.
        token: That of its entry in the directory; 0 if that was not read.
        what: `expired` or `all`.
    """
    removed, more = 0, 1
    while more:
        reply = yield Call(scripts.SWEEP_ITEMS, partition.keys, (token, what))
        more, gone, left, refused = checked(scripts.SWEEP_ITEMS, partition.keys[0], reply)
        if more == StoreReply.DOCUMENTED and what == "all":
            gone, what = (yield from delete_below(context, partition, b"")), "expired"
        elif more and not gone:
            with reading_store(partition.keys[2]):
                raise ValueError("more items have expired, and none was removed")
        removed += gone
    if not left and refused != b"0":
        yield Call(scripts.WITHDRAW, context.keyspace.directory, (partition.member, refused))
    return removed
