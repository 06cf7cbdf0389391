"""Single failovers and slot moves on real sentinels and clusters, as in `docs/high-availability.md`."""

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
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import GetOp, PutOp
from replicated import PROGRAMS, Process, ReplicatedCluster, Sentinels, program_of, slot_of, until

from redis_saver import AsyncTieredSaver, ClusterMoving, NotOwner, RedisSaver, ReplicationTimeout, TieredSaver
from redis_saver._client import link as linked
from redis_saver._client.link import Link, Rules, Tries
from redis_saver._common.names import Keyspace
from redis_saver._engine.counting import Traffic
from tests.support.acl import acl_rule
from tests.support.counting import Counted
from tests.support.factories import chain, checkpoint, config, ids, put
from tests.support.proxy import Proxy
from tests.support.uniform import Target, Uniform, encryption

SYNC_AND_ASYNC = ["sync", "async"]
WITH = [*(("redis", flavour) for flavour in SYNC_AND_ASYNC), *((program, "async") for program in PROGRAMS[1:])]
"""Programs and flavours. On Valkey only async, as only the servers differ there."""


def _here(fixture: str, program: str, *more: str) -> Any:
    """A case whose servers are started once per program, in one worker process.

    To start them once, `parametrize` also needs `scope="module"` if a test has an argument of function scope.
    """
    return pytest.param(program, *more, marks=pytest.mark.xdist_group(f"{fixture} {program}"))


def on(fixture: str) -> Callable[[Any], Any]:
    """Run a test on the servers that a fixture starts."""
    cases = [_here(fixture, *case) for case in WITH]
    return pytest.mark.parametrize((fixture, "flavour"), cases, indirect=True, scope="module")


def on_cluster(*cases: tuple[str, str]) -> Callable[[Any], Any]:
    """Run a test with pairs of a program and a disturbance, in both flavours."""
    these = [_here("cluster", *case) for case in cases if case[0] in PROGRAMS]
    return pytest.mark.parametrize(("cluster", "what"), these, indirect=["cluster"], scope="module")


class CountedFailures(redis.backoff.ConstantBackoff):
    """Counts the failed tries of a connection. Each connection has a copy."""

    failures = 0

    def compute(self, failures: int) -> float:
        self.failures += 1
        return super().compute(failures)


def patient(flavour: str) -> Any:
    """A client's `retry` that outlasts a failover."""
    module: Any = redis.asyncio if flavour == "async" else redis
    return module.retry.Retry(CountedFailures(0.2), 60)


async def aside(uniform: Uniform, method: str, *arguments: Any, **options: Any) -> Any:
    """Call a saver without blocking the event loop."""
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
    """Number of a thread's checkpoints on a server."""
    found: Any = server.ask("ZLEXCOUNT", Keyspace(prefix).keys(thread).index_key, "[c", "(d")
    return int(found)


@on("sentinels")
async def test_each_retry_asks_the_sentinels_for_the_primary(sentinels: Sentinels, watched: Target) -> None:
    """The client leaves a paused primary as soon as the sentinels name another."""
    uniform = watched.uniform(client=watched.client(socket_timeout=0.5, retry=patient(watched.flavour)))
    where = await put(uniform, config(), {"n": 1})
    before = sentinels.primary()
    before.pause()
    await put_aside(uniform, "thread", 2, where["configurable"]["checkpoint_id"])
    now = sentinels.primary()
    assert now is not before
    assert has(now, watched.prefix, "thread") == 2


