"""Time that each script blocks the server on a long thread: `python bench/server_time.py redis://localhost:6379`.

It writes a thread of 2,000 checkpoints (12 channels, headers of about 5 kB, 3 tasks each) under its own prefix, and
runs each operation. Then it prints the mean and the maximum time of each script in microseconds. The times are from
SLOWLOG, whose settings it changes, so use a server of your own.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import redis

from redis_saver import RedisSaver
from redis_saver._checkpoint import scripts
from redis_saver._engine.scripts import Script

CHECKPOINTS, CHANNELS = 2000, 12
NAMES = {value.sha: value.name for value in vars(scripts).values() if isinstance(value, Script)}
THREAD: Any = {"configurable": {"thread_id": "long", "checkpoint_ns": ""}}


def fill(saver: RedisSaver) -> None:
    versions: dict[str, Any] = {}
    where = THREAD
    for step in range(CHECKPOINTS):
        values = {f"channel_number_{n}": "x" * 200 for n in range(CHANNELS)}
        new = {
            name: saver.get_next_version(versions.get(name), None)
            for n, name in enumerate(values)
            if not step or (step + n) % 3 == 0
        }
        versions = {**versions, **new}
        checkpoint: Any = {
            "v": 4, "id": f"{step:06}", "ts": "2026-01-01T00:00:00+00:00", "channel_values": values,
            "channel_versions": versions, "versions_seen": {f"node_{n}": dict(versions) for n in range(4)},
        }  # fmt: skip
        where = saver.put(where, checkpoint, {"source": "loop", "step": step, "parents": {}}, new)
        for task in range(3):
            writes = [("channel_number_1", "y" * 200), ("branch:to:x", None), ("delta", step)]
            saver.put_writes(where, writes, f"task-{task}-0000-0000-000000000000", "~__pregel_pull, x")


def measure(client: redis.Redis, title: str, act: Callable[[], Any]) -> None:
    act()  # loads the scripts
    client.slowlog_reset()
    act()
    durations: dict[str, list[int]] = defaultdict(list)
    for entry in client.slowlog_get(10_000):
        words = entry["command"].split() if isinstance(entry["command"], bytes) else []
        if len(words) > 1 and words[0] == b"EVALSHA":
            durations[NAMES[words[1].decode()]].append(entry["duration"])
    shown = (
        f"{name} {len(each)} calls, {sum(each) // len(each)} avg, {max(each)} max" for name, each in durations.items()
    )
    print(f"{title:26}", "; ".join(shown))


def main(url: str) -> None:
    client = redis.Redis.from_url(url)
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 20_000)
    saver = RedisSaver(client, prefix="bench-server-time")
    measure(client, f"fill ({CHECKPOINTS} checkpoints)", lambda: fill(saver))
    measure(client, "get_tuple", lambda: saver.get_tuple(THREAD))
    measure(client, "list", lambda: list(saver.list(THREAD)))
    measure(client, "list with a filter", lambda: list(saver.list(THREAD, filter={"step": 3})))
    measure(client, "delta channel history", lambda: saver.get_delta_channel_history(config=THREAD, channels=["delta"]))
    measure(client, "threads", lambda: list(saver.threads()))
    measure(client, "copy_thread and prune", lambda: (saver.copy_thread("long", "copy"), saver.prune(["copy"])))
    for thread in ("long", "copy"):
        saver.delete_thread(thread)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "redis://localhost:6379")
