"""`doctor --cold`: whether a saver can be the cold tier."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing
from typing import Any, Literal

from langgraph.checkpoint.base import BaseCheckpointSaver

from redis_saver._checkpoint.listing import scan_keys
from redis_saver._checkpoint.saver import AsyncRedisSaver, RedisSaver, driver_of
from redis_saver._cli.options import resolved
from redis_saver._cli.servers import postgres_url
from redis_saver._cli.watched import Cold
from redis_saver._common import names
from redis_saver._common.display import counted, error_text, shown
from redis_saver._engine.requests import Command, Operation
from redis_saver._inspector.health import Finding
from redis_saver._tiered.saver import AsyncTieredSaver, TieredSaver
from redis_saver._tiered.trial import CLOCKS, DELETIONS, HISTORIES, LISTS, Difference, tried
from redis_saver.errors import EndpointError

_KEPT = "5m"
"""TTL of the trial's threads, in case the command is killed."""


async def of_cold(url: str, prefix: str, named: str) -> list[Finding]:
    """Try a cold saver over a server, under prefixes of its own.

    Args:
        url: The server's URL.
        prefix: Beginning of these prefixes.
        named: A URL of Postgres, or `MODULE:NAME`.

    Raises:
        EndpointError: There is no such saver.
    """
    async with AsyncExitStack() as stack:
        cold, is_async = await _opened(named, stack)
        findings = await _findings(url, prefix, cold, is_async=is_async)
        try:
            await stack.aclose()
        except Exception as error:  # noqa: BLE001 - a saver of others raises what it likes
            what = f"{type(cold).__name__} cannot be closed: {error_text(error)}"
            findings.append(Finding("warning", "cold", what, f"correct what {shown(named)} does at its end"))
    return findings


async def _findings(url: str, prefix: str, cold: Any, *, is_async: bool) -> list[Finding]:
    async with AsyncExitStack() as stack:
        kind = type(cold).__name__
        hots, of_trial = list[Any](), f"{prefix}:doctor-{os.urandom(8).hex()}-"
        stack.callback(_remove, url, of_trial)
        for number in range(4):
            options: Any = {"prefix": f"{of_trial}{number}", "ttl": _KEPT}
            if is_async:
                hots.append(await stack.enter_async_context(AsyncRedisSaver.from_conn_string(url, **options)))
            else:
                hots.append(stack.enter_context(RedisSaver.from_conn_string(url, **options)))
        alone, *others = hots
        try:
            tiers = [AsyncTieredSaver(hot, cold) if is_async else TieredSaver(hot, cold) for hot in others]
            questions, differences = await tried(alone, *tiers)
        except Exception as error:  # noqa: BLE001 - a saver of others raises what it likes
            remedy = f"run its setup(), or use another saver: {_PAGE}"
            return [Finding("error", "cold", f"{kind} could not be tried: {error_text(error)}", remedy)]
    if not differences:
        what = f"{kind} can be cold: {counted(questions, 'answer')} are those of Redis after it has lost the thread"
        return [Finding("ok", "cold", what)]
    return [_finding(kind, each) for each in differences]


def _remove(url: str, prefix: str) -> None:
    """Remove the keys that an error of the cold saver left in Redis."""

    def remove(key: bytes) -> Operation[None]:
        yield Command(("UNLINK", key))

    with RedisSaver.from_conn_string(url) as saver:
        driver = driver_of(saver)
        for key in driver.stream(scan_keys(names.glob(prefix.encode("utf-8", "surrogatepass")) + b"*")):
            driver.run(remove(key))


def _finding(kind: str, found: Difference) -> Finding:
    severity, remedy = _REMEDIES.get(found.about, _OTHERWISE)
    what = f"{kind}: {found.about}: {found.first} ({counted(found.answers, 'answer')})"
    return Finding(severity, "cold", what, f"{remedy}: {_PAGE}")


_PAGE = "redis-saver docs tiered#which-savers-can-be-cold"
_OTHERWISE: tuple[Literal["error", "warning"], str] = (
    "error",
    "over this saver a conversation changes when Redis has lost it. Use another one",
)
_REMEDIES: Mapping[str, tuple[Literal["error", "warning"], str]] = {
    CLOCKS: ("warning", "keep the clocks of all workers together, or use another saver"),
    DELETIONS: ("error", "over this saver a deleted thread leaves something behind. Use another one"),
    HISTORIES: ("warning", "use this saver only for graphs without a DeltaChannel"),
    LISTS: ("warning", "over this saver copy_thread() leaves out subgraphs. Use another one if you call it"),
}


async def _opened(named: str, stack: AsyncExitStack) -> tuple[Any, bool]:
    """Return a saver, and whether it is asynchronous.

    Raises:
        EndpointError: There is no such saver.
    """
    if "://" in named:
        return stack.enter_context(closing(Cold(postgres_url(named) or "", 1, setup=False))).saver, False
    is_async = False
    try:
        made = resolved(named)
        if not isinstance(made, BaseCheckpointSaver) and callable(made):
            made = made()
        if inspect.isawaitable(made):
            made, is_async = await made, True
        if not isinstance(made, BaseCheckpointSaver) and hasattr(made, "__aenter__"):
            made, is_async = await stack.enter_async_context(made), True
        elif not isinstance(made, BaseCheckpointSaver) and hasattr(made, "__enter__"):
            made = stack.enter_context(made)
    except Exception as error:  # a module of others raises what it likes
        form = "write postgresql://... or MODULE:NAME, which is a saver or makes one"
        raise EndpointError(f"--cold {shown(named)}: {form}. {error_text(error)}") from error
    if not isinstance(made, BaseCheckpointSaver):
        raise EndpointError(f"--cold {shown(named)} is {shown(made)}, and no LangGraph saver")
    return made, is_async
