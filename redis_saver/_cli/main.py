"""The command line `redis-saver`: runs a command, and makes one line of what goes wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from redis.exceptions import NoPermissionError, RedisClusterException, RedisError

from redis_saver._client.urls import without_login, without_password
from redis_saver._common.display import printable
from redis_saver.errors import RedisSaverError

_MAX_LINE = 400
_SCRIPT_REFUSED = "user executing the script can't run this command"
"""What a server says of a script that may be called, and has a command in it that may not."""
_LOGIN = re.compile(r"//[^/\s]*@")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The words behind `redis-saver`; by default those of this process.

    Returns:
        The exit code: 0; 1, where some threads or items were not moved, deleted or sound, or some records not flushed; 2, with one line on stderr, where the URL, the server
        or a missing package is at fault; 130 where it was interrupted.

    Raises:
        SystemExit: With 2, where the words make no sense; one line on stderr says why.
    """
    about: dict[str, str] = {"url": ""}
    try:
        return _run(None if arguments is None else list(arguments), about)
    except ImportError as error:
        return _complain(f"this needs more packages: pip install 'redis-saver[cli]' ({error})")
    except RedisSaverError as error:
        return _complain(str(error))
    except (RedisError, RedisClusterException, ValueError) as error:
        url = about["url"]
        said = without_password(str(error), url)
        if isinstance(error, NoPermissionError) or _SCRIPT_REFUSED in said:
            said = f"{said.rstrip('.')}. This user lacks a right: docs/operations.md has those that each use needs"
        return _complain(said if said.startswith("url=") else f"{without_login(url)}: {said}")
    except KeyboardInterrupt:
        return 130


def _run(arguments: list[str] | None, about: dict[str, str]) -> int:
    import typer  # noqa: PLC0415 - the extra may be missing

    from redis_saver._cli.app import command  # noqa: PLC0415

    usage_error: type[Exception] = typer.BadParameter.__mro__[
        1
    ]  # of all words that make no sense; it has no public name
    try:
        return int(command(arguments, prog_name="redis-saver", standalone_mode=False, obj=about) or 0)
    except usage_error as error:
        _refuse(error)
        raise SystemExit(2) from None
    except typer.Abort:
        return 130


def _refuse(error: Exception) -> None:
    """Say what is wrong with the words, and where the command's help is."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "redis-saver"
    said = getattr(error, "format_message", error.__str__)()
    line = _LOGIN.sub("//", printable(str(said), _MAX_LINE))
    end = "" if line.endswith((".", "?", "!")) else "."
    sys.stderr.write(f"{path}: {line}{end} Try '{path} --help'.\n")


def _complain(text: str) -> int:
    line = printable(text, 4 * _MAX_LINE)
    sys.stderr.write(f"redis-saver: {line[:_MAX_LINE]}{'...' if len(line) > _MAX_LINE else ''}\n")
    return 2
