"""What is exported by OpenTelemetry is what `stats()` says: all of it, of each saver, as long as it is used."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
from typing import Any

import pytest
from factories import config
from langgraph.checkpoint.memory import InMemorySaver
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tiering import written

from redis_saver import AsyncRedisSaver, AsyncTieredSaver, RedisSaver, TieredSaver
from redis_saver._client.clients import connect
from redis_saver.telemetry import INSTRUMENTS, LAST_ERROR, RESULT, instrument
from redis_saver._tiered.stats import Stats


class Meters:
    """A meter provider, and what it was told."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        assert {scope.scope.name for scope in scopes} <= {"redis_saver"}
        found = [metric for scope in scopes for metric in scope.metrics]
        assert len({metric.name for metric in found}) == len(found)
        return {metric.name: metric for metric in found}

    def points(self, name: str) -> dict[Any, float]:
        metric = self.metrics().get(name)
        points = metric.data.data_points if metric else []
        found = {tuple(sorted(dict(point.attributes).items())): point.value for point in points}
        assert len(found) == len(points)
        return found


@pytest.fixture
def meters() -> Any:
    made = Meters()
    yield made
    made.provider.shutdown()


def tiered(**settings: Any) -> TieredSaver:
    saver = TieredSaver(RedisSaver(connect("memory://", asynchronous=False)), InMemorySaver(), **settings)
    if not settings:
        saver._context.counts.learn("scan 0 0 0 0")  # as if it had looked
    return saver


def exported() -> dict[str, tuple[str, dict[str, str]]]:
    """Of each field: the instrument, and the attribute it has there."""
    return {
        field: (one.name, {RESULT: result} if result else {})
        for one in INSTRUMENTS
        for field, result in one.fields.items()
    }


def test_every_field_is_exported_as_what_it_is(meters: Meters) -> None:
    fields = {field.name for field in dataclasses.fields(Stats) if not field.name.startswith("_")}
    assert fields == {*exported(), "last_error"}
    saver = tiered()
    instrument(saver, meters.provider, {"tier": "chats"})
    for number, field in enumerate(exported(), 1):
        setattr(saver._context.counts, field, number)
    assert meters.points(LAST_ERROR) == {}
    saver._context.counts.last_error = "OperationalError: 10.0.0.7 does not answer"
    for number, (name, attributes) in enumerate(exported().values(), 1):
        assert meters.points(name)[tuple(sorted({"tier": "chats", **attributes}.items()))] == number
    assert meters.points(LAST_ERROR) == {(("error.type", "OperationalError"), ("tier", "chats")): 1}


def test_kinds_and_units(meters: Meters) -> None:
    saver = tiered()
    saver._context.counts.last_error = "ValueError: no"
    instrument(saver, meters.provider)
    found = meters.metrics()
    assert set(found) == {*(one.name for one in INSTRUMENTS), LAST_ERROR}
    for one in INSTRUMENTS:
        metric = found[one.name]
        assert (metric.unit, metric.description) == (one.unit, one.about)
        assert one.unit == "s" or one.unit.startswith("{")
        assert hasattr(metric.data, "is_monotonic") != one.is_gauge
        if not one.is_gauge:
            assert metric.data.is_monotonic
    assert {one.name for one in INSTRUMENTS if one.is_gauge} == {
        f"redis_saver.tier.backlog.{what}" for what in ("threads", "records", "age", "set_aside")
    }


async def test_what_really_happens(meters: Meters) -> None:
    from uniform import Uniform

    hot = AsyncRedisSaver(connect("memory://", asynchronous=True))
    for saver in (
        tiered(mode="write-behind", flusher=False),
        AsyncTieredSaver(hot, InMemorySaver(), mode="write-behind", flusher=False),
    ):
        name = type(saver).__name__
        instrument(saver, meters.provider, {"kind": name})
        uniform = Uniform(saver)
        await written(uniform)
        await uniform.get_tuple(config())
        kind = ("kind", name)
        assert (kind,) not in meters.points("redis_saver.tier.backlog.records"), "nobody has scanned"
        await uniform.flush()
        reads = meters.points("redis_saver.tier.reads")
        assert {key[1][1]: value for key, value in reads.items() if kind in key} == {"hit": 1, "miss": 1, "intent": 0}
        records = meters.points("redis_saver.tier.flush.records")
        assert records[(kind, (RESULT, "flushed"))] == 6
        assert meters.points("redis_saver.tier.backlog.records")[(kind,)] == 0
        assert meters.points("redis_saver.tier.flush.time")[(kind,)] == saver.stats().flush_seconds > 0


def test_several_savers(meters: Meters) -> None:
    """Attributes tell them apart; those with the same ones are taken together."""
    savers = [tiered() for _ in range(3)]
    for number, saver in enumerate(savers, 1):
        saver._context.counts.bypasses = saver._context.counts.backlog = saver._context.counts.hits = number
        instrument(saver, meters.provider, {"tier": "a" if number == 1 else "b"})
    assert meters.points("redis_saver.tier.bypasses") == {(("tier", "a"),): 1, (("tier", "b"),): 5}
    assert meters.points("redis_saver.tier.backlog.records") == {(("tier", "a"),): 1, (("tier", "b"),): 3}
    assert meters.points("redis_saver.tier.reads")[((RESULT, "hit"), ("tier", "b"))] == 5


