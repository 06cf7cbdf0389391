"""Errors for calls that fit another saver or store, or are misspelled: they name what is wrong, and what to write."""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_PREFIX = "write prefix=, the beginning of all keys"
_NO_VERSIONS = (
    "versions are Redis's, and the store behind it has none to compare; put items that are compared and set into a "
    "RedisStore of their own"
)
_INSTEAD: Mapping[str, str] = {
    "redis_url": "for a URL write {name}.from_conn_string(url)",
    "redis_client": "write {name}(client)",
    "connection_args": "write {name}.from_conn_string(url, client_options={{...}}), or options after the ? of the URL",
    "checkpoint_prefix": _PREFIX,
    "checkpoint_blob_prefix": _PREFIX,
    "checkpoint_write_prefix": _PREFIX,
    "conn": "write {name}(client)",
    "conn_string": "for a URL write {name}.from_conn_string(url)",
    "pipe": "leave it out: each call is one round trip",
    "pipeline": "leave it out: each call is one round trip",
    "pool_size": "write client_options={{'max_connections': n}}",
    "ttl_seconds": "write ttl=timedelta(seconds=n), or a text such as ttl='90m'",
    "max_results": "leave it out: there is no such limit",
    "prune.keep": "write keep_last=",
    "threads.prefix": "write thread_prefix=; prefix= is the beginning of a saver's keys",
    "put.if_version": _NO_VERSIONS,
}
"""The remedy for an argument of other savers, by its name, or by the method and its name."""
_ELSEWHERE: Mapping[str, str] = {
    "checkpoints_schema": "there is no search index, so there is no schema",
    "cluster_mode": "pass a RedisCluster, or a URL redis+cluster://",
    "configure_client": "pass the client to the constructor, or write {name}.from_conn_string(url)",
    "create_indexes": "there is no search index; setup() checks the server's version",
    "from_pool": "write {name}(client), where the client is made with connection_pool=pool",
    "get_channel_values": "write get_tuple(config).checkpoint['channel_values']",
    "set_client_info": "write client_options={{'driver_info': ...}}, or options after the ? of the URL",
    "writes_schema": "there is no search index, so there is no schema",
}
"""The remedy for an attribute of other savers. A name with an `a` in front is that of its method for asyncio."""


def _no_attribute(name: str, attribute: str, elsewhere: Mapping[str, str]) -> str:
    text = f"{name!r} has no attribute {attribute!r}"
    if remedy := elsewhere.get(attribute) or elsewhere.get(attribute.removeprefix("a")):
        text += f": {remedy.format(name=name)}"
    return text


class _NamesOurs(ABCMeta):
    """A class that says what to write in place of a class attribute of other savers."""

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(cls, attribute):  # noqa: ANN001, ANN204
            raise AttributeError(_no_attribute(cls.__name__, attribute, cls._elsewhere), name=attribute, obj=cls)


class NamesOurs(metaclass=_NamesOurs):
    """Base of savers and stores: an attribute of other savers raises an error that says what to write here."""

    __slots__ = ()
    _takes: ClassVar[str] = ""
    """The arguments of the constructor, for messages."""
    _elsewhere: ClassVar[Mapping[str, str]] = _ELSEWHERE

    if not TYPE_CHECKING:

        def __getattr__(self, attribute):  # noqa: ANN001, ANN204
            text = _no_attribute(type(self).__name__, attribute, self._elsewhere)
            raise AttributeError(text, name=attribute, obj=self)


def checked(function: F) -> F:
    """Wrap a method so that a call that does not fit its signature raises a `TypeError` that says what to write.

    A call that fits costs nothing. A method with `**settings` takes the keywords of its class's constructor, and looks
    at their names before it runs.
    """
    signature = inspect.signature(function)
    is_settled = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())

    def explain(arguments: tuple[Any, ...], settings: Mapping[str, object]) -> None:
        """Raise a better error, if the call does not fit."""
        if not arguments:  # a method was called without its object
            return
        kind: Any = arguments[0] if isinstance(arguments[0], type) else type(arguments[0])
        method = "" if function.__name__ == "__init__" else function.__name__
        called = f"{kind.__name__}.{method}" if method else kind.__name__
        takes = "" if method else f". It takes {kind._takes}"  # noqa: SLF001 - it is a class of ours
        known = {*signature.parameters, *(_keywords(kind, settings) if is_settled else ())}
        for argument in settings:
            if argument not in known:
                remedy = _INSTEAD.get(f"{method.removeprefix('a')}.{argument}") or _INSTEAD.get(argument)
                ending = f": {remedy.format(name=kind.__name__)}{takes}" if remedy else did_you_mean(argument, known)
                raise TypeError(f"{called} has no argument {argument!r}{ending}") from None
        try:
            signature.bind(*arguments, **settings)
        except TypeError as error:
            raise TypeError(f"{called}: {error}{takes}") from None

    if inspect.iscoroutinefunction(function):  # the wrapper has to be one, too, for callers that look

        @wraps(function)
        async def acall(*arguments: Any, **settings: Any) -> Any:
            try:
                return await function(*arguments, **settings)
            except TypeError:
                explain(arguments, settings)
                raise

        return acall  # type: ignore[return-value]

    @wraps(function)
    def call(*arguments: Any, **settings: Any) -> Any:
        if is_settled:
            explain(arguments, settings)
        try:
            return function(*arguments, **settings)
        except TypeError:
            explain(arguments, settings)
            raise

    return call  # type: ignore[return-value]


def _keywords(kind: type[Any], settings: Mapping[str, object]) -> Collection[str]:
    """The keywords of a constructor, except for the client: all keywords, if a subclass takes any."""
    parameters = inspect.signature(kind.__init__).parameters
    is_open = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return settings.keys() if is_open else parameters.keys() - {"self", "client"}


def did_you_mean(name: str, known: Collection[str]) -> str:
    """The end of a message that suggests the name which is nearest to a misspelled one, if any is near."""
    close = get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""
