"""The lifetime of a saver over two tiers in this process: its blocks, its calls under way, and its end."""

from __future__ import annotations

import threading
import time

from redis_saver._common import forks
from redis_saver._engine.requests import Sleep
from redis_saver._tiered.requests import Tiered
from redis_saver.errors import closed


class Lifetime:
    """The lifetime of a saver and its clones. A `with` over it is a call, which `close` waits for."""

    def __init__(self) -> None:
        """Begin open."""
        self._is_closed = False
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, begin without blocks and calls: the parent's are the parent's."""
        self._blocks, self._lock = 0, threading.RLock()  # a signal's handler may close what it interrupts
        self.calls: int = 0
        """Calls under way."""

    def check_open(self) -> None:
        """Check that it is open.

        Raises:
            Closed: It was closed.
        """
        if self._is_closed:
            raise closed("the saver over two tiers")

    def close(self) -> None:
        """Refuse each further call. Those that were let through are counted."""
        with self._lock:
            self._is_closed = True

    def __enter__(self) -> None:
        """Begin a call."""
        with self._lock:
            self.check_open()
            self.calls += 1

    def __exit__(self, *_: object) -> None:
        """End a call."""
        with self._lock:
            self.calls = max(0, self.calls - 1)  # it may have begun before the fork

    def until_idle(self, seconds: float) -> Tiered[None]:
        """Wait while calls are under way, for at most this many seconds."""
        deadline = time.monotonic() + seconds
        while self.calls and time.monotonic() < deadline:
            yield Sleep(0.01)

    def enter_block(self) -> None:
        """Begin a block, also after it was closed."""
        with self._lock:
            self._blocks, self._is_closed = self._blocks + 1, False

    def leave_block(self) -> bool:
        """End a block. Returns True if it was the last one, so that the saver has to be closed."""
        with self._lock:
            self._blocks = max(0, self._blocks - 1)
            return not self._blocks
