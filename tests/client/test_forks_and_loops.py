"""Savers across forks, and on many event loops and OS threads at once, which begin and end at any time."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.retry
import redis.sentinel
import valkey
import valkey.asyncio
from forking import KINDS, checkpoint, config
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from redis.backoff import NoBackoff
from tests.support.seeds import seed, targets
from sentinels import sentinel  # noqa: F401
from tests.support.servers import url_of
from tests.support.uniform import Uniform

from redis_saver import AsyncRedisSaver, AsyncTieredSaver, RedisSaver, TieredSaver
from redis_saver._common import forks
from redis_saver._client import aio, loops
from redis_saver._client.clients import connect, twin
from redis_saver._engine.requests import Command
from redis_saver.errors import Closed, LoopEnded

PROGRAM = Path(__file__).with_name("forking.py")
DEADLINE = 20


def port(target: str = "redis") -> int:
    return int(url_of(target).rsplit(":", 1)[1])


@pytest.fixture
def prefix() -> str:
    return f"f{random.getrandbits(64):x}"


def write(saver: Any, thread: str = "t", value: Any = 1, number: int = 1) -> None:
    given, versions = checkpoint(number, value)
    saver.put(config(thread), given, {}, versions)


async def awrite(saver: Any, thread: str = "t", value: Any = 1, number: int = 1) -> None:
    given, versions = checkpoint(number, value)
    await saver.aput(config(thread), given, {}, versions)


def value(found: Any) -> Any:
    return found.checkpoint["channel_values"]["n"]


def in_child(act: Callable[[], object]) -> str:
    """Run a function in a forked child; return what it returns, as text. Fail if it fails or exceeds the deadline."""
    told, tells = os.pipe()
    if not (pid := os.fork()):
        signal.alarm(DEADLINE)
        try:
            os.write(tells, f"done{act()}".encode())
        except BaseException as error:
            os.write(tells, repr(error).encode()[:1000])
        finally:
            os._exit(0)
    os.close(tells)
    said = os.read(told, 2000).decode()
    os.close(told)
    os.waitpid(pid, 0)
    assert said.startswith("done"), said or "the child took too long"
    return said.removeprefix("done")


# -- forks


def made(kind: str, prefix: str) -> Any:
    asynchronous = kind.startswith("async")
    return (AsyncRedisSaver if asynchronous else RedisSaver)(
        connect(url_of(kind.partition(" ")[2]), asynchronous=asynchronous), prefix=prefix
    )


@pytest.fixture(
    params=[f"{kind} {server}" for kind in ("sync", "async") for server in ("redis62", "cluster", "fakeredis")]
)
def used(request: pytest.FixtureRequest, prefix: str) -> Iterator[Any]:
    """A saver after a blocking call. The async saver then has a background loop."""
    saver = made(request.param, prefix)
    write(saver)
    yield saver
    if isinstance(saver, RedisSaver):
        saver._driver.close()


def test_a_child_and_its_parent_both_use_the_saver(used: Any) -> None:
    def child() -> None:
        assert value(used.get_tuple(config())) == 1
        assert asyncio.run(used.aget_tuple(config())) is not None
        write(used, "of the child", 2)
        assert [one.thread_id for one in used.threads("of")] == ["of the child"]
        in_child(lambda: write(used, "of its child", 3))

    in_child(child)
    assert value(used.get_tuple(config())) == 1
    if "fakeredis" not in type(getattr(used._driver, "client", None) or used._driver.given).__module__:
        assert value(used.get_tuple(config("of its child"))) == 3


def test_a_fork_survives_locks_held_by_other_threads(used: Any) -> None:
    """Nothing releases the locks of pools, clients and savers in the child."""
    holders: list[Any] = [used._context.chunk_cache._threads._lock]
    if isinstance(used, RedisSaver):
        holders += [used._driver._lock]
        client = used._driver.client
        for owner in (client, getattr(client, "connection_pool", None), getattr(client, "nodes_manager", None)):
            holders += [
                lock for name in ("_lock", "_fork_lock", "_initialization_lock") if (lock := getattr(owner, name, None))
            ]
    else:
        holders += [used._driver._lock, loops._background._lock]
    ready, release = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in holders:
            lock.acquire()
        ready.set()
        release.wait(3 * DEADLINE)
        for lock in holders:
            lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    assert ready.wait(DEADLINE)
    try:
        in_child(lambda: write(used, "u"))
    finally:
        release.set()
        holder.join()
    write(used, "v")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_no_connection_is_shared_by_two_processes(kind: str, prefix: str) -> None:
    saver = made(f"{kind} redis", prefix)
    write(saver)
    saver.set_thread_ttl("t", None)

    async def on_its_loop() -> Any:
        return await saver._driver.batcher().answer(Command(("CLIENT", "ID")))

    def connection() -> int:
        if kind == "sync":
            return int(saver._driver.client.execute_command("CLIENT", "ID"))
        return int(loops.call(on_its_loop()))

    before = connection()
    assert int(in_child(connection)) != before
    assert connection() == before  # it is still open


def test_a_saver_works_in_a_child_forked_within_a_running_loop(prefix: str) -> None:
    async def main() -> None:
        saver = made("async redis", prefix)
        await awrite(saver)

        def child() -> None:
            assert value(saver.get_tuple(config())) == 1
            assert value(asyncio.run(saver.aget_tuple(config()))) == 1

        in_child(child)
        # The child must not close this loop, whose selector both share.
        assert value(await asyncio.wait_for(saver.aget_tuple(config()), DEADLINE)) == 1

    asyncio.run(main())


def test_a_child_continues_an_iterator_of_its_parent(prefix: str) -> None:
    saver = made("sync cluster", prefix)
    for number in range(40):
        write(saver, f"t{number}")
    threads = saver.threads()
    first = next(threads).thread_id

    def child() -> None:
        assert {first, *(one.thread_id for one in threads)} == {f"t{number}" for number in range(40)}

    in_child(child)
    assert len({first, *(one.thread_id for one in threads)}) == 40


def test_a_child_closes_only_its_own_connections(prefix: str) -> None:
    with RedisSaver.from_conn_string(url_of("redis"), prefix=prefix) as saver:
        write(saver)
        client = saver._driver.client

        def child() -> None:
            write(saver, "u")
            saver._driver.close()

        in_child(child)
        assert client.connection_pool._available_connections[0]._sock is not None
        write(saver, "v")
        assert saver._driver.client is client


# -- twins of clients


def client_of(name: str) -> Any:
    host, of_cluster = {"host": "127.0.0.1", "port": port()}, {"host": "127.0.0.1", "port": port("cluster")}
    of_redis: dict[str, Any] = {"db": 2, "decode_responses": True, "protocol": 3, "client_name": "mine"}
    is_async = name.startswith("async ")
    ours, theirs = (redis.asyncio, valkey.asyncio) if is_async else (redis, valkey)
    embedded = fakeredis.FakeAsyncRedis if is_async else fakeredis.FakeRedis
    makers: dict[str, Callable[[], Any]] = {
        "redis": lambda: ours.Redis(**host, **of_redis),
        "blocking pool": lambda: ours.Redis.from_pool(
            ours.BlockingConnectionPool(**host, max_connections=3, timeout=7)
        ),
        "cluster": lambda: ours.RedisCluster(
            **of_cluster, socket_timeout=3, retry=ours.retry.Retry(NoBackoff(), 7), reinitialize_steps=9
        ),
        "valkey": lambda: theirs.Valkey(**host, db=2),
        "valkey cluster": lambda: theirs.ValkeyCluster(**of_cluster),
        "fakeredis": lambda: embedded(server=fakeredis.FakeServer()),
    }
    return makers[name.removeprefix("async ")]()


@pytest.mark.parametrize("flavour", ["", "async "])
@pytest.mark.parametrize("kind", ["redis", "blocking pool", "cluster", "valkey", "valkey cluster", "fakeredis"])
def test_a_twin_has_the_same_settings_and_shares_nothing(flavour: str, kind: str, prefix: str) -> None:
    one = client_of(flavour + kind)
    two = twin(one)
    assert type(two) is type(one)
    if kind == "cluster":
        assert (two.retry, two.reinitialize_steps) == (one.retry, 9)
    if hasattr(one, "connection_pool"):
        mine, theirs = one.connection_pool, two.connection_pool
        assert type(mine) is type(theirs)
        assert mine is not theirs
        for name in ("host", "port", "db", "decode_responses", "protocol", "client_name", "server"):
            assert mine.connection_kwargs.get(name) == theirs.connection_kwargs.get(name)
        for name in ("max_connections", "timeout"):
            assert getattr(mine, name, None) == getattr(theirs, name, None)
    if flavour:

        async def both() -> None:
            async with one, two:
                await awrite(AsyncRedisSaver(one, prefix=prefix), "t", 5)
                assert value(await AsyncRedisSaver(two, prefix=prefix).aget_tuple(config())) == 5

        asyncio.run(both())
    else:
        write(RedisSaver(one, prefix=prefix), "t", 5)
        assert value(RedisSaver(two, prefix=prefix).get_tuple(config())) == 5
        one.close()
        two.close()


def test_a_sentinel_client_has_a_twin(sentinel: Any, prefix: str) -> None:  # noqa: F811
    nodes = [("127.0.0.1", sentinel.port)]
    one, aone = (
        module.sentinel.Sentinel(nodes, password="secret").master_for("our:service")
        for module in (redis, redis.asyncio)
    )
    saver, asaver = RedisSaver(one, prefix=prefix), AsyncRedisSaver(aone, prefix=prefix)
    write(saver)
    assert value(asaver.get_tuple(config())) == 1
    for each in (saver, asaver):
        assert in_child(lambda each=each: value(each.get_tuple(config()))) == "1"
    one.close()


class Odd(redis.asyncio.Redis):  # type: ignore[type-arg]
    """A user's subclass of a client."""

    def __init__(self, name: str) -> None:
        super().__init__(host="127.0.0.1", port=port())


