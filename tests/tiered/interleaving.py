"""Interleaved operations of several processes over two tiers, one request at a time. Some wait until a lease expires.

Graphs write a thread one operation after the other, except deletions and the pending writes of parallel tasks. Any
process may send each operation. Some threads are older than the tiers. Any number of other processes read and flush.
So both tiers must have at the end what was written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiered_operations as operations
from histories import NAMESPACES, THREADS, Model, normal, short
from langgraph.checkpoint.serde.types import INTERRUPT

from redis_saver import ThreadBusy
from redis_saver._checkpoint import listing
from redis_saver._common import names
from redis_saver._common.names import Keyspace
from redis_saver._engine.requests import Call, Sleep
from redis_saver._tiered import context, flushing, scripts
from redis_saver._tiered.requests import ColdCall, SingleFlight, TimeLimited
from redis_saver.errors import RedisSaverError
from tests.support.factories import checkpoint, config
from tests.support.tiering import Clock, Tiers, mark_new, plain

TAKES, SETTLES, KILLED = f"hot {scripts.CLAIM.name}", f"hot {scripts.ACK.name}", object()
"""First and last request of a flusher, and the result of an operation that wrote nothing."""
MAX_WAITED = 4
"""Maximum number of leases that an operation waits for, as a writer to cold must end in `context.WRITER_GONE`."""


class UnderWay:
    """An operation and its current request."""

    def __init__(self, saver: Any, what: str, operation: Any, then: Callable[[Any], None], thread: str) -> None:
        self.saver, self.what, self.then, self.thread = saver, what, then, thread
        self.waited, self.sleeps, self.is_waiting, self.is_outdated = 0, 0, False, False
        self._operations = [operation]
        self._request: Any = None
        self._go_on(operation.send, None)

    @property
    def asks(self) -> str:
        """The current request, to read in the output."""
        request = self._request
        if isinstance(request, Call):
            return f"hot {request.script.name}"
        if isinstance(request, ColdCall):
            return f"{'flushes' if self._is_flush(request) else 'ColdCall'} {request.method}"
        return type(request).__name__

    @property
    def is_fenced_in_cold(self) -> bool:
        """True if it is a flusher about to write to cold, and its claim has expired."""
        return bool(self.waited) and isinstance(self._request, ColdCall) and self._is_flush(self._request)

    def _is_flush(self, call: ColdCall) -> bool:
        """True for a write of a flusher. Reads and copies carry, too."""
        carries = call.method in ("get_tuple", "list", "get_delta_channel_history") or self.what.startswith("copy")
        return call.is_packed and not carries

    def step(self) -> bool:
        """Carry out the current request. Return True if it was the last."""
        request, self.is_waiting = self._request, isinstance(self._request, Sleep)
        if isinstance(request, (SingleFlight, TimeLimited)):
            self._operations.append(request.make())
            return self._go_on(self._operations[-1].send, None)
        if self.asks == TAKES:
            self.waited, self.is_outdated = 0, False
        try:
            reply = None if self.is_waiting else self.saver._driver.request(request)
        except RedisSaverError as error:
            return self._go_on(self._operations[-1].throw, error)
        return self._go_on(self._operations[-1].send, reply)

    def _go_on(self, go: Any, given: Any) -> bool:
        while True:
            try:
                self._request = go(given)
            except StopIteration as end:
                self._operations.pop()
                if not self._operations:
                    self.then(end.value)
                    return True
                go, given = self._operations[-1].send, end.value
            except RedisSaverError as error:
                self._operations.pop()
                if not self._operations:
                    raise
                go, given = self._operations[-1].throw, error
            else:
                return False


class Interleaving:
    """Concurrent operations of some processes.

    Args:
        tiers: The servers.
        seed: Seed of the operations and of their order.
        processes: The settings of their savers. Those in write-behind also flush.
        history: As `cold_history`.
        loses: Allow late writes to cold that hot cannot repair. Then only the newest checkpoints are compared.
    """

    def __init__(
        self, tiers: Tiers, seed: int, processes: list[dict[str, Any]], history: str, *, loses: bool = False
    ) -> None:
        self.tiers, self.settings, self.is_coalescing = tiers, processes, history == "latest"
        self.chance, self.model = random.Random(f"{seed} {history}"), Model()
        self.marks, self.keyspace, self.number = random.Random(seed), Keyspace(tiers.target.prefix), 0
        self.running: list[UnderWay] = []
        self.loses, self.lost = loses, set[str]()
        """Threads whose older checkpoints cold may have lost or restored."""
        self.writing, self.changes = dict.fromkeys(THREADS, 0), dict.fromkeys(THREADS, 0)

    async def run(self, length: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flushing, "time", Clock(self.tiers))
            cold = await self.tiers.cold()
            self.alone = self.tiers.target.uniform().saver
            self.savers = [await self.tiers.saver(cold=cold, **settings) for settings in self.settings]
            for thread in THREADS:
                self.mark(thread)
            for _ in range(length):
                self.go_on()
            while self.running:
                self.step(self.chance.choice(self.running))
            self.check_all()

    def go_on(self) -> None:
        chance, awake = self.chance.random(), [one for one in self.running if not one.sleeps]
        thread = self.chance.choice([*THREADS, THREADS[0], THREADS[0]])
        for one in self.running:
            one.sleeps = max(0, one.sleeps - 1)
        if chance < 0.25 or not awake:
            self.begin(thread)
        elif chance < 0.27:
            self.later()
        elif chance < 0.28:
            self.forget(thread)
        elif chance < 0.34:
            between_tiers = [one for one in awake if one.asks.endswith("_through")]
            taken = [one for one in awake if one.what.startswith("flush") and one.asks != TAKES]
            one = self.chance.choice(self.chance.choice([between_tiers, taken, taken]) or awake)
            one.sleeps = self.chance.choice([5, 30, 100])
            if one in taken and self.chance.random() < 0.5:
                self.later()
        else:
            one = self.chance.choice(awake)
            for _ in range(self.chance.choice([1, 2, 5, 20])):
                if one in self.running:
                    self.step(one)

    def say(self, *what: Any) -> None:
        self.number += 1
        print(self.number, *what)

    def step(self, one: UnderWay) -> None:
        """Let an operation carry out a request. If all operations wait, time passes."""
        is_late = one.is_fenced_in_cold
        self.changes[one.thread] += is_late  # a reader of cold may see it at that moment
        if is_late and not self.is_repaired(one):  # the README says what a late write may lose
            if self.loses and self.is_newest_in_hot(one.thread):
                self.lost.add(one.thread)
            else:
                self.say("killed", one.what)
                self.running.remove(one)
                one.then(KILLED)
        while one in self.running:
            asks = one.asks
            self.say("step", one.what, asks)
            try:
                if one.step():
                    self.running.remove(one)
            except ThreadBusy:
                self.running.remove(one)
                one.then(KILLED)
            if not is_late or asks == SETTLES:  # until then hot must keep everything
                break
        if self.running and all(each.is_waiting for each in self.running):
            self.later(is_sure=True)

    def is_repaired(self, late: UnderWay) -> bool:
        """True if a flusher repairs a late write: from hot, including a deletion, while no writer bypasses hot."""
        keys, raw = self.keyspace.tier_keys(late.thread), self.tiers.target.raw
        if late.is_outdated or (raw.exists(keys.intents) and raw.hexists(keys.flush, "deleted")):
            return False
        return self.is_all_in_hot(late.thread) and not self.is_being(late.thread, "delete_for_runs")

    def is_all_in_hot(self, thread: str) -> bool:
        """True if hot has the whole thread, or neither tier has any of it."""
        keys, raw = self.keyspace.tier_keys(thread), self.tiers.target.raw
        is_whole = raw.hexists(keys.data_key, "@complete") or raw.zscore(keys.dirty, "d")
        return bool(is_whole or not (self.is_being(thread, "put") or list(self.model.list(config(thread, None)))))

    def is_newest_in_hot(self, thread: str) -> bool:
        newest = [
            found.config["configurable"] for ns in NAMESPACES if (found := self.model.get_tuple(config(thread, ns)))
        ]
        members = [names.checkpoint(one["checkpoint_ns"], one["checkpoint_id"]) for one in newest]
        data_key = self.keyspace.keys(thread).data_key
        return bool(members) and all(self.tiers.target.raw.hmget(data_key, members))

    def later(self, *, is_sure: bool = False) -> None:
        """All leases expire."""
        if is_sure or all(one.waited < MAX_WAITED for one in self.running):
            self.say("later")
            self.tiers.later(flushing.FLUSH_LEASE)
            for one in self.running:
                one.waited += 1

    def forget(self, thread: str) -> None:
        """Evict a clean thread from hot, unless a flusher or a deletion of runs is at work on it."""
        keys, raw = self.keyspace.tier_keys(thread), self.tiers.target.raw
        is_in_cold = raw.hexists(keys.data_key, "@cold_backed") and not raw.exists(keys.dirty)
        if is_in_cold and not self.is_being(thread, "flush", "delete_for_runs"):
            self.say("forget", thread)
            self.tiers.evict(thread=thread)

    def is_being(self, thread: str, *what: str) -> bool:
        return any(one.thread == thread and one.what.startswith(what) for one in self.running)

    # -- operations

    def begin(self, thread: str) -> None:
        kinds = ["before"] * 2 + ["put"] * 6 + ["writes"] * 4 + ["delete", "delete_run"]
        kinds += ["get"] * 3 + ["list"] + ["flush"] * 6
        getattr(self, self.chance.choice(kinds))(thread)

    def start(
        self, what: str, thread: str, make: Callable[[Any], Any], then: Callable[[Any], None], saver: Any = None
    ) -> None:
        saver = saver or self.chance.choice(self.savers)
        self.say("begin", what, thread, "by process", self.savers.index(saver))
        self.running.append(UnderWay(saver, f"{what} {self.number}", make(saver._context), then, thread))

    def write(self, what: str, thread: str, make: Callable[[Any], Any], happened: Callable[[], Any]) -> None:
        def then(answer: Any) -> None:
            self.say("done", what, thread)
            if answer is KILLED:
                self.start(what, thread, make, then)
                return
            happened()
            self.writing[thread] -= 1
            self.changes[thread] += 1

        self.writing[thread] += 1
        self.changes[thread] += 1
        self.start(what, thread, make, then)

    def some_newest(self, thread: str) -> Any:
        """Newest checkpoint of a namespace, most often the root."""
        return self.model.get_tuple(config(thread, self.chance.choice(["", "", "sub"])))

    def mark(self, thread: str) -> None:
        """Let some threads begin as new ones. The seeds of other choices stay what they were."""
        if self.marks.random() < 0.3:
            mark_new(self.tiers, thread)

    def before(self, thread: str) -> None:
        """Store a thread in hot alone, as before there were tiers."""
        is_there = any(one.thread == thread for one in self.running) or any(self.model.list(config(thread, None)))
        if is_there or self.tiers.target.raw.exists(*self.keyspace.tier_keys(thread)):
            return
        self.mark(thread)
        self.say("before", thread)
        for _ in range(3):
            self.number += 1
            given = self.next_checkpoint(thread, self.chance.choice(NAMESPACES))
            for saver in (self.alone, self.model):
                saver.put(*given)

    def put(self, thread: str) -> None:
        if not self.writing[thread]:
            ns = self.chance.choice(["", "", "sub"])
            self.look_and_write(thread, ns, "put", self.next_checkpoint(thread, ns))

    def next_checkpoint(self, thread: str, ns: str) -> tuple[Any, ...]:
        chance = self.chance
        found = self.model.get_tuple(config(thread, ns))
        versions = dict(found.checkpoint["channel_versions"]) if found else {}
        new = {chance.choice("xyz"): f"{self.number:032}.1"}
        versions.update(new)
        values = {
            channel: [version, "v" * 900] if channel in new else found.checkpoint["channel_values"][channel]
            for channel, version in versions.items()
        }
        where, run = found.config if found else config(thread, ns), f"{thread}-{self.number // 40}"
        metadata = {"source": "loop", "step": self.number, "parents": {}, "run_id": run}
        return where, checkpoint(values, versions), metadata, new

    def look_and_write(self, thread: str, ns: str, method: str, given: Any) -> None:
        """Write like a graph, which sometimes reads the newest checkpoint first."""
        make, happened = self.calling(method, given)
        if self.chance.random() < 0.5:
            self.write(method, thread, make, happened)
            return

        def looking_first(saver: Any) -> Iterator[Any]:
            yield from operations.get_tuple(saver, config(thread, ns))
            return (yield from make(saver))

        self.write(method, thread, looking_first, happened)

    def calling(self, method: str, given: Any) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
        return lambda saver: getattr(operations, method)(saver, *given), lambda: getattr(self.model, method)(*given)

    def writes(self, thread: str) -> None:
        found = self.some_newest(thread)
        if not found or (self.writing[thread] and self.is_being(thread, "put ", "delete")):
            return
        channels = self.chance.choice([["x"], ["x", "y"], [INTERRUPT], ["x", INTERRUPT, "y"]])
        task = f"task {self.number}"
        if channels == [INTERRUPT] and not self.writing[thread] and self.chance.random() < 0.5:
            task = "asks"
        given = (found.config, [(channel, [self.number]) for channel in channels], task, f"path {task}")
        self.write("put_writes", thread, *self.calling("put_writes", given))

    def delete(self, thread: str) -> None:
        if self.is_only_being_deleted(thread):
            self.write("delete_thread", thread, *self.calling("delete_thread", (thread,)))

    def delete_run(self, thread: str) -> None:
        """Delete a run. If the thread is coalesced, hot must have all of it, as only hot knows the rest."""
        runs = {one.metadata["run_id"] for one in self.model.list(config(thread, None))}
        if runs and self.is_only_being_deleted(thread) and (not self.is_coalescing or self.is_all_in_hot(thread)):
            make, happened = self.calling("delete_for_runs", ([self.chance.choice(sorted(runs))],))

            def deleted() -> None:
                happened()
                for one in self.running:  # hot does not know which checkpoints cold lost
                    one.is_outdated |= one.thread == thread

            self.write("delete_for_runs", thread, make, deleted)

    def is_only_being_deleted(self, thread: str) -> bool:
        under_way = [one for one in self.running if one.thread == thread and one.what.startswith("delete")]
        return self.writing[thread] == len(under_way)

    def get(self, thread: str) -> None:
        found, ns = self.some_newest(thread), self.chance.choice(NAMESPACES)
        self.read_at(found.config if found and self.chance.random() < 0.3 else config(thread, ns))

    def read_at(self, where: Any) -> None:
        self.read("get_tuple", where["configurable"]["thread_id"], *self.calling("get_tuple", (where,)))

    def list(self, thread: str) -> None:
        where = config(thread, None)
        make = lambda saver: listing.collect(operations.list_checkpoints(saver, where, None, None, None))  # noqa: E731
        if not self.is_coalescing:
            self.read("list", thread, make, lambda: list(self.model.list(where)))

    def read(self, what: str, thread: str, make: Callable[[Any], Any], ask: Callable[[], Any]) -> None:
        """Read, and check the answer if nothing was written meanwhile."""
        before, is_quiet = self.changes[thread], not self.writing[thread]

        def then(answer: Any) -> None:
            self.say("done", what, thread, short(answer))
            if is_quiet and before == self.changes[thread] and answer is not KILLED and thread not in self.lost:
                assert normal(answer) == normal(ask()), f"{short(answer)} should be {short(ask())}"

        self.start(what, thread, make, then)

    def flush(self, thread: str) -> None:
        saver = self.chance.choice([saver for saver in self.savers if saver._context.flush_queue])
        at_once = self.chance.random() < 0.8

        def then(done: Any) -> None:
            self.say("done flush", thread, done)
            assert done in (None, KILLED) or not done.failed

        self.start("flush", thread, lambda saver: flushing.flush(saver, thread, at_once=at_once), then, saver)

    # -- the end

    def in_cold(self, method: str, *given: Any) -> Any:
        """Call cold. With encryption, values are opened."""
        return self.savers[0]._driver.request(ColdCall(method, given))

    def check_all(self) -> None:
        self.tiers.later(context.WRITER_GONE)
        list(self.savers[0].list(None))  # enrolls threads that only hot has
        assert next(saver for saver in self.savers if saver._context.flush_queue).flush(timeout=30) == 0
        in_cold = {plain(one)[1]["id"]: one for thread in THREADS for one in self.in_cold("list", config(thread, None))}
        for thread in THREADS:
            for ns in NAMESPACES:
                where = config(thread, ns)
                expected = self.model.get_tuple(where)
                if thread in self.lost and expected is None:
                    continue
                answers = [("cold", self.in_cold("get_tuple", where))]
                for name, found in (*answers, *((at, saver.get_tuple(where)) for at, saver in enumerate(self.savers))):
                    assert normal(found) == normal(expected), f"{name}: {short(found)} should be {short(expected)}"
            if thread in self.lost:
                of_others = (one for one in in_cold.items() if one[1].config["configurable"]["thread_id"] != thread)
                in_cold = dict(of_others)
                continue
            for one in self.model.list(config(thread, None)):
                found = in_cold.pop(one.checkpoint["id"], None)
                if found is None:
                    assert self.is_coalescing, f"cold lacks {short(one)}"
                    continue
                assert (found.checkpoint, found.parent_config) == (one.checkpoint, one.parent_config)
                tasks = {task for task, *_ in found.pending_writes}
                coalesced = {task for task, *_ in one.pending_writes} - tasks if self.is_coalescing else ()
                assert found.pending_writes == [write for write in one.pending_writes if write[0] not in coalesced]
        assert not in_cold, f"cold has {[short(one) for one in in_cold.values()]}"
        left = {key.rpartition(b":")[2] for key in self.tiers.target.keys()}
        assert not left & {b"dirty", b"intents"}
