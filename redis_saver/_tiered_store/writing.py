"""Writes: hot drops its copies, cold stores the items, hot gets copies of what cold has then."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

from langgraph.store.base import GetOp, Item, PutOp

from redis_saver._common.logs import Log, log_text
from redis_saver._common.store_names import Partition, with_notes
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.requests import Argument, Batch, Call, Operation
from redis_saver._store import scripts
from redis_saver._store.calling import NO_ANNOUNCEMENT, ask
from redis_saver._store.writing import MAX_PUTS
from redis_saver._tiered.requests import Attempt, ColdCall, Tiered
from redis_saver._tiered_store.context import StoreTiers, ask_each, best_effort, unless_full
from redis_saver._tiered_store.copies import Copy, batches, copy_of
from redis_saver.errors import StoreBusy, reading_store

Writes: TypeAlias = Mapping[Partition, Mapping[bytes, PutOp]]
Items: TypeAlias = Mapping[tuple[tuple[str, ...], str], Item | None]
_LOG = Log("redis_saver.tiered_store")


class Begun(NamedTuple):
    """Items of a partition that a write has begun to write."""

    partition: Partition
    fields: Sequence[bytes]
    change: bytes = b"0"
    left: bytes = b""
    """Number of copies that are left, if hot had all before; else empty."""


def write(tiers: StoreTiers, puts: Sequence[PutOp], writes: Writes) -> Tiered[None]:
    """Put and delete items.

    Two round trips to hot; a call of cold that writes, and one that reads unless all items are deleted.

    Args:
        tiers: The store.
        puts: What cold is to do, in order.
        writes: The last put of each item, by partition and field.
    """
    writer = os.urandom(8).hex()
    begun = yield from _begin(tiers, writes, writer)
    yield ColdCall("batch", (puts,))  # if it fails, it may have been done, or may still be: the intents stay
    items = yield from _read_back(tiers, writes)
    yield from best_effort(tiers, _end(tiers, begun, writer, writes, items))


def _begin(tiers: StoreTiers, writes: Writes, writer: str) -> Tiered[list[Begun]]:
    to_begin = []
    for partition, of_partition in writes.items():
        fields = list(of_partition)
        to_begin += [Begun(partition, fields[at : at + MAX_PUTS]) for at in range(0, len(fields), MAX_PUTS)]
    try:
        begins = [(begun.partition, partial(_begun, tiers, begun, writer)) for begun in to_begin]
        return (yield from ask_each(tiers, begins))
    except Exception:  # cold was not told, so each write that began ends here
        yield Attempt(Batch([_ended_without_copies(begun, writer) for begun in to_begin]))
        raise


def _ended_without_copies(begun: Begun, writer: str) -> Call:
    arguments = (*NO_ANNOUNCEMENT, *_end_arguments(begun, writer, [Copy(field) for field in begun.fields]))
    return Call(scripts.END_WRITES, with_notes(begun.partition, writing=True).keys, arguments)


def _begun(tiers: StoreTiers, begun: Begun, writer: str) -> Operation[Begun]:
    with_keys = with_notes(begun.partition, writing=True)
    reply = yield from ask(tiers.hot, with_keys, scripts.BEGIN_WRITES, (writer, *begun.fields))
    change, left = reply.values
    return begun._replace(change=change, left=left)


def _read_back(tiers: StoreTiers, writes: Writes) -> Tiered[Items | None]:
    """Read what cold has of the items that were put. None if it does not answer: later reads fill hot."""
    puts = [op for of_partition in writes.values() for op in of_partition.values() if op.value is not None]
    if not puts:
        return {}
    gets = [GetOp(tuple(op.namespace), op.key, refresh_ttl=False) for op in puts]
    items, error = yield Attempt(ColdCall("batch", (gets,)))
    if error is not None:
        tiers.counts.errors += 1
        _LOG.warning(
            "items were written to cold, and could not be read back; a later read fills hot: %s", log_text(error)
        )
        return None
    return {(get.namespace, get.key): item for get, item in zip(gets, items, strict=True)}


def _end(tiers: StoreTiers, begun: Sequence[Begun], writer: str, writes: Writes, items: Items | None) -> Tiered[None]:
    ends = [end for each in begun for end in _with_copies(tiers, each, writes[each.partition], items)]
    stored = None
    with suppress(StoreBusy):
        stored = yield from unless_full(ask_each(tiers, _ending(tiers, ends, writer)))
    if stored is None:  # hot is full, or its directory does not take the partition; removing copies still works
        without = [(each._replace(left=b""), [Copy(copy.field) for copy in some]) for each, some in ends]
        stored = yield from ask_each(tiers, _ending(tiers, without, writer))
    tiers.counts.fills += sum(stored)
    tiers.counts.refused += sum(1 for _, some in ends for copy in some if copy.value) - sum(stored)


def _with_copies(
    tiers: StoreTiers, begun: Begun, ops: Mapping[bytes, PutOp], items: Items | None
) -> list[tuple[Begun, list[Copy]]]:
    """Split the end of a write in a partition into as many scripts as its copies take."""
    copies, is_whole = [], items is not None
    for field in begun.fields:
        item = items.get((tuple(ops[field].namespace), ops[field].key)) if items else None
        copy = Copy(field) if item is None else copy_of(tiers.hot, field, item, _ttl(tiers, ops[field]))
        tiers.counts.refused += copy is None
        is_whole = is_whole and copy is not None
        copies.append(copy or Copy(field))
    parts = list(batches(copies))
    if not is_whole or len(parts) > 1 or len(begun.fields) < len(ops):
        begun = begun._replace(left=b"")
    return [(begun, part) for part in parts]


def _ending(
    tiers: StoreTiers, ends: Sequence[tuple[Begun, Sequence[Copy]]], writer: str
) -> list[tuple[Partition, Callable[[], Operation[int]]]]:
    return [(begun.partition, partial(_ended, tiers, begun, writer, some)) for begun, some in ends]


def _ended(tiers: StoreTiers, begun: Begun, writer: str, copies: Sequence[Copy]) -> Operation[int]:
    """End a write in hot; return how many copies were stored."""
    with_keys = with_notes(begun.partition, writing=True)
    reply = yield from ask(tiers.hot, with_keys, scripts.END_WRITES, _end_arguments(begun, writer, copies))
    if reply.code != StoreReply.EMPTIED:
        with reading_store(begun.partition.keys[0]):
            return int(reply.values[0])
    yield Call(scripts.WITHDRAW, tiers.hot.keyspace.directory, (begun.partition.member, reply.values[0]))
    return 0


def _end_arguments(begun: Begun, writer: str, copies: Sequence[Copy]) -> list[Argument]:
    return [writer, begun.change, begun.left, *(argument for copy in copies for argument in copy)]


def _ttl(tiers: StoreTiers, op: PutOp) -> int:
    """Return the lifetime of the copy in milliseconds.

    It is at most half of the item's, so that reads in the second half reach cold, which restarts the item's TTL.
    """
    return tiers.ttl if op.ttl is None else min(tiers.ttl, max(1, round(op.ttl * 30_000)))
