"""Tries of what the scripts rely on. Servers that speak Redis differ there, and say so nowhere in a uniform way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from uuid import uuid4

from redis_saver._common.display import error_text, printable
from redis_saver._common.names import Keyspace
from redis_saver._engine.requests import Call, Operation
from redis_saver._engine.runner import Driver
from redis_saver._engine.scripts import load
from redis_saver.errors import UnsupportedServer

PROBE, ISOLATION = load("probe/probe"), load("probe/isolation")
ARGUMENTS = 4998
"""Strings of the largest probe. With its other arguments that makes 5,000 and more, as of a large checkpoint."""
_ECHO: list[Any] = [9007199254740992, b"\0\xff\r\n", [None, 1]]
THREAD = "probe"
"""Thread of the keys that the probe uses."""
_ROUNDS, _CALLS = 1000, 5
"""On Redis each call takes about a millisecond."""
_REFUSED = "NOPERM|NoPermission|no permission"
_REMEDIES = {
    _REFUSED: "the user's rights do not suffice: redis-saver docs operations#rights lists what to allow",
    r"unknown (redis )?command .?.?eval|script\w* (support )?(is )?(not|dis)|engine": (
        "it runs no Lua scripts. Turn them on (Garnet: --lua and --lua-transaction-mode; Valkey: load the module lua), "
        "or use another server"
    ),
    r"undeclared": "it refuses keys that were declared: report this",
    r"too many": "raise its limit for arguments or the size of a request, or use another server",
    r"unknown": "it lacks the command, so it cannot be used",
    r"": "its scripts work otherwise than those of Redis, so it cannot be used",
}
_ABOUT_SCRIPTS = re.compile(
    rf"{_REFUSED}|unknown (redis )?command|NOSCRIPT|scripting|(running|compiling) script|user_script"
    r"|undeclared|too many",
    re.IGNORECASE,
)


class Trial(NamedTuple):
    """Result of a probe."""

    refused: str
    """Error of the first write, such as READONLY or OOM. Empty if writes were tried."""
    failures: Sequence[str]
    """A text for each thing that does not work, with what came instead."""


def is_refused(failure: str) -> bool:
    """True if the user's rights are the reason of a failure."""
    return bool(re.search(_REFUSED, failure, re.IGNORECASE))


def remedy_of(failure: str) -> str:
    """Return what to do about a failure."""
    return next(remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, failure, re.IGNORECASE))


def probe(prefix: str, *, everything: bool = False) -> Operation[Trial]:
    """Run the probe. It leaves nothing behind. Cost: one round trip.

    Args:
        prefix: Prefix of the saver.
        everything: True to try the commands of all scripts, and 5,000 arguments. If False, only the commands that a
            saver without tiers and ownership needs.

    Raises:
        UnsupportedServer: The server or the user's rights refuse scripts.
    """
    keys = Keyspace(prefix).keys(THREAD, uuid4().hex)
    arguments = ("all", *map(str, range(ARGUMENTS))) if everything else ("core",)
    try:
        reply = yield Call(PROBE, keys, arguments)
    except Exception as error:
        text = f"{type(error).__name__} {error_text(error)}"
        if not _ABOUT_SCRIPTS.search(text):
            raise
        raise UnsupportedServer(f"the server refused a script ({error_text(error)}): {remedy_of(text)}") from error
    refused, failures, *echo = reply if _is_reply(reply) else (b"", [], reply)
    texts = [printable(text.decode("utf-8", "replace")) for text in (refused, *failures)]
    if echo != _ECHO:
        texts.append(f"replies: {printable(repr(echo))[:200]} came in place of {_ECHO!r}")
    return Trial(texts[0], texts[1:])


def _is_reply(reply: Any) -> bool:
    is_list = isinstance(reply, list) and len(reply) > 1 and isinstance(reply[1], list)
    return is_list and all(isinstance(text, bytes) for text in (reply[0], *reply[1]))


def check(prefix: str) -> Operation[None]:
    """Run the small probe. If the server refuses writes for a reason of its own, they are not tried.

    Raises:
        UnsupportedServer: Something does not work. The message names it, and says what to do.
    """
    failures = (yield from probe(prefix)).failures
    if failures:
        raise UnsupportedServer(f"the server fails what scripts need ({'; '.join(failures)}): {remedy_of(failures[0])}")


def is_isolated(driver: Driver[Any], prefix: str) -> bool:
    """Return False if a command of one script was seen to run between those of another.

    Two OS threads run a script for some milliseconds. A script that runs alone can never see the other one.
    """
    data = Keyspace(prefix).keys(THREAD, uuid4().hex).data_key

    def interfered(name: str) -> bool:
        call = Call(ISOLATION, (data,), (name, _ROUNDS))
        return any(driver.request(call) == 1 for _ in range(_CALLS))

    with ThreadPoolExecutor(2) as workers:
        return not any(workers.map(interfered, ("a", "b")))
