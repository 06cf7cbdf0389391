"""Errors for misspelled arguments, which suggest the most similar name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def checked(function: F) -> F:
    """Wrap a method so that an unknown keyword raises a `TypeError` that suggests a known one.

    A method with `**settings` takes the keywords of its class's constructor. If an argument of a constructor is
    missing, the error names the class that was called, not its base class.
    """
    parameters = inspect.signature(function).parameters
    is_constructor = function.__name__ == "__init__"
    required = [each.name for each in parameters.values() if is_constructor and each.default is each.empty]

    def check(arguments: tuple[Any, ...], keywords: Collection[str]) -> None:
        lacking = [name for name in required[len(arguments) :] if name not in keywords]
        if not arguments or (parameters.keys() >= set(keywords) and not lacking):
            return
        kind: Any = arguments[0] if isinstance(arguments[0], type) else type(arguments[0])
        known = dict(parameters)
        if known.pop("settings", None):
            known |= inspect.signature(kind.__init__).parameters
        is_open = any(each.kind is each.VAR_KEYWORD for each in known.values())
        if unknown := [] if is_open else [name for name in keywords if name not in known]:
            called = f"{kind.__name__}.{function.__name__}".removesuffix(".__init__")
            raise TypeError(f"{called} has no argument {unknown[0]!r}{did_you_mean(unknown[0], known)}")
        if lacking:
            remedy = f": pass one, or use {kind.__name__}.from_conn_string(url)" if lacking == ["client"] else ""
            raise TypeError(f"{kind.__name__} is missing its argument {lacking[0]!r}{remedy}")

    if inspect.iscoroutinefunction(function):  # the wrapper has to be one, too

        @wraps(function)
        async def acall(*arguments: Any, **keywords: Any) -> Any:
            check(arguments, keywords)
            return await function(*arguments, **keywords)

        return acall  # type: ignore[return-value]

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        check(arguments, keywords)
        return function(*arguments, **keywords)

    return call  # type: ignore[return-value]


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return the end of a message that suggests the most similar known name, or an empty text."""
    close = get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""
