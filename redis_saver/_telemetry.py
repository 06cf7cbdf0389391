"""Metrics and spans for OpenTelemetry, and the log of slow calls. `docs/metrics.md` lists the instruments.

Each instrument reads the numbers of its sources at each export, so an export makes no call slower. Only durations are
recorded at each call, because OpenTelemetry has no observable histogram.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import version
from threading import Lock
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from redis_saver._common.display import shown
from redis_saver._common.logs import Log
from redis_saver._engine.stats import BOUNDS, Ended, Measured, Observer, Source

SCOPE = "redis_saver"
"""Name of the meter and of the tracer."""
VERSION = version("redis-saver")
COLLECTION = "db.collection.name"
ERROR = "error.type"
OPERATION = "db.operation.name"
THREAD = "gen_ai.conversation.id"
"""OpenTelemetry's attribute for the id of a thread of LangGraph."""
OF_ALL = ("traffic", "remembered", "keys")
"""Kinds of sources that savers, stores and caches share. An attribute names their collection."""
RESULT = "redis_saver.result"
"""Attribute for the result of a read, or of flushing a record."""
DIRECTION = "network.io.direction"
"""Attribute for the direction of bytes."""
DURATION = "redis_saver.operation.duration"
"""A histogram of all calls, in seconds."""
LAST_ERROR = "redis_saver.tier.flush.last_error"
"""A gauge: 1, with the kind of the flusher's last error as `error.type`; absent before the first error."""
_LOG = Log("redis_saver.telemetry")


class Instrument(NamedTuple):
    """An OpenTelemetry instrument that exports numbers of one kind of source."""

    name: str
    unit: str
    fields: Mapping[str, str]
    """Names of the source's numbers, each with its value of `attribute`. An empty value omits the attribute."""
    about: str
    kind: Literal["counter", "up_down_counter", "gauge"] = "counter"
    """Counters only grow. Counters of both kinds of several sources are added; for gauges, the maximum is exported."""
    attribute: str = RESULT


INSTRUMENTS: Mapping[str, tuple[Instrument, ...]] = {
    "traffic": (
        Instrument("redis_saver.round_trips", "{round_trip}", {"round_trips": ""}, "Sent commands and pipelines."),
        Instrument("redis_saver.retries", "{request}", {"retries": ""},
                   "Requests that were sent again, because a slot was moving or a pipeline failed."),
        Instrument("redis_saver.script_loads", "{script}", {"script_loads": ""},
                   "Scripts whose text was sent, because the server did not know them."),
        Instrument("redis_saver.network.io", "By", {"bytes_sent": "transmit", "bytes_received": "receive"},
                   "Bytes of keys, arguments and replies, without those of the protocol.", attribute=DIRECTION),
    ),
    "remembered": (
        Instrument("redis_saver.remembered.size", "By", {"cache_bytes": ""},
                   "Approximate memory of a saver's or store's caches.", kind="up_down_counter"),
        Instrument("redis_saver.remembered.lookups", "{lookup}", {"cache_hits": "hit", "cache_misses": "miss"},
                   "Calls by whether their thread or partition was cached (hit) or not (miss)."),
    ),
    "keys": (
        Instrument("redis_saver.keys.skipped", "{thread}", {"unavailable": ""},
                   "Threads and partitions that calls over several skipped, because their keys were unavailable."),
    ),
    "cache": (
        Instrument("redis_saver.cache.lookups", "{entry}", {"hits": "hit", "misses": "miss"}, "Requested entries."),
        Instrument("redis_saver.cache.sets", "{entry}", {"sets": ""}, "Stored entries."),
        Instrument("redis_saver.cache.waits", "{entry}", {"waits": ""},
                   "Entries that a caller waited for until another caller had stored them."),
        Instrument("redis_saver.cache.errors", "{error}", {"errors": ""},
                   "Calls that failed, and entries that could not be decoded."),
        Instrument("redis_saver.cache.skips", "{call}", {"skipped": ""},
                   "Calls that sent nothing, because the server had just failed."),
    ),
    "tier": (
        Instrument("redis_saver.tier.reads", "{read}", {"hits": "hit", "misses": "miss", "intents": "intent"},
                   "Reads by result: hot answered (hit), hot had nothing (miss), or cold answered because the thread "
                   "was being written (intent)."),
        Instrument("redis_saver.tier.bypasses", "{operation}", {"bypasses": ""},
                   "Reads and writes that bypassed hot, because it failed."),
        Instrument("redis_saver.tier.rehydrations", "{checkpoint}", {"rehydrations": ""},
                   "Checkpoints that were copied from cold back to hot."),
        Instrument("redis_saver.tier.repairs", "{repair}", {"repairs": ""},
                   "Threads that hot dropped because they were damaged there; cold has them."),
        Instrument("redis_saver.tier.enrollments", "{thread}", {"enrolled": ""},
                   "Threads that only hot had, and that were written to cold."),
        Instrument("redis_saver.tier.write_through", "{write}", {"written_through": ""},
                   "Writes of write-behind savers that went to cold first."),
        Instrument("redis_saver.tier.flush.records", "{record}",
                   {"flushed": "flushed", "coalesced": "coalesced", "refused": "refused"},
                   "Records by result: written to cold, not needed there (coalesced), or refused by cold."),
        Instrument("redis_saver.tier.flush.unreachable", "{claim}", {"unreachable": ""},
                   "Flushes that stopped because cold could not be reached."),
        Instrument("redis_saver.tier.flush.worker_errors", "{error}", {"worker_errors": ""},
                   "Failures of flusher workers outside of a flush, and workers that ended and were replaced."),
        Instrument("redis_saver.tier.flush.claims", "{claim}", {"flushes": ""}, "Flushes of a thread."),
        Instrument("redis_saver.tier.flush.time", "s", {"flush_seconds": ""}, "Total time of flushes."),
        Instrument("redis_saver.tier.backlog.paused", "s", {"paused_seconds": ""},
                   "Time for which flushing is still paused.", kind="gauge"),
        Instrument("redis_saver.tier.backlog.threads", "{thread}", {"dirty_threads": ""},
                   "Threads with records that cold lacks.", kind="gauge"),
        Instrument("redis_saver.tier.backlog.records", "{record}", {"backlog": ""},
                   "Records that cold lacks.", kind="gauge"),
        Instrument("redis_saver.tier.backlog.age", "s", {"oldest_seconds": ""},
                   "Age of the oldest record that cold lacks.", kind="gauge"),
        Instrument("redis_saver.tier.backlog.set_aside", "{record}", {"set_aside": ""},
                   "Records that cold refused. They are retried.", kind="gauge"),
    ),
    "store_tier": (
        Instrument("redis_saver.store_tier.reads", "{read}", {"hits": "hit", "misses": "miss"},
                   "Gets and searches that hot (hit) or cold (miss) answered."),
        Instrument("redis_saver.store_tier.copies", "{copy}", {"fills": "stored", "refused": "refused"},
                   "Copies that hot stored or refused."),
        Instrument("redis_saver.store_tier.repairs", "{repair}", {"repairs": ""},
                   "Damaged partitions that hot dropped, and copies that could not be decoded."),
        Instrument("redis_saver.store_tier.bypasses", "{operation}", {"bypasses": ""},
                   "Reads and writes that bypassed hot, because it failed."),
        Instrument("redis_saver.store_tier.errors", "{error}", {"errors": ""},
                   "Writes that could not be read back from cold."),
    ),
}  # fmt: skip
"""Instruments by `Source.kind`."""


