"""Cache for data that this process can read or compute again."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from typing import TypeVar

from redis_saver._common import forks

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(OrderedDict[K, V]):
    """Bounded dict that drops the least recently stored items. Storing an item again renews it.

    Read it as a dict: `get`, `[]` and `in` are one step in C, so OS threads need no lock. Write it only with `store`,
    `renew`, `forget` and `take`. The child of a fork starts with an empty cache.
    """

    def __init__(self, max_items: int = sys.maxsize, max_bytes: int = sys.maxsize) -> None:
        """Set the bounds.

        Args:
            max_items: Maximum number of items.
            max_bytes: Maximum sum of the sizes. A larger item is not stored.
        """
        super().__init__()
        self._max_items, self._max_bytes = max_items, max_bytes
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Start empty in the child, because an OS thread of the parent may have been changing the cache."""
        self._lock = threading.RLock()  # a finalizer may store an item while another is dropped
        self._sizes: dict[K, int] = {}
        self.bytes: int = 0
        self.clear()

    def store(self, key: K, value: V, size: int = 0) -> None:
        """Store an item, and drop old ones beyond the bounds.

        Args:
            key: The key.
            value: The value.
            size: Approximate bytes of memory of both, for `max_bytes`.
        """
        with self._lock:
            self.pop(key, None)
            self.bytes -= self._sizes.pop(key, 0)
            if size > self._max_bytes:
                return
            self[key] = value
            self._sizes[key] = size
            self.bytes += size
            while self.bytes > self._max_bytes or len(self) > self._max_items:
                self.forget(next(iter(self)))

    def renew(self, key: K) -> None:
        """Treat an item as just stored, if it exists."""
        with self._lock:
            if key in self:
                self.move_to_end(key)

    def forget(self, key: K) -> None:
        """Remove an item, if it exists."""
        with self._lock:
            self.pop(key, None)
            self.bytes -= self._sizes.pop(key, 0)

    def take(self, key: K) -> V | None:
        """Remove an item and return it, or None if it does not exist. No two callers get the same item."""
        with self._lock:
            value = self.get(key)
            self.forget(key)
            return value
