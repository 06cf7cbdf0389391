"""One channel of the newest checkpoints of many threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis_saver._checkpoint import scripts
from redis_saver._checkpoint.auditing import VersionText
from redis_saver._checkpoint.delta import unstored
from redis_saver._checkpoint.listing import scan_threads
from redis_saver._common import names, times
from redis_saver._common.config import Address
from redis_saver._common.limits import Allowance
from redis_saver._engine.requests import Batch, Call, Page, Stream
from redis_saver._engine.runner import Pump
from redis_saver._storage import codec
from redis_saver._storage import header as headers
from redis_saver._storage.context import Context
from redis_saver.errors import decoding

FIRST_BATCH, MAX_BATCH = 10, 200
"""Number of threads in a batch: in the first one, and at most."""
BYTES_PER_BATCH = 4_000_000
"""Target size of a batch's values, in bytes."""


@dataclass(frozen=True, slots=True)
class ChannelValue:
    """The newest value of a channel of a thread, as `latest_values()` returns it."""

    thread_id: str
    """The thread."""
    checkpoint_id: str
    """Its newest checkpoint in the namespace."""
    updated_at: datetime | None
    """That checkpoint's `ts`; None if it has none that is a time."""
    version: VersionText
    """The channel's version."""
    bytes: int
    """Size of the value as stored, with its chunks."""
    value: Any
    """The value. For a snapshot of a `DeltaChannel`, the value inside it."""
    stored: bool = True
    """False for a `DeltaChannel` without a snapshot here. Then `value` is None; the graph's `get_state` rebuilds it."""


def latest_values(
    context: Context, channel: str, thread_ids: Sequence[str] | None, thread_prefix: str, ns: str
) -> Stream[ChannelValue]:
    """Stream a channel's newest values: of these threads in their order, or of all with a prefix in any order."""
    arguments, size = (names.component(ns), names.component(channel), ""), FIRST_BATCH
    pump = Pump(scan_threads(context) if thread_ids is None else _given(thread_ids))
    for step in pump:
        if not isinstance(step, Page):
            with pump:
                pump.reply = yield step
            continue
        wanted = [thread for thread in step.items if thread.startswith(thread_prefix)]
        while wanted:
            some, wanted = wanted[:size], wanted[size:]
            answers = yield Batch(
                [Call(scripts.GET_CHANNEL, context.keyspace.keys(thread), arguments) for thread in some]
            )
            pairs = zip(some, answers, strict=True)
            read = [_value(context, thread, ns, channel, answer) for thread, answer in pairs if answer is not None]
            values = [value for value in read if value is not None]
            yield Page(values)
            length = 1 + sum(value.bytes for value in values)
            size = max(1, min(MAX_BATCH, 4 * size, len(some) * BYTES_PER_BATCH // length))


def _given(thread_ids: Sequence[str]) -> Stream[str]:
    for at in range(0, len(thread_ids), MAX_BATCH):
        yield Page(thread_ids[at : at + MAX_BATCH])


def _value(context: Context, thread: str, ns: str, channel: str, answer: Sequence[Any]) -> ChannelValue | None:
    """Decode the value in an answer. None if the channel has no value and is no `DeltaChannel`."""
    with decoding("the newest value of channel {!r} of thread {!r}", channel, thread):
        raw_id, head, version, stored, flat = answer
        address = Address(thread, ns, names.name_of(raw_id))
        value = None
        if stored:
            chunks = codec.as_chunks(context, flat, thread)
            value = codec.decode_value(context, stored, chunks, channel, address, Allowance(context.limits, address))
            value = codec.held(value)
        elif channel not in unstored(headers.metadata(context, head, address)):
            return None
        return ChannelValue(
            thread_id=thread,
            checkpoint_id=address.checkpoint_id or "",
            updated_at=times.moment(headers.decode_time(head, thread)),
            version=names.version_from(version),
            bytes=len(stored) + sum(map(len, flat[1::2])),
            value=value,
            stored=bool(stored),
        )
