"""All commands. A module registers its commands when it is imported."""

from __future__ import annotations

import io
import sys
from datetime import timedelta
from typing import Annotated

import typer

from redis_saver import __version__
from redis_saver._cli.options import app, command, duration, note_url
from redis_saver._common import times

_MIN_TTL = timedelta(seconds=6)
_WIDEST = 100


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"redis-saver {__version__}")
        raise typer.Exit


@app.callback()
def _begin(
    *,
    version: Annotated[  # noqa: ARG001 - its callback prints
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """LangGraph checkpoints and memory on plain Redis or Valkey."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # some encodings lack characters of names and drawings


def _demo_ttl(text: str) -> timedelta:
    if (ttl := duration(text)) < _MIN_TTL:
        raise typer.BadParameter(f"{text} is too short, as the demo pauses: write {times.shown(_MIN_TTL)} or more")
    return ttl


@command("demo")
def _demo(
    *,
    url: str = typer.Option("memory://redis-saver-demo", "--redis", envvar="REDIS_URL", callback=note_url),
    ttl: timedelta = typer.Option("1h", parser=_demo_ttl),
    keep: bool = False,
    no_color: bool = False,
) -> int:
    """Watch an agent chat, wait for a human, resume in another worker, and go back in time.

    Options:
        url URL: The server, such as redis://host:6379. Default: an embedded one.
        ttl DURATION: TTL of the thread, such as 90m.
        keep: Keep the thread, and show what to do with it next.
        no_color: Print plain text, even on a terminal.

    Exit codes:
        0: success.
        2: the URL is wrong, the server does not answer, or a package is missing.
    """
    from rich.console import Console  # noqa: PLC0415

    from redis_saver._cli.demo import Demo  # noqa: PLC0415 - it needs LangGraph

    console = Console(color_system=None if no_color else "auto", highlight=False, markup=False, emoji=False)
    console.width = min(console.width, _WIDEST)
    Demo(console, url, ttl).run(keep=keep)
    return 0


# In the order of `--help`:
from redis_saver._cli import looking, memory, changing, doctor, moving, flushing, docs  # noqa: E402, F401, I001

program = typer.main.get_command(app)
"""The command line. `app()` would build it again at each call, which takes longer than most commands."""
