"""Savers with one option each. `bench.workloads.overheads` compares each with a saver without the option."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from redis_saver import RedisSaver, telemetry
from redis_saver._engine.counting import Counting
from redis_saver.encryption import Encryption, Keyset

Make = Callable[[Any], RedisSaver]
"""Makes a saver over a client."""


class Option(NamedTuple):
    """Two savers to compare."""

    with_it: Make
    without: Make = RedisSaver
    owns: bool = False
    """True if the first saver owns its threads."""
    turns: int = 300
    """Number of compared pairs of turns; an option that costs little needs more."""


class NoCounting(Counting):
    """Counts no calls."""

    def call(self, operation: Generator[Any, Any, Any], name: str = "") -> Any:
        return operation

    stream = call


def uncounted(client: Any) -> RedisSaver:
    saver: Any = RedisSaver(client)
    saver._counting = NoCounting()
    return saver  # type: ignore[no-any-return]


def exporting(client: Any, *, spans: bool) -> RedisSaver:
    """A saver that exports to OpenTelemetry's SDK, which keeps metrics in memory and drops spans."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider

    saver = RedisSaver(client)
    provider = TracerProvider() if spans else None
    telemetry.instrument(saver, MeterProvider([InMemoryMetricReader()]), tracer_provider=provider)
    return saver


def logging_slow_calls(client: Any) -> RedisSaver:
    saver = RedisSaver(client)
    telemetry.log_slow_calls(saver, 60)
    return saver


def encrypted(client: Any) -> RedisSaver:
    return RedisSaver(client, encryption=Encryption(Keyset({"2026-11": bytes(32)})))


def encrypted_whole(client: Any) -> RedisSaver:
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    return RedisSaver(client, serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef"))


NOTHING, COUNTING = "nothing", "counting (always on)"
"""For `NOTHING` both savers are the same, which shows the precision of the other rows."""
OPTIONS: dict[str, Option] = {
    NOTHING: Option(RedisSaver, turns=1000),
    COUNTING: Option(RedisSaver, uncounted, turns=1000),
    "exporting metrics": Option(lambda client: exporting(client, spans=False)),
    "exporting metrics and spans": Option(lambda client: exporting(client, spans=True)),
    "log of slow calls": Option(logging_slow_calls),
    'ttl="7d"': Option(lambda client: RedisSaver(client, ttl="7d")),
    'history={"keep_last": 10}': Option(lambda client: RedisSaver(client, history={"keep_last": 10})),
    'on_fork="raise"': Option(lambda client: RedisSaver(client, on_fork="raise")),
    'check_values="warn"': Option(lambda client: RedisSaver(client, check_values="warn"), turns=60),
    "own(thread)": Option(RedisSaver, owns=True),
    'compression="zstd"': Option(lambda client: RedisSaver(client, compression="zstd")),
    "encryption": Option(encrypted),
    "EncryptedSerializer": Option(encrypted_whole),
}
