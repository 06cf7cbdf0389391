"""What every operation over two tiers needs to know of the saver it works for."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base.id import uuid6

from redis_saver._checkpoint import checking
from redis_saver._checkpoint.saver import Saver, context_of
from redis_saver._common import config, names
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._storage.context import Context
from redis_saver._tiered.backlog import BacklogCount
from redis_saver._tiered.requests import HotFailed, Tiered
from redis_saver._tiered.stats import Counts
from redis_saver.errors import EncodeError, LimitExceeded

WRITER_GONE = checking.WRITER_GONE
MAX_NOTED = 10_000
"""The most threads about which this process remembers something, and only if their names are short (`names.MAX_CACHED_NAME`). What
it has forgotten it asks again."""
FILL_LEASE = 60_000
"""Milliseconds that a reader may take to fill hot: the length of a fill lease."""

HOT_CANNOT_HAVE = (EncodeError, LimitExceeded)
"""The errors where cold has something that hot cannot have: it is too large for hot's limits, or hot's serializer does not know it."""

Mode: TypeAlias = Literal["write-through", "write-behind"]
OnHotError: TypeAlias = Literal["raise", "bypass"]
Verify: TypeAlias = Literal["never", "on_open"]
ColdHistory: TypeAlias = Literal["all", "latest"]


class Fill(NamedTuple):
    """A fill that this process knows: hot learned from cold what the newest checkpoint is, or that there is none."""

    token: bytes
    since: str
    """The time in a uuid6 that was made when this process knew of the fill."""
    field: bytes = b""
    """If hot did not have the thread: the field that a first write sets (`@complete`, or `@has_latest` and the ns)."""

    def is_before(self, checkpoint_id: str) -> bool:
        """True if a checkpoint id was surely made after this process knew of the fill.

        LangGraph makes ids by `uuid6`, which never goes back in one process. Of another kind of id nothing is known.
        """
        is_uuid6 = len(checkpoint_id) == 36 and checkpoint_id[14] == "6"
        return is_uuid6 and checkpoint_id[: len(self.since)] > self.since


class Fills:
    """The last fill of each namespace of a thread that this process knows.

    If one is forgotten, the next put goes to cold first: hot may lack pending writes of the checkpoint.
    """

    def __init__(self) -> None:
        self._threads: BoundedCache[str, Mapping[str, Fill]] = BoundedCache(MAX_NOTED)

    @staticmethod
    def now() -> str:
        """The time in a uuid6 that is made now."""
        return str(uuid6())[:18]

    def learn(self, thread: str, ns: str, fill: Fill) -> None:
        """Remember a fill. What was known of other namespaces is void if it is of the root, or of an empty thread."""
        if len(thread) + len(ns) > names.MAX_CACHED_NAME:
            return
        by_ns = self._threads.get(thread, {})
        if not ns or fill.field == WHOLE:
            by_ns, ns = {}, ""
        elif len(by_ns) >= MAX_NAMESPACES:
            by_ns = {"": by_ns[""]} if "" in by_ns else {}
        self._threads.store(thread, {**by_ns, ns: fill})

    def hear(self, thread: str, ns: str, token: bytes) -> None:
        """Learn the fill that hot names, unless it is known."""
        fill = self.of(thread, ns)
        if fill is None or fill.token != token:
            self.learn(thread, ns, Fill(token, self.now()))

    def of(self, thread: str, ns: str) -> Fill | None:
        """The last known fill of a namespace, else that of the root: of a whole thread it is the same."""
        by_ns = self._threads.get(thread, {})
        return by_ns.get(ns) or by_ns.get("")


MAX_NAMESPACES = 50
"""Maximum number of namespaces per thread whose fills are remembered."""
WHOLE = b"@complete"


def newest_of(ns: str) -> bytes:
    """The field that says that hot has the newest checkpoint of a namespace."""
    return b"@has_latest" + names.component(ns)


class Queue(Protocol):
    """What operations see of a saver's flush queue."""

    history: ColdHistory

    def note(self, thread: str) -> None:
        """Note that a thread may have records that cold lacks."""

    def wait_for_capacity(self) -> Tiered[None]:
        """Wait until the backlog has room for a record, and count it."""

    def versions(self, place: tuple[str, str], checkpoint_id: str) -> Mapping[str, Any] | None:
        """The channel versions of the checkpoint that cold got last in a namespace of a thread, if they are known here."""

    def remember(self, place: tuple[str, str], checkpoint_id: str, versions: Mapping[str, Any]) -> None:
        """Remember the versions that `versions` answers."""


