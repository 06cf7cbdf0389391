"""Requests that wait to be sent, and how many of them one pipeline takes: few enough that none waits long for the others' replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from redis_saver._engine.requests import Call, Command
from redis_saver._engine.stats import size_of

REQUESTS_PER_PIPELINE = 64
BYTES_PER_PIPELINE = 256_000
"""A request with more bytes than this gets a pipeline of its own, so that no other request waits for it."""


class PendingRequest(NamedTuple):
    """A request: also what its caller asked for in all (`asked`), the node it goes to, its size in bytes, and the future on which its caller waits."""

    request: Call | Command
    asked: object
    node: Any
    size: int
    future: asyncio.Future[Any]

    def resolve(self, reply: Any) -> None:
        """Hand over a reply, or an error, unless the caller has gone."""
        if self.future.done():
            return
        if isinstance(reply, BaseException):
            self.future.set_exception(reply)
        else:
            self.future.set_result(reply)


def size(request: Call | Command) -> int:
    """About how many bytes a request's arguments have."""
    return size_of(request.arguments)


def pipelines(together: Sequence[PendingRequest]) -> Iterator[list[PendingRequest]]:
    """Divide requests into pipelines."""
    load: list[PendingRequest] = []
    room = BYTES_PER_PIPELINE
    for pending in together:
        if load and (len(load) == REQUESTS_PER_PIPELINE or pending.size > room):
            yield load
            load, room = [], BYTES_PER_PIPELINE
        load.append(pending)
        room -= pending.size
    yield load
