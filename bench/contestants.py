"""The compared savers, and a function that opens each one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import secrets
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from bench import servers
from bench.meters import PostgresMeter, RedisMeter, SqliteMeter
from bench.noop import NothingSaver, RawSaver
from bench.servers import Unavailable

OURS, MEMORY, NOTHING, RAW_CALLS = "redis_saver", "InMemorySaver", "do-nothing", "raw calls"
POSTGRES, THROUGH, BEHIND, LATEST = "PostgresSaver", "TieredSaver", "TieredSaver behind", "TieredSaver latest"
CONNECTIONS = 1000
"""Limit of connections per pool, the same for all savers."""


@dataclass
class Setting:
    """Servers from the command line, and resources to close at the end of the run."""

    loop: asyncio.AbstractEventLoop
    stack: ExitStack
    redis_url: str | None = None
    valkey_saver_url: str | None = None
    redis_modules_url: str | None = None
    postgres_url: str | None = None
    raw_calls_url: str | None = None

    def redis(self, given: str | None) -> str:
        """Return the URL of a Redis for one contestant: the user's, else a new one."""
        return given or self.stack.enter_context(servers.redis_server())

    def redis_with_modules(self) -> str:
        """Return the URL of a server with RediSearch and RedisJSON: the user's, else a new one."""
        import redis

        url = self.redis_modules_url or self.stack.enter_context(servers.modules_server())
        with redis.Redis.from_url(url) as client:
            modules = str(client.execute_command("MODULE LIST")).lower()
        if missing := [name for name in ("ReJSON", "search") if name.lower() not in modules]:
            raise Unavailable(f"the server of --redis-modules-url has no module {' and '.join(missing)}")
        return url

    def later(self, close: Callable[[], Awaitable[Any]]) -> None:
        async def closing() -> None:
            await close()

        self.stack.callback(lambda: self.loop.run_until_complete(closing()))

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        async def waiting() -> Any:
            return await awaitable

        return self.loop.run_until_complete(waiting())


@dataclass
class Contestant:
    """A saver in both flavours, on the same storage."""

    name: str
    saver: BaseCheckpointSaver[Any]
    asaver: BaseCheckpointSaver[Any]
    server: str = ""
    meter: RedisMeter | PostgresMeter | SqliteMeter | None = None
    raw: tuple[Any, Any] | None = None
    """Clients of both flavours, if the saver speaks plain Redis."""
    another: Callable[[], BaseCheckpointSaver[Any]] | None = None
    """Makes another saver on the same storage, which has not seen any thread; None to reuse `saver`."""
    rest: Callable[[], object] = lambda: None
    """Remaining work, done outside the clock before the next contestant's turn."""
    at_work: Callable[[], Any] | None = None
    """Makes a saver that does this work in the background until it is closed."""
    statements: Counter[str] | None = None
    """Number of statements sent to Postgres."""
    alone: Contestant | None = None
    """Our saver on the same Redis, without the cold tier."""
    only: tuple[str, ...] = ()
    """Workloads that the contestant takes part in; empty for all."""
    threads: list[str] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)
    _mark: str = field(default_factory=lambda: secrets.token_hex(3))

    def thread(self) -> str:
        """The id of a new thread."""
        self.threads.append(f"bench-{self._mark}-{next(self._numbers):06}")
        return self.threads[-1]

    def unacquainted(self) -> BaseCheckpointSaver[Any]:
        """Return a saver that has not seen any thread, as in a new process."""
        return self.another() if self.another else self.saver

    def clear(self) -> None:
        """Delete all threads that the contestant made."""
        for thread in self.threads:
            self.saver.delete_thread(thread)
        self.threads.clear()
        if self.alone:
            self.alone.clear()


def _said(url: str) -> str:
    import redis

    info = redis.Redis.from_url(url, decode_responses=True).info("server")
    name = "Valkey" if "valkey_version" in info else "Redis"
    return f"{name} {info.get('valkey_version', info.get('redis_version'))}"


