"""Concurrent operations of an AsyncRedisSaver share pipelines, and none suffers from another's failure."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha1
from typing import Any
from uuid import uuid4

import pytest
import redis.asyncio
import redis.asyncio.retry
import redis.backoff
import redis.cluster
import redis.crc
import valkey.asyncio
from tests.support.factories import config, put
from langgraph.checkpoint.base import CheckpointTuple
from sentinels import sentinel  # noqa: F401
from tests.support.servers import Cluster, Server, url_of
from tests.support.uniform import Target, Uniform

from redis_saver import AsyncRedisSaver, KeyConflict
from redis_saver._client import aio
from redis_saver._engine.requests import Batch, Call, Command
from redis_saver._engine.scripts import Script

EACH = aio.REQUESTS_PER_PIPELINE


class Relay:
    """A relay to a server on the test's own loop. It can inspect, hold, drop or cut the traffic."""

    def __init__(self, port: int) -> None:
        self.to, self.port, self.connections = port, 0, 0
        self.on_request: Callable[[bytes, Any], Awaitable[None]] = self.passing
        self.on_reply: Callable[[bytes, Any], Awaitable[None]] = self.passing
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: list[asyncio.StreamWriter] = []

    async def passing(self, data: bytes, to: asyncio.StreamWriter) -> None:
        to.write(data)
        await to.drain()

    async def swallow(self, data: bytes, to: asyncio.StreamWriter) -> None:
        """Lose all traffic."""

    async def cut(self, data: bytes, to: asyncio.StreamWriter) -> None:
        """Close the connection, and pass what others send."""
        self.on_reply = self.passing
        to.close()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in self._ends:
            each.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            there = await asyncio.open_connection("127.0.0.1", self.to, limit=1 << 24)
        except OSError:  # the server is down
            writer.close()
            return
        self._ends += (writer, there[1])
        pumps = [
            asyncio.ensure_future(self._pump(reader, there[1], "on_request")),
            asyncio.ensure_future(self._pump(there[0], writer, "on_reply")),
        ]
        self._tasks |= set(pumps)  # type: ignore[arg-type]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for each in (writer, there[1]):
            each.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hook: str) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 24):
                await getattr(self, hook)(data, writer)


class Sent:
    """Records each write of the connections of a pool."""

    def __init__(self, monkeypatch: Any) -> None:
        self.writes: list[bytes] = []
        send = redis.asyncio.connection.AbstractConnection.send_packed_command

        async def noted(connection: Any, command: Any, *args: Any, **kwargs: Any) -> None:
            self.writes.append(b"".join(command) if not isinstance(command, bytes) else command)
            await send(connection, command, *args, **kwargs)

        monkeypatch.setattr(redis.asyncio.connection.AbstractConnection, "send_packed_command", noted)

    @property
    def calls(self) -> list[int]:
        """Number of script calls per write."""
        return [count for write in self.writes if (count := len(re.findall(rb"\r\nEVAL(?:SHA)?\r\n", write)))]

    def names(self) -> list[bytes]:
        """The thread of each call, in the order sent."""
        return [name for write in self.writes for name in re.findall(rb"\{(n\d+)\}[^\r]*i", write)]


@pytest.fixture(scope="module")
def shared() -> Any:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def server(shared: Server) -> Server:
    shared.client().flushall()
    return shared


@pytest.fixture
async def relay(server: Server) -> AsyncIterator[Relay]:
    made = Relay(server.port)
    await made.start()
    yield made
    await made.stop()


@contextlib.asynccontextmanager
async def saver_on(port: int, retries: int = 0, **options: Any) -> AsyncIterator[AsyncRedisSaver]:
    retry = redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), retries)
    client = redis.asyncio.Redis(host="127.0.0.1", port=port, retry=retry, **options)
    saver = AsyncRedisSaver(client)
    await furnish(saver)
    yield saver
    await idle(saver)
    await client.aclose()


def times_out_after(saver: AsyncRedisSaver, seconds: float) -> None:
    """Set the socket timeout of a saver's present and future connections."""
    pool = saver._driver.batcher().client.connection_pool
    pool.connection_kwargs["socket_timeout"] = seconds
    for one in (*pool._available_connections, *pool._in_use_connections):
        one.socket_timeout = seconds


@pytest.fixture
async def saver(server: Server) -> AsyncIterator[AsyncRedisSaver]:
    async with saver_on(server.port) as made:
        yield made


