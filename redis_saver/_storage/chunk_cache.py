"""What this process has seen of the threads it works on: values in chunks, as they were last put or read.

It saves bytes and time. `put` leaves out the chunks the server is believed to have, and the script refuses where it has
not (the thread expired, was pruned, deleted, restored from an older snapshot), whereupon they are sent. `get_tuple` names the
chunks it need not be told again: a chunk is named by its bytes, so what is remembered of it is right, whatever happened
since. Nothing here is ever an answer by itself, and all of it may be forgotten at any time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TypeAlias

from redis_saver._common import forks
from redis_saver._common.display import shown
from redis_saver._storage.chunks import Stored, right_edge

CACHE_BYTES = 64 * 2**20
"""Bytes that are remembered at the most, of all threads of a saver together."""

_OVERHEAD = 150
"""Bytes that Python takes for a chunk beside its own."""


class Version:
    """A version of a value that is in chunks."""

    __slots__ = ("field", "size", "stored")

    def __init__(self, field: bytes, stored: Stored) -> None:
        """Note where it is stored, and how."""
        self.field: bytes = field
        self.stored: Stored = stored
        # The field is made of the namespace and the channel, by which it is found.
        self.size: int = stored.size + (len(stored.chunks) + 2) * _OVERHEAD + 2 * len(field)
        """The memory it takes, about."""
        if stored.elements:
            self.size += stored.elements.size

    def right_edge(self) -> list[bytes]:
        """The chunks to name to the server: with what is below them, all but what a growing value is likely to change."""
        return right_edge(self.stored.levels) if self.stored.levels else [self.field]


def names_version(field: bytes, chunk: bytes) -> Version:
    """The chunk with the names of a checkpoint, as a version of None."""
    return Version(field, Stored(b"", {field: chunk}, size=len(chunk)))


ChannelKey: TypeAlias = "tuple[str, str | None]"
"""A namespace and a channel. The channel None stands for the names of the last checkpoint, and says that no other channel
of that namespace was in chunks."""
Cached: TypeAlias = Mapping[ChannelKey, Version]
Update: TypeAlias = "Mapping[ChannelKey, Version | None]"
"""The same, as it is learned; None: it is not in chunks any more."""

_NOTHING: Cached = {}


class ChunkCache:
    """The last versions of values in chunks, of the threads used last."""

    def __init__(self, limit: int) -> None:
        """Remember so many bytes at the most.

        Raises:
            ValueError: The limit is no number of bytes.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise ValueError(f"cache_bytes={shown(limit)}: a number of bytes; 0 remembers nothing")
        self._limit = limit
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Begin with nothing: an OS thread that is not in the child may have been in the middle of a change."""
        self._threads: OrderedDict[bytes, Cached] = OrderedDict()
        self._sizes: dict[bytes, int] = {}
        self._size = 0
        self._lock = threading.Lock()

    def of(self, thread: bytes) -> Cached:
        """What is remembered of a thread, by the key of its data. It stays what it is: `remember` puts another in its place."""
        with self._lock:
            return self._threads.get(thread, _NOTHING)

    def remember(self, thread: bytes, seen: Update) -> None:
        """Add what was just seen of a thread; forgets the threads not used for longest where it becomes too much."""
        with self._lock:
            entries = self._threads.get(thread, _NOTHING)
            if entries and seen.items() <= entries.items():
                self._threads.move_to_end(thread)
                return
            entries = {place: version for place, version in {**entries, **seen}.items() if version}
            self._drop(thread)
            if not entries:
                return
            self._threads[thread] = entries
            size = len(thread) + sum(version.size for version in entries.values())
            self._size += size
            self._sizes[thread] = size
            while self._size > self._limit:
                self._drop(next(iter(self._threads)))

    def forget(self, thread: bytes) -> None:
        """Forget a thread."""
        with self._lock:
            self._drop(thread)

    def _drop(self, thread: bytes) -> None:
        self._threads.pop(thread, None)
        self._size -= self._sizes.pop(thread, 0)
