"""Options that commands share, and the savers that these options name."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from copy import copy
from datetime import timedelta
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

import typer
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import InvalidNamespaceError
from typer.core import TyperCommand
from typer.models import ParameterInfo

from redis_saver._checkpoint import scripts
from redis_saver._checkpoint.saver import RedisSaver, context_of, driver_of
from redis_saver._cli.servers import Cold
from redis_saver._client import urls
from redis_saver._common import times
from redis_saver._common import ttl as ttls
from redis_saver._common.display import printable, shown
from redis_saver._engine.requests import Call, Operation
from redis_saver._migrate.opening import opened, serializer
from redis_saver._serde.serializer import StrictSerializer
from redis_saver._storage.context import Context
from redis_saver._store.context import check_labels
from redis_saver._tiered.savers import TieredSaver
from redis_saver.errors import EndpointError, KeyConflict, ThreadNotFound

app = typer.Typer(
    name="redis-saver",
    help="LangGraph checkpoints and memory on plain Redis or Valkey.",
    epilog=(
        "Exit codes: 0, all is well; 1, something is wrong with a thread or the server, or was not done; "
        "2, a word, a URL, a login or a missing package is at fault."
    ),
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help"]},
)


def note_url(context: typer.Context, url: str | None) -> str | None:
    """Tell `main` the URL of the server, for its messages."""
    if isinstance(context.obj, dict):
        context.obj["url"] = url or ""
    return url


_SERVERS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=str | None)
    for name, default in {
        "url": typer.Option(None, "--redis", envvar="REDIS_URL", callback=note_url),
        "postgres": None,
        "prefix": "langgraph",
    }.items()
]
_SHARED = """
    thread THREAD: The name of the thread.
    threads THREAD: The names of the threads.
    ns NAMESPACE: The namespace of a subgraph; empty: the root.
    limit N: Show the newest N.
    watch: Look again every two seconds, until Ctrl-C.
    as_json: Print JSON, one object a line.
    url URL: The server, such as redis://host:6379.
    postgres URL: The cold tier behind it, such as postgresql://user@host/database.
    prefix PREFIX: The beginning of all keys in Redis.
