"""Pending writes and values share chunks, whatever happens to the writes on their way."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest
from redis.exceptions import ConnectionError as LostConnection
from tests.support.counting import Traffic, load_scripts
from tests.support.factories import config
from tests.support.raw import check_chunks, check_sound, size
from tests.support.seeds import seeds_and_slow
from tests.support.sharing import TaskInfo, fields_of, key_of, name, text
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around, asked, script_of

from redis_saver._checkpoint import scripts, writing
from redis_saver._common.names import Keyspace
from redis_saver._engine.requests import Sleep

ONE = pytest.mark.parametrize("target_name", ["redis"])


class Way:
    """The way of pending writes to the server."""

    def __init__(self, uniform: Uniform) -> None:
        self.is_cut = self.is_slow = False
        self.begun = threading.Event()
        """Set when slow writes were sent. They arrive after a put that comes later."""
        self.lost: list[Any] = []
        """Requests that did not arrive."""
        self.proven: list[bool] = []
        """For each put, whether it named the thread's tag."""
        self.pauses = 0
        """How often a put waited for pending writes."""
        Around(uniform.saver, self.around)

    def around(self, request: Any) -> Any:
        self.pauses += isinstance(request, Sleep)
        if script_of(request) is scripts.PUT:
            self.proven.append(request.arguments[8] != b"")
        if self.is_cut and script_of(request) is scripts.PUT_WRITES:
            self.lost.append(request)
            raise LostConnection("the request is on its way for ever")
        while self.is_slow and script_of(request) is scripts.PUT_WRITES:
            self.begun.set()
            self.is_slow = len(self.proven) < 2
            yield Sleep(0.01)
        return (yield request)


@ONE
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_long_result_is_sent_and_stored_once(target: Target, at_once: bool) -> None:
    """Also if the put does not wait for the answer to the writes, as LangGraph does not."""
    load_scripts(target.raw)
    uniform, told, result = target.uniform(), TaskInfo(target), text(1, 100_000)
    way = Way(uniform)
    await told.put(uniform, 1, v=[text(0, 900)] * 3)
    traffic, stored = Traffic(target), size(fields_of(target))
    writes = uniform.put_writes(config(checkpoint_id=name(1)), [("v", [result])], "task")
    put = told.put(uniform, 2, 1, v=[text(0, 900), text(0, 900), result])
    if at_once and target.flavour == "async":
        await asyncio.gather(writes, put)
    else:
        await writes
        await put
    assert traffic.take()[0] < 115_000
    assert size(fields_of(target)) - stored < 110_000
    assert way.proven == [False, True]
    await told.put(uniform, 3, 2, v=[text(0, 900), result, text(3, 900)])
    assert way.proven[2]
    await told.check(uniform)


@ONE
async def test_a_put_that_overtakes_writes_waits_for_them(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_POLLS", 5000)
    load_scripts(target.raw)
    uniform, told, result = target.uniform(), TaskInfo(target), text(1, 100_000)
    way = Way(uniform)
    await told.put(uniform, 1, v=[text(0, 900)] * 3)
    traffic, way.is_slow = Traffic(target), True
    writes = config(checkpoint_id=name(1)), [("v", [result])], "task"
    put = told.put(uniform, 2, 1, v=[text(0, 900), text(0, 900), result])
    if target.flavour == "async":
        await asyncio.gather(uniform.put_writes(*writes), put)
    else:
        thread = threading.Thread(target=uniform.saver.put_writes, args=writes)
        thread.start()
        way.begun.wait()
        await put
        thread.join()
    assert way.proven == [False, True, True]  # the second one waits
    assert traffic.take()[0] < 115_000
    await told.check(uniform)


@pytest.mark.by_turns
@ONE
@pytest.mark.parametrize("fate", ["lost", "late", "forgotten", "removed"])
async def test_a_put_does_not_rely_on_writes_that_are_not_there(target: Target, fate: str) -> None:
    uniform, other, told, result = target.uniform(), target.uniform(), TaskInfo(target), text(1, 9000)
    way, where = Way(uniform), config(checkpoint_id=name(1))
    await told.put(uniform, 1, v=["a" * 900] * 3)
    keys = Keyspace(target.prefix).keys("thread")
    dumps = [target.raw.dump(key) for key in keys]
    way.is_cut = fate in ("lost", "late")
    try:
        await uniform.put_writes(where, [("v", [result])], "task")
    except LostConnection:
        assert way.is_cut
    if fate == "forgotten":  # as in a failover
        for key, dump in zip(keys, dumps, strict=True):
            target.raw.restore(key, 0, dump, replace=True)
    if fate == "removed":
        await told.put(other, 2, 1, v=["b" * 900] * 3)
        await other.prune(["thread"], keep_last=1)
        told.forget(lambda number: number < 2)
    way.is_cut, newest = False, max(told.values)
    for number in range(newest + 1, newest + 4):
        await told.put(uniform, number, newest, v=["a" * 900, result, *["c" * 900] * number])
        if fate == "late" and way.lost:
            await asked(target.uniform(), way.lost.pop())
    assert way.pauses == 0  # for writes whose call has ended
    await told.check(uniform, target.uniform())
    check_sound(target)


@pytest.mark.by_turns
@pytest.mark.random
@ONE
@pytest.mark.parametrize("seed", seeds_and_slow(range(6), range(6, 60)))
async def test_random_fates_of_writes_change_no_value(target: Target, seed: int) -> None:
    chance, told = random.Random(seed), TaskInfo(target)
    savers = [target.uniform(cache_bytes=size) for size in (2**26, 2**26, 0)]
    ways, values = list(map(Way, savers)), {"v": [text(0)], "w": {"a": text(1, 3000)}}
    await told.put(savers[0], 1, run="run 1", **values)
    number = 1
    for step in range(25):
        which = chance.choice([0, 0, 0, 1, 2])
        uniform, way, where = savers[which], ways[which], config(checkpoint_id=name(number))
        if chance.random() < 0.3:
            await uniform.get_tuple(config())
        more = [text((seed, step, n), chance.choice([100, 700, 2500, 9000])) for n in range(chance.choice([1, 1, 3]))]
        fate = chance.choice(["arrive"] * 4 + ["lost", "forgotten", "pruned", "deleted runs"])
        keys = Keyspace(target.prefix).keys("thread")
        dumps = [target.raw.dump(key) for key in keys]
        way.is_cut = fate == "lost"
        for task in range(chance.choice([1, 1, 2])):
            try:
                await uniform.put_writes(where, [("v", more), ("w", {"b": more[0]})], f"task {task}")
            except LostConnection:
                assert way.is_cut
        way.is_cut = False
        if fate == "forgotten":
            for key, dump in zip(keys, dumps, strict=True):
                if dump is None:  # its only run was deleted
                    target.raw.delete(key)
                else:
                    target.raw.restore(key, 0, dump, replace=True)
        if fate == "pruned":
            await savers[chance.choice([0, 1])].prune(["thread"], keep_last=1)
            told.forget(lambda each, newest=max(told.values, default=0): each < newest)
        if fate == "deleted runs":
            await savers[1].delete_for_runs([f"run {number}"], force=True)
            told.forget(lambda each, gone=number: each == gone)
            continue
        values = {"v": [*values["v"], *more][-chance.choice([9, 30]) :], "w": {**values["w"], f"k{step % 3}": more[0]}}
        parent = number if number in told.values else None
        await told.put(uniform, number + 1, parent, run=f"run {number + 1}", **values)
        number += 1
        told.same(await target.uniform().get_tuple(config()))
    await told.check(*savers)
    check_chunks(target)
    assert target.raw.exists(key_of(target))
