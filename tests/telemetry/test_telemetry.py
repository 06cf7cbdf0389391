"""OpenTelemetry metrics of savers, stores and caches match `stats()`, for as long as they are used."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
import weakref
from datetime import datetime
from typing import Any

import pytest
from tests.support.factories import config
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tests.support.tiering import written
from tests.support.uniform import Uniform

from redis_saver import AsyncRedisSaver, AsyncTieredSaver, CacheStats, CopyStats, RedisCache, RedisLLMCache
from redis_saver import RedisSaver, RedisStore, Stats, ThreadNotFound, TieredSaver, TieredStore, TierStats
from redis_saver._client.clients import connect
from redis_saver._engine.counting import measured
from redis_saver._engine.stats import RESULT, instruments
from redis_saver._telemetry import DURATION, INSTRUMENTS, LAST_ERROR, described
from redis_saver.telemetry import instrument


class Meters:
    """A meter provider, and the metrics that it received."""

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
        saver._context.counts.learn("scan 0 0 0 0")  # as if it had scanned
    return saver


def exported() -> dict[str, tuple[str, dict[str, str]]]:
    """Instrument and attribute of each field."""
    return {
        field: (one.name, {RESULT: result} if result else {})
        for one, of_stats in INSTRUMENTS.items()
        for field, result in of_stats.items()
        if one.source == "tier" and field not in ("oldest_seconds", "seconds_since_scan")  # computed
    }


def test_every_field_is_exported_under_its_instrument(meters: Meters) -> None:
    saver = tiered()
    instrument(saver, meters.provider, {"tier": "chats"})
    for number, field in enumerate(exported(), 1):
        setattr(saver._context.counts, field, number)
    assert meters.points(LAST_ERROR) == {}
    saver._context.counts.last_error = "OperationalError: 10.0.0.7 does not answer"
    for number, (name, attributes) in enumerate(exported().values(), 1):
        assert meters.points(name)[tuple(sorted({"tier": "chats", **attributes}.items()))] == number
    assert meters.points(LAST_ERROR) == {(("error.type", "OperationalError"), ("tier", "chats")): 1}


def test_instruments_have_kinds_and_units(meters: Meters) -> None:
    saver = tiered()
    saver._context.counts.last_error = "ValueError: no"
    instrument(saver, meters.provider)
    found = meters.metrics()
    told = [one for one in INSTRUMENTS if one.source in ("tier", "traffic", "local_cache")]
    assert set(found) == {*(one.name for one in told), LAST_ERROR}
    for one in told:
        metric = found[one.name]
        assert (metric.unit, metric.description) == (one.unit, one.about)
        assert one.unit in ("s", "By") or one.unit.startswith("{")
        kind = {None: "gauge", True: "counter", False: "up_down_counter"}[getattr(metric.data, "is_monotonic", None)]
        assert kind == one.kind
    assert all(one.path.startswith("tier.backlog.") for one in INSTRUMENTS if one.kind == "gauge")


OTHERS = {"operations", "last_error", "tiers", "copies"}


@pytest.mark.parametrize("stats", [Stats, TierStats, CacheStats, CopyStats])
def test_every_field_has_an_instrument(stats: Any) -> None:
    """Except the calls, which are a histogram, the text of the last error, and the parts with fields of their own."""
    told = [field for of_stats in instruments(stats).values() for field in of_stats]
    assert sorted(told) == sorted({one.name for one in dataclasses.fields(stats)} - OTHERS)


async def test_exported_counts_match_real_operations(meters: Meters) -> None:
    hot = AsyncRedisSaver(connect("memory://", asynchronous=True))
    behind: Any = {"mode": "write-behind", "flusher": False}
    for saver in (tiered(**behind), AsyncTieredSaver(hot, InMemorySaver(), **behind)):
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
        assert meters.points("redis_saver.tier.flush.time")[(kind,)] == saver.stats().tiers.flush_seconds > 0


def test_attributes_tell_savers_apart(meters: Meters) -> None:
    """Savers with the same attributes are summed."""
    savers = [tiered() for _ in range(3)]
    for number, saver in enumerate(savers, 1):
        saver._context.counts.bypasses = saver._context.counts.backlog = saver._context.counts.hits = number
        instrument(saver, meters.provider, {"tier": "a" if number == 1 else "b"})
    assert meters.points("redis_saver.tier.bypasses") == {(("tier", "a"),): 1, (("tier", "b"),): 5}
    assert meters.points("redis_saver.tier.backlog.records") == {(("tier", "a"),): 1, (("tier", "b"),): 3}
    assert meters.points("redis_saver.tier.reads")[((RESULT, "hit"), ("tier", "b"))] == 5


def test_instrumenting_twice_counts_once(meters: Meters) -> None:
    """The last attributes are used."""
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
    meters = Meters()
    saver = tiered()
    instrument(saver, meters.provider)
    meters.provider.shutdown()
    gone = weakref.ref(meters.provider)
    del meters
    gc.collect()
    assert gone() is None


def test_foreign_objects_are_refused(meters: Meters) -> None:
    for one in (InMemorySaver(), None, RedisSaver):
        with pytest.raises(TypeError, match="TieredSaver"):
            instrument(one, meters.provider)  # type: ignore[arg-type]


def of(meters: Meters, name: str, **attributes: Any) -> list[float]:
    """Points with exactly these attributes."""
    return [value for key, value in meters.points(name).items() if set(attributes.items()) == set(key)]


def test_savers_stores_and_caches_export_their_stats(meters: Meters) -> None:
    """The collection's name tells them apart."""
    client = connect("memory://", asynchronous=False)
    saver, store, cache = RedisSaver(client), RedisStore(client), RedisCache[Any](client)
    both = TieredStore(RedisStore(client, prefix="hot"), InMemoryStore())
    for one in (saver, store, cache, both):
        instrument(one, meters.provider, {"service": "chats"} if one is both else None)
    saver.get_tuple(config())
    store.put(("m",), "k", {"a": 1})
    cache.get([(("a",), "k")])
    both.get(("m",), "k")
    both.put(("m",), "k", {"a": 1})
    both.get(("m",), "k")
    for one, collection in ((saver, "checkpoints"), (store, "items"), (cache, "entries"), (both.hot, "items")):
        found: Any = one.stats()
        where: dict[str, Any] = {"db.collection.name": collection}
        where |= {"service": "chats"} if one is both.hot else {}
        assert of(meters, "redis_saver.round_trips", **where) == [found.round_trips] != [0]
        io = "redis_saver.network.io"
        assert of(meters, io, **where, **{"network.io.direction": "transmit"}) == [found.bytes_sent]
        assert of(meters, io, **where, **{"network.io.direction": "receive"}) == [found.bytes_received]
    assert of(meters, "redis_saver.cache.lookups", **{RESULT: "miss"}) == [1]
    assert of(meters, "redis_saver.store_tier.reads", service="chats", **{RESULT: "miss"}) == [1]
    assert of(meters, "redis_saver.store_tier.reads", service="chats", **{RESULT: "hit"}) == [1]
    assert len(meters.points("redis_saver.local_cache.size")) == 3
    instrument(RedisLLMCache(cache), meters.provider)
    assert of(meters, "redis_saver.cache.lookups", **{RESULT: "miss"}) == [1], "with the counts of the cache below it"


