"""Failovers and moving slots, one thing at a time, on real sentinels and real clusters: `docs/high-availability.md`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.retry
import redis.backoff
import redis.retry
from tests.support.acl import acl_rule
from tests.support.counting import Counted
from tests.support.factories import chain, checkpoint, config, put
from langgraph.checkpoint.memory import InMemorySaver
from tests.support.proxy import Proxy
from replicated import (
    PROGRAMS,
    Process,
    ReplicatedCluster,
    Sentinels,
    program_of,
    slot_of,
    until,
)
from tests.support.servers import Server
from tests.support.uniform import Target, Uniform

from redis_saver import (
    AsyncTieredSaver,
    ClusterMoving,
    NotOwner,
    RedisSaver,
    ReplicationTimeout,
    TieredSaver,
)
from redis_saver._client import link as linked
from redis_saver._client.link import Link, Rules, Tries
from redis_saver._engine.stats import Traffic
from redis_saver._common.names import Keyspace

SYNC_AND_ASYNC = ["sync", "async"]
WITH = [*(("redis", flavour) for flavour in SYNC_AND_ASYNC), *((program, "async") for program in PROGRAMS[1:])]
"""Programs and flavours; on Valkey one of these, as it is the servers that differ there."""


def _here(fixture: str, program: str, *more: str) -> Any:
    """A case whose servers a fixture starts, in one process and once for all cases of a program.

    (Once: that takes `scope="module"` in `parametrize`, too, where an argument that is of a test's scope comes with it.)
    """
    return pytest.param(program, *more, marks=pytest.mark.xdist_group(f"{fixture} {program}"))


def on(fixture: str) -> Callable[[Any], Any]:
    """Run a test on servers that a fixture starts."""
    cases = [_here(fixture, *case) for case in WITH]
    return pytest.mark.parametrize((fixture, "flavour"), cases, indirect=True, scope="module")


def on_cluster(*cases: tuple[str, str]) -> Callable[[Any], Any]:
    """Run a test with pairs of a program and what is done, in both flavours."""
    these = [_here("cluster", *case) for case in cases if case[0] in PROGRAMS]
    return pytest.mark.parametrize(("cluster", "what"), these, indirect=["cluster"], scope="module")


class CountedFailures(redis.backoff.ConstantBackoff):
    """Counts how often a connection (each has a copy) gave up a try."""

    failures = 0

    def compute(self, failures: int) -> float:
        self.failures += 1
        return super().compute(failures)


def patient(flavour: str) -> Any:
    """What a client takes as `retry` to try for so long that a failover is over."""
    module: Any = redis.asyncio if flavour == "async" else redis
    return module.retry.Retry(CountedFailures(0.2), 60)


async def aside(uniform: Uniform, method: str, *arguments: Any, **options: Any) -> Any:
    """Call a saver while other things happen: a blocking one in a thread."""
    call = getattr(uniform.saver, ("a" if uniform.native_async else "") + method)
    answer = (
        call(*arguments, **options) if uniform.native_async else await asyncio.to_thread(call, *arguments, **options)
    )
    return await answer if uniform.native_async else answer


async def put_aside(uniform: Uniform, thread: str, n: int, parent: str | None = None) -> dict[str, Any]:
    made = checkpoint({"n": n}, {"n": f"{n:032}.x"})
    metadata = {"source": "loop", "step": n, "parents": {}}
    stored = await aside(uniform, "put", config(thread, "", parent), made, metadata, made["channel_versions"])
    return dict(stored)


async def in_thread(step: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(step)


# -- Sentinel


@pytest.fixture(scope="module")
def sentinels(request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    made = Sentinels(request.param)
    yield made
    made.stop()


@pytest.fixture
async def watched(sentinels: Sentinels, flavour: str, request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    sentinels.wait_ready()
    made = Target("sentinel", flavour, sentinels.url, request.node.name)
    yield made
    await made.close()
    sentinels.wait_ready()


def has(server: Process, prefix: str, thread: str) -> int:
    """How many checkpoints a server has of a thread."""
    found: Any = server.ask("ZLEXCOUNT", Keyspace(prefix).keys(thread).index_key, "[c", "(d")
    return int(found)


@on("sentinels")
async def test_each_try_asks_the_sentinels(sentinels: Sentinels, watched: Target) -> None:
    """A primary that stands still is left as soon as the sentinels name another one."""
    uniform = watched.uniform(client=watched.client(socket_timeout=0.5, retry=patient(watched.flavour)))
    where = await put(uniform, config(), {"n": 1})
    before = sentinels.primary()
    before.pause()
    await put_aside(uniform, "thread", 2, where["configurable"]["checkpoint_id"])
    now = sentinels.primary()
    assert now is not before
    assert has(now, watched.prefix, "thread") == 2


@on("sentinels")
async def test_a_primary_that_comes_back_acknowledges_nothing(sentinels: Sentinels, watched: Target) -> None:
    """What it would acknowledge is lost as soon as the sentinels make it a replica."""
    client: Any = watched.client(socket_timeout=0.5, retry=patient(watched.flavour))
    uniform = watched.uniform(client=client)
    where = await put(uniform, config(), {"n": 0})
    before = sentinels.primary()
    before.pause()
    waiting = [asyncio.ensure_future(put_aside(uniform, f"t{n}", n)) for n in range(8)]
    await in_thread(lambda: sentinels.wait_promoted(before))
    in_use = client.connection_pool._in_use_connections
    tries = [(one, one.retry._backoff.failures) for one in list(in_use)]
    for one, failures in tries:  # what was sent to it, or was told of it, has been given up
        while one in in_use and one.retry._backoff.failures == failures:
            await asyncio.sleep(0.02)
    before.go_on()
    acknowledged = [one["configurable"]["thread_id"] for one in await asyncio.gather(*waiting)]
    now = sentinels.primary()
    assert [has(now, watched.prefix, thread) for thread in acknowledged] == [1] * 8
    await aside(uniform, "put_writes", where, [("n", 1)], "task")
    sentinels.wait_ready()
    fresh = watched.uniform()
    assert [(await fresh.get_tuple(config(f"t{n}"))).checkpoint["channel_values"] for n in range(8)] == [
        {"n": n} for n in range(8)
    ]


@on("sentinels")
async def test_sentinels_that_stand_still_are_passed_over(sentinels: Sentinels, watched: Target) -> None:
    """Each is asked once, not four times, which took four seconds each time."""
    sentinels.sentinels[0].pause()
    took: list[float] = []
    try:
        while not took or (took[-1] >= 3 and len(took) < 4):  # the machine may stand still meanwhile, but not each time
            uniform, began = watched.uniform(client=watched.client(socket_timeout=1)), time.monotonic()
            await put(uniform, config(), {"n": 1})
            took.append(time.monotonic() - began)
        assert took[-1] < 3, took
    finally:
        sentinels.sentinels[0].go_on()


@on("sentinels")
async def test_reading_from_a_demoted_primary_finds_the_new_one(sentinels: Sentinels, watched: Target) -> None:
    """With `require_primary` a connection to a server that was made a replica is left."""
    uniform = watched.uniform(client=watched.client(), require_primary=True)
    await put(uniform, config(), {"n": 1})
    before = sentinels.primary()
    until(lambda: sentinels.sentinels[0].ask("SENTINEL", "FAILOVER", "us") is not None, "a failover can begin")
    await in_thread(lambda: sentinels.wait_promoted(before))
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == {"n": 1}
    assert len(await uniform.list(None)) == 1


# -- replicas


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Process, Process]]:
    """A primary and its replica."""
    program = program_of(request.param)
    primary = Process("--repl-diskless-sync-delay", "0", program=program)
    replica = Process("--replicaof", "127.0.0.1", str(primary.port), "--repl-diskless-sync-delay", "0", program=program)
    until(replica.is_replica_in_sync, "the replica is in sync")
    yield primary, replica
    for one in (primary, replica):
        one.stop()


def behind(hot: Uniform) -> Uniform:
    """Write-behind over a saver; nothing is brought to cold."""
    kind = AsyncTieredSaver if hot.native_async else TieredSaver
    return Uniform(kind(hot.saver, InMemorySaver(), mode="write-behind", flusher=False))


@pytest.fixture
async def mine(pair: tuple[Process, Process], flavour: str, request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    made = Target("pair", flavour, pair[0].url, request.node.name)
    yield made
    await made.close()


@on("pair")
async def test_what_is_written_and_waited_for_is_one_request(mine: Target, pair: Any) -> None:
    """A failover between the two lets WAIT speak for another server. Here it happens as the request with WAIT in it arrives."""
    primary = Server("--repl-diskless-sync-delay", "0")
    replica = Process("--replicaof", "127.0.0.1", str(primary.port), "--repl-diskless-sync-delay", "0")
    until(replica.is_replica_in_sync, "the replica is in sync")
    proxy = Proxy(primary.port)
    target = Target("own", mine.flavour, proxy.url, mine.prefix)
    uniform = behind(target.uniform(min_replicas=1, replica_timeout=4))
    await put(uniform, config("before"), {"n": 1})

    def fail_over() -> None:
        primary.kill()
        proxy._server_port = pair[0].port

    proxy.before(b"WAIT", fail_over)
    made = await put(uniform, config("after"), {"n": 2})
    assert not proxy.waiting
    assert has(pair[0], mine.prefix, "after") == 1, made
    assert has(pair[1], mine.prefix, "after") == 1
    await target.close()
    for one in (primary, replica):
        one.stop()
    proxy.close()


@on("pair")
@pytest.mark.parametrize("call", ["put", "put_writes", "delete_thread"])
async def test_a_primary_that_is_demoted_while_replicas_are_waited_for(mine: Target, call: str) -> None:
    """It has written, and will forget: that is not acknowledged."""
    primary = Process("--repl-diskless-sync-delay", "0")
    replica = Process("--replicaof", "127.0.0.1", str(primary.port), "--repl-diskless-sync-delay", "0")
    other = Process()
    until(replica.is_replica_in_sync, "the replica is in sync")
    target = Target("own", mine.flavour, primary.url, mine.prefix)
    client = target.client(retry=None, socket_timeout=60)
    uniform = behind(target.uniform(client=client, min_replicas=1, replica_timeout=50))
    await uniform.put_writes(await put(uniform, config("known"), {"n": 1}), [("n", 1)], "task")  # the scripts are known
    await uniform.delete_thread("known")
    where = await put(uniform, config(), {"n": 1})
    replica.pause()  # as if it were cut off
    if call == "put":
        waiting = asyncio.ensure_future(put_aside(uniform, "thread", 2, where["configurable"]["checkpoint_id"]))
    elif call == "put_writes":
        waiting = asyncio.ensure_future(aside(uniform, "put_writes", where, [("n", 1)], "task"))
    else:
        waiting = asyncio.ensure_future(aside(uniform, "delete_thread", "thread"))
    with primary.client() as client:
        await in_thread(lambda: until(lambda: client.info("clients")["blocked_clients"] == 1, "the caller waits"))
        client.execute_command("REPLICAOF", "127.0.0.1", other.port)
    with pytest.raises(ReplicationTimeout, match=r"min_replicas.*safe"):
        await waiting
    await target.close()
    for one in (primary, replica, other):
        one.stop()


@on("pair")
async def test_waiting_costs_no_round_trip(mine: Target) -> None:
    client = mine.client()
    uniform = behind(mine.uniform(client=client, min_replicas=1, replica_timeout=4))
    await uniform.put_writes(await put(uniform, config("known"), {"n": 1}), [("n", 1)], "task")
    await uniform.delete_thread("known")
    where = await put(uniform, config(), {"n": 1})
    counter = Counted(client)
    await put(uniform, where, {"n": 2})
    await uniform.put_writes(where, [("n", 1)], "task")
    await uniform.delete_thread("thread")
    assert counter.take() == ["PIPELINE"] * 3


@on("pair")
async def test_a_script_that_is_not_known_is_waited_for_too(mine: Target, pair: Any) -> None:
    uniform = behind(mine.uniform(min_replicas=1, replica_timeout=4))
    for server in pair:
        server.ask("SCRIPT", "FLUSH")
    await put(uniform, config(), {"n": 1})
    assert has(pair[1], mine.prefix, "thread") == 1
    with pytest.raises(ReplicationTimeout, match="only 1 replicas"):
        await put(behind(mine.uniform(min_replicas=2, replica_timeout=0.1)), config("other"), {"n": 1})


# -- a replica that is read


async def everything(uniform: Uniform) -> list[Any]:
    """What each way of reading answers of `thread`."""
    return [
        (await uniform.get_tuple(config())).checkpoint["channel_values"],
        len(await uniform.list(config())),
        len(await uniform.list(None, filter={"step": 1})),
        [info.thread_id for info in await uniform.threads()],
        (await uniform.get_delta_channel_history(config=config(), channels=["n"])).keys(),
        await uniform.check("thread"),
        await uniform.get_thread_ttl("thread") is None,
    ]


READS: dict[str, Callable[[Uniform], Awaitable[Any]]] = {
    "get_tuple": lambda uniform: uniform.get_tuple(config()),
    "get_tuple of what is not there": lambda uniform: uniform.get_tuple(config("absent")),
    "list": lambda uniform: uniform.list(config()),
    "list, filtered": lambda uniform: uniform.list(config(), filter={"step": 1}),
    "list of all": lambda uniform: uniform.list(None),
    "threads": lambda uniform: uniform.threads(),
    "history": lambda uniform: uniform.get_delta_channel_history(config=config(), channels=["n"]),
    "check": lambda uniform: uniform.check("thread"),
    "ttl": lambda uniform: uniform.get_thread_ttl("thread"),
    "prune": lambda uniform: uniform.prune(["thread"], dry_run=True),
    "runs": lambda uniform: uniform.delete_for_runs(["no such run"]),
}


@on("pair")
async def test_a_replica_is_read_unless_it_is_refused(mine: Target, pair: Any) -> None:
    _, replica = pair
    writer = mine.uniform()
    await chain(writer, "thread", 3)
    until(lambda: has(replica, mine.prefix, "thread") == 3, "the replica has all")
    of_replica = Target("replica", mine.flavour, replica.url, mine.prefix)
    assert await everything(of_replica.uniform()) == await everything(writer)
    refusing = of_replica.uniform(require_primary=True)
    for name, read in READS.items():
        with pytest.raises(redis.ReadOnlyError):
            print(name, await read(refusing))
    await of_replica.close()


@on("pair")
async def test_what_is_set_on_a_required_primary_waits_for_replicas_too(mine: Target) -> None:
    await put(mine.uniform(), config(), {"n": 1})
    uniform = mine.uniform(require_primary=True, min_replicas=2, replica_timeout=0.1)
    with pytest.raises(ReplicationTimeout, match="only 1 replicas"):
        await uniform.pin("thread")


@on("pair")
async def test_requiring_a_primary_changes_nothing_on_one(mine: Target, pair: Any) -> None:
    """It is read where it lacks replicas, too, and a full one refuses what it refused: what begins with a write may write more then."""
    primary = pair[0]
    plain, guarded = mine.uniform(), mine.uniform(require_primary=True)
    await chain(plain, "thread", 3)
    stored = [mine.raw.dump(key) for key in mine.keys()]
    assert await everything(guarded) == await everything(plain)
    refreshing = mine.uniform(require_primary=True, ttl={"default_ttl": 60, "refresh_on_read": True})
    assert (await refreshing.get_tuple(config())).checkpoint["channel_values"] == {"n": 2}
    assert [mine.raw.dump(key) for key in mine.keys()] == stored
    offset = primary.info("master_repl_offset")
    await guarded.get_tuple(config())
    assert int(primary.info("master_repl_offset")) - int(offset) in (0, 14)  # nothing but a PING
    with primary.client() as client:
        try:
            client.config_set("min-replicas-to-write", 2)
            assert await everything(guarded) == await everything(plain)
            with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
                await put(guarded, config(), {"n": 1})
        finally:
            client.config_set("min-replicas-to-write", 0)
        try:
            client.config_set("maxmemory", 1)
            assert (await guarded.get_tuple(config())).checkpoint["channel_values"] == {"n": 2}
            with pytest.raises(redis.OutOfMemoryError):
                await put(guarded, config(), {"n": 1})
        finally:
            client.config_set("maxmemory", 0)


# -- clusters


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[ReplicatedCluster]:
    made = ReplicatedCluster(request.param)
    yield made
    made.stop()


@pytest.fixture
async def moving(cluster: ReplicatedCluster, flavour: str, request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    cluster.wait_ready()
    made = Target("cluster", flavour, cluster.url, request.node.name)
    yield made
    await made.close()


def slot(target: Target, thread: str) -> int:
    return slot_of(Keyspace(target.prefix).keys(thread).index_key)


async def busy(uniforms: list[Uniform], threads: list[str], done: threading.Event, *, keeps_all: bool) -> list[int]:
    """Go on writing and reading threads, many at once, until something is done; answers how often each was written."""

    async def one(uniform: Uniform, thread: str) -> int:
        count, parent = 0, None
        while not done.is_set() or not count:
            count += 1
            stored = await put_aside(uniform, thread, count, parent)
            parent = stored["configurable"]["checkpoint_id"]
            await aside(uniform, "put_writes", stored, [("n", count)], "task")
            found = await aside(uniform, "get_tuple", config(thread))
            if keeps_all:
                assert found.config == stored
                assert found.checkpoint["channel_values"] == {"n": count}
            await asyncio.sleep(0.03)  # else the callers keep the machine busy, and not the cluster
        return count

    return await asyncio.gather(*(one(uniforms[i % len(uniforms)], thread) for i, thread in enumerate(threads)))


async def all_there(uniforms: list[Uniform], threads: list[str], counts: list[int]) -> None:
    for i, (thread, count) in enumerate(zip(threads, counts, strict=True)):
        found = await uniforms[i % len(uniforms)].list(config(thread))
        assert [one.checkpoint["channel_values"]["n"] for one in found] == list(range(count, 0, -1)), thread
        assert all(one.pending_writes == [("task", "n", one.checkpoint["channel_values"]["n"])] for one in found)


@contextmanager
def meanwhile(step: Callable[[], Any], done: threading.Event | None = None) -> Iterator[None]:
    """Do something on another OS thread; it must succeed."""

    def run() -> None:
        try:
            step()
        finally:
            if done is not None:
                done.set()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        yield
        running.result(60)


@on_cluster(
    ("redis", "by hand"), ("redis", "killed"), ("redis", "paused"), ("valkey", "at once"), ("valkey", "planned")
)
async def test_whatever_moves_nobody_gets_an_error(cluster: ReplicatedCluster, moving: Target, what: str) -> None:
    """Neither what a moving cluster raises, nor what redis-py does as it learns the slots anew, while calls are under way.

    `test_failovers.py` has what else may happen to a cluster.
    """
    threads = [f"t{n}" for n in range(30 if moving.flavour == "async" else 8)]
    uniform = moving.uniform(client=moving.client(socket_timeout=1))
    tiered = AsyncTieredSaver if moving.flavour == "async" else TieredSaver
    cold = InMemorySaver()
    through = Uniform(tiered(moving.uniform(client=moving.client(socket_timeout=1)).saver, cold))
    source = cluster.primary_of(slot(moving, "t0"))
    done = threading.Event()

    def move() -> None:
        if what == "by hand":
            for thread in threads[:10]:
                number = slot(moving, thread)
                to = next(one for one in cluster.primaries() if one is not cluster.primary_of(number))
                origin = cluster.open_slot(number, to)
                time.sleep(0.02)
                while cluster.move_keys(number, origin, to, 1):
                    time.sleep(0.01)
                time.sleep(0.02)
                cluster.close_slot(number, to)
        elif what == "at once":
            for thread in threads[:6]:
                number = slot(moving, thread)
                to = next(one for one in cluster.primaries() if one is not cluster.primary_of(number))
                if not cluster.migrate_atomically(number, number, to):
                    cluster.move_slot(number, to)
        elif what == "planned":
            cluster.fail_over(source)
            time.sleep(0.3)
        else:
            replica = cluster.replica_of(source)
            source.kill() if what == "killed" else source.pause()
            cluster.wait_promoted(replica)
            time.sleep(0.5)

    keeps_all = what in ("by hand", "at once", "planned")  # else what the replica did not have is lost
    with meanwhile(move, done):
        counts = await busy([uniform, through], threads, done, keeps_all=keeps_all)
    cluster.wait_ready()
    if keeps_all:
        await all_there([moving.uniform(), Uniform(tiered(moving.uniform().saver, cold))], threads, counts)


@on("cluster")
async def test_a_node_that_nobody_knows_yet(cluster: ReplicatedCluster, moving: Target) -> None:
    """A slot moves to a node without any, which CLUSTER SLOTS does not name."""
    uniform = moving.uniform()
    where = await put(uniform, config(), {"n": 1})
    added = cluster.add_node()
    number = slot(moving, "thread")
    source = cluster.open_slot(number, added)
    while cluster.move_keys(number, source, added):
        pass
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == {"n": 1}
    await put(uniform, where, {"n": 2})
    client: Any = moving.client()
    if moving.flavour == "async":
        await client.initialize()
    assert client.get_node("127.0.0.1", added.port) is None
    cluster.close_slot(number, added)
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == {"n": 2}
    cluster.move_slot(number, source)
    cluster.remove_node(added)
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == {"n": 2}


@on("cluster")
async def test_the_least_rights_are_enough_where_a_slot_moves(cluster: ReplicatedCluster, flavour: str) -> None:
    """ASK is followed, too, which takes a right of its own."""
    for node in cluster.running():
        for section in ("standalone", "cluster"):
            node.ask(*acl_rule(section).split())
    target = Target("cluster", flavour, cluster.url.replace("://", "://checkpoints:secret@"), "langgraph")
    uniform = target.uniform(cluster_timeout=1)
    where = await put(uniform, config(), {"n": 1})
    number = slot(target, "thread")
    to = next(one for one in cluster.primaries() if one is not cluster.primary_of(number))
    source = cluster.open_slot(number, to)
    cluster.move_keys(number, source, to)
    await put(uniform, where, {"n": 2})
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == {"n": 2}
    cluster.close_slot(number, to)
    await uniform.delete_thread("thread")
    await target.close()


TIERS: dict[str, dict[str, Any]] = {"through": {}, "behind": {"mode": "write-behind", "flusher": False}}


@on("cluster")
@pytest.mark.parametrize("tiers", [None, *TIERS])
async def test_a_slot_that_is_open_for_a_while(cluster: ReplicatedCluster, moving: Target, tiers: str | None) -> None:
    """What would name a key that is there and one that is not waits until the slot is closed."""
    uniform = moving.uniform()
    if tiers:
        kind = AsyncTieredSaver if moving.flavour == "async" else TieredSaver
        uniform = Uniform(kind(uniform.saver, InMemorySaver(), **TIERS[tiers]))
    where = await put(uniform, config(), {"n": 1})
    number = slot(moving, "thread")
    target = next(one for one in cluster.primaries() if one is not cluster.primary_of(number))

    opened = threading.Event()

    def move() -> None:
        with cluster.opened(number, target):
            opened.set()
            time.sleep(0.4)
        opened.clear()

    with meanwhile(move):
        await in_thread(opened.wait)
        await put_aside(uniform, "thread", 2, where["configurable"]["checkpoint_id"])
        assert (await aside(uniform, "get_tuple", config())).checkpoint["channel_values"] == {"n": 2}
    with cluster.opened(number, next(one for one in cluster.primaries() if one is not target)):
        pass
    fresh = moving.uniform()
    assert (await fresh.get_tuple(config())).checkpoint["channel_values"] == {"n": 2}
    await fresh.delete_thread("thread")
    with meanwhile(move):
        await in_thread(opened.wait)
        assert await aside(fresh, "get_tuple", config()) is None
        await put_aside(fresh, "thread", 3)
    assert (await fresh.get_tuple(config())).checkpoint["channel_values"] == {"n": 3}


@on("cluster")
async def test_a_slot_that_stays_open_is_named(cluster: ReplicatedCluster, moving: Target) -> None:
    uniform = moving.uniform(cluster_timeout=0.2)
    number = slot(moving, "thread")
    target = next(one for one in cluster.primaries() if one is not cluster.primary_of(number))
    with cluster.opened(number, target):
        for call in (lambda: uniform.get_tuple(config()), lambda: put(uniform, config(), {"n": 1})):
            with pytest.raises(
                ClusterMoving, match=rf"slot {number} .*The slot is open.*cluster_timeout=0\.2"
            ) as caught:
                await asyncio.wait_for(call(), 20)
            assert isinstance(caught.value, redis.ConnectionError)
            assert isinstance(caught.value, uniform.saver._driver.failures)
    await put(uniform, config(), {"n": 1})


@on("cluster")
async def test_a_slot_that_nobody_serves_is_named(cluster: ReplicatedCluster, moving: Target) -> None:
    """And hot that is bypassed is bypassed then, too."""
    uniform = moving.uniform(cluster_timeout=0.3, client=moving.client(socket_timeout=0.5))
    kind = AsyncTieredSaver if moving.flavour == "async" else TieredSaver
    cold = InMemorySaver()
    around = Uniform(kind(uniform.saver, cold, on_hot_error="bypass"))
    await put(around, config(), {"n": 1})
    assert await around.get_tuple(config()) == await around.get_tuple(config())  # it is in hot from then on
    assert around.saver.stats().hits == 1
    lost = cluster.primary_of(slot(moving, "thread"))
    stopped = [cluster.replica_of(lost), lost]  # so that nobody takes its place, however long the calls take
    for one in stopped:
        one.pause()
    with pytest.raises(ClusterMoving, match=rf"slot {slot(moving, 'thread')} .*a primary is lost"):
        await uniform.get_tuple(config())
    with pytest.raises(ClusterMoving, match="some nodes of the cluster were missing"):
        await uniform.setup()
    assert (await around.get_tuple(config())).checkpoint["channel_values"] == {"n": 1}
    for one in stopped:
        one.go_on()
    cluster.wait_ready()
    deadline = time.monotonic() + 30
    while True:  # the client learns the nodes anew, which may take more than the 0.3 seconds; "calling again is safe"
        try:
            await uniform.setup()
            break
        except ClusterMoving:
            assert time.monotonic() < deadline
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == {"n": 1}


@on("cluster")
async def test_what_waits_for_replicas_follows_its_slot(cluster: ReplicatedCluster, moving: Target) -> None:
    uniform = behind(moving.uniform(min_replicas=1, replica_timeout=4))
    await put(uniform, config(), {"n": 1})
    number = slot(moving, "thread")
    target = next(one for one in cluster.primaries() if one is not cluster.primary_of(number))
    cluster.move_slot(number, target)
    await put(uniform, config(), {"n": 2})
    with cluster.replica_of(target).client(single_connection_client=True) as client:
        client.execute_command("READONLY")
        key = Keyspace(moving.prefix).keys("thread").index_key
        assert client.execute_command("ZLEXCOUNT", key, "[c", "(d") == 2


@on("cluster")
async def test_who_owns_a_thread_owns_it_when_its_primary_is_replaced(
    cluster: ReplicatedCluster, moving: Target
) -> None:
    """And who lost it stays refused, as a take waits for replicas. (`test_ownership_failover.py` has one that does not.)"""
    uniform = moving.uniform(min_replicas=1, replica_timeout=4)

    async def own(stack: AsyncExitStack, **options: Any) -> Any:
        owned = uniform.saver.own("thread", lease="1d", **options)
        given = await stack.enter_async_context(owned) if uniform.native_async else stack.enter_context(owned)
        return {"configurable": {**config()["configurable"], **given["configurable"]}}

    async with AsyncExitStack() as stack:
        old = await own(stack)
        await put(uniform, old, {"n": 1})
        new = await own(stack, on_busy="take")
        before = cluster.primary_of(slot(moving, "thread"))
        cluster.fail_over(before, "FORCE")
        for _ in range(2):
            with pytest.raises(NotOwner, match="has owned the thread since"):
                await put(uniform, old, {"n": 2})
            await put(uniform, new, {"n": 3})
        assert cluster.primary_of(slot(moving, "thread")) is not before
        with pytest.raises(NotOwner, match="has owned the thread since"):
            await own(stack)
    async with AsyncExitStack() as stack:
        await own(stack)  # it was given back, where it is now


@on("pair")
async def test_a_plain_saver_that_waits_for_replicas(mine: Target, pair: Any) -> None:
    """Everything that a caller may rely on is there when it is acknowledged, in one round trip."""
    client = mine.client()
    uniform = mine.uniform(client=client, min_replicas=1, replica_timeout=4)
    where = await put(uniform, config(), {"n": 1})
    await uniform.put_writes(where, [("n", 1)], "task")
    await uniform.copy_thread("thread", "copy")
    await uniform.pin("copy")
    await uniform.delete_thread("none")
    assert await uniform.get_tuple(config()) is not None  # the scripts are loaded now
    counter = Counted(client)
    await put(uniform, where, {"n": 2})
    await uniform.put_writes(where, [("n", 1)], "task")
    await uniform.pin("thread")
    await uniform.delete_thread("copy")
    await uniform.get_tuple(config())
    assert counter.take() == ["PIPELINE"] * 4 + ["EVALSHA"]
    assert has(pair[1], mine.prefix, "thread") == 2
    assert has(pair[1], mine.prefix, "copy") == 0
    lonely = mine.uniform(min_replicas=2, replica_timeout=0.1)
    for call in (put(lonely, where, {"n": 3}), lonely.delete_thread("thread")):
        with pytest.raises(ReplicationTimeout, match="only 1 replicas"):
            await call
    assert await uniform.get_tuple(config()) is None


def test_a_first_try_that_took_all_the_time_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(linked, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def begun(timeout: float) -> Tries:
        return Tries(Link(redis.Redis(), Rules(Traffic(), timeout, None, 0, 1.0, True)), None)

    tries = begun(1.0)
    now[0] = 10.0
    assert 0 < tries.pause(redis.ConnectionError("the node is gone")) < 0.1
    with pytest.raises(ClusterMoving, match="for 10.0 seconds, in 2 tries"):
        tries.pause(redis.ConnectionError("the node is gone"))
    with pytest.raises(ClusterMoving, match="in 1 tries"):
        begun(0).pause(redis.ConnectionError("the node is gone"))


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"cluster_timeout": -1}, "cluster_timeout=-1: write a number of at least 0"),
        ({"cluster_timeout": float("inf")}, "cluster_timeout=inf"),
        ({"min_replicas": 1.0}, "min_replicas=1.0: write an int of at least 0"),
        ({"replica_timeout": 0}, "replica_timeout=0"),
    ],
)
def test_settings_that_make_no_sense(setting: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RedisSaver(redis.Redis(), **setting)