@on("sentinels")
async def test_a_primary_that_returns_after_a_failover_acknowledges_nothing(
    sentinels: Sentinels, watched: Target
) -> None:
    """Its writes would be lost as soon as the sentinels make it a replica."""
    client: Any = watched.client(socket_timeout=0.5, retry=patient(watched.flavour))
    uniform = watched.uniform(client=client)
    where = await put(uniform, config(), {"n": 0})
    before = sentinels.primary()
    before.pause()
    waiting = [asyncio.ensure_future(put_aside(uniform, f"t{n}", n)) for n in range(8)]
    await in_thread(lambda: sentinels.wait_promoted(before))
    in_use = client.connection_pool._in_use_connections
    tries = [(one, one.retry._backoff.failures) for one in list(in_use)]
    for one, failures in tries:  # tries that reached the old primary, or its address, have failed
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
async def test_paused_sentinels_are_skipped(sentinels: Sentinels, watched: Target) -> None:
    """Each is asked once. Four tries took four seconds each."""
    sentinels.sentinels[0].pause()
    took: list[float] = []
    try:
        while not took or (took[-1] >= 3 and len(took) < 4):  # the machine may stall, but not each time
            uniform, began = watched.uniform(client=watched.client(socket_timeout=1)), time.monotonic()
            await put(uniform, config(), {"n": 1})
            took.append(time.monotonic() - began)
        assert took[-1] < 3, took
    finally:
        sentinels.sentinels[0].go_on()


@on("sentinels")
async def test_require_primary_leaves_a_demoted_server(sentinels: Sentinels, watched: Target) -> None:
    """The saver drops a connection to a server that has become a replica."""
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
    with replicating(program_of(request.param)) as pair:
        yield pair


@contextmanager
def replicating(program: str | None = None) -> Iterator[tuple[Process, Process]]:
    undelayed = ("--repl-diskless-sync-delay", "0")
    primary = Process(*undelayed, program=program)
    replica = Process("--replicaof", "127.0.0.1", str(primary.port), *undelayed, program=program)
    until(replica.is_replica_in_sync, "the replica is in sync")
    yield primary, replica
    for one in (primary, replica):
        one.stop()


def tiered(hot: Uniform, cold: Any, **settings: Any) -> Uniform:
    kind = AsyncTieredSaver if hot.native_async else TieredSaver
    return Uniform(kind(hot.saver, cold, **settings))


def behind(hot: Uniform) -> Uniform:
    """A write-behind saver that never flushes."""
    return tiered(hot, InMemorySaver(), mode="write-behind", flusher=False)