class Exported:
    """Sources that share one set of instruments of a meter provider, which would ignore a second set."""

    def __init__(self, metrics: Any, provider: Any) -> None:
        self._lock = Lock()
        self._sources: dict[int, tuple[weakref.ref[Source], dict[str, Any]]] = {}
        self._observation = metrics.Observation
        meter = metrics.get_meter(SCOPE, VERSION, provider)
        for kind, instruments in INSTRUMENTS.items():
            for instrument in instruments:
                observe = partial(self._observe, kind, instrument)
                create = getattr(meter, f"create_observable_{instrument.kind}")
                create(instrument.name, [observe], unit=instrument.unit, description=instrument.about)
        about = "Kind of the flusher's last error."
        meter.create_observable_gauge(LAST_ERROR, [self._errors], unit="{error}", description=about)
        about = "Duration of calls of savers, stores and caches."
        self.durations: Any = meter.create_histogram(
            DURATION, unit="s", description=about, explicit_bucket_boundaries_advisory=BOUNDS
        )

    def add(self, measured: Measured, attributes: Mapping[str, Any]) -> None:
        """Export one more saver, by its sources, because clones share these and may outlive the saver."""
        with self._lock:
            self._sources = {key: entry for key, entry in self._sources.items() if entry[0]() is not None}
            for source in measured.sources:
                of = {COLLECTION: measured.collection} if source.kind in OF_ALL else {}
                self._sources[id(source)] = (weakref.ref(source), {**of, **attributes})

    def _living(self, kind: str) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
        with self._lock:
            sources = list(self._sources.values())
        for reference, attributes in sources:
            if (source := reference()) is not None and source.kind == kind:
                yield source.numbers(), attributes

    def _observe(self, kind: str, instrument: Instrument, _: Any) -> list[Any]:
        """Return the numbers of an instrument. Sources with the same attributes are combined."""
        combine: Any = max if instrument.kind == "gauge" else operator.add
        totals: dict[Any, tuple[float, dict[str, Any]]] = {}
        for numbers, attributes in self._living(kind):
            for field, value in instrument.fields.items():
                if field in numbers:  # the backlog may be unknown
                    named = {**attributes, instrument.attribute: value} if value else attributes
                    key, number = _key(named), numbers[field]
                    totals[key] = (combine(totals[key][0], number) if key in totals else number, named)
        return [self._observation(number, named) for number, named in totals.values()]

    def _errors(self, _: Any) -> list[Any]:
        last = [(attributes, numbers["last_error"]) for numbers, attributes in self._living("tier")]
        named = [{**attributes, ERROR: error.partition(":")[0]} for attributes, error in last if error]
        distinct = {_key(attributes): attributes for attributes in named}
        return [self._observation(1, attributes) for attributes in distinct.values()]


