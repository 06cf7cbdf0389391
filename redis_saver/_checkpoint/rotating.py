"""Rotation of keys: of those that wrap the threads' data keys, and of the data keys themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from redis_saver._checkpoint import copying, listing
from redis_saver._common.display import shown
from redis_saver._engine.requests import Command, Operation
from redis_saver._storage import rewrapping
from redis_saver._storage.context import Context
from redis_saver._storage.keyed import keyed
from redis_saver._storage.keys import made_at
from redis_saver._storage.rewrapping import Holder, KeyStatus, Rewrapping, Rotated


def key_status(context: Context) -> Operation[KeyStatus]:
    """Count the threads that each key protects."""
    threads = yield from _threads(context)
    status = yield from rewrapping.status("thread", threads)
    return status._replace(cold_backed=(yield from _cold_backed(threads, status.failed)))


def rotate_keys(context: Context, *, data: bool = False, before: datetime | None = None) -> Operation[Rotated]:
    """Wrap the data keys of all threads anew. With `data`, replace those that were made before a moment."""
    rewrap = Rewrapping(context.data_keys)
    reporting = context._replace(data_keys=rewrap.data_keys)
    if before is not None and (not data or not isinstance(before, datetime) or before.tzinfo is None):
        raise TypeError(f"before={shown(before)}: write a datetime with a tzinfo, and only with data=True")
    limit = (before or datetime.now(timezone.utc)).timestamp()

    def reseal(holder: Holder, stored: bytes) -> Operation[str]:
        if made_at(stored) >= limit:
            return rewrapping.UNCHANGED
        return (yield from _reseal(reporting, holder.name))

    threads = yield from _threads(context)
    counts, failed = yield from rewrapping.each("thread", threads, reseal if data else rewrap)
    return rewrapping.result(counts, failed)._replace(cold_backed=(yield from _cold_backed(threads, failed)))


def _threads(context: Context) -> Operation[list[Holder]]:
    return [key_holder(context, thread) for thread in (yield from listing.all_threads(context))]


def key_holder(context: Context, thread: str) -> Holder:
    """Return a thread as the holder of its data key."""
    keys = context.keyspace.keys(thread)
    return Holder(thread, (keys.data_key, keys.index_key))


def _cold_backed(threads: Sequence[Holder], failed: Mapping[str, str]) -> Operation[int]:
    """Count the threads that are also in a cold tier, except those that cannot be read."""
    keys = [thread.keys[0] for thread in threads if thread.name not in failed]
    marks = yield from listing.ask_each(keys, lambda key: Command(("HMGET", key, "@cold_backed"), (key,)))
    return sum(mark is not None for (mark,) in marks)


@keyed
def _reseal(context: Context, thread: str) -> Operation[str]:
    """Replace a thread by a copy under a new data key."""
    is_there = context.cipher is not None and (yield from copying.reseal(context, thread))
    return rewrapping.ROTATED if is_there else rewrapping.GONE