def _redis_clients(setting: Setting, url: str, package: Any) -> tuple[Any, Any, Callable[[], None]]:
    """Make clients of both flavours from a URL, with pools large enough for all callers."""
    kind = "Redis" if package.__name__ == "redis" else "Valkey"
    client = getattr(package, kind).from_url(url, max_connections=CONNECTIONS)
    aclient = getattr(package.asyncio, kind).from_url(url, max_connections=CONNECTIONS)
    setting.stack.callback(client.close)
    setting.later(aclient.aclose)

    def disconnect() -> None:
        client.connection_pool.disconnect()
        setting.wait(aclient.connection_pool.disconnect())

    return client, aclient, disconnect


def open_ours(setting: Setting) -> Contestant:
    import redis.asyncio

    from redis_saver import AsyncRedisSaver, RedisSaver

    url = setting.redis(setting.redis_url)
    client, aclient, disconnect = _redis_clients(setting, url, redis)
    return Contestant(
        OURS, RedisSaver(client), AsyncRedisSaver(aclient), _said(url), RedisMeter(url, disconnect),
        (client, aclient), lambda: RedisSaver(client),
    )  # fmt: skip


def open_memory(setting: Setting) -> Contestant:
    from langgraph.checkpoint.memory import InMemorySaver

    saver = InMemorySaver()
    return Contestant(MEMORY, saver, saver)


def open_nothing(setting: Setting) -> Contestant:
    saver = NothingSaver()
    return Contestant(NOTHING, saver, saver)


def open_raw_calls(setting: Setting) -> Contestant:
    import redis.asyncio

    url = setting.redis(setting.raw_calls_url)
    client, aclient, disconnect = _redis_clients(setting, url, redis)
    saver = RawSaver(client, aclient)
    return Contestant(RAW_CALLS, saver, saver, _said(url), RedisMeter(url, disconnect))


def open_valkey(setting: Setting) -> Contestant:
    import valkey.asyncio
    from langgraph_checkpoint_aws import AsyncValkeySaver, ValkeySaver

    url = setting.redis(setting.valkey_saver_url)
    client, aclient, disconnect = _redis_clients(setting, url, valkey)
    return Contestant(
        "ValkeySaver", ValkeySaver(client), AsyncValkeySaver(aclient), _said(url), RedisMeter(url, disconnect),
        (client, aclient), lambda: ValkeySaver(client),
    )  # fmt: skip


def open_langgraph_redis(setting: Setting) -> Contestant:
    import redis.asyncio
    from langgraph.checkpoint.redis import RedisSaver
    from langgraph.checkpoint.redis.aio import AsyncRedisSaver

    url = setting.redis_with_modules()
    client, aclient, disconnect = _redis_clients(setting, url, redis)

    def another() -> Any:
        made = RedisSaver(redis_client=client)
        made.setup()
        return made

    asaver = AsyncRedisSaver(redis_client=aclient)
    setting.wait(asaver.asetup())
    said, meter = f"{_said(url)} with RediSearch and RedisJSON", RedisMeter(url, disconnect)
    return Contestant("langgraph-checkpoint-redis", another(), asaver, said, meter, another=another)


def open_tiered(setting: Setting, name: str = THROUGH) -> Contestant:
    import redis.asyncio

    from redis_saver import AsyncRedisSaver, AsyncTieredSaver, RedisSaver, TieredSaver

    url = setting.redis(None)
    client, aclient, _ = _redis_clients(setting, url, redis)
    cold = open_postgres(setting)
    behind: dict[str, Any] = {"mode": "write-behind", "cold_history": "latest" if name == LATEST else "all"}
    settings = {} if name == THROUGH else behind
    by_hand = {**settings, "flusher": False}
    saver = TieredSaver(RedisSaver(client), cold.saver, **by_hand)
    return Contestant(
        name,
        saver,
        AsyncTieredSaver(AsyncRedisSaver(aclient), cold.asaver, **by_hand),
        f"{_said(url)}, {cold.server}",
        another=lambda: TieredSaver(RedisSaver(client), cold.saver, **by_hand),
        rest=saver.flush,
        at_work=lambda: TieredSaver(RedisSaver(client), cold.saver, **settings),
        statements=cold.statements,
        alone=None if name == LATEST else Contestant(OURS, RedisSaver(client), AsyncRedisSaver(aclient)),
        only=("operations", "tiers", "reads"),
    )


