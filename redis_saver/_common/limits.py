"""Limits of stored data, so that no call blocks the server or fills this process's memory without bound.

A write beyond a limit raises `LimitExceeded` before anything is sent. A read checks only data that can grow beyond the
received bytes: compressed bytes, and chunks that are referenced more than once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from redis_saver._common import config
from redis_saver._common.display import sentence
from redis_saver.errors import LimitExceeded

_VALUES_PER_REPLY = 4
"""Maximum total size of a checkpoint's values, or of a reply's chunks, as a multiple of `value_bytes`."""


@dataclass(frozen=True)
class Limits:
    """Configurable limits of a saver. `docs/limits.md` lists all limits, and how long such calls block the server.

    Raises:
        ValueError: A limit is not a positive int.
    """

    name_bytes: int = 16_384
    """Maximum bytes of a name in UTF-8: thread, namespace, checkpoint, parent, task, task path, run, node, or channel
    with its version."""
    value_bytes: int = 64 * 2**20
    """Maximum bytes of a serialized value or pending write, before compression."""

    def __post_init__(self) -> None:
        """Check the limits."""
        for each in fields(self):
            config.number(f"Limits: {each.name}", getattr(self, each.name), 1, whole=True)


FIXED = {"channels": 10_000, "writes": 10_000, "chunks": 100_000, "depth": 32}
"""Limits that cannot be configured.

They are: channels of a checkpoint, pending writes of one `put_writes`, chunks of a value including its lists of chunks,
and levels of these lists. A chunk is about half a kilobyte, or one long element; 100,000 chunks have about 6 levels.
"""


def check(limits: Limits, limit: str, amount: int, what: str, *named: object) -> None:
    """Check data before it is written.

    Args:
        limits: Limits of the saver.
        limit: Name of a limit in `Limits` or `FIXED`.
        amount: Number to compare with the limit.
        what: Template for the message, as `str.format` takes it: `"channel {!r} has {} bytes"`.
        named: Values that fill the template, followed by the amount.

    Raises:
        LimitExceeded: The amount exceeds the limit.
    """
    most: int = FIXED.get(limit) or getattr(limits, limit)
    if amount > most:
        remedy = "Nothing was written. Store less in one call, or store a reference, for example to a file"
        if limit not in FIXED:
            remedy += f". Or set limits=Limits({limit}={amount}), also on every saver that reads the thread"
        raise LimitExceeded(f"{sentence(what, *named, f'{amount:,}')}; the limit is {most:,}. {remedy}")


def check_name(limits: Limits, name: str, what: str) -> None:
    """Check a name. `what` is its kind, for the message.

    Raises:
        LimitExceeded: The name is longer than `name_bytes`.
    """
    if 4 * len(name) > limits.name_bytes:
        check_names(limits, [name.encode("utf-8", "surrogatepass")], what)


def check_names(limits: Limits, names: Iterable[bytes], what: str) -> None:
    """Check names in UTF-8.

    Raises:
        LimitExceeded: A name is longer than `name_bytes`.
    """
    longest = max(names, key=len, default=b"")
    if len(longest) > limits.name_bytes:
        begins = longest[:40].decode("utf-8", "replace")
        check(limits, "name_bytes", len(longest), "the name of {} that begins with {!r} has {} bytes", what, begins)


class Allowance:
    """Remaining memory for decoding one checkpoint's values, or one reply's chunks."""

    __slots__ = ("_left", "_limits", "owner")

    def __init__(self, limits: Limits, owner: object) -> None:
        """Start with the maximum that the limits allow. `owner` is the checkpoint or thread, for messages."""
        self._limits, self.owner, self._left = limits, owner, _VALUES_PER_REPLY * limits.value_bytes

    def unfold(self, limit: str, amount: int) -> None:
        """Count a value's bytes, chunks or levels of chunks, before the value is decoded.

        Raises:
            LimitExceeded: The value, or all values together, exceed the limit.
        """
        most: int = FIXED.get(limit) or getattr(self._limits, limit)
        if limit == "value_bytes":
            self._left -= amount
        if amount > most or self._left < 0:
            remedy = "The thread is damaged: delete it with delete_thread()"
            if limit not in FIXED:
                remedy += f"; or, if it was written with larger limits, set limits=Limits({limit}=...)"
            raise LimitExceeded(
                f"a value of {self.owner} is too large to read: {limit} {amount:,}, and the limit is {most:,} "
                f"({_VALUES_PER_REPLY} times that for all values together). Nothing was changed. {remedy}"
            )
