"""What is counted between the tiers of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from redis_saver._engine.stats import Counting, OperationStats


@dataclass
class TieredStoreStats:
    """What happened between the tiers of a store, in this process."""

    hits: int = 0
    """Gets and searches that hot answered."""
    misses: int = 0
    """Gets and searches that cold answered, as hot did not have everything."""
    fills: int = 0
    """Copies that were stored in hot, after a miss or a write."""
    refused: int = 0
    """Copies that were not, as somebody else wrote the item meanwhile, or hot is full, or its serializer or limits do not take the value."""
    repairs: int = 0
    """Partitions that hot dropped, as a part of them was evicted; and copies that could not be decoded."""
    bypasses: int = 0
    """Reads and writes that went on without hot, as it failed."""
    errors: int = 0
    """Writes that cold has, and that could not be read back. The last reason is in the log (`redis_saver.tiered_store`, WARNING)."""
    operations: Mapping[str, OperationStats] = field(default_factory=dict)
    """The calls by method. `store.hot.stats()` has what they sent to Redis."""


class Counts(TieredStoreStats):
    """The numbers of a process while they change. Users get copies (`snapshot`)."""

    kind: ClassVar[str] = "store_tier"

    def numbers(self) -> Mapping[str, Any]:
        """The numbers so far."""
        return vars(self)

    def after_fork(self) -> None:
        """In the child, begin with zero."""
        vars(self).update(vars(TieredStoreStats()))

    def snapshot(self, counting: Counting) -> TieredStoreStats:
        """A copy of the numbers so far, with those of the calls."""
        return replace(TieredStoreStats(), **vars(self) | {"operations": counting.snapshot()})
