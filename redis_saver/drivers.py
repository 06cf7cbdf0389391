"""Running operations: the loops that carry requests to an exchange and replies back, and what a request is on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from redis_saver.requests import Argument, Call, Command, Operation, Page, Request, Stream, T


def run(operation: Operation[T], exchange: Callable[[Request], Any]) -> T:
    """Run an operation to its result."""
    reply = None
    while True:
        try:
            request = operation.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        reply = exchange(request)


async def arun(operation: Operation[T], exchange: Callable[[Request], Awaitable[Any]]) -> T:
    """`run`, asynchronously."""
    reply = None
    while True:
        try:
            request = operation.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        reply = await exchange(request)


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
