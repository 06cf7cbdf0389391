"""What `stats()` of savers over two tiers counts, by OpenTelemetry's metrics API (extra `otel`).

Names follow its semantic conventions. Counters are totals of this process. Gauges tell what the last look at hot found, whoever wrote it: every
process has the same numbers, so take the greatest, never the sum.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Any, NamedTuple

from redis_saver._common.display import kind_of
from redis_saver._tiered.aio import AsyncTieredSaver
from redis_saver._tiered.saver import tiers_of
from redis_saver._tiered.stats import Counts
from redis_saver._tiered.sync import TieredSaver

__all__ = ["instrument"]

SCOPE = "redis_saver"
"""The name of the meter."""
RESULT = "redis_saver.result"
"""The attribute that tells apart what the reads and the records of an instrument came to."""


class Instrument(NamedTuple):
    """A counter or gauge."""

    name: str
    unit: str
    about: str
    fields: Mapping[str, str]
    """Fields of `Stats`, and the result that each of them is; a single one without a name has no such attribute."""
    is_gauge: bool = False


INSTRUMENTS = (
    Instrument(
        "redis_saver.tier.reads",
        "{read}",
        "Reads by whether hot answered them (hit), had nothing (miss), or was not to be trusted as the thread was being written (intent).",
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
        "Records by what a flusher did: brought them to cold (flushed), need not (coalesced), or cold would not take them this time (refused).",
        {"flushed": "flushed", "coalesced": "coalesced", "refused": "refused"},
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
        is_gauge=True,
    ),
    Instrument(
        "redis_saver.tier.backlog.records",
        "{record}",
        "Records that cold does not have.",
        {"backlog": ""},
        is_gauge=True,
    ),
    Instrument(
        "redis_saver.tier.backlog.age",
        "s",
        "Age of the oldest record that cold does not have.",
        {"oldest_seconds": ""},
        is_gauge=True,
    ),
    Instrument(
        "redis_saver.tier.backlog.set_aside",
        "{record}",
        "Records that cold would not take, and that are tried again.",
        {"set_aside": ""},
        is_gauge=True,
    ),
)
LAST_ERROR = "redis_saver.tier.flush.last_error"
"""A gauge: 1, with the kind of the error that the flusher met last as `error.type`; nothing before it met one."""


def instrument(
    saver: TieredSaver | AsyncTieredSaver, meter_provider: Any = None, attributes: Mapping[str, Any] | None = None
) -> None:
    """Export a saver's `stats()` as metrics, as long as the saver is used.

    It is not kept alive by that. Calling it again for one saver replaces its attributes. Savers with the same attributes are taken together: their
    counters are added up, and of gauges the greatest is told. A saver that has not scanned for the backlog (`flusher=False`) has no gauges of it.

    Args:
        saver: The saver.
        meter_provider: By default OpenTelemetry's global one, which may also be set later.
        attributes: What tells it apart from other savers of the process, such as `{"tier": "chats"}`.

    Raises:
        ImportError: The extra `otel` is missing.
        TypeError: It is no saver over two tiers.
    """
    if not isinstance(saver, (TieredSaver, AsyncTieredSaver)):
        raise TypeError(f"saver is {kind_of(saver)}: takes a TieredSaver or AsyncTieredSaver")
    try:
        metrics = import_module("opentelemetry.metrics")
    except ImportError as error:
        raise ImportError(f"this needs more packages: pip install 'redis-saver[otel]' ({error})") from error
    _exported(metrics, meter_provider).add(tiers_of(saver).counts, dict(attributes or {}))


class _Exported:
    """The savers of which a meter provider is told, by one set of instruments: a second of the same names would be left out."""

    def __init__(self, metrics: Any, provider: Any) -> None:
        self._lock = threading.Lock()
        self._savers: dict[int, tuple[weakref.ref[Counts], dict[str, Any]]] = {}
        self._observation = metrics.Observation
        meter = metrics.get_meter(SCOPE, version("redis-saver"), provider)
        for one in INSTRUMENTS:
            create = meter.create_observable_gauge if one.is_gauge else meter.create_observable_counter
            create(one.name, [self._observing(one)], unit=one.unit, description=one.about)
        about = "The kind of error that the flusher met last."
        meter.create_observable_gauge(LAST_ERROR, [self._errors], unit="{error}", description=about)

    def add(self, counts: Counts, attributes: dict[str, Any]) -> None:
        """Tell of a saver, too. Its counts stand for it: clones of a saver share them, and may outlive it."""
        with self._lock:
            self._savers = {key: one for key, one in self._savers.items() if one[0]() is not None}
            self._savers[id(counts)] = (weakref.ref(counts), attributes)

    def _living(self) -> Iterator[tuple[Counts, dict[str, Any]]]:
        with self._lock:
            savers = list(self._savers.values())
        for reference, attributes in savers:
            if (counts := reference()) is not None:
                yield counts, attributes

    def _observing(self, of: Instrument) -> Callable[[Any], Iterable[Any]]:
        def observe(_: Any) -> Iterable[Any]:
            found: dict[Any, tuple[float, dict[str, Any]]] = {}
            for counts, attributes in self._living():
                if of.is_gauge and not counts.knows_backlog:  # it would tell 0 while others wait
                    continue
                for field, result in of.fields.items():
                    said = {**attributes, RESULT: result} if result else attributes
                    key, value = _key(said), getattr(counts, field)
                    if key in found:
                        before = found[key][0]
                        value = max(before, value) if of.is_gauge else before + value
                    found[key] = (value, said)
            return [self._observation(value, said) for value, said in found.values()]

        return observe

    def _errors(self, _: Any) -> Iterable[Any]:
        found = {}
        for counts, attributes in self._living():
            if counts.last_error:
                said = {**attributes, "error.type": counts.last_error.partition(":")[0]}
                found[_key(said)] = said
        return [self._observation(1, said) for said in found.values()]


def _key(attributes: Mapping[str, Any]) -> Any:
    return tuple(sorted((name, repr(value)) for name, value in attributes.items()))


_of_providers: weakref.WeakKeyDictionary[Any, _Exported] = weakref.WeakKeyDictionary()
_of_the_global_one: list[_Exported] = []
_lock = threading.Lock()


def _exported(metrics: Any, meter_provider: Any) -> _Exported:
    """What is exported to a provider. The global one is another object once it is set, but tells what it was told before."""
    is_global = meter_provider is None or meter_provider is metrics.get_meter_provider()
    provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
    with _lock:
        found = _of_providers.get(provider) or (_of_the_global_one[0] if is_global and _of_the_global_one else None)
        if found is None:
            found = _Exported(metrics, provider)
        _of_providers[provider] = found
        if is_global:
            _of_the_global_one[:] = [found]
        return found
