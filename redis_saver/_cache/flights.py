"""Single flight: of many callers that miss the same entry, one computes it, and the others wait for what it stores.

Who misses takes a lease on the entry (a key with a token and a deadline). `set` ends it. A caller that misses several entries takes the leases on all of
them, or on none while somebody else has one: so nobody waits while others wait for it. If whoever computes dies, its leases run out, and one of
those that wait takes over. A caller waits at most twice as long as a lease lasts; then it computes without one.

A graph asks again while its own nodes compute: for each task that a node calls, LangGraph looks for all tasks that have not written. So a run must not
wait for its own leases. Who asks is named by a context variable, which nodes and tasks inherit from the run that began them; and where a node is the
first to ask, by the superstep that it belongs to, which LangGraph's config says.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from langchain_core.runnables.config import var_child_runnable_config

from redis_saver._cache import operations
from redis_saver._cache.context import Context
from redis_saver._cache.entries import STAMP
from redis_saver._cache.keys import Place
from redis_saver._cache.operations import Found, by_shard
from redis_saver._common import forks
from redis_saver._common.display import shown
from redis_saver._engine import scripts
from redis_saver._engine.replies import LeaseReply
from redis_saver._engine.requests import Batch, Call, Operation, Sleep
from redis_saver.errors import decoding

FIRST_PAUSE, MAX_PAUSE = 0.01, 0.25
"""Seconds between two looks at an entry that somebody else computes: they grow from the first to the last."""


class _Caller:
    """A run with its nodes and tasks, or whoever else asks."""

    def __init__(self) -> None:
        self.process = forks.generation
        self.leases: dict[bytes, tuple[bytes, float]] = {}
        """Of each entry that the caller is to compute: its lease's token, and until when it lasts."""

    def tokens(self) -> list[bytes]:
        """The tokens of leases that have not run out. A child of a fork has none of its parent's."""
        now = time.monotonic()
        living = list(self.leases.values()) if self.process == forks.generation else []
        return list(dict.fromkeys(token for token, until in living if until > now))


_current: ContextVar[_Caller | None] = ContextVar("redis_saver_cache_caller", default=None)
_callers: dict[bytes, _Caller] = {}
"""Who computes an entry in this process, by its lease's key."""
_supersteps: WeakValueDictionary[object, _Caller] = WeakValueDictionary()
"""Who computes in a run's superstep, by the id of its checkpoint; a child of a fork begins anew."""


def _caller() -> _Caller:
    """Who asks. Who computes nothing any more is somebody new, so runs that were begun one beside the other are not taken for one."""
    caller = _current.get()
    if caller is None or not caller.tokens():
        superstep = _superstep()
        caller = _Caller() if superstep is None else _supersteps.setdefault((forks.generation, superstep), _Caller())
        _current.set(caller)
    return caller


def _superstep() -> object:
    """The id of the checkpoint from which the outermost graph's node runs that asks; None if it is no node."""
    config: Any = var_child_runnable_config.get() or {}
    return ((config.get("configurable") or {}).get("checkpoint_map") or {}).get("")


def stored(context: Context, places: Iterable[Place]) -> None:
    """Note that entries were stored, which ended their leases."""
    for key in map(context.keyspace.lease, places):
        if (caller := _callers.pop(key, None)) is not None:
            caller.leases.pop(key, None)


def _note(caller: _Caller, leases: Iterable[bytes], token: bytes, until: float) -> None:
    """Note the leases that a caller took, and forget those that ran out."""
    now = time.monotonic()
    for key, other in list(_callers.items()):
        if other.leases.get(key, (b"", now))[1] <= now:
            _callers.pop(key, None)
            other.leases.pop(key, None)
    for key in leases:
        if caller.leases.get(key, (b"", now))[1] <= now:  # else it is one that it had before
            caller.leases[key] = (token, until)
        _callers[key] = caller


def get(context: Context, places: Sequence[Place], lease: int) -> Operation[Found]:
    """Read entries. Where one is missing, take the lease on it, or wait until who has it stored the entry.

    Run it with `arun_sleeping`: it waits, and it sets a context variable of the caller.
    """
    caller = _caller()
    found = yield from operations.get(context, places)
    missing, at_once = found.missing(places), len(found.values)
    give_up, pause = time.monotonic() + 2 * lease / 1000, FIRST_PAUSE
    held: int | None = None
    while missing:
        token, until = os.urandom(8), time.monotonic() + lease / 1000
        held = yield from _take(context, missing, caller, token, found, held)
        missing = found.missing(missing)
        if taken := held is None:
            _note(caller, map(context.keyspace.lease, missing), token, until)
        if taken or (left := give_up - time.monotonic()) <= 0:
            break
        yield Sleep(min(left, pause * random.uniform(0.75, 1.25)))  # noqa: S311 - it only spreads callers over time
        pause = min(1.5 * pause, MAX_PAUSE)
    found.waits = len(found.values) - at_once
    return found


def _take(
    context: Context, missing: Sequence[Place], caller: _Caller, token: bytes, found: Found, held: int | None
) -> Operation[int | None]:
    """Take the leases on all of these entries that are still missing, or on none; and note what was stored meanwhile.

    Returns the shard in which somebody else has a lease, None if all were taken. `held` is the one of the last time, which is asked first: while that
    has not changed nothing is taken, so a caller that is cancelled as it waits leaves nothing behind.
    """
    keyspace, own = context.keyspace, caller.tokens()
    taken = list[Call]()
    for shard, some in sorted(by_shard(missing), key=lambda each: each[0] != held):
        leases = [keyspace.lease(place) for place in some]
        keys = [keyspace.generations[shard]]
        for place, lease in zip(some, leases, strict=True):
            keys += (place.generation, place.entry, lease)
        reply = yield Call(scripts.LEASE_ENTRIES, keys, (token, context.lease or 0, *own))
        code, values = _parted(reply, keys[0], len(some))
        for place, raw in zip(some, values, strict=True):
            if raw is not None:
                found.take(context, place.name, raw, raw[1 : 1 + STAMP])  # the script has compared the stamp
        if code == LeaseReply.HELD:
            if taken:
                yield Batch(taken)
            return shard
        taken.append(Call(scripts.RELEASE_LEASES, leases, (token,)))
    return None


def _parted(reply: Any, key: bytes, count: int) -> tuple[int, Sequence[bytes | None]]:
    """The code of a reply about leases, and the values of so many entries, None where there is none.

    Raises:
        DecodeError: It is no such reply.
    """
    if isinstance(reply, list) and len(reply) == 1 + count:
        code, *values = reply
        if isinstance(code, int) and all(one is None or isinstance(one, bytes) for one in values):
            return code, values
    with decoding("the shard {!r} of a cache", key, remedy="clear() makes it anew."):
        raise ValueError(f"the script about its leases answered {shown(reply)}")
