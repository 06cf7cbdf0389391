"""Histories of event loops, OS threads and forks that begin and end during calls. `test_forks_and_loops.py` runs this.

    PYTHONPATH=. python tests/client/forking.py URL KIND FIRST_SEED HISTORIES [--postgres URL]

Each history has one saver and several actors: OS threads with blocking calls, OS threads with a series of short event
loops, and forked children, which do the same. A loop that ends cancels or abandons its tasks. A fork may happen at any
moment. Each actor uses its own threads (conversations), which reveals swapped answers. Each call has a deadline.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from typing import Any

from redis_saver import AsyncRedisSaver, AsyncTieredSaver, RedisSaver, TieredSaver
from redis_saver._client import aio
from redis_saver._client.clients import connect
from redis_saver._tiered.flushing import FLUSH_LEASE

DEADLINE = 20.0
"""Time limit of a call in seconds, for a busy machine. A call that hangs never ends."""
KINDS = ("sync", "async", "tiered", "atiered")


def checkpoint(number: int, value: Any) -> Any:
    version = f"{number:032}.{0:020}"
    return {
        "v": 1, "id": f"{number:08d}", "ts": "2026", "channel_values": {"n": value}, "channel_versions": {"n": version},
        "versions_seen": {},
    }, {"n": version}  # fmt: skip


def config(thread: str = "t") -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


class History:
    def __init__(self, saver: Any, seed: int, log: list[str]) -> None:
        self.saver, self.random, self.seed, self.log = saver, random.Random(seed), seed, log
        self.stop = threading.Event()

    def name(self, rng: random.Random) -> str:
        return f"{self.seed}-{os.getpid()}-{rng.getrandbits(48):x}"

    @contextlib.contextmanager
    def in_time(self, what: str) -> Any:
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        if took > DEADLINE:
            self.log.append(f"{what} took {took:.1f} s")

    def calls(self, rng: random.Random, count: int) -> None:
        """Make blocking calls."""
        thread = self.name(rng)
        for number in range(1, count + 1):
            value = [thread, number, "x" * rng.choice((0, 10, 3000))]
            given, versions = checkpoint(number, value)
            with self.in_time("a synchronous put and get"):
                self.saver.put(config(thread), given, {"step": number}, versions)
                found = self.saver.get_tuple(config(thread))
            assert found.checkpoint["channel_values"]["n"] == value, (thread, number, found)
        if rng.random() < 0.3:
            with self.in_time("a synchronous list"):
                assert [one.checkpoint["id"] for one in self.saver.list(config(thread))] == [
                    f"{n:08d}" for n in range(count, 0, -1)
                ]

    async def acalls(self, rng: random.Random, count: int) -> None:
        """Make async calls, several at once. Cancel some."""
        thread = self.name(rng)
        for number in range(1, count + 1):
            value = [thread, number, "x" * rng.choice((0, 10, 3000))]
            given, versions = checkpoint(number, value)
            with self.in_time("a put and gets"):
                await self.saver.aput(config(thread), given, {"step": number}, versions)
                asked = [asyncio.ensure_future(self.saver.aget_tuple(config(thread))) for _ in range(rng.randint(1, 4))]
                if rng.random() < 0.3:
                    await asyncio.sleep(0)
                    asked[0].cancel()
                answers = await asyncio.gather(*asked, return_exceptions=True)
            for position, found in enumerate(answers):
                if isinstance(found, asyncio.CancelledError) and position == 0:
                    continue
                assert not isinstance(found, BaseException), found
                assert found.checkpoint["channel_values"]["n"] == value, (thread, number, found)

    def short_loop(self, rng: random.Random) -> None:
        """Run a loop that may end while tasks are waiting, which asyncio.run cancels."""

        async def main() -> None:
            await asyncio.gather(
                *(self.acalls(random.Random(rng.random()), rng.randint(1, 3)) for _ in range(rng.randint(1, 3)))
            )
            if rng.random() < 0.5:
                self.left = asyncio.ensure_future(self.acalls(random.Random(rng.random()), 5))
                await asyncio.sleep(rng.choice((0, 0.001)))

        asyncio.run(main())

    def actor(self, seed: float, act: Any) -> None:
        rng = random.Random(seed)
        try:
            while True:
                act(rng)
                if self.stop.is_set():
                    break
        except BaseException:
            self.log.append(traceback.format_exc())

    def actors(self, count: int, acts: list[Any]) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self.actor, args=(self.random.random(), self.random.choice(acts)), daemon=True)
            for _ in range(count)
        ]
        for thread in threads:
            thread.start()
        return threads

    def child(self, seed: float, depth: int) -> None:
        """Run new actors in a forked child, and maybe fork again."""
        self.random, self.log, self.stop = random.Random(seed), [], threading.Event()
        threads = self.actors(2, self.acts())
        if depth and self.random.random() < 0.5:
            self.fork(depth - 1)
        self.stop.set()
        self.join(threads)
        self.close(1.0)
        sys.stderr.write("".join(self.log))
        sys.stderr.flush()
        os._exit(1 if self.log else 0)

    def fork(self, depth: int = 1) -> None:
        seed = self.random.random()
        if not (pid := os.fork()):
            signal.alarm(int(3 * DEADLINE))
            try:
                self.child(seed, depth)
            finally:
                traceback.print_exc()
                os._exit(2)
        _, status = os.waitpid(pid, 0)
        if status:
            self.log.append(f"a child ended with {status}\n")

    def close(self, timeout: float) -> int:
        """Stop the flusher and flush the backlog of all processes. Return the number of records left."""
        if isinstance(self.saver, TieredSaver):
            return self.saver.close(timeout)
        return asyncio.run(self.saver.aclose(timeout)) if isinstance(self.saver, AsyncTieredSaver) else 0

    def acts(self) -> list[Any]:
        return [lambda rng: self.calls(rng, rng.randint(1, 4)), self.short_loop]

    def join(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join(2 * DEADLINE)
            if thread.is_alive():
                self.log.append(
                    "an actor hangs\n" + "".join(traceback.format_stack(sys._current_frames()[thread.ident]))
                )  # type: ignore[index]

    def run(self) -> None:
        threads = self.actors(self.random.randint(1, 4), self.acts())
        for _ in range(self.random.randint(1, 3)):
            time.sleep(self.random.choice((0, 0.0005, 0.005)))
            if self.random.random() < 0.3:
                self.calls(self.random, 1)
            self.fork()
        self.stop.set()
        self.join(threads)
        # No other process is active now. One that died during a claim still holds it until the lease expires.
        if left := self.close(DEADLINE + FLUSH_LEASE / 1000):
            self.log.append(f"{left} records were not brought to cold: {self.saver.stats()}\n")


def a_saver(stack: contextlib.ExitStack, kind: str, client: Any, prefix: str, postgres: str | None) -> Any:
    if kind == "sync":
        return RedisSaver(client, prefix=prefix)
    if kind == "async":
        return AsyncRedisSaver(client, prefix=prefix)
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    assert postgres is not None
    options: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    settings: Any = {"mode": "write-behind", "flush_interval": 0.05, "flush_workers": 2}
    if kind == "tiered":
        pool: Any = stack.enter_context(ConnectionPool(postgres, min_size=1, max_size=4, open=True, kwargs=options))
        return TieredSaver(RedisSaver(client, prefix=prefix), PostgresSaver(pool), **settings)

    async def make() -> Any:
        pool = AsyncConnectionPool(postgres, min_size=0, max_size=4, open=False, kwargs=options)
        return AsyncTieredSaver(AsyncRedisSaver(client, prefix=prefix), AsyncPostgresSaver(pool), **settings)

    return asyncio.run(make())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("first", type=int)
    parser.add_argument("histories", type=int)
    parser.add_argument("--postgres")
    given = parser.parse_args()
    logging.getLogger("redis_saver").setLevel(logging.ERROR)  # children leave records to their parent
    logging.getLogger("asyncio").addFilter(lambda record: "Executing " not in str(record.msg))  # slow machine
    failed = 0
    for seed in range(given.first, given.first + given.histories):
        aio.OWN_AFTER = random.Random(seed).choice((0.0, 0.002, 1.0))
        log: list[str] = []
        client = connect(given.url, asynchronous=given.kind in ("async", "atiered"))
        with contextlib.ExitStack() as stack:
            saver = a_saver(stack, given.kind, client, f"h{seed}-{os.getpid()}", given.postgres)
            signal.alarm(int(6 * DEADLINE))
            History(saver, seed, log).run()
        if given.kind in ("sync", "tiered"):  # unclosed savers may be in a cycle, and warn later
            client.close()
        for text in log:
            failed = 1
            sys.stderr.write(f"seed {seed}: {text}\n")
    signal.alarm(0)
    return failed


if __name__ == "__main__":
    sys.exit(main())
