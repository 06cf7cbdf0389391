"""Operations that are issued together travel together: many callers of one event loop share a few round trips.

The first caller lets all others that are ready go before it, for one turn of the loop (`sleep(0)`, never a timer).
Then it sends their requests and its own in one pipeline, in the order in which they came. If nobody else came, it
sends its request as if there were no queue.

**After any failure in a pipeline each request is sent again, alone**, so that no caller sees another's error. Its
caller does what it would have done without the queue, and the client retries by its own rules. That is right, as
every request may be sent twice. (The requests of a `Batch` have one caller. They fail together if a single server
cannot be reached, as one request does.) Only three outcomes are final at once: a reply; an error that one of our
scripts raised; and NOSCRIPT, after which those requests go in one more pipeline, the first of each script with its
text. For a cache a timeout is final, too.

A caller that is cancelled leaves nothing behind but its future. A request that was not sent yet is not sent. The
reply to one that was sent is read by the task of the pipeline, for the neighbours' sake. The last caller to leave
stops that task.

The pipelines are redis-py's. Working one level below them, with a connection's `send_packed_command` and
`read_response`, would make a request cheaper by less than a fifth. But tools that wrap `execute_command` and
`Pipeline.execute` to trace them would see nothing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Iterator, Sequence
from operator import length_hint
from typing import Any

from redis_saver._client import clients
from redis_saver._client.link import ALONE, Exchange, Link, Newcomer, Send, Together, Tries, as_command, name_of
from redis_saver._engine.requests import Argument, Batch, Call, Command, Request, Sleep, T, key_of
from redis_saver._engine.runner import arun

REQUESTS_PER_PIPELINE = 64
BYTES_PER_PIPELINE = 256_000
"""A request with more bytes than this gets a pipeline of its own, so that no other request waits for it."""


class Pending(asyncio.Future[Any]):
    """A request that waits to be sent, and its caller's future."""

    __slots__ = ("caller", "node", "request", "size")

    def __init__(self, request: Call | Command, caller: object, node: Any) -> None:
        """Wait on the running loop. The caller is the same object for all requests of one caller."""
        super().__init__(loop=asyncio.get_running_loop())
        self.request, self.caller, self.node = request, caller, node
        self.size = sum(map(length_hint, request.arguments))

    def resolve(self, reply: Any) -> None:
        """Hand over a reply, or an error, unless the caller has gone."""
        if self.done():
            return
        if isinstance(reply, BaseException):
            self.set_exception(reply)
        else:
            self.set_result(reply)


