"""Waiting for a thread: in order of arrival, with few polls, and past dead waiters.

Most tests drive the operations themselves. `Sleep` moves a clock of the test, so no result depends on the machine.
"""

from __future__ import annotations

import asyncio
import gc
import os
from hashlib import sha1
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from heapq import heappop, heappush
from itertools import count
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.factories import checkpoint, config
from tests.support.owning import THREAD, begin, owner_key, owning, server_time, waiters_key
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around, asked, noted, ran, script_of

from redis_saver._checkpoint import ownership
from redis_saver._checkpoint.ownership import Terms
from redis_saver._client import loops
from redis_saver._checkpoint import scripts
from redis_saver._engine.requests import Call, Sleep
from redis_saver.errors import DecodeError, NotOwner

pytestmark = pytest.mark.also_on(cluster="sync")

WORK = 0.02
"""Seconds for which a simulated waiter keeps the thread."""


def taken(uniform: Uniform, nonce: str, wait: str | None = None, on_busy: Any = "wait") -> Generator[Any, Any, Any]:
    terms = Terms.of(THREAD, "1d", on_busy, wait, None, None)
    return ownership.taken(uniform.saver._rules, terms, nonce)


def in_line(uniform: Uniform) -> Any:
    """This process's waiters for the thread, if any."""
    return ownership._lines.get((uniform.saver._rules.keyspace, THREAD))