def test_a_client_without_a_twin_raises_a_clear_error(prefix: str) -> None:
    async def main() -> None:
        client = Odd("mine")
        saver = AsyncRedisSaver(client, prefix=prefix)
        await awrite(saver)
        with pytest.raises(TypeError, match="client=Odd: it belongs to another event loop.*from_conn_string"):
            await asyncio.to_thread(saver.get_tuple, config())
        assert await saver.aget_tuple(config()) is not None
        await client.aclose()

    asyncio.run(main())


# -- event loops


@pytest.mark.parametrize(("server", "turns"), [("redis", 14), ("cluster", 4), ("fakeredis", 4)])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_many_short_event_loops_work_at_once(server: str, turns: int, prefix: str) -> None:
    saver = made(f"async {server}", prefix)

    def loops_of_one(number: int) -> None:
        async def some(turn: int) -> None:
            await awrite(saver, f"{number}", [number, turn], turn)
            assert value(await saver.aget_tuple(config(f"{number}"))) == [number, turn]

        for turn in range(1, turns + 1):
            asyncio.run(asyncio.wait_for(some(turn), DEADLINE))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(loops_of_one, range(8), timeout=3 * DEADLINE))


def test_the_first_loop_and_lasting_loops_get_their_own_connections(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "OWN_AFTER", 1000.0)
    client = connect(url_of("redis"), asynchronous=True)
    saver = AsyncRedisSaver(client, prefix=prefix)
    own = saver._driver

    async def asks() -> Any:
        await saver.aget_tuple(config())
        batcher = own.batcher()
        return None if batcher is None else batcher.client

    assert asyncio.run(asks()) is client
    assert asyncio.run(asks()) is None

    async def lasts() -> tuple[Any, Any]:
        first = await asks()
        monkeypatch.setattr(aio, "OWN_AFTER", 0.0)
        return first, await asks()

    first, second = asyncio.run(lasts())
    assert first is None
    assert second is not None
    assert second is not client
    assert [loops.is_background(loop) for loop in own._bound] == [True]  # the other clients are closed and forgotten


