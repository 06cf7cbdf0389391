"""All numbers that operators see, each declared once: `stats()` returns them, and telemetry exports them.

`counter` declares one, or `field` of an `Instrument` that has several. From it come `stats()`, the OpenTelemetry
instrument (`_telemetry.py`), and the text on the site. `tests/project/test_dashboard.py` compares the tables of
`docs/metrics.md` and the dashboard.

`counting.py` counts what all savers, stores and caches have in common. Subclasses of `Live`, and the caches of savers
(`ChunkCache`) and stores (`LocalCache`), hold the other counts, beside the code that counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias

from redis_saver._common import forks

RESULT = "redis_saver.result"
"""Attribute for the result of a read, or of flushing a record."""
Kind: TypeAlias = Literal["counter", "up_down_counter", "gauge"]


@dataclass(frozen=True)
class Instrument:
    """An OpenTelemetry instrument, which exports one or several counters of a source."""

    path: str
    """The source, and the rest of the name."""
    unit: str
    about: str
    kind: Kind = "counter"
    """Counters only grow. Counters of both kinds of several sources are added; for gauges, the maximum is exported."""
    attribute: str = RESULT
    """Attribute that tells several counters apart."""

    @property
    def source(self) -> str:
        """`Live.kind` of its source."""
        return self.path.partition(".")[0]

    @property
    def name(self) -> str:
        """Its name."""
        return f"redis_saver.{self.path.removeprefix('traffic.')}"

    def field(self, value: str = "", about: str = "", default: Any = 0) -> Any:
        """Declare a counter: a field of a dataclass. `value` is that of the attribute, if there are several."""
        return field(default=default, metadata={"instrument": self, "value": value, "about": about or self.about})


def counter(path: str, unit: str, about: str, kind: Kind = "counter", default: Any = 0) -> Any:
    """Declare the only counter of an instrument. A default of None is not exported."""
    return Instrument(path, unit, about, kind).field(default=default)


def instruments(*stats: Any) -> dict[Instrument, dict[str, str]]:
    """Return the instruments of classes of stats. Each has its fields, with their values of the attribute."""
    found: dict[Instrument, dict[str, str]] = {}
    for each in [each for kind in stats for each in fields(kind) if each.metadata]:
        found.setdefault(each.metadata["instrument"], {})[each.name] = each.metadata["value"]
    return found


class Live:
    """The live numbers of a source, which inherits a class of stats. Users get copies."""

    kind: ClassVar[str]
    """First part of the names of its instruments. `numbers` has only the counters of these."""

    def __init__(self) -> None:
        """Start at the defaults."""
        super().__init__()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, start again."""
        for each in self._own():
            setattr(self, each.name, each.default)

    def numbers(self) -> dict[str, Any]:
        """Return the counters, and the last error."""
        return {each.name: getattr(self, each.name) for each in self._own()}

    @classmethod
    def _own(cls) -> Iterator[Field[Any]]:
        """Yield the fields of its counters, and of texts."""
        for each in fields(cls):  # type: ignore[arg-type]  # the other base class is a dataclass
            if each.default is not MISSING and (not each.metadata or each.metadata["instrument"].source == cls.kind):
                yield each


BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets in seconds. A call over a local connection takes 0.1 to 1 ms, and seconds in a
failover."""


@dataclass(frozen=True)
class OperationStats:
    """Calls of a method in this process."""

    calls: int = 0
    """Number of calls that ended, with or without an error."""
    errors: int = 0
    """Number of calls that raised an error or were cancelled."""
    seconds: float = 0.0
    """Total duration of the calls in seconds, without the time that the caller spends between the items of an
    iterator."""
    histogram: Mapping[str, int] = field(default_factory=dict)
    """Number of calls by the upper bound of their duration in seconds, as Prometheus writes it: `0.005` to `+Inf`."""


_LOOKUPS = Instrument("local_cache.lookups", "{lookup}", "Calls with a cached thread.")
_IO = Instrument("traffic.network.io", "By", "Bytes, without those of the protocol.", attribute="network.io.direction")


@dataclass
class TrafficStats:
    """Traffic between the client and a server."""

    operations: Mapping[str, OperationStats] = field(default_factory=dict)
    """Calls by method. A method and its asyncio form count as one."""
    round_trips: int = counter("traffic.round_trips", "{round_trip}", "Commands and pipelines that were sent.")
    retries: int = counter("traffic.retries", "{request}", "Requests sent again: a slot moved, or a pipeline failed.")
    script_loads: int = counter("traffic.script_loads", "{script}", "Scripts sent as text, as the server lacked them.")
    bytes_sent: int = _IO.field("transmit", "Bytes of keys and arguments. The protocol adds about ten for each.")
    bytes_received: int = _IO.field("receive", "Bytes of the replies, without those of the protocol.")


_TIER_READS = Instrument("tier.reads", "{read}", "Reads by result.")
_RECORDS = Instrument("tier.flush.records", "{record}", "Records by result.")


@dataclass
class TierStats:
    """Counts of events between the tiers of a saver, in this process.

    The backlog (`dirty_threads` to `set_aside`) covers all processes. A scan measures it. Between two scans `backlog`
    follows the reports of processes, `oldest_seconds` grows, and the other two keep the values of the last scan.
    """

    hits: int = _TIER_READS.field("hit", "Reads that hot answered.")
    misses: int = _TIER_READS.field("miss", "Reads that cold answered because hot had nothing.")
    rehydrations: int = counter("tier.rehydrations", "{checkpoint}", "Checkpoints that filled hot.")
    intents: int = _TIER_READS.field("intent", "Reads that cold answered because the thread had a write intent.")
    bypasses: int = counter("tier.bypasses", "{operation}", "Reads and writes without hot, as it failed.")
    repairs: int = counter("tier.repairs", "{repair}", "Damaged threads that hot dropped because cold has them.")
    enrolled: int = counter("tier.enrollments", "{thread}", "Threads that only hot had, and that are flushed to cold.")
    written_through: int = counter("tier.write_through", "{write}", "Write-behind writes that went to cold first.")
    flushed: int = _RECORDS.field("flushed", "Checkpoints, pending writes of a task, and deletions, written to cold.")
    coalesced: int = _RECORDS.field("coalesced", "Records that newer ones replaced (`cold_history`).")
    flushes: int = counter("tier.flush.claims", "{claim}", "Claims of threads by the flusher.")
    flush_seconds: float = counter("tier.flush.time", "s", "Total duration of these claims.", default=0.0)
    refused: int = _RECORDS.field("refused", "Refusals by a cold saver that was reachable. Each one counts.")
    unreachable: int = counter(
        "tier.flush.unreachable", "{claim}", "Claims that cold did not answer, also each 10 s in which it hangs."
    )
    worker_errors: int = counter(
        "tier.flush.worker_errors", "{error}", "Flusher workers that failed outside of a flush, or ended."
    )
    dirty_threads: int = counter("tier.backlog.threads", "{thread}", "Dirty threads, as of the last scan.", "gauge")
    backlog: int = counter("tier.backlog.records", "{record}", "Records that cold lacks.", "gauge")
    oldest_seconds: float = counter("tier.backlog.age", "s", "Age of the oldest such record.", "gauge", default=0.0)
    set_aside: int = counter("tier.backlog.set_aside", "{record}", "Refused records, which are retried.", "gauge")
    paused_seconds: float = counter("tier.backlog.paused", "s", "Rest of a pause of flushing.", "gauge", default=0.0)
    seconds_since_scan: float | None = counter(
        "tier.backlog.scan_age", "s", "Time since the last scan for such records.", "gauge", default=None
    )
    lost_records: int = counter("tier.backlog.lost", "{record}", "Records that hot lost before cold had them (about).")
    last_error: str = ""
    """The flusher's last error, without any text that may quote values."""


_COPY_READS = Instrument("store_tier.reads", "{read}", "Gets and searches by the tier that answered.")
_COPIES = Instrument("store_tier.copies", "{copy}", "Copies by result.")


@dataclass
class CopyStats:
    """Counts of a `TieredStore`'s copies in hot, in this process."""

    hits: int = _COPY_READS.field("hit", "Gets and searches that hot answered.")
    misses: int = _COPY_READS.field("miss", "Gets and searches that cold answered because hot did not have everything.")
    fills: int = _COPIES.field("stored", "Copies that were stored in hot after a miss or a write.")
    refused: int = _COPIES.field(
        "refused",
        "Copies that were not stored: somebody else wrote the item, or hot is full or refuses the value.",
    )
    repairs: int = counter("store_tier.repairs", "{repair}", "Damaged partitions, and copies that cannot be decoded.")
    bypasses: int = counter("store_tier.bypasses", "{operation}", "Reads and writes without hot, as it failed.")
    errors: int = counter("store_tier.errors", "{error}", "Writes that could not be read back. The log has the reason.")


@dataclass
class Stats(TrafficStats):
    """Counts of a saver or a store in this process. A field that only one of them counts is 0 in the other.

    Over two tiers, requests and cache are those of hot.
    """

    cache_bytes: int = counter("local_cache.size", "By", "Estimated memory of the cache.", "up_down_counter")
    cache_hits: int = _LOOKUPS.field("hit", "Calls whose thread or partition was cached.")
    cache_misses: int = _LOOKUPS.field("miss", "Calls whose thread or partition was not cached.")
    unavailable: int = counter("keys.skipped", "{thread}", "Threads and partitions that were skipped: no key.")
    tiers: TierStats = field(default_factory=TierStats)
    """Events between the tiers of a `TieredSaver`. All are 0 for another saver or store."""
    copies: CopyStats = field(default_factory=CopyStats)
    """Events of a `TieredStore`'s copies. All are 0 for another store or saver."""


_ENTRIES = Instrument("cache.lookups", "{entry}", "Requested entries.")


@dataclass
class CacheStats(TrafficStats):
    """Counts of a cache in this process."""

    hits: int = _ENTRIES.field("hit", "Entries that `get` found.")
    misses: int = _ENTRIES.field("miss", "Entries that `get` did not find, for any reason.")
    sets: int = counter("cache.sets", "{entry}", "Stored entries.")
    waits: int = counter("cache.waits", "{entry}", "Hits that another caller stored while `get` waited.")
    errors: int = counter("cache.errors", "{error}", "Calls that failed, and entries that could not be decoded.")
    skipped: int = counter("cache.skips", "{call}", "Calls that sent nothing, as the server had just failed.")
    last_error: str = ""
    """Class and message of the last error. Never a value."""