class Leases(Protocol):
    """What operations see of the leases that a process may hold (`leases.Leases`)."""

    def token(self, key: bytes) -> str:
        """The token to ask for a lease with."""

    def keep(self, key: bytes, token: str) -> None:
        """Keep a token, so that the next attempt asks with it."""


class Tiers:
    """Two tiers, as their operations see them."""

    def __init__(
        self,
        hot: Saver[Any],
        opaque_hot: Context,
        *,
        leases: Leases,
        verify: Verify,
        cold_is_postgres: bool,
        lists_by_id: bool,
    ) -> None:
        """Begin with nothing known.

        Args:
            hot: The saver in front.
            opaque_hot: Hot with the serializer that flushers read it with.
            leases: The leases that this process may hold.
            verify: When hot's newest checkpoint is compared with cold's.
            cold_is_postgres: Whether cold is LangGraph's Postgres saver, whose tables are known (`postgres.py`).
            lists_by_id: Whether cold is known to list by descending id.
        """
        self._hot = hot
        self.opaque_hot, self.leases, self.verify = opaque_hot, leases, verify
        self.cold_is_postgres, self.lists_by_id = cold_is_postgres, lists_by_id
        self.flush_queue: Queue | None = None
        """None: write-through."""
        self.counts: Counts = Counts()
        self.backlog: BacklogCount = BacklogCount(self.counts)
        self.fills: Fills = Fills()
        self.verified: set[tuple[str, str]] = set()
        """Threads and namespaces whose newest checkpoint was compared with cold's."""

    @property
    def hot(self) -> Context:
        """The saver in front, with the serializer that it has now."""
        return context_of(self._hot)

    def over(self, hot: Saver[Any]) -> Tiers:
        """The same tiers over a clone of hot. Both share what is remembered."""
        clone = copy.copy(self)
        clone._hot = hot  # noqa: SLF001 - it is of this class
        return clone


def known_fill(tiers: Tiers, where: config.Address, checkpoint_id: str | None = None) -> Fill | None:
    """The last fill of a namespace that a write may rely on; a put only if its checkpoint's id was made later."""
    fill = tiers.fills.of(where.thread_id, where.checkpoint_ns)
    return fill if fill and (checkpoint_id is None or fill.is_before(checkpoint_id)) else None


def best_effort(tiers: Tiers, operation: Tiered[None]) -> Tiered[None]:
    """Run an operation over hot. If hot fails and may be bypassed, give the operation up, because cold has what matters."""
    try:
        yield from operation
    except HotFailed:
        tiers.counts.bypasses += 1


def for_cold(given: RunnableConfig, *, ns: bool = True) -> RunnableConfig:
    """A config in the form that other savers need: it always has a namespace, and names are strings."""
    where, more = config.address(given), dict(config.configurable(given))
    more["thread_id"] = where.thread_id
    for key in config.OURS:
        more.pop(key, None)  # which are about hot; LangGraph would take a text along in the metadata
    if ns:
        more["checkpoint_ns"] = where.checkpoint_ns
    if where.checkpoint_id is None:
        more.pop("checkpoint_id", None)
    found: RunnableConfig = {**given, "configurable": more}
    if "metadata" in given:  # where LangChain takes the texts of `configurable` along
        found["metadata"] = {key: one for key, one in given["metadata"].items() if key not in config.OURS}
    return found
