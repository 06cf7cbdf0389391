"""`SyncDriver`: runs operations with a blocking client."""

from __future__ import annotations

import asyncio
import threading
import time
from operator import length_hint
from typing import Any

from redis_saver._client import clients
from redis_saver._client.asking import ask_all
from redis_saver._client.base import RedisDriver
from redis_saver._client.link import Exchange, Link, Send, Together
from redis_saver._common import forks
from redis_saver._engine.counting import size_of_reply
from redis_saver._engine.requests import Ask, AskAll, Call, Request, Sleep, T
from redis_saver._engine.runner import BlockingDriver, run


class SyncDriver(BlockingDriver[Request], RedisDriver):
    """Driver for a blocking client. OS threads may share it.

    After a fork the child makes a client with the same settings. For asyncio each operation runs in a worker thread.
    """

    is_async = False

    def __init__(self, client: Any, **settings: Any) -> None:
        """Use a client, with the settings of `RedisDriver`."""
        super().__init__(client, **settings)
        self._lock, self._inherited = threading.Lock(), None
        self._link: Link | None = Link(client, self._rules)
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, do not touch the parent's client."""
        if self._link is not None:
            forks.keep(self._link.client)
            self._inherited = self._link.client
        self._lock, self._link = threading.Lock(), None

    @property
    def link(self) -> Link:
        """The link of this process.

        Raises:
            Closed: The driver was closed, in this process or before the fork.
        """
        if (link := self._link) is not None:
            return link
        with self._lock:
            self.check_open()
            if self._link is None:
                self._link = Link(clients.twin_after_fork(self._inherited), self._rules)
            return self._link

    @property
    def client(self) -> Any:
        """The client of this process."""
        return self.link.client

    def close(self) -> None:
        """Close the connections of this process. Later requests raise `Closed`, but pending ones still get replies."""
        with self._lock:
            link, self._link, self._is_closed = self._link, None, True
        if link is not None:
            clients.close(link.client)

    def check_version(self) -> None:
        """Ask every server for its version."""
        self._carried(self.link.check_version())

    async def acheck_version(self) -> None:
        """`check_version` for asyncio."""
        await asyncio.to_thread(self.check_version)

    def request(self, request: Request) -> Any:
        """Answer a request."""
        if isinstance(request, Sleep):
            return time.sleep(request.seconds)
        if isinstance(request, Ask):
            return request.ask(*request.arguments)
        if isinstance(request, AskAll):
            return ask_all(request.questions)
        link = self._link or self.link
        if type(request) is not Call or not link.is_plain or link.is_cluster:
            return self._carried(link.answer(request))
        # The common case of `Link.answer`, in fewer steps.
        command = ("EVALSHA", request.script.sha, len(request.keys), *request.keys, *request.arguments)
        traffic, size = self.traffic, sum(map(length_hint, command))
        traffic.round_trips += 1
        traffic.bytes_sent += size
        try:
            reply = link.client.execute_command(*command, **link.options)
        except link.exceptions.ResponseError as error:
            return self._carried(link.refused(request, error))
        size = size_of_reply(reply)
        traffic.bytes_received += size
        return reply

    def _carried(self, exchange: Exchange[T]) -> T:
        try:
            return run(exchange, self._carry_out)
        except self.link.failures as error:
            clients.check_knows_hello(error)
            raise

    def _carry_out(self, verb: Send | Together | Sleep) -> Any:
        if isinstance(verb, Sleep):
            return time.sleep(verb.seconds)
        link = self.link
        if isinstance(verb, Send):
            self.traffic.sending(verb.command)
            options = {**link.options, **clients.target(verb.node)}
            name, *arguments = verb.command
            return self.traffic.receive(link.client.execute_command(link.spelling(str(name)), *arguments, **options))
        with clients.on_node(link.client, verb.node) as client, client.pipeline(transaction=False) as pipeline:
            self.traffic.sending_together(verb.commands)
            for command in verb.commands:
                pipeline.execute_command(*command, **link.options)
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        return self.traffic.receive(replies)
