"""The processes that test_kills.py kills: flushers, and writers with a journal of what was begun and acknowledged.

A process reads its settings from the first line of its input, so it may be started before it is needed. Then "go" and
"pause ..." follow. It prints the journal: lines of JSON, written before each operation and after its answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import psycopg
import redis
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.types import INTERRUPT
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from redis_saver import AsyncRedisSaver, AsyncTieredSaver, RedisSaver, TieredSaver
from redis_saver._tiered import backlog, context, flush_queue, flushing
from tests.support.factories import checkpoint, config
from tests.support.uniform import Block, Uniform

FAILURES = (redis.ConnectionError, redis.TimeoutError, OSError, psycopg.OperationalError)
"""Errors that an operation may raise while a server is down. Any other error is a bug."""
MAX_STEPS = 30
"""Approximate number of checkpoints of a thread before it is deleted."""
SLOTS, THREADS = 3, 3
"""Concurrent threads of a writer, and the number of threads that each slot chooses from."""
TTL = 60
"""Minutes."""


QUICK = {
    (flushing, "FLUSH_LEASE"): 4000, (context, "WRITER_GONE"): 6000, (backlog, "SCAN_INTERVAL"): 0.5,
    (backlog, "SCAN_LEASE"): 1000, (flush_queue, "MAX_BACKOFF"): 0.5, (flushing, "MAX_PAUSE"): 1,
}  # fmt: skip
"""Time limits for dead processes, in seconds instead of minutes. Calls of cold are shorter (see `pool`)."""


@contextmanager
def quick() -> Iterator[None]:
    """Use the short time limits within a block, and restore the others after it."""
    before = {(module, name): getattr(module, name) for module, name in QUICK}
    be_quick(QUICK)
    try:
        yield
    finally:
        be_quick(before)


def be_quick(limits: dict[Any, float] = QUICK) -> None:
    """Use the short time limits from now on."""
    for (module, name), value in limits.items():
        setattr(module, name, value)


def pool(url: str, name: str, *, asynchronous: bool, size: int = 4) -> Any:
    kind: Any = AsyncConnectionPool if asynchronous else ConnectionPool
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row, "application_name": name}
    return kind(
        url, min_size=1, max_size=size, timeout=1, reconnect_timeout=0.5, open=False, kwargs=options,
        check=kind.check_connection,
    )  # fmt: skip


@asynccontextmanager
async def tiered(where: dict[str, str], name: str, *, asynchronous: bool, **settings: Any) -> AsyncIterator[Any]:
    """A saver over both tiers with its own client and pool."""
    kinds: Any = (AsyncRedisSaver, AsyncPostgresSaver, AsyncTieredSaver)
    redis_kind, postgres_kind, kind = kinds if asynchronous else (RedisSaver, PostgresSaver, TieredSaver)
    ttl = {"default_ttl": TTL, "refresh_on_read": True}
    made = redis_kind.from_conn_string(where["redis"], prefix=where["prefix"], ttl=ttl)
    async with Block(pool(where["postgres"], name, asynchronous=asynchronous), asynchronous) as connections:
        async with Block(made, asynchronous) as hot:
            yield kind(hot, postgres_kind(connections), **settings)


def value(thread: str, channel: str, version: str) -> list[str]:
    """Value of a channel, derived from its version. Some values are large enough for chunks."""
    number = int(version[:32])
    parts = range(number % 6 if channel == "big" else 0)
    return [thread, channel, version, *("x" * 700 + str(number // 4 + part) for part in parts)]


class Journal:
    """The output, one whole line at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, **line: Any) -> None:
        with self._lock:
            os.write(1, json.dumps(line).encode() + b"\n")


class Control:
    """The state that the input sets."""

    def __init__(self, journal: Journal, slots: int) -> None:
        self.paused, self._journal, self._slots, self._waiting = "pause", journal, slots, 0
        self._lock = threading.Lock()

    def listen(self) -> None:
        for line in sys.stdin:
            with self._lock:
                self.paused = line.strip().removeprefix("go")
            self._say()
        os._exit(0)  # the parent process is gone

    def _say(self) -> None:
        with self._lock:
            if self.paused and self._waiting == self._slots:
                self._journal.say(paused=self.paused)

    async def wait(self) -> None:
        """Wait during a pause. The last slot to arrive reports that nothing is under way."""
        if not self.paused:
            return
        with self._lock:
            self._waiting += 1
        self._say()
        while True:
            with self._lock:
                if not self.paused:
                    self._waiting -= 1
                    return
            await asyncio.sleep(0.005)


