"""The command `stats`: a server and its threads in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Annotated, Any

import typer

from redis_saver._checkpoint.saver import context_of, driver_of
from redis_saver._cli import screen
from redis_saver._cli.arguments import Json, Prefix, Redis, redis_url
from redis_saver._cli.opening import opened_savers
from redis_saver._cli.overview import Answers, Overview, overview
from redis_saver._client.clients import connect

_CODES = "Exit code: 0; 2, a URL, a login or a missing package is at fault."
_OF_SERVER = {
    "clients": ("connected_clients",),
    "memory": ("used_memory", "maxmemory"),
    "stats": ("instantaneous_ops_per_sec", "evicted_keys", "expired_keys"),
}


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("stats", epilog=_CODES)(_stats)


def _stats(
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until Ctrl-C.")] = False,
    url: Redis = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Show a server and its threads in numbers: by state, bytes, deadlines, what cold lacks; memory and commands a second.

    It looks at all keys of the server with SCAN, and reads no values. What one process counts of its own calls is `stats()` in Python.
    """
    with opened_savers(url, prefix) as savers, closing(connect(redis_url(url), asynchronous=False)) as client:
        for _ in screen.looks(watch=watch, cleared=not as_json):
            counted = driver_of(savers.hot).run(overview(context_of(savers.hot)))
            answers = Answers(client)
            server = _server(answers)
            if as_json:
                screen.emit({"threads": _numbers(counted), "server": server, "refused": list(answers.refused)})
            else:
                _show(counted, server, answers.refused)
    return 0


def _server(answers: Answers) -> dict[str, int]:
    """The servers' numbers, added up."""
    total: dict[str, int] = {}
    for section, names in _OF_SERVER.items():
        for info in answers.info(section).values():
            for name in names:
                if name in info:
                    total[name] = total.get(name, 0) + int(info[name])
    return total


def _numbers(counted: Overview) -> dict[str, Any]:
    largest = counted.largest
    return {
        "threads": counted.threads,
        "active": counted.states["active"],
        "interrupted": counted.states["interrupted"],
        "failed": counted.states["failed"],
        "damaged": counted.damaged,
        "checkpoints": counted.checkpoints,
        "bytes": counted.bytes,
        "largest_thread": largest and largest.thread_id,
        "largest_bytes": largest.bytes if largest else 0,
        "pinned": counted.pinned,
        "never_expire": counted.lasting,
        "expire_within_1h": counted.soon,
        "dirty_threads": counted.dirty_threads,
        "backlog": counted.records,
        "oldest_seconds": counted.oldest_ms / 1000,
        "set_aside": counted.set_aside,
        "intents": counted.intents,
    }


def _show(counted: Overview, server: dict[str, int], refused: Iterable[str]) -> None:
    numbers = {**_numbers(counted), **server}
    if counted.largest:
        numbers["largest_thread"] = screen.named(counted.largest.thread_id)
    rows = [
        [name.replace("_", " "), f"{value:,}" if isinstance(value, (int, float)) else str(value)]
        for name, value in numbers.items()
        if value is not None
    ]
    screen.table(("", ""), rows)
    for right in refused:
        screen.note(f"this user may not ask {right.replace('|', ' ').upper()}")
