"""The instruments: names, units and numbers. `docs/metrics.md` has them in a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

RESULT = "redis_saver.result"
"""Attribute for the result of a read or of a record."""
DIRECTION = "network.io.direction"
"""Attribute for the direction of bytes."""
DURATION = "redis_saver.operation.duration"
"""A histogram of all calls, in seconds."""
LAST_ERROR = "redis_saver.tier.flush.last_error"
"""A gauge: 1, with the kind of the flusher's last error as `error.type`; absent before the first error."""

Kind: TypeAlias = Literal["counter", "amount", "gauge"]
"""A counter grows. Counters and amounts of several sources are added up; of gauges the greatest is exported."""


class Instrument(NamedTuple):
    """An instrument that exports numbers of one kind of source."""

    name: str
    unit: str
    about: str
    fields: Mapping[str, str]
    """Numbers of the source, and their values of the attribute. An empty value leaves the attribute out."""
    kind: Kind = "counter"
    attribute: str = RESULT


TRAFFIC = (
    Instrument(
        "redis_saver.round_trips", "{round_trip}", "Commands and pipelines that were sent.", {"round_trips": ""}
    ),
    Instrument(
        "redis_saver.retries",
        "{request}",
        "Requests that were sent again, as a slot was moving or a pipeline had failed.",
        {"retries": ""},
    ),
    Instrument(
        "redis_saver.script_loads",
        "{script}",
        "Scripts whose text was sent, as the server did not know them.",
        {"script_loads": ""},
    ),
    Instrument(
        "redis_saver.network.io",
        "By",
        "Bytes of keys, arguments and replies, without those of the protocol.",
        {"bytes_sent": "transmit", "bytes_received": "receive"},
        attribute=DIRECTION,
    ),
)
REMEMBERED = (
    Instrument(
        "redis_saver.remembered.size",
        "By",
        "Memory that what a saver or a store remembers takes, about.",
        {"cache_bytes": ""},
        kind="amount",
    ),
    Instrument(
        "redis_saver.remembered.lookups",
        "{lookup}",
        "Calls by whether something was remembered of their thread, page or partition (hit) or not (miss).",
        {"cache_hits": "hit", "cache_misses": "miss"},
    ),
)
CACHE = (
    Instrument(
        "redis_saver.cache.lookups",
        "{entry}",
        "Entries that were asked for, by whether they were found.",
        {"hits": "hit", "misses": "miss"},
    ),
    Instrument("redis_saver.cache.sets", "{entry}", "Entries that were stored.", {"sets": ""}),
    Instrument(
        "redis_saver.cache.waits",
        "{entry}",
        "Entries that were waited for until somebody else had stored them.",
        {"waits": ""},
    ),
    Instrument(
        "redis_saver.cache.errors",
        "{error}",
        "Calls that failed, and entries that could not be decoded.",
        {"errors": ""},
    ),
    Instrument(
        "redis_saver.cache.skips",
        "{call}",
        "Calls that sent nothing, as the server did not answer shortly before.",
        {"skipped": ""},
    ),
)
STORE_TIER = (
    Instrument(
        "redis_saver.store_tier.reads",
        "{read}",
        "Gets and searches by whether hot answered them (hit) or cold (miss).",
        {"hits": "hit", "misses": "miss"},
    ),
    Instrument(
        "redis_saver.store_tier.copies",
        "{copy}",
        "Copies by whether hot took them (stored) or not (refused).",
        {"fills": "stored", "refused": "refused"},
    ),
    Instrument(
        "redis_saver.store_tier.repairs",
        "{repair}",
        "Partitions that hot dropped as a part of them was gone, and copies that could not be decoded.",
        {"repairs": ""},
    ),
    Instrument(
        "redis_saver.store_tier.bypasses",
        "{operation}",
        "Reads and writes done without hot, which failed.",
        {"bypasses": ""},
    ),
    Instrument(
        "redis_saver.store_tier.errors", "{error}", "Writes that could not be read back from cold.", {"errors": ""}
    ),
)
TIER = (
    Instrument(
        "redis_saver.tier.reads",
        "{read}",
        "Reads by whether hot answered them (hit), had nothing (miss), or was not to be trusted as the thread was "
        "being written (intent).",
        {"hits": "hit", "misses": "miss", "intents": "intent"},
    ),
    Instrument(
        "redis_saver.tier.bypasses", "{operation}", "Reads and writes done without hot, which failed.", {"bypasses": ""}
    ),
    Instrument(
        "redis_saver.tier.rehydrations",
        "{checkpoint}",
        "Checkpoints that were brought back from cold to hot.",
        {"rehydrations": ""},
    ),
    Instrument(
        "redis_saver.tier.repairs",
        "{repair}",
        "Threads that hot dropped as a part of them was gone, and that cold has.",
        {"repairs": ""},
    ),
    Instrument(
        "redis_saver.tier.enrollments",
        "{thread}",
        "Threads that only hot had, and that were brought to cold.",
        {"enrolled": ""},
    ),
    Instrument(
        "redis_saver.tier.write_through",
        "{write}",
        "Writes of write-behind savers that went to cold first all the same.",
        {"written_through": ""},
    ),
    Instrument(
        "redis_saver.tier.flush.records",
        "{record}",
        "Records that a flusher brought to cold (flushed), did not need to bring (coalesced), or that cold answered "
        "and refused (refused).",
        {"flushed": "flushed", "coalesced": "coalesced", "refused": "refused"},
    ),
    Instrument(
        "redis_saver.tier.flush.unreachable",
        "{claim}",
        "Times that a flusher stopped because cold did not answer.",
        {"unreachable": ""},
    ),
    Instrument(
        "redis_saver.tier.flush.worker_errors",
        "{error}",
        "Times that a worker of the flusher failed outside of a flush, or ended and was replaced.",
        {"worker_errors": ""},
    ),
    Instrument(
        "redis_saver.tier.flush.claims",
        "{claim}",
        "Times that a flusher worked on a thread.",
        {"flushes": ""},
    ),
    Instrument(
        "redis_saver.tier.flush.time", "s", "How long flushers worked on threads in all.", {"flush_seconds": ""}
    ),
    Instrument(
        "redis_saver.tier.backlog.threads",
        "{thread}",
        "Threads of which cold does not have all.",
        {"dirty_threads": ""},
        kind="gauge",
    ),
    Instrument(
        "redis_saver.tier.backlog.records",
        "{record}",
        "Records that cold does not have.",
        {"backlog": ""},
        kind="gauge",
    ),
    Instrument(
        "redis_saver.tier.backlog.age",
        "s",
        "Age of the oldest record that cold does not have.",
        {"oldest_seconds": ""},
        kind="gauge",
    ),
    Instrument(
        "redis_saver.tier.backlog.set_aside",
        "{record}",
        "Records that cold refused although it answered. They are tried again.",
        {"set_aside": ""},
        kind="gauge",
    ),
)
INSTRUMENTS: Mapping[str, tuple[Instrument, ...]] = {
    "traffic": TRAFFIC,
    "remembered": REMEMBERED,
    "cache": CACHE,
    "tier": TIER,
    "store_tier": STORE_TIER,
}
"""By the kind of source that they tell of (`Source.kind`)."""
