"""Keeping an error instead of raising it."""

from __future__ import annotations

from types import TracebackType

from typing_extensions import Self


class capturing:  # noqa: N801 - used like a function
    """A context that keeps the error it ends with, instead of raising it.

    A cold saver may be of any kind, and raise anything. One thread that cannot be flushed must not keep the others from it.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self.error = error
        return self.error is not None
