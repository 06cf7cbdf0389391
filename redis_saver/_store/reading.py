"""Items by their fields."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from redis_saver._common.store_names import Partition
from redis_saver._engine import scripts
from redis_saver._engine.requests import Command, Operation
from redis_saver._store.calling import ask
from redis_saver._store.context import StoreContext
from redis_saver._store.items import Entry
from redis_saver._store.long_values import MIN_BYTES, Known
from redis_saver.errors import reading_store

_HINT_BYTES = 300
"""About the memory for a partition in which nothing has a TTL."""
_WITHOUT_TTLS = re.compile(rb"1 0 [0-9]+ [0-9]+ [0-9]+ ([0-9]+) ")
"""How the state of a partition begins in which nothing has a TTL, with its token (`get_items.lua` looks for the same)."""


def read(
    context: StoreContext, partition: Partition, fields: Sequence[bytes], *, refresh: bool
) -> Operation[list[Entry | None]]:
    """Some items of a partition, None for each that is not there. One round trip. Long values that this process knows are not sent.

    Where nothing in the partition had a TTL at the last read, a command asks for the records and the state. If the state says that this is still so, then the
    script would do nothing else, and a command takes half the time of one. If it is not so any more, the script is asked after all: two round trips, once.

    Args:
        context: The store.
        partition: Where the items are.
        fields: Their fields, each once, 500 at the most.
        refresh: Whether their TTLs begin anew.
    """
    known = context.long_values.known(partition, fields)
    lasting = "lasting", partition.member
    if not known and context.reads_plain and context.remembered.get(lasting):
        # In small letters: a client with a cache of its own (redis-py's CacheConfig) would keep what HMGET answers.
        state, *records = yield Command(("hmget", partition.keys[0], "@state", *fields), partition.keys[:1])
        if state and (without_ttls := _WITHOUT_TTLS.match(state)):
            return _entries(context, partition, fields, records, known, without_ttls[1])
        context.remembered.forget(lasting)
    described = context.long_values.described(partition, fields, known) if known else b""
    reply = yield from ask(
        context, partition, scripts.GET_ITEMS, (int(refresh), described, *fields), fields if refresh else ()
    )
    records, token = _parted(partition, reply, len(fields))
    if token and not known:
        context.remembered.put(lasting, True, _HINT_BYTES)
    return _entries(context, partition, fields, records, known, token)


def _parted(partition: Partition, reply: Sequence[bytes | None], count: int) -> tuple[Sequence[bytes | None], bytes]:
    """The records of so many items, none if no item is there; and the partition's token, if nothing in it has a TTL.

    Raises:
        StoreDamaged: They are not so many: one that is left out is not one that is not there.
    """
    if not reply:
        return (), b""
    with reading_store(partition.keys[0]):
        if not count <= len(reply) <= count + 1:
            raise ValueError(f"{len(reply)} records were answered, and {count} were asked for")
    return reply[:count], (reply[count] or b"") if len(reply) > count else b""


def _entries(
    context: StoreContext,
    partition: Partition,
    fields: Sequence[bytes],
    records: Sequence[bytes | None],
    known: Mapping[int, Known],
    token: bytes,
) -> list[Entry | None]:
    """Records as entries. With the partition's token, if nothing in it has a TTL."""
    entries: list[Entry | None] = [None] * len(fields)
    with reading_store(partition.keys[0]):
        for position, record in enumerate(records):
            if record is not None:
                entry = entries[position] = Entry(fields[position], record)
                if len(entry.data) >= MIN_BYTES:
                    context.long_values.keep(partition, entry.field, entry)
                elif (one := known.get(position)) is not None and one.made_by == entry.made_by:
                    entry.fill(one.data)
                else:
                    continue
                if token:
                    context.long_values.see(partition, entry, token)
    return entries
