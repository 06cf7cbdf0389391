"""Reading, writing and clearing entries. Each operation takes a cache's context first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from redis_saver._cache import entries
from redis_saver._cache.context import Context
from redis_saver._cache.keys import FullKey, Namespace, Place, Range
from redis_saver._common.display import shown
from redis_saver._engine import scripts
from redis_saver._engine.requests import Batch, Call, Command, Operation
from redis_saver.errors import DecodeError, UnsupportedFormat, decoding

ENTRIES_PER_REQUEST = 500
"""The most entries that one script or MGET works on, so that others get their turn."""
_UNUSED = 24 * 3600 * 1000
"""Milliseconds for which a generation stays after all of its shard was cleared, unless it is used again."""


class Found:
    """What a read found."""

    def __init__(self) -> None:
        """Nothing so far."""
        self.values: dict[FullKey, Any] = {}
        self.unreadable: dict[FullKey, Exception] = {}
        """Entries that are there, but cannot be decoded."""
        self.waits = 0
        """How many of the values were stored while the reader waited."""

    def take(self, context: Context, name: FullKey, raw: bytes, stamp: bytes) -> None:
        """Look at an entry as it is stored. One that does not count any more is left out."""
        try:
            if entries.is_valid(raw, stamp):
                self.values[name] = entries.decode(context, name, raw, stamp)
        except (DecodeError, UnsupportedFormat) as error:
            self.unreadable[name] = error

    def add(self, other: Found) -> None:
        """Add what a later read of missing entries found."""
        self.values |= other.values
        self.unreadable |= other.unreadable

    def missing(self, places: Iterable[Place]) -> list[Place]:
        """Those of these entries that are not there."""
        return [place for place in places if place.name not in self.values and place.name not in self.unreadable]


def by_shard(places: Iterable[Place]) -> Iterator[tuple[int, list[Place]]]:
    """Entries as one request may work on them: of one shard, and not too many. Shards come in ascending order."""
    shards: dict[int, list[Place]] = {}
    for place in places:
        shards.setdefault(place.shard, []).append(place)
    for shard, some in sorted(shards.items()):
        for start in range(0, len(some), ENTRIES_PER_REQUEST):
            yield shard, some[start : start + ENTRIES_PER_REQUEST]


def get(context: Context, places: Sequence[Place]) -> Operation[Found]:
    """Read entries: one MGET a shard, all in one round trip a node."""
    found = Found()
    groups = [
        (shard, list(dict.fromkeys(place.generation for place in some)), some) for shard, some in by_shard(places)
    ]
    requests = [
        Command(("MGET", context.keyspace.generations[shard], *generations, *(place.entry for place in some)))
        for shard, generations, some in groups
    ]
    replies = (yield Batch(requests)) if len(requests) > 1 else [(yield requests[0])]
    for (_, generations, some), (of_shard, *values) in zip(groups, replies, strict=True):
        if of_shard is None:
            continue
        stamps = {
            key: generation + of_shard
            for key, generation in zip(generations, values, strict=False)
            if generation is not None
        }
        for place, raw in zip(some, values[len(generations) :], strict=True):
            if raw is not None and (stamp := stamps.get(place.generation)) is not None:
                found.take(context, place.name, raw, stamp)
    return found


Packed: TypeAlias = Mapping[FullKey, tuple[int | bytes, bytes]]
"""Entries as they are sent: the TTL in milliseconds, or nothing; and the value, encoded."""


def pack(context: Context, pairs: Sequence[tuple[FullKey, Any, int | None]]) -> Packed:
    """Encode all entries, before the first is sent.

    Raises:
        EncodeError, LimitExceeded, ValueError: As `entries.encode`.
    """
    return {name: (b"" if ttl is None else ttl, entries.encode(context, name, value)) for name, value, ttl in pairs}


def put(context: Context, places: Sequence[Place], packed: Packed) -> Operation[bool]:
    """Store entries. Returns True."""
    keyspace, fresh = context.keyspace, os.urandom(entries.GENERATION)
    calls, shards = list[Call](), list[int]()
    for shard, some in by_shard(places):
        keys = [keyspace.generations[shard], keyspace.indexes[shard]]
        arguments: list[bytes | int] = [fresh, entries.FORMAT]
        for place in some:
            keys += (place.generation, place.entry)
            arguments += (place.member, *packed[place.name])
        calls.append(Call(scripts.SET_ENTRIES, keys, arguments))
        shards.append(shard)
    replies = (yield Batch(calls)) if len(calls) > 1 else [(yield calls[0])]
    sampled = [_members(context, shard, reply) for shard, reply in zip(shards, replies, strict=True)]
    if sweeps := [_sweep(context, shard, members) for shard, members in zip(shards, sampled, strict=True) if members]:
        yield Batch(sweeps)
    return True


def clear(context: Context, namespaces: Sequence[Namespace] | None) -> Operation[None]:
    """Make all entries of some namespaces, or of all, invalid, then remove those that have no TTL."""
    keyspace = context.keyspace
    ranges = keyspace.ranges(namespaces)
    replies = yield Batch(
        [
            *(Command(("UNLINK", one.generation)) for one in ranges),
            *(_page(context, one, one.low) for one in ranges),
        ]
    )
    pages = list(zip(ranges, replies[len(ranges) :], strict=True))
    while pages := [(one, members) for one, members in pages if members]:
        requests: list[Call | Command] = [_sweep(context, one.shard, members) for one, members in pages]
        if namespaces is None:
            # The generations of namespaces whose entries had no TTL have no deadline either.
            unused = {keyspace.listed(one.shard, member)[0] for one, members in pages for member in members}
            requests += [Command(("PEXPIRE", key, _UNUSED)) for key in unused]
        behind = [_page(context, one, b"(" + members[-1]) for one, members in pages]
        replies = yield Batch([*requests, *behind])
        pages = [(one, page) for (one, _), page in zip(pages, replies[len(requests) :], strict=True)]


def _page(context: Context, of: Range, low: bytes) -> Command:
    index = context.keyspace.indexes[of.shard]
    return Command(("ZRANGEBYLEX", index, low, of.high, "LIMIT", 0, ENTRIES_PER_REQUEST))


def _members(context: Context, shard: int, reply: Any) -> Sequence[bytes]:
    """Members of a shard's index, as a script took them.

    Raises:
        DecodeError: They are none.
    """
    if not isinstance(reply, list) or not all(isinstance(one, bytes) for one in reply):
        with decoding("the index {!r} of a cache", context.keyspace.indexes[shard], remedy="clear() makes it anew."):
            raise ValueError(f"the script about it answered {shown(reply)}")
    return reply


def _sweep(context: Context, shard: int, members: Sequence[bytes]) -> Call:
    keys = [context.keyspace.generations[shard], context.keyspace.indexes[shard]]
    for member in members:
        keys += context.keyspace.listed(shard, member)
    return Call(scripts.SWEEP_ENTRIES, keys, members)
