"""Random histories of savers over two tiers, compared with InMemorySaver: answers agree despite evictions and failures.

An accident may cut an operation at any request to either tier: before the server receives it, or before the reply
arrives. After a kill or an error, the operation may or may not have happened. So there are several models, and each
answer keeps only those that agree with it. At least one must. Or another process acts at that moment, and either of
the two may have been first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
import redis
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import INTERRUPT

from redis_saver._common.names import Keyspace
from redis_saver._engine.requests import Sleep
from redis_saver._tiered import context, flushing
from redis_saver._tiered.requests import ColdCall
from tests.support.factories import checkpoint, config
from tests.support.tiering import Clock, Tiers, mark_new, plain
from tests.support.uniform import Uniform
from tests.support.wrappers import DriverWrapper

THREADS, NAMESPACES = ("a", "b"), ("", "sub")
MOMENTS = (flushing.FLUSH_LEASE, context.WRITER_GONE, 3_700_000, 45 * 24 * 3_600_000)
"""Milliseconds until something expires: a flush or fill lease, a writer's time, a thread, its write intents."""


class Killed(BaseException):
    """Ends a process. Code under test must not catch it."""


class Accident(NamedTuple):
    """An accident that strikes an operation."""

    kind: str
    """`kill`: the process dies. `hot`, `cold`: this tier fails from then on. `meanwhile`: another process acts."""
    at: int
    """Number of the request that it strikes. If a tier fails, only requests to that tier count."""
    is_late: bool
    """True if the server carries the request out, but the reply is lost."""


class Process:
    """A saver as a simulated process. After a kill none of its requests arrive, not even those of its clean-up."""

    def __init__(self, uniform: Uniform, tiers: Tiers) -> None:
        self.uniform, self.saver, self._tiers = uniform, uniform.saver, tiers
        self.accident: Accident | None = None
        self.meanwhile: Any = None
        self.has_struck, self._is_dead, self._asked = False, False, 0
        self._pass_by(self.saver.hot, lambda request: "hot")
        self._pass_by(self.saver, lambda request: "cold" if isinstance(request, ColdCall) else "")

    def _pass_by(self, owner: Any, tier_of: Callable[[Any], str]) -> None:
        process = self

        class PassingBy(DriverWrapper):
            def request(self, request: Any) -> Any:
                return _finish(self.pass_by(request))

            async def arequest(self, request: Any) -> Any:
                return await self.pass_by(request)

            async def pass_by(self, request: Any) -> Any:
                if isinstance(request, Sleep):
                    return process._wait()
                if process._meets_it(tier_of(request), is_late=False):
                    await process.meanwhile()
                is_async = process.uniform.native_async
                answer = await self.wrapped.arequest(request) if is_async else self.wrapped.request(request)
                if process._meets_it(tier_of(request), is_late=True):
                    await process.meanwhile()
                return answer

        owner._driver = PassingBy(owner._driver)

    def _wait(self) -> None:
        """Skip to the end of a lease, as only a dead process can make this one wait."""
        self._tiers.later(flushing.FLUSH_LEASE)

    def meets(self, accident: Accident | None, meanwhile: Any = None) -> None:
        """Set the accident that strikes from now on."""
        self.accident, self.meanwhile, self.has_struck, self._asked = accident, meanwhile, False, 0

    def _meets_it(self, tier: str, *, is_late: bool) -> bool:
        """True if another process acts now, before or after a request."""
        if self._is_dead:
            raise Killed
        accident = self.accident
        if not accident or not tier or (accident.kind in ("hot", "cold") and tier != accident.kind):
            return False
        self._asked += not is_late
        if self._asked < accident.at or (self._asked == accident.at and is_late < accident.is_late):
            return False
        self.has_struck = True
        if accident.kind == "meanwhile":
            self.accident = None
            return True
        if accident.kind == "kill":
            self._is_dead = True
            raise Killed
        raise {"hot": redis.ConnectionError, "cold": psycopg.OperationalError}[tier]("on purpose")

    async def run(self, operation: Any) -> Any:
        driver = self.saver._driver
        return await driver.arun(operation) if self.uniform.native_async else driver.run(operation)


