"""Metrics and spans for OpenTelemetry, and the log of slow calls. `docs/metrics.md` lists the instruments.

Each instrument reads the numbers of its sources at each export, so an export makes no call slower. Only durations are
recorded at each call, because OpenTelemetry has no observable histogram.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import version
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from redis_saver._common.display import shown
from redis_saver._common.logs import Log
from redis_saver._engine.counting import Ended, Measured, Observer, Shares, SharingObserver, Source, Traffic
from redis_saver._engine.stats import BOUNDS, CacheStats, CopyStats, Instrument, Stats, TierStats, instruments

SCOPE = "redis_saver"
"""Name of the meter and of the tracer."""
VERSION = version("redis-saver")
COLLECTION = "db.collection.name"
ERROR = "error.type"
OPERATION = "db.operation.name"
THREAD = "gen_ai.conversation.id"
"""OpenTelemetry's attribute for the id of a thread of LangGraph."""
BATCH, BATCH_SIZE = "BATCH", "db.operation.batch.size"
"""OpenTelemetry's name of several operations that are sent together, and the attribute for their number."""
OPERATIONS, BYTES_SENT = "redis_saver.operations", "redis_saver.bytes_sent"
CALL = "redis_saver.call"
"""Key of the current call's name and span in OpenTelemetry's context."""
OF_ALL = ("traffic", "local_cache", "keys")
"""Kinds of sources that savers, stores and caches share. An attribute names their collection."""
DURATION = "redis_saver.operation.duration"
"""A histogram of all calls, in seconds."""
LAST_ERROR = "redis_saver.tier.flush.last_error"
"""A gauge: 1, with the kind of the flusher's last error as `error.type`; absent before the first error."""
_LOG = Log("redis_saver.telemetry")


INSTRUMENTS: Mapping[Instrument, Mapping[str, str]] = instruments(Stats, CacheStats, TierStats, CopyStats)
"""The declared instruments. Each has its fields, with their values of the attribute."""


class Exported:
    """Sources that share one set of instruments of a meter provider, which would ignore a second set."""

    def __init__(self, metrics: Any, provider: Any) -> None:
        self._lock = Lock()
        self._sources: dict[int, tuple[weakref.ref[Source], dict[str, Any]]] = {}
        self._observation = metrics.Observation
        meter = metrics.get_meter(SCOPE, VERSION, provider)
        for instrument in INSTRUMENTS:
            create = getattr(meter, f"create_observable_{instrument.kind}")
            observe = partial(self._observe, instrument)
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

    def _observe(self, instrument: Instrument, _: Any) -> list[Any]:
        """Return the numbers of an instrument. Sources with the same attributes are combined."""
        combine: Any = max if instrument.kind == "gauge" else operator.add
        totals: dict[Any, tuple[float, dict[str, Any]]] = {}
        for numbers, attributes in self._living(instrument.source):
            for field, value in INSTRUMENTS[instrument].items():
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

    Spans of an instrumented client are its children, except in streams and in shared pipelines (`shared_pipelines`).
    """
    trace, context = import_module("opentelemetry.trace"), import_module("opentelemetry.context")
    tracer, collection = provider.get_tracer(SCOPE, VERSION), measured.collection
    thread_of = measured.thread_of if with_threads else None

    def began(name: str, is_stream: bool) -> Ended:
        of_call = {**attributes, OPERATION: name}
        span = tracer.start_span(f"{name} {collection}", kind=trace.SpanKind.CLIENT, attributes=of_call)
        # A stream may continue in another context, which could not detach the token.
        in_call = context.set_value(CALL, (name, span), trace.set_span_in_context(span))
        token = None if is_stream else context.attach(in_call)

        def ended(_: float, kind: str | None, call: Any) -> None:
            if token is not None:
                context.detach(token)
            if kind is not None:  # without the error's text, which may contain a thread id
                span.set_attribute(ERROR, kind)
                span.set_status(trace.Status(trace.StatusCode.ERROR))
            if thread_of and call.key is not None and (thread := thread_of(call.key)) is not None:
                span.set_attribute(THREAD, thread)
            span.end()

        return ended

    return began


def shared_pipelines(provider: Any, measured: Measured, attributes: Mapping[str, Any]) -> SharingObserver:
    """Return an observer that makes a span, of a trace of its own, for each pipeline that several calls share.

    It links the spans of the calls. The link back from each of them has its share: its requests, and their bytes.
    """
    trace, context = import_module("opentelemetry.trace"), import_module("opentelemetry.context")
    tracer, collection = provider.get_tracer(SCOPE, VERSION), measured.collection

    def began(shares: Shares) -> Callable[[], None]:
        calls: dict[Any, list[int]] = {}
        for of_caller, size in shares:
            if (call := of_caller.run(context.get_value, CALL)) is not None:
                calls.setdefault(call, []).append(size)
        names = sorted({name for name, _ in calls})
        operation = f"{BATCH} {names[0]}" if len(names) == 1 else BATCH
        about = {**attributes, OPERATION: operation, BATCH_SIZE: len(shares), OPERATIONS: names}
        links = [trace.Link(span.get_span_context()) for _, span in calls]
        span = tracer.start_span(f"{operation} {collection}", kind=trace.SpanKind.CLIENT, attributes=about, links=links)
        for (_, of_call), sizes in calls.items():
            of_call.add_link(span.get_span_context(), {BATCH_SIZE: len(sizes), BYTES_SENT: sum(sizes)})
        token = context.attach(trace.set_span_in_context(span))

        def ended() -> None:
            context.detach(token)
            span.end()

        return ended

    return began


def slow_calls(measured: Measured, threshold: float, *, with_threads: bool) -> Observer:
    """Return an observer that logs each call that takes at least `threshold` seconds."""
    where = f"{measured.collection} at {measured.server}"
    thread_of = measured.thread_of if with_threads else None

    def began(name: str, _: bool) -> Ended:
        def ended(seconds: float, kind: str | None, call: Any) -> None:
            if seconds < threshold:
                return
            thread = thread_of(call.key) if thread_of and call.key is not None else None
            of = "" if thread is None else f", thread {shown(thread)}"
            parts = {**call.waited, "this process": max(0.0, seconds - sum(call.waited.values()))}
            ranked = ", ".join(f"{parts[part]:.3f} s {part}" for part in sorted(parts, key=lambda part: -parts[part]))
            failed = "" if kind is None else f", and ended with {kind}"
            _LOG.warning("slow: %s of %s%s took %.3f s (%s)%s", name, where, of, seconds, ranked, failed)

        return ended

    return began


def observe(measured: Measured, key: object, observer: Observer | None) -> None:
    """Set the observer of a key, or remove it."""
    others = {each: old for each, old in measured.counting.observers.items() if each != key}
    measured.counting.observers = others if observer is None else {**others, key: observer}


def observe_pipelines(measured: Measured, key: object, observer: SharingObserver) -> None:
    """Set the observer of a key for the pipelines of all its servers."""
    for source in measured.sources:
        if isinstance(source, Traffic):
            source.observers = {**source.observers, key: observer}
