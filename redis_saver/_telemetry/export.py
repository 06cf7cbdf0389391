"""Metrics and spans for OpenTelemetry, and the log of slow calls.

Each instrument reads the numbers of its sources when it is asked for them, so counting costs the same whether or not it
is exported. Only durations are reported call by call, because OpenTelemetry has no histogram that is read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import version
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from redis_saver._common.display import shown
from redis_saver._common.logs import Log
from redis_saver._engine.stats import BOUNDS, Ended, Measured, Observer, Source
from redis_saver._telemetry.instruments import DURATION, INSTRUMENTS, LAST_ERROR, Instrument

SCOPE = "redis_saver"
"""The name of the meter and of the tracer."""
VERSION = version("redis-saver")
COLLECTION = "db.collection.name"
ERROR = "error.type"
OF_ALL = ("traffic", "remembered")
"""Kinds of sources that savers, stores and caches share. Their numbers name the collection."""


class Exported:
    """Sources that are exported to a meter provider by one set of instruments. It would ignore a second set."""

    def __init__(self, metrics: Any, provider: Any) -> None:
        self._lock = Lock()
        self._sources: dict[int, tuple[weakref.ref[Source], dict[str, Any]]] = {}
        self._observation = metrics.Observation
        meter = metrics.get_meter(SCOPE, VERSION, provider)
        make = {
            "counter": meter.create_observable_counter,
            "amount": meter.create_observable_up_down_counter,
            "gauge": meter.create_observable_gauge,
        }
        for kind, instruments in INSTRUMENTS.items():
            for one in instruments:
                make[one.kind](one.name, [self._observing(kind, one)], unit=one.unit, description=one.about)
        about = "The kind of error that the flusher met last."
        meter.create_observable_gauge(LAST_ERROR, [self._errors], unit="{error}", description=about)
        about = "How long calls of savers, stores and caches took."
        self.durations: Any = meter.create_histogram(
            DURATION, unit="s", description=about, explicit_bucket_boundaries_advisory=BOUNDS
        )

    def add(self, measured: Measured, attributes: Mapping[str, Any]) -> None:
        """Export a saver, too. Its sources represent it, as clones share them and may outlive it."""
        with self._lock:
            self._sources = {key: one for key, one in self._sources.items() if one[0]() is not None}
            for source in measured.sources:
                of = {COLLECTION: measured.collection} if source.kind in OF_ALL else {}
                self._sources[id(source)] = (weakref.ref(source), {**of, **attributes})

    def _living(self, kind: str) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
        with self._lock:
            sources = list(self._sources.values())
        for reference, attributes in sources:
            if (source := reference()) is not None and source.kind == kind:
                yield source.numbers(), attributes

    def _observing(self, kind: str, of: Instrument) -> Callable[[Any], Iterable[Any]]:
        def observe(_: Any) -> Iterable[Any]:
            found: dict[Any, tuple[float, dict[str, Any]]] = {}
            for numbers, attributes in self._living(kind):
                for field, value in of.fields.items():
                    if field not in numbers:  # a saver that does not know the backlog
                        continue
                    said = {**attributes, of.attribute: value} if value else attributes
                    key, number = _key(said), numbers[field]
                    if key in found:
                        before = found[key][0]
                        number = max(before, number) if of.kind == "gauge" else before + number
                    found[key] = (number, said)
            return [self._observation(number, said) for number, said in found.values()]

        return observe

    def _errors(self, _: Any) -> Iterable[Any]:
        found = {}
        for numbers, attributes in self._living("tier"):
            if numbers["last_error"]:
                said = {**attributes, ERROR: numbers["last_error"].partition(":")[0]}
                found[_key(said)] = said
        return [self._observation(1, said) for said in found.values()]


def _key(attributes: Mapping[str, Any]) -> Any:
    return tuple(sorted((name, repr(value)) for name, value in attributes.items()))


_of_providers: weakref.WeakKeyDictionary[Any, Exported] = weakref.WeakKeyDictionary()
_of_the_global_one: list[Exported] = []
_lock = Lock()


def exported(metrics: Any, meter_provider: Any) -> Exported:
    """Return the sources that a provider has.

    The global provider becomes another object once it is set, and keeps its sources.
    """
    is_global = meter_provider is None or meter_provider is metrics.get_meter_provider()
    provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
    with _lock:
        found = _of_providers.get(provider) or (_of_the_global_one[0] if is_global and _of_the_global_one else None)
        if found is None:
            found = Exported(metrics, provider)
        _of_providers[provider] = found
        if is_global:
            _of_the_global_one[:] = [found]
        return found


OPERATION = "db.operation.name"
THREAD = "gen_ai.conversation.id"
"""The attribute of OpenTelemetry's conventions for what LangGraph calls a thread."""
_LOG = Log("redis_saver.telemetry")


