"""Limits of stored things, so that no call blocks the server or fills this process's memory without bound.

A write of more than a limit raises `LimitExceeded` before anything is sent. A read checks only what can become larger
than the bytes received: compressed bytes, and chunks that are named more than once. All else takes time and memory in
proportion to the bytes received.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from redis_saver._common.display import sentence, shown
from redis_saver.errors import LimitExceeded

_VALUES_PER_REPLY = 4
"""The values of one checkpoint, or the chunks of one reply, may become this many times `value_bytes` together."""


@dataclass(frozen=True)
class Limits:
    """The limits of a saver that can be set.

    `docs/limits.md` has all of them, and how long such calls keep the server busy.

    Raises:
        TypeError, ValueError: A limit is no positive int.
    """

    name_bytes: int = 16_384
    """Bytes of a name in UTF-8: of a thread, namespace, checkpoint, parent, task, task path, run or node; of a channel
    with its version."""
    value_bytes: int = 64 * 2**20
    """Bytes of a value, or of a pending write, as the serializer gives them: without compression."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        for each in fields(self):
            number = getattr(self, each.name)
            if isinstance(number, bool) or not isinstance(number, int):
                raise TypeError(f"Limits({each.name}={shown(number)}): a limit is an int")
            if number < 1:
                raise ValueError(f"Limits({each.name}={shown(number)}): a limit is at least 1")


FIXED = {"channels": 10_000, "writes": 10_000, "chunks": 100_000, "depth": 32}
"""Limits that cannot be set.

They bound the channels of a checkpoint, the pending writes of one `put_writes`, the chunks of a value together with the
lists above them, and the levels of these lists. A chunk is about half a kilobyte, or one long element; 100,000 chunks
have about 6 levels.
"""


def check(limits: Limits, limit: str, amount: int, what: str, *named: object) -> None:
    """Check what is about to be written.

    Args:
        limits: The limits of the saver.
        limit: The name of a limit, in `Limits` or `FIXED`.
        amount: How much there is.
        what: A template for the message, as `str.format` takes it: `"channel {!r} has {} bytes"`.
        named: What fills it. The amount is appended.

    Raises:
        LimitExceeded: The amount is more than the limit.
    """
    most: int = FIXED.get(limit) or getattr(limits, limit)
    if amount > most:
        remedy = "Store less in one call, or keep a part of it elsewhere (for example in a file) and store a reference"
        if limit not in FIXED:
            remedy = (
                "Store less (for example a reference to a file), or raise the limit with "
                f"limits=Limits({limit}={amount}), also on every saver that reads the thread"
            )
        raise LimitExceeded(
            f"{sentence(what, *named, f'{amount:,}')}; the limit is {most:,}. Nothing was written. {remedy}"
        )


def check_name(limits: Limits, name: str, what: str) -> None:
    """Check a name; `what` says what it names, for the message.

    Raises:
        LimitExceeded: It is longer than `name_bytes`.
    """
    if 4 * len(name) > limits.name_bytes:
        check_names(limits, [name.encode("utf-8", "surrogatepass")], what)


def check_names(limits: Limits, names: Iterable[bytes], what: str) -> None:
    """Check names in UTF-8.

    Raises:
        LimitExceeded: One is longer than `name_bytes`.
    """
    longest = max(names, key=len, default=b"")
    if len(longest) > limits.name_bytes:
        begins = longest[:40].decode("utf-8", "replace")
        check(limits, "name_bytes", len(longest), "the name of {} that begins with {!r} has {} bytes", what, begins)


class Allowance:
    """The memory that the bytes of one checkpoint, or the chunks of one reply, may still take when they are decoded."""

    __slots__ = ("_left", "_limits", "_place")

    def __init__(self, limits: Limits, place: object) -> None:
        """Begin with all that the limits allow; `place` says whose bytes they are, for the message."""
        self._limits, self._place, self._left = limits, place, _VALUES_PER_REPLY * limits.value_bytes

    def unfold(self, limit: str, amount: int) -> None:
        """Count a value's bytes, chunks or levels of chunks, before the value is made.

        Raises:
            LimitExceeded: It is more than the limit allows, or all values together are.
        """
        most: int = FIXED.get(limit) or getattr(self._limits, limit)
        if limit == "value_bytes":
            self._left -= amount
        if amount > most or self._left < 0:
            remedy = "The thread is damaged: give it up with delete_thread()"
            if limit not in FIXED:
                remedy = (
                    f"If it was written with larger limits, read it with the same limits: limits=Limits({limit}=...). "
                    "If not, the thread is damaged: give it up with delete_thread()"
                )
            raise LimitExceeded(
                f"a value of {self._place} is too large to be read: {limit} {amount:,}, and the limit is {most:,} "
                f"({_VALUES_PER_REPLY} times that for all values together). Nothing was changed. {remedy}"
            )
