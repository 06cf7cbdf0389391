"""`AsyncDriver`: runs operations over an asyncio client, whose connections each belong to one event loop."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Awaitable
from typing import Any

from redis_saver._client import clients, loops, twins
from redis_saver._client.base import RedisDriver
from redis_saver._client.batching import Batcher
from redis_saver._client.link import Link, Rules
from redis_saver._common import forks
from redis_saver._engine.requests import Request
from redis_saver.errors import closed

OWN_AFTER = 1.0
"""Seconds after its first call until a loop gets connections of its own. The first loop gets them at once."""


class AsyncDriver(RedisDriver):
    """A driver over an asyncio client.

    Any number of loops and OS threads may use it at once, before and after a fork (`LoopClients`).

    OS threads that run no loop may also call the blocking methods. The background loop answers these.
    """

    is_async = True

    def __init__(self, client: Any, **settings: Any) -> None:
        """Drive a client, with the settings of `RedisDriver`. No loop except the running one may have used it."""
        super().__init__(client, **settings)
        self.connections: LoopClients = LoopClients(client, self._what, self._rules)

    async def aclose(self) -> None:
        """Close the connections (`LoopClients.aclose`). From now on each request raises `Closed`."""
        await self.connections.aclose()

    def check_open(self) -> None:
        """Raise `Closed` if it was closed."""
        self.connections.check_open()

    def check_version(self) -> None:
        """Ask every server for its version, from an OS thread that runs no event loop."""
        loops.call(self._check_version())

    async def acheck_version(self) -> None:
        """`check_version` for asyncio."""
        here = self.connections.batcher()
        await (loops.acall(self._check_version()) if here is None else here.check_version())

    def request(self, request: Request) -> Any:
        """Answer a request."""
        return loops.call(self._answer_here(request))

    def arequest(self, request: Request) -> Awaitable[Any]:
        """`request` for asyncio."""
        batcher = self.connections.batcher()
        return loops.acall(self._answer_here(request)) if batcher is None else batcher.answer(request)

    async def _answer_here(self, request: Request) -> Any:
        return await self._batcher().answer(request)

    async def _check_version(self) -> None:
        await self._batcher().check_version()

    def _batcher(self) -> Batcher:
        """Return the batcher of the running loop, which has connections."""
        batcher = self.connections.batcher()
        assert batcher is not None  # noqa: S101 - the background loop has, and so has one that was asked before
        return batcher


class _Bound:
    """A client whose connections belong to one loop, with its batcher."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher
        self.ending: loops.Ending | None = None
        self.is_given = False
        """True if the client is the user's, who closes it."""


class LoopClients:
    """An asyncio client for each event loop that has connections of its own.

    The first loop that uses the saver has its own connections, and so has each loop that still uses it a second
    later: their calls take no detour. All other callers (loops that end soon, OS threads without a loop) share the
    connections of the background loop (`loops.py`). Nobody waits for a loop that somebody else may end.

    The first loop uses the client that was given, all others use twins of it. A loop's connections are closed when it
    ends. Those of the background loop are closed when this object is collected, or the process ends.
    """

    def __init__(self, client: Any, what: str, rules: Rules) -> None:
        """Use a client, which no loop except the running one has used. Errors say `what` it is for."""
        self.given: Any = client
        self._what, self._rules = what, rules
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
            bound = _Bound(Batcher(Link(self.given if is_given else twin(self.given), self._rules)))
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
