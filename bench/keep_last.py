"""What a put costs where the thread keeps its last ten checkpoints alone: `python -m bench.keep_last`.

Two savers of one server put in turns, one with `history={"keep_last": 10}` and one without, each a chat that grows by a message a put. Printed are the
mean, in which removals count, and the median, the longest put, and how many checkpoints are left.
"""

from __future__ import annotations

import time
from statistics import mean, median
from typing import Any

import redis
from langgraph.checkpoint.base.id import uuid6

from bench.history import history, message
from bench.servers import redis_server
from redis_saver import RedisSaver

PUTS = 1500


class Thread:
    """A chat and the saver that keeps it, with the time of each put in microseconds."""

    def __init__(self, saver: RedisSaver, name: str) -> None:
        self.saver, self.taken = saver, list[float]()
        self.where: dict[str, Any] = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}

    def put(self, turn: int, messages: list[Any]) -> None:
        versions = {"messages": f"{turn + 1:032}.{turn:020}"}
        made: Any = {
            "v": 4, "id": str(uuid6(clock_seq=-1)), "ts": "2026-11-25T00:00:00+00:00", "channel_values": {"messages": messages},
            "channel_versions": versions, "versions_seen": {"agent": versions},
        }  # fmt: skip
        began = time.perf_counter()
        self.where = self.saver.put(self.where, made, {"source": "loop", "step": turn, "parents": {}}, versions)  # type: ignore[arg-type, assignment]
        self.taken.append((time.perf_counter() - began) * 1e6)


def main() -> None:
    """Measure, and print a line a length."""
    with redis_server() as url, redis.Redis.from_url(url) as client:
        for length in (50, 1_000):
            threads = [
                Thread(RedisSaver(client), f"all-{length}"),
                Thread(RedisSaver(client, history={"keep_last": 10}), f"ten-{length}"),
            ]
            base = history(length)
            for turn in range(PUTS):
                messages = [*base, message(10**6 + turn)]
                for thread in threads if turn % 2 else threads[::-1]:
                    thread.put(turn, messages)
            left = threads[1].saver.get_thread(f"ten-{length}")
            plain, limited = (thread.taken[PUTS // 10 :] for thread in threads)
            print(
                f"{length:>5,} messages: mean {mean(limited) / mean(plain):.2f}x, median {median(limited) / median(plain):.2f}x, "
                f"longest {max(limited) / 1000:.1f} ms ({max(plain) / 1000:.1f} without), "
                f"{left.checkpoints if left else 0} checkpoints of {PUTS:,}",
                flush=True,
            )


if __name__ == "__main__":
    main()