@pytest.fixture
async def behind(relay: Relay) -> AsyncIterator[AsyncRedisSaver]:
    async with saver_on(relay.port) as made:
        yield made


async def furnish(saver: AsyncRedisSaver, threads: int = 8) -> None:
    for number in range(threads):
        await put(Uniform(saver), config(f"n{number}"), {"n": number})
    await saver.aget_tuple(config("n0"))
    await saver.aput_writes(config("n0", checkpoint_id="x"), [("n", 1)], "task")


async def idle(saver: AsyncRedisSaver) -> None:
    """Check that no connection or task is in use, and that each connection gives right answers."""
    batcher = saver._driver.batcher()
    while batcher._under_way:
        await asyncio.sleep(0)
    assert not batcher._queue
    if hasattr(batcher.client, "connection_pool"):
        pool = batcher.client.connection_pool
        assert not pool._in_use_connections
        for text in [b"%d" % number for number in range(2 * len(pool._available_connections))]:
            assert await batcher.client.echo(text) in (text, text.decode())


def read(saver: AsyncRedisSaver, *numbers: int) -> list[asyncio.Task[Any]]:
    """Reads of threads that start in the same turn of the loop."""
    return [asyncio.ensure_future(saver.aget_tuple(config(f"n{number}"))) for number in numbers]


def there(saver: AsyncRedisSaver, *numbers: int) -> asyncio.Task[Any]:
    """A batch that counts the keys of threads, and starts in the same turn, too."""
    keys = [saver._context.keyspace.keys(f"n{number}").index_key for number in numbers]
    return asyncio.ensure_future(saver._driver.arequest(Batch([Command(("EXISTS", key)) for key in keys])))


def right(found: Any, number: int) -> bool:
    return isinstance(found, CheckpointTuple) and found.checkpoint["channel_values"] == {"n": number}


async def all_right(tasks: list[asyncio.Task[Any]], *numbers: int) -> None:
    for task, number in zip(tasks, numbers, strict=True):
        assert right(await task, number), number


# -- pipelines


async def test_operations_of_one_turn_share_the_fewest_possible_pipelines(saver: Any, monkeypatch: Any) -> None:
    sent = Sent(monkeypatch)
    numbers = [number % 8 for number in range(2 * EACH + 10)]
    await all_right(read(saver, *numbers), *numbers)
    assert sent.calls == [EACH, EACH, 10]
    assert sent.names() == [b"n%d" % number for number in numbers]  # in the order of the calls


async def test_many_callers_use_few_connections(server: Server) -> None:
    async with saver_on(server.port) as saver:

        async def caller(number: int) -> None:
            for _ in range(5):
                assert right(await saver.aget_tuple(config(f"n{number}")), number)

        await asyncio.gather(*(caller(number % 8) for number in range(200)))
        assert len(saver._driver.batcher().client.connection_pool._available_connections) <= 4


async def test_a_single_operation_uses_no_pipeline(saver: Any, monkeypatch: Any) -> None:
    sent = Sent(monkeypatch)
    monkeypatch.setattr(saver._driver.batcher().client, "pipeline", None)
    assert right(await saver.aget_tuple(config("n3")), 3)
    assert sent.calls == [1]


async def test_a_large_request_travels_alone_and_pipelines_are_limited_in_size(saver: Any, monkeypatch: Any) -> None:
    async def write(size: int) -> None:
        await saver.aput_writes(config("n0", checkpoint_id="x"), [("__error__", b"x" * size)], f"task {size}")

    sent = Sent(monkeypatch)
    third = aio.BYTES_PER_PIPELINE // 3
    await asyncio.gather(*(write(third + number) for number in range(5)))
    assert sent.calls == [2, 2, 1]
    sent.writes.clear()
    await asyncio.gather(write(10), write(aio.BYTES_PER_PIPELINE), write(20))
    assert sorted(sent.calls) == [1, 2]


async def test_a_batch_shares_a_pipeline_with_other_operations(saver: Any, monkeypatch: Any) -> None:
    sent = Sent(monkeypatch)
    replies, found = await asyncio.gather(there(saver, 1, 2, 99), saver.aget_tuple(config("n4")))
    assert replies == [1, 1, 0]
    assert right(found, 4)
    assert len(sent.writes) == 1


# -- cancelled operations


