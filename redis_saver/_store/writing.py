"""Operations that change items."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis_saver._common.display import shown
from redis_saver._common.store_names import Partition
from redis_saver._engine import scripts
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.requests import Argument, Call, Operation
from redis_saver._store.calling import ask
from redis_saver._store.context import StoreContext
from redis_saver._store.places import namespace_and_key
from redis_saver.errors import Conflict

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


def put(context: StoreContext, partition: Partition, writes: Mapping[bytes, Write]) -> Operation[None]:
    """Store and delete items of a partition, by their fields. A thousand (8 MB) are one step; more are several.

    Raises:
        Conflict: An item has another version than expected.
    """
    for fields in _steps(writes) if writes else ():
        arguments: list[Argument] = []
        made_by = os.urandom(8).hex()  # by which the script knows a request that is sent twice
        for field in fields:
            write = writes[field]
            arguments += (field, write.expected, write.ttl, made_by, write.value)
        reply = yield from ask(context, partition, scripts.PUT_ITEMS, arguments)
        if not reply:
            continue
        code, *said = reply
        if code == StoreReply.CONFLICT:
            raise _conflict(partition, fields[said[0] - 1], int(said[1]), writes)
        yield Call(scripts.WITHDRAW, context.keyspace.directory, (partition.member, said[0]))


def _steps(writes: Mapping[bytes, Write]) -> Sequence[list[bytes]]:
    steps: list[list[bytes]] = [[]]
    size = 0
    for field, write in writes.items():
        size += len(field) + len(write.value)
        if steps[-1] and (len(steps[-1]) >= MAX_PUTS or size > MAX_BYTES):
            steps.append([])
            size = len(field) + len(write.value)
        steps[-1].append(field)
    return steps


def _conflict(partition: Partition, field: bytes, found: int, writes: Mapping[bytes, Write]) -> Conflict:
    namespace, key = namespace_and_key(partition, field)
    expected = int(writes[field].expected)
    there = f"has version {found}" if found else "is not there"
    was = f"version {expected}" if expected else "that it is not there"
    return Conflict(
        f"item {shown(key)} of namespace {shown(namespace)} {there}, and if_version expects {was}. Nothing was written. Read the item again, apply the "
        "change to what it is now, and put that with its version",
        found,
    )


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
        more, gone, left, refused = yield Call(scripts.SWEEP_ITEMS, partition.keys, (token, what))
        removed += gone
    if not left and refused != b"0":
        yield Call(scripts.WITHDRAW, context.keyspace.directory, (partition.member, refused))
    return removed
