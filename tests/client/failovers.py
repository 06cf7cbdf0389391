"""Random rounds of failovers and moving slots, under 8 OS threads and 50 tasks, plain and over two tiers.

    PYTHONPATH=.:tests/client python -m failovers cluster-valkey SEED ROUNDS

All savers live through all rounds, so stale memory of a lost primary must do no harm on the next. After each round,
another saver reads everything. Each checkpoint must be one that was put, unchanged. Missing acknowledged checkpoints
are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import redis
from tests.support.factories import checkpoint, config
from langgraph.checkpoint.memory import InMemorySaver
from replicated import PROGRAMS, Process, ReplicatedCluster, Sentinels, slot_of

from redis_saver import AsyncRedisSaver, AsyncTieredSaver, RedisSaver, RedisSaverError, ThreadDamaged, TieredSaver
from redis_saver._client.clients import connect
from redis_saver._common.names import Keyspace

KINDS = [f"{kind}-{program}" for kind in ("sentinel", "cluster") for program in PROGRAMS]
MODES = ("plain", "through", "behind")
OS_THREADS = 8
PAUSE = 0.1
"""Seconds between two calls of a worker, as all workers and the resharding share one interpreter lock."""
ALLOWED = (redis.ConnectionError, redis.TimeoutError, RedisSaverError)
LOSING = {"kill", "pause", "planned by sentinels", "coordinated", "forced"}
"""After these, a plain saver may lack writes that the replica did not have."""
_METADATA = {"source": "loop", "step": 1, "parents": {}}


class Locked(InMemorySaver):
    """A cold saver for several OS threads."""

    def __init__(self) -> None:
        super().__init__()
        lock = threading.RLock()
        for name in ("get_tuple", "list", "put", "put_writes", "delete_thread"):
            setattr(self, name, _locked(lock, getattr(super(), name)))


def _locked(lock: Any, method: Any) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        with lock:
            answer = method(*arguments, **options)
            return iter(list(answer)) if isinstance(answer, Iterator) else answer

    return call


@dataclass
class Thread:
    """A conversation of one worker, with its attempted and its acknowledged writes."""

    name: str
    mode: str
    tried: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    """Step and parent by checkpoint id."""
    put: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    parent: str | None = None

    def values(self, step: int) -> dict[str, Any]:
        """Values of a checkpoint: a long list that grows by one per step."""
        return {"n": step, "messages": [f"{self.name}/{i} " + "word " * (i % 13) for i in range(100 + step)]}

    def next(self) -> tuple[dict[str, Any], Any]:
        """Config and checkpoint of the next put."""
        step = len(self.tried) + 1
        made = checkpoint(self.values(step), dict.fromkeys(("n", "messages"), f"{step:032}.x"))
        self.tried[made["id"]] = (step, self.parent)
        return config(self.name, "", self.parent), made

    def check(self, found: Any) -> None:
        """Check that a checkpoint is as it was put."""
        where = found.config["configurable"]
        step, parent = self.tried[where["checkpoint_id"]]
        assert found.checkpoint["channel_values"] == self.values(step), where
        assert {key: found.metadata[key] for key in _METADATA} == _METADATA, where
        above = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
        assert (above or None) == parent, where
        assert found.pending_writes in ([], [("task", "n", step)]), where


@dataclass
class Round:
    """Results of a round."""

    name: str
    calls: int = 0
    longest: Counter[str] = field(default_factory=Counter)
    """Longest call per method, in seconds."""
    errors: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[str] = field(default_factory=Counter)
    """Count per mode."""
    lost: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Descriptions of failures."""

    def line(self) -> str:
        lost = ", ".join(f"{mode} {self.lost[mode]} of {self.acknowledged[mode]}" for mode in MODES)
        slowest = max(self.longest.items(), key=lambda one: one[1], default=("none", 0.0))
        return f"{self.name:22} {self.calls:6} calls, longest {slowest[1]:5.1f} s ({slowest[0]}); lost: {lost}; errors: {dict(self.errors)}"