def _key(attributes: Mapping[str, Any]) -> Any:
    return tuple(sorted((name, repr(value)) for name, value in attributes.items()))


_of_providers: weakref.WeakKeyDictionary[Any, Exported] = weakref.WeakKeyDictionary()
_of_the_global_one: list[Exported] = []
_lock = Lock()


def exported(metrics: Any, meter_provider: Any) -> Exported:
    """Return the sources of a provider.

    OpenTelemetry replaces the global provider when the program sets one. The new one keeps the sources.
    """
    is_global = meter_provider is None or meter_provider is metrics.get_meter_provider()
    provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
    with _lock:
        sources = _of_providers.get(provider) or (_of_the_global_one[0] if is_global and _of_the_global_one else None)
        sources = sources or Exported(metrics, provider)
        _of_providers[provider] = sources
        if is_global:
            _of_the_global_one[:] = [sources]
        return sources


def described(measured: Measured) -> dict[str, Any]:
    """Return the attributes of all calls, named by OpenTelemetry's conventions for database clients."""
    attributes: dict[str, Any] = {"db.system.name": "redis", COLLECTION: measured.collection}
    url = urlsplit(measured.server)
    if url.scheme == "unix":
        attributes["server.address"] = url.path
    elif url.scheme in ("redis", "rediss"):
        host, _, port = url.netloc.rpartition(":")  # `described` in `clients` writes IPv6 addresses without brackets
        attributes |= {"server.address": host, "server.port": int(port), "db.namespace": url.path.strip("/")}
    elif url.netloc:  # several nodes
        attributes["server.address"] = url.netloc
    return attributes


def durations(exported: Exported, attributes: Mapping[str, Any]) -> Observer:
    """Return an observer that reports the duration of each call to a meter provider."""
    record, of_methods = exported.durations.record, dict[str, Mapping[str, Any]]()

    def began(name: str, _: bool) -> Ended:
        if (of_method := of_methods.get(name)) is None:
            of_method = of_methods[name] = {**attributes, OPERATION: name}
        return lambda seconds, kind, _: record(seconds, of_method if kind is None else {**of_method, ERROR: kind})

    return began


def spans(provider: Any, measured: Measured, attributes: Mapping[str, Any], *, with_threads: bool) -> Observer:
    """Return an observer that makes a span for each call.

    Spans of an instrumented client are its children, except in streams.
    """
    trace, context = import_module("opentelemetry.trace"), import_module("opentelemetry.context")
    tracer, collection = provider.get_tracer(SCOPE, VERSION), measured.collection
    thread_of = measured.thread_of if with_threads else None

    def began(name: str, is_stream: bool) -> Ended:
        of_call = {**attributes, OPERATION: name}
        span = tracer.start_span(f"{name} {collection}", kind=trace.SpanKind.CLIENT, attributes=of_call)
        # A stream may continue in another context, which could not detach the token.
        token = None if is_stream else context.attach(trace.set_span_in_context(span))

        def ended(_: float, kind: str | None, key: bytes | None) -> None:
            if token is not None:
                context.detach(token)
            if kind is not None:  # without the error's text, which may contain a thread id
                span.set_attribute(ERROR, kind)
                span.set_status(trace.Status(trace.StatusCode.ERROR))
            if thread_of and key is not None and (thread := thread_of(key)) is not None:
                span.set_attribute(THREAD, thread)
            span.end()

        return ended

    return began


def slow_calls(measured: Measured, threshold: float, *, with_threads: bool) -> Observer:
    """Return an observer that logs each call that takes at least `threshold` seconds."""
    where = f"{measured.collection} at {measured.server}"
    thread_of = measured.thread_of if with_threads else None

    def began(name: str, _: bool) -> Ended:
        def ended(seconds: float, kind: str | None, key: bytes | None) -> None:
            if seconds < threshold:
                return
            thread = thread_of(key) if thread_of and key is not None else None
            of = "" if thread is None else f", thread {shown(thread)}"
            failed = "" if kind is None else f", and ended with {kind}"
            _LOG.warning("slow: %s of %s%s took %.3f s%s", name, where, of, seconds, failed)

        return ended

    return began


def observe(measured: Measured, key: object, observer: Observer | None) -> None:
    """Set the observer of a key, or remove it."""
    others = {each: old for each, old in measured.counting.observers.items() if each != key}
    measured.counting.observers = others if observer is None else {**others, key: observer}
