"""What savers, stores and caches count, and each of their calls, by OpenTelemetry (extra `otel`); and a log of slow calls.

Names follow its semantic conventions. Counters are totals of this process. Gauges of a backlog tell what the last look at hot found, whoever wrote it: every
process has the same numbers, so take the greatest, never the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeAlias

from redis_saver._cache.llm import RedisLLMCache
from redis_saver._cache.redis_cache import AsyncRedisCache, RedisCache
from redis_saver._checkpoint.aio import AsyncRedisSaver
from redis_saver._checkpoint.sync import RedisSaver
from redis_saver._common import config as configs
from redis_saver._common.display import kind_of
from redis_saver._engine.stats import Measured, measured
from redis_saver._store.aio import AsyncRedisStore
from redis_saver._store.sync import RedisStore
from redis_saver._telemetry.calls import Durations, SlowCalls, Spans, described, replace
from redis_saver._telemetry.metrics import exported
from redis_saver._tiered.savers import AsyncTieredSaver, TieredSaver
from redis_saver._tiered_store.aio import AsyncTieredStore
from redis_saver._tiered_store.sync import TieredStore

__all__ = ["instrument", "log_slow_calls"]

Instrumented: TypeAlias = (
    RedisSaver
    | AsyncRedisSaver
    | TieredSaver
    | AsyncTieredSaver
    | RedisStore
    | AsyncRedisStore
    | TieredStore
    | AsyncTieredStore
    | RedisCache[Any]
    | AsyncRedisCache[Any]
    | RedisLLMCache
)
"""What counts: each of our savers, stores and caches."""


def instrument(
    thing: Instrumented,
    meter_provider: Any = None,
    attributes: Mapping[str, Any] | None = None,
    *,
    tracer_provider: Any = None,
    thread_ids: bool = False,
) -> None:
    """Export what a saver, a store or a cache counts as metrics, and its calls as spans, as long as it is used.

    It is not kept alive by that. Calling it again for one replaces its attributes. Those with the same attributes are taken together: their counters are added up,
    and of gauges the greatest is told. A saver that has not scanned for the backlog (`flusher=False`) has no gauges of it. With one over two tiers its `hot` is
    exported, too.

    Values, keys, passwords and the texts of errors are never exported.

    Args:
        thing: The saver, store or cache.
        meter_provider: By default OpenTelemetry's global one, which may also be set later.
        attributes: What tells it apart from others of the process, such as `{"tier": "chats"}`. Metrics and spans have them.
        tracer_provider: Where spans go, such as `opentelemetry.trace.get_tracer_provider()`. None: there are no spans.
        thread_ids: Whether spans of savers name the thread that the call's first request is about (`gen_ai.conversation.id`).

    Raises:
        ImportError: The extra `otel` is missing.
        TypeError: It is not a saver, store or cache of this package.
    """
    of = _measured(thing)
    try:
        metrics = import_module("opentelemetry.metrics")
    except ImportError as error:
        raise ImportError(f"this needs more packages: pip install 'redis-saver[otel]' ({error})") from error
    told = exported(metrics, meter_provider)
    told.add(of, dict(attributes or {}))
    of_calls = {**described(of), **(attributes or {})}
    replace(of, lambda one: isinstance(one, Durations) and one.exported is told, Durations(told, of_calls))
    if tracer_provider is not None:
        spans = Spans(tracer_provider, of, of_calls, with_threads=thread_ids)
        replace(of, lambda one: isinstance(one, Spans) and one.is_of(tracer_provider), spans)


def log_slow_calls(thing: Instrumented, seconds: float | None, *, thread_ids: bool = False) -> None:
    """Log each call that takes long, as a warning of the logger `redis_saver.telemetry`. Calling it again replaces the threshold.

    Args:
        thing: The saver, store or cache.
        seconds: Calls that take so many seconds or more. None: none any more.
        thread_ids: Whether the line names the thread that the call's first request is about.

    Raises:
        TypeError, ValueError: An argument makes no sense. The message names it, and says what to write.
    """
    of = _measured(thing)
    new = None
    if seconds is not None:
        configs.number("seconds", seconds, 0)
        new = SlowCalls(of, seconds, with_threads=thread_ids)
    replace(of, lambda one: isinstance(one, SlowCalls), new)


def _measured(thing: object) -> Measured:
    if (of := measured(thing)) is None:
        raise TypeError(
            f"this is {kind_of(thing)}: pass a saver, a store or a cache of redis_saver, such as RedisSaver, TieredSaver, RedisStore or RedisCache"
        )
    return of
