"""What a put costs by the owner of a thread: `python -m bench.ownership`.

Two chats of one saver put in turns, one with the token of `own` and one without. Printed are the ratios of the means and of the medians, for a put and for
the pending writes of a task, and the round trips of each.
"""

from __future__ import annotations

from statistics import mean, median
from time import perf_counter
from typing import Any

import redis
from langgraph.checkpoint.base.id import uuid6

from bench.history import history, message
from bench.servers import redis_server
from redis_saver import RedisSaver

PUTS = 3000


class Thread:
    """A chat with the times of its calls in microseconds."""

    def __init__(self, saver: RedisSaver, given: dict[str, Any]) -> None:
        self.saver, self.where = saver, {"configurable": {"checkpoint_ns": "", **given["configurable"]}}
        self.puts, self.writes = list[float](), list[float]()

    def turn(self, number: int, messages: list[Any]) -> None:
        """A put, and writes on it."""
        versions = {"messages": f"{number + 1:032}.{number:020}"}
        made: Any = {
            "v": 4, "id": str(uuid6(clock_seq=-1)), "ts": "2026-11-25T00:00:00+00:00", "channel_values": {"messages": messages},
            "channel_versions": versions, "versions_seen": {"agent": versions},
        }  # fmt: skip
        where: Any = self.where
        began = perf_counter()
        stored = self.saver.put(where, made, {"source": "loop", "step": number, "parents": {}}, versions)
        self.puts.append((perf_counter() - began) * 1e6)
        # as LangGraph does: its own config, with another checkpoint
        self.where["configurable"]["checkpoint_id"] = stored["configurable"]["checkpoint_id"]
        began = perf_counter()
        self.saver.put_writes(where, [("messages", messages[-1])], f"task {number}")
        self.writes.append((perf_counter() - began) * 1e6)


def ratios(owned: list[float], plain: list[float]) -> str:
    """Without the first tenth, and without the hundredth that took longest, in which the machine did something else."""
    owned, plain = (sorted(each[PUTS // 10 :])[: -PUTS // 100] for each in (owned, plain))
    return (
        f"mean {mean(owned) / mean(plain):.3f}x, median {median(owned) / median(plain):.3f}x ({median(plain):.0f} µs)"
    )


def main() -> None:
    """Measure, and print a line a length."""
    with redis_server() as url, redis.Redis.from_url(url) as client:
        saver = RedisSaver(client)
        for length in (50, 1_000):
            with saver.own(f"owned-{length}", lease="1h") as given:
                owned = Thread(saver, dict(given))
                base = history(length)
                # the other chat's calls hold no token, as they are made where nothing is owned
                from contextvars import Context

                outside, plain = Context(), Thread(saver, {"configurable": {"thread_id": f"plain-{length}"}})
                for number in range(PUTS):
                    messages = [*base, message(10**6 + number)]
                    both = [lambda: owned.turn(number, messages), lambda: outside.run(plain.turn, number, messages)]
                    for one in both if number % 2 else both[::-1]:
                        one()
            print(
                f"{length:>5,} messages: put {ratios(owned.puts, plain.puts)}; writes {ratios(owned.writes, plain.writes)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
