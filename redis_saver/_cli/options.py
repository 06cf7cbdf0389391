"""Options that commands share, and the savers that these options name."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import typer
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.store.base import InvalidNamespaceError
from typer.core import TyperCommand

from redis_saver._checkpoint import scripts
from redis_saver._checkpoint.saver import RedisSaver, context_of, driver_of
from redis_saver._checkpoint.threads import ThreadQuery
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
from redis_saver._tiered.requests import with_own_errors
from redis_saver._tiered.saver import TieredSaver, driver_over, tiers_of
from redis_saver._tiered.thread_info import threads_of, tiered_threads
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


def option(text: str, metavar: str | None = None, default: Any = None, *names: str, **more: Any) -> Any:
    """Return the default of a function's parameter that is an option."""
    return typer.Option(default, *names, metavar=metavar, help=text, **more)


def flag(name: str, text: str) -> Any:
    """Return the default of a function's parameter that is an option without a value."""
    return typer.Option(False, name, help=text)


def _note_url(context: typer.Context, url: str | None) -> str | None:
    """Tell `main` the URL of the server, for its messages."""
    if isinstance(context.obj, dict):
        context.obj["url"] = url or ""
    return url


def redis_option(text: str, default: str | None = None) -> Any:
    """Return the option `--redis` with a description of the server."""
    return option(text, "URL", default, "--redis", envvar="REDIS_URL", callback=_note_url)


REDIS = redis_option("The server, such as redis://host:6379.")
POSTGRES = option("The cold tier behind it, such as postgresql://user@host/database.", "URL", None, "--postgres")
PREFIX = option("The beginning of all keys in Redis.", "PREFIX", "langgraph", "--prefix")
JSON = flag("--json", "Print JSON, one object a line.")
NAMESPACE = option("The namespace of a subgraph; empty: the root.", "NAMESPACE", "", "--ns")
ANY_NAMESPACE = option("One namespace; empty: the root. Default: all.", "NAMESPACE", None, "--ns")
WATCH = flag("--watch", "Look again every two seconds, until Ctrl-C.")
Thread: TypeAlias = Annotated[str, typer.Argument(metavar="THREAD", help="The name of the thread.")]
AN_ID = "its id, or the beginning or the end of it"
"""Explanation of an argument that names a checkpoint."""


class Words(TyperCommand):
    """A command with options of one word or more, such as `--namespace memories user-1`.

    The words of each use become a single word, joined by NUL. `words_of` splits them again.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"--namespace"})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join the words, then parse as any command."""
        joined, left = list[str](), list(args)
        while left:
            word = left.pop(0)
            joined.append(word)
            if word == "--":
                joined += left
                break
            if word in self.OPTIONS:
                words = list[str]()
                while left and not left[0].startswith("-"):
                    words.append(left.pop(0))
                if not words:
                    raise typer.BadParameter(f"{word} takes one word or more.", ctx=ctx)
                joined.append("\0".join(words))
        return super().parse_args(ctx, joined)


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


class OneOfTwo(TyperCommand):
    """A command that refuses both words of an option such as `--pinned/--not-pinned`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look for both words, then parse as any command."""
        for parameter in self.params:
            both = [word for word in (*parameter.opts, *parameter.secondary_opts) if word in args]
            if parameter.secondary_opts and len(both) > 1:
                raise typer.BadParameter(f"{' and '.join(both)}: give one of the two.", ctx=ctx)
        return super().parse_args(ctx, args)


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


def limit(default: int, what: str = "lines", text: str = "Show the newest N.") -> Any:
    """Return the option `--limit`."""
    return option(text, "N", default, parser=count(what, 1))


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

    def threads(self, query: ThreadQuery) -> Iterator[Any]:
        """Iterate over the matching threads of all tiers, each once, and over all damaged threads, as `Damaged`."""
        if self.has_cold:
            return driver_over(self.saver).stream(with_own_errors(tiered_threads(tiers_of(self.saver), query)))
        return driver_of(self.hot).stream(threads_of(context_of(self.hot), query))

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


_SERVERS = {"url": REDIS, "postgres": POSTGRES, "prefix": PREFIX}


def command(
    name: str, codes: str, *, cls: type[TyperCommand] = TyperCommand, **servers: Any
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a command on servers. Its first argument is its `Servers`, which the shared options name.

    Args:
        name: Name of the command.
        codes: Its exit codes, at the end of its help.
        cls: Class of the command, for unusual words.
        servers: Other descriptions of the shared options `url`, `postgres` and `prefix`; None leaves one out.
    """

    def register(run: Callable[..., int]) -> Callable[..., int]:
        def of_words(prefix: str, url: str | None, postgres: str | None = None, **words: Any) -> int:
            return run(Servers(url, postgres, prefix), **words)

        _, *own = inspect.signature(run, eval_str=True).parameters.values()
        shared = [
            inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY, default=described, annotation=str | None)
            for word, described in {**_SERVERS, **servers}.items()
            if described is not None
        ]
        of_words.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        of_words.__annotations__, of_words.__doc__ = {}, run.__doc__
        app.command(name, cls=cls, epilog=codes)(of_words)
        return run

    return register


def _readable_serializer() -> SerializerProtocol:
    """Return a serializer that makes objects only of safe classes, and decrypts if there is a key."""
    logging.getLogger("langgraph").addHandler(logging.NullHandler())  # it would log each other class once
    return serializer(StrictSerializer())