def test_the_loop_on_which_a_saver_is_built_is_its_first(prefix: str) -> None:
    async def main() -> None:
        client = connect(url_of("redis"), asynchronous=True)
        saver = AsyncRedisSaver(client, prefix=prefix)
        await asyncio.to_thread(asyncio.run, saver.aget_tuple(config()))
        await saver.aget_tuple(config())
        batcher = saver._driver.batcher()
        assert batcher is not None
        assert batcher.client is client

    asyncio.run(main())


async def connected(raw: Any, name: str) -> int:
    """Wait up to 20 s for a client name's connections to end. Return the number that is left."""
    for _ in range(1000):
        if not (count := sum(one["name"] == name for one in raw.client_list())):
            break
        gc.collect()
        await asyncio.sleep(0.02)
    return count


async def test_ended_loops_and_collected_savers_leave_no_connection(prefix: str) -> None:
    saver = AsyncRedisSaver(connect(url_of("redis"), asynchronous=True, client_name=prefix), prefix=prefix)

    async def asks() -> None:
        await asyncio.gather(*(saver.aget_tuple(config(str(number))) for number in range(5)))  # noqa: F821 - see `del`

    await asks()
    await asyncio.to_thread(asyncio.run, asks())
    await asyncio.to_thread(saver.get_tuple, config())
    raw = redis.Redis(port=port(), decode_responses=True)
    assert sum(one["name"] == prefix for one in raw.client_list()) >= 2
    await saver._driver.aclose()
    assert await connected(raw, prefix) == 0
    with pytest.raises(Closed):
        await asyncio.to_thread(saver.get_tuple, config())
    del saver, asks
    assert await connected(raw, prefix) == 0
    raw.close()


