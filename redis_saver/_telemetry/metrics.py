"""Numbers as OpenTelemetry's metrics.

Each instrument reads the numbers of its sources when it is asked for them, so counting costs the same whether or not it is exported. Only the durations of calls
have to be told call by call, because there is no histogram that is read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from threading import Lock
from typing import Any

from redis_saver._engine.stats import BOUNDS, Measured, Source
from redis_saver._telemetry.instruments import DURATION, INSTRUMENTS, LAST_ERROR, Instrument

SCOPE = "redis_saver"
"""The name of the meter and of the tracer."""
VERSION = version("redis-saver")
COLLECTION = "db.collection.name"
ERROR = "error.type"
OF_ALL = ("traffic", "remembered")
"""The kinds of sources that savers as well as stores or caches have: their numbers say what of."""


class Exported:
    """The sources of which a meter provider is told, by one set of instruments: a second of the same names would be left out."""

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
        """Tell of a saver, too. Its sources stand for it: clones of a saver share them, and may outlive it."""
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
    """What is exported to a provider. The global one is another object once it is set, but tells what it was told before."""
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
