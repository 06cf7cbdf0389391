"""The command `demo`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from redis_saver._cli.arguments import duration, redis_option
from redis_saver._common import times

_URL = "memory://redis-saver-demo"
_MIN_TTL = timedelta(seconds=6)
_WIDEST = 100


CODES = "Exit code: 0; 2, the URL, the server or a missing package is at fault."


def _ttl(text: str | timedelta) -> timedelta:
    if (found := duration(text)) < _MIN_TTL:
        raise typer.BadParameter(f"{text}: the demo pauses for a second: write at least {times.shown(_MIN_TTL)}")
    return found


def demo(
    *,
    url: Annotated[str, redis_option("The server, such as redis://host:6379. By default an embedded one.")] = _URL,
    ttl: Annotated[
        timedelta,
        typer.Option(metavar="DURATION", parser=_ttl, show_default="1h", help="When the thread expires, such as 90m."),
    ] = timedelta(hours=1),
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the demo's thread, and say what to do with it next.")
    ] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Plain text, also on a terminal.")] = False,
) -> int:
    """Watch an agent chat, wait for a human, be resumed by another worker, and go back in time."""
    from rich.console import Console  # noqa: PLC0415

    from redis_saver._cli.demo import Demo  # noqa: PLC0415 - it needs LangGraph

    console = Console(color_system=None if no_color else "auto", highlight=False, markup=False, emoji=False)
    console.width = min(console.width, _WIDEST)
    Demo(console, url, ttl).run(keep=keep)
    return 0
