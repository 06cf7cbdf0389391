"""Two tiers for tests: a Redis and a Postgres database of one test, and ways to make them fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import psycopg_pool
import pytest
import redis
from tests.support.factories import checkpoint, config
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.types import INTERRUPT
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around, Meanwhile, asked, script_of

from redis_saver import AsyncTieredSaver, TieredSaver
from redis_saver._common.names import Keyspace
from redis_saver._tiered import flushing
from redis_saver._tiered.requests import ColdCall
from redis_saver._tiered.threads import NEW_KEPT


DEAD = psycopg_pool.PoolClosed
"""Error of a `Tiers.dead_cold`."""


class FlakySaver:
    """A cold saver that can fail or wait, and counts its calls."""

    def __init__(self, saver: Any) -> None:
        self.saver = saver
        self.calls: list[str] = []
        self.fail: set[str] = set()
        self.poison: set[str] = set()
        """Ids of checkpoints that it refuses."""
        self.before: dict[str, Any] = {}
        """Awaited (sync: called) once, before a method."""
        self.after: dict[str, Any] = {}

    def wrap(self) -> Any:
        """Return an instance of a subclass, as `cold` has to be a saver."""
        flaky, saver = self, self.saver

        class Wrapped(type(saver)):  # type: ignore[misc]
            def __init__(self) -> None:
                self.__dict__.update(saver.__dict__)

        for method in ("get_tuple", "put", "put_writes", "delete_thread", "list"):
            setattr(Wrapped, method, flaky._sync(method))
            setattr(Wrapped, "a" + method, flaky._async("a" + method))
        return Wrapped()

    def _note(self, method: str, given: Any = ()) -> None:
        self.calls.append(method)
        if method in self.fail:
            raise psycopg.OperationalError(f"{method} fails on purpose")
        if any(isinstance(one, dict) and one.get("id") in self.poison for one in given):
            raise ValueError("cannot be stored")

    def _sync(self, method: str) -> Any:
        def call(own: Any, *args: Any, **kwargs: Any) -> Any:
            self._note(method, args)
            if first := self.before.pop(method, None):
                first()
            answer = getattr(type(self.saver), method)(own, *args, **kwargs)
            if act := self.after.pop(method, None):
                act()
            return answer

        return call

    def _async(self, method: str) -> Any:
        plain = method[1:]
        if plain == "list":

            def listing(own: Any, *args: Any, **kwargs: Any) -> Any:
                self._note(plain)
                return type(self.saver).alist(own, *args, **kwargs)

            return listing

        async def call(own: Any, *args: Any, **kwargs: Any) -> Any:
            self._note(plain, args)
            if first := self.before.pop(plain, None):
                await first()
            answer = await getattr(type(self.saver), method)(own, *args, **kwargs)
            if act := self.after.pop(plain, None):
                await act()
            return answer

        return call


_shared_pools: dict[tuple[int, str], ConnectionPool] = {}
"""Blocking pools that all tests of this process share, closed when it ends."""


class Tiers:
    """A Redis and a Postgres database of one test, and tiered savers over both, each as in its own process."""

    def __init__(self, target: Target, url: str) -> None:
        self.target, self.url = target, url
        self.pools: list[Any] = []
        self._shared: Any = None
        self.native_async = target.flavour == "async"
        self.passed = 0.0

    async def cold(self, **more: Any) -> Any:
        """Make a saver over Postgres. Savers without options share connections, which take long to make."""
        if more:
            self.pools.append(pool := await self._pool(**more))
        else:
            pool = await self._shared_pool()
        return AsyncPostgresSaver(pool) if self.native_async else PostgresSaver(pool)

    async def _shared_pool(self) -> Any:
        if self.native_async:  # an async pool belongs to the test's event loop
            if self._shared is None:
                self.pools.append(await self._pool())
                self._shared = self.pools[-1]
            return self._shared
        if (os.getpid(), self.url) not in _shared_pools:
            _shared_pools[os.getpid(), self.url] = await self._pool()
        return _shared_pools[os.getpid(), self.url]

    async def _pool(self, **more: Any) -> Any:
        options: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row, **more}
        kind: Any = AsyncConnectionPool if self.native_async else ConnectionPool
        pool = kind(self.url, min_size=1, max_size=20, open=not self.native_async, kwargs=options)
        if self.native_async:
            await pool.open()
        return pool

    async def dead_cold(self) -> Any:
        """Make a saver over a Postgres that is down: every call raises (`DEAD`)."""
        pool = await self._pool()
        await pool.close() if self.native_async else pool.close()
        return AsyncPostgresSaver(pool) if self.native_async else PostgresSaver(pool)

    async def cold_uniform(self) -> Any:
        if self.target.is_encrypted:
            return OpenedCold(await self.saver())
        return Cold(await self.cold(), self.native_async)

    async def saver(self, hot: dict[str, Any] | None = None, cold: Any = None, **settings: Any) -> Any:
        kind = AsyncTieredSaver if self.native_async else TieredSaver
        return kind(self.target.uniform(**(hot or {})).saver, cold or await self.cold(), **settings)

    async def uniform(self, **options: Any) -> Uniform:
        return Uniform(await self.saver(**options))

    async def close(self) -> None:
        for pool in self.pools:
            if isinstance(pool, AsyncConnectionPool):
                await pool.close()
            else:
                pool.close()

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement in Postgres. Return its rows, if it has any."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def evict(self, *endings: str, thread: str = "thread") -> None:
        """Delete keys of a thread, as the server's eviction may."""
        keys = Keyspace(self.target.prefix).keys(thread)
        for ending in endings or ("index", "data"):
            self.target.raw.delete(keys.index_key if ending == "index" else keys.data_key)

    def later(self, milliseconds: int) -> None:
        """Let time pass for deadlines of keys, intents, claims and retries in Redis, and for a `Clock`.

        Not for the scores of `:dirty`, the times in `unflushed`, or the server's clock: no record gets older.
        """
        self.passed += milliseconds / 1000
        raw = self.target.raw
        for key in self.target.keys():
            if (left := raw.pttl(key)) >= 0:
                raw.pexpire(key, left - milliseconds)
            if key.endswith(b":intents"):
                for intent in raw.zrange(key, 0, -1):
                    raw.zrem(key, intent)
                    raw.zadd(key, {b"%015d" % max(0, int(intent[:15]) - milliseconds) + intent[15:]: 0})
            if key.endswith(b":flush"):
                for field, noted in raw.hgetall(key).items():
                    if field == b"until":
                        raw.hset(key, field, int(noted) - milliseconds)
                    elif field.startswith(b"x"):
                        tries, due, error = noted.split(b" ", 2)
                        raw.hset(key, field, b"%s %d %s" % (tries, int(due) - milliseconds, error))

    def fails(self, uniform: Uniform, script: Any = None) -> Any:
        """Make hot fail always, or from one script on, until the returned function is called."""
        hot, has_failed = uniform.saver.hot, script is None
        works = hot._driver

        def around(request: Any) -> Any:
            nonlocal has_failed
            has_failed |= script_of(request) is script
            if has_failed:
                raise redis.ConnectionError("on purpose")
            return (yield request)

        Around(hot, around)
        return lambda: setattr(hot, "_driver", works)


