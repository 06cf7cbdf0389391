"""What a process remembers of a store: pages, mirrors and long values, those used last. A hint, never an answer: the server decides whether it still holds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, ClassVar

from redis_saver._common import config, forks
from redis_saver._common.logs import Log

_LOG = Log("redis_saver.store")


class Remembered:
    """Values under keys, in so many bytes of memory. OS threads share them, so nobody changes one: who learns more puts another in its place."""

    kind: ClassVar[str] = "remembered"

    def __init__(self, limit: int) -> None:
        """Remember so many bytes at the most.

        Raises:
            ValueError: The limit is no number of bytes.
        """
        config.number("cache_bytes", limit, 0, whole=True)
        self._limit, self._has_warned = limit, False
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Begin with nothing: an OS thread that is not in the child may have been in the middle of a change."""
        self._hits = self._misses = 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """What is remembered under a key, or None."""
        with self._lock:
            if (found := self._values.get(key)) is None:
                self._misses += 1
                return None
            self._hits += 1
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Remember a value of so many bytes; forgets those not used for longest where it becomes too much.

        A value that is larger than all of the memory is not remembered, and logged once: who asks for it again reads all of it.
        """
        if size > self._limit:
            self.forget(key)
            if self._limit and not self._has_warned:
                self._has_warned = True
                _LOG.warning(
                    "A store read or put %s bytes of items and vectors that cache_bytes=%s cannot hold: each further call reads them again. Set cache_bytes "
                    "higher, or search smaller partitions",
                    f"{size:,}",
                    f"{self._limit:,}",
                )
            return
        with self._lock:
            self._drop(key)
            self._values[key] = value, size
            self._size += size
            while self._size > self._limit:
                self._drop(next(iter(self._values)))

    def numbers(self) -> dict[str, Any]:
        """The fields of `RedisStats` about it."""
        return {"cache_bytes": self._size, "cache_hits": self._hits, "cache_misses": self._misses}

    def forget(self, key: Hashable) -> None:
        """Forget what is remembered under a key."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        self._size -= self._values.pop(key, (None, 0))[1]