@pytest.mark.parametrize("gone", [[0], [1], [2], [0, 1, 2]])
async def test_operations_cancelled_before_sending_are_not_sent(saver: Any, monkeypatch: Any, gone: list[int]) -> None:
    sent = Sent(monkeypatch)
    tasks = read(saver, 0, 1, 2)
    await asyncio.sleep(0)  # they have asked; the turn is not over
    assert not sent.writes
    for number in gone:
        tasks[number].cancel()
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [number in gone for number in range(3)]
    others = [number for number in range(3) if number not in gone]
    await all_right([tasks[number] for number in others], *others)
    assert right(await saver.aget_tuple(config("n4")), 4)
    assert sent.names() == [*(b"n%d" % number for number in others), b"n4"]


async def test_cancelling_an_unsent_batch_keeps_the_operations_after_it(saver: Any, monkeypatch: Any) -> None:
    sent = Sent(monkeypatch)
    asked, tasks = there(saver, 1, 2), read(saver, 4, 5)
    await asyncio.sleep(0)
    asked.cancel()
    await all_right(tasks, 4, 5)
    assert asked.cancelled()
    assert sent.names() == [b"n4", b"n5"]
    assert not any(b"EXISTS" in write for write in sent.writes)


@pytest.mark.parametrize("gone", [[0], [1], [2], [0, 1, 2]])
async def test_cancelling_sent_operations_keeps_the_others(behind: Any, relay: Relay, gone: list[int]) -> None:
    tasks = read(behind, 1, 2, 3)

    async def on_request(data: bytes, to: Any) -> None:
        for position in gone:
            tasks[position].cancel()
        await asyncio.wait([tasks[position] for position in gone])
        relay.on_request = relay.passing
        await relay.passing(data, to)

    relay.on_request, before = on_request, relay.connections
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [position in gone for position in range(3)]
    await all_right([task for task in tasks if not task.cancelled()], *({1, 2, 3} - {one + 1 for one in gone}))
    await all_right(read(behind, 4, 5, 6), 4, 5, 6)
    assert relay.connections <= before + 1  # none was closed; one may be new, if the first is still being read


@pytest.mark.parametrize("cut", [1, 2 / 3, 1 / 3])
async def test_cancelling_during_the_reply_keeps_the_others(behind: Any, relay: Relay, cut: float) -> None:
    tasks = read(behind, 1, 2, 3)

    async def on_reply(data: bytes, to: Any) -> None:
        relay.on_reply = relay.passing
        half = int(len(data) * cut) - 10
        await relay.passing(data[:half], to)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        await relay.passing(data[half:], to)

    relay.on_reply, before = on_reply, relay.connections
    await all_right([tasks[0], tasks[2]], 1, 3)
    assert tasks[1].cancelled()
    assert relay.connections == before


async def test_cancelled_callers_never_shift_the_replies_of_others(saver: Any) -> None:
    """Callers are cancelled at each turn of the loop that an operation takes."""
    for turns in range(40):
        tasks = read(saver, *range(8))
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        for number, one in enumerate(found):
            assert right(one, number) or (number % 3 == 0 and isinstance(one, asyncio.CancelledError)), (turns, one)


# -- refused operations


async def test_an_error_reply_reaches_only_its_caller(saver: Any, server: Server, monkeypatch: Any) -> None:
    keys = saver._context.keyspace.keys("n2")
    server.client().delete(*keys)
    server.client().set(keys.index_key, "of another program")
    tasks = read(saver, 1, 2, 3)
    wrong = asyncio.ensure_future(saver._driver.arequest(Command(("LPUSH", keys.index_key, "x"))))
    with pytest.raises(KeyConflict):
        await tasks[1]
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        await wrong
    await all_right([tasks[0], tasks[2]], 1, 3)


async def test_a_pipeline_applies_retry_on_error(server: Server, relay: Relay) -> None:
    """Redis 6.2 wraps an error inside a script, so the client cannot recognize it and does not retry."""
    refusals = [3]

    async def on_reply(data: bytes, to: Any) -> None:
        if b"-READONLY" in data:
            refusals[0] -= 1
            if not refusals[0]:
                server.client().replicaof("NO", "ONE")
        await relay.passing(data, to)

    relay.on_reply = on_reply
    async with saver_on(relay.port, retries=5, retry_on_error=[redis.exceptions.ReadOnlyError]) as saver:
        client = server.client()
        client.replicaof("127.0.0.1", 1)
        try:
            write = saver.aput_writes(config("n1", checkpoint_id="x"), [("n", 1)], "task")
            said, found = await asyncio.gather(write, saver.aget_tuple(config("n2")), return_exceptions=True)
        finally:
            client.replicaof("NO", "ONE")
        assert right(found, 2)
        if client.info("server")["redis_version"] < "7":
            assert (type(said), refusals) == (redis.exceptions.ReadOnlyError, [2])
        else:
            assert (said, refusals[0]) == (None, 0)


