"""What it costs that a saver counts, as it always does: `python -m bench.counting`.

    --seconds 60    how long to measure

Two savers of one server, over one client, run the same turn of a chat of 100 messages, one after the other, each beginning every other time. One of them does
not count: its parts that do are taken out. Printed is the processor time of this process for a turn, the median with and without, and the median of the ratios
within the pairs, which what else the machine does distorts least. First neither counts, which shows how exact that is. Last the same for a saver that exports
metrics and spans to OpenTelemetry's SDK, if that is installed; its spans are kept nowhere.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Generator
from statistics import median
from typing import Any

import redis

from bench import graphs
from bench.contestants import OURS, Contestant
from bench.history import following
from bench.measuring import settled
from bench.prepared import Prepared, chat_recording
from bench.servers import redis_server
from redis_saver import RedisSaver, telemetry
from redis_saver._engine.stats import Counting, Traffic

MESSAGES = 100


class NoCounting(Counting):
    """Counts no calls."""

    def call(self, operation: Generator[Any, Any, Any], name: str = "") -> Any:
        return operation

    stream = call


class NoTraffic(Traffic):
    """Counts nothing that is sent."""

    def sending(self, arguments: Any) -> None: ...

    sending_together = sending

    def receive(self, reply: Any) -> Any:
        return reply


def uncounted(client: Any) -> RedisSaver:
    saver: Any = RedisSaver(client)
    saver._counting, saver._driver.traffic = NoCounting(), NoTraffic()
    return saver  # type: ignore[no-any-return]


def instrumented(client: Any, *, spans: bool) -> RedisSaver:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider

    saver = RedisSaver(client)
    provider = TracerProvider() if spans else None
    telemetry.instrument(saver, MeterProvider([InMemoryMetricReader()]), tracer_provider=provider)
    return saver


class Turns:
    """A saver with a chat, and how long its turns took, in milliseconds."""

    def __init__(self, saver: RedisSaver) -> None:
        self.prepared: Prepared = chat_recording(Contestant(OURS, saver, saver), MESSAGES).play()
        self.graph, self.taken = graphs.chat(saver), list[float]()
        self.last = self.prepared.recording.puts[-1][0]["channel_values"]["messages"][-1]

    def turn(self) -> None:
        self.prepared.reset()
        question = {"messages": [following(self.last)]}
        with settled():
            began = time.process_time()
            self.graph.invoke(question, self.prepared.config, durability="sync")
            self.taken.append((time.process_time() - began) * 1000)


def compare(what: str, with_it: Turns, without: Turns, seconds: float) -> None:
    until, turn = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for each in (with_it, without) if turn % 2 else (without, with_it):
            each.turn()
        turn += 1
    pairs = list(zip(with_it.taken[5:], without.taken[5:], strict=True))
    ratio = median(one / other for one, other in pairs)
    print(
        f"{what}: {median(one for one, _ in pairs):.3f} ms a turn, {median(other for _, other in pairs):.3f} ms without; "
        f"{(ratio - 1) * 100:+.2f} %, {len(pairs)} pairs",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.counting")
    parser.add_argument("--seconds", type=float, default=60)
    said = parser.parse_args()
    with redis_server() as url, redis.Redis.from_url(url) as client:
        compare("neither counts", Turns(uncounted(client)), Turns(uncounted(client)), said.seconds)
        compare("counting", Turns(RedisSaver(client)), Turns(uncounted(client)), said.seconds)
        try:
            exporting = {
                f"exporting metrics{' and spans' * spans}": instrumented(client, spans=spans) for spans in (False, True)
            }
        except ImportError as missing:
            print(f"exporting is not measured: {missing}")
        else:
            for what, saver in exporting.items():
                compare(what, Turns(saver), Turns(RedisSaver(client)), said.seconds)


if __name__ == "__main__":
    main()
