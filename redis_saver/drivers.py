"""Running operations: the loops that carry requests to an exchange and replies back, and what a request is on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

from redis_saver.requests import Argument, Call, Command, Page, Request, Stream, T

R = TypeVar("R")
"""What an operation asks: requests, and maybe more (`tiers/model.py`)."""


def run(operation: Generator[R, Any, T], exchange: Callable[[R], Any]) -> T:
    """Run an operation to its result.

    An error is raised in the operation, where it asked, whoever it is from: so it can mend what the error is about, and release what it
    holds. Only where the caller itself is stopped (KeyboardInterrupt, a cancelled task) the operation is closed, and cannot ask for anything any more.
    """
    step, given = operation.send, None
    try:
        while True:
            try:
                request = step(given)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                step, given = operation.send, exchange(request)
            except Exception as error:  # noqa: BLE001 - it is raised in there
                step, given = operation.throw, error
    finally:
        operation.close()


async def arun(operation: Generator[R, Any, T], exchange: Callable[[R], Awaitable[Any]]) -> T:
    """`run`, asynchronously."""
    step, given = operation.send, None
    try:
        while True:
            try:
                request = step(given)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                step, given = operation.send, await exchange(request)
            except Exception as error:  # noqa: BLE001 - it is raised in there
                step, given = operation.throw, error
    finally:
        operation.close()


def pages(stream: Stream[T], exchange: Callable[[Request], Any]) -> Iterator[Sequence[T]]:
    """Run a stream, page by page. Errors are raised in it, as in `run`; it is closed when nobody wants more pages."""
    step, given = stream.send, None
    try:
        while True:
            try:
                request = step(given)
            except StopIteration:
                return
            step, given = stream.send, None
            if isinstance(request, Page):
                yield request.items
                continue
            try:
                given = exchange(request)
            except Exception as error:  # noqa: BLE001 - it is raised in there
                step, given = stream.throw, error
    finally:
        stream.close()


async def apages(stream: Stream[T], exchange: Callable[[Request], Awaitable[Any]]) -> AsyncIterator[Sequence[T]]:
    """`pages`, asynchronously."""
    step, given = stream.send, None
    try:
        while True:
            try:
                request = step(given)
            except StopIteration:
                return
            step, given = stream.send, None
            if isinstance(request, Page):
                yield request.items
                continue
            try:
                given = await exchange(request)
            except Exception as error:  # noqa: BLE001 - it is raised in there
                step, given = stream.throw, error
    finally:
        stream.close()


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
