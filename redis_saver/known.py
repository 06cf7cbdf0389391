"""What the server has, as far as this process has seen.

A hint that saves bytes: `put` leaves out the parts that are believed to be stored, and the script refuses where one of
them is not (the thread expired, was pruned, deleted, restored from an older snapshot), whereupon it is sent. So what is
remembered here may be wrong, and may be forgotten at any time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TypeAlias

FIELDS = 250_000
"""How many names of parts are remembered, of all threads together; each takes about a hundred bytes."""

Seen: TypeAlias = Mapping[tuple[str, str | None], frozenset[bytes]]
"""Of a thread: by namespace and channel, the parts of the channel's last value. The channel None stands for the part with
the names of the last checkpoint, and says that of the channels of that namespace none is left out here."""


class Known:
    """The parts that threads were last seen to have; those of the threads used last."""

    def __init__(self) -> None:
        self._threads: OrderedDict[bytes, dict[tuple[str, str | None], frozenset[bytes]]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def of(self, thread: bytes) -> Seen:
        """What is remembered of a thread, by the key of its data."""
        with self._lock:
            return dict(self._threads.get(thread, ()))

    def remember(self, thread: bytes, seen: Seen) -> None:
        """Add what was just seen of a thread; forgets the threads not used for longest where it becomes too much."""
        with self._lock:
            entries = self._threads.setdefault(thread, {})
            self._threads.move_to_end(thread)
            for place, fields in seen.items():
                self._size += len(fields) + 1 - (len(entries[place]) + 1 if place in entries else 0)
                entries[place] = fields
            while self._size > FIELDS and self._threads:
                self._drop(next(iter(self._threads)))

    def forget(self, thread: bytes) -> None:
        """Forget a thread."""
        with self._lock:
            self._drop(thread)

    def _drop(self, thread: bytes) -> None:
        self._size -= sum(len(fields) + 1 for fields in self._threads.pop(thread, {}).values())
