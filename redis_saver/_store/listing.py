"""Which items a partition has, by their versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from redis_saver._common.store_names import Partition
from redis_saver._engine import scripts
from redis_saver._engine.requests import Operation
from redis_saver._store.calling import ask
from redis_saver._store.context import StoreContext
from redis_saver.errors import reading_store


class Versions(NamedTuple):
    """As much of a partition as one reply holds: some thousand items, oldest first."""

    found: Mapping[bytes, int]
    """The version of each item, by its field."""
    above: int
    """The version to go on above; 0 at the end."""


def list_versions(context: StoreContext, partition: Partition, above: int = 0) -> Operation[Versions]:
    """The items of a partition above a version. One round trip."""
    reply = yield from ask(context, partition, scripts.LIST_ITEMS, (above, "versions"))
    if not reply:
        return Versions({}, 0)
    with reading_store(partition.keys[1]):
        is_last, *flat = reply[3:]
        found = {flat[each]: int(flat[each + 1]) for each in range(0, len(flat), 2)}
        return Versions(found, 0 if is_last else checked_progress(above, max(found.values(), default=0)))


def checked_progress(above: int, newest: int) -> int:
    """The version to go on above, behind a page that is not the last one.

    Raises:
        ValueError: The page has nothing newer, so that the listing would have no end.
    """
    if newest <= above:
        raise ValueError(f"the items above version {above} end at version {newest}, and more are to follow")
    return newest