async def test_close_does_not_interrupt_calls_on_other_loops(prefix: str) -> None:
    """One loop leaves its `async with` block. Calls under way get their answers, later calls raise `Closed`."""
    failed = list[BaseException]()
    async with AsyncRedisSaver.from_conn_string(url_of("redis"), prefix=prefix) as saver:
        await awrite(saver)

        def others(run: Callable[[], Any]) -> None:
            try:
                while True:
                    assert value(run()) == 1
            except BaseException as error:
                failed.append(error)

        async def lasts() -> Any:
            while True:
                await saver.aget_tuple(config())

        asking = [
            threading.Thread(target=others, args=(run,))
            for run in (
                lambda: saver.get_tuple(config()),
                lambda: asyncio.run(saver.aget_tuple(config())),
                lambda: asyncio.run(lasts()),
            )
        ]
        for each in asking:
            each.start()
        await asyncio.sleep(0.1)
    for each in asking:
        await asyncio.to_thread(each.join, DEADLINE)
    assert [type(error) for error in failed] == [Closed] * 3


async def test_cancelling_on_another_loop_affects_only_that_caller(prefix: str) -> None:
    saver = AsyncRedisSaver(connect(url_of("redis"), asynchronous=True), prefix=prefix)
    await awrite(saver)

    async def elsewhere() -> list[Any]:
        asked = [asyncio.ensure_future(saver.aget_tuple(config())) for _ in range(20)]
        await asyncio.sleep(0)
        for one in asked[::2]:
            one.cancel()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = await asyncio.to_thread(asyncio.run, elsewhere())
    assert [isinstance(one, asyncio.CancelledError) for one in answers] == [True, False] * 10
    assert {value(one) for one in answers[1::2]} == {1}
    await saver._driver.aclose()


# -- over two tiers


def write_behind(kind: str, prefix: str) -> Any:
    hot, over = made("sync redis" if kind == "tiered" else "async redis", prefix), InMemorySaver()
    return (TieredSaver if kind == "tiered" else AsyncTieredSaver)(hot, over, mode="write-behind", flush_interval=0.05)


@pytest.mark.parametrize("kind", ["tiered", "atiered"])
def test_flushers_start_with_a_childs_first_call(kind: str, prefix: str) -> None:
    saver = write_behind(kind, prefix)
    cold = saver.cold

    def close() -> None:
        assert (saver.close() if kind == "tiered" else asyncio.run(saver.aclose())) == 0

    def running() -> bool:
        return bool(saver._flusher._threads)

    def child() -> None:
        assert not running()
        write(saver, "of the child", 2)
        assert running()
        while cold.get_tuple(config("of the child")) is None:
            time.sleep(0.01)
        close()

    write(saver)
    while cold.get_tuple(config()) is None:
        time.sleep(0.01)
    in_child(child)
    write(saver, "u")
    close()
    assert cold.get_tuple(config("u")) is not None

    def closed_child() -> None:
        with pytest.raises(Closed):
            saver.get_tuple(config())
        assert not running()

    in_child(closed_child)


@pytest.mark.parametrize("kind", ["tiered", "atiered"])
async def test_a_nested_with_block_keeps_the_flusher_running(kind: str, prefix: str) -> None:
    saver = write_behind(kind, prefix)
    uniform = Uniform(saver)

    async def within(act: Callable[[], Any]) -> None:
        if kind == "atiered":
            async with saver:
                await act()
        else:
            with saver:
                await act()

    async def inner() -> None:
        await within(lambda: asyncio.sleep(0))
        given, versions = checkpoint(1, 1)
        await uniform.put(config(), given, {}, versions)
        while saver.cold.get_tuple(config()) is None:
            await asyncio.sleep(0.01)

    await within(inner)
    assert saver._flusher._stopped.is_set()