def test_durations_match_the_histograms_of_stats(meters: Meters) -> None:
    saver = RedisSaver(connect("memory://", asynchronous=False))
    instrument(saver, meters.provider, {"n": 0})
    instrument(saver, meters.provider, {"n": 1})
    for _ in range(3):
        saver.get_tuple(config())
    with pytest.raises(ThreadNotFound):
        saver.pin("nobody")
    stats, metric = saver.stats(), meters.metrics()[DURATION]
    names = ("db.operation.name", "db.collection.name", "error.type")
    assert {
        tuple(point.attributes.get(name) for name in names): (point.count, list(point.bucket_counts))
        for point in metric.data.data_points
    } == {
        ("get_tuple", "checkpoints", None): (3, list(stats.operations["get_tuple"].histogram.values())),
        ("pin", "checkpoints", "ThreadNotFound"): (1, list(stats.operations["pin"].histogram.values())),
    }
    assert metric.unit == "s"
    for point in metric.data.data_points:
        assert dict(point.attributes)["n"] == 1, "the last attributes count"
        assert [*map(str, point.explicit_bounds)] == [*stats.operations["pin"].histogram][:-1]


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("redis://anna:secret@db.example:6380/3", {"server.address": "db.example", "server.port": 6380, "db.namespace": "3"}),
        ("rediss://db.example", {"server.address": "db.example", "server.port": 6379, "db.namespace": "0"}),
        ("redis://[::1]:7000", {"server.address": "::1", "server.port": 7000, "db.namespace": "0"}),
        ("unix:///run/redis.sock", {"server.address": "/run/redis.sock"}),
        ("redis+sentinel://a:1,b:2/main", {"server.address": "a:1,b:2"}),
        ("memory://", {}),
    ],
)  # fmt: skip
def test_the_servers_address_is_an_attribute(url: str, wanted: dict[str, Any]) -> None:
    found = described(measured(RedisSaver(connect(url, asynchronous=False))))
    assert found == {"db.system.name": "redis", "db.collection.name": "checkpoints", **wanted}


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


