"""What every operation over two tiers needs to know of the saver it works for."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from langchain_core.runnables import RunnableConfig

from redis_saver._checkpoint import checking
from redis_saver._checkpoint.saver import Saver, context_of
from redis_saver._common import config, names
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


class NegativeEntry(NamedTuple):
    """An entry of the negative cache: cold had nothing. It holds until somebody writes the thread."""

    token: str
    field: bytes
    """The field that a first write sets in hot: `@complete`, or `@has_latest` and the namespace."""

    def holds_for(self, ns: str) -> bool:
        """Whether a write to this namespace sets that field."""
        return self.field in (WHOLE, newest_of(ns))


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
        self.negative_cache: dict[str, NegativeEntry] = {}
        """Threads of which cold had nothing."""
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