async def test_a_cold_saver_is_called_on_its_own_loop(prefix: str, tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "db")) as cold:
        saver = AsyncTieredSaver(made("async redis", prefix), cold)
        await awrite(saver)
        await asyncio.to_thread(write, saver, "u", 2)
        assert value(await asyncio.to_thread(asyncio.run, saver.aget_tuple(config("u")))) == 2
        assert value(await cold.aget_tuple(config("u"))) == 2

        def child() -> None:
            with pytest.raises(LoopEnded, match="forked"):
                saver.get_tuple(config())

        in_child(child)
        await saver.hot._driver.aclose()


def test_a_cold_saver_whose_loop_ended_raises_a_clear_error(prefix: str, tmp_path: Path) -> None:
    async def make() -> Any:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "db")) as cold:
            saver = AsyncTieredSaver(made("async redis", prefix), cold)
            await awrite(saver)
        return saver

    saver = asyncio.run(make())
    with pytest.raises(LoopEnded, match="ended"):
        saver.get_tuple(config())
    with pytest.raises(LoopEnded, match="ended"):
        asyncio.run(saver.aget_tuple(config()))


async def test_callers_waiting_for_a_loop_that_ends_get_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.run` cancels its tasks, while a loop that only stops abandons them."""
    monkeypatch.setattr(loops, "CHECK_INTERVAL", 0.05)
    for stops in (False, True):
        started: asyncio.AbstractEventLoop
        ready, end = threading.Event(), threading.Event()

        async def serve() -> None:
            nonlocal started
            started = asyncio.get_running_loop()
            ready.set()
            while not end.is_set():
                await asyncio.sleep(0.01)

        loop = asyncio.new_event_loop()
        run = (lambda: loop.run_until_complete(serve())) if stops else (lambda: asyncio.run(serve()))
        serving = threading.Thread(target=run)
        serving.start()
        ready.wait()
        waiting = [
            asyncio.ensure_future(loops.acall(asyncio.sleep(60), started)),
            asyncio.ensure_future(asyncio.to_thread(lambda: loops.call(asyncio.sleep(60), started))),
        ]
        await asyncio.sleep(0.05)
        end.set()
        answers = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), DEADLINE)
        assert [type(one) for one in answers] == [LoopEnded, LoopEnded]
        serving.join()
        loop.run_until_complete if stops else None
        loop.close()


# -- histories


@pytest.mark.random
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("target", "count"),
    [
        *((target, 2) for target in targets("redis62", never=["fakeredis"])),
        *(
            pytest.param(target, 42, marks=pytest.mark.slow)
            for target in targets("redis", "cluster", "valkey", never=["fakeredis"])
        ),
    ],
)
def test_random_histories_of_loops_and_forks(kind: str, target: str, count: int, database: str) -> None:
    """No call hangs or gets another's answer, and -X dev shows no warning at the end."""
    if target == "valkey" and kind.endswith("tiered"):
        target = "redis62"
    command = [
        sys.executable, "-X", "dev", "-W", "ignore:This process:DeprecationWarning", str(PROGRAM), url_of(target), kind, str(seed()),
        str(count), "--postgres", database,
    ]  # fmt: skip
    timeout = 240 if count == 2 else 7000
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert (ended.returncode, ended.stderr) == (0, ""), f"repeat with: {' '.join(command)}\n{ended.stderr}"


def test_collected_savers_are_not_watched_for_forks() -> None:
    gc.collect()
    before = len(forks._watched)
    for _ in range(50):
        RedisSaver(redis.Redis())
    gc.collect()
    assert len(forks._watched) <= before + 2


@pytest.mark.parametrize("package", ["gevent", "eventlet"])
def test_with_greenlets_for_threads_blocking_savers_work_and_asyncio_is_refused(package: str, prefix: str) -> None:
    if find_spec(package) is None:  # an import here would add fork hooks to all tests of this process
        pytest.skip(f"{package} is not installed")
    program = str(Path(__file__).with_name("greenlets.py"))
    ran = subprocess.run(
        [sys.executable, program, package, url_of("redis"), prefix],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.stdout == "done\n", ran.stderr


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_a_background_loop_that_cannot_run_ends_with_the_error() -> None:
    """It does not try again and again."""
    loop = asyncio.new_event_loop()
    with pytest.raises(RuntimeError, match="another loop is running"):
        loops._Background()._run(loop, asyncio.Event())
    assert loop.is_closed()
