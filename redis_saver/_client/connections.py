"""Who uses which client: a blocking client belongs to a process, the connections of an asyncio client belong to an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from redis_saver._client import clients, loops, twins
from redis_saver._client.batching import Batcher
from redis_saver._common import forks
from redis_saver.errors import closed

OWN_AFTER = 1.0
"""Seconds after its first call until a loop gets connections of its own. The first loop gets them at once."""


class ProcessClient:
    """A blocking client; in the child of a fork another one with the same settings."""

    def __init__(self, client: Any, what: str) -> None:
        """Use this client in this process. Errors say `what` it is for."""
        self._what = what
        self._lock, self._client, self._inherited = threading.Lock(), client, None
        self._is_closed = False
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, do not touch the parent's client."""
        self._inherited = self._inherited or self._client
        forks.keep(self._client)
        self._lock, self._client = threading.Lock(), None

    @property
    def client(self) -> Any:
        """The client of this process.

        Raises:
            Closed: It was closed, in this process or before the fork.
        """
        if (client := self._client) is not None:
            return client
        with self._lock:
            self.check_open()
            if self._client is None:
                self._client = twins.after_fork(self._inherited)
            return self._client

    def check_open(self) -> None:
        """Raise `Closed` if it was closed."""
        if self._is_closed:
            raise closed(self._what)

    def close(self) -> None:
        """Close the connections of this process. Requests under way, in other OS threads, get their replies."""
        with self._lock:
            client, self._client, self._is_closed = self._client, None, True
        if client is not None:
            clients.close(client)


class _Bound:
    """A client whose connections belong to one loop, with its batcher."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher
        self.ending: loops.Ending | None = None
        self.is_given = False
        """Whether the client is the user's, who closes it."""


class LoopClients:
    """An asyncio client for each event loop that has connections of its own.

    The first loop that uses the saver has its own connections, and so has each loop that still uses it a second later: their calls take no detour. All other
    callers (loops that end soon, OS threads without a loop) share the connections of the background loop (`loops.py`). Nobody waits for a loop that somebody
    else may end.

    The first loop uses the client that was given, all others use twins of it. A loop's connections are closed when it ends. Those of the background loop are
    closed when this object is collected, or the process ends.
    """

    def __init__(self, client: Any, what: str, batching: Callable[[Any], Batcher]) -> None:
        """Use a client, which no loop except the running one has used.

        Args:
            client: The client.
            what: What it is for, for errors.
            batching: Makes a batcher of a client.
        """
        self.given: Any = client
        self._what = what
        self._batching = batching
        self._given_is_free, self._is_forked = True, False
        self._lock = threading.Lock()
        self._first = loops.running()
        self._seen: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, float] = weakref.WeakKeyDictionary()
        self._bound: dict[asyncio.AbstractEventLoop, _Bound] = {}
        self._is_closed = False
        self._at_last = weakref.finalize(self, _close_made, self._bound)
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, do not touch the parent's loops and connections. The next loop is the first of the child."""
        forks.keep((self.given, self._bound, self._first, self._at_last.detach()))
        self._given_is_free, self._lock, self._first = False, threading.Lock(), None
        self._is_forked = True
        self._seen, self._bound = weakref.WeakKeyDictionary(), {}
        self._at_last = weakref.finalize(self, _close_made, self._bound)

    def batcher(self) -> Batcher | None:
        """The batcher of the running loop; None if the call has to go to the background loop.

        Raises:
            Closed: `aclose` was called, in this process or before the fork.
        """
        forks.check()
        loop = asyncio.get_running_loop()
        bound = self._bound.get(loop)
        if bound is None and self._may_own(loop):
            bound = self._bind(loop)
        return None if bound is None else bound.batcher

    async def aclose(self) -> None:
        """Close the connections of the running loop, and those of the background loop that are not in use.

        Other loops close their connections when they end.
        """
        with self._lock:
            self._is_closed = True
            bound_to, self._bound = self._bound, {}  # the finalizer has the first, for what is still in use
        if (bound := bound_to.pop(asyncio.get_running_loop(), None)) is not None:
            if bound.ending is not None:
                bound.ending.forget()
            await clients.aclose(bound.batcher.client)
        for loop, bound in list(bound_to.items()):
            if loops.is_background(loop):
                await loops.acall(clients.aclose_idle(bound.batcher.client))

    def check_open(self) -> None:
        """Raise `Closed` if it was closed."""
        if self._is_closed:
            raise closed(self._what)

    def _may_own(self, loop: asyncio.AbstractEventLoop) -> bool:
        self.check_open()
        if loops.is_background(loop):
            return True
        with self._lock:
            if self._first is None:
                self._first = loop
            now = time.monotonic()
            return loop is self._first or now - self._seen.setdefault(loop, now) >= OWN_AFTER

    def _bind(self, loop: asyncio.AbstractEventLoop) -> _Bound:
        with self._lock:
            self.check_open()  # another OS thread may have closed it meanwhile
            for ended in [each for each in self._bound if each.is_closed()]:
                if (ending := self._bound.pop(ended).ending) is not None:
                    ending.forget()
            is_given = self._given_is_free and loop is self._first
            twin = twins.after_fork if self._is_forked else twins.twin
            bound = _Bound(self._batching(self.given if is_given else twin(self.given)))
            bound.is_given = is_given
            self._given_is_free = self._given_is_free and not is_given
            self._bound[loop] = bound
        of_loops = self._bound

        async def end() -> None:
            if of_loops.get(loop) is bound:
                del of_loops[loop]
            await clients.aclose(bound.batcher.client)

        bound.ending = loops.Ending(end)
        return bound


def _close_made(bound: dict[asyncio.AbstractEventLoop, _Bound]) -> None:
    """Close the connections that a `LoopClients` made, once it is collected; not those of the client that was given."""
    for each in list(bound.values()):
        if each.ending is not None:
            if each.is_given:
                each.ending.forget()
            else:
                each.ending.now()