def described(measured: Measured) -> dict[str, Any]:
    """The attributes that all calls have, as OpenTelemetry's conventions for clients of databases name them."""
    found: dict[str, Any] = {"db.system.name": "redis", COLLECTION: measured.collection}
    url = urlsplit(measured.server)
    if url.scheme == "unix":
        found["server.address"] = url.path
    elif url.scheme in ("redis", "rediss"):
        host, _, port = url.netloc.rpartition(":")  # an IPv6 address is in no brackets here
        found |= {"server.address": host, "server.port": int(port), "db.namespace": url.path.strip("/")}
    elif url.netloc:  # several nodes, of which the client chooses
        found["server.address"] = url.netloc
    return found


class Durations:
    """Reports the duration of each call to a meter provider."""

    def __init__(self, exported: Exported, attributes: Mapping[str, Any]) -> None:
        self.exported = exported
        self._record, self._attributes = exported.durations.record, attributes
        self._of_methods: dict[str, Mapping[str, Any]] = {}

    def began(self, name: str, *, is_stream: bool) -> Ended:  # noqa: ARG002
        """Nothing, until the call has ended."""
        if (said := self._of_methods.get(name)) is None:
            said = self._of_methods[name] = {**self._attributes, OPERATION: name}

        def ended(seconds: float, kind: str | None, error: object, key: object) -> None:  # noqa: ARG001
            self._record(seconds, said if kind is None else {**said, ERROR: kind})

        return ended


class Spans:
    """Starts a span for each call. Spans of an instrumented client are its children, except in streams."""

    def __init__(self, provider: Any, measured: Measured, attributes: Mapping[str, Any], *, with_threads: bool) -> None:
        """Give spans to a tracer provider."""
        self._trace, self._context = import_module("opentelemetry.trace"), import_module("opentelemetry.context")
        self._provider, self._tracer = weakref.ref(provider), provider.get_tracer(SCOPE, VERSION)
        self._collection, self._attributes = measured.collection, attributes
        self._thread_of = measured.thread_of if with_threads else None

    def is_of(self, provider: object) -> bool:
        """True if the spans go to this provider."""
        return self._provider() is provider

    def began(self, name: str, *, is_stream: bool) -> Ended:
        """Start the span."""
        trace, context = self._trace, self._context
        attributes = {**self._attributes, OPERATION: name}
        span = self._tracer.start_span(f"{name} {self._collection}", kind=trace.SpanKind.CLIENT, attributes=attributes)
        # A stream may go on in another context, which could not take back what was set in this one.
        token = None if is_stream else context.attach(trace.set_span_in_context(span))

        def ended(seconds: float, kind: str | None, error: object, key: bytes | None) -> None:  # noqa: ARG001
            if token is not None:
                context.detach(token)
            if kind is not None:  # not the error's text, which may name a thread
                span.set_attribute(ERROR, kind)
                span.set_status(trace.Status(trace.StatusCode.ERROR))
            if self._thread_of and key is not None and (thread := self._thread_of(key)) is not None:
                span.set_attribute(THREAD, thread)
            span.end()

        return ended


class SlowCalls:
    """Logs each call that takes at least `seconds`."""

    def __init__(self, measured: Measured, seconds: float, *, with_threads: bool) -> None:
        self._seconds, self._where = seconds, f"{measured.collection} at {measured.server}"
        self._thread_of = measured.thread_of if with_threads else None

    def began(self, name: str, *, is_stream: bool) -> Ended:  # noqa: ARG002
        """Nothing, until the call has ended."""

        def ended(seconds: float, kind: str | None, error: object, key: bytes | None) -> None:  # noqa: ARG001
            if seconds < self._seconds:
                return
            thread = self._thread_of(key) if self._thread_of and key is not None else None
            of = "" if thread is None else f", thread {shown(thread)}"
            failed = "" if kind is None else f", and ended with {kind}"
            _LOG.warning("slow: %s of %s%s took %.3f s%s", name, self._where, of, seconds, failed)

        return ended


def replace(measured: Measured, is_old: Any, new: Observer | None) -> None:
    """Replace an observer of the same kind."""
    others = tuple(one for one in measured.counting.observers if not is_old(one))
    measured.counting.observers = others if new is None else (*others, new)
