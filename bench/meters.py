"""Counters of a contestant's server: memory, bytes in and out, commands and their time."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import redis

from bench.servers import Unavailable

SCRIPTS = ("evalsha", "eval", "evalsha_ro", "eval_ro", "fcall", "fcall_ro")
"""Commands that run scripts."""


class Traffic(NamedTuple):
    """Bytes received and sent by the server, and calls and microseconds per command, including those in scripts."""

    sent: int
    received: int
    commands: dict[str, tuple[int, int]]
    own: tuple[int, int]
    """Bytes in and out that one reading of these counters took."""


class Cached(NamedTuple):
    """Commands by name: sent by clients, and called by scripts."""

    outer: Counter[str]
    inner: Counter[str]


class RedisMeter:
    """INFO of a Redis or Valkey that no one else uses during the run."""

    def __init__(self, url: str, disconnect: Callable[[], None]) -> None:
        self.url, self.client = url, redis.Redis.from_url(url, decode_responses=True)
        self.disconnect = disconnect
        """Closes the contestant's idle connections, whose buffers would count as memory."""

    def traffic(self) -> Traffic:
        """Read the counters.

        It reads twice to learn its own size, which grows with the commands that INFO lists.
        """
        first, stats = self.client.info("all"), self.client.info("all")
        commands = {
            name.removeprefix("cmdstat_"): (value["calls"], value["usec"])
            for name, value in stats.items()
            if name.startswith("cmdstat_")
        }
        sent, received = (int(stats[name]) for name in ("total_net_input_bytes", "total_net_output_bytes"))
        own = sent - first["total_net_input_bytes"], received - first["total_net_output_bytes"]
        return Traffic(sent, received, commands, own)

    def between(self, first: Traffic, second: Traffic) -> Traffic:
        """Return the difference of two readings, without the readings themselves."""
        commands = {
            name: (calls - first.commands.get(name, (0, 0))[0], usec - first.commands.get(name, (0, 0))[1])
            for name, (calls, usec) in second.commands.items()
        }
        commands = {name: counts for name, counts in commands.items() if counts[0] and name != "info"}
        # The difference has both requests of the second reading, its first reply, and the first one's last reply.
        sent = second.sent - first.sent - 2 * second.own[0]
        received = second.received - first.received - first.own[1] - second.own[1]
        return Traffic(max(0, sent), max(0, received), commands, (0, 0))

    def in_scripts(self) -> int:
        """Return the microseconds spent in scripts so far, as the server counts them."""
        stats = self.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("usec", 0) for name in SCRIPTS)

    def memory(self) -> int:
        """Return the used memory, once the server has freed what was deleted."""
        while (info := self.client.info("memory")).get("lazyfree_pending_objects"):
            pass
        return int(info["used_memory"])

    def main_thread(self) -> float:
        """Return the processor seconds of the thread that runs commands and scripts.

        That thread limits a server on any number of cores. The kernel counts its time, to the microsecond.

        Raises:
            Unavailable: INFO lacks it. Redis and Valkey have it on Linux.
        """
        used = self.client.info("cpu")
        if "used_cpu_user_main_thread" not in used:
            raise Unavailable("INFO has no used_cpu_user_main_thread, which Redis and Valkey tell on Linux only")
        return float(used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"])

    def keys(self) -> tuple[int, int]:
        """Return the number of keys, and their total MEMORY USAGE."""
        keys = [key.encode() if isinstance(key, str) else key for key in self.client.scan_iter(count=1000)]
        with self.client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.memory_usage(key, samples=0)
            return len(keys), sum(size or 0 for size in pipeline.execute())

    @contextlib.contextmanager
    def watch(self) -> Iterator[Cached]:
        """Count commands by name during the block. It uses MONITOR, which slows the server down."""
        seen = Cached(Counter(), Counter())
        connection = redis.Redis.from_url(self.url)
        with connection.monitor() as monitor:
            done, failed = threading.Event(), list[Exception]()

            def follow() -> None:
                try:
                    for entry in monitor.listen():
                        name = entry["command"].split(" ")[0].upper()
                        if name == "ECHO" and "end of the watch" in entry["command"]:
                            break
                        (seen.inner if entry["client_type"] == "lua" else seen.outer)[name] += 1
                except (redis.RedisError, OSError, socket.timeout) as error:
                    failed.append(error)
                done.set()

            threading.Thread(target=follow, daemon=True).start()
            yield seen
            self.client.echo("end of the watch")
            done.wait(10)
        connection.close()
        if failed:
            raise failed[0]


class PostgresMeter:
    """Size of the tables, with their indexes and TOAST."""

    def __init__(self, url: str) -> None:
        import psycopg

        self.connection = psycopg.connect(url, autocommit=True)

    def memory(self) -> int:
        tables = "('checkpoints', 'checkpoint_blobs', 'checkpoint_writes')"
        row = self.connection.execute(
            f"SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relname IN {tables} AND relkind = 'r'"
        ).fetchone()
        return int(row[0]) if row else 0

    def prepare(self) -> None:
        """Reclaim the space of deleted rows, which would hide growth."""
        self.connection.execute("VACUUM FULL")


class SqliteMeter:
    """Size of the file, after the write-ahead log was moved into it."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def memory(self) -> int:
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = self.connection.execute("PRAGMA page_count").fetchone()[0]
        return int(pages * self.connection.execute("PRAGMA page_size").fetchone()[0])

    def prepare(self) -> None:
        """Reclaim the space of deleted rows, which would hide growth."""
        self.connection.execute("VACUUM")
