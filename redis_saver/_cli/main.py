"""The command line `redis-saver`: runs a command, and prints an error as one line."""

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
"""Part of the error if a script calls a command for which the user has no rights."""
_LOGIN = re.compile(r"//[^/\s]*@")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Words after `redis-saver`. Default: those of this process.

    Returns:
        The exit code. 0 is success. 1 means that some threads or items were not moved, deleted or sound, or some
        records not flushed. 2 means that a URL is wrong, a server does not answer, or a package is missing. Then a
        line on stderr says which. 130 means that it was interrupted.

    Raises:
        SystemExit: The arguments are invalid. The code is 2, and a line on stderr says why.
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
        text = without_password(str(error), url)
        if isinstance(error, NoPermissionError) or _SCRIPT_REFUSED in text:
            remedy = "This user lacks a right: redis-saver docs operations#rights lists what each use needs"
            text = f"{text.rstrip('.')}. {remedy}"
        return _complain(text if text.startswith("url=") else f"{without_login(url)}: {text}")
    except KeyboardInterrupt:
        return 130


def _run(arguments: list[str] | None, about: dict[str, str]) -> int:
    import typer  # noqa: PLC0415 - the extra may be missing

    from redis_saver._cli.app import program  # noqa: PLC0415

    usage_error: type[Exception] = typer.BadParameter.__mro__[1]  # it has no public name
    try:
        return int(program(arguments, prog_name="redis-saver", standalone_mode=False, obj=about) or 0)
    except usage_error as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "redis-saver"
        text = getattr(error, "format_message", error.__str__)()
        line = _LOGIN.sub("//", printable(str(text), _MAX_LINE))
        if path == "redis-saver" and line.startswith("No such option: --"):
            line = f"{line.rstrip('.')}. Options follow the command: redis-saver tree THREAD --redis URL"
        end = "" if line.endswith((".", "?", "!")) else "."
        sys.stderr.write(f"{path}: {line}{end} Try '{path} --help'.\n")
        raise SystemExit(2) from None
    except typer.Abort:
        return 130


def _complain(text: str) -> int:
    line = printable(text, 4 * _MAX_LINE)
    sys.stderr.write(f"redis-saver: {line[:_MAX_LINE]}{'...' if len(line) > _MAX_LINE else ''}\n")
    return 2
