"""Items by their fields."""

from __future__ import annotations

from collections.abc import Sequence

from redis_saver._common.store_names import Partition
from redis_saver._engine import scripts
from redis_saver._engine.requests import Operation
from redis_saver._store.calling import ask
from redis_saver._store.context import StoreContext
from redis_saver._store.items import Entry
from redis_saver._store.long_values import Known
from redis_saver.errors import reading_store


def read(
    context: StoreContext, partition: Partition, fields: Sequence[bytes], *, refresh: bool
) -> Operation[list[Entry | None]]:
    """Some items of a partition, None for each that is not there. One round trip. Long values that this process knows are not sent.

    Args:
        context: The store.
        partition: Where the items are.
        fields: Their fields, each once, 500 at the most.
        refresh: Whether their TTLs begin anew.
    """
    values = context.long_values
    known = {field: value for field in fields if (value := values.get(partition, field)) is not None}
    names = [b"%d %b" % (position, known[name].made_by) for position, name in enumerate(fields, 1) if name in known]
    records = yield from ask(context, partition, scripts.GET_ITEMS, (int(refresh), b" ".join(names), *fields))
    entries: list[Entry | None] = [None] * len(fields)
    with reading_store(partition.keys[0]):
        for position, record in enumerate(records):
            if record is not None:
                field = fields[position]
                entries[position] = _entry(context, partition, field, record, known.get(field))
    return entries


def _entry(context: StoreContext, partition: Partition, field: bytes, record: bytes, known: Known | None) -> Entry:
    entry = Entry(field, record)
    if known is None or entry.made_by != known.made_by:
        context.long_values.keep(partition, field, entry)
    elif not entry.data:
        entry.data = known.data
    return entry
