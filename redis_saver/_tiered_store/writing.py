"""Writes: hot drops its copies, cold stores the items, hot gets copies of what cold has then."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
from redis_saver._tiered_store.copies import Copy, StoreTiers, ask_each, batches, best_effort, copy_of, unless_full
from redis_saver.errors import StoreBusy, reading_store

Writes: TypeAlias = Mapping[Partition, Mapping[bytes, PutOp]]
Items: TypeAlias = Mapping[tuple[tuple[str, ...], str], Item | None]
_LOG = Log("redis_saver.tiered_store")


class Begun(NamedTuple):
    """Items of a partition that a write has begun to write."""

    writer: str
    partition: Partition
    fields: Sequence[bytes]
    change: bytes = b"0"
    left: bytes = b""
    """Number of copies that are left, if hot had all before; else empty."""
    copies: Sequence[Copy] = ()
    """Copies that hot gets at the end."""

    @property
    def with_notes(self) -> Partition:
        """The partition with the keys that the scripts of writers take."""
        return with_notes(self.partition, writing=True)

    def end(self) -> list[Argument]:
        """Return the arguments of the script that ends the write."""
        return [self.writer, self.change, self.left, *(argument for copy in self.copies for argument in copy)]


def write(tiers: StoreTiers, puts: Sequence[PutOp], writes: Writes) -> Tiered[None]:
    """Put and delete items.

    Two round trips to hot; a call of cold that writes, and one that reads unless all items are deleted.

    Args:
        tiers: The store.
        puts: What cold is to do, in order.
        writes: The last put of each item, by partition and field.
    """
    begun = yield from _begin(tiers, writes)
    yield ColdCall("batch", (puts,))  # if it fails, it may have been done, or may still be: the intents stay
    items = yield from _read_back(tiers, writes)
    yield from best_effort(tiers, _end(tiers, begun, writes, items))


def _begin(tiers: StoreTiers, writes: Writes) -> Tiered[list[Begun]]:
    writer, begun = os.urandom(8).hex(), list[Begun]()
    for partition, of_partition in writes.items():
        fields = list(of_partition)
        begun += [Begun(writer, partition, fields[at : at + MAX_PUTS]) for at in range(0, len(fields), MAX_PUTS)]
    try:
        return (yield from ask_each(tiers, [(each.partition, partial(_begun, tiers, each)) for each in begun]))
    except Exception:  # cold was not told, so each write that began ends here, without copies
        ends = [each._replace(copies=[Copy(field) for field in each.fields]) for each in begun]
        script = scripts.END_WRITES
        yield Attempt(Batch([Call(script, end.with_notes.keys, (*NO_ANNOUNCEMENT, *end.end())) for end in ends]))
        raise


def _begun(tiers: StoreTiers, begun: Begun) -> Operation[Begun]:
    reply = yield from ask(tiers.hot, begun.with_notes, scripts.BEGIN_WRITES, (begun.writer, *begun.fields))
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


def _end(tiers: StoreTiers, begun: Sequence[Begun], writes: Writes, items: Items | None) -> Tiered[None]:
    ends = [end for each in begun for end in _with_copies(tiers, each, writes[each.partition], items)]
    stored = None
    with suppress(StoreBusy):
        stored = yield from unless_full(_end_all(tiers, ends))
    if stored is None:  # hot is full, or its directory does not take the partition; removing copies still works
        without = [end._replace(left=b"", copies=[Copy(copy.field) for copy in end.copies]) for end in ends]
        stored = yield from _end_all(tiers, without)
    tiers.counts.fills += sum(stored)
    tiers.counts.refused += sum(1 for end in ends for copy in end.copies if copy.value) - sum(stored)


def _with_copies(tiers: StoreTiers, begun: Begun, ops: Mapping[bytes, PutOp], items: Items | None) -> list[Begun]:
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
    return [begun._replace(copies=part) for part in parts]


def _end_all(tiers: StoreTiers, ends: Sequence[Begun]) -> Operation[list[int]]:
    return ask_each(tiers, [(end.partition, partial(_ended, tiers, end)) for end in ends])


def _ended(tiers: StoreTiers, begun: Begun) -> Operation[int]:
    """End a write in hot; return how many copies were stored."""
    reply = yield from ask(tiers.hot, begun.with_notes, scripts.END_WRITES, begun.end())
    if reply.code != StoreReply.EMPTIED:
        with reading_store(begun.partition.keys[0]):
            return int(reply.values[0])
    yield Call(scripts.WITHDRAW, tiers.hot.keyspace.directory, (begun.partition.member, reply.values[0]))
    return 0


def _ttl(tiers: StoreTiers, op: PutOp) -> int:
    """Return the lifetime of the copy in milliseconds.

    It is at most half of the item's, so that reads in the second half reach cold, which restarts the item's TTL.
    """
    return tiers.ttl if op.ttl is None else min(tiers.ttl, max(1, round(op.ttl * 30_000)))