"""
_OPTION = re.compile(r"^ {4}(\w+)(?: ([A-Z.]+))?: (.*(?:\n {8}.*)*)", re.MULTILINE)
_HELP = re.compile(r"(.*?)(?:\n\nOptions:\n(.*?))?(?:\n\n(Exit code: .*))?", re.DOTALL)
JSON: Any = typer.Option(False, "--json")
EVERY: Any = typer.Option(False, "--all")
Run: TypeAlias = Callable[..., int]


def command(
    name: str,
    codes: str = "",
    *,
    has_postgres: bool = True,
    like: Run | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> Callable[[Run], Run]:
    """Register a function as a command. Its docstring has the help.

    A section `Options:` has a line for each parameter: its name, its metavar if it needs one, and its explanation.
    Parameters that only take names are options, the others are arguments. If the first parameter is `servers`, it gets
    what the options `--redis`, `--postgres` and `--prefix` name.

    Args:
        name: Name of the command.
        codes: Its exit codes, at the end of its help, if they are not at the end of the docstring.
        has_postgres: False to leave out `--postgres`.
        like: Another command, whose parameters and explanations it has.
        fixed: Values of those of its parameters that are no options here.
    """

    def register(run: Run) -> Run:
        text, options, own_codes = _help_of(run)
        told = _SHARED + (_help_of(like)[1] if like else "") + options
        explained = {parameter: (metavar, " ".join(of.split())) for parameter, metavar, of in _OPTION.findall(told)}
        parameters = dict(inspect.signature(like or run, eval_str=True).parameters)
        for parameter in fixed or ():
            del parameters[parameter]
        if has_servers := parameters.pop("servers", None) is not None:
            parameters |= {each.name: each for each in _SERVERS if has_postgres or each.name != "postgres"}

        def of_words(**words: Any) -> int:
            if has_servers:
                return run(Servers(words.pop("url"), words.pop("postgres", None), words.pop("prefix")), **words)
            return run(**(fixed or {}), **words)

        described = [_described(each, *explained[each.name]) for each in parameters.values()]
        of_words.__signature__ = inspect.Signature(described)  # type: ignore[attr-defined]
        of_words.__annotations__ = {}
        app.command(name, help=text, cls=_Command, epilog=codes or own_codes)(of_words)
        return run

    return register


def _help_of(run: Run) -> tuple[str, str, str]:
    """Return the parts of a docstring: the text, the explanations of options, the exit codes."""
    match = _HELP.fullmatch(inspect.cleandoc(run.__doc__ or ""))
    text, options, codes = match.groups("") if match else ("", "", "")
    return text, f"{options}\n", " ".join(codes.split())


def _described(parameter: inspect.Parameter, metavar: str, text: str) -> inspect.Parameter:
    """Return a parameter as an option or an argument of Typer."""
    info, is_option = copy(parameter.default), parameter.kind is parameter.KEYWORD_ONLY
    if not isinstance(info, ParameterInfo):
        names = [f"--{parameter.name.replace('_', '-')}"] if parameter.annotation is bool else []
        default = ... if info is parameter.empty else info
        info = typer.Option(default, *names) if is_option else typer.Argument(default)
    info.metavar, info.help = metavar or None, text
    return parameter.replace(default=info)


class _Command(TyperCommand):
    """A command that refuses both words of an option such as `--pinned/--not-pinned`.

    An option whose metavar ends in dots takes one word or more, such as `--namespace memories user-1`. The words of
    each use become a single word, joined by NUL. `words_of` splits them again.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look for both words, and join the words of an option that takes several, then parse as any command."""
        several = {name for option in self.params if str(option.metavar).endswith("...") for name in option.opts}
        for option in self.params:
            both = [word for word in (*option.opts, *option.secondary_opts) if word in args]
            if option.secondary_opts and len(both) > 1:
                raise typer.BadParameter(f"{' and '.join(both)}: give one of the two.", ctx=ctx)
        joined, left = list[str](), list(args)
        while left and joined[-1:] != ["--"]:
            joined.append(left.pop(0))
            if joined[-1] in several:
                words = list(takewhile(lambda word: not word.startswith("-"), left))
                if not words:
                    raise typer.BadParameter(f"{joined[-1]} takes one word or more.", ctx=ctx)
                joined.append("\0".join(words))
                left = left[len(words) :]
        return super().parse_args(ctx, joined + left)


def words_of(uses: Iterable[str] | None) -> list[list[str]]:
    """Return the words of each use of an option that takes several."""
    return [use.split("\0") for use in uses or ()]


def labels_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the namespace with these labels.

    Raises:
        EndpointError: A word is no label.
    """
    try:
        return check_labels(tuple(words), "--namespace")
    except InvalidNamespaceError as error:
        raise EndpointError(printable(str(error))) from error


def duration(text: str, argument: str | None = None) -> timedelta:
    """Read a TTL, such as `7d` or `90m`. Typer adds an option's name to the error, but not an argument's."""
    try:
        return timedelta(milliseconds=ttls.parse(text, name="--ttl").milliseconds or 0)
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("--ttl="), param_hint=argument) from error


def span(text: str) -> timedelta:
    """Read a duration that is no TTL."""
    try:
        return times.parse(text, name="")
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("=")) from error


_DIGITS = 9
"""Maximum length of a number. Nobody has more threads or checkpoints, and some calls take no number beyond 64 bits."""


def count(what: str, least: int) -> Callable[[str | int], int]:
    """Return a parser of a number of things."""

    def read(text: str | int) -> int:
        digits = str(text)
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS and int(digits) >= least):
            raise typer.BadParameter(
                f"{printable(repr(text))} is no number of {what}: write {least} to {10**_DIGITS - 1:,}."
            )
        return int(digits)

    return read


# -- savers


def redis_url(url: str | None) -> str:
    """Return the URL of a server of Redis or Valkey, which is required.

    Raises:
        EndpointError: The URL is missing, or is another one, or that of an embedded server.
    """
    if not url:
        raise EndpointError("--redis URL is missing, and there is no REDIS_URL in the environment")
    refuse_embedded(url)
    if url.partition(":")[0] not in urls.SCHEMES:
        forms = "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
        raise EndpointError(f"--redis {urls.without_login(url)} is not the URL of a server: write {forms}")
    return url


def postgres_url(url: str | None) -> str | None:
    """Return the URL of a cold tier, if there is one.

    Raises:
        EndpointError: It is the URL of something else.
    """
    if url and url.partition(":")[0] not in ("postgresql", "postgres"):
        form = "postgresql://user@host/database"
        raise EndpointError(f"--postgres {urls.without_login(url)} is not the URL of a database: write {form}")
    return url


def refuse_embedded(url: str) -> None:
    """Refuse `memory:`.

    Raises:
        EndpointError: The URL is that of an embedded server.
    """
    if url.startswith("memory:"):
        raise EndpointError(
            f"{url}: an embedded server is empty when this command begins, and ends with it. "
            "Name a server, such as redis://host:6379"
        )


class Savers(NamedTuple):
    """The savers of a command."""

    saver: Any
    """The saver over both tiers if Postgres was named, otherwise that of Redis."""
    hot: RedisSaver
    """The saver of Redis."""
    endpoints: Sequence[Any]
    """Redis, and Postgres if it was named, as sources of threads."""

    @property
    def has_cold(self) -> bool:
        """True if Postgres was named."""
        return len(self.endpoints) > 1

    def thread(self, name: str) -> Any:
        """Return the information about a thread.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        if (info := self.saver.get_thread(name)) is None:
            raise ThreadNotFound(f"thread {shown(name)} is not there: see whether its name and --prefix are right")
        return info

    def refuse_cold_backed(self, name: str, done: str) -> None:
        """Refuse a change of Redis alone that a cold tier would undo.

        Raises:
            EndpointError: The thread is in a cold tier, too, and none was named.
        """
        if not self.has_cold and driver_of(self.hot).run(_is_cold_backed(context_of(self.hot), name)):
            raise EndpointError(
                f"thread {shown(name)} is in a cold tier, too, and what is {done} in Redis alone comes back "
                f"from there, or is not all of it. Nothing was {done}. Name it with --postgres URL. If there is none "
                "any more, or it is another saver, do it in Python"
            )


def _is_cold_backed(context: Context, name: str) -> Operation[bool]:
    try:
        (value,) = yield Call(scripts.READ_FIELDS, (context.keyspace.keys(name).data_key,), (1, "@cold_backed"))
    except KeyConflict:  # it is no thread, and the command that changes it says so
        return False
    return value is not None


class Servers(NamedTuple):
    """Words of a command that name its servers."""

    url: str | None
    postgres: str | None
    prefix: str

    @contextmanager
    def savers(
        self, *, readable: bool = True, connections: int = 1, require_encryption: bool = False
    ) -> Iterator[Savers]:
        """Open the savers.

        Args:
            readable: True to make objects of the classes that LangGraph calls safe. Otherwise objects stay packed, so
                that copies are the same byte for byte.
            connections: Connections to Postgres. Several come from a pool, which outlives outages.
            require_encryption: True to report values that are not encrypted.

        Raises:
            EndpointError: A URL is not understood, leads nowhere, or Postgres fails.
        """
        url, postgres = redis_url(self.url), postgres_url(self.postgres)
        with ExitStack() as stack:
            source = opened(url, target=False, prefix=self.prefix, require_encryption=require_encryption)
            endpoint = stack.enter_context(source)
            hot = endpoint.saver
            if readable:
                hot.serde = _readable_serializer()
            if not postgres:
                yield Savers(hot, hot, [endpoint])
                return
            cold = stack.enter_context(opened(postgres, target=False))
            saver = cold.saver
            if connections > 1:
                saver = stack.enter_context(closing(Cold(postgres, connections, setup=False))).saver
            if readable:
                saver.serde = hot.serde
            try:
                yield Savers(TieredSaver(hot, saver), hot, [endpoint, cold])
            except cold.failures as error:
                no_table = getattr(error, "sqlstate", "") == "42P01"
                remedy = ". It has none of LangGraph's tables: see whether it is the right database" if no_table else ""
                raise EndpointError(f"--postgres: {printable(str(error))}{remedy}") from error


def _readable_serializer() -> SerializerProtocol:
    """Return a serializer that makes objects only of safe classes, and decrypts if there is a key."""
    logging.getLogger("langgraph").addHandler(logging.NullHandler())  # it would log each other class once
    return serializer(StrictSerializer())