class History:
    """Servers, savers and rounds."""

    def __init__(
        self, kind: str, seed: int, *, tasks: int = 50, min_replicas: int | None = None, options: Sequence[str] = ()
    ) -> None:
        """Start the servers.

        Args:
            kind: One of `KINDS`.
            seed: Seed of the rounds.
            tasks: Number of tasks.
            min_replicas: Replicas that write-behind waits for. By default all of a primary, so that nothing is lost.
            options: Options of the servers.
        """
        self.kind, self.random, self.tasks = kind, random.Random(seed), tasks
        what, _, program = kind.partition("-")
        self.servers: Any = (Sentinels if what == "sentinel" else ReplicatedCluster)(program, *options)
        replicas = 2 if what == "sentinel" else 1
        self._min_replicas = replicas if min_replicas is None else min_replicas
        self._may_refuse = "--min-replicas-to-write" in options
        self._keeps = {"through", *(["behind"] if self._min_replicas == replicas else [])}
        self.cold = Locked()
        self.rounds: list[Round] = []
        self._blocking = {mode: self._saver(mode, asynchronous=False) for mode in MODES}
        self._tasks_savers: dict[str, Any] = {}
        self._ending = threading.Event()

    def _saver(self, mode: str, *, asynchronous: bool, flusher: bool = True) -> Any:
        client = connect(self.servers.url, asynchronous=asynchronous, socket_timeout=0.5)
        kind: Any = AsyncRedisSaver if asynchronous else RedisSaver
        waits = {"min_replicas": self._min_replicas, "replica_timeout": 0.3} if mode == "behind" else {}
        saver = kind(client, prefix=mode, **waits)
        if mode == "plain":
            return saver
        tiered: Any = AsyncTieredSaver if asynchronous else TieredSaver
        if mode == "through":
            return tiered(saver, self.cold, verify="never" if flusher else "on_open")
        return tiered(saver, self.cold, mode="write-behind", flush_interval=0.2, flusher=flusher)

    # -- rounds

    def disturbances(self) -> dict[str, Callable[[], None]]:
        """Disturbances that these servers support."""
        if isinstance(self.servers, Sentinels):
            return {
                "kill": self._kill, "pause": self._pause, "planned by sentinels": self.servers.fail_over,
                **({"coordinated": lambda: self.servers.fail_over("COORDINATED")} if self.kind == "sentinel-valkey" else {}),
            }  # fmt: skip
        return {
            "kill": self._kill, "pause": self._pause, "planned": self._planned, "forced": lambda: self._planned("FORCE"), "by hand": self._by_hand,
            "reshard": self._reshard, "at once": self._at_once, "nodes": self._nodes,
        }  # fmt: skip

    def _some_primary(self) -> Process:
        if isinstance(self.servers, Sentinels):
            return self.servers.primary()
        return self.random.choice(self.servers.primaries())

    def _lost(self, lose: Callable[[Process], None]) -> Process:
        primary = self._some_primary()
        if isinstance(self.servers, Sentinels):
            lose(primary)
            self.servers.wait_promoted(primary)
        else:
            replica = self.servers.replica_of(primary)
            lose(primary)
            self.servers.wait_promoted(replica)
        return primary

    def _kill(self) -> None:
        self._lost(Process.kill).start()

    def _pause(self) -> None:
        primary = self._lost(Process.pause)
        time.sleep(self.random.uniform(0, 1))
        primary.go_on()

    def _planned(self, *how: str) -> None:
        self.servers.fail_over(self._some_primary(), *how)

    def _slots(self, most: int) -> list[int]:
        """Slots that have conversations."""
        names = [(thread.mode, thread.name) for thread in self.threads]
        chosen = self.random.sample(names, min(most, len(names)))
        return [slot_of(Keyspace(mode).keys(name).index_key) for mode, name in chosen]

    def _other_than(self, slot: int) -> Process:
        holder = self.servers.primary_of(slot)
        return self.random.choice([one for one in self.servers.primaries() if one is not holder])

    def _by_hand(self) -> None:
        for slot in self._slots(5):
            target = self._other_than(slot)
            source = self.servers.open_slot(slot, target)
            time.sleep(self.random.uniform(0, 0.15))
            while self.servers.move_keys(slot, source, target, self.random.choice([1, 3])):
                time.sleep(self.random.uniform(0, 0.02))
            time.sleep(self.random.uniform(0, 0.15))
            self.servers.close_slot(slot, target)

    def _reshard(self) -> None:
        source, target = self.random.sample(self.servers.primaries(), 2)
        self.servers.reshard(source, target, self.random.choice([50, 300]))

    def _at_once(self) -> None:
        for slot in self._slots(5):
            if not self.servers.migrate_atomically(slot, slot, target := self._other_than(slot)):
                self.servers.move_slot(slot, target)

    def _nodes(self) -> None:
        added = self.servers.add_node()
        slots = self._slots(3)
        before = {slot: self.servers.primary_of(slot) for slot in dict.fromkeys(slots)}
        for slot in before:
            source = self.servers.open_slot(slot, added)
            while self.servers.move_keys(slot, source, added, 1):
                time.sleep(0.02)
            self.servers.close_slot(slot, added)
        time.sleep(0.3)
        for slot, source in before.items():
            self.servers.move_slot(slot, source)
        self.servers.remove_node(added)

    async def run(self, rounds: int, names: list[str] | None = None) -> list[Round]:
        """Run rounds with the given disturbances, or with random ones."""
        known = self.disturbances()
        self._tasks_savers = {mode: self._saver(mode, asynchronous=True) for mode in MODES}
        try:
            for number in range(rounds):
                name = names[number % len(names)] if names else self.random.choice(list(known))
                self.rounds.append(await self._round(name, known[name], number))
                print(self.rounds[-1].line(), flush=True)
        finally:
            for saver in self._tasks_savers.values():
                if isinstance(saver, AsyncTieredSaver):
                    await saver.aclose(1)  # a claim that was released on a lost primary blocks its thread for 30 s
                await getattr(saver, "hot", saver)._driver.aclose()
        return self.rounds

    async def _round(self, name: str, disturb: Callable[[], None], number: int) -> Round:
        made = Round(name)
        self._ending.clear()
        modes = list(MODES)
        self.threads = [Thread(f"{number}-{i}", modes[i % len(modes)]) for i in range(OS_THREADS + self.tasks)]
        workers = [
            threading.Thread(target=self._blocking_worker, args=(made, one)) for one in self.threads[:OS_THREADS]
        ]
        for worker in workers:
            worker.start()
        tasks = [asyncio.create_task(self._worker(made, one)) for one in self.threads[OS_THREADS:]]
        await asyncio.sleep(0.4)
        try:
            await asyncio.to_thread(disturb)
            await asyncio.sleep(0.8)  # workers may still write to the lost server
        finally:
            self._ending.set()
        await asyncio.gather(*tasks)
        for worker in workers:
            await asyncio.to_thread(worker.join)
        await asyncio.to_thread(self.servers.wait_ready)
        await asyncio.to_thread(self._look, made)
        return made

    # -- workers

    def _blocking_worker(self, made: Round, thread: Thread) -> None:
        saver, turn = self._blocking[thread.mode], self._turns(thread)
        step = next(turn, None)
        while step is not None:
            with self._judged(made, step) as outcome:
                outcome.reply = getattr(saver, step[0])(*step[1])
            time.sleep(PAUSE)
            step = _next(turn, outcome)

    async def _worker(self, made: Round, thread: Thread) -> None:
        saver, turn = self._tasks_savers[thread.mode], self._turns(thread)
        step = next(turn, None)
        while step is not None:
            with self._judged(made, step) as outcome:
                outcome.reply = await getattr(saver, "a" + step[0])(*step[1])
            await asyncio.sleep(PAUSE)
            step = _next(turn, outcome)

    @contextmanager
    def _judged(self, made: Round, step: Any) -> Iterator[SimpleNamespace]:
        """Note the time and the error of a call."""
        outcome, began = SimpleNamespace(reply=None, error=None), time.monotonic()
        try:
            yield outcome
        except Exception as error:  # noqa: BLE001 - it is judged
            outcome.error = error
        self._note(made, step[0], time.monotonic() - began, outcome.error)

    def _turns(self, thread: Thread) -> Any:
        """Calls of a worker: it puts, writes and reads. After an error it continues from the newest checkpoint."""
        while not self._ending.is_set():
            where, checkpoint_ = thread.next()
            stored, error = yield "put", (where, checkpoint_, _METADATA, checkpoint_["channel_versions"])
            if error is None:
                thread.parent = checkpoint_["id"]
                thread.put.add(checkpoint_["id"])
                _, error = yield "put_writes", (stored, [("n", thread.tried[checkpoint_["id"]][0])], "task")
                if error is None:
                    thread.written.add(checkpoint_["id"])
            found, failed = yield "get_tuple", (config(thread.name),)
            if failed is None and found is not None:
                thread.check(found)
            if error is not None and failed is None:
                thread.parent = found and found.config["configurable"]["checkpoint_id"]

    def _note(self, made: Round, method: str, seconds: float, error: Exception | None) -> None:
        made.calls += 1
        made.longest[method] = max(made.longest[method], seconds)  # type: ignore[assignment]
        if error is not None:
            made.errors[type(error).__name__] += 1
            refused = isinstance(error, redis.ResponseError) and str(error).startswith("NOREPLICAS")
            if not (isinstance(error, ALLOWED) or (refused and self._may_refuse)) or isinstance(error, ThreadDamaged):
                made.wrong.append("".join(traceback.format_exception(error)))

    # -- checks

    def _look(self, made: Round) -> None:
        """Read everything with new savers. In write-through they compare hot with cold, as needed after a failover."""
        for mode in MODES:
            fresh = self._saver(mode, asynchronous=False, flusher=False)
            for thread in self.threads:
                if thread.mode != mode:
                    continue
                made.acknowledged[mode] += len(thread.put)
                try:
                    there = {
                        one.config["configurable"]["checkpoint_id"]: one for one in fresh.list(config(thread.name))
                    }
                    for one in there.values():
                        thread.check(one)
                    found = fresh.get_tuple(config(thread.name))
                    newest = found and found.config["configurable"]["checkpoint_id"]
                    if mode == "behind":
                        # Unacknowledged checkpoints may be in cold, but not on the new primary.
                        assert newest is None or newest in there
                        made.lost[mode] += (newest or "") < max(thread.put & there.keys(), default="")
                    else:
                        assert newest == max(there, default=None)
                except (AssertionError, KeyError, RedisSaverError) as error:
                    made.wrong.append(f"{mode} {thread.name}: " + "".join(traceback.format_exception(error)))
                    continue
                unwritten = [one for one in thread.written & there.keys() if not there[one].pending_writes]
                made.lost[mode] += len(thread.put - there.keys()) + len(unwritten)
            getattr(fresh, "hot", fresh)._driver.close()
        if made.name not in LOSING and made.lost["plain"]:
            made.wrong.append(f"{made.lost['plain']} checkpoints are lost, and nothing failed over")
        for mode in self._keeps:
            if made.lost[mode]:
                made.wrong.append(f"{mode}: {made.lost[mode]} checkpoints are lost that were acknowledged")

    def stop(self) -> None:
        for saver in self._blocking.values():
            if isinstance(saver, TieredSaver):
                saver.close(1)
            getattr(saver, "hot", saver)._driver.close()
        self.servers.stop()