class Batcher:
    """A link on the event loop of its connections, and the requests that wait for the end of the loop's turn."""

    def __init__(self, link: Link) -> None:
        """Send over a link, from the running loop only."""
        self.link = link
        self.client: Any = link.client
        self._opened = not link.is_cluster
        self._opening = asyncio.Lock()
        self._queue: list[Pending] | None = None
        self._under_way: dict[asyncio.Task[None], list[Pending]] = {}
        self._limiters: dict[str | None, asyncio.Semaphore] = {}

    async def open(self) -> None:
        """Let a cluster client find its nodes before many calls share it.

        A client that has not found them fails some of the calls (redis-py 8.1).

        If a node hangs or dies, the next try may pass over it, and if none can be reached, one may be back by then. Any
        other error is likely to be a mistake in the client's settings, and is raised at once.
        """
        unreachable = (OSError, self.link.exceptions.TimeoutError, self.link.exceptions.ConnectionError)
        async with self._opening:
            tries = Tries(self.link, None)
            while not self._opened:
                try:
                    await self.client.initialize()
                    self._opened = True
                except self.link.passing as error:
                    # If no node can be reached, redis-py raises a RedisClusterException because of the last one's error.
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
        """Answer a request. Requests that come before the turn of the loop ends travel with it."""
        if isinstance(request, Sleep):
            return asyncio.sleep(request.seconds)
        link = self.link
        if not link.is_plain:
            request = link.on_primary(request)
        if isinstance(request, Batch):
            return self._answer_all(request.requests)
        if isinstance(request, Call | Command) and (link.is_plain or link.travels(request)):
            return self._travel(request)
        return self._carried(link.answer(request))

    # -- waiting for the end of the turn

    async def _travel(self, request: Call | Command) -> Any:
        """Answer a request.

        The first caller of a turn waits for its end, and sends all requests that came.
        """
        if not self._opened:
            await self.open()
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
        """Answer requests that may travel together.

        Raises:
            Exception: The first error among them.
        """
        if not self._opened:
            await self.open()
        mine = [self._pending(request, requests) for request in requests]
        if self._queue is not None:
            self._queue += mine
        else:
            queue = self._queue = list(mine)
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                for pending in mine:
                    pending.cancel()
                raise
            finally:
                self._queue = None
                self._dispatch(queue)
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

    def _pending(self, request: Call | Command, caller: object) -> Pending:
        return Pending(request, caller, self.link.node_of(key_of(request)) if self.link.is_cluster else None)

    def _dispatch(self, queue: Sequence[Pending]) -> None:
        """Send the requests of this turn: a task for each node. Callers send lone and long requests themselves."""
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
            task = asyncio.get_running_loop().create_task(self._send(some))
            self._under_way[task] = some
            task.add_done_callback(self._on_done)

    async def _send(self, together: Sequence[Pending]) -> None:
        for some in _pipelines(together):
            if waiting := [pending for pending in some if not pending.done()]:
                neighbours = any(pending.caller is not waiting[0].caller for pending in waiting)
                requests = [pending.request for pending in waiting]
                replies = await self._carried(self.link.together(waiting[0].node, requests, neighbours=neighbours))
                for pending, reply in zip(waiting, replies, strict=True):
                    pending.resolve(reply)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """After a task has ended, by cancellation or an error too, let nobody wait for it any more."""
        error = None if task.cancelled() else task.exception()
        for pending in self._under_way.pop(task):
            if error is not None:
                pending.resolve(error)
            else:
                pending.cancel()  # does nothing to one that has its reply

    def _stop_unawaited(self) -> None:
        """Stop pipelines for which no caller waits any more, so that nothing waits for a server that hangs."""
        for task, together in self._under_way.items():
            if all(pending.done() for pending in together):
                task.cancel()

    # -- sending

    async def _alone(self, request: Call | Command) -> Any:
        """Answer a request by itself."""
        link = self.link
        if link.is_cluster or not link.is_plain:
            return await self._carried(link.alone(request))
        # The common case is what `Link.alone` does, without its steps.
        command, traffic = as_command(request), link.traffic
        try:
            async with self._limiters.get(None) or self._limiter(None):
                traffic.sending(command)
                return traffic.receive(await self.client.execute_command(*command, **link.options))
        except link.exceptions.ResponseError as error:
            return await self._carried(link.refused(request, error))

    async def _carried(self, exchange: Exchange[T]) -> T:
        if not self._opened:
            await self.open()
        return await arun(exchange, self._carry_out)

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
        """Send commands to a node of a cluster.

        A pipeline of the cluster's client would send refused or lost commands again, each on another connection.
        """
        kind = sys.modules[type(node).__module__].PipelineCommand
        sent = [kind(position, *command, **self.link.options) for position, command in enumerate(commands)]
        await node.execute_pipeline(sent)
        return [each.result for each in sent]

    def _limiter(self, node: Any) -> asyncio.Semaphore:
        """Return the semaphore of a node's connections. Requests wait if all are in use, as the client would refuse."""
        name = name_of(node)
        if name not in self._limiters:
            self._limiters[name] = asyncio.Semaphore(clients.most_connections(self.client, node))
        return self._limiters[name]


def _pipelines(together: Sequence[Pending]) -> Iterator[list[Pending]]:
    """Divide requests into pipelines, short enough that no caller waits long for the replies to others."""
    load: list[Pending] = []
    room = BYTES_PER_PIPELINE
    for pending in together:
        if load and (len(load) == REQUESTS_PER_PIPELINE or pending.size > room):
            yield load
            load, room = [], BYTES_PER_PIPELINE
        load.append(pending)
        room -= pending.size
    yield load
