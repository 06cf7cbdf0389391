"""The command line `redis-saver`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from datetime import timedelta

from redis.exceptions import RedisClusterException, RedisError

from redis_saver import __version__
from redis_saver._cli import check, flush, forget, migrate
from redis_saver._cli.arguments import duration
from redis_saver._client.urls import without_login, without_password
from redis_saver._common import times
from redis_saver._common.display import printable
from redis_saver.errors import RedisSaverError

_DEMO_URL = "memory://redis-saver-demo"
_MAX_LINE = 400
_MIN_TTL = timedelta(seconds=6)
_WIDEST = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The words behind `redis-saver`; by default those of this process.

    Returns:
        The exit code: 0; 1, where some threads or items were not moved, deleted or sound, or some records not flushed; or 2, with one line on stderr, where the URL, the server
        or a missing package is at fault.
    """
    given = _parser().parse_args(arguments)
    try:
        return int(given.run(given))
    except ImportError as error:
        return _complain(f"this needs more packages: pip install 'redis-saver[cli]' ({error})")
    except RedisSaverError as error:
        return _complain(str(error))
    except (RedisError, RedisClusterException, ValueError) as error:
        url = getattr(given, "url", "")
        said = without_password(str(error), url)
        return _complain(said if said.startswith("url=") else f"{without_login(url)}: {said}")
    except KeyboardInterrupt:
        return 130


def _complain(text: str) -> int:
    line = printable(text, 4 * _MAX_LINE)
    sys.stderr.write(f"redis-saver: {line[:_MAX_LINE]}{'...' if len(line) > _MAX_LINE else ''}\n")
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="redis-saver", allow_abbrev=False, description="LangGraph checkpoints and memory on plain Redis or Valkey."
    )
    parser.add_argument("--version", action="version", version=f"redis-saver {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="command", required=True)
    about = "Watch an agent chat, wait for a human, be resumed by another worker, and go back in time."
    demo = commands.add_parser("demo", allow_abbrev=False, help=about, description=about)
    _add_url(demo, _DEMO_URL)
    demo.add_argument(
        "--ttl",
        metavar="DURATION",
        type=_ttl,
        default="1h",
        help="when the thread expires, such as 90m (default: %(default)s)",
    )
    demo.add_argument("--keep", action="store_true", help="keep the demo's thread, and say what to do with it next")
    demo.add_argument("--no-color", action="store_true", help="plain text, also on a terminal")
    demo.set_defaults(run=_demo)
    migrate.add(commands)
    flush.add(commands)
    check.add(commands)
    forget.add(commands)
    return parser


def _add_url(command: argparse.ArgumentParser, default: str) -> None:
    said = f"the server, such as redis://host:6379 (default: REDIS_URL of the environment, else {default})"
    command.add_argument(
        "--redis", metavar="URL", dest="url", default=os.environ.get("REDIS_URL") or default, help=said
    )


def _ttl(text: str) -> timedelta:
    if (found := duration(text)) < _MIN_TTL:
        raise argparse.ArgumentTypeError(
            f"{text}: the demo pauses for a second: write at least {times.shown(_MIN_TTL)}"
        )
    return found


def _demo(given: argparse.Namespace) -> int:
    from rich.console import Console  # noqa: PLC0415

    from redis_saver._cli.demo import Demo  # noqa: PLC0415

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the tree is drawn in characters that not every encoding has
    console = Console(color_system=None if given.no_color else "auto", highlight=False, markup=False, emoji=False)
    console.width = min(console.width, _WIDEST)
    Demo(console, given.url, given.ttl).run(keep=given.keep)
    return 0
