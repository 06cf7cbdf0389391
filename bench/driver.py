"""What a call costs on its way: `python bench/driver.py [redis://localhost:6379] [--calls N]`; by default on a server of its own.

Each row sends or reads the same bytes: by the client's GET or SET, by EVALSHA of our script through the client, and by the saver
(which also encodes and decodes). Rows take turns, so that a busy machine is busy for all of them. Microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from redis_saver import AsyncRedisSaver, RedisSaver
from redis_saver._checkpoint import reading, writing
from redis_saver._client import link

THREAD: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
CALLERS = (1, 10, 50, 100, 500)
WRITES = [("messages", "y" * 200), ("branch:to:agent", None)]


def prepared(url: str) -> tuple[Any, Any, Any, bytes]:
    """Store a small checkpoint.

    Returns its config, our read and write commands, and a value as long as the write command.
    """
    client = redis.Redis.from_url(url)
    saver = RedisSaver(client, prefix="bench-driver")
    saver.delete_thread("bench")
    values = {"messages": ["x" * 100] * 3, "n": 1}
    versions = {name: saver.get_next_version(None, None) for name in values}
    checkpoint: Any = {
        "v": 4, "id": "1", "ts": "2026-01-01T00:00:00+00:00", "channel_values": values, "channel_versions": versions,
        "versions_seen": {"agent": versions}, "updated_channels": None,
    }  # fmt: skip
    where = saver.put(THREAD, checkpoint, {"source": "loop", "step": 1, "parents": {}}, versions)
    saver.put_writes(where, WRITES, "task")
    found: Any = saver.get_tuple(where)
    assert found.checkpoint["channel_values"] == values
    read = link.as_command(next(reading.get_tuple(saver._context, where)))
    write = link.as_command(next(writing.put_writes(saver._context, where, WRITES, "task", "")))
    size = len(b"".join(client.connection_pool.make_connection().pack_command(*write)))
    client.set("bench-driver", b"x" * size, px=3_600_000)
    client.close()
    return where, read, write, b"x" * size


def shares(times: list[float]) -> str:
    times.sort()
    return "  ".join(f"{times[len(times) * share // 100] * 1e6:7.0f}" for share in (50, 90, 99))


def blocking(url: str, calls: int) -> None:
    where, read, write, value = prepared(url)
    with redis.Redis.from_url(url) as client:
        saver = RedisSaver(client, prefix="bench-driver")
        rows: dict[str, Callable[[], Any]] = {
            "client.get": lambda: client.get("bench-driver"),
            "client, EVALSHA get": lambda: client.execute_command(*read),
            "RedisSaver.get_tuple": lambda: saver.get_tuple(where),
            "client.set": lambda: client.set("bench-driver", value, px=3_600_000),
            "client, EVALSHA put_writes": lambda: client.execute_command(*write),
            "RedisSaver.put_writes": lambda: saver.put_writes(where, WRITES, "task"),
        }
        times: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(calls):
            for name, call in rows.items():
                begun = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - begun)
    print(f"{'one blocking caller':30}  {'p50':>7}  {'p90':>7}  {'p99':>7}")
    for name, each in times.items():
        print(f"{name:30}  {shares(each)}")


async def together(call: Callable[[], Awaitable[Any]], callers: int, calls: int) -> float:
    """Return the seconds per call of concurrent callers."""

    async def caller() -> None:
        for _ in range(max(1, calls // callers)):
            await call()

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return (time.perf_counter() - begun) / callers / max(1, calls // callers)


async def concurrent(url: str, calls: int) -> None:
    where, read, write, value = prepared(url)
    pool = redis.asyncio.ConnectionPool.from_url(url, max_connections=1000)  # the default refuses more than 100 callers
    async with redis.asyncio.Redis.from_pool(pool) as client:
        saver = AsyncRedisSaver(client, prefix="bench-driver")
        rows: dict[str, Callable[[], Awaitable[Any]]] = {
            "client.get": lambda: client.get("bench-driver"),
            "client, EVALSHA get": lambda: client.execute_command(*read),
            "AsyncRedisSaver.aget_tuple": lambda: saver.aget_tuple(where),
            "client.set": lambda: client.set("bench-driver", value, px=3_600_000),
            "client, EVALSHA put_writes": lambda: client.execute_command(*write),
            "AsyncRedisSaver.aput_writes": lambda: saver.aput_writes(where, WRITES, "task"),
        }
        best = {(name, callers): float("inf") for name in rows for callers in CALLERS}
        for _ in range(7):
            for callers in CALLERS:
                for name, call in rows.items():
                    best[name, callers] = min(best[name, callers], await together(call, callers, calls))
    print(f"\n{'asyncio callers':30}", *(f"{callers:7}" for callers in CALLERS))
    for name in rows:
        print(f"{name:30}", *(f"{best[name, callers] * 1e6:7.0f}" for callers in CALLERS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--calls", type=int, default=1000)
    given = parser.parse_args()
    server: Any = None
    if given.url is None:
        sys.path.insert(0, str(Path(__file__).parent.parent))
        from tests.support.servers import Server

        server = Server()
    url = given.url or server.url
    blocking(url, given.calls)
    asyncio.run(concurrent(url, given.calls))
    if server is not None:
        server.stop()


if __name__ == "__main__":
    main()
