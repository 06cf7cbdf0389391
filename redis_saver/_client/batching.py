"""Operations that are issued together travel together: many callers of one event loop share a few round trips.

The first caller lets all others that are ready go before it, for one turn of the loop (`sleep(0)`, never a timer). Then it
sends their requests and its own in one pipeline, in the order in which they came. If nobody else came, it sends its request as
if there were no queue.

**After any failure in a pipeline each request is sent again, alone**, so that no caller sees another's error. Its caller does
what it would have done without the queue, and the client retries by its own rules. That is right, as every request may be sent
twice. (The requests of a `Batch` have one caller. They fail together if a single server cannot be reached, as one request
does.) Only three outcomes are final at once: a reply; an error that one of our scripts raised; and NOSCRIPT, after which those
requests go in one more pipeline, the first of each script with its text. For a cache a timeout is final, too.

A caller that is cancelled leaves nothing behind but its future. A request that was not sent yet is not sent. The reply to one
that was sent is read by the task of the pipeline, for the neighbours' sake. The last caller to leave stops that task.

The pipelines are redis-py's. Working one level below them, with a connection's `send_packed_command` and `read_response`, would
make a request cheaper by less than a fifth. But tools that wrap `execute_command` and `Pipeline.execute` to trace them would see nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis_saver._client import clients, clusters
from redis_saver._client.pending import BYTES_PER_PIPELINE, PendingRequest, pipelines, size
from redis_saver._common.display import error_text
from redis_saver._common.logs import ThrottledLog
from redis_saver._engine import wire
from redis_saver._engine.requests import KEYS_PER_SCAN, Argument, Call, Command, Replicated, Scan, T, key_of
from redis_saver._engine.scripts import Script
from redis_saver._engine.stats import Traffic
from redis_saver.errors import from_reply

_LOG = ThrottledLog("redis_saver.client")
_ALONE: Any = object()
"""The reply that tells a caller to send its request itself."""


class Batcher:
    """An asyncio client on the event loop to which its connections belong, and the requests that wait for the end of the loop's turn."""

    def __init__(
        self,
        client: Any,
        *,
        traffic: Traffic,
        cluster_timeout: float,
        guard: Sequence[Argument] | None,
        repeats_late: bool,
    ) -> None:
        self.client: Any = client
        self._repeats_late = repeats_late
        self._traffic = traffic
        self._guard = guard
        self._cluster = clients.is_cluster(client)
        self._opened = not self._cluster
        self._opening = asyncio.Lock()
        self._exceptions: Any = clients.exceptions_of(client)
        self._patience = clusters.Patience(client, cluster_timeout)
        self._failures: tuple[type[Exception], ...] = clients.failures_of(client)
        # After these errors each request of a `Batch` is sent alone, too.
        self._retried_alone: tuple[type[Exception], ...] = (self._exceptions.ResponseError,)
        if self._cluster:
            self._failures += self._patience.errors
            self._retried_alone += self._failures
        self._options = clients.raw_options(client)
        self._queue: list[PendingRequest] | None = None
        self._under_way: dict[asyncio.Task[None], list[PendingRequest]] = {}
        self._limiters: dict[str | None, asyncio.Semaphore] = {}

    async def open(self) -> None:
        """Let a cluster client find its nodes before many calls share it. One that has not found them fails some of the calls (redis-py 8.1)."""
        async with self._opening:
            if not self._opened:
                await self._initialize()
                self._opened = True

    async def _initialize(self) -> None:
        """Let the client find its nodes.

        If a node hangs or dies, the next try may pass over it. Any other error is likely to be a mistake in the client's settings, and is raised at once.
        """
        tries = self._patience.tries(None)
        while True:
            try:
                await self.client.initialize()
            except (self._exceptions.TimeoutError, self._exceptions.ConnectionError) as error:
                pause = tries.pause(error)
            else:
                return
            await asyncio.sleep(pause)

    async def answer(self, request: Call | Command) -> Any:
        """The reply to a request. Requests that come before the turn of the loop ends travel with it."""
        if self._guard is not None and isinstance(request, Command):
            return await self._send_guarded(request.arguments)
        if not self._opened:
            await self.open()
        if self._queue is None:
            reply = await self._lead(request)
        else:
            pending = self._pending(request, request)
            self._queue.append(pending)
            reply = await self._wait_for(pending.future)
        return await self._answer_alone(request) if reply is _ALONE else reply

    async def answer_all(self, requests: Sequence[Call | Command]) -> list[Any]:
        """The replies to requests that may travel together.

        Raises:
            Exception: The first error among them.
        """
        if not self._opened:
            await self.open()
        mine = [self._pending(request, requests) for request in requests]
        if self._queue is not None:
            self._queue += mine
        else:
            self._queue = list(mine)
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                for pending in mine:
                    pending.future.cancel()
                raise
            finally:
                self._dispatch()
        replies = await self._wait_for(asyncio.gather(*(pending.future for pending in mine)))
        again = [position for position, reply in enumerate(replies) if reply is _ALONE]
        answers = await asyncio.gather(*(self._answer_alone(requests[position]) for position in again))
        for position, answer in zip(again, answers, strict=True):
            replies[position] = answer
        return replies

    async def send(self, *arguments: Argument, **options: Any) -> Any:
        """Send one command, now."""
        self._traffic.sending(arguments)
        return self._traffic.receive(await self.client.execute_command(*arguments, **self._options, **options))

    async def replicated(self, request: Replicated) -> Any:
        """The reply to a script, after replicas have what it wrote."""
        await self.open()
        return await self.repeated(lambda: self._replicated(request), request.call.keys[0])

    async def scan(self, request: Scan) -> tuple[Any, list[bytes]]:
        """One page of SCAN. The position is the names of the nodes left to ask, and the cursor in the first of them."""
        await self.open()
        position = request.position

        async def page() -> tuple[Any, list[bytes]]:
            nonlocal position
            nodes, cursor = position or (clients.nodes(self.client), 0)
            position = None  # if it fails the nodes may have changed, so it begins again
            command = ("SCAN", cursor, "MATCH", request.pattern, "COUNT", KEYS_PER_SCAN)
            return clients.next_position(nodes, await self.send_in_turn(nodes[0], *command))

        return await self.repeated(page, None)

    async def send_in_turn(self, name: str | None, *arguments: Argument) -> Any:
        """Send one command to a node of a cluster by its name (None: the server), when a connection is free."""
        if self._guard is not None:
            return await self._send_guarded(arguments)
        node = clients.node_named(self.client, name)
        async with self._limiter(node):
            return await self.send(*arguments, **clients.target(node))

    async def _send_guarded(self, arguments: Sequence[Argument]) -> Any:
        async with self._limiter(None):
            return wire.of_guarded(await self._on_one_connection(None, (self._guard or (), arguments)))

    async def _replicated(self, request: Replicated) -> Any:
        node = self._node_of(request.call)
        if self._cluster and node is None:  # the slots are being learned anew
            await self._answer_once(request.call)
            node = self.client.get_node_from_key(request.call.keys[0])
        replies: list[Any] = []
        try:
            async with self._limiter(node):
                for command in (wire.as_command, wire.as_command_with_source):
                    replies = await self._on_one_connection(node, (command(request.call), *request.behind))
                    if not isinstance(replies[0], self._exceptions.NoScriptError):
                        break
                    self._traffic.loads += 1
            return wire.of_replicated(request, replies, self._exceptions)
        except self._patience.errors:
            if self._cluster:
                await self._answer_once(request.call)  # by the cluster's client, which learns from it where the slot is
            raise

    async def _on_one_connection(self, node: Any, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        self._traffic.sending_together(commands)
        if node is not None:
            return self._traffic.receive(await clusters.together(node, commands, self._options))
        async with self.client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command, **self._options)
            return self._traffic.receive(await pipeline.execute(raise_on_error=False))

    # -- one request alone

    async def _answer_alone(self, request: Call | Command) -> Any:
        if not self._cluster:
            return await self._answer_once(request)
        return await self.repeated(lambda: self._answer_once(request), key_of(request))

    async def repeated(self, attempt: Callable[[], Awaitable[T]], key: bytes | None) -> T:
        """What an attempt returns. With a cluster, whose slots may be moving, it is repeated for a while."""
        if not self._cluster:
            return await attempt()
        tries = self._patience.tries(key)
        while True:
            try:
                return await attempt()
            except self._patience.errors as error:
                pause = tries.pause(error)
            self._traffic.retries += 1
            await asyncio.sleep(pause)

    async def _answer_once(self, request: Call | Command) -> Any:
        async with self._limiter(self._node_of(request)):
            try:
                return await self._send_to_slot(request, wire.as_command(request))
            except self._exceptions.ResponseError as reply:
                if not isinstance(request, Call) or not isinstance(reply, self._exceptions.NoScriptError):
                    return wire.of_script(request, reply, self._exceptions)
            self._traffic.loads += 1
            try:
                return await self._send_to_slot(request, wire.as_command_with_source(request))
            except self._exceptions.ResponseError as reply:
                return wire.of_script(request, reply, self._exceptions)

    async def _send_to_slot(self, request: Call | Command, arguments: Sequence[Argument]) -> Any:
        """Send one command. If its cluster slot is moving and redis-py gives up, ask the node itself."""
        if not self._cluster:
            return await self.send(*arguments)
        try:
            return await self.send(*arguments)
        except self._patience.gives_up as error:
            if not self._patience.has_given_up(error):
                raise
            self._traffic.retries += 1
            self._traffic.sending(arguments)
            return self._traffic.receive(await clusters.aask(self.client, key_of(request), arguments, self._options))

    def _ours(self, request: Call | Command, reply: Exception) -> Exception | None:
        return from_reply(reply, request.keys, self._exceptions) if isinstance(request, Call) else None

    # -- several requests in a pipeline

    async def _lead(self, request: Call | Command) -> Any:
        """Be the first caller of a turn: at its end send all requests that came; if none came, only this one."""
        followers: list[PendingRequest] = []
        self._queue = followers
        try:
            await asyncio.sleep(0)
            if followers:
                followers.insert(0, self._pending(request, request))
        finally:
            self._dispatch()
        return await self._wait_for(followers[0].future) if followers else _ALONE

    async def _wait_for(self, future: asyncio.Future[T]) -> T:
        """Wait for a reply. The last caller of a pipeline that stops waiting also stops the pipeline, so that nothing waits for a server that hangs."""
        try:
            return await future
        except asyncio.CancelledError:
            for task, together in self._under_way.items():
                if all(pending.future.done() for pending in together):
                    task.cancel()
            raise

    def _pending(self, request: Call | Command, asked: object) -> PendingRequest:
        future = asyncio.get_running_loop().create_future()
        return PendingRequest(request, asked, self._node_of(request), size(request), future)

    def _dispatch(self) -> None:
        """Send the requests of this turn: a task for each node."""
        queue, self._queue = self._queue, None
        together: dict[str | None, list[PendingRequest]] = {}
        for pending in queue or ():
            if pending.future.done():  # its caller has gone
                continue
            if (self._cluster and pending.node is None) or pending.size > BYTES_PER_PIPELINE:
                pending.resolve(_ALONE)
            else:
                together.setdefault(_name(pending.node), []).append(pending)
        for some in together.values():
            if len(some) == 1:
                some[0].resolve(_ALONE)
                continue
            task = asyncio.get_running_loop().create_task(self._send(some))
            self._under_way[task] = some
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """After a task has ended, by cancellation or an error too, let nobody wait for it any more."""
        error = None if task.cancelled() else task.exception()
        for pending in self._under_way.pop(task):
            if error is not None:
                pending.resolve(error)
            else:
                pending.future.cancel()  # does nothing to one that has its reply

    async def _send(self, together: Sequence[PendingRequest]) -> None:
        for some in pipelines(together):
            if unknown := await self._send_pipeline(some):
                await self._send_pipeline(unknown, with_source=True)

    async def _send_pipeline(
        self, together: Sequence[PendingRequest], *, with_source: bool = False
    ) -> list[PendingRequest]:
        """Send requests in one pipeline, and hand over their replies. Returns those whose script the server does not know."""
        together = [pending for pending in together if not pending.future.done()]
        if not together:
            return []
        neighbours = len({id(pending.asked) for pending in together}) > 1
        unknown = []
        for pending, reply in zip(together, await self._replies(together, with_source), strict=True):
            if not isinstance(reply, Exception):
                pending.resolve(reply)
            elif isinstance(reply, self._exceptions.NoScriptError) and not with_source:
                unknown.append(pending)
            elif (ours := self._ours(pending.request, reply)) is not None:
                ours.__cause__ = reply
                pending.resolve(ours)
            elif neighbours or isinstance(reply, self._retried_alone):
                self._traffic.retries += 1
                pending.resolve(_ALONE)
            else:
                pending.resolve(reply)
        return unknown

    async def _replies(self, together: Sequence[PendingRequest], with_source: bool) -> Sequence[Any]:
        """The replies to requests of one node, error replies too. If the pipeline failed, its error is the reply to each."""
        node = together[0].node
        options = {**self._options, **clients.target(node)}
        sent: set[Script] = set()
        commands = []
        for request, *_ in together:
            if with_source and isinstance(request, Call) and request.script not in sent:
                sent.add(request.script)
                commands.append(wire.as_command_with_source(request))
            else:
                commands.append(wire.as_command(request))
        try:
            async with self._limiter(node), self.client.pipeline(transaction=False) as pipeline:
                self._traffic.sending_together(commands)
                self._traffic.loads += len(sent)
                for command in commands:
                    pipeline.execute_command(*command, **options)
                return self._traffic.receive(await pipeline.execute(raise_on_error=False))
        except self._failures as failure:
            if not self._repeats_late and isinstance(failure, self._exceptions.TimeoutError):
                raise  # to the callers of this turn whose requests were not sent yet, too
            _LOG.info(
                "%d calls that travelled together failed, and are made again alone: %s",
                len(together),
                error_text(failure),
            )
            return [failure] * len(together)

    # -- nodes

    def _node_of(self, request: Call | Command) -> Any:
        """The node that has a request's thread, so that a node that hangs delays only its own requests. None: not known."""
        if not self._cluster:
            return None
        try:
            return self.client.get_node_from_key(key_of(request))
        except self._failures:  # the slots are being learned anew
            return None

    def _limiter(self, node: Any) -> asyncio.Semaphore:
        """A semaphore with which requests wait while all connections to their node are in use. The client would refuse them."""
        name = _name(node)
        if name not in self._limiters:
            self._limiters[name] = asyncio.Semaphore(clients.most_connections(self.client, node))
        return self._limiters[name]


def _name(node: Any) -> str | None:
    """The name of a node, to tell nodes apart: those of redis-py 5.2 have no hash, and are made anew each time the client looks at the cluster."""
    return None if node is None else node.name