LATER = """
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


def test_the_global_provider_may_be_set_later() -> None:
    assert process(MADE + LATER) == "[0, 1, 2]\n"


def test_a_missing_opentelemetry_names_the_extra() -> None:
    """It is not imported before it is used."""
    without = "import sys; sys.modules['opentelemetry'] = None; sys.modules['opentelemetry.metrics'] = None\n"
    tried = "try:\n    telemetry.instrument(tiered())\nexcept ImportError as error:\n    print(error)\n"
    assert "pip install 'redis-saver[otel]'" in process(without + MADE + tried)


def test_stats_are_a_copy() -> None:
    """Stats are of one moment, and changing them changes nothing."""
    saver = tiered()
    saver._context.counts.hits = 2
    before = saver.stats().tiers
    saver._context.counts.hits = 3
    before.misses = 9
    assert (before.hits, saver.stats().tiers.hits, saver.stats().tiers.misses) == (2, 3, 0)
    clone = saver.with_allowlist([])
    found = [dataclasses.replace(each.stats().tiers, seconds_since_scan=0) for each in (clone, saver)]
    assert found[0] == found[1]


async def test_stats_count_flushes_and_the_backlog() -> None:
    """A saver that does not flush learns the backlog from those that do."""
    client = connect("memory://stats-of-flushing", asynchronous=False)
    cold = InMemorySaver()
    hots = [RedisSaver(client, prefix="stats") for _ in range(2)]
    one, other = [TieredSaver(hot, cold, mode="write-behind", flusher=False) for hot in hots]
    began = datetime.now()
    for name in ("a", "b"):
        await written(Uniform(one), name)
    assert other.stats().tiers == TierStats()
    assert one.flush(timeout=0) == 12  # it only scanned
    stats = one.stats().tiers
    assert (stats.backlog, stats.dirty_threads, stats.set_aside, stats.flushes) == (12, 2, 0, 0)
    assert 0 <= stats.oldest_seconds <= (datetime.now() - began).total_seconds() + 1
    assert other.flush() == 0
    stats = other.stats().tiers
    assert (stats.flushed, stats.flushes, stats.refused, stats.coalesced) == (12, 2, 0, 0)
    assert 0 < stats.flush_seconds < 60
    assert (stats.backlog, stats.dirty_threads, stats.oldest_seconds, stats.last_error) == (0, 0, 0, "")