def script(number: int) -> Script:
    text = f"return {number}"
    return Script(f"n{number}", text, sha1(text.encode(), usedforsecurity=False).hexdigest())


async def test_each_unknown_script_is_loaded_once(saver: Any, server: Server, monkeypatch: Any) -> None:
    raw = server.client()
    raw.script_flush()
    raw.config_resetstat()
    sent = Sent(monkeypatch)
    calls = [Call(script(number % 100), saver._context.keyspace.keys(f"n{number}"), ()) for number in range(200)]
    replies = await asyncio.gather(*map(saver._driver.arequest, calls), saver.aget_tuple(config("n3")))
    assert replies[:-1] == [number % 100 for number in range(200)]
    assert right(replies[-1], 3)
    stats = raw.info("commandstats")
    assert stats["cmdstat_eval"]["calls"] == 101  # each script's text was sent once
    # Unknown scripts are sent once more, others are not.
    assert sent.calls == [EACH, EACH, EACH, 100 - EACH, EACH, 201 - 3 * EACH, 1]


async def test_a_repeatedly_flushed_script_is_sent_again(behind: Any, relay: Relay, server: Server) -> None:
    flushes = [3]

    async def on_request(data: bytes, to: Any) -> None:
        if flushes[0]:
            flushes[0] -= 1
            server.client().script_flush()
        await relay.passing(data, to)

    relay.on_request = on_request
    await all_right(read(behind, 1, 2, 3), 1, 2, 3)


# -- lost connections


