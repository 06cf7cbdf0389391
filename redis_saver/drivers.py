"""Running operations: the loops that carry requests to an exchange and replies back, and what a request is on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

from redis_saver.errors import RedisSaverError
from redis_saver.requests import Argument, Call, Command, Page, Request, Stream, T

R = TypeVar("R")
"""What an operation asks: requests, and maybe more (`tiers/model.py`)."""


def run(operation: Generator[R, Any, T], exchange: Callable[[R], Any]) -> T:
    """Run an operation to its result. An error of ours is raised where the operation asked, so that it can mend what it is about."""
    step, given = operation.send, None
    while True:
        try:
            request = step(given)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            step, given = operation.send, exchange(request)
        except RedisSaverError as error:
            step, given = operation.throw, error


async def arun(operation: Generator[R, Any, T], exchange: Callable[[R], Awaitable[Any]]) -> T:
    """`run`, asynchronously."""
    step, given = operation.send, None
    while True:
        try:
            request = step(given)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            step, given = operation.send, await exchange(request)
        except RedisSaverError as error:
            step, given = operation.throw, error


def pages(stream: Stream[T], exchange: Callable[[Request], Any]) -> Iterator[Sequence[T]]:
    """Run a stream, page by page."""
    reply = None
    while True:
        try:
            step = stream.send(reply)
        except StopIteration:
            return
        if isinstance(step, Page):
            yield step.items
            reply = None
        else:
            reply = exchange(step)


async def apages(stream: Stream[T], exchange: Callable[[Request], Awaitable[Any]]) -> AsyncIterator[Sequence[T]]:
    """`pages`, asynchronously."""
    reply = None
    while True:
        try:
            step = stream.send(reply)
        except StopIteration:
            return
        if isinstance(step, Page):
            yield step.items
            reply = None
        else:
            reply = await exchange(step)


def wire(request: Call | Command) -> Sequence[Argument]:
    """A request as the arguments of a command; a script by its digest."""
    if isinstance(request, Command):
        return request.arguments
    return ("EVALSHA", request.script.sha, len(request.keys), *request.keys, *request.arguments)


def wire_with_text(call: Call) -> Sequence[Argument]:
    """A script's call for a server that does not know the script (SCRIPT FLUSH, a restart, a failover): it learns it."""
    return ("EVAL", call.script.text, len(call.keys), *call.keys, *call.arguments)


def refused(replies: Sequence[Any], error: type[Exception]) -> Iterator[tuple[int, list[int]]]:
    """What to send again of a batch, if anything: the first request that was refused, and the others that were.

    The first goes by itself, so that the server learns a script it did not know.

    Raises:
        Exception: a reply is another error than a refusal.
    """
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, error):
            raise reply
    if positions := [position for position, reply in enumerate(replies) if isinstance(reply, error)]:
        yield positions[0], positions[1:]
