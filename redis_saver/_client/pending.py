"""Requests that wait to be sent, and how many of them one pipeline takes: so few that none waits long for the others'."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from redis_saver._engine.requests import Call, Command

REQUESTS_PER_PIPELINE = 64
BYTES_PER_PIPELINE = 256_000
"""What holds more bytes than this goes by itself, beside the others, so that it keeps none of them waiting."""


class PendingRequest(NamedTuple):
    """A request, what its caller asked for in all, where it goes, its bytes, and the future that its caller waits on."""

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
    """The bytes of a request's arguments, about."""
    return sum(len(argument) for argument in request.arguments if not isinstance(argument, int))


def pipelines(together: Sequence[PendingRequest]) -> Iterator[list[PendingRequest]]:
    """Divide requests into what one pipeline takes."""
    load: list[PendingRequest] = []
    room = BYTES_PER_PIPELINE
    for pending in together:
        if load and (len(load) == REQUESTS_PER_PIPELINE or pending.size > room):
            yield load
            load, room = [], BYTES_PER_PIPELINE
        load.append(pending)
        room -= pending.size
    yield load
