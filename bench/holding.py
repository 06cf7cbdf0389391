"""Time that one call blocks the server, at sizes up to the limits: `python -m bench.holding`.

The times are those of the server's SLOWLOG, without the network. The program prints the longest command of each call,
as the median of some repetitions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import redis
from langgraph.checkpoint.base.id import uuid6

from bench.servers import redis_server
from redis_saver import Limits, RedisSaver
from redis_saver._common import limits

REPEATS = 3
WIDE = Limits(value_bytes=2**30)
limits.FIXED.update(channels=65_535, writes=10**6, chunks=10**7)


def config(thread: str, parent: str | None = None) -> dict[str, Any]:
    where = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": {**where, "checkpoint_id": parent} if parent else where}


def checkpoint(values: dict[str, Any], version: str = "1") -> dict[str, Any]:
    return {
        "v": 4, "id": str(uuid6(clock_seq=-1)), "ts": "2026-11-21T10:00:00+00:00", "channel_values": values,
        "channel_versions": dict.fromkeys(values, version), "versions_seen": {"node": dict.fromkeys(values, version)},
    }  # fmt: skip


def calls(saver: RedisSaver) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield the name, size and function of each call, after preparing its data."""
    thread = 0

    def put(values: dict[str, Any], parent: str | None = None, new: bool = True) -> Any:
        made = checkpoint(values)
        return saver.put(config(str(thread), parent), made, {"step": 1}, made["channel_versions"] if new else {})

    for count in (100, 1_000, 10_000, 60_000):
        thread += 1
        values = {f"channel {number}": number for number in range(count)}
        yield "put, all channels new", count, lambda values=values: put(values)
        first = put(values)["configurable"]["checkpoint_id"]
        yield (
            "put, one channel of them new",
            count,
            lambda values=values, first=first: saver.put(
                config(str(thread), first), made := checkpoint(values), {"step": 1}, {"channel 0": "1"}
            ),
        )
        yield "get_tuple, channels", count, lambda: saver.get_tuple(config(str(thread)))
        yield "list of 50, channels", count, lambda: list(saver.list(config(str(thread)), limit=50))
        yield "prune (dry run), channels", count, lambda: saver.prune([str(thread)], dry_run=True)
    for count in (100, 1_000, 10_000, 100_000):
        thread += 1
        where = put({"a": 1})
        writes = [("a", number) for number in range(count)]
        others = [("b", -number) for number in range(count)]
        yield "put_writes", count, lambda where=where, writes=writes: saver.put_writes(where, writes, str(uuid6()))
        saver.put_writes(where, writes, "again")
        yield (
            "put_writes, sent again",
            count,
            lambda where=where, writes=writes: saver.put_writes(where, writes, "again"),
        )
        yield (
            "put_writes, others of that task",
            count,
            lambda where=where, others=others: saver.put_writes(where, others, "again"),
        )
        yield "get_tuple, writes", count, lambda where=where: saver.get_tuple(where)
    for megabytes in (1, 10, 100):
        thread += 1
        text = "x" * (megabytes * 2**20)
        yield "put, a text of so many MiB", megabytes, lambda text=text: put({"a": text})
        yield "get_tuple, a text of so many MiB", megabytes, lambda: saver.get_tuple(config(str(thread)))
        thread += 1
        texts = [f"{number:0512}" for number in range(2048 * megabytes)]
        yield (
            "put, a list of so many MiB in chunks",
            megabytes,
            lambda texts=texts: (saver.delete_thread(str(thread)), put({"a": texts})),
        )
        yield (
            "get_tuple, a list of so many MiB in chunks",
            megabytes,
            lambda: (saver._context.chunk_cache.__init__(0), saver.get_tuple(config(str(thread)))),
        )


def main() -> None:
    with redis_server() as url, redis.Redis.from_url(url) as client:
        client.config_set("slowlog-log-slower-than", 0)
        client.config_set("slowlog-max-len", 10_000)
        saver = RedisSaver(client, limits=WIDE)
        print(f"{client.info('server')['redis_version']}")
        for what, size, call in calls(saver):
            longest = []
            for _ in range(REPEATS):
                client.slowlog_reset()
                call()
                client.config_set("slowlog-log-slower-than", -1)
                longest.append(max(entry["duration"] for entry in client.slowlog_get(10_000)) / 1000)
                client.config_set("slowlog-log-slower-than", 0)
            print(f"{what:45} {size:>8,} {median(longest):>9.1f} ms", flush=True)


if __name__ == "__main__":
    sys.exit(main())
