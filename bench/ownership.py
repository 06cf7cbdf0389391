"""What a put costs by the owner of a thread: `python -m bench.ownership`.

Two chats of one saver put in turns, blocks of calls each, one with the token of `own` and one without. Printed are, for a put and for the pending writes of a task,
the ratios of the means and medians of the time that passed, and of the work: this process's CPU time and the server's time in the script, which other programs on
the machine change less.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from statistics import mean, median
from time import perf_counter, process_time
from typing import Any

import redis
from langgraph.checkpoint.base.id import uuid6

from bench.history import history, message
from bench.servers import redis_server
from redis_saver import RedisSaver

BLOCKS, BLOCK = 60, 20
"""So many blocks of so many calls for each chat."""


class Thread:
    """A chat, with what its calls cost in microseconds."""

    def __init__(self, saver: RedisSaver, client: redis.Redis, given: Any) -> None:
        self.saver, self.client = saver, client
        self.where: Any = {"configurable": {"checkpoint_ns": "", **given["configurable"]}}
        self.passed: dict[str, list[float]] = {"put": [], "put_writes": []}
        self.worked: dict[str, list[float]] = {"put": [], "put_writes": []}
        self.count = 0

    def puts(self, base: list[Any]) -> None:
        """A block of puts, then of writes on the last one."""
        self.count += 1
        with self.measured("put"):
            for number in range(BLOCK):
                self.put([*base, message(10**6 + self.count * BLOCK + number)], self.count * BLOCK + number)
        with self.measured("put_writes"):
            for number in range(BLOCK):
                began = perf_counter()
                self.saver.put_writes(self.where, [("messages", [number])], f"task {number}")
                self.passed["put_writes"].append((perf_counter() - began) * 1e6)

    def put(self, messages: list[Any], number: int) -> None:
        versions = {"messages": f"{number + 1:032}.{number:020}"}
        made: Any = {
            "v": 4, "id": str(uuid6(clock_seq=-1)), "ts": "2026-11-25T00:00:00+00:00", "channel_values": {"messages": messages},
            "channel_versions": versions, "versions_seen": {"agent": versions},
        }  # fmt: skip
        began = perf_counter()
        self.saver.put(self.where, made, {"source": "loop", "step": number, "parents": {}}, versions)
        self.passed["put"].append((perf_counter() - began) * 1e6)
        self.where["configurable"]["checkpoint_id"] = made[
            "id"
        ]  # as LangGraph does: its own config, of another checkpoint

    @contextmanager
    def measured(self, method: str) -> Iterator[None]:
        """The work of a block."""
        on_server, here = self.on_server(), process_time()
        yield
        self.worked[method].append((process_time() - here) * 1e6 + self.on_server() - on_server)

    def on_server(self) -> float:
        return float(self.client.info("commandstats").get("cmdstat_evalsha", {}).get("usec", 0))


def ratios(owned: Thread, plain: Thread, method: str) -> str:
    """Of an owner to another; without the first blocks, in which there is more to be learnt."""
    passed, without = (each.passed[method][BLOCK * 5 :] for each in (owned, plain))
    work, work_without = (each.worked[method][5:] for each in (owned, plain))
    return (
        f"{method}: mean {mean(passed) / mean(without):.3f}x, median {median(passed) / median(without):.3f}x, "
        f"work {median(work) / median(work_without):.3f}x ({median(work_without) / BLOCK:.0f} µs)"
    )


def main() -> None:
    """Measure, and print two lines a length."""
    with redis_server() as url, redis.Redis.from_url(url) as client:
        saver = RedisSaver(client)
        for length in (50, 1_000):
            outside = copy_context()  # where no token is held
            with saver.own(f"owned-{length}", lease="1h") as given:
                owned, base = Thread(saver, client, given), history(length)
                plain = Thread(saver, client, {"configurable": {"thread_id": f"plain-{length}"}})
                for number in range(BLOCKS):
                    for is_owned in (True, False) if number % 2 else (False, True):
                        if is_owned:
                            owned.puts(base)
                        else:
                            outside.run(plain.puts, base)
            for method in ("put", "put_writes"):
                print(f"{length:>5,} messages: {ratios(owned, plain, method)}", flush=True)


if __name__ == "__main__":
    main()
