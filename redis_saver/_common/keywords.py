"""Refuses keywords that a method does not have (those of other savers and stores, and misspelled ones), and says what to write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

_INSTEAD = {
    "redis_url": "for a URL write {name}.from_conn_string(url)",
    "redis_client": "write {name}(client)",
    "connection_args": "write {name}.from_conn_string(url, client_options={{...}}), or options behind the ? of the URL",
    "checkpoint_prefix": "write prefix=, the beginning of all keys",
    "checkpoint_blob_prefix": "write prefix=, the beginning of all keys",
    "checkpoint_write_prefix": "write prefix=, the beginning of all keys",
    "conn": "write {name}(client)",
    "conn_string": "for a URL write {name}.from_conn_string(url)",
}
_NO_VERSIONS = "versions are Redis's, and the store behind it has none to compare; put items that are compared and set into a RedisStore of their own"
_OF_METHODS = {
    ("threads", "prefix"): "write thread_prefix=; prefix= is the beginning of a saver's keys",
    ("athreads", "prefix"): "write thread_prefix=; prefix= is the beginning of a saver's keys",
    ("prune", "keep"): "write keep_last=",
    ("aprune", "keep"): "write keep_last=",
    ("put", "if_version"): _NO_VERSIONS,
    ("aput", "if_version"): _NO_VERSIONS,
}


class ChecksKeywords:
    """The beginning of a saver or a store: its constructor refuses keywords that it does not have, as `check` does."""

    __slots__ = ()
    _takes: ClassVar[str] = ""
    """What the constructor takes, for messages."""
    __signature__: ClassVar[inspect.Signature]

    if not TYPE_CHECKING:  # a type checker looks at `__init__`

        def __new__(cls, *arguments, **settings):  # noqa: ANN002, ANN003, ANN204, ARG004
            """Refuse arguments that other savers and stores take, and misspelled ones, by their names."""
            check(cls, settings, cls._takes)
            return super().__new__(cls)

    def __init_subclass__(cls, **settings: Any) -> None:
        """Have `help` and notebooks show the constructor's settings, and not those of `__new__`."""
        super().__init_subclass__(**settings)
        signature = inspect.signature(cls.__init__)
        cls.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])


def check(kind: type, given: Mapping[str, object], takes: str) -> None:
    """Refuse a keyword that a class's constructor does not have, and say what to write.

    Args:
        kind: The class that is made.
        given: The keywords it was given.
        takes: What it takes, for the message.

    Raises:
        TypeError: It has no such argument. No value is shown: one may hold a password.
    """
    known = _keywords(kind)
    if known:
        _check(kind.__name__, kind.__name__, known, given, takes)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method so that it refuses unknown keywords as `check` does."""
    known = frozenset(inspect.signature(function).parameters)
    method = function.__name__

    def look_at(arguments: tuple[Any, ...], settings: Mapping[str, object]) -> None:
        if not known.issuperset(settings):
            of = arguments[0]
            name = of.__name__ if isinstance(of, type) else type(of).__name__
            _check(name, f"{name}.{method}", known, settings, "", method)

    if inspect.iscoroutinefunction(function):  # the wrapper has to be one, too, for callers that look

        @wraps(function)
        async def acall(*arguments: P.args, **settings: P.kwargs) -> Any:
            look_at(arguments, settings)
            return await function(*arguments, **settings)

        return cast("Callable[P, R]", acall)

    @wraps(function)
    def call(*arguments: P.args, **settings: P.kwargs) -> R:
        look_at(arguments, settings)
        return function(*arguments, **settings)

    return call


def _check(
    name: str, what: str, known: Collection[str], given: Mapping[str, object], takes: str, method: str = ""
) -> None:
    for argument in given:
        if argument in known:
            continue
        said = f"{what} has no argument {argument!r}"
        if instead := _OF_METHODS.get((method, argument)) or _INSTEAD.get(argument):
            behind = f". It takes {takes}" if takes else ""
            raise TypeError(f"{said}: {instead.format(name=name)}{behind}")
        close = get_close_matches(argument, known, 1)
        raise TypeError(f"{said}{f'; did you mean {close[0]!r}?' if close else ''}")


@lru_cache(maxsize=64)
def _keywords(kind: type) -> frozenset[str]:
    """The keywords of a class's constructor; empty if it takes any keyword."""
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return frozenset()
    return frozenset(one.name for one in parameters)
