"""All commands."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from redis_saver import __version__
from redis_saver._cli import (
    changing,
    check,
    doctor,
    flush,
    forget,
    inspect_command,
    looking,
    migrate,
    show_command,
    stats_command,
    threads_command,
    tree_command,
)
from redis_saver._cli.demo_command import CODES, demo

app = typer.Typer(
    name="redis-saver",
    help="LangGraph checkpoints and memory on plain Redis or Valkey.",
    epilog="Exit codes: 0, all is well; 1, something is wrong with a thread or the server, or was not done; 2, a word, a URL, a login or a missing package is at fault.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help"]},
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"redis-saver {__version__}")
        raise typer.Exit


@app.callback()
def _begin(
    *,
    version: Annotated[  # noqa: ARG001 - its callback does what it says
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """LangGraph checkpoints and memory on plain Redis or Valkey."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # names and drawings have characters that not every encoding has


app.command("demo", epilog=CODES)(demo)
threads_command.add(app)
show_command.add(app)
tree_command.add(app)
looking.add(app)
changing.add(app)
stats_command.add(app)
doctor.add(app)
inspect_command.add(app)
migrate.add(app)
flush.add(app)
check.add(app)
forget.add(app)

command = typer.main.get_command(app)
"""All of it, made once: a call of `app` makes it anew, which takes longer than most commands."""