class Simulation:
    """Waiters that sleep by the test's clock. Each takes the thread, keeps it for a while, and releases it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.polls, self.order, self.idle = 1000.0, Counter[int](), list[int](), list[float]()
        self._numbers, self._steps, self._released = count(), count(), 0.0
        self._waking = list[tuple[float, int, int, Uniform, Any]]()
        self._abandoned = self._waking
        monkeypatch.setattr(ownership, "time", SimpleNamespace(monotonic=lambda: self.now))
        # The server's clock is not the test's, so no waiter is late by it.
        patient = scripts.TAKE_OWNERSHIP.text.replace("LATE = 400", "LATE = 60000")
        assert "LATE = 60000" in patient
        sha = sha1(patient.encode()).hexdigest()
        monkeypatch.setattr(scripts, "TAKE_OWNERSHIP", scripts.TAKE_OWNERSHIP._replace(text=patient, sha=sha))

    def wait(self, uniform: Uniform, keeps_it_for: float = WORK) -> int:
        """Add a waiter. Return its number, which is also its nonce."""
        number = next(self._numbers)
        self._wake(self.now, number, uniform, self._turn(uniform, number, keeps_it_for))
        return number

    async def run(self, seconds: float = 600) -> None:
        """Let the waiters sleep and poll for `seconds`, or until all have had the thread."""
        end = self.now + seconds
        while self._waking and self._waking[0][0] <= end:
            self.now, _, number, uniform, waiter = heappop(self._waking)
            request = next(waiter, None)
            while request is not None and not isinstance(request, Sleep):
                self.polls[number] += 1
                reply = await asked(uniform, request)
                try:
                    request = waiter.send(reply)
                except StopIteration:
                    request = None
            if request is not None:
                self._wake(self.now + request.seconds, number, uniform, waiter)

    def abandon(self, number: int) -> None:
        """Let a waiter never wake up again."""
        self._abandoned = [entry for entry in self._waking if entry[2] == number]
        self._waking = [entry for entry in self._waking if entry[2] != number]

    def close(self) -> None:
        """End all remaining waiters."""
        for entry in (*self._waking, *self._abandoned):
            entry[4].close()

    def _wake(self, at: float, number: int, uniform: Uniform, waiter: Any) -> None:
        heappush(self._waking, (at, next(self._steps), number, uniform, waiter))

    def _turn(self, uniform: Uniform, number: int, keeps_it_for: float) -> Generator[Any, Any, None]:
        record = yield from taken(uniform, f"{number:016x}")
        self.order.append(number)
        self.idle.append(self.now - self._released)
        yield Sleep(keeps_it_for)
        self._released = self.now
        yield from ownership.release(uniform.saver._rules, THREAD, record.token)


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulation]:
    made = Simulation(monkeypatch)
    yield made
    made.close()


def of_processes(target: Target, how_many: int) -> Callable[[], Uniform]:
    """Return savers in turn, as if each were in its own process."""
    client, turns = target.client(), count()
    savers = [target.uniform(client=client) for _ in range(how_many)]
    return lambda: savers[next(turns) % how_many]


@pytest.mark.parametrize("processes", [1, 3, 20])
async def test_waiters_get_the_thread_in_order_of_arrival(
    target: Target, simulation: Simulation, processes: int
) -> None:
    saver = of_processes(target, processes)
    waiters = [simulation.wait(saver()) for _ in range(20)]
    await simulation.run()
    assert simulation.order == waiters
    assert median(simulation.idle[1:]) <= 0.02
    assert sum(simulation.idle[1:]) <= 0.3  # so 20 waiters take 0.7 s with 20 ms of work each
    assert target.keys() == []


@pytest.mark.parametrize("waiters", [1, 100])
async def test_a_hundred_waiters_of_a_process_poll_no_more_often_than_one(
    target: Target, simulation: Simulation, waiters: int
) -> None:
    uniform = target.uniform()
    simulation.wait(uniform, keeps_it_for=5)
    await simulation.run(0)
    for _ in range(waiters):
        simulation.wait(uniform)
    await simulation.run(2)
    polls = sum(simulation.polls.values())
    assert 10 < polls <= 200 + waiters + 1  # one poll for each arrival


async def test_later_waiters_of_many_processes_poll_less_often(target: Target, simulation: Simulation) -> None:
    saver = of_processes(target, 30)
    simulation.wait(target.uniform(), keeps_it_for=5)
    await simulation.run(0)
    waiters = [simulation.wait(saver()) for _ in range(30)]
    await simulation.run(2)
    polls = [simulation.polls[waiter] for waiter in waiters]
    assert polls == sorted(polls, reverse=True)
    assert sum(polls) <= 2 * 280


async def test_polls_get_rarer_the_longer_the_thread_is_owned(target: Target) -> None:
    uniform, waiting = target.uniform(), target.uniform()
    pauses = []
    async with owning(uniform):
        for seconds in (0, 4, 3600):
            token, until, since, *rest = target.raw.get(owner_key(target)).split(b" ")
            since = b"%d" % (int(since) - seconds * 1_000_000)
            target.raw.set(owner_key(target), b" ".join([token, until, since, *rest]))
            waiter = taken(waiting, "b" * 16)
            pauses.append(waiter.send(await asked(waiting, next(waiter))).seconds)
            waiter.close()
    assert pauses[0] <= pauses[1] / 2
    assert pauses[1] == pytest.approx(0.04, abs=0.02)
    assert pauses[2] == 0.1


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_dead_waiter_is_passed_over(target: Target, simulation: Simulation, processes: int) -> None:
    """Its event loop or its process ended."""
    saver = of_processes(target, processes)
    owner, gone, left = (simulation.wait(saver()) for _ in range(3))
    await simulation.run(0.001)
    simulation.abandon(gone)
    await simulation.run(0.9)
    assert simulation.order == [owner]
    target.raw.zadd(waiters_key(target), {b"alive %016x" % gone: 1})  # as if the server's clock had moved on
    await simulation.run(0.1)
    assert simulation.order == [owner, left]


async def test_a_dead_waiter_counts_for_less_than_a_second(target: Target) -> None:
    uniform = target.uniform()
    async with owning(uniform):
        saver = of_processes(target, 40)
        waiters = [taken(saver(), f"{number:016x}") for number in range(40)]
        for waiter in waiters:
            waiter.send(await asked(uniform, next(waiter)))
        milliseconds = target.raw.pttl(waiters_key(target))
    assert 0 < milliseconds <= 1000
    for waiter in waiters:
        waiter.close()
    now, alive = server_time(target), target.raw.zrange(waiters_key(target), 0, -1, withscores=True)
    ends = [score - now for member, score in alive if member.startswith(b"alive")]
    assert ends
    assert max(ends) <= 1000


async def test_a_late_waiter_gets_its_place_back(target: Target) -> None:
    one, other = target.uniform(), target.uniform()
    async with owning(target.uniform()):
        first, second = taken(one, "a" * 16), taken(other, "b" * 16)
        for uniform, waiter in ((one, first), (other, second)):
            waiter.send(await asked(uniform, next(waiter)))
        target.raw.unlink(waiters_key(target))  # as if neither had polled for long
        second.send(await asked(other, next(second)))
        first.send(await asked(one, next(first)))
    assert isinstance(second.send(await asked(other, next(second))), Sleep)
    with pytest.raises(StopIteration):
        first.send(await asked(one, next(first)))
    second.close()
    target.raw.unlink(owner_key(target))


async def test_a_poll_sent_twice_waits_once(target: Target) -> None:
    uniform, other = target.uniform(), target.uniform()
    async with owning(uniform):
        waiter = taken(other, "a" * 16)
        request = next(waiter)
        first = await asked(other, request)
        assert (await asked(other, request))[3] == first[3]
        assert target.raw.zcard(waiters_key(target)) == 2
        waiter.close()


async def test_most_polls_only_read(target: Target) -> None:
    """Otherwise each poll would be in the AOF, and wait for the disk with `appendfsync always`."""
    uniform, other = target.uniform(), target.uniform()
    async with owning(uniform):
        waiter, seen = taken(other, "a" * 16), set()
        request = next(waiter)
        for _ in range(5):
            request = waiter.send(await asked(other, request))
            seen.add(target.raw.zscore(waiters_key(target), b"alive " + b"a" * 16))
            request = next(waiter)
        waiter.close()
    assert len(seen) <= 2


async def test_only_waiters_are_ordered(target: Target) -> None:
    """`raise` and `take` get a free thread despite the queue."""
    one, other = target.uniform(), target.uniform()
    async with owning(target.uniform()):
        waiter = taken(one, "a" * 16)
        waiter.send(await asked(one, next(waiter)))
    with pytest.raises(NotOwner, match=r"other runs wait for the thread and come first .*:waiters.*on_busy='take'"):
        await ran(other, taken(other, "b" * 16, wait="0s"))
    for number, on_busy in enumerate(("raise", "take")):
        record = await ran(other, taken(other, f"{number:016x}", on_busy=on_busy))
        await ran(other, ownership.release(other.saver._rules, THREAD, record.token))
    waiter.close()


async def test_a_waiter_polls_once_more_at_its_deadline(target: Target, simulation: Simulation) -> None:
    uniform, other = target.uniform(), target.uniform()
    first, second = (taken(other, letter * 16, wait="25ms") for letter in "ab")
    async with owning(uniform, by="worker 7"):
        for waiter in (first, second):
            pause = waiter.send(await asked(other, next(waiter)))
            assert isinstance(pause, Sleep)
            assert pause.seconds <= 0.025
        simulation.now += 0.024
        pause = next(second)  # another waiter of the process is first, so this one does not poll
        assert isinstance(pause, Sleep)
        assert pause.seconds <= 0.0011
        simulation.now += 0.002
        for waiter in (first, second):
            leaving = waiter.send(await asked(other, next(waiter)))
            assert isinstance(leaving, Call)
            assert leaving.script is scripts.RELEASE_OWNERSHIP
            with pytest.raises(NotOwner, match="worker 7"):
                waiter.send(await asked(other, leaving))


async def test_a_waiter_leaves_the_queue_at_its_deadline(target: Target) -> None:
    uniform, other = target.uniform(), target.uniform()
    asked_for = noted(other.saver)
    async with AsyncExitStack() as stack:
        await begin(uniform, stack)
        with pytest.raises(NotOwner):
            await begin(other, stack, on_busy="wait", wait="0s")
        while not any(script_of(request) is scripts.RELEASE_OWNERSHIP for request, _ in asked_for):
            await asyncio.sleep(0.005)
        assert not target.raw.exists(waiters_key(target))
        assert target.raw.exists(owner_key(target))


@pytest.mark.parametrize("flavour", ["async"])
@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_cancelled_waiter_ends_if_its_client_swallows_that(target: Target) -> None:
    """As redis-py does before Python 3.12, if the cancellation arrives just as a command was sent."""
    target = target.elsewhere(flavour="async")
    client, polls = target.client(), asyncio.Event()
    waiting, send = target.uniform(client=client), client.execute_command

    async def swallowing(*command: Any, **options: Any) -> Any:
        reply = asyncio.ensure_future(send(*command, **options))
        try:
            polls.set()
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            pass
        return await reply

    async def wait() -> None:
        async with waiting.saver.own(THREAD, on_busy="wait"):
            raise AssertionError("somebody owns the thread")

    async with owning(target.uniform()):
        waiter = asyncio.ensure_future(wait())
        client.execute_command = swallowing
        await asyncio.wait_for(polls.wait(), 30)
        waiter.cancel()
        await asyncio.wait([waiter], timeout=30)
        assert waiter.cancelled()


async def test_a_cancelled_waiter_leaves_the_queue(target: Target) -> None:
    uniform, other = target.uniform(), target.uniform()
    waits, sent = asyncio.Event(), []

    def watching(request: Any) -> Any:
        sent.append(script_of(request))
        if isinstance(request, Sleep):
            waits.set()
        return (yield request)

    Around(other.saver, watching)

    async def wait() -> None:
        async with other.saver.own(THREAD, on_busy="wait"):
            pass

    async with owning(uniform):
        task = asyncio.create_task(wait())
        await waits.wait()
        assert target.raw.exists(waiters_key(target))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not in_line(other)
        while target.raw.exists(waiters_key(target)):
            await asyncio.sleep(0.005)
        assert scripts.RELEASE_OWNERSHIP in sent
        assert target.raw.exists(owner_key(target))


@pytest.mark.parametrize("flavour", ["async"])
@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_forked_child_does_not_remove_its_parents_waiter(target: Target) -> None:
    uniform, other, waits = target.uniform(), target.uniform(), asyncio.Event()

    def watching(request: Any) -> Any:
        if isinstance(request, Sleep):
            waits.set()
            yield Sleep(30)
        return (yield request)

    Around(other.saver, watching)
    async with owning(uniform):
        waiting = other.saver.own(THREAD, on_busy="wait").__aenter__()
        task = asyncio.ensure_future(waiting)
        await waits.wait()
        target.raw.persist(waiters_key(target))  # the waiter does not poll meanwhile
        queue = target.raw.zrange(waiters_key(target), 0, -1)
        if not (child := os.fork()):
            try:
                with pytest.raises(GeneratorExit):
                    waiting.throw(GeneratorExit)  # as the garbage collector does
                loops.call(other.saver.aget_tuple(config()))  # after the tasks of the background loop
                os._exit(0)
            finally:
                os._exit(1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0
        assert len(queue) == 2
        assert target.raw.zrange(waiters_key(target), 0, -1) == queue
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("flavour", ["async"])
async def test_waiters_on_other_loops_and_os_threads_take_turns(target: Target) -> None:
    uniform, inside = target.uniform(), []

    async def turn(number: int) -> None:
        async with uniform.saver.own(THREAD, on_busy="wait", wait="60s"):
            inside.append(number)
            await asyncio.sleep(0)
            inside.append(number)

    def blocking(number: int) -> None:
        with uniform.saver.own(THREAD, on_busy="wait", wait="60s"):
            inside.extend((number, number))

    with ThreadPoolExecutor(8) as pool:
        loop = asyncio.get_running_loop()
        others = [loop.run_in_executor(pool, asyncio.run, turn(number)) for number in range(4)]
        others += [loop.run_in_executor(pool, blocking, number) for number in range(4, 8)]
        await asyncio.gather(*others, *(turn(number) for number in range(8, 12)))
    assert sorted(inside) == sorted([*range(12), *range(12)])
    assert inside[::2] == inside[1::2]  # nobody else was inside meanwhile
    assert not in_line(uniform)


@pytest.mark.parametrize("flavour", ["sync"])
async def test_waiters_on_a_loop_leave_worker_threads_to_the_owner(target: Target) -> None:
    """With a blocking client, each call from a loop takes a worker thread. A waiter must not keep it."""
    saver: Any = target.uniform().saver
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    turns = []

    async def turn(number: int) -> None:
        async with saver.own(THREAD, on_busy="wait", wait="60s") as given:
            made = checkpoint({"n": number})
            await saver.aput({"configurable": {**config()["configurable"], **given["configurable"]}}, made, {}, {})
            turns.append(number)

    await asyncio.gather(*(turn(number) for number in range(5)))
    assert sorted(turns) == list(range(5))


async def test_a_deletion_removes_the_queue(target: Target) -> None:
    uniform, waiting, other = target.uniform(), target.uniform(), target.uniform()
    await other.put(config("another"), checkpoint(), {}, {})
    async with owning(uniform):
        waiter = taken(waiting, "a" * 16)
        waiter.send(await asked(waiting, next(waiter)))  # then it dies, and its place lasts for a second
        await other.delete_thread("another")
        assert target.raw.exists(waiters_key(target))
        await other.delete_thread(THREAD)
        assert target.keys() == []
        waiter.close()


DAMAGED = ([0, b"", 10], [0, b"", b"10", b"1"], [0, b"", -1, b"1"], [0, b"", 10**9, b"1"], [0, b"", 10, b""],
           [0, b"", 10, b"x"], [0, b"", 10, b"1" * 17], [0, b"", 10, 1], [0, b"", 10, None], [1, b""])  # fmt: skip


@pytest.mark.parametrize("target_name", ["fakeredis"])
@pytest.mark.parametrize("reply", DAMAGED, ids=str)
@pytest.mark.by_turns
async def test_a_damaged_reply_to_a_poll_raises_decode_error(target: Target, reply: Any) -> None:
    waiter = taken(target.uniform(), "a" * 16)
    next(waiter)
    with pytest.raises(DecodeError, match="the owner of thread"):
        waiter.send(reply)


@pytest.mark.parametrize("target_name", ["fakeredis"])
def test_garbage_collected_waiters_leave_the_line(target: Target) -> None:
    uniform = target.uniform()
    waiter = taken(uniform, "a" * 16)
    next(waiter)
    waiter.send([0, b"", 10, b"1"])
    assert in_line(uniform)
    del waiter
    gc.collect()
    assert not in_line(uniform)
