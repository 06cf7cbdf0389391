"""Several cases in one test, each named if it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def case(*name: Any) -> Iterator[None]:
    """Name the case in the error if the block fails."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        raise AssertionError(f"case {name!r}: {type(error).__name__}: {error}") from error


def check_each(cases: Iterable[Any], check: Callable[[Any], object]) -> None:
    """Check all cases. If some fail, the error names them all."""
    faults = list[AssertionError]()
    for name in cases:
        try:
            with case(name):
                check(name)
        except AssertionError as error:
            faults.append(error)
    if faults:
        raise AssertionError("\n".join([f"{len(faults)} failed", *map(str, faults)])) from faults[0]


def each(cases: Iterable[Any]) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Turn a function that checks one case into one test. With `parametrize`, each case would be a test of its own."""

    def decorate(check: Callable[[Any], None]) -> Callable[[], None]:
        def test() -> None:
            check_each(cases, check)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate
