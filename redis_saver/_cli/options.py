"""Declaration of commands, with arguments and options. The commands' docstrings are the help texts."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import typer
from langgraph.store.base import InvalidNamespaceError
from typer.core import TyperCommand
from typer.models import ParameterInfo

from redis_saver._cli import screen
from redis_saver._cli.servers import Servers
from redis_saver._common import times, ttl as ttls
from redis_saver._common.display import printable
from redis_saver._inspector.memory import Labels, read_labels
from redis_saver._inspector.rows import read_moment
from redis_saver.encryption import Encryption, Keyset, from_environment
from redis_saver.errors import ColdTimeout, EndpointError, ThreadNotFound

app = typer.Typer(
    name="redis-saver",
    help="LangGraph checkpoints and memory on plain Redis or Valkey.",
    epilog=(
        "Exit codes:\n\n"
        "0: all is well.\n\n"
        "1: something is wrong with a thread or the server, or was not done.\n\n"
        "2: an argument, a URL or a login is wrong, or a package is missing."
    ),
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help"]},
)
_keys = typer.Typer(
    help="Count and rotate the keys of encrypted data.",
    epilog="Exit code: that of the command.",
    no_args_is_help=True,
)
app.add_typer(_keys, name="keys")
_GROUPS = {"": app, "keys": _keys}


def note_url(context: typer.Context, url: str | None) -> str | None:
    """Pass the URL of the server to `main`, for its error messages."""
    if isinstance(context.obj, dict):
        context.obj["url"] = url or ""
    return url


_SERVERS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=str | None)
    for name, default in {
        "url": typer.Option(None, "--redis", envvar="REDIS_URL", callback=note_url),
        "postgres": None,
        "prefix": typer.Option("langgraph", envvar="REDIS_SAVER_PREFIX"),
        "keys_file": None,
    }.items()
]
_SHARED = """
    thread THREAD: Name of the thread.
    threads THREAD: Names of the threads.
    ns NAMESPACE: Namespace of a subgraph, empty for the root.
    limit N: Show the newest N.
    watch: Repeat every two seconds, until Ctrl-C.
    as_json: Print JSON, one object per line.
    url URL: The server, such as redis://host:6379.
    postgres URL: The cold tier, such as postgresql://user@host/database.
    prefix PREFIX: Prefix of all keys in Redis.
    keys_file FILE: Keys of encrypted threads, as Keyset.from_file reads them. Default: those in REDIS_SAVER_KEYS.
"""
_OPTION = re.compile(r"^ {4}(\w+)(?: ([A-Z.]+))?: (.*(?:\n {8}.*)*)", re.MULTILINE)
_HELP = re.compile(r"(.*?)(?:\n\nOptions:\n(.*?))?(?:\n\n(Exit codes:\n.*))?", re.DOTALL)
JSON: Any = typer.Option(False, "--json")
EVERY: Any = typer.Option(False, "--all")
MAX_NUMBER = 10**9 - 1
"""Maximum of numbers, because some calls take at most 64 bits."""
Run: TypeAlias = Callable[..., int]


def command(
    name: str,
    codes: str = "",
    *,
    has_postgres: bool = True,
    like: Run | None = None,
    fixed: Mapping[str, Any] | None = None,
    reads: bool = False,
) -> Callable[[Run], Run]:
    """Register a function as a command. Its docstring is its help.

    A section `Options:` of the docstring has a line for each parameter: name, metavar (if it needs one) and
    explanation. Keyword-only parameters become options, the others arguments. A first parameter `servers` gets the
    `Servers` that `--redis`, `--postgres`, `--prefix` and `--keys-file` name.

    Args:
        name: Name of the command, such as `threads` or `keys status`.
        codes: The section `Exit codes:`, which ends the help. Default: that of the docstring.
        has_postgres: False to leave out `--postgres`.
        like: Another command with the same parameters and explanations.
        fixed: Values of parameters that are no options of this command.
        reads: True for a command that shows what Redis has if Postgres does not answer. Its exit code is then 1.
    """

    def register(run: Run) -> Run:
        text, options, own_codes = _help_of(run)
        lines = _SHARED + (_help_of(like)[1] if like else "") + options
        explained = {parameter: (metavar, " ".join(of.split())) for parameter, metavar, of in _OPTION.findall(lines)}
        parameters = dict(inspect.signature(like or run, eval_str=True).parameters)
        for parameter in fixed or ():
            del parameters[parameter]
        if has_servers := parameters.pop("servers", None) is not None:
            parameters |= {each.name: each for each in _SERVERS if has_postgres or each.name != "postgres"}

        def of_words(**words: Any) -> int:
            if has_servers:
                url, postgres, prefix = words.pop("url"), words.pop("postgres", None), words.pop("prefix")
                servers = Servers(url, postgres, prefix, encryption_of(words.pop("keys_file")))
                return _without_cold(run, servers, words) if reads else run(servers, **words)
            return run(**(fixed or {}), **words)

        described = [_described(each, *explained.get(each.name, ("", ""))) for each in parameters.values()]
        of_words.__signature__ = inspect.Signature(described)  # type: ignore[attr-defined]
        of_words.__annotations__ = {}
        group, _, word = name.rpartition(" ")
        _GROUPS[group].command(word, help=text, cls=_Command, epilog=_epilog(codes or own_codes))(of_words)
        return run

    return register


def _without_cold(run: Run, servers: Servers, words: Mapping[str, Any]) -> int:
    """Run a command that reads. If Postgres does not answer, run it over Redis alone.

    Raises:
        ColdTimeout: Postgres does not answer, and Redis does not have the thread.
    """
    try:
        return run(servers, **words)
    except ColdTimeout as error:
        screen.note(f"{printable(str(error))}. This shows only the data in Redis: what only Postgres has is missing")
        try:
            return max(1, run(servers._replace(postgres=None), **words))
        except ThreadNotFound:
            raise error from None


def _help_of(run: Run) -> tuple[str, str, str]:
    """Return the parts of a docstring: the text, the explanations of options, the exit codes."""
    match = _HELP.fullmatch(inspect.cleandoc(run.__doc__ or ""))
    text, options, codes = match.groups("") if match else ("", "", "")
    return text, f"{options}\n", codes


def _epilog(codes: str) -> str:
    """Put each exit code on a line of its own: Typer keeps only line ends between paragraphs."""
    return re.sub(r"\n +", "\n\n", codes)


def _described(parameter: inspect.Parameter, metavar: str, text: str) -> inspect.Parameter:
    """Return a parameter as an option or an argument of Typer."""
    info, is_option = copy(parameter.default), parameter.kind is parameter.KEYWORD_ONLY
    if not isinstance(info, ParameterInfo):
        names = [f"--{parameter.name.replace('_', '-')}"] if parameter.annotation is bool else []
        default = ... if info is parameter.empty else info
        info = typer.Option(default, *names) if is_option else typer.Argument(default)
    info.metavar, info.help = info.metavar or metavar or None, text
    return parameter.replace(default=info)


class _Command(TyperCommand):
    """A command that refuses both words of an option such as `--pinned/--not-pinned`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check the words, then parse them as any command does."""
        for option in self.params:
            both = [word for word in (*option.opts, *option.secondary_opts) if word in args]
            if option.secondary_opts and len(both) > 1:
                raise typer.BadParameter(f"{' and '.join(both)}: give one of the two.", ctx=ctx)
        return super().parse_args(ctx, args)


def encryption_of(keys_file: str | None) -> Encryption | None:
    """Return encryption with the keys of a file, else those of the environment (`from_environment`), or None.

    Threads and partitions whose keys were destroyed do not stop commands over many others.

    Raises:
        EndpointError: The keys cannot be read, or a package is missing. The message contains no key.
    """
    try:
        encryption = Encryption(Keyset.from_file(keys_file)) if keys_file else from_environment()
    except (ImportError, OSError, ValueError) as error:
        raise EndpointError(printable(f"--keys-file: {error}" if keys_file else str(error))) from error
    if encryption is not None:
        encryption.on_unavailable = "skip"
    return encryption


def resolved(name: str) -> Any:
    """Import what `MODULE:NAME` names. The module is found from the current directory, too."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    return pkgutil.resolve_name(name)


def labels_of(words: Sequence[str]) -> Labels:
    """Return a namespace from its labels, as `read_labels` does.

    Raises:
        EndpointError: A label is empty, or has NUL.
    """
    try:
        return read_labels(words)
    except InvalidNamespaceError as error:
        raise EndpointError(printable(str(error))) from error


def duration(text: str, argument: str | None = None) -> timedelta:
    """Read a TTL, such as `7d` or `90m`. Typer adds an option's name to the error, but not an argument's."""
    with _usage_errors(argument):
        return timedelta(milliseconds=ttls.parse(text, name="").milliseconds or 0)


def span(text: str) -> timedelta:
    """Read a duration."""
    with _usage_errors():
        return times.parse(text, name="")


def past(text: str) -> datetime:
    """Read a moment: how long ago it was, or ISO 8601."""
    with _usage_errors():
        return read_moment(text)


@contextmanager
def _usage_errors(argument: str | None = None) -> Iterator[None]:
    """Turn a ValueError into a usage error."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("="), param_hint=argument) from error
