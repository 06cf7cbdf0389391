"""Metrics and spans of savers, stores and caches for OpenTelemetry (extra `otel`), and a log of slow calls.

Names follow OpenTelemetry's semantic conventions. Counters are totals of this process. Gauges of a backlog report the
last scan of hot, so all processes report the same numbers: use their maximum, not their sum.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeAlias

from redis_saver._cache.cache import AsyncRedisCache, RedisCache
from redis_saver._cache.llm import RedisLLMCache
from redis_saver._checkpoint.saver import AsyncRedisSaver, RedisSaver
from redis_saver._common import config as configs
from redis_saver._engine.counting import measured
from redis_saver._store.store import AsyncRedisStore, RedisStore
from redis_saver._telemetry import (
    described,
    durations,
    exported,
    observe,
    observe_pipelines,
    shared_pipelines,
    slow_calls,
    spans,
)
from redis_saver._tiered.saver import AsyncTieredSaver, TieredSaver
from redis_saver._tiered_store.store import AsyncTieredStore, TieredStore

__all__ = ["instrument", "log_slow_calls"]

Instrumented: TypeAlias = (
    RedisSaver | AsyncRedisSaver | TieredSaver | AsyncTieredSaver
    | RedisStore | AsyncRedisStore | TieredStore | AsyncTieredStore
    | RedisCache[Any] | AsyncRedisCache[Any] | RedisLLMCache
)  # fmt: skip
"""Our savers, stores and caches."""


def instrument(
    thing: Instrumented,
    meter_provider: Any = None,
    attributes: Mapping[str, Any] | None = None,
    *,
    tracer_provider: Any = None,
    thread_ids: bool = False,
) -> None:
    """Export the counts of a saver, store or cache as metrics, and its calls as spans.

    The export ends when Python collects the object. Another call for the same object replaces its attributes. Objects
    with the same attributes are combined: counters are added, and for gauges the maximum is exported. A saver without a
    flusher exports gauges of the backlog only for half a minute after it heard of a scan. The `hot` of a tiered saver
    is exported, too.

    Values, keys, passwords and the texts of errors are never exported.

    Args:
        thing: The saver, store or cache.
        meter_provider: By default OpenTelemetry's global provider, even if the program sets it later.
        attributes: Attributes of its metrics and spans, such as `{"tier": "chats"}`, to distinguish it.
        tracer_provider: Receives the spans, such as `opentelemetry.trace.get_tracer_provider()`. Default: no spans.
        thread_ids: True to name the thread of a call's first request in spans of savers (`gen_ai.conversation.id`).

    Raises:
        ImportError: The extra `otel` is missing.
        TypeError: `thing` is not a saver, store or cache of this package.
    """
    source = measured(thing)
    try:
        metrics = import_module("opentelemetry.metrics")
    except ImportError as error:
        raise ImportError(f"this needs more packages: pip install 'redis-saver[otel]' ({error})") from error
    metered = exported(metrics, meter_provider)
    metered.add(source, dict(attributes or {}))
    of_calls = {**described(source), **(attributes or {})}
    observe(source, metered, durations(metered, of_calls))
    if tracer_provider is not None:
        of_spans, key = spans(tracer_provider, source, of_calls, with_threads=thread_ids), weakref.ref(tracer_provider)
        observe(source, key, of_spans)
        observe_pipelines(source, key, shared_pipelines(tracer_provider, source, of_calls))


def log_slow_calls(thing: Instrumented, seconds: float | None, *, thread_ids: bool = False) -> None:
    """Log each slow call as a warning of the logger `redis_saver.telemetry`. Another call replaces the threshold.

    Args:
        thing: The saver, store or cache.
        seconds: Minimum duration of a logged call. None stops the log.
        thread_ids: True to name the thread of the call's first request.

    Raises:
        TypeError, ValueError: An argument is invalid. The message names it, and says what to write.
    """
    source = measured(thing)
    new = None
    if seconds is not None:
        configs.number("seconds", seconds, 0)
        new = slow_calls(source, seconds, with_threads=thread_ids)
    observe(source, slow_calls, new)
