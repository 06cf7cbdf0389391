"""What operations over two tiers are made of: requests of theirs, what they see of their saver, what is counted."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from langchain_core.runnables import RunnableConfig

from redis_saver import config
from redis_saver.context import Context
from redis_saver.errors import RedisSaverError
from redis_saver.requests import Request, T

WRITER_GONE = 300_000
"""Milliseconds after which a writer that has not ended its doubt is gone. Writing to cold must not take longer."""
DOUBTS_KEPT = 30 * 24 * 3600 * 1000
"""Milliseconds that a doubt is kept longer than its thread would be."""
MOST_NOTED = 10_000
"""Threads of which something is noted in this process, at the most: what is forgotten is asked again."""
LEAVE = 60_000
"""Milliseconds that a reader may take to bring a checkpoint back."""

OnHotError: TypeAlias = Literal["raise", "bypass"]
Verify: TypeAlias = Literal["never", "on_open", "always"]


class Cold(NamedTuple):
    """A call of the cold saver, by its method's name without an `a` in front. Reply: what it returns; of `list`, a list."""

    method: str
    arguments: Sequence[Any] = ()
    options: Mapping[str, Any] = {}


class Once(NamedTuple):
    """Something that all who ask for it at the same time wait for together. Reply: its result to the first, None to the others."""

    key: tuple[str, ...]
    make: Callable[[], Tiered[Any]]


Tiered: TypeAlias = "Generator[Request | Cold | Once, Any, T]"


class HotFailed(RedisSaverError):
    """Hot failed, and is to be bypassed; else its own error is raised instead."""


@dataclass
class Stats:
    """What happened between the tiers, in this process."""

    hits: int = 0
    """Reads that hot answered."""
    misses: int = 0
    """Reads that cold was asked for, as hot had nothing."""
    rehydrations: int = 0
    """Checkpoints that were brought back to hot."""
    doubts: int = 0
    """Reads that cold was asked for, as the thread was being written, or its writer was gone."""
    bypasses: int = 0
    """Reads and writes that were done without hot, which failed."""
    adopted: int = 0
    """Threads that only hot had, and that were brought to cold."""


class Tiers(Protocol):
    """What operations see of the saver."""

    hot: Context
    verify: Verify
    empty: dict[str, tuple[str, str]]
    """Threads in which nothing was found: in which namespace, and by which leave. The first checkpoint there is the newest."""
    verified: set[tuple[str, str]]
    """Threads and namespaces whose newest checkpoint was compared with cold's."""
    counts: Stats


def by_choice(tiers: Tiers, operation: Tiered[None]) -> Tiered[None]:
    """Do something with hot, or, where it fails and is to be bypassed, leave it: cold has it."""
    try:
        yield from operation
    except HotFailed:
        tiers.counts.bypasses += 1


def for_cold(given: RunnableConfig, *, ns: bool = True) -> RunnableConfig:
    """A config as other savers take it: the namespace is always there; names are strings."""
    where, more = config.address(given), dict(config.configurable(given))
    more["thread_id"] = where.thread_id
    if ns:
        more["checkpoint_ns"] = where.checkpoint_ns
    if where.checkpoint_id is None:
        more.pop("checkpoint_id", None)
    return {**given, "configurable": more}
