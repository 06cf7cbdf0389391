"""What a request is on the wire, and what its reply means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from redis_saver._common.display import error_text, shown
from redis_saver._engine import scripts
from redis_saver._engine.requests import Argument, Batch, Call, Command, R, Replicated
from redis_saver.errors import ReplicationTimeout, from_reply


def as_command(request: Call | Command) -> Sequence[Argument]:
    """A request as the arguments of a command; a script by its digest."""
    if isinstance(request, Command):
        return request.arguments
    return ("EVALSHA", request.script.sha, len(request.keys), *request.keys, *request.arguments)


def as_command_with_source(call: Call) -> Sequence[Argument]:
    """A script's call with its text, for a server that does not know the script (after SCRIPT FLUSH, a restart, a failover). The server then knows it."""
    return ("EVAL", call.script.text, len(call.keys), *call.keys, *call.arguments)


def on_primary(request: R) -> R:
    """The same request with scripts that a replica refuses (READONLY). A command or a SCAN is unchanged, and needs a `guard` in front."""
    if isinstance(request, Call) and (script := scripts.ON_PRIMARY.get(request.script)) is not None:
        return request._replace(script=script)
    if isinstance(request, Batch):
        return Batch([on_primary(one) for one in request.requests])  # type: ignore[return-value]
    return request


def guard(prefix: str) -> tuple[Argument, ...]:
    """A command that changes nothing, and that only a primary accepts."""
    return ("UNLINK", f"{prefix}:primary")


def of_guarded(replies: Sequence[Any]) -> Any:
    """The reply to a command behind a `guard`.

    Raises:
        Exception: The server is a replica (READONLY), or the command failed.
    """
    guarded, reply = replies
    if isinstance(guarded, Exception) and not str(guarded).startswith(
        ("NOREPLICAS", "MISCONF")
    ):  # as in `scripts.ON_PRIMARY`
        raise guarded
    if isinstance(reply, Exception):
        raise reply
    return reply


def of_script(request: Call | Command, reply: Any, exceptions: Any) -> Any:
    """A reply, unless it is an error.

    Raises:
        RedisSaverError: The reply is an error of one of our scripts, or a key of ours has another type.
        Exception: The reply is another error.
    """
    if not isinstance(reply, Exception):
        return reply
    if request.keys and (ours := from_reply(reply, request.keys, exceptions)) is not None:
        raise ours from reply
    raise reply


def of_replicated(request: Replicated, replies: Sequence[Any], exceptions: Any) -> Any:
    """The script's reply, of the three replies to a `Replicated`.

    Raises:
        ReplicationTimeout: Too few replicas have what it wrote.
    """
    reply, written, have = replies
    answer = of_script(request.call, reply, exceptions)
    failed = next((one for one in (written, have) if isinstance(one, Exception)), None)
    if failed is not None and not isinstance(failed, exceptions.ResponseError):
        raise failed
    if failed is not None or have < request.least:
        where = " and ".join(shown(key.decode("utf-8", "backslashreplace")) for key in request.call.keys[:1])
        why = (
            f"the server answered {error_text(failed)}"
            if failed
            else f"only {have} replicas had it after {request.seconds:g} seconds (replica_timeout)"
        )
        raise ReplicationTimeout(
            f"{where} was written on the primary, but {why}; min_replicas={request.least} asks for more. Calling again is safe. Look whether the "
            "replicas are connected, or lower min_replicas"
        ) from failed
    return answer


def refused(replies: Sequence[Any], error: tuple[type[Exception], ...]) -> Iterator[tuple[int, list[int]]]:
    """The requests of a batch to send again, if any: the position of the first one that was refused, and those of the others.

    The first goes by itself, so that the server learns the script that it did not know.

    Raises:
        Exception: A reply is another error than a refusal.
    """
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, error):
            raise reply
    if positions := [position for position, reply in enumerate(replies) if isinstance(reply, error)]:
        yield positions[0], positions[1:]