def test_twice(meters: Meters) -> None:
    """The last attributes hold, and nothing is counted twice."""
    saver = tiered()
    saver._context.counts.bypasses = 4
    for name in ("a", "a", "b"):
        instrument(saver, meters.provider, {"tier": name})
        assert meters.points("redis_saver.tier.bypasses") == {(("tier", name),): 4}
    other = Meters()
    instrument(saver, other.provider)
    assert other.points("redis_saver.tier.bypasses") == {(): 4}
    assert meters.points("redis_saver.tier.bypasses") == {(("tier", "b"),): 4}


def test_a_saver_is_not_kept_alive(meters: Meters) -> None:
    saver, other = tiered(mode="write-behind", flusher=False), tiered()
    clone = saver.with_allowlist([("decimal", "Decimal")])
    for number, one in enumerate((saver, other)):
        instrument(one, meters.provider, {"tier": number})
    del saver, one
    gc.collect()
    assert set(meters.points("redis_saver.tier.bypasses")) == {(("tier", 0),), (("tier", 1),)}  # a graph has the clone
    del clone
    gc.collect()
    assert set(meters.points("redis_saver.tier.bypasses")) == {(("tier", 1),)}
    del other
    gc.collect()
    assert meters.metrics() == {}
    again = tiered()
    instrument(again, meters.provider)
    assert meters.points("redis_saver.tier.bypasses") == {(): 0}


def test_a_provider_is_not_kept_alive() -> None:
    import weakref

    meters = Meters()
    saver = tiered()
    instrument(saver, meters.provider)
    meters.provider.shutdown()
    gone = weakref.ref(meters.provider)
    del meters
    gc.collect()
    assert gone() is None


def test_what_is_no_tiered_saver(meters: Meters) -> None:
    for one in (RedisSaver(connect("memory://", asynchronous=False)), InMemorySaver(), None):
        with pytest.raises(TypeError, match="TieredSaver"):
            instrument(one, meters.provider)  # type: ignore[arg-type]


def process(text: str) -> str:
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


MADE = """
from langgraph.checkpoint.memory import InMemorySaver
from redis_saver import RedisSaver, TieredSaver, telemetry
from redis_saver._client.clients import connect
def tiered():
    return TieredSaver(RedisSaver(connect("memory://", asynchronous=False)), InMemorySaver())
"""


def test_the_global_provider_may_be_set_later() -> None:
    said = process(
        MADE
        + """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
savers = [tiered() for _ in range(3)]
telemetry.instrument(savers[0], attributes={"n": 0})
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
telemetry.instrument(savers[1], attributes={"n": 1})
telemetry.instrument(savers[2], metrics.get_meter_provider(), attributes={"n": 2})
(scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
for metric in scope.metrics:
    if metric.name == "redis_saver.tier.bypasses":
        print(sorted(point.attributes["n"] for point in metric.data.data_points))
"""
    )
    assert said == "[0, 1, 2]\n"


def test_without_the_package() -> None:
    """Nothing imports it before it is used; then the error names the extra."""
    said = process(
        "import sys; sys.modules['opentelemetry'] = None; sys.modules['opentelemetry.metrics'] = None\n"
        + MADE
        + """
try:
    telemetry.instrument(tiered())
except ImportError as error:
    print(error)
"""
    )
    assert "pip install 'redis-saver[otel]'" in said


def test_stats_are_a_copy() -> None:
    """What is read is of one moment, and whatever is done to it changes nothing."""
    saver = tiered()
    saver._context.counts.hits = 2
    before = saver.stats()
    saver._context.counts.hits = 3
    before.misses = 9
    assert (before.hits, saver.stats().hits, saver.stats().misses) == (2, 3, 0)
    assert saver.with_allowlist([]).stats() == saver.stats()


async def test_stats_of_flushing() -> None:
    """Turns, their time, and what waits, of which a saver that does not flush learns from those that do."""
    from datetime import datetime

    from uniform import Uniform

    client = connect("memory://stats-of-flushing", asynchronous=False)
    cold = InMemorySaver()
    one, other = [
        TieredSaver(RedisSaver(client, prefix="stats"), cold, mode="write-behind", flusher=False) for _ in range(2)
    ]
    began = datetime.now()
    for name in ("a", "b"):
        await written(Uniform(one), name)
    assert other.stats() == Stats()
    assert one.flush(timeout=0) == 12  # it only looked
    stats = one.stats()
    assert (stats.backlog, stats.dirty_threads, stats.set_aside, stats.flushes) == (12, 2, 0, 0)
    assert 0 <= stats.oldest_seconds <= (datetime.now() - began).total_seconds() + 1
    assert other.flush() == 0
    stats = other.stats()
    assert (stats.flushed, stats.flushes, stats.refused, stats.coalesced) == (12, 2, 0, 0)
    assert 0 < stats.flush_seconds < 60
    assert (stats.backlog, stats.dirty_threads, stats.oldest_seconds, stats.last_error) == (0, 0, 0, "")