class Slot:
    """Writes one thread at a time, like a graph: it reads the newest checkpoint and continues from there."""

    def __init__(self, name: str, uniform: Uniform, journal: Journal, control: Control, spec: dict[str, Any]) -> None:
        self.uniform, self.journal, self.control, self.seed = uniform, journal, control, spec["seed"]
        self.goes_back = spec["goes_back"]
        self.chance = random.Random(f"{self.seed} {name}")
        self.threads = [f"{name}.{number}" for number in range(THREADS)]
        self.count = 0

    async def work(self) -> None:
        try:
            while True:
                await self.control.wait()
                try:
                    await self.turn(self.chance.choice(self.threads), "sub" if self.chance.random() < 0.2 else "")
                except FAILURES as error:
                    self.journal.say(unread=f"{type(error).__name__}: {error}")
                    await asyncio.sleep(0.05)
        except Exception:
            self.journal.say(bug=traceback.format_exc())
            raise

    async def turn(self, thread: str, ns: str) -> None:
        found = await self.uniform.get_tuple(config(thread, ns))
        where = found.config if found else config(thread, ns)
        self.journal.say(thread=thread, ns=ns, read=found and found.checkpoint["id"])
        if found and found.parent_config and self.goes_back and self.chance.random() < 0.1:
            found = await self.uniform.get_tuple(found.parent_config)
            self.journal.say(thread=thread, ns=ns, looked=found and found.checkpoint["id"])
        versions = dict(found.checkpoint["channel_versions"]) if found else {}
        step = found.metadata["step"] + 1 if found else 0
        is_hasty = self.chance.random() < 0.5
        for _ in range(self.chance.randrange(1, 9)):
            if self.control.paused:
                return
            await asyncio.sleep(0 if is_hasty else 0.03 * self.chance.random())
            kind = self.chance.random()
            if kind < (0.01 if step < MAX_STEPS else 0.3):
                await self.do(thread, {"op": "delete"}, lambda: self.uniform.delete_thread(thread))
                return
            if kind < 0.4 or not found:
                where, found = await self.put(where, versions, step), True
                if where is None:
                    return
                step += 1
            elif not await self.put_writes(where):
                return

    async def put(self, where: dict[str, Any], versions: dict[str, str], step: int) -> dict[str, Any] | None:
        told = where["configurable"]
        thread, chosen = told["thread_id"], {self.chance.choice(["a", "b", "big"]) for _ in range(2)}
        number = 1 + max((int(version[:32]) for version in versions.values()), default=0)
        new = {channel: f"{number:032}.{self.chance.randrange(10**12)}" for channel in sorted(chosen)}
        versions.update(new)
        values = {channel: value(thread, channel, version) for channel, version in versions.items()}
        one = checkpoint(values, dict(versions))
        entry = {
            "op": "put", "ns": told["checkpoint_ns"], "id": one["id"], "parent": told.get("checkpoint_id"),
            "versions": dict(versions), "step": step,
        }  # fmt: skip
        metadata = {"source": "loop", "step": step, "parents": {}}
        if await self.do(thread, entry, lambda: self.uniform.put(where, one, metadata, new)):
            return config(thread, told["checkpoint_ns"], one["id"])
        return None

    async def put_writes(self, where: dict[str, Any]) -> bool:
        told = where["configurable"]
        self.count += 1
        mark = f"{self.seed} {self.count}"
        kind = self.chance.choice(["some", "mixed", "special"])
        task = "asks" if kind == "special" else f"task {mark}"
        writes = [[self.chance.choice(["a", "b"]), f"{mark} {index}"] for index in range(self.chance.randrange(1, 4))]
        if kind == "mixed":
            writes.append([INTERRUPT, f"{mark} ?"])
        elif kind == "special":
            writes = [[INTERRUPT, f"{mark} ?"]]
        entry = {
            "op": "writes",
            "ns": told["checkpoint_ns"],
            "id": told["checkpoint_id"],
            "task": task,
            "writes": writes,
        }
        given = where, [(channel, one) for channel, one in writes], task, f"path-{task}"
        return await self.do(told["thread_id"], entry, lambda: self.uniform.put_writes(*given))

    async def do(self, thread: str, entry: dict[str, Any], call: Any) -> bool:
        """Run an operation, and retry it a few times. Return True if it was acknowledged."""
        tries = self.chance.choice([1, 1, 30])
        while True:
            self.journal.say(thread=thread, begin=entry)
            try:
                await call()
            except FAILURES as error:
                tries -= 1
                self.journal.say(thread=thread, end=f"{type(error).__name__}: {error}"[:200])
                if not tries or self.control.paused:
                    return False
                await asyncio.sleep(0.05)
            else:
                self.journal.say(thread=thread, end="ok")
                return True


async def write(spec: dict[str, Any], journal: Journal, control: Control) -> None:
    """Run the slots, in OS threads or in tasks."""
    settings = spec["settings"]
    async with tiered(spec, spec["name"], asynchronous=spec["asynchronous"], **settings) as saver:
        slots = [Slot(f"{spec['owner']}.{number}", Uniform(saver), journal, control, spec) for number in range(SLOTS)]
        if spec["asynchronous"]:
            await asyncio.gather(*(slot.work() for slot in slots))
        threads = [threading.Thread(target=lambda slot=slot: asyncio.run(slot.work()), daemon=True) for slot in slots]
        for thread in threads:
            thread.start()
        while all(thread.is_alive() for thread in threads):
            await asyncio.sleep(0.1)


async def flush(spec: dict[str, Any], journal: Journal) -> None:
    """Run a flusher."""
    async with AsyncExitStack() as stack:
        savers = []
        for world in spec["worlds"]:
            made = tiered(world, spec["name"], asynchronous=spec["asynchronous"], **world["settings"])
            savers.append(await stack.enter_async_context(made))
            if spec["asynchronous"]:
                await stack.enter_async_context(savers[-1])
        while True:
            await asyncio.sleep(0.5)
            journal.say(flushed=sum(saver.stats().tiers.flushed for saver in savers))


def main() -> None:
    be_quick()
    spec = json.loads(sys.stdin.readline())
    journal, is_writer = Journal(), "owner" in spec
    control = Control(journal, SLOTS)
    threading.Thread(target=control.listen, daemon=True).start()
    try:
        asyncio.run(write(spec, journal, control) if is_writer else flush(spec, journal))
    except Exception:
        journal.say(bug=traceback.format_exc())
    time.sleep(0.1)
    os._exit(1)


if __name__ == "__main__":
    main()
