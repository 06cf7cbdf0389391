"""All threads, damaged ones too, where `threads()` ends at the first one that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from redis_saver._checkpoint import threads
from redis_saver._checkpoint.listing import mapped, scan_threads
from redis_saver._checkpoint.threads import ThreadInfo, ThreadQuery
from redis_saver._engine.requests import Batch, Operation, Stream
from redis_saver._storage.context import Context
from redis_saver._tiered import thread_info
from redis_saver._tiered.context import Tiers
from redis_saver._tiered.requests import Tiered, TieredStream
from redis_saver._tiered.thread_info import TieredThreadInfo
from redis_saver.errors import KeyConflict, RedisSaverError, ThreadDamaged, UnsupportedFormat

CANNOT_BE_READ = (ThreadDamaged, KeyConflict, UnsupportedFormat)
"""The errors that are about one thread, and not about the server."""


@dataclass(frozen=True)
class Damaged:
    """A thread that cannot be read."""

    thread_id: str
    error: RedisSaverError


def threads_of(context: Context, asked: ThreadQuery) -> Stream[ThreadInfo | Damaged]:
    """The threads of one server that are looked for, each once, and all that are damaged; with SCAN, a page at a time. No values are read."""

    def describe(names: Sequence[str]) -> Operation[list[ThreadInfo]]:
        answers = yield Batch([threads.described(context, name, asked) for name in names])
        pairs = zip(names, answers, strict=True)
        found = [threads.info(name, answer) for name, answer in pairs if answer is not None]
        return [one for one in found if asked.is_updated(one.updated_at)]

    return _each_once(scan_threads(context), asked, describe)


def tiered_threads(tiers: Tiers, asked: ThreadQuery) -> TieredStream[TieredThreadInfo | Damaged]:
    """Those of two tiers."""
    in_cold = yield from thread_info.gathered(tiers)

    def describe(names: Sequence[str]) -> Tiered[list[TieredThreadInfo]]:
        return thread_info.described(tiers, names, asked, in_cold)

    yield from _each_once(thread_info.stream_names(tiers, in_cold), asked, describe)


def _each_once(
    names: Generator[Any, Any, None],
    asked: ThreadQuery,
    describe: Callable[[Sequence[str]], Generator[Any, Any, list[Any]]],
) -> Generator[Any, Any, None]:
    """Describe threads, a page at once; one by one where some of the page cannot be read."""
    seen = set[str]()

    def each(page: Sequence[str]) -> Generator[Any, Any, list[Any]]:
        new = [name for name in page if name not in seen and name.startswith(asked.prefix)]
        seen.update(new)
        try:
            return (yield from describe(new)) if new else []
        except CANNOT_BE_READ:
            pass
        found = list[Any]()
        for name in new:
            found += yield from _alone(name, describe)
        return found

    return mapped(names, each)


def _alone(
    name: str, describe: Callable[[Sequence[str]], Generator[Any, Any, list[Any]]]
) -> Generator[Any, Any, list[Any]]:
    try:
        return (yield from describe([name]))
    except CANNOT_BE_READ as error:
        return [Damaged(name, error)]
