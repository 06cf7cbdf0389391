"""Arguments that several commands take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Annotated, Any, ClassVar, TypeAlias

import typer
from langgraph.store.base import InvalidNamespaceError
from typer.core import TyperCommand

from redis_saver._client import urls
from redis_saver._common import times
from redis_saver._common import ttl as ttls
from redis_saver._common.display import printable
from redis_saver._store.context import check_labels
from redis_saver.errors import EndpointError


def _note_url(context: typer.Context, url: str | None) -> str | None:
    """Tell `main` which server the command is about, for its messages."""
    if isinstance(context.obj, dict):
        context.obj["url"] = url or ""
    return url


def redis_option(said: str) -> Any:
    """The option `--redis`; `said` describes the server."""
    return typer.Option("--redis", metavar="URL", envvar="REDIS_URL", callback=_note_url, help=said)


Redis: TypeAlias = Annotated[str | None, redis_option("The server, such as redis://host:6379.")]
Prefix: TypeAlias = Annotated[
    str, typer.Option("--prefix", metavar="PREFIX", help="The beginning of all keys in Redis.")
]
Postgres: TypeAlias = Annotated[
    str | None,
    typer.Option("--postgres", metavar="URL", help="The cold tier behind it, such as postgresql://user@host/database."),
]
Thread: TypeAlias = Annotated[str, typer.Argument(metavar="THREAD", help="The name of the thread.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Namespace: TypeAlias = Annotated[
    str, typer.Option("--ns", metavar="NAMESPACE", help="The namespace of a subgraph; empty: the root.")
]
AnyNamespace: TypeAlias = Annotated[
    str | None, typer.Option("--ns", metavar="NAMESPACE", help="One namespace; empty: the root. Default: all.")
]
AN_ID = "its id, or the beginning or the end of it"
"""How commands take a checkpoint, for `--help`."""
LOOKING = (
    "Exit code: 0; 2, there is no such thread or checkpoint, or a URL, a login or a missing package is at fault. With LANGGRAPH_AES_KEY set, values "
    "are decrypted. Objects are made only of classes that LangGraph calls safe."
)
"""What stands below the help of commands that look into a thread."""


class Words(TyperCommand):
    """A command with options that take one word or more, as `--namespace memories user-1`. Each use of one becomes a single word, joined by NUL."""

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
                some = list[str]()
                while left and not left[0].startswith("-"):
                    some.append(left.pop(0))
                if not some:
                    raise typer.BadParameter(f"{word} takes one word or more.", ctx=ctx)
                joined.append("\0".join(some))
        return super().parse_args(ctx, joined)


class OneOfTwo(TyperCommand):
    """A command that refuses both words of an option such as `--pinned/--not-pinned`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look for both words, then parse as any command."""
        for parameter in self.params:
            both = [word for word in (*parameter.opts, *parameter.secondary_opts) if word in args]
            if parameter.secondary_opts and len(both) > 1:
                raise typer.BadParameter(f"{' and '.join(both)}: give one of the two.", ctx=ctx)
        return super().parse_args(ctx, args)


def words_of(uses: Iterable[str]) -> list[list[str]]:
    """The words of each use of such an option."""
    return [use.split("\0") for use in uses]


def redis_url(url: str | None) -> str:
    """The URL of a server of Redis or Valkey, which has to be given.

    Raises:
        EndpointError: There is none, or it is another one, or that of an embedded server.
    """
    if not url:
        raise EndpointError("--redis URL is missing, and there is no REDIS_URL in the environment")
    scheme = url.partition(":")[0]
    if scheme == "memory":
        refuse_embedded(url)
    if scheme not in urls.SCHEMES:
        forms = "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
        raise EndpointError(f"--redis {urls.without_login(url)} is not the URL of a server: write {forms}")
    return url


def postgres_url(url: str | None) -> str | None:
    """The URL of a cold tier, where one is given.

    Raises:
        EndpointError: It is the URL of something else.
    """
    if url and url.partition(":")[0] not in ("postgresql", "postgres"):
        form = "postgresql://user@host/database"
        raise EndpointError(f"--postgres {urls.without_login(url)} is not the URL of a database: write {form}")
    return url


def duration(text: str | timedelta, argument: str | None = None) -> timedelta:
    """Read a TTL, such as `7d` or `90m`. A parser of an option needs no `argument`: Typer adds the option's name."""
    if isinstance(text, timedelta):
        return text
    try:
        return timedelta(milliseconds=ttls.parse(text, name="--ttl").milliseconds or 0)
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("--ttl="), param_hint=argument) from error


def span(text: str | timedelta) -> timedelta:
    """Read a duration that is no TTL."""
    try:
        return text if isinstance(text, timedelta) else times.parse(text, name="")
    except ValueError as error:
        raise typer.BadParameter(str(error).removeprefix("=")) from error


_DIGITS = 9
"""A number on the command line has no more: nobody has so many threads or checkpoints, and some of what counts to it takes none beyond 64 bits."""


def count(what: str, least: int) -> Callable[[str | int], int]:
    """What reads a number of something, of at least so many."""

    def read(text: str | int) -> int:
        digits = str(text)
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS and int(digits) >= least):
            raise typer.BadParameter(
                f"{printable(repr(text))} is no number of {what}: write {least} to {10**_DIGITS - 1:,}."
            )
        return int(digits)

    return read


Limit: TypeAlias = Annotated[int, typer.Option(metavar="N", parser=count("lines", 1), help="Show the newest N.")]


def labels_of(words: Sequence[str]) -> tuple[str, ...]:
    """The namespace that `--namespace` was given.

    Raises:
        EndpointError: A word is no label.
    """
    try:
        return check_labels(tuple(words), "--namespace")
    except InvalidNamespaceError as error:
        raise EndpointError(printable(str(error))) from error


def is_encrypted() -> bool:
    """Whether the environment has a key, so that plain values are named or refused."""
    return "LANGGRAPH_AES_KEY" in os.environ


def refuse_embedded(url: str) -> None:
    """Refuse `memory:`.

    Raises:
        EndpointError: It is one.
    """
    if url.startswith("memory:"):
        raise EndpointError(
            f"{url}: an embedded server is empty when this command begins, and ends with it. Name a server, such as redis://host:6379"
        )
