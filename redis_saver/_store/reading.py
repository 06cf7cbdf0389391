"""Items by their fields."""

from __future__ import annotations

import re
from collections.abc import Sequence

from redis_saver._common.store_names import Partition
from redis_saver._engine import scripts
from redis_saver._engine.requests import Argument, Command, Operation
from redis_saver._store.calling import ask
from redis_saver._store.context import StoreContext
from redis_saver._store.items import Entry
from redis_saver.errors import reading_store

_HINT_BYTES = 300
"""Approximate memory of the note that nothing in a partition has a TTL."""
_WITHOUT_TTLS = re.compile(rb"1 0 [0-9]+ [0-9]+ [0-9]+ [0-9]+ ")
"""Beginning of the state of a partition in which nothing has a TTL (`get_items.lua` has the same pattern)."""


def read(
    context: StoreContext, partition: Partition, fields: Sequence[bytes], *, refresh: bool
) -> Operation[list[Entry | None]]:
    """Read items of a partition; None for each that is not there. One round trip.

    If nothing in the partition had a TTL at the last read, one HMGET asks for the state and the records. It takes the
    server half the time of the script. If the state says that an item has a TTL now, the script is asked, too: two
    round trips, once.

    Args:
        context: The store.
        partition: The partition of the items.
        fields: Their fields, each once, at most 500.
        refresh: True to restart their TTLs.
    """
    hint = "without TTLs", partition.member
    records: Sequence[bytes | None]
    if context.reads_plain and context.remembered.get(hint):
        # Lower case keeps redis-py's CacheConfig from caching the reply of HMGET.
        state, *records = yield Command(("hmget", partition.keys[0], "@state", *fields), partition.keys[:1])
        if state and _WITHOUT_TTLS.match(state):
            return _entries(partition, fields, records)
        context.remembered.forget(hint)
    arguments: list[Argument] = [int(refresh), *fields]
    records = yield from ask(context, partition, scripts.GET_ITEMS, arguments, fields if refresh else ())
    if not records:
        return [None] * len(fields)
    if len(records) > len(fields):
        context.remembered.put(hint, True, _HINT_BYTES)
        records = records[:-1]
    return _entries(partition, fields, records)


def _entries(partition: Partition, fields: Sequence[bytes], records: Sequence[bytes | None]) -> list[Entry | None]:
    with reading_store(partition.keys[0]):
        if len(records) != len(fields):
            raise ValueError(f"{len(records)} records were answered, and {len(fields)} were asked for")
        found = zip(fields, records, strict=True)
        return [None if record is None else Entry(field, record) for field, record in found]