class Clock:
    """A replacement of the module `time` that follows `Tiers.later`."""

    def __init__(self, tiers: Tiers) -> None:
        self.tiers = tiers

    def time(self) -> float:
        return time.time() + self.tiers.passed

    def monotonic(self) -> float:
        return time.monotonic() + self.tiers.passed


class Cold(Uniform):
    """A `Uniform` of any saver."""

    def __init__(self, saver: Any, native_async: bool) -> None:
        self.saver, self.native_async = saver, native_async


def reaches_cold(tiers: Tiers, request: Any) -> bool:
    """True if a request calls cold with values. With encryption, that is the call in which they are sealed."""
    return isinstance(request, ColdCall) and request.is_sealed == tiers.target.is_encrypted


class OpenedCold:
    """The cold saver, as operations of a saver with `encryption=` use it."""

    def __init__(self, over: Any) -> None:
        self.saver, self._driver, self.native_async = over.cold, over._driver, isinstance(over, AsyncTieredSaver)

    def __getattr__(self, method: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            request = ColdCall(method, arguments, options)
            return (await self._driver.arequest(request)) if self.native_async else self._driver.request(request)

        return call


def plain(one: Any) -> Any:
    """Return a checkpoint without what Postgres returns differently."""
    return None if one is None else (one.config["configurable"], one.checkpoint, one.parent_config, one.pending_writes)


async def written(uniform: Any, thread: str = "thread") -> list[dict[str, Any]]:
    """Put three checkpoints, and pending writes of several tasks on the last; read first, as a graph does.

    One channel stays the same in all of them.
    """
    assert await uniform.get_tuple(config(thread)) is None
    made, versions = [], {"whole": f"{1:032}.1"}
    for step in range(3):
        parent = made[-1]["configurable"]["checkpoint_id"] if made else None
        new = {"n": f"{step + 1:032}.1", **(versions if step == 0 else {})}
        versions = {**versions, **new}
        values = {"n": [step], "whole": {"a": ["x" * 3000, "y"]}}
        one = checkpoint(values, versions)
        made.append(
            await uniform.put(config(thread, "", parent), one, {"source": "loop", "step": step, "parents": {}}, new)
        )
    await uniform.put_writes(made[-1], [("n", [7]), ("whole", {"b": 1})], "task-b", "path-1")
    await uniform.put_writes(made[-1], [("n", [8])], "task-a", "path-2")
    await uniform.put_writes(made[-1], [(INTERRUPT, ["wait"])], "task-c", "path-0")
    return made


def between(uniform: Uniform, script: Any, act: Any) -> None:
    """Act once, just before a saver calls a script."""
    left = [act]
    Meanwhile(uniform.saver.hot, lambda request: left.pop() if left and script_of(request) is script else None)


BEHIND: dict[str, Any] = {"mode": "write-behind", "flusher": False}
"""Settings of a saver that flushes only when the test says so."""
LATEST: dict[str, Any] = {**BEHIND, "cold_history": "latest"}
both_modes = pytest.mark.parametrize("mode", [{}, BEHIND], ids=["write-through", "write-behind"])
both_histories = pytest.mark.parametrize("behind", [BEHIND, LATEST], ids=["all", "latest"])


@pytest.fixture
def is_encrypted() -> bool:
    """True, for a module whose savers all encrypt. It imports this fixture."""
    return True


@contextmanager
def locked(url: str, table: str = "checkpoints") -> Iterator[None]:
    """Lock one or several tables, as any ALTER TABLE does."""
    with psycopg.connect(url) as connection:
        connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield


TABLES = "checkpoints, checkpoint_blobs, checkpoint_writes"


def keys_of(tiers: Tiers, thread: str = "thread") -> Any:
    return Keyspace(tiers.target.prefix).tier_keys(thread)


def mark_new(tiers: Tiers, thread: str) -> None:
    """Mark a thread that no tier has, as `new_thread` does."""
    lease = keys_of(tiers, thread).lease
    tiers.target.raw.hset(lease, "new", "nonce")
    tiers.target.raw.pexpire(lease, NEW_KEPT)


async def drained(uniform: Uniform) -> None:
    assert await uniform.flush(timeout=30) == 0
    assert uniform.saver.stats().tiers.backlog == 0


async def only_in_cold(tiers: Tiers, uniform: Uniform) -> None:
    """Flush, and let hot lose the thread."""
    await drained(uniform)
    tiers.evict()


async def flushed_until(uniform: Uniform, done: Callable[[int], Any]) -> int:
    """Flush until the number of records left satisfies `done`. A flush may run out of time before it begins."""
    end = time.monotonic() + 30
    while not done(left := await uniform.flush(timeout=0.3)):
        assert time.monotonic() < end, left
    return left


def named(url: str, name: str) -> str:
    """Return a Postgres URL with a name for processes that will be killed."""
    return f"{url}{'&' if '?' in url else '?'}application_name={name}"


def wait_for_the_dead(url: str, *names: str) -> None:
    """Wait until Postgres has ended the connections of killed processes."""
    end, query = time.monotonic() + 60, "SELECT 1 FROM pg_stat_activity WHERE application_name = ANY(%s)"
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(query, (list(names),)).fetchall():
            assert time.monotonic() < end, "Postgres still works for processes that are gone"
            time.sleep(0.01)


async def stalled(tiers: Tiers, uniform: Uniform, *, is_late: bool = False) -> Any:
    """Start a flush that stops before cold gets anything.

    Its claim is open until the returned function continues it, or has expired (`is_late`).
    """
    saver = uniform.saver
    operation = flushing.flush(saver._context, "thread")
    request = next(operation)
    while not isinstance(request, ColdCall):
        answer = await asked(uniform, request)
        request = operation.send(answer)

    if is_late:
        tiers.target.raw.hset(keys_of(tiers).flush, "until", 0)

    async def go_on() -> Any:
        nonlocal request
        while True:
            answer = await asked(uniform, request)
            try:
                request = operation.send(answer)
            except StopIteration as end:
                return end.value

    return go_on


VERSIONS = {"n": f"{9:032}.1"}


def new(number: int = 9) -> Any:
    """Make a checkpoint whose only channel has a new value."""
    return checkpoint({"n": [number]}, {"n": f"{number:032}.1"})


async def put_new(uniform: Any, where: Any = None, number: int = 9, **metadata: Any) -> Any:
    """Put a checkpoint of `new`. Return its config."""
    made = new(number)
    return await uniform.put(where or config(), made, metadata, made["channel_versions"])


async def two_runs(uniform: Uniform, thread: str = "thread", of: str = "") -> None:
    """Put two runs, run-1 and run-2, of one checkpoint each."""
    await uniform.get_tuple(config(thread))
    stored = await put_new(uniform, config(thread), 1, run_id=f"{of}run-1")
    await put_new(uniform, stored, 2, run_id=f"{of}run-2")


def id_of(where: Any) -> str:
    return str(where["configurable"]["checkpoint_id"])
