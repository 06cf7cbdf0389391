"""What operations over two tiers are made of: requests of theirs, what they see of their saver, what is counted."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from langchain_core.runnables import RunnableConfig

from redis_saver import config, names
from redis_saver.engine.requests import Call, Command, Request, T
from redis_saver.errors import DecodeError, RedisSaverError, decoding
from redis_saver.storage.context import Context

WRITER_GONE = 300_000
"""Milliseconds after which a writer that has not ended its intent is gone. Writing to cold must not take longer."""
INTENTS_KEPT = 30 * 24 * 3600 * 1000
"""Milliseconds that an intent is kept longer than its thread would be."""
MAX_NOTED = 10_000
"""Threads of which something is noted in this process, at the most, and only where their names are short (`names.MAX_CACHED_NAME`): what
is forgotten is asked again."""
FILL_LEASE = 60_000
"""Milliseconds that a reader may take to bring a checkpoint back."""

Mode: TypeAlias = Literal["write-through", "write-behind"]
OnHotError: TypeAlias = Literal["raise", "bypass"]
Verify: TypeAlias = Literal["never", "on_open", "always"]
ColdHistory: TypeAlias = Literal["all", "latest"]


class Cold(NamedTuple):
    """A call of the cold saver, by its method's name without an `a` in front. Reply: what it returns; of `list`, a list."""

    method: str
    arguments: Sequence[Any] = ()
    options: Mapping[str, Any] = {}


class Try(NamedTuple):
    """A request that may fail. Reply: a `Tried`."""

    request: Cold | Call | Command


class Tried(NamedTuple):
    """What came of a request."""

    reply: Any
    error: Exception | None


class Pause(NamedTuple):
    """Wait. Reply: None."""

    seconds: float


class Once(NamedTuple):
    """Something that all who ask for it at the same time wait for together. Reply: its result to the first, None to the others."""

    key: tuple[str, ...]
    make: Callable[[], Tiered[Any]]


TieredRequest: TypeAlias = "Request | Cold | Try | Pause | Once"
Tiered: TypeAlias = Generator[TieredRequest, Any, T]


class HotFailed(RedisSaverError):
    """Hot failed, and is to be bypassed; else its own error is raised instead."""


class NegativeEntry(NamedTuple):
    """That nothing was found in cold, which holds until somebody writes the thread."""

    token: str
    field: bytes
    """What a first write makes true of the thread in hot: `@complete`, or `@has_latest` and the namespace."""

    def holds_for(self, ns: str) -> bool:
        """Whether a write to this namespace makes it true."""
        return self.field in (WHOLE, newest_of(ns))


WHOLE = b"@complete"


def newest_of(ns: str) -> bytes:
    """The field that says that hot has what is newest in a namespace."""
    return b"@has_latest" + names.component(ns)


class Record(NamedTuple):
    """What cold does not have."""

    member: bytes
    """Its member of the index; `d`: the thread was deleted."""
    score: bytes
    """When it was written."""
    tries: int
    """How often cold would not take it."""
    writes: bytes | None
    """The pending writes, if it is some and they are still there."""

    def problem(self) -> DecodeError | None:
        """What is wrong with the note, which somebody else may have written: None where it names something."""
        try:
            with decoding("the note {!r} of what cold does not have", self.member):
                if self.kind not in (b"c", b"w", b"d"):
                    raise ValueError("it is neither a checkpoint, nor writes, nor a deletion")
                if self.kind != b"d":
                    names.component(self.place[1])
        except DecodeError as error:
            return error
        return None

    @property
    def kind(self) -> bytes:
        """`c` a checkpoint, `w` pending writes, `d` a deletion."""
        return self.member[:1]

    @property
    def place(self) -> tuple[str, str]:
        """The namespace and the id of the checkpoint.

        Raises:
            DecodeError: It names none.
        """
        with decoding("the name {!r} of what cold does not have", self.member):
            ns, checkpoint_id = names.components(self.member[1:])[:2]
            return ns, checkpoint_id


@dataclass
class Stats:
    """What happened between the tiers, in this process; the last four are as the last look at hot found them."""

    hits: int = 0
    """Reads that hot answered."""
    misses: int = 0
    """Reads that cold was asked for, as hot had nothing."""
    rehydrations: int = 0
    """Checkpoints that were brought back to hot."""
    intents: int = 0
    """Reads that cold was asked for, as the thread was being written, or its writer was gone."""
    bypasses: int = 0
    """Reads and writes that were done without hot, which failed."""
    enrolled: int = 0
    """Threads that only hot had, and that were brought to cold."""
    written_through: int = 0
    """Write-behind: writes that went to cold first all the same, as hot did not have enough of the thread."""
    flushed: int = 0
    """Records (checkpoints, pending writes of a task, deletions) that were brought to cold."""
    coalesced: int = 0
    """Checkpoints and pending writes that cold need not get, with `cold_history="latest"`."""
    flushes: int = 0
    """Times that a thread was brought to cold."""
    flush_seconds: float = 0.0
    """How long those took in all."""
    refused: int = 0
    """Records that cold would not take, each time."""
    dirty_threads: int = 0
    """Threads of which cold does not have all."""
    backlog: int = 0
    """Records that cold does not have."""
    oldest_seconds: float = 0.0
    """Age of the oldest of them."""
    set_aside: int = 0
    """Those of them that cold would not take, and that are tried again with growing pauses."""
    last_error: str = ""
    """What the flusher met last."""
    _look: str = field(default="", repr=False)

    def after_fork(self) -> None:
        """Begin anew: what the parent counted is the parent's."""
        vars(self).update(vars(Stats()))

    def learn(self, found: str) -> None:
        """Take over what a look at hot found, as `lag.look` publishes it, once."""
        which, *numbers = found.split()
        if which != self._look:
            self._look = which
            self.dirty_threads, self.backlog, oldest, self.set_aside = map(int, numbers)
            self.oldest_seconds = oldest / 1000


class Behind(Protocol):
    """What operations see of a saver's write-behind."""

    history: ColdHistory

    def note(self, thread: str, records: int) -> None:
        """Records of a thread were written that cold does not have."""

    def room(self) -> Tiered[None]:
        """Wait while too many are."""

    def versions(self, place: tuple[str, str], checkpoint_id: str) -> Mapping[str, Any] | None:
        """The channel versions of the checkpoint that cold got last in a namespace of a thread, if they are known here."""

    def remember(self, place: tuple[str, str], checkpoint_id: str, versions: Mapping[str, Any]) -> None:
        """Know them from now on."""


class Leases(Protocol):
    """What operations see of the leases that a process may hold (`leases.Leases`)."""

    def token(self, key: bytes) -> str:
        """The token to ask for a lease with."""

    def keep(self, key: bytes, token: str) -> None:
        """Let the next attempt ask with it."""


class Tiers(Protocol):
    """What operations see of the saver."""

    hot: Context
    carrier: Context
    """Hot, as it is read to bring to cold what it has."""
    verify: Verify
    negative_cache: dict[str, NegativeEntry]
    """Threads in which nothing was found."""
    verified: set[tuple[str, str]]
    """Threads and namespaces whose newest checkpoint was compared with cold's."""
    counts: Stats

    @property
    def leases(self) -> Leases:
        """Which this process may hold."""

    @property
    def behind(self) -> Behind | None:
        """None: write-through."""


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
