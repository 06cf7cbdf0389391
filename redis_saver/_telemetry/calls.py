"""Who is told of each call: the histogram of durations, spans, and the log of slow calls."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from redis_saver._common.display import shown
from redis_saver._common.logs import Log
from redis_saver._engine.stats import Ended, Measured, Observer
from redis_saver._telemetry.metrics import COLLECTION, ERROR, SCOPE, VERSION, Exported

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
    """Tells a meter provider how long each call took."""

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
    """A span for each call. What a client instrumented by OpenTelemetry sends in between are its children, but for streams."""

    def __init__(self, provider: Any, measured: Measured, attributes: Mapping[str, Any], *, with_threads: bool) -> None:
        """Give spans to a tracer provider."""
        self._trace, self._context = import_module("opentelemetry.trace"), import_module("opentelemetry.context")
        self._provider, self._tracer = weakref.ref(provider), provider.get_tracer(SCOPE, VERSION)
        self._collection, self._attributes = measured.collection, attributes
        self._thread_of = measured.thread_of if with_threads else None

    def is_of(self, provider: object) -> bool:
        """Whether the spans go to this provider."""
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
    """Logs each call that took so many seconds or more."""

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
    """Put an observer in the place of an older one of its kind."""
    others = tuple(one for one in measured.counting.observers if not is_old(one))
    measured.counting.observers = others if new is None else (*others, new)
