"""How much of its history a thread keeps: the forms in which that may be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, TypedDict

from redis_saver._common.display import shown


class KeepLast(TypedDict):
    """The newest so many checkpoints of each namespace."""

    keep_last: int


History: TypeAlias = Literal["all"] | KeepLast
"""`"all"`; or `{"keep_last": n}`: the newest `n` checkpoints of each namespace, and up to half as many more (or 32)."""

ALL: Literal["all"] = "all"
MAX_KEEP_LAST = 1000


def parse(history: object, *, name: str = "history") -> int | None:
    """Understand how much is to be kept; None: all.

    Args:
        history: A `History`.
        name: What the argument is called, for the message.

    Raises:
        TypeError: It is of another type.
        ValueError: It is another text, has another key, or a number out of range.
    """
    if isinstance(history, str):
        if history == ALL:
            return None
        raise ValueError(f"{name}={shown(history)}: write 'all' or {{\"keep_last\": n}}")
    if not isinstance(history, Mapping):
        raise TypeError(
            f"{name}={shown(history)}: write 'all' or {{\"keep_last\": n}}, not a bare {type(history).__name__}"
        )
    if set(history) != {"keep_last"}:
        raise ValueError(f"{name}={shown(history)}: it has one key, 'keep_last'; or write 'all'")
    return keep_last(history["keep_last"], f"{name}={shown(history)}")


def keep_last(number: object, said: str) -> int:
    """Check how many checkpoints are to be kept.

    Raises:
        TypeError, ValueError: That is no such number; `said` is what the caller wrote, and where.
    """
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{said}: keep_last is an int")
    if not 1 <= number <= MAX_KEEP_LAST:
        raise ValueError(f"{said}: keep_last lies between 1 and {MAX_KEEP_LAST}; prune() keeps any number")
    return number
