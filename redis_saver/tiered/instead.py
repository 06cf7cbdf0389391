"""Running an operation over hot by another script, which does more than its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_saver.engine.requests import Argument, Call, Operation
from redis_saver.engine.scripts import Script


def by(operation: Operation[Any], script: Script, keys: Sequence[bytes], more: Sequence[Argument]) -> Operation[Any]:
    """Run an operation that calls one script of one thread, by one that takes what that does and then more.

    Args:
        operation: The operation.
        script: What takes more.
        keys: Its keys.
        more: What it takes behind what the operation gives.

    Returns:
        The last reply, None where the operation asked for nothing. An int is always the last: nobody has more to say to it.
    """
    reply = None
    while True:
        try:
            request: Any = operation.send(reply)
        except StopIteration:
            return reply
        reply = yield Call(script, keys, (*request.arguments, *more))
        if isinstance(reply, int):
            operation.close()
            return reply