def _next(turn: Any, outcome: SimpleNamespace) -> Any:
    """The next call of a worker, or None at its end."""
    try:
        return turn.send((outcome.reply, outcome.error))
    except StopIteration:
        return None


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("kind", choices=KINDS)
    arguments.add_argument("seed", type=int)
    arguments.add_argument("rounds", type=int)
    arguments.add_argument("names", nargs="*", help="what happens, in turn; else at random")
    arguments.add_argument("--min-replicas", type=int, help="of write-behind; else all that a primary has")
    arguments.add_argument(
        "--server-options", default="", help="such as 'min-replicas-to-write 1 min-replicas-max-lag 1'"
    )
    given = arguments.parse_args()
    words = given.server_options.split()
    options = [word if position % 2 else f"--{word}" for position, word in enumerate(words)]
    history = History(given.kind, given.seed, min_replicas=given.min_replicas, options=options)
    try:
        found = asyncio.run(history.run(given.rounds, given.names or None))
    finally:
        history.stop()
    for one in found:
        for wrong in one.wrong[:3]:
            print(f"{given.kind} seed {given.seed}, {one.name}: {wrong}")
    longest = max(max(one.longest.values()) for one in found)
    calls, wrong = sum(one.calls for one in found), sum(len(one.wrong) for one in found)
    print(f"{len(found)} rounds, {calls} calls, longest {longest:.1f} s, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