async def test_a_lost_connection_loses_no_reply(behind: Any, relay: Relay) -> None:
    lost = []

    async def on_reply(data: bytes, to: Any) -> None:
        lost.append(data)
        relay.on_reply = relay.passing
        await relay.passing(data[: len(data) // 2], to)
        to.close()

    relay.on_reply = on_reply
    await all_right(read(behind, 1, 2, 3, 4), 1, 2, 3, 4)
    assert len(lost) == 1


async def test_a_request_that_breaks_its_connection_fails_alone(behind: Any, relay: Relay) -> None:
    async def cutting(data: bytes, to: Any) -> None:
        if b"{n2}" in data:
            to.close()
        else:
            await relay.passing(data, to)

    relay.on_request = cutting
    tasks = read(behind, 1, 2, 3)
    with pytest.raises(redis.ConnectionError):
        await tasks[1]
    await all_right([tasks[0], tasks[2]], 1, 3)
    relay.on_request = relay.passing


async def test_a_pipeline_that_times_out_is_sent_one_by_one(relay: Relay) -> None:
    async with saver_on(relay.port, socket_timeout=60) as saver:
        swallowed = []
        times_out_after(saver, 0.3)

        async def swallow(data: bytes, to: Any) -> None:
            swallowed.append(data)
            relay.on_reply = relay.passing
            times_out_after(saver, 60)  # for the requests sent one by one

        relay.on_reply = swallow
        await all_right(read(saver, 1, 2, 3), 1, 2, 3)
        assert len(swallowed) == 1


async def test_missing_replies_time_out_for_all_callers(relay: Relay) -> None:
    async with saver_on(relay.port, socket_timeout=60) as saver:
        times_out_after(saver, 0.2)
        relay.on_reply = relay.swallow
        found = await asyncio.gather(*read(saver, 1, 2, 3), return_exceptions=True)
        assert [type(one) for one in found] == [redis.TimeoutError] * 3
        times_out_after(saver, 60)
        relay.on_reply = relay.passing
        await all_right(read(saver, 1, 2, 3), 1, 2, 3)


async def test_a_caller_can_leave_a_hanging_server(behind: Any, relay: Relay) -> None:
    held = asyncio.Event()

    async def hold(data: bytes, to: Any) -> None:
        await held.wait()
        await relay.passing(data, to)

    relay.on_reply = hold
    tasks = read(behind, 1, 2, 3)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(tasks[1], 0.05)
    relay.on_reply = relay.passing
    await all_right(read(behind, 5, 6), 5, 6)  # other operations use another connection
    assert not tasks[0].done()
    held.set()
    await all_right([tasks[0], tasks[2]], 1, 3)


async def test_a_connection_is_free_when_all_callers_have_left(relay: Relay) -> None:
    """The pool has a single connection, and its server hangs."""
    async with saver_on(relay.port, max_connections=1, socket_timeout=None) as saver:
        relay.on_reply = relay.swallow
        tasks = [*read(saver, 1, 2, 3), asyncio.ensure_future(saver.aprune(["n1", "n2"], dry_run=True))]
        tasks.append(there(saver, 1, 2))
        await asyncio.wait(tasks, timeout=0.05)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        relay.on_reply = relay.passing
        await asyncio.wait_for(all_right(read(saver, 1, 2, 3), 1, 2, 3), 20)


async def test_a_killed_server_fails_all_operations_until_it_is_back(relay: Relay) -> None:
    own = Server()
    relay.to = own.port
    async with saver_on(relay.port) as saver:

        async def on_request(data: bytes, to: Any) -> None:
            relay.on_request = relay.passing
            own.kill()

        relay.on_request = on_request
        found = await asyncio.gather(*read(saver, 1, 2, 3), return_exceptions=True)
        assert [type(one) for one in found] == [redis.ConnectionError] * 3
        own.start()
        await furnish(saver)
        await all_right(read(saver, 1, 2, 3), 1, 2, 3)
    own.stop()


# -- pools


@pytest.mark.parametrize("kind", [redis.asyncio.BlockingConnectionPool, redis.asyncio.ConnectionPool])
@pytest.mark.parametrize("connections", [1, 2])
async def test_a_small_pool_serves_many_callers(relay: Relay, kind: Any, connections: int) -> None:
    """Some pipelines break and are sent one by one, and some callers leave while they wait for a connection."""
    pool = kind(host="127.0.0.1", port=relay.port, max_connections=connections)
    saver = AsyncRedisSaver(redis.asyncio.Redis.from_pool(pool))
    await furnish(saver)
    for broken in (False, True):
        numbers = [number % 8 for number in range(300)]
        relay.on_reply = relay.cut if broken else relay.passing
        tasks = read(saver, *numbers)
        for _ in range(4):
            await asyncio.sleep(0)
        late = read(saver, *numbers)
        for task in (*tasks[::7], *late[::7]):
            task.cancel()
        found = await asyncio.gather(*tasks, *late, return_exceptions=True)
        for number, one in zip(numbers * 2, found, strict=True):
            assert right(one, number) or isinstance(one, asyncio.CancelledError), one
        assert sum(isinstance(one, asyncio.CancelledError) for one in found) == 86
    await idle(saver)
    await saver._driver.batcher().client.aclose()


async def test_pipelines_work_with_decode_responses(server: Server) -> None:
    async with saver_on(server.port, decode_responses=True) as saver:
        await all_right(read(saver, 1, 2, 3), 1, 2, 3)


async def test_pipelines_work_with_valkey_py(relay: Relay, cluster: Cluster) -> None:
    single = valkey.asyncio.Valkey(port=relay.port)
    many = valkey.asyncio.ValkeyCluster(host="127.0.0.1", port=cluster.nodes[0].port)
    for client in (single, many):
        saver = AsyncRedisSaver(client, prefix="valkey")
        await furnish(saver, 30)
        relay.on_reply = relay.cut
        await all_right(read(saver, *range(30)), *range(30))
        await client.aclose()


async def test_pipelines_work_through_a_sentinel(sentinel: Server) -> None:
    url = f"redis+sentinel://:secret@127.0.0.1:{sentinel.port}/our%3Aservice"
    async with AsyncRedisSaver.from_conn_string(url) as saver:
        await furnish(saver, 30)
        await all_right(read(saver, *range(30)), *range(30))
        assert await saver._driver.batcher().client.client_kill_filter(_type="normal", skipme=False)
        await all_right(read(saver, *range(30)), *range(30))


# -- event loops and OS threads


async def test_requests_of_other_threads_share_one_pipeline(saver: Any, monkeypatch: Any) -> None:
    await saver._driver.arequest(Call(script(7), saver._context.keyspace.keys("n0"), ()))
    sent = Sent(monkeypatch)
    loop = asyncio.get_running_loop()
    asked = [
        asyncio.run_coroutine_threadsafe(
            saver._driver._answer_here(Call(script(7), saver._context.keyspace.keys(f"n{number}"), ())), loop
        )
        for number in range(5)
    ]
    await asyncio.gather(*map(asyncio.wrap_future, asked))
    assert sent.calls == [5]


def test_the_end_of_a_loop_leaves_no_caller_waiting(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of the loop itself are cancelled, others are not. The next loop starts afresh."""
    no_retry = redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0)
    saver = AsyncRedisSaver(redis.asyncio.Redis(port=server.port, socket_timeout=2, retry=no_retry))
    settings = saver._driver.given.connection_pool.connection_kwargs
    outcomes: list[type[BaseException]] = []

    def ask() -> None:
        try:
            saver.get_tuple(config("n1"))
        except BaseException as error:
            outcomes.append(type(error))

    outside = threading.Thread(target=ask, daemon=True)

    async def main() -> None:
        relay = Relay(server.port)
        await relay.start()
        settings["port"] = relay.port
        await furnish(saver)
        asked: list[bytes] = []
        names = {b"{n1}", b"{n2}", b"{n3}"}
        all_asked = asyncio.Event()

        async def hold(data: bytes, to: Any) -> None:
            asked.append(data)
            if all(any(name in data for data in asked) for name in names):
                all_asked.set()

        await asyncio.to_thread(saver.get_tuple, config("n1"))  # connects
        relay.on_request = hold
        outside.start()
        read(saver, 2, 3)
        await all_asked.wait()

    asyncio.run(main())
    outside.join(20)
    assert outcomes == [redis.TimeoutError]  # its own: the relay ended with its loop
    settings["port"] = server.port
    monkeypatch.setattr(aio, "OWN_AFTER", 0.0)

    async def again() -> None:
        await all_right(read(saver, 1, 2, 3), 1, 2, 3)
        await idle(saver)
        await saver._driver.batcher().client.aclose()

    asyncio.run(again())


# -- clusters


@pytest.fixture(scope="module")
def cluster() -> Any:
    made = Cluster()
    yield made
    for node in made.nodes:
        node.stop()


@pytest.fixture
async def clustered(cluster: Cluster) -> AsyncIterator[AsyncRedisSaver]:
    client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port)
    saver = AsyncRedisSaver(client, prefix="batched")
    await furnish(saver, 30)
    await all_right(read(saver, *range(30)), *range(30))
    yield saver
    await client.aclose()


async def test_a_cluster_gets_one_pipeline_per_node(clustered: Any, monkeypatch: Any) -> None:
    sent = Sent(monkeypatch)
    await all_right(read(clustered, *range(30)), *range(30))
    assert len(sent.calls) == 3
    assert sum(sent.calls) == 30


async def test_a_new_cluster_client_serves_many_callers_at_once(clustered: Any, cluster: Cluster) -> None:
    async with redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.nodes[1].port) as client:
        cold = AsyncRedisSaver(client, prefix="batched")
        await all_right(read(cold, *range(30)), *range(30))


async def test_a_pipeline_follows_a_moving_slot(clustered: Any, cluster: Cluster) -> None:
    """The slot answers ASK during the move and MOVED after it. Other requests of the pipeline are unaffected."""
    keys = clustered._context.keyspace.keys("n7")
    slot = redis.crc.key_slot(keys.index_key)
    clients = [node.client() for node in cluster.nodes]
    names = [client.execute_command("CLUSTER", "MYID").decode() for client in clients]
    source = next(i for i, client in enumerate(clients) if client.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot))
    target = (source + 1) % 3
    clients[target].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
    clients[source].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
    held = clients[source].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
    assert set(keys) <= set(held)
    where = ("127.0.0.1", cluster.nodes[target].port)
    clients[source].execute_command("MIGRATE", *where, "", 0, 5000, "KEYS", *held)
    await all_right(read(clustered, *range(30)), *range(30))
    # With an even number of connections, redis-py sends ASKING and the command on different ones.
    node = clustered._driver.batcher().client.get_node(*where)
    await asyncio.gather(*(node.execute_command("PING") for _ in range(len(node._connections) // 2 * 2 + 2)))
    assert len(node._connections) % 2 == 0
    await all_right(read(clustered, 7), 7)
    clients[target].script_flush()
    await all_right(read(clustered, 7), 7)
    await clustered.adelete_for_runs(["no such run"])
    assert len([one async for one in clustered.alist(None)]) >= 30
    await all_right(read(clustered, *range(30)), *range(30))
    for position in (target, source, 3 - source - target):
        clients[position].execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[target])
    batcher = clustered._driver.batcher()
    client = batcher.client
    assert client.get_node_from_key(keys.index_key).port == cluster.nodes[source].port  # has not learned of the move
    assert await batcher._carried(batcher.link.ask(keys.index_key, ("EXISTS", keys.index_key))) == 1
    await all_right(read(clustered, *range(30)), *range(30))
    await all_right(read(clustered, *range(30)), *range(30))


@contextlib.asynccontextmanager
async def behind_relays(cluster: Cluster, kind: Any, **options: Any) -> AsyncIterator[tuple[Any, list[Relay]]]:
    """A cluster's client that reaches each node through a relay."""
    relays = [Relay(node.port) for node in cluster.nodes]
    for each in relays:
        await each.start()
    ports = {each.to: each.port for each in relays}
    client = kind(host="127.0.0.1", port=relays[0].port, address_remap=lambda at: (at[0], ports[at[1]]), **options)
    yield client, relays
    await client.aclose()
    for each in relays:
        await each.stop()


@pytest.mark.parametrize("kind", [redis.asyncio.RedisCluster, valkey.asyncio.ValkeyCluster])
async def test_the_few_connections_of_a_cluster_come_back(cluster: Cluster, kind: Any) -> None:
    """valkey-py's client loses those of cancelled calls, and those that could not connect."""
    numbers = range(30)
    async with behind_relays(cluster, kind, max_connections=2, socket_timeout=None) as (client, relays):
        saver = AsyncRedisSaver(client, prefix="few", cluster_timeout=0)
        await furnish(saver, 30)
        for _ in range(3):
            held = asyncio.Event()

            async def hold(data: bytes, to: Any, held: asyncio.Event = held) -> None:
                held.set()

            for each in relays:
                each.on_reply = hold
            tasks = read(saver, *numbers)
            await held.wait()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for each in relays:
                each.on_reply = each.passing
        await all_right(read(saver, *numbers), *numbers)
        for each in relays:
            await each.stop()
        for _ in range(4):
            failed = await asyncio.gather(*read(saver, *numbers), return_exceptions=True)
            assert not any(right(each, number) for each, number in zip(failed, numbers))
        for each in relays:
            await each.start()
        await asyncio.gather(*read(saver, *numbers), return_exceptions=True)
        await all_right(read(saver, *numbers), *numbers)


async def test_a_hanging_node_delays_only_its_own_requests(cluster: Cluster, clustered: Any, monkeypatch: Any) -> None:
    held = asyncio.Event()
    batcher = clustered._driver.batcher()
    node = batcher.link.node_of(clustered._context.keyspace.keys("n0").index_key)
    run = type(node).execute_pipeline

    async def hanging(self: Any, commands: Any) -> Any:
        if self == node:
            await held.wait()
        return await run(self, commands)

    monkeypatch.setattr(type(node), "execute_pipeline", hanging)
    tasks = read(clustered, *range(30))
    keys = {number: clustered._context.keyspace.keys(f"n{number}").index_key for number in range(30)}
    elsewhere = [number for number, key in keys.items() if batcher.link.node_of(key) != node]
    assert 0 < len(elsewhere) < 29
    await all_right([tasks[number] for number in elsewhere], *elsewhere)
    assert not any(tasks[number].done() for number in {*keys} - {*elsewhere})
    held.set()
    await all_right(tasks, *range(30))


async def test_a_scan_waits_for_a_free_connection() -> None:
    """A client refuses requests beyond its connections, so the saver queues all requests, SCAN too."""
    target = Target("redis", "async", url_of("redis"), f"gate-{uuid4().hex}")
    saver = target.uniform(client=target.client(max_connections=2)).saver
    where = await put(Uniform(saver), config(), {"n": 1})

    async def threads() -> list[str]:
        return [info.thread_id async for info in saver.athreads()]

    answers = await asyncio.gather(*(threads() for _ in range(6)), *(saver.aget_tuple(where) for _ in range(6)))
    assert answers[:6] == [["thread"]] * 6
    assert all(answers[6:])
    await target.close()