def open_postgres(setting: Setting) -> Contestant:
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    url = setting.postgres_url or setting.stack.enter_context(servers.postgres_server())
    statements: Counter[str] = Counter()

    class Counting(psycopg.Cursor[Any]):
        """A cursor that counts what it sends."""

        def execute(self, *args: Any, **kwargs: Any) -> Any:
            statements["sent"] += 1
            return super().execute(*args, **kwargs)

        def executemany(self, query: Any, params_seq: Any, **kwargs: Any) -> None:
            given = list(params_seq)
            statements["sent"] += len(given)
            super().executemany(query, given, **kwargs)

    options: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    counted = {**options, "cursor_factory": Counting}
    pool = ConnectionPool(url, min_size=1, max_size=20, open=True, kwargs=counted)
    setting.stack.callback(pool.close)

    async def make() -> tuple[Any, Any]:
        apool = AsyncConnectionPool(url, min_size=1, max_size=20, open=False, kwargs=options)
        await apool.open()
        return apool, AsyncPostgresSaver(apool)

    apool, asaver = setting.wait(make())
    setting.later(apool.close)
    saver = PostgresSaver(pool)
    saver.setup()
    with psycopg.connect(url) as connection:
        version = f"Postgres {connection.info.parameter_status('server_version')}"
    meter = PostgresMeter(url)
    setting.stack.callback(meter.connection.close)
    return Contestant(
        POSTGRES, saver, asaver, version, meter, another=lambda: PostgresSaver(pool), statements=statements
    )  # fmt: skip


def open_sqlite(setting: Setting) -> Contestant:
    import aiosqlite
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    file = f"{setting.stack.enter_context(servers.folder())}/checkpoints.sqlite"
    connection = sqlite3.connect(file, check_same_thread=False)
    setting.stack.callback(connection.close)
    saver = SqliteSaver(connection)
    saver.setup()

    async def make() -> tuple[Any, Any]:
        aconnection = await aiosqlite.connect(file)
        return aconnection, AsyncSqliteSaver(aconnection)

    aconnection, asaver = setting.wait(make())
    setting.later(aconnection.close)
    version, meter = f"SQLite {sqlite3.sqlite_version}", SqliteMeter(connection)
    return Contestant("SqliteSaver", saver, asaver, version, meter)


OPENERS: dict[str, Callable[[Setting], Contestant]] = {
    OURS: open_ours,
    MEMORY: open_memory,
    NOTHING: open_nothing,
    RAW_CALLS: open_raw_calls,
    "ValkeySaver": open_valkey,
    "langgraph-checkpoint-redis": open_langgraph_redis,
    POSTGRES: open_postgres,
    THROUGH: open_tiered,
    BEHIND: functools.partial(open_tiered, name=BEHIND),
    LATEST: functools.partial(open_tiered, name=LATEST),
    "SqliteSaver": open_sqlite,
}


def open_all(setting: Setting, names: list[str]) -> tuple[list[Contestant], dict[str, str]]:
    """Open the contestants. Returns them, and a reason for each one that cannot run here."""
    opened, absent = [], {}
    for name in names:
        try:
            opened.append(OPENERS[name](setting))
            setting.stack.callback(_clear_what_is_left, opened[-1])
        except (Unavailable, ImportError) as reason:
            absent[name] = str(reason)
        except Exception as error:
            absent[name] = f"{type(error).__name__}: {error}"
    return opened, absent


def _clear_what_is_left(contestant: Contestant) -> None:
    """Delete the threads of an interrupted run, as the server may be the user's."""
    with contextlib.suppress(Exception):
        contestant.clear()
