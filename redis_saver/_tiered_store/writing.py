"""Writing: hot forgets the items, cold stores them, hot gets copies of what cold has then."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

from langgraph.store.base import GetOp, Item, PutOp

from redis_saver._common.logs import Log, log_text
from redis_saver._common.store_names import Partition, with_notes
from redis_saver._engine import scripts
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.requests import Argument, Batch, Call, Operation
from redis_saver._store.calling import NO_ANNOUNCEMENT, ask
from redis_saver._store.writing import MAX_PUTS
from redis_saver._tiered.requests import Attempt, ColdCall, Tiered
from redis_saver._tiered_store.context import StoreTiers, ask_each, best_effort, unless_full
from redis_saver._tiered_store.copies import Copy, copy_of, steps
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
    """How many copies are left, if those were all; else nothing."""


def write(tiers: StoreTiers, puts: Sequence[PutOp], writes: Writes) -> Tiered[None]:
    """Put and delete items.

    Two round trips to hot; to cold a call that writes and, unless all are deleted, one that reads.

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
        return (yield from ask_each(tiers, [(one.partition, partial(_begun, tiers, one, writer)) for one in to_begin]))
    except Exception:  # whatever it was, cold was not told: so whatever began has ended
        yield Attempt(Batch([_ended_without_copies(one, writer) for one in to_begin]))
        raise


def _ended_without_copies(one: Begun, writer: str) -> Call:
    arguments = (*NO_ANNOUNCEMENT, *_ended(one, writer, [Copy(field) for field in one.fields]))
    return Call(scripts.END_WRITES, with_notes(one.partition, writing=True).keys, arguments)


def _begun(tiers: StoreTiers, one: Begun, writer: str) -> Operation[Begun]:
    asked = with_notes(one.partition, writing=True)
    change, left = yield from ask(tiers.hot, asked, scripts.BEGIN_WRITES, (writer, *one.fields))
    return one._replace(change=change, left=left)


def _read_back(tiers: StoreTiers, writes: Writes) -> Tiered[Items | None]:
    """The items that were put, as cold has them now. None if cold does not answer: it has them, and later reads fill hot."""
    put = [op for of_partition in writes.values() for op in of_partition.values() if op.value is not None]
    if not put:
        return {}
    gets = [GetOp(tuple(op.namespace), op.key, refresh_ttl=False) for op in put]
    items, error = yield Attempt(ColdCall("batch", (gets,)))
    if error is not None:
        tiers.counts.errors += 1
        _LOG.warning(
            "items were written to cold, and could not be read back; a later read fills hot: %s", log_text(error)
        )
        return None
    return {(get.namespace, get.key): item for get, item in zip(gets, items, strict=True)}


def _end(tiers: StoreTiers, begun: Sequence[Begun], writer: str, writes: Writes, items: Items | None) -> Tiered[None]:
    ends = [(one, some) for each in begun for one, some in _with_copies(tiers, each, writes[each.partition], items)]
    stored = None
    with suppress(StoreBusy):
        stored = yield from unless_full(ask_each(tiers, _ending(tiers, ends, writer)))
    if stored is None:  # hot is full, or its directory does not take the partition; but what removes can be done
        without = [(one._replace(left=b""), [Copy(copy.field) for copy in some]) for one, some in ends]
        stored = yield from ask_each(tiers, _ending(tiers, without, writer))
    tiers.counts.fills += sum(stored)
    tiers.counts.refused += sum(1 for _, some in ends for copy in some if copy.value) - sum(stored)


def _with_copies(
    tiers: StoreTiers, begun: Begun, ops: Mapping[bytes, PutOp], items: Items | None
) -> list[tuple[Begun, list[Copy]]]:
    """What ends a write in a partition: as many scripts as its copies take."""
    copies, is_whole = [], items is not None
    for field in begun.fields:
        item = items.get((tuple(ops[field].namespace), ops[field].key)) if items else None
        copy = Copy(field) if item is None else copy_of(tiers.hot, field, item, _ttl(tiers, ops[field]))
        tiers.counts.refused += copy is None
        is_whole = is_whole and copy is not None
        copies.append(copy or Copy(field))
    found = list(steps(copies))
    if not is_whole or len(found) > 1 or len(begun.fields) < len(ops):
        begun = begun._replace(left=b"")
    return [(begun, some) for some in found]


def _ending(
    tiers: StoreTiers, ends: Sequence[tuple[Begun, Sequence[Copy]]], writer: str
) -> list[tuple[Partition, Callable[[], Operation[int]]]]:
    return [(begun.partition, partial(_ended_in_hot, tiers, begun, writer, some)) for begun, some in ends]


def _ended_in_hot(tiers: StoreTiers, begun: Begun, writer: str, copies: Sequence[Copy]) -> Operation[int]:
    asked = with_notes(begun.partition, writing=True)
    said, *token = yield from ask(tiers.hot, asked, scripts.END_WRITES, _ended(begun, writer, copies))
    if said != StoreReply.EMPTIED:
        with reading_store(begun.partition.keys[0]):
            return int(said)
    yield Call(scripts.WITHDRAW, tiers.hot.keyspace.directory, (begun.partition.member, *token))
    return 0


def _ended(begun: Begun, writer: str, copies: Sequence[Copy]) -> list[Argument]:
    return [writer, begun.change, begun.left, *(argument for copy in copies for argument in copy)]


def _ttl(tiers: StoreTiers, op: PutOp) -> int:
    """How long the copy lives, in milliseconds. Half as long as the item at the most, so that reads in its second half reach cold, and its TTL begins anew there."""
    return tiers.ttl if op.ttl is None else min(tiers.ttl, max(1, round(op.ttl * 30_000)))