@pytest.fixture
async def mine(pair: tuple[Process, Process], flavour: str, request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    made = Target("pair", flavour, pair[0].url, request.node.name)
    yield made
    await made.close()


@on("pair")
async def test_a_write_and_its_wait_are_one_request(mine: Target, pair: Any) -> None:
    """A failover between the two would let WAIT count another server's replicas. Here it happens as both arrive."""
    with replicating() as (primary, _):
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
        assert [has(server, mine.prefix, "after") for server in pair] == [1, 1], made
        await target.close()
        proxy.close()


@on("pair")
@pytest.mark.parametrize("call", ["put", "put_writes", "delete_thread"])
async def test_a_write_demoted_while_waiting_for_replicas_is_not_acknowledged(
    mine: Target, pair: Any, call: str
) -> None:
    """The primary has written it, but loses it when it becomes a replica."""
    with replicating() as (primary, replica):
        target = Target("own", mine.flavour, primary.url, mine.prefix)
        client = target.client(retry=None, socket_timeout=60)
        uniform = behind(target.uniform(client=client, min_replicas=1, replica_timeout=50))
        await uniform.put_writes(await put(uniform, config("known"), {"n": 1}), [("n", 1)], "task")  # loads the scripts
        await uniform.delete_thread("known")
        where = await put(uniform, config(), {"n": 1})
        replica.pause()  # as if it were cut off
        calls = {
            "put": lambda: put_aside(uniform, "thread", 2, where["configurable"]["checkpoint_id"]),
            "put_writes": lambda: aside(uniform, "put_writes", where, [("n", 1)], "task"),
            "delete_thread": lambda: aside(uniform, "delete_thread", "thread"),
        }
        waiting = asyncio.ensure_future(calls[call]())
        with primary.client() as client:
            await in_thread(lambda: until(lambda: client.info("clients")["blocked_clients"] == 1, "the caller waits"))
            client.execute_command("REPLICAOF", "127.0.0.1", pair[1].port)
        with pytest.raises(ReplicationTimeout, match=r"min_replicas.*safe"):
            await waiting
        await target.close()


@on("pair")
async def test_a_write_with_an_unknown_script_waits_for_replicas(mine: Target, pair: Any) -> None:
    uniform = behind(mine.uniform(min_replicas=1, replica_timeout=4))
    for server in pair:
        server.ask("SCRIPT", "FLUSH")
    await put(uniform, config(), {"n": 1})
    assert has(pair[1], mine.prefix, "thread") == 1
    with pytest.raises(ReplicationTimeout, match="only 1 replicas"):
        await put(behind(mine.uniform(min_replicas=2, replica_timeout=0.1)), config("other"), {"n": 1})


# -- reading from a replica


async def everything(uniform: Uniform) -> list[Any]:
    """Answers of each kind of read for `thread`."""
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
async def test_a_replica_is_readable_unless_a_primary_is_required(mine: Target, pair: Any) -> None:
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
@pytest.mark.parametrize("encrypts", [False, True])
async def test_reads_wait_for_no_replica(mine: Target, pair: Any, encrypts: bool) -> None:
    """`min_replicas` concerns writes. The health check is a read, too."""
    settings: Any = {"encryption": encryption()} if encrypts else {}
    await chain(mine.uniform(**settings), "thread", 3)
    lonely = mine.uniform(min_replicas=2, replica_timeout=0.1, **settings)
    for read in READS.values():
        await read(lonely)
    assert await behind(lonely).get_thread_ttl("thread") is None


@on("pair")
@pytest.mark.parametrize("encrypts", [False, True])
async def test_a_batch_of_a_store_waits_for_replicas_if_it_writes(mine: Target, pair: Any, encrypts: bool) -> None:
    """Also in a process that has no data key yet."""
    settings: Any = {"encryption": encryption()} if encrypts else {}
    users = [("memories", f"user-{number}") for number in range(3)]
    await mine.store(**settings).batch([PutOp(ns, "k", {"n": 1}) for ns in users])
    reads = [GetOp(ns, "k") for ns in users]
    mixed = [
        *reads,
        PutOp(users[0], "k", {"n": 2}),
        PutOp(("memories", "new"), "k", {"n": 2}),
        PutOp(users[1], "k", None),
    ]

    def fresh(replicas: int, seconds: float) -> Uniform:
        return mine.store(min_replicas=replicas, replica_timeout=seconds, **settings)

    def values(items: list[Any]) -> list[Any]:
        return [item and item.value["n"] for item in items]

    assert values(await fresh(2, 0.1).batch(reads)) == [1, 1, 1]
    with pytest.raises(ReplicationTimeout, match="only 1 replicas"):
        await fresh(2, 0.1).batch([*reads, PutOp(("memories", "another"), "k", {"n": 2})])
    assert values(await fresh(1, 4).batch(mixed)) == [1, 1, 1, None, None, None]
    replica = Target("replica", mine.flavour, pair[1].url, mine.prefix)
    expected = [2, None, 1, 2]
    for target in (replica, mine):
        found = await target.store(**settings).batch([*reads, GetOp(("memories", "new"), "k")])
        assert values(found) == expected, target.name
    await replica.close()


@on("pair")
async def test_settings_and_copies_wait_for_replicas(mine: Target, pair: Any) -> None:
    """Also with a required primary."""
    await put(mine.uniform(), config(), {"n": 1})
    client = mine.client()
    waiting = mine.uniform(client=client, min_replicas=1, replica_timeout=4)
    await waiting.copy_thread("thread", "copy")
    await waiting.pin("copy")
    counter = Counted(client)
    await waiting.pin("thread")
    assert counter.take() == ["PIPELINE"]
    assert has(pair[1], mine.prefix, "copy") == 1
    lonely = mine.uniform(require_primary=True, min_replicas=2, replica_timeout=0.1)
    with pytest.raises(ReplicationTimeout, match="only 1 replicas"):
        await lonely.pin("thread")


@on("pair")
async def test_require_primary_changes_nothing_on_a_primary(mine: Target, pair: Any) -> None:
    """Reads also work if replicas or memory are missing. Writes are refused then, as without it."""
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
    assert int(primary.info("master_repl_offset")) - int(offset) in (0, 14)  # only a PING
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
    """Write and read threads concurrently until `done`. Return the number of writes per thread."""

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
            await asyncio.sleep(0.03)  # without a pause, the callers would slow the machine down
        return count

    return await asyncio.gather(*(one(uniforms[i % len(uniforms)], thread) for i, thread in enumerate(threads)))


@contextmanager
def meanwhile(step: Callable[[], Any], done: threading.Event | None = None) -> Iterator[None]:
    """Run a step on another OS thread, which must succeed."""

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(step)
        if done is not None:
            running.add_done_callback(lambda _: done.set())
        yield
        running.result(60)


@on_cluster(
    ("redis", "by hand"), ("redis", "killed"), ("redis", "paused"), ("valkey", "at once"), ("valkey", "planned")
)
async def test_no_caller_gets_an_error_while_a_cluster_changes(
    cluster: ReplicatedCluster, moving: Target, what: str
) -> None:
    """Neither redirections nor redis-py's own errors while it learns the slots reach a caller.

    `test_failovers.py` covers other changes of a cluster.
    """
    threads = [f"t{n}" for n in range(12 if moving.flavour == "async" else 8)]
    uniform = moving.uniform(client=moving.client(socket_timeout=1))
    cold = InMemorySaver()
    through = tiered(moving.uniform(client=moving.client(socket_timeout=1)), cold)
    source = cluster.primary_of(slot(moving, "t0"))
    done = threading.Event()

    def move() -> None:
        if what in ("by hand", "at once"):
            for number in [slot(moving, thread) for thread in threads[:8]]:
                to = cluster.other_than(number)
                if what == "at once":
                    if not cluster.migrate_atomically(number, number, to):
                        cluster.move_slot(number, to)
                    continue
                origin = cluster.open_slot(number, to)
                time.sleep(0.02)
                while cluster.move_keys(number, origin, to, 1):
                    time.sleep(0.01)
                time.sleep(0.02)
                cluster.close_slot(number, to)
        elif what == "planned":
            cluster.fail_over(source)
            time.sleep(0.3)
        else:
            replica = cluster.replica_of(source)
            source.kill() if what == "killed" else source.pause()
            cluster.wait_promoted(replica)
            time.sleep(0.5)

    keeps_all = what in ("by hand", "at once", "planned")  # otherwise writes that the replica lacks are lost
    with meanwhile(move, done):
        counts = await busy([uniform, through], threads, done, keeps_all=keeps_all)
    cluster.wait_ready()
    fresh = [moving.uniform(), tiered(moving.uniform(), cold)]
    for number, (thread, count) in enumerate(zip(threads, counts, strict=True) if keeps_all else ()):
        found = await fresh[number % 2].list(config(thread))
        assert [one.checkpoint["channel_values"]["n"] for one in found] == list(range(count, 0, -1)), thread
        assert all(one.pending_writes == [("task", "n", one.checkpoint["channel_values"]["n"])] for one in found)


@on_cluster(("valkey", "rotated"))
async def test_a_scan_finds_threads_whose_slots_move(
    cluster: ReplicatedCluster, moving: Target, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCAN of each primary would miss those that moved to a node that was scanned before."""
    monkeypatch.setattr(linked, "KEYS_PER_SCAN", 10)
    threads = {f"t{n}" for n in range(200)}
    uniform = moving.uniform()
    for thread in threads:
        await put(uniform, config(thread), {"n": 1})
    found = set[str]()

    def rotate() -> None:
        primaries = cluster.primaries()
        ranges = [cluster.slots_of(primary) for primary in primaries]
        for target, names in zip((*primaries[1:], primaries[0]), ranges, strict=True):
            for start, _, end in (name.partition("-") for name in names):
                assert cluster.migrate_atomically(int(start), int(end or start), target)

    def note(info: Any) -> None:
        found.add(info.thread_id)
        if len(found) == len(threads) // 2:
            rotate()

    if moving.flavour == "sync":
        for info in uniform.saver.threads():
            note(info)
    else:
        async for info in uniform.saver.athreads():
            await asyncio.to_thread(note, info)
    assert found == threads, what


@on("cluster")
async def test_a_slot_on_an_unlisted_node_is_found(cluster: ReplicatedCluster, moving: Target) -> None:
    """The node had no slots before, so CLUSTER SLOTS does not list it."""
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
async def test_the_documented_rights_suffice_while_a_slot_moves(cluster: ReplicatedCluster, flavour: str) -> None:
    """ASKING needs a right of its own."""
    for node in cluster.running():
        for section in ("standalone", "cluster"):
            node.ask(*acl_rule(section).split())
    target = Target("cluster", flavour, cluster.url.replace("://", "://checkpoints:secret@"), "langgraph")
    uniform = target.uniform(cluster_timeout=1)
    where = await put(uniform, config(), {"n": 1})
    number = slot(target, "thread")
    to = cluster.other_than(number)
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
async def test_requests_wait_for_an_open_slot(cluster: ReplicatedCluster, moving: Target, tiers: str | None) -> None:
    """A request with both existing and missing keys gets TRYAGAIN until the slot is closed."""
    uniform = moving.uniform()
    if tiers:
        uniform = tiered(uniform, InMemorySaver(), **TIERS[tiers])
    where = await put(uniform, config(), {"n": 1})
    number = slot(moving, "thread")
    target = cluster.other_than(number)

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
    with cluster.opened(number, cluster.other_than(number)):
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
async def test_a_slot_that_stays_open_is_named_in_the_error(cluster: ReplicatedCluster, moving: Target) -> None:
    uniform = moving.uniform(cluster_timeout=0.2)
    number = slot(moving, "thread")
    target = cluster.other_than(number)
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
async def test_an_unserved_slot_is_named_or_bypassed(cluster: ReplicatedCluster, moving: Target) -> None:
    uniform = moving.uniform(cluster_timeout=0.3, client=moving.client(socket_timeout=0.5))
    around = tiered(uniform, InMemorySaver(), on_hot_error="bypass")
    await put(around, config(), {"n": 1})
    assert await around.get_tuple(config()) == await around.get_tuple(config())  # fills hot
    assert around.saver.stats().tiers.hits == 1
    lost = cluster.primary_of(slot(moving, "thread"))
    stopped = [cluster.replica_of(lost), lost]  # stays lost, as no replica can take over
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
    while True:  # the client may need longer than 0.3 s to learn the nodes, but may call again
        try:
            await uniform.setup()
            break
        except ClusterMoving:
            assert time.monotonic() < deadline
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == {"n": 1}


@on("cluster")
async def test_waiting_for_replicas_follows_a_moved_slot(cluster: ReplicatedCluster, moving: Target) -> None:
    uniform = behind(moving.uniform(min_replicas=1, replica_timeout=4))
    await put(uniform, config(), {"n": 1})
    number = slot(moving, "thread")
    target = cluster.other_than(number)
    cluster.move_slot(number, target)
    await put(uniform, config(), {"n": 2})
    with cluster.replica_of(target).client(single_connection_client=True) as client:
        client.execute_command("READONLY")
        key = Keyspace(moving.prefix).keys("thread").index_key
        assert client.execute_command("ZLEXCOUNT", key, "[c", "(d") == 2


@on("cluster")
async def test_an_owner_keeps_its_thread_after_a_failover(cluster: ReplicatedCluster, moving: Target) -> None:
    """The old owner stays refused, as a take waits for replicas. A test below shows it without."""
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
        await own(stack)  # it was released on the new primary


@on("pair")
@pytest.mark.parametrize("is_behind", [False, True], ids=["plain", "write-behind"])
async def test_each_write_waits_for_replicas_in_its_own_round_trip(mine: Target, pair: Any, is_behind: bool) -> None:
    client = mine.client()
    uniform = mine.uniform(client=client, min_replicas=1, replica_timeout=4)
    uniform = behind(uniform) if is_behind else uniform
    known = await put(uniform, config("known"), {"n": 1})
    await uniform.put_writes(known, [("n", 1)], "task")
    await uniform.delete_thread("known")
    where = await put(uniform, config(), {"n": 1})
    assert await uniform.get_tuple(config()) is not None  # the scripts are loaded now
    counter = Counted(client)
    await put(uniform, where, {"n": 2})
    assert has(pair[1], mine.prefix, "thread") == 2
    await uniform.put_writes(where, [("n", 1)], "task")
    await uniform.get_tuple(config())
    await uniform.delete_thread("thread")
    assert counter.take() == ["PIPELINE"] * 2 + ["EVALSHA", "PIPELINE"]
    assert has(pair[1], mine.prefix, "thread") == 0
    lonely = mine.uniform(min_replicas=2, replica_timeout=0.1)
    await uniform.delete_thread("thread")
    for call in (put(lonely, config("other"), {"n": 3}), lonely.delete_thread("other")):
        with pytest.raises(ReplicationTimeout, match="only 1 replicas"):
            await call


def test_a_slow_first_try_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
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


# -- a failover that loses the last writes may lose a change of owner


@pytest.fixture
def promotable() -> Iterator[tuple[Process, Process]]:
    """A primary, and a replica that a test promotes."""
    with replicating() as pair:
        yield pair


def put_as(saver: RedisSaver, given: Any, value: int) -> str:
    made = checkpoint({"n": value}, {"n": f"{value:032}.{value:020}"})
    where = {**config()["configurable"], **given["configurable"]}
    saver.put({"configurable": where}, made, {"source": "loop", "step": value}, made["channel_versions"])
    return str(made["id"])


def test_a_failover_may_return_a_thread_to_its_old_owner(promotable: tuple[Process, Process]) -> None:
    """The new owner's writes are lost too, so the history stays one chain, written by the old owner."""
    primary, replica = promotable
    with RedisSaver.from_conn_string(primary.url) as old, RedisSaver.from_conn_string(replica.url) as promoted:
        with old.own("thread", run_id="one") as first:
            kept = put_as(old, first, 1)
            until(lambda: len(ids(promoted.list(config()))) == 1, "it is replicated")
            replica.ask("REPLICAOF", "NO", "ONE")
            with old.own("thread", on_busy="take") as second:
                put_as(old, second, 2)  # acknowledged, and lost
                with pytest.raises(NotOwner):
                    put_as(promoted, second, 3)
                last = put_as(promoted, first, 4)
        assert ids(promoted.list(config())) == [last, kept]
        with promoted.own("thread", on_busy="take") as third:  # later epochs are greater
            assert third["configurable"]["thread_owner"] > second["configurable"]["thread_owner"]


def test_with_min_replicas_a_take_without_replicas_fails(promotable: tuple[Process, Process]) -> None:
    primary, replica = promotable
    options: Any = {"min_replicas": 1, "replica_timeout": 2}
    with (
        RedisSaver.from_conn_string(primary.url, **options) as old,
        RedisSaver.from_conn_string(replica.url) as promoted,
    ):
        with old.own("thread") as first:
            kept = put_as(old, first, 1)
            replica.ask("REPLICAOF", "NO", "ONE")
            with pytest.raises(ReplicationTimeout), old.own("thread", on_busy="take"):
                raise AssertionError("the block must not begin")
            with pytest.raises(NotOwner):  # the old primary refuses the old owner, so only one continues
                put_as(old, first, 2)
            last = put_as(promoted, first, 3)
        assert ids(promoted.list(config())) == [last, kept]
