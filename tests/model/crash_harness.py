"""Two tiers whose servers, writers and flushers are killed, and checks that everything acknowledged is there."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from crash_workers import TTL, pool, quick, value
from langgraph.checkpoint.postgres import PostgresSaver

import redis_saver
from bench.servers import Postgres
from redis_saver import RedisSaver, TieredSaver
from redis_saver._common.names import Keyspace
from redis_saver._tiered import context
from tests.support import programs
from tests.support.factories import config
from tests.support.servers import Server, new_database
from tests.support.tiering import plain, wait_for_the_dead

NAMESPACES = ("", "sub")
VICTIMS = ("writer", "flusher", "redis", "postgres")
PATIENCE = 60
"""Seconds to wait before a check fails."""


class Lost(AssertionError):
    """Raised if a tier lacks acknowledged data, or has data that nobody wrote."""


def check(holds: object, problem: str) -> None:
    if not holds:
        raise Lost(problem)


class Written(NamedTuple):
    """Arguments of put_writes, for one or several calls, and whether one was acknowledged."""

    entry: dict[str, Any]
    is_sure: bool

    @property
    def items(self) -> set[tuple[str, str, str]]:
        return {(self.entry["task"], channel, one) for channel, one in self.entry["writes"]}


class Conversation:
    """Data that a thread must have or may have, according to the journals of its writers."""

    def __init__(self, thread: str, *, is_coalescing: bool) -> None:
        self.thread, self.is_coalescing = thread, is_coalescing
        self.puts: dict[tuple[str, str], dict[str, Any]] = {}
        self.sure: set[tuple[str, str]] = set()
        self.open: set[tuple[str, str]] = set()
        """Checkpoints that may or may not be stored."""
        self.writes: dict[tuple[str, str], list[Written]] = {}
        self.doomed: set[tuple[str, str]] = set()
        """Checkpoints that an unacknowledged deletion may have removed."""
        self.under_way: dict[str, Any] | None = None
        self.history: list[str] = []
        self.writer = ""

    def note(self, line: dict[str, Any], counts: Counter[str]) -> None:
        """Process a line of a journal."""
        self.history.append(json.dumps({key: one for key, one in line.items() if key != "thread"}))
        if "begin" in line:
            self.under_way = line["begin"]
            return
        if "end" in line:
            assert self.under_way is not None
            self.ended(self.under_way, is_sure=line["end"] == "ok")
            self.under_way = None
            counts["acknowledged" if line["end"] == "ok" else "failed"] += 1
            return
        if "looked" in line:
            check(line["looked"] is not None, "the parent of a checkpoint was not found")
            return
        self.was_newest(line["ns"], line["read"], counts)

    def cut_off(self, counts: Counter[str]) -> None:
        """Process the kill of the writer."""
        self.history.append("killed")
        if self.under_way:
            counts["cut off"] += 1
            self.ended(self.under_way, is_sure=False)
            self.under_way = None

    def ended(self, entry: dict[str, Any], *, is_sure: bool) -> None:
        if entry["op"] == "delete":
            self.doomed = set(self.puts)
            if is_sure:
                self.deleted()
            return
        place = (entry["ns"], entry["id"])
        if entry["op"] == "put":
            self.puts[place] = entry
            (self.sure if is_sure else self.open).add(place)
            if is_sure:
                self.open.discard(place)
            return
        before = [one for one in self.writes.get(place, []) if one.entry != entry]
        if is_sure and entry["task"] == "asks":
            before = [one for one in before if one.entry["task"] != "asks"]
        self.writes[place] = [*before, Written(entry, is_sure)]

    def deleted(self) -> None:
        """Remove the doomed checkpoints."""
        for place in self.doomed:
            self.puts.pop(place, None)
            self.writes.pop(place, None)
        self.sure -= self.doomed
        self.open -= self.doomed
        self.doomed = set()

    def was_newest(self, ns: str, found: str | None, counts: Counter[str]) -> None:
        """Process a read of the newest checkpoint, which tells whether the last operation has happened."""
        if found is None and any(place[0] == ns for place in self.doomed & self.sure):
            counts["happened"] += 1
            self.deleted()
        elif (ns, found) in self.doomed:
            counts["did not happen"] += 1
            self.doomed = set()
        sure = max((place[1] for place in self.sure if place[0] == ns), default="")
        newest = f"the newest of namespace {ns!r} is {found}"
        check((found or "") >= sure, f"{newest}, but {sure} was acknowledged")
        check(found is None or (ns, found) in self.puts, f"{newest}, which is not known")
        for place in [place for place in self.puts if place[0] == ns and place[1] > (found or "")]:
            del self.puts[place]
            self.open.discard(place)
            counts["did not happen"] += 1
        if found and (ns, found) in self.open:
            self.open.discard((ns, found))
            counts["happened"] += 1
        if found:
            self.sure.add((ns, found))

    def newest(self, ns: str) -> str | None:
        """The newest checkpoint that must be there."""
        return max((place[1] for place in self.sure if place[0] == ns), default=None)

    @staticmethod
    def place(found: Any) -> tuple[str, str]:
        return found.config["configurable"]["checkpoint_ns"], found.checkpoint["id"]

    @property
    def newest_ones(self) -> set[tuple[str, str]]:
        return {(ns, found) for ns in NAMESPACES if (found := self.newest(ns))}

    def settle(self, found: Sequence[Any], counts: Counter[str]) -> None:
        """Check all checkpoints while nothing is under way. Those found must be there from now on."""
        by_place = {self.place(one): one for one in found}
        check(len(by_place) == len(found), "a checkpoint is listed twice")
        if there_were := self.doomed & self.sure:
            is_there = bool(there_were & by_place.keys())
            counts["did not happen" if is_there else "happened"] += 1
            if not is_there:
                self.deleted()
            self.doomed = set()
        for place in self.open:
            counts["happened" if place in by_place else "did not happen"] += 1
        self.open.clear()
        more = by_place.keys() - self.puts.keys()
        check(not more, f"checkpoints are there that must not be: {more}")
        lost = self.sure - by_place.keys()
        if self.is_coalescing:  # hot drops a thread if a writer is killed between cold and hot
            newest = {ns: max(one for where, one in by_place if where == ns) for ns, _ in by_place}
            given_up = {place for place in lost if place[1] < newest.get(place[0], "")}
            counts["coalesced and given up"] += len(given_up)
            lost -= given_up
        check(not lost, f"checkpoints are lost: {lost}")
        self.sure = set(by_place)
        for place, one in by_place.items():
            self.compare(place, one, counts)
        if not self.is_coalescing:
            self.puts = {place: self.puts[place] for place in by_place}
            self.writes = {place: self.writes[place] for place in by_place if place in self.writes}

    def compare(self, place: tuple[str, str], found: Any, counts: Counter[str] | None = None) -> None:
        """Check a checkpoint and its pending writes. With `counts`, record which writes are there.

        A coalescing cold may lack writes of all checkpoints except the newest.
        """
        must = not self.is_coalescing or place in self.newest_ones
        entry, where = self.puts[place], f"checkpoint {place}"
        told = found.config["configurable"]
        address = (told["thread_id"], told["checkpoint_ns"], told["checkpoint_id"])
        check(address == (self.thread, *place), f"{where}: {told}")
        parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
        check(parent == entry["parent"], f"{where}: the parent is {parent}")
        check(found.metadata["step"] == entry["step"], f"{where}: {found.metadata}")
        versions = found.checkpoint["channel_versions"]
        check(versions == entry["versions"], f"{where}: the versions are {versions}")
        values = found.checkpoint["channel_values"]
        expected = {channel: value(self.thread, channel, version) for channel, version in versions.items()}
        check(values == expected, f"{where}: the values are {values}")
        there = [tuple(one) for one in found.pending_writes or ()]
        check(len(set(there)) == len(there), f"{where}: writes are doubled: {there}")
        left, kept = set(there), list[Written]()
        asked = [one for one in self.writes.get(place, []) if one.entry["task"] == "asks"]
        for one in [one for one in self.writes.get(place, []) if one not in asked]:
            if is_there := one.items <= left:
                kept.append(Written(one.entry, is_sure=True))
            may_lack = not ((one.is_sure and must) or one.items & left)
            check(is_there or may_lack, f"{where}: of {one} there is {sorted(left)}")
            left -= one.items
            if counts is not None and not one.is_sure:
                counts["happened" if is_there else "did not happen"] += 1
        found_asked = [one for one in asked if one.items & left]
        may_lack = not (found_asked or (must and any(one.is_sure for one in asked)))
        check(len(found_asked) == 1 or may_lack, f"{where}: of {asked} there is {sorted(left)}")
        for one in found_asked[:1]:
            left -= one.items
            kept.append(Written(one.entry, is_sure=True))
            if counts is not None and len(asked) > 1:
                counts["happened" if not one.is_sure else "did not happen"] += 1
        check(not left, f"{where}: writes are there that must not be: {left}")
        if counts is not None and must:
            self.writes[place] = kept


class World:
    """A keyspace with its database, and everything that was written there."""

    def __init__(self, name: str, history: str, redis_url: str, postgres_url: str) -> None:
        self.name, self.history = name, history
        self.where = {"redis": redis_url, "prefix": name, "postgres": postgres_url}
        self.conversations: dict[str, Conversation] = {}
        self.keyspace = Keyspace(name)

    @contextmanager
    def stores(self) -> Iterator[tuple[TieredSaver, RedisSaver, PostgresSaver]]:
        """New savers: over both tiers, over hot alone, over cold alone."""
        with ExitStack() as stack:
            cold = PostgresSaver(stack.enter_context(pool(self.where["postgres"], "checks", asynchronous=False)))
            options: Any = {"prefix": self.name, "ttl": {"default_ttl": TTL}, "cache_bytes": 0}
            hot = stack.enter_context(RedisSaver.from_conn_string(self.where["redis"], **options))
            tiers = TieredSaver(hot, cold, mode="write-behind", flusher=False, cold_history=self.history)
            yield tiers, hot, cold

    def conversation(self, thread: str) -> Conversation:
        return self.conversations.setdefault(thread, Conversation(thread, is_coalescing=self.history == "latest"))


class Worker:
    """A process that runs `crash_workers.py`, and its journal."""

    def __init__(self, folder: str, number: int) -> None:
        self.name, self.journal, self.position = f"victim{number}", Path(folder, f"journal{number}"), 0
        here, package = Path(__file__).parent, Path(redis_saver.__file__).parent.parent
        paths = [str(here), str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.errors = Path(folder, f"errors{number}")
        with self.journal.open("wb") as out, self.errors.open("wb") as errors:
            self.process = programs.Program(
                str(here / "crash_workers.py"), given=subprocess.PIPE, out=out, err=errors,
                environment={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, folder=Path(folder),
            )  # fmt: skip
        self.world: Any = None
        self.kind = ""
        self.takes = 0.0
        """Approximate seconds per write."""

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def lines(self) -> Iterator[dict[str, Any]]:
        """New lines of the journal."""
        with self.journal.open("rb") as journal:
            journal.seek(self.position)
            new = journal.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.position += len(whole)
        yield from map(json.loads, whole.splitlines())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


KINDS: list[dict[str, Any]] = [
    {"asynchronous": False, "mode": "write-behind", "flusher": True},
    {"asynchronous": True, "mode": "write-through"},
    {"asynchronous": True, "mode": "write-behind", "flusher": False},
    {"asynchronous": False, "mode": "write-through"},
    {"asynchronous": True, "mode": "write-behind", "flusher": True},
    {"asynchronous": False, "mode": "write-through"},
    {"asynchronous": False, "mode": "write-behind", "flusher": False},
]
"""The kinds of writers. Each new writer is of the next kind."""


class Arena:
    """Two servers, two worlds, a writer for each, and a flusher for both."""

    def __init__(self, seed: int, folder: str, postgres: Postgres, say: Callable[[str], None]) -> None:
        self.seed, self.folder, self.say = seed, folder, say
        self.plan, self.chance = random.Random(seed), random.Random(seed)  # one decides on kills, the other on checks
        self.counts: Counter[str] = Counter()
        self.kills: list[str] = []
        self.deck: list[str] = []
        self.started = self.pauses = 0
        self.gone: list[str] = []
        self.postgres = postgres
        self.redis = Server("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-min-size", "1mb")
        self.spare: list[Worker] = []
        self.kind = seed
        self.worlds = []
        for history in ("all", "latest"):
            name = f"kills{seed}{history}"
            self.worlds.append(World(name, history, self.redis.url, new_database(postgres.url)))
            with self.worlds[-1].stores() as (_, _, cold):
                cold.setup()
        self.writers = [self.writer(world) for world in self.worlds]
        self.flusher = self.a_flusher()
        self.is_going = False

    def close(self) -> None:
        for worker in [*self.spare, *getattr(self, "writers", []), *filter(None, [getattr(self, "flusher", None)])]:
            if worker.process.poll() is None:
                worker.kill()
        self.redis.stop()

    def a_process(self) -> Worker:
        """A process that has already started. Start another for later."""
        while len(self.spare) < 2:
            self.spare.append(Worker(self.folder, self.started))
            self.started += 1
        return self.spare.pop(0)

    def writer(self, world: World) -> Worker:
        worker, kind = self.a_process(), dict(KINDS[self.kind % len(KINDS)])
        self.kind += 1
        worker.world, worker.kind = world, json.dumps(kind)
        worker.takes = 0.008 if kind["mode"] == "write-through" else 0.002
        settings = {key: one for key, one in kind.items() if key != "asynchronous"}
        if settings["mode"] == "write-behind":
            settings |= {"cold_history": world.history, "flush_interval": 0.2}
        spec = {
            **world.where, "name": worker.name, "owner": world.history, "asynchronous": kind["asynchronous"], "settings": settings,
            "seed": f"{self.seed} {worker.name}", "goes_back": world.history == "all",
        }  # fmt: skip
        worker.tell(json.dumps(spec))
        return worker

    def a_flusher(self) -> Worker:
        worker = self.a_process()
        self.kind += 1
        worlds = [
            {**world.where, "settings": {"mode": "write-behind", "cold_history": world.history, "flush_interval": 0.2}}
            for world in self.worlds
        ]
        worker.tell(json.dumps({"name": worker.name, "asynchronous": self.kind % 2 == 0, "worlds": worlds}))
        return worker

    # -- kills

    def kill_some(self) -> None:
        """Kill one or two processes at once, and start their successors."""
        victims = [self.next_victim()]
        if self.plan.random() < 0.2 and (another := self.next_victim()) not in victims:
            victims.append(another)
        place, moment = self.plan.randrange(len(self.writers)), self.plan.random()
        pause, killed = self.plan.choice([0, 0.3, 0.8]), self.writers[place]
        self.wait_for_a_moment(killed, moment * killed.takes)
        kills = {"flusher": self.kill_flusher, "redis": self.redis.kill, "postgres": self.postgres.kill}
        for victim in victims:
            kills.get(victim, lambda: self.kill_writer(killed))()
            self.kills.append(victim)
        time.sleep(pause)  # a client retries for about 0.15 s
        for victim in victims:
            if victim == "writer":
                self.writers[place] = self.writer(killed.world)
            elif victim == "flusher":
                self.flusher = self.a_flusher()
            else:
                (self.redis if victim == "redis" else self.postgres).start()

    def next_victim(self) -> str:
        """The next kind of victim, at random but each equally often."""
        self.deck = self.deck or self.plan.sample(VICTIMS, len(VICTIMS))
        return self.deck.pop()

    def wait_for_a_moment(self, worker: Worker, then: float) -> None:
        """Wait until a writer begins an operation, up to 2 s, so that most kills interrupt one."""
        until = time.monotonic() + 2
        with worker.journal.open("rb") as journal:
            while time.monotonic() < until:
                journal.seek(max(0, journal.seek(0, os.SEEK_END) - 1000))
                if b'"begin"' in journal.read().rstrip().rpartition(b"\n")[2]:
                    time.sleep(then)
                    return
                time.sleep(0.0002)

    def kill_writer(self, worker: Worker) -> None:
        worker.kill()
        self.gone.append(worker.name)
        self.read_journals()
        for conversation in worker.world.conversations.values():
            conversation.cut_off(self.counts)

    def kill_flusher(self) -> None:
        self.flusher.kill()
        self.gone.append(self.flusher.name)
        self.read_journal(self.flusher)

    def go(self) -> None:
        """Tell all writers to write."""
        wait_for_the_dead(self.postgres.url, *self.gone)
        for worker in self.writers:
            worker.tell("go")

    # -- checks

    def read_journals(self) -> None:
        for worker in [*self.writers, self.flusher]:
            self.read_journal(worker)

    def read_journal(self, worker: Worker) -> str:
        """Process a worker's journal. Return the name of the last pause that the worker has reached."""
        paused = ""
        for line in worker.lines():
            check("bug" not in line, f"{worker.name}: {line.get('bug')}")
            paused = line.get("paused", paused)
            if "thread" in line:
                conversation = worker.world.conversation(line["thread"])
                if conversation.writer != worker.name:
                    conversation.writer = worker.name
                    conversation.history.append(f"{worker.name}, {worker.kind}:")
                with self.telling(worker.world, conversation):
                    conversation.note(line, self.counts)
        return paused

    @contextmanager
    def telling(self, world: World, conversation: Conversation) -> Iterator[None]:
        """If something is lost, raise an error with the journal and both tiers' data of the thread."""
        try:
            yield
        except Lost as lost:
            raise Lost(f"thread {conversation.thread}: {lost}; " + "\n".join(self.told(world, conversation))) from lost

    def told(self, world: World, conversation: Conversation) -> list[str]:
        thread, said = conversation.thread, ["its journal ends", *conversation.history[-60:], "cold has"]
        with psycopg.connect(world.where["postgres"]) as connection:
            for table, columns in (
                ("checkpoints", "checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint->'channel_versions'"),
                ("checkpoint_blobs", "checkpoint_ns, channel, version, type"),
            ):
                query = f"SELECT {columns} FROM {table} WHERE thread_id = %s ORDER BY 1, 2, 3"
                said += [f"{table} {row}" for row in connection.execute(query, (thread,))]
        said.append("hot has")
        with self.redis.client() as client:
            keys = world.keyspace.tier_keys(thread)
            for key in (keys.data_key, keys.flush):
                said += [f"{key!r} {field!r} {one[:80]!r}" for field, one in client.hgetall(key).items()]
            for key in (keys.index_key, keys.dirty, keys.intents):
                said.append(f"{key!r} {client.zrange(key, 0, -1, withscores=True)}")
        return said

    def let_work(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for worker in [*self.writers, self.flusher]:
                if worker.process.poll() is not None:
                    self.read_journals()
                    raise Lost(f"{worker.name} ended: {worker.errors.read_text()}")
            time.sleep(min(left, 0.05))

    def pause(self) -> None:
        self.pauses += 1
        name = f"pause {self.pauses}"
        for worker in self.writers:
            worker.tell(name)
        until, waiting = time.monotonic() + PATIENCE, list(self.writers)
        while waiting := [worker for worker in waiting if self.read_journal(worker) != name]:
            check(time.monotonic() < until, f"a writer does not end what it does: {waiting}")
            time.sleep(0.01)

    def look(self) -> None:
        """Check everything while no writer works: both tiers together, and after a flush each alone."""
        wait_for_the_dead(self.postgres.url, *self.gone)
        self.read_journals()
        for world in self.worlds:
            with world.stores() as (tiers, hot, cold):
                for conversation in world.conversations.values():
                    with self.telling(world, conversation):
                        self.look_at_both(tiers, conversation)
                check(tiers.flush(PATIENCE) == 0, f"all is not in cold after {PATIENCE} s: {tiers.stats()}")
                self.look_at_keys(world)
                for conversation in world.conversations.values():
                    with self.telling(world, conversation):
                        self.look_at_each(tiers, hot, cold, world, conversation)
                for conversation in world.conversations.values():
                    if self.chance.random() < 0.15:
                        self.evict(world, conversation.thread)

    def evict(self, world: World, thread: str) -> None:
        with self.redis.client() as client:
            client.delete(*world.keyspace.tier_keys(thread)[:2])

    def look_later(self) -> None:
        """Check again after the time limit of dead writers, when no intent may be left."""
        time.sleep(context.WRITER_GONE / 1000)
        self.look()
        with self.redis.client() as client:
            intents = list(client.scan_iter(match="*:intents", count=1000))
            check(not intents, f"there still are {intents}")

    def look_at_both(self, tiers: TieredSaver, conversation: Conversation) -> None:
        """Check a thread with a saver that has not read it before."""
        found = list(tiers.list(config(conversation.thread, None)))
        conversation.settle(found, self.counts)
        self.look_at_some(tiers, conversation, found)

    def look_at_some(self, saver: Any, conversation: Conversation, listed: Sequence[Any]) -> None:
        """Check get_tuple for the newest checkpoints, and for some ids."""
        for ns in NAMESPACES:
            newest, found = conversation.newest(ns), saver.get_tuple(config(conversation.thread, ns))
            check((found and found.checkpoint["id"]) == newest, f"the newest of {ns!r} is {found}, not {newest}")
            if found:
                conversation.compare((ns, found.checkpoint["id"]), found)
        newest_ones = {conversation.place(one) for one in listed}
        if conversation.is_coalescing:
            newest_ones = conversation.newest_ones
        sampled = [one for one in listed if conversation.place(one) in newest_ones]
        for one in self.chance.sample(sampled, min(4, len(sampled))):
            check(plain(saver.get_tuple(one.config)) == plain(one), f"{one.config} is not what is listed")

    def look_at_keys(self, world: World) -> None:
        with self.redis.client() as client:
            keys = list(client.scan_iter(match=f"{world.name}:*", count=1000))
            dirty = [key for key in keys if key.endswith(b":dirty")]
            check(not dirty, f"after a drain there are {dirty}")
            forever = [key for key in keys if client.pttl(key) == -1]
            check(not forever, f"without a deadline there are {forever}")

    def look_at_each(
        self, tiers: TieredSaver, hot: RedisSaver, cold: PostgresSaver, world: World, conversation: Conversation
    ) -> None:
        """Check each tier after a flush."""
        thread, place = conversation.thread, conversation.place
        in_cold = {place(one): one for one in cold.list(config(thread, None))}
        may = conversation.puts.keys() if conversation.is_coalescing else conversation.sure
        must = conversation.newest_ones if conversation.is_coalescing else conversation.sure
        lacks, more = must - in_cold.keys(), in_cold.keys() - may
        check(not lacks and not more, f"cold lacks {lacks}, and must not have {more}")
        for where, one in in_cold.items():
            conversation.compare(where, one)
        for ns in NAMESPACES:
            found = cold.get_tuple(config(thread, ns))
            is_newest = (found and found.checkpoint["id"]) == conversation.newest(ns)
            check(is_newest, f"of cold the newest of {ns!r} is {found}")
        listed = list(tiers.list(config(thread, None)))
        there = set(map(place, listed))
        check(must <= there <= may, f"after the drain there are not {must - there}, and there are {there - may}")
        self.look_at_some(tiers, conversation, listed)
        with self.redis.client() as client:
            if client.exists(world.keyspace.tier_keys(thread).intents):
                return  # readers do not trust hot
        for one in hot.list(config(thread, None)):
            conversation.compare(place(one), one)
            if place(one) in must:
                cold_one = in_cold[place(one)]
                check(plain(one) == plain(cold_one), f"hot says {plain(one)}, cold says {plain(cold_one)}")

    # -- a run

    def run(self, kills: int, rounds: int) -> None:
        try:
            for number in range(rounds):
                began = time.monotonic()
                self.go()
                self.let_work(0.6)
                while len(self.kills) < kills * (number + 1) / rounds:
                    self.let_work(self.plan.uniform(0.05, 0.7))
                    self.kill_some()
                    self.go()
                self.let_work(self.plan.uniform(0.1, 0.5))
                self.pause()
                worked = time.monotonic() - began
                self.look()
                if number % 5 == 4 or number == rounds - 1:
                    self.look_later()
                self.say(
                    f"seed {self.seed}: {len(self.kills)} kills {dict(Counter(self.kills))}; {dict(self.counts)}; "
                    f"{worked:.1f} s of work, {time.monotonic() - began - worked:.1f} s of checks"
                )
        except Lost as lost:
            kills = f"{len(self.kills)} kills, the last ones {self.kills[-5:]}"
            raise Lost(f"seed {self.seed}, after {kills}: {lost}") from lost


@contextmanager
def arena(seed: int, postgres: Postgres, say: Callable[[str], None]) -> Iterator[Arena]:
    # The checks use the same short time limits as the writers.
    with quick(), tempfile.TemporaryDirectory(prefix="redis-saver-kills-") as folder:
        made = Arena(seed, folder, postgres, say)
        try:
            yield made
        finally:
            made.close()
