"""Processes that run one graph on one thread concurrently while faults happen, and checks of the thread afterwards."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import nursery
import psycopg
from crash_workers import quick
from rival_workers import NODES, a_saver, epoch_of, graph

from redis_saver._common.names import Keyspace
from tests.support.proxy import Proxy

FAULTS = ("kill", "stop", "lose", "drop", "delay", "cut", "jump")
"""SIGKILL; SIGSTOP until SIGCONT; a lost reply; a lost request; a late request; a cut connection; an expired lease."""
FAULTS_OF_TIERS = ("cut_cold", "refuse_cold", "lock_cold", "lock_cold", "evict")
"""A cut connection to Postgres; refused logins; a locked table; evicted keys that have a TTL."""
_REFUSAL = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"


class Cut(Proxy):
    """A proxy that can cut all connections for a while."""

    def cut(self) -> None:
        """Close all connections, also new ones, until `heal`."""
        self.is_cut = True
        for each in list(self._sockets):
            self._shut(each)

    def heal(self) -> None:
        self.is_cut, self.refusal = False, b""

    def refuse(self) -> None:
        """Close all connections, and refuse new ones until `heal`, like a Postgres that is starting."""
        self.cut()
        self.refusal = b"E" + (len(_REFUSAL) + 4).to_bytes(4, "big") + _REFUSAL

    is_cut = False
    refusal = b""

    def _requests(self, client: Any, server: Any, doomed: Any) -> None:
        if self.is_cut:
            if self.refusal:
                client.recv(1 << 16)
                client.sendall(self.refusal)
            self._shut(client)
            self._shut(server)
        super()._requests(client, server, doomed)

    @staticmethod
    def _shut(each: Any) -> None:
        with suppress(OSError):
            each.shutdown(2)


class Place(NamedTuple):
    """Servers and prefix of a run."""

    url: str
    raw: Any
    prefix: str
    postgres: str | None = None
    mode: str | None = None
    server: Any = None
    """A Redis that may be killed. It writes each command to its file before it answers."""


class Rivals:
    """A run of several processes on one thread, with a seed that decides on the faults."""

    def __init__(self, place: Place, seed: int, on_busy: list[str | None], flavours: list[str], **options: Any) -> None:
        self.place, self.seed, self.chance = place, seed, random.Random(seed)
        self.thread = f"thread {seed}"
        self.owner = Keyspace(place.prefix).owner_key(self.thread)
        self.is_owned = bool(on_busy[0])
        self.spec = {
            "redis": place.url, "prefix": place.prefix, "postgres": place.postgres, "mode": place.mode, "thread": self.thread, "seed": seed,
            "pause": 0.02, "blocks": 3, "durability": "async", **options,
        }  # fmt: skip
        self.proxies = [Cut(int(place.url.rpartition(":")[2])) for _ in on_busy]
        self.of_cold = [Cut(urlsplit(place.postgres).port or 0) for _ in on_busy] if place.postgres else []
        self.locks: list[threading.Thread] = []
        self.each = [{"on_busy": one, "flavour": flavour} for one, flavour in zip(on_busy, flavours, strict=True)]
        self.workers = [self._begin(number) for number in range(len(on_busy))]
        self.gone: list[nursery.Worker] = []
        self.happened = Counter[str]()

    def _begin(self, number: int) -> nursery.Worker:
        made = _ready.pop() if _ready else nursery.Worker("rival_workers")
        made.said.clear()
        told = {**self.spec, **self.each[number], "redis": self.proxies[number].url}
        if self.of_cold:
            port = urlsplit(self.place.postgres).port
            told["postgres"] = self.place.postgres.replace(f":{port}/", f":{self.of_cold[number].port}/")
        made.tell(**told)
        return made

    # -- faults

    def run(self, faults: list[str]) -> None:
        """Cause the faults one after the other while the workers work, then let them finish."""
        for fault in faults:
            time.sleep(0.15 * self.chance.random())
            if not (busy := [number for number, one in enumerate(self.workers) if one.is_working]):
                break
            self.happened[fault] += 1
            getattr(self, f"_{fault}")(self.chance.choice(busy))
        for proxy in self.of_cold:
            proxy.heal()
        for lock in self.locks:
            lock.join()
        for number, proxy in enumerate(self.proxies):
            proxy.heal()
            said = self.workers[number].answer()
            assert said == "ok", said
        for proxy in (*self.proxies, *self.of_cold):
            proxy.close()  # requests of killed processes that it still holds are dropped

    def _kill(self, number: int) -> None:
        self.workers[number].kill()
        self.gone.append(self.workers[number])
        self.workers[number] = self._begin(number)

    def _stop(self, number: int, seconds: float | None = None) -> None:
        self.workers[number].pause()
        time.sleep(0.3 * self.chance.random() if seconds is None else seconds)
        self.workers[number].go_on()

    def _stop_long(self, number: int) -> None:
        """Stop a worker for longer than its lease of a second."""
        self._stop(number, 1.1)

    def _lose(self, number: int) -> None:
        self.proxies[number].lose_reply(b"EVALSHA", self.chance.randrange(1, 6))

    def _drop(self, number: int) -> None:
        self.proxies[number].drop_request(b"EVALSHA", self.chance.randrange(1, 6))

    def _delay(self, number: int) -> None:
        seconds = 0.3 * self.chance.random()
        self.proxies[number].before(b"EVALSHA", lambda: time.sleep(seconds))

    def _cut(self, number: int) -> None:
        self._outage(self.proxies[number], self.proxies[number].cut, 0.3)

    def _outage(self, proxy: Cut, begin: Callable[[], None], most: float) -> None:
        begin()
        time.sleep(most * self.chance.random())
        proxy.heal()

    def _forget(self, _: int) -> None:
        """Evict the thread and its owner from hot."""
        keys = Keyspace(self.place.prefix).keys(self.thread)
        self.place.raw.delete(keys.index_key, keys.data_key, self.owner)

    def _evict(self, _: int) -> None:
        """Evict keys that have a TTL, like a full server."""
        keys = Keyspace(self.place.prefix).tier_keys(self.thread)
        some = self.chance.choice([(keys.index_key, keys.data_key), (keys.index_key,), (keys.data_key,), (keys.flush,)])
        script = "for _, key in ipairs(KEYS) do if redis.call('PTTL', key) >= 0 then redis.call('UNLINK', key) end end"
        self.place.raw.eval(script, len(some), *some)

    def _kill_hot(self, _: int) -> None:
        self.place.server.kill()
        time.sleep(0.2 * self.chance.random())
        self.place.server.start()

    def _cut_cold(self, number: int) -> None:
        self._outage(self.of_cold[number], self.of_cold[number].cut, 0.6)

    def _refuse_cold(self, number: int) -> None:
        self._outage(self.of_cold[number], self.of_cold[number].refuse, 0.6)

    def _lock_cold(self, _: int) -> None:
        """Lock a table in the background during the next faults."""
        table = self.chance.choice(["checkpoints", "checkpoints", "checkpoint_writes", "checkpoint_blobs"])
        seconds = self.chance.choice([0.5, 1.5, 3.0]) * self.chance.random()

        def lock() -> None:
            with psycopg.connect(self.place.postgres) as connection:
                connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
                time.sleep(seconds)

        self.locks.append(threading.Thread(target=lock, daemon=True))
        self.locks[-1].start()
        time.sleep(0.3 * self.chance.random())

    def _jump(self, _: int) -> None:
        if record := self.place.raw.get(self.owner):
            first, _, last = record.split(b" ", 2)
            until = b" ".join([first, b"1", last])
            script = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL') end"
            self.place.raw.eval(script, 1, self.owner, record, until)

    # -- checks

    def close(self) -> None:
        for worker in self.workers:
            if worker.is_working:
                worker.kill()
            elif not worker.is_dead:
                _ready.append(worker)
        for proxy in (*self.proxies, *self.of_cold):
            proxy.close()

    def check(self) -> Counter[str]:
        """Finish the last turn, check the thread and delete it. Return the counts."""
        with quick():
            return asyncio.run(self._check())

    async def _check(self) -> Counter[str]:
        async with AsyncExitStack() as stack:
            saver = await a_saver({**self.spec, "flavour": "sync"}, stack)
            compiled = graph(saver, lambda **_: None, lambda: 0)
            last = self._finished(saver, compiled)
            where: Any = {"configurable": {"thread_id": self.thread}}
            values = compiled.get_state(where).values
            found = [seen_of(one) for one in saver.list(where)]
            check_chain(found)
            if self.is_owned:  # without owners, a turn may begin in the middle of another
                check_log(values)
            if self.place.mode:
                saver.flush(timeout=30)
                assert found == [seen_of(one) for one in saver.cold.list(where)]
            self._check_fencing()
            self._check_acknowledged(found)
            self._check_probes()
            self._check_effects(values["log"], last)
            keys = {key.rpartition(b":")[2] for key in self.place.raw.scan_iter(match=f"{self.place.prefix}*:owner")}
            assert not keys, keys
            saver.delete_thread(self.thread)
            if not self.place.mode:
                assert not list(self.place.raw.scan_iter(match=f"{self.place.prefix}*"))
            self._stats(found, values["log"])
            return self.happened

    def _finished(self, saver: Any, compiled: Any) -> int:
        if not self.is_owned:
            compiled.invoke(None, {"configurable": {"thread_id": self.thread}})
            return 0
        with saver.own(self.thread, on_busy="take", run_id="the last") as given:
            epoch = epoch_of(given)
            config = {**given, "metadata": {"run_id": "the last", "epoch": epoch}}
            state = compiled.get_state(config)
            compiled.invoke(None if state.tasks else {"turn": state.values.get("turn", 0) + 1}, config)
        return epoch

    def lines(self, kind: str) -> Iterator[dict[str, Any]]:
        for worker in (*self.gone, *self.workers):
            yield from (line for line in list(worker.said) if kind in line)

    def _check_fencing(self) -> None:
        """Check that no write of an owner was acknowledged if it began after another took the thread."""
        taken = sorted((line["at"], line["took"]) for line in self.lines("took"))
        for line in (*self.lines("put"), *self.lines("put_writes")):
            later = [epoch for at, epoch in taken if at < line["begin"] and epoch > line["epoch"]]
            assert not (self.is_owned and later and line["outcome"] == "ok"), (line, later)

    def _check_acknowledged(self, found: list[Seen]) -> None:
        """Check that acknowledged checkpoints are there, unless a rollback began. Rolled-back runs must be gone."""
        there, began = {one.id for one in found}, set(self.lines_by("rolls_back", "by"))
        puts = [line for line in self.lines("put") if line["outcome"] == "ok"]
        lost = [line for line in puts if line["put"] not in there and line["run"] not in {run for run, _ in began}]
        assert not lost, lost
        took = {line["run"]: line["took"] for line in self.lines("took")}
        gone = [(run, took[by]) for run, by in began if by in took]
        self.happened["rolled back"] += len({run for run, _ in gone} & {line["run"] for line in puts})
        # If its reply was lost, a run asks again for the thread, and may own it after another one rolled it back.
        left = [one for one in found for run, epoch in gone if one.run == run and one.epoch < epoch]
        assert not left, (left, found)

    def lines_by(self, *kinds: str) -> Iterator[tuple[Any, ...]]:
        for line in self.lines(kinds[0]):
            yield tuple(line[kind] for kind in kinds)

    def _check_probes(self) -> None:
        """Check that nothing is stored without a token while a block owns the thread, and its lease lasts.

        The block owned it when its last good write began. Later, another's rollback may have taken the thread and
        failed, which frees it before the block notices.
        """
        writes = [line for kind in ("put", "put_writes") for line in self.lines(kind) if line["outcome"] == "ok"]
        probes = list(self.lines("probe"))
        for epoch, at in self.lines_by("took", "at"):
            owned = max((line["begin"] for line in writes if line["epoch"] == epoch), default=at)
            until = min(owned, at + 0.25)  # later, its first renewal may be late
            inside = [line for line in probes if line["begin"] > at and line["end"] < until]
            self.happened["probes of owned threads"] += len(inside)
            assert not [line for line in inside if line["outcome"] == "ok"], (epoch, at, until, inside)

    def _check_effects(self, log: list[str], last: int) -> None:
        """Check that a worker reported each committed effect under the same epoch."""
        done = {(line["effect"], line["task"], line["epoch"]) for line in self.lines("effect")}
        for entry in log:
            _, name, task, epoch = entry.split()
            assert (name, task, int(epoch)) in done or int(epoch) == last, entry

    def _stats(self, found: list[Seen], log: list[str]) -> None:
        """Count effects per task, to read in the output."""
        effects = Counter(line["task"] for line in self.lines("effect"))
        self.happened["checkpoints"] += len(found)
        self.happened["effects"] += effects.total()
        self.happened["effects committed"] += len({entry.split()[2] for entry in log} & effects.keys())
        self.happened["tasks done more than once"] += sum(count > 1 for count in effects.values())
        for kind in ("took", "refused", "failed", "done"):
            self.happened[kind] += len(list(self.lines(kind)))


_ready: list[nursery.Worker] = []


class Seen(NamedTuple):
    """The fields of a checkpoint that make the chain."""

    ns: str
    id: str
    parent: str | None
    step: int
    epoch: int
    run: str | None = None


def seen_of(found: Any) -> Seen:
    where, parent, metadata = found.config["configurable"], found.parent_config, found.metadata
    before = parent["configurable"]["checkpoint_id"] if parent else None
    of_run = metadata["step"], metadata.get("epoch", 0), metadata.get("run_id")
    return Seen(where["checkpoint_ns"], where["checkpoint_id"], before, *of_run)


def check_chain(found: list[Seen]) -> None:
    """Check that each namespace is one chain of growing steps and epochs, without forks."""
    for ns, group in itertools.groupby(sorted(found), key=lambda one: one.ns):
        chain = list(group)
        assert chain[0].parent is None, (ns, chain)
        for one, then in itertools.pairwise(chain):
            assert then.parent == one.id, (one, then, chain)
            assert then.step == one.step + 1, (one, then)
            assert then.epoch >= one.epoch, (one, then)


def check_log(values: dict[str, Any]) -> None:
    """Check that each node of each turn was committed once."""
    log = [entry.split() for entry in values["log"]]
    nodes = list(itertools.product(range(1, values["turn"] + 1), NODES))
    assert [(int(turn), name) for turn, name, *_ in log] == nodes, log
    tasks = [task for _, _, task, _ in log]
    assert len(set(tasks)) == len(tasks), log
    for at in range(0, len(log), len(NODES)):
        turn = log[at : at + len(NODES)]
        epochs = {name: int(epoch) for _, name, _, epoch in turn}
        assert epochs["a"] <= epochs["c"] <= epochs["b"], turn
        assert epochs["a"] <= epochs["x"] <= epochs["y"] <= epochs["b"], turn
