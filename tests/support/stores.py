"""Raw data of a store in Redis, decoded by hand; and time that passes there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from redis_saver._common.store_names import StoreKeyspace
from redis_saver._storage import framing
from redis_saver._store import writing
from redis_saver._store.writing import Import, StoredItem
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import ran

STATE = "format first last count checksum token announced ttls deadline spaces deep indexed".split()
CHECKSUM = 2**50


def members(target: Target) -> list[bytes]:
    """Return the partitions that have a key of items."""
    keyspace = StoreKeyspace(target.prefix)
    found = (keyspace.member_of(key) for key in target.keys())
    return sorted(one for one in found if one is not None)


def directory(target: Target) -> list[bytes]:
    """Return the partitions in the directory."""
    return target.raw.zrange(StoreKeyspace(target.prefix).directory[0], 0, -1)  # type: ignore[no-any-return]


def state_of(target: Target, member: bytes) -> dict[str, int]:
    items = StoreKeyspace(target.prefix).partition(member).keys[0]
    return dict(zip(STATE, map(int, target.raw.hget(items, "@state").split()), strict=True))


def set_state(target: Target, member: bytes, state: dict[str, int]) -> None:
    items = StoreKeyspace(target.prefix).partition(member).keys[0]
    target.raw.hset(items, "@state", " ".join(str(state[name]) for name in STATE))


async def import_items(store: Uniform, *items: StoredItem, expected: int | Sequence[int] = 0) -> list[Import]:
    """Import items of one partition that have these versions; return those that are refused."""
    context = store.saver._context
    versions = [expected] * len(items) if isinstance(expected, int) else expected
    some = [writing.as_import(context, one, version) for one, version in zip(items, versions, strict=True)]
    return await ran(store, writing.import_items(context, some[0].partition, some, writing.new_put()))


def later(target: Target, milliseconds: int) -> None:
    """Let time pass by moving all deadlines, except those of keys."""
    keyspace, raw = StoreKeyspace(target.prefix), target.raw
    for member in members(target):
        expiring = keyspace.partition(member).keys[2]
        for field, deadline in raw.zrange(expiring, 0, -1, withscores=True):
            raw.zadd(expiring, {field: max(1, deadline - milliseconds)})
        state = state_of(target, member)
        for name in ("first", "announced"):
            if state[name]:
                state[name] = max(1, state[name] - milliseconds)
        set_state(target, member, state)
    for member, deadline in raw.zrange(keyspace.directory[1], 0, -1, withscores=True):
        raw.zadd(keyspace.directory[1], {member: max(1, deadline - milliseconds)})


def check_sound(target: Target) -> None:
    """Check that the keys of each partition agree, and that the directory has each partition.

    No other key may be left, except tokens that were given back.
    """
    keyspace, raw = StoreKeyspace(target.prefix), target.raw
    there = members(target)
    alive = {member for member in there if living(target, member)}
    assert alive <= set(directory(target)), "the directory lacks a partition that has items"
    known = set(keyspace.directory)
    for member in there:
        check_partition(target, member)
        known |= set(keyspace.partition(member).keys)
    for key in set(target.keys()) - known:
        left = raw.pttl(key)  # -2 if it has expired meanwhile
        assert key.endswith(b"}:retired") and (left == -2 or 0 <= left <= 60_000), (key, left)
    if directory(target):
        check_directory(target)


def living(target: Target, member: bytes) -> int:
    """Count the items of a partition that have not expired."""
    _, order, expiring, *_ = StoreKeyspace(target.prefix).partition(member).keys
    now = target.raw.time() if target.name != "cluster" else (time.time(), 0)
    return target.raw.zcard(order) - target.raw.zcount(expiring, "-inf", int(now[0] * 1000))  # type: ignore[no-any-return]


def check_partition(target: Target, member: bytes) -> None:
    items, order, expiring, namespaces, vectors, _ = StoreKeyspace(target.prefix).partition(member).keys
    raw, fields = target.raw, target.raw.hgetall(StoreKeyspace(target.prefix).partition(member).keys[0])
    state = state_of(target, member)
    del fields[b"@state"]
    fields.pop(b"@documents", None)
    assert (fields.pop(b"@key", None) is not None) == (state["format"] == 2)
    assert len(fields.pop(b"@compared", b"")) in range(0, 16 * 17 + 1, 17)
    versions, deadlines, counts = {}, 0, dict[bytes, int]()
    for field, record in fields.items():
        created, version, ttl, made_by, value = record.split(b" ", 4)
        assert int(created) <= int(version) <= state["last"] and len(made_by) in (14, 16)
        framing.first(value)
        versions[field] = int(version)
        deadlines += ttl != b"0"
        assert (raw.zscore(expiring, field) is not None) == (ttl != b"0")
        if labels := field[: field.rfind(b"\0", 0, -1) + 1]:
            counts[labels] = counts.get(labels, 0) + 1
    assert {field: int(score) for field, score in raw.zrange(order, 0, -1, withscores=True)} == versions
    assert len(set(versions.values())) == len(versions) == state["count"] > 0
    assert sum(versions.values()) % CHECKSUM == state["checksum"]
    assert raw.zcard(expiring) == deadlines == state["ttls"]
    assert {name: int(count) for name, count in raw.hgetall(namespaces).items()} == counts
    assert (len(counts), sum(counts.values())) == (state["spaces"], state["deep"])
    embedded = raw.hgetall(vectors)
    assert embedded.keys() <= versions.keys() and len(embedded) == state["indexed"]
    for stored in embedded.values():
        dims, _, framed = stored.partition(b" ")
        _, start = framing.first(framed)
        assert len(framed) > start and int(dims) > 0
    check_deadline(target, member, state)


def check_deadline(target: Target, member: bytes, state: dict[str, int]) -> None:
    """Check that all keys share one deadline if all items have a TTL, else that they have none.

    Moving time with `later` does not change that deadline.
    """
    keys = StoreKeyspace(target.prefix).partition(member).keys[:5]
    left = {target.raw.pttl(key) for key in keys if target.raw.exists(key)}
    if state["ttls"] == state["count"]:
        assert max(left) - min(left) < 1000 and min(left) > 0, left
    else:
        assert left == {-1}


def check_directory(target: Target) -> None:
    partitions, deadlines, tokens = StoreKeyspace(target.prefix).directory
    raw, there = target.raw, set(directory(target))
    given = raw.hgetall(tokens)
    last, lasting = int(given.pop(b"@last")), int(given.pop(b"@lasting"))
    assert given.keys() == there and max(map(int, given.values())) <= last
    assert lasting == len(there) - raw.zcard(deadlines)
    left: Any = {raw.pttl(key) for key in (partitions, deadlines, tokens) if raw.exists(key)}
    assert left == {-1} if lasting else min(left) > 0
