"""`AsyncDriver`: runs operations with asyncio clients, one for each event loop that has connections."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, copy_context
from operator import length_hint
from typing import Any

from redis_saver._client import clients, loops
from redis_saver._client.asking import aask_all
from redis_saver._client.base import RedisDriver
from redis_saver._client.link import ALONE, Exchange, Link, Newcomer, Send, Together, Tries, as_command, name_of
from redis_saver._common import forks
from redis_saver._engine.requests import Argument, Ask, AskAll, Batch, Call, Command, Request, Sleep, T, key_of
from redis_saver._engine.runner import arun

REQUESTS_PER_PIPELINE = 64
BYTES_PER_PIPELINE = 256_000
"""Maximum bytes of a shared pipeline. A larger request is sent alone, so that no other request waits for it."""


class Pending(asyncio.Future[Any]):
    """A request to send, and the future that its caller awaits."""

    __slots__ = ("caller", "context", "node", "request", "size")

    def __init__(self, request: Call | Command, caller: object, node: Any) -> None:
        """Create the future on the running loop. Requests of one caller share the object `caller`."""
        super().__init__(loop=asyncio.get_running_loop())
        self.request, self.caller, self.node = request, caller, node
        self.size = sum(map(length_hint, request.arguments))
        self.context = copy_context()

    def resolve(self, reply: Any) -> None:
        """Set a reply or an error, unless the caller has gone."""
        if self.done():
            return
        if isinstance(reply, BaseException):
            self.set_exception(reply)
        else:
            self.set_result(reply)


class Batcher:
    """A link on the event loop of its connections. Requests of one turn of the loop share pipelines."""

    def __init__(self, link: Link, *, is_given: bool = False) -> None:
        """Use a link on the running loop. If the client `is_given`, the user closes it."""
        self.link, self.is_given = link, is_given
        self.ending: loops.Ending | None = None
        self.client: Any = link.client
        clients.give_back_connections(link.client)
        self._opened = not link.is_cluster
        self._opening = asyncio.Lock()
        self._queue: list[Pending] | None = None
        self._under_way: dict[asyncio.Task[None], list[Pending]] = {}
        self._limiters: dict[str | None, asyncio.Semaphore] = {}

    def forget_ending(self) -> None:
        """Do not close the connections when the loop ends."""
        if self.ending is not None:
            self.ending.forget()

    async def open(self) -> None:
        """Let a cluster client find its nodes before concurrent calls, some of which would fail (redis-py 8.1).

        If a node cannot be reached, retry: the next try may skip it, or it may be back. Any other error is probably a
        mistake in the client's settings, and is raised at once.
        """
        unreachable = (OSError, self.link.exceptions.TimeoutError, self.link.exceptions.ConnectionError)
        async with self._opening:
            tries = Tries(self.link, None)
            while not self._opened:
                try:
                    await self.client.initialize()
                    self._opened = True
                except self.link.passing as error:
                    # If no node can be reached, the cause of redis-py's RedisClusterException is the last node's error.
                    cause = error if isinstance(error, unreachable) else error.__cause__
                    if not isinstance(cause, unreachable):
                        raise
                    pause = tries.pause(cause)
                else:
                    return
                await asyncio.sleep(pause)

    async def check_version(self) -> None:
        """Ask every server for its version."""
        await self._carried(self.link.check_version())

    def answer(self, request: Request) -> Awaitable[Any]:
        """Answer a request. Requests of the same turn of the loop share a pipeline."""
        if isinstance(request, Sleep):
            return asyncio.sleep(request.seconds)
        if isinstance(request, Ask):
            return request.aask(*request.arguments)
        if isinstance(request, AskAll):
            return aask_all(request.questions)
        link = self.link
        if not link.is_plain:
            request = link.on_primary(request)
        if isinstance(request, Batch):
            return self._answer_all(request.requests)
        if isinstance(request, Call | Command) and (link.is_plain or link.travels(request)):
            return self._travel(request)
        return self._carried(link.answer(request))

    # -- collecting the requests of a turn

    async def _travel(self, request: Call | Command) -> Any:
        """Answer a request. The first caller of a turn waits for its end, and then sends all requests of the turn."""
        if (queue := self._queue) is None:
            queue = self._queue = []
            try:
                await asyncio.sleep(0)
                if queue:
                    queue.insert(0, self._pending(request, request))
            finally:
                self._queue = None
                if queue:
                    self._dispatch(queue)
            if not queue:
                return await self._alone(request)
            mine = queue[0]
        else:
            queue.append(mine := self._pending(request, request))
        try:
            reply = await mine
        except asyncio.CancelledError:
            self._stop_unawaited()
            raise
        return await self._alone(request) if reply is ALONE else reply

    async def _answer_all(self, requests: Sequence[Call | Command]) -> list[Any]:
        """Answer requests that may share a pipeline.

        Raises:
            Exception: The first error among them.
        """
        mine = [self._pending(request, requests) for request in requests]
        if self._queue is None:
            self._queue = []
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._queue += mine
        try:
            replies = await asyncio.gather(*mine)
        except asyncio.CancelledError:
            self._stop_unawaited()
            raise
        again = [position for position, reply in enumerate(replies) if reply is ALONE]
        answers = await asyncio.gather(*(self._alone(requests[position]) for position in again))
        for position, answer in zip(again, answers, strict=True):
            replies[position] = answer
        return replies

    def _end_turn(self) -> None:
        queue, self._queue = self._queue, None
        self._dispatch(queue or ())

    def _pending(self, request: Call | Command, caller: object) -> Pending:
        return Pending(request, caller, self.link.node_of(key_of(request)) if self.link.is_cluster else None)

    def _dispatch(self, queue: Sequence[Pending]) -> None:
        """Send the requests of this turn, in one task per node. Callers send lone and long requests themselves."""
        together: dict[str | None, list[Pending]] = {}
        for pending in queue:
            if pending.done():  # its caller has gone
                continue
            if (self.link.is_cluster and pending.node is None) or pending.size > BYTES_PER_PIPELINE:
                pending.resolve(ALONE)
            else:
                together.setdefault(name_of(pending.node), []).append(pending)
        for some in together.values():
            if len(some) == 1:
                some[0].resolve(ALONE)
                continue
            # Tracers take a pipeline for a part of the request whose context it has, so one of several has none.
            context = Context() if _have_several_callers(some) else some[0].context
            task = context.run(asyncio.get_running_loop().create_task, self._send(some))
            self._under_way[task] = some
            task.add_done_callback(self._on_done)

    async def _send(self, together: Sequence[Pending]) -> None:
        for some in _pipelines(together):
            if waiting := [pending for pending in some if not pending.done()]:
                neighbours = _have_several_callers(waiting)
                requests = [pending.request for pending in waiting]
                with self._shared(waiting) if neighbours and self.link.traffic.observers else nullcontext():
                    replies = await self._carried(self.link.together(waiting[0].node, requests, neighbours=neighbours))
                for pending, reply in zip(waiting, replies, strict=True):
                    pending.resolve(reply)

    def _shared(self, waiting: Sequence[Pending]) -> AbstractContextManager[None]:
        return self.link.traffic.sharing(
            [(pending.context, sum(map(length_hint, as_command(pending.request)))) for pending in waiting]
        )

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """Resolve the requests of a task that has ended, even by an error or a cancellation."""
        error = None if task.cancelled() else task.exception()
        for pending in self._under_way.pop(task):
            if error is not None:
                pending.resolve(error)
            else:
                pending.cancel()  # no effect if it has its reply

    def _stop_unawaited(self) -> None:
        """Cancel pipelines whose callers have all gone, so that nothing waits for a server that hangs."""
        for task, together in self._under_way.items():
            if all(pending.done() for pending in together):
                task.cancel()

    # -- sending

    async def _alone(self, request: Call | Command) -> Any:
        """Send a request alone."""
        link = self.link
        if link.is_cluster or not link.is_plain:
            return await self._carried(link.alone(request))
        # The common case of `Link.alone`, in fewer steps.
        command, traffic = as_command(request), link.traffic
        try:
            async with self._limiters.get(None) or self._limiter(None):
                traffic.sending(command)
                return traffic.receive(await self.client.execute_command(*command, **link.options))
        except link.exceptions.ResponseError as error:
            return await self._carried(link.refused(request, error))

    async def _carried(self, exchange: Exchange[T]) -> T:
        try:
            if not self._opened:
                await self.open()
            return await arun(exchange, self._carry_out)
        except self.link.failures as error:
            clients.check_knows_hello(error)
            raise

    async def _carry_out(self, verb: Send | Together | Sleep) -> Any:
        if isinstance(verb, Sleep):
            return await asyncio.sleep(verb.seconds)
        link = self.link
        if isinstance(verb, Send):
            async with self._limiter(verb.node or link.node_of(verb.key)):
                link.traffic.sending(verb.command)
                options = {**link.options, **clients.target(verb.node)}
                return link.traffic.receive(await self.client.execute_command(*verb.command, **options))
        if isinstance(verb.node, Newcomer):
            newcomer = type(self.client.get_primaries()[0])(*verb.node, **self.client.connection_kwargs)
            try:
                return await self._carry_out(Together(verb.commands, newcomer))
            finally:
                await newcomer.disconnect()
        async with self._limiter(verb.node):
            link.traffic.sending_together(verb.commands)
            if verb.node is not None:
                return link.traffic.receive(await self._to_node(verb.node, verb.commands))
            async with self.client.pipeline(transaction=False) as pipeline:
                for command in verb.commands:
                    pipeline.execute_command(*command, **link.options)
                return link.traffic.receive(await pipeline.execute(raise_on_error=False))

    async def _to_node(self, node: Any, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands to a node of a cluster. The client's own pipeline might retry some on other connections."""
        kind = sys.modules[type(node).__module__].PipelineCommand
        sent = [kind(position, *command, **self.link.options) for position, command in enumerate(commands)]
        await node.execute_pipeline(sent)
        return [each.result for each in sent]

    def _limiter(self, node: Any) -> asyncio.Semaphore:
        """Return the semaphore of a node's connections. The client would refuse requests while all are in use."""
        name = name_of(node)
        if name not in self._limiters:
            self._limiters[name] = asyncio.Semaphore(clients.most_connections(self.client, node))
        return self._limiters[name]