def _finish(coroutine: Any) -> Any:
    """Run a coroutine of a sync saver, which never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError


class Model(InMemorySaver):
    """An InMemorySaver with the missing operations, which can be copied and compared."""

    has_happened = False
    """True if the operation under way has happened."""

    def copy(self) -> Model:
        made = Model()
        made.has_happened = self.has_happened
        for thread, by_ns in self.storage.items():
            for ns, stored in by_ns.items():
                made.storage[thread][ns].update(stored)
        for place, stored in self.writes.items():
            made.writes[place].update(stored)
        made.blobs.update(self.blobs)
        return made

    def state(self) -> Any:
        stored = {(thread, ns): one for thread, by_ns in self.storage.items() for ns, one in by_ns.items() if one}
        return stored, {place: one for place, one in self.writes.items() if one}, self.has_happened

    def places(self, thread: str, ns: str) -> list[str]:
        return sorted(self.storage.get(thread, {}).get(ns, {}))

    def forget(self, thread: str, ns: str, which: str) -> None:
        del self.storage[thread][ns][which]
        self.writes.pop((thread, ns, which), None)

    def delete_for_runs(self, run_ids: Any) -> None:
        for one in list(self.list(None)):
            if one.metadata.get("run_id") in run_ids:
                self.forget(**_place(one))

    def prune(self, thread_ids: Any) -> None:
        for thread in thread_ids:
            for ns in list(self.storage.get(thread, {})):
                *older, newest = self.places(thread, ns) or [None]
                for which in older:
                    self.forget(thread, ns, which)
                if newest:
                    self.storage[thread][ns][newest] = (*self.storage[thread][ns][newest][:2], None)

    def copy_thread(self, source: str, target: str) -> None:
        for _ in self.steps_of_copy(source, target):
            pass

    def steps_of_copy(self, source: str, target: str) -> Iterator[None]:
        """The steps of a copy in cold: delete the target, then each checkpoint, oldest first, with its writes.

        Special writes of a task are a step of their own.
        """
        found = sorted(self.list(config(source, None)), key=lambda one: one.checkpoint["id"])
        if not found:
            return
        self.delete_thread(target)
        yield
        self.blobs.update({(target, *key[1:]): one for key, one in list(self.blobs.items()) if key[0] == source})
        for one in found:
            ns, which = one.config["configurable"]["checkpoint_ns"], one.checkpoint["id"]
            self.storage[target][ns][which] = self.storage[source][ns][which]
            yield
            writes = self.writes.get((source, ns, which), {})
            for key in sorted(writes, key=lambda key: (writes[key][3], key[0], key[1] < 0)):
                self.writes[target, ns, which][key] = writes[key]
                yield

    def stages(self, method: str, given: Any) -> Iterator[Model]:
        """Every state that an operation may leave if it is cut."""
        made = self.copy()
        if method == "copy_thread":
            for _ in made.steps_of_copy(*given):
                yield made.copy()
        elif method == "prune":
            for thread in given[0]:
                made.prune([thread])
                yield made.copy()
        else:
            getattr(made, method)(*given)
            yield made


def _place(one: Any) -> dict[str, str]:
    found = one.config["configurable"]
    return {"thread": found["thread_id"], "ns": found["checkpoint_ns"], "which": found["checkpoint_id"]}


def normal(answer: Any) -> Any:
    if isinstance(answer, list):
        return sorted((plain(one) for one in answer), key=lambda one: (one[1]["id"], one[0]["thread_id"]))
    return answer if isinstance(answer, dict) else plain(answer)


def short(answer: Any) -> Any:
    """A checkpoint by its id and writes, to read in the output."""
    if isinstance(answer, list):
        return [short(one) for one in answer]
    if not hasattr(answer, "checkpoint"):
        return answer
    parent = answer.parent_config and answer.parent_config["configurable"]["checkpoint_id"]
    return answer.config["configurable"], list(answer.checkpoint["channel_values"]), parent, answer.pending_writes


class Models:
    """All states that agree with the acknowledged writes and the answers so far."""

    def __init__(self) -> None:
        self.all = [Model()]

    def happened(self, method: str, given: Any) -> Any:
        answers = [getattr(one, method)(*given) for one in self.all]
        self._are(self.all)
        return answers[0]

    def may_have_happened(self, method: str, given: Any) -> None:
        self._are([*self.all, *(stage for one in self.all for stage in one.stages(method, given))])

    def is_under_way(self, method: str, given: Any) -> None:
        """Begin an operation that happens once, now or later. A half copy or prune starts again from there."""
        begun = [stage for one in self.all for stage in one.stages(method, given)]
        for one in begun:
            one.has_happened = method not in ("copy_thread", "prune")
        self._are([*self.all, *begun])

    def is_over(self, method: str, given: Any) -> None:
        """Acknowledge the operation that was under way."""
        for one in self.all:
            if not one.has_happened:
                getattr(one, method)(*given)
            one.has_happened = False
        self._are(self.all)

    def _are(self, found: list[Model]) -> None:
        states: list[Any] = []
        self.all = []
        for one in found:
            if (state := one.state()) not in states:
                states.append(state)
                self.all.append(one)

    def answered(self, answer: Any, ask: Callable[[Model], Any], before: list[Model]) -> None:
        """Keep the models that agree with an answer, or with `before`: the states before a concurrent operation."""
        answers = [(one, ask(one)) for one in (*self.all, *before)]
        agreeing = [one for one, its in answers if normal(its) == normal(answer)]
        assert agreeing, f"{short(answer)} is none of {[short(its) for _, its in answers]}"
        if not before:
            self.all = agreeing

    def forget_orphans(self, thread: str, ns: str, which: str) -> None:
        """Drop writes of a checkpoint that was never stored. Nothing can read them."""
        for one in self.all:
            if which not in one.places(thread, ns):
                one.writes.pop((thread, ns, which), None)
        self._are(self.all)

    def have(self, place: dict[str, Any]) -> Any:
        """The checkpoint, if all models have it."""
        found = [one.get_tuple(place) for one in self.all]
        return found[0] if all(found) else None


class History:
    """Operations of some processes, one after the other.

    Args:
        tiers: The servers.
        seed: Seed of the operations.
        processes: The settings of their savers. The first process lives to the end.
        history: As `cold_history`.
    """

    def __init__(self, tiers: Tiers, seed: int, processes: list[dict[str, Any]], history: str = "all") -> None:
        self.tiers, self.settings, self.is_coalescing = tiers, processes, history == "latest"
        self.seed = seed
        self.chance, self.models = random.Random(f"{seed} {history}"), Models()
        hour = timedelta(hours=1)
        ttl: Any = self.chance.choice([None, hour, hour, {"default_ttl": 60, "refresh_on_read": True}])
        self.hot = {"ttl": ttl}
        self.is_behind = any("mode" in settings for settings in processes)
        self.made: list[dict[str, Any]] = []
        self.keyspace, self.number, self.is_meanwhile = Keyspace(tiers.target.prefix), 0, False
        self.puts, self.place = 0, ("", "")

    async def begin(self) -> None:
        self.cold = await self.tiers.cold()
        self.processes = [await self.start(settings) for settings in self.settings]
        for thread in THREADS[: self.seed % 3]:
            mark_new(self.tiers, thread)

    async def start(self, settings: dict[str, Any]) -> Process:
        return Process(await self.tiers.uniform(hot=self.hot, cold=self.cold, **settings), self.tiers)

    async def run(self, length: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flushing, "time", Clock(self.tiers))  # a late process finds that out by its own clock, too
            await self.begin()
            for self.number in range(1, length + 1):
                await self.step()
                if len(self.models.all) > 6:
                    await self.compare(self.chance.choice(self.processes).uniform)
            await self.end()

    async def step(self) -> None:
        chance = self.chance
        whats = ["put"] * 6 + ["ahead"] * 3 + ["writes"] * 5 + ["get"] * 5 + ["old"] * 2 + ["list"] * 2 + ["deltas"]
        whats += ["evict"] * 2 + ["later"] * 2 + ["empty", "delete", "copy", "prune", "runs"]
        what = chance.choice(whats + ["turn", "turn", "turn", "flush"] * self.is_behind)
        at = chance.choices(range(len(self.processes)), [3] * (len(self.processes) - 1) + [1])[0]
        await self.act(what, at, chance.choice(THREADS), chance.choice(["", "", "", "sub"]))

    async def act(self, what: str, at: int, thread: str, ns: str) -> None:
        chance, self.place = self.chance, (thread, ns)
        if what in ("evict", "later", "empty", "turn", "flush"):
            print(self.number, "process", at, what, thread)
        if what in ("evict", "later", "empty"):
            getattr(self, what)(thread)
        elif what == "flush":
            self.tiers.later(flushing.FLUSH_LEASE)
            assert await self.processes[at].uniform.flush(timeout=30) == 0
        elif what == "turn":
            await self.turn(at, thread)
        elif what == "get":
            await self.read(at, "get_tuple", config(thread, ns))
        elif what == "old" and (where := self.some_place(thread, ns)):
            await self.read(at, "get_tuple", where)
        elif what == "list" and not self.is_coalescing:
            await self.read(at, "list", chance.choice([None, config(thread, None), config(thread, ns)]))
        elif what == "deltas" and not self.is_coalescing:
            await self.read(at, "get_delta_channel_history", config=config(thread, ns), channels=["x", "y"])
        elif what == "ahead":
            await self.ahead(at, thread, ns)
        elif what in ("put", "writes", "delete", "copy", "prune", "runs"):
            act = await getattr(self, what)(at, thread, ns)
            if act:
                await self.do(at, *act)

    # -- accidents on the servers

    def evict(self, thread: str) -> None:
        """Evict anything of a clean thread, and leases that have an expiry."""
        keys, raw = self.keyspace.tier_keys(thread), self.tiers.target.raw
        if not raw.exists(keys.dirty):
            self.tiers.evict(*self.chance.choice([("index", "data"), ("index",), ("data",)]), thread=thread)
        if self.chance.random() < 0.3:
            for key in (keys.lease, keys.flush):
                if raw.pttl(key) > 0:
                    raw.delete(key)

    def later(self, _: str) -> None:
        self.tiers.later(self.chance.choice(MOMENTS))

    def empty(self, _: str) -> None:
        """Redis restarts empty, while cold has everything."""
        keys = self.tiers.target.keys()
        if keys and not any(key.endswith(b":dirty") for key in keys):
            self.tiers.target.raw.delete(*keys)

    # -- operations

    def accident(self) -> Accident | None:
        if self.is_meanwhile or self.chance.random() > 0.5:
            return None
        kind = self.chance.choice(["kill", "kill", "kill", "hot", "cold", "meanwhile", "meanwhile"])
        return Accident(kind, self.chance.randrange(1, self.chance.choice([4, 4, 12])), self.chance.random() < 0.5)

    async def met(
        self, at: int, act: Callable[[Process], Any], begins: Callable[[], None] = lambda: None, but: Any = ()
    ) -> tuple[Any, str | None]:
        """Run something that may meet an accident. Return its answer and None, or None and the accident.

        `begins` is called before another process acts. That process does none of the operations in `but`.
        """
        process, accident, place = self.processes[at], self.accident(), self.place

        async def meanwhile() -> None:
            begins()
            self.is_meanwhile = True
            other = self.chance.choice([each for each in range(len(self.processes)) if each != at])
            whats = ["put", "writes", "writes", "get", "get", "get", "list", "delete", "turn"]
            what = self.chance.choice([each for each in whats if each not in but])
            await self.act(what, other, *(place if self.chance.random() < 0.8 else ("a", "sub")))
            self.is_meanwhile = False

        process.meets(accident, meanwhile)
        try:
            answer = await act(process)
            print("  answered", short(answer), accident or "")
            return answer, None
        except Killed:
            pass
        except (psycopg.OperationalError, redis.ConnectionError) as error:
            assert accident and process.has_struck
            assert isinstance(error, redis.ConnectionError) == (accident.kind == "hot")
        finally:
            process.accident = None
            if accident and accident.kind == "kill":  # like a supervisor
                self.processes[at] = await self.start(self.settings[at])
        assert accident
        print("  met", accident)
        return None, "late " * accident.is_late + accident.kind

    async def read(self, at: int, method: str, *given: Any, **named: Any) -> None:
        print(self.number, "process", at, method, given, named)
        before: list[Model] = []
        act = lambda process: getattr(process.uniform, method)(*given, **named)  # noqa: E731
        answer, accident = await self.met(at, act, lambda: before.extend(one.copy() for one in self.models.all))
        if accident is None:
            self.answered(answer, method, *given, before=before, **named)

    def answered(self, answer: Any, method: str, *given: Any, before: list[Model] | None = None, **named: Any) -> None:
        def ask(one: Model) -> Any:
            found = getattr(one, method)(*given, **named)
            return list(found) if method == "list" else found

        self.models.answered(answer, ask, before or [])

    async def turn(self, at: int, thread: str) -> None:
        """Flush a thread once."""
        at_once = self.chance.random() < 0.5
        flush = lambda process: process.run(flushing.flush(process.saver._context, thread, at_once=at_once))  # noqa: E731
        done, _ = await self.met(at, flush)
        assert not done or not done.failed or self.processes[at].has_struck, done

    async def do(self, at: int, method: str, given: Any) -> None:
        """Do an operation. If it is not acknowledged, repeat it or leave it."""
        while True:
            print(self.number, "process", at, method, *given)
            is_met = list[bool]()

            def begins() -> None:
                is_met.append(True)
                self.models.is_under_way(method, given)

            # A checkpoint whose parent is removed at that moment may lack values, as with cold alone.
            but = {"put": ("delete",), "put_writes": (), "copy_thread": ("put", "writes", "delete")}
            answer, accident = await self.met(
                at, lambda process: getattr(process.uniform, method)(*given), begins, but.get(method, ("put",))
            )
            if is_met:
                self.models.is_over(method, given)
                if self.chance.random() < 0.6:
                    await self.compare(self.chance.choice(self.processes).uniform)
                return
            if accident is None:
                happened = self.models.happened(method, given)
                assert (None if method == "prune" else answer) == happened  # another test checks the counts of prune
                return
            is_bypassing = self.settings[at].get("on_hot_error") == "bypass"
            if method not in ("put", "put_writes") or not (accident == "cold" or (accident == "hot" and is_bypassing)):
                self.models.may_have_happened(method, given)
            if self.is_coalescing and method == "copy_thread":
                continue  # copies of coalesced threads have unpredictable checkpoints
            if self.chance.random() < 0.6:
                await self.compare(self.chance.choice(self.processes).uniform)
            if self.chance.random() < 0.5:
                return
            at = self.chance.randrange(len(self.processes))

    def some_place(self, thread: str, ns: str) -> dict[str, Any] | None:
        """A place whose checkpoint was put, or may have been."""
        found = [one for one in self.made[-30:] if one == config(thread, ns, one["configurable"]["checkpoint_id"])]
        if self.is_coalescing:  # older checkpoints may be gone
            newest = {tuple(one.places(thread, ns)[-1:]) for one in self.models.all}
            return config(thread, ns, *min(newest)) if len(newest) == 1 and newest != {()} else None
        return self.chance.choice(found[-8:]) if found else None

    async def put(self, at: int, thread: str, ns: str) -> Any:
        self.puts += 1
        chance, number = self.chance, self.puts
        parent = self.some_place(thread, ns) if chance.random() < 0.9 else None
        found = self.models.have(parent) if parent else None
        if chance.random() < 0.6:  # graphs read first
            await self.read(at, "get_tuple", (found and parent) or config(thread, ns))
            found = self.models.have(parent) if parent else None
        before = found.checkpoint if found else {"channel_versions": {}, "channel_values": {}}
        new = {chance.choice("xyz"): f"{number:032}.1" for _ in range(2)}
        values = {channel: value for channel, value in before["channel_values"].items() if channel not in new}
        values |= {channel: [version, "v" * 900] for channel, version in new.items() if chance.random() < 0.9}
        one = checkpoint(values, {**before["channel_versions"], **new})
        self.made.append(config(thread, ns, one["id"]))
        metadata = {"step": number, "run_id": f"run-{chance.randrange(8)}"}
        return "put", (parent if found else config(thread, ns), one, metadata, new)

    async def writes(self, _: int, thread: str, ns: str) -> Any:
        where = self.some_place(thread, ns)
        if where not in self.made or not self.models.have(where):
            return None  # no writes to copied checkpoints: the paths that order them are not copied
        return "put_writes", (where, *self.some_writes())

    def some_writes(self) -> tuple[Any, ...]:
        chance = self.chance
        task, is_special = f"task-{chance.randrange(3)}", chance.random() < 0.4
        channels, count = ([INTERRUPT, "__error__"], 1) if is_special else (["x", "y"], chance.choice([1, 1, 3]))
        writes = [(chance.choice(channels), [self.number, index]) for index in range(count)]
        return writes, task, f"path-{task}"

    async def ahead(self, at: int, thread: str, ns: str) -> None:
        """Send pending writes before their checkpoint, while hot loses threads, and others read and flush."""
        chance, (method, given) = self.chance, await self.put(at, thread, ns)
        coming, parent = config(thread, ns, given[1]["id"]), given[0]
        for _ in range(chance.randrange(1, 4)):
            await self.do(chance.randrange(len(self.processes)), "put_writes", (coming, *self.some_writes()))
            whats = ["evict", "evict", "empty", "later", "get", "get", "list"]
            whats += ["turn", "flush", "flush"] * self.is_behind
            for what in chance.choices(whats, k=chance.randrange(4)):
                await self.act(what, chance.randrange(len(self.processes)), thread, ns)
        self.place = thread, ns
        if "checkpoint_id" not in parent["configurable"] or self.models.have(parent):
            await self.do(at, method, given)
        self.models.forget_orphans(thread, ns, given[1]["id"])

    async def delete(self, _: int, thread: str, __: str) -> Any:
        return "delete_thread", (thread,)

    async def copy(self, _: int, thread: str, __: str) -> Any:
        target = "b" if thread == "a" else "a"
        self.place = target, ""
        self.made = [one for one in self.made if one["configurable"]["thread_id"] != target]
        return "copy_thread", (thread, target)

    async def prune(self, _: int, thread: str, __: str) -> Any:
        return None if self.is_coalescing else ("prune", (self.chance.choice([[thread], list(THREADS)]),))

    async def runs(self, *_: Any) -> Any:
        return None if self.is_coalescing else ("delete_for_runs", ([f"run-{self.chance.randrange(8)}"],))

    # -- the end

    async def compare(self, uniform: Uniform) -> None:
        for thread in THREADS:
            for ns in NAMESPACES:
                self.answered(await uniform.get_tuple(config(thread, ns)), "get_tuple", config(thread, ns))
            if not self.is_coalescing:
                self.answered(await uniform.list(config(thread, None)), "list", config(thread, None))

    async def end(self) -> None:
        """After the last flush cold has everything, and no write intent is left."""
        self.tiers.later(context.WRITER_GONE)
        uniforms = [process.uniform for process in self.processes]
        assert await uniforms[0].flush(timeout=30) == 0
        for uniform in (*uniforms, await self.tiers.uniform(), await self.tiers.cold_uniform()):
            await self.compare(uniform)
        left = {key.rpartition(b":")[2] for key in self.tiers.target.keys()}
        assert not left & {b"dirty", b"intents"}
