"""For `redis-saver forget`, which deletes items in cold and in hot itself: whether hot holds copies, and how none comes back."""

from __future__ import annotations

from redis_saver._common.store_names import with_notes
from redis_saver._engine.requests import Batch, Command, Operation
from redis_saver._store import directory
from redis_saver._store.context import StoreContext
from redis_saver._store.items import Entry
from redis_saver._tiered_store.copies import UPDATED_DIGITS
from redis_saver.errors import reading_store


def holds_copies(context: StoreContext, labels: tuple[str, ...]) -> Operation[bool]:
    """Whether a store has copies of what a cold store has, in the partitions of these labels; or had some within a day.

    A store that has copies has nothing else, so one item of each partition tells. Two round trips for 256 partitions.
    """
    for some in directory.windows((yield from directory.partitions(context, labels))):
        asked = [with_notes(partition, writing=False).keys for partition, _ in some]
        if any((yield Batch([Command(("EXISTS", notes)) for *_, notes in asked]))):
            return True
        oldest = yield Batch([Command(("ZRANGE", order, 0, 0)) for _, order, *_ in asked])
        found = [(items, fields[0]) for (items, *_), fields in zip(asked, oldest, strict=True) if fields]
        records = (yield Batch([Command(("HMGET", *one)) for one in found])) if found else []
        for (items, field), (record,) in zip(found, records, strict=True):
            with reading_store(items):
                if record is not None and len(Entry(field, record).made_by) == UPDATED_DIGITS:
                    return True
    return False


def forget_misses(context: StoreContext, labels: tuple[str, ...]) -> Operation[None]:
    """Remove the notes of the partitions of these labels, so that no fill behind a miss of before stores a copy. One round trip for 256 partitions.

    Call it when cold has deleted the items, and delete the copies then. To writers it is as if the notes were evicted.
    """
    for some in directory.windows((yield from directory.partitions(context, labels))):
        yield Batch([Command(("UNLINK", *with_notes(partition, writing=True).keys[-2:])) for partition, _ in some])