def _have_several_callers(together: Sequence[Pending]) -> bool:
    return any(pending.caller is not together[0].caller for pending in together)


def _pipelines(together: Sequence[Pending]) -> Iterator[list[Pending]]:
    """Divide requests into short pipelines, so that no caller waits long for the replies to others."""
    load: list[Pending] = []
    room = BYTES_PER_PIPELINE
    for pending in together:
        if load and (len(load) == REQUESTS_PER_PIPELINE or pending.size > room):
            yield load
            load, room = [], BYTES_PER_PIPELINE
        load.append(pending)
        room -= pending.size
    yield load


OWN_AFTER = 1.0
"""Seconds from a loop's first call until it gets its own connections. The first loop gets them at once."""


class AsyncDriver(RedisDriver):
    """Driver for an asyncio client. Any number of loops and OS threads may use it at once, before and after a fork.

    The first loop has its own connections, and so has each loop that still uses the driver a second later. All other
    callers (loops that end soon, OS threads without a loop) share the connections of the background loop (`loops.py`).
    So no caller waits for a loop that another caller may end.

    The first loop uses the user's client; the others use twins. A loop's connections are closed when it ends. Those of
    the background loop are closed when Python collects the driver, or the process ends.
    """

    is_async = True

    def __init__(self, client: Any, **settings: Any) -> None:
        """Use a client, with the settings of `RedisDriver`. No loop except the running one may have used it."""
        super().__init__(client, **settings)
        self.given: Any = client
        self._given_is_free, self._is_forked = True, False
        self._first = loops.running()
        self._begin()
        forks.watch(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._seen: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, float] = weakref.WeakKeyDictionary()
        self._bound: dict[asyncio.AbstractEventLoop, Batcher] = {}
        self._at_last = weakref.finalize(self, _close_made, self._bound)

    def after_fork(self) -> None:
        """In the child, do not touch the parent's loops and connections. The next loop counts as the first."""
        forks.keep((self.given, self._bound, self._first, self._at_last.detach()))
        self._given_is_free, self._is_forked, self._first = False, True, None
        self._begin()

    def check_version(self) -> None:
        """Ask every server for its version, from an OS thread that runs no event loop."""
        loops.call(self.acheck_version())

    async def acheck_version(self) -> None:
        """`check_version` for asyncio."""
        batcher = self.batcher()
        await (loops.acall(self.acheck_version()) if batcher is None else batcher.check_version())

    def request(self, request: Request) -> Any:
        """Answer a request."""
        return loops.call(self._answer_here(request))

    def arequest(self, request: Request) -> Awaitable[Any]:
        """`request` for asyncio."""
        batcher = self.batcher()
        return loops.acall(self._answer_here(request)) if batcher is None else batcher.answer(request)

    async def _answer_here(self, request: Request) -> Any:
        return await self.arequest(request)

    def batcher(self) -> Batcher | None:
        """Return the batcher of the running loop, or None if the call has to go to the background loop.

        Raises:
            Closed: `aclose` was called, in this process or before the fork.
            ThreadsPatched: gevent or eventlet has patched Python's threads.
        """
        forks.check()
        loop = asyncio.get_running_loop()
        batcher = self._bound.get(loop)
        return self._bind(loop) if batcher is None and self._may_own(loop) else batcher

    async def aclose(self) -> None:
        """Close the connections of the running loop, and idle connections of the background loop.

        Other loops close their connections when they end. Later requests raise `Closed`.
        """
        with self._lock:
            self._is_closed = True
            bound, self._bound = self._bound, {}  # the finalizer has the old dict, and closes the rest
        if (batcher := bound.pop(asyncio.get_running_loop(), None)) is not None:
            batcher.forget_ending()
            await clients.aclose(batcher.client)
        for loop, batcher in list(bound.items()):
            if loops.is_background(loop):
                await loops.acall(clients.aclose_idle(batcher.client))

    def _may_own(self, loop: asyncio.AbstractEventLoop) -> bool:
        self.check_open()
        if loops.is_background(loop):
            return True
        loops.check_threads()
        with self._lock:
            self._first = self._first or loop
            now = time.monotonic()
            return loop is self._first or now - self._seen.setdefault(loop, now) >= OWN_AFTER

    def _bind(self, loop: asyncio.AbstractEventLoop) -> Batcher:
        with self._lock:
            self.check_open()  # another OS thread may have closed it meanwhile
            for ended in [each for each in self._bound if each.is_closed()]:
                self._bound.pop(ended).forget_ending()
            is_given = self._given_is_free and loop is self._first
            self._given_is_free = self._given_is_free and not is_given
            make = clients.twin_after_fork if self._is_forked else clients.twin
            batcher = Batcher(Link(self.given if is_given else make(self.given), self._rules), is_given=is_given)
            bound = self._bound
            bound[loop] = batcher

        async def end() -> None:
            if bound.get(loop) is batcher:
                del bound[loop]
            await clients.aclose(batcher.client)

        batcher.ending = loops.Ending(end)
        return batcher


def _close_made(bound: dict[asyncio.AbstractEventLoop, Batcher]) -> None:
    """Close the connections that a collected `AsyncDriver` made, but not those of the user's client."""
    for batcher in list(bound.values()):
        if batcher.is_given:
            batcher.forget_ending()
        elif batcher.ending is not None:
            batcher.ending.now()
