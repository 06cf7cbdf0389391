"""Who uses which client: a blocking client belongs to a process, and the connections of an asyncio client to an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import AsyncGenerator
from typing import Any

from redis_saver import clients, forks, loops, twins
from redis_saver.batching import Batcher

OWN_AFTER = 1.0
"""Seconds after its first call that a loop gets connections of its own, unless it is the first."""


class ProcessClient:
    """A blocking client; in the child of a fork another one with the same settings."""

    def __init__(self, client: Any) -> None:
        """Use this client in this process."""
        self._lock, self._client, self._inherited = threading.Lock(), client, None
        forks.watch(self)

    def after_fork(self) -> None:
        """Leave the parent's client alone."""
        self._inherited = self._inherited or self._client
        forks.keep(self._client)
        self._lock, self._client = threading.Lock(), None

    @property
    def client(self) -> Any:
        """The client of this process."""
        if (client := self._client) is not None:
            return client
        with self._lock:
            if self._client is None:
                self._client = twins.twin(self._inherited)
            return self._client

    def close(self) -> None:
        """Close the connections of this process."""
        if self._client is not None:
            clients.close(self._client)


class _Bound:
    """A client whose connections are those of one loop, with what sends on it."""

    def __init__(self, client: Any) -> None:
        self.batcher = Batcher(client)
        self.ending: AsyncGenerator[None, None] | None = None


class LoopClients:
    """An asyncio client for each event loop that has connections of its own.

    The first loop that uses them has, and so has each that still does so a second later: their calls take no detour. All other callers, loops that are soon over
    and OS threads without any, share the connections of the background loop (`loops.py`). Nobody waits for a loop that somebody else may end.

    The first loop uses the client that was given, all others use twins of it. A loop's connections are closed when it ends, those of the background loop when
    this object is forgotten, or the process ends.
    """

    def __init__(self, client: Any) -> None:
        """Take a client that no loop has used yet, or the running one."""
        self.given = client
        self._given_is_free = True
        self._lock = threading.Lock()
        self._first = loops.running()
        self._seen: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, float] = weakref.WeakKeyDictionary()
        self._bound: dict[asyncio.AbstractEventLoop, _Bound] = {}
        forks.watch(self)

    def after_fork(self) -> None:
        """Leave the parent's loops and connections alone; the child's first loop is the next that comes."""
        forks.keep((self.given, self._bound, self._first))
        self._given_is_free, self._lock, self._first = False, threading.Lock(), None
        self._seen, self._bound = weakref.WeakKeyDictionary(), {}

    def batcher(self) -> Batcher | None:
        """What sends on the running loop; None where the call is to go to the background loop."""
        loop = asyncio.get_running_loop()
        bound = self._bound.get(loop)
        if bound is None and self._may_own(loop):
            bound = self._bind(loop)
        return None if bound is None else bound.batcher

    async def aclose(self) -> None:
        """Close the connections of the running loop, and those of the background loop that are not in use.

        Other loops close theirs when they end. Whoever goes on using the saver connects anew.
        """
        if (bound := self._bound.pop(asyncio.get_running_loop(), None)) is not None:
            await clients.aclose(bound.batcher.client)
        for loop, bound in list(self._bound.items()):
            if loops.is_background(loop):
                await loops.acall(clients.aclose_idle(bound.batcher.client))

    def _may_own(self, loop: asyncio.AbstractEventLoop) -> bool:
        if loops.is_background(loop):
            return True
        with self._lock:
            if self._first is None:
                self._first = loop
            now = time.monotonic()
            return loop is self._first or now - self._seen.setdefault(loop, now) >= OWN_AFTER

    def _bind(self, loop: asyncio.AbstractEventLoop) -> _Bound:
        with self._lock:
            for ended in [each for each in self._bound if each.is_closed()]:
                del self._bound[ended]
            is_given = self._given_is_free and loop is self._first
            client = self.given if is_given else twins.twin(self.given)
            self._given_is_free = self._given_is_free and not is_given
            bound = self._bound[loop] = _Bound(client)
        mine = weakref.ref(self)

        async def end() -> None:
            if (loop_clients := mine()) is not None:
                loop_clients._unbind(loop, client)  # noqa: SLF001
            elif is_given:  # nobody uses it here any more, but its owner may
                return
            await clients.aclose(client)

        bound.ending = loops.at_end(end)
        return bound

    def _unbind(self, loop: asyncio.AbstractEventLoop, client: Any) -> None:
        bound = self._bound.get(loop)
        if bound is not None and bound.batcher.client is client:
            del self._bound[loop]
