"""How large what is stored may be, so that no call holds the server, or fills this process's memory, without end.

Writing more than a limit raises `LimitExceeded` before anything is sent. Reading checks what can be more than the bytes that came: what
compressed bytes, or chunks that are named again and again, become. All else takes time and memory as the bytes that were received.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from redis_saver._common.display import sentence, shown
from redis_saver.errors import LimitExceeded

_VALUES_PER_REPLY = 4
"""So many values of the largest size may be unfolded from one checkpoint, or be in the chunks of one reply."""


@dataclass(frozen=True)
class Limits:
    """The limits of a saver. `docs/limits.md` tells how long calls of these sizes hold the server.

    Raises:
        TypeError, ValueError: A limit is no positive int.
    """

    name_bytes: int = 16_384
    """Bytes of a name in UTF-8, of a thread, namespace, checkpoint, parent, task, task path, run, node; of a channel with its version."""
    value_bytes: int = 64 * 2**20
    """Bytes of a value, or of a pending write, as the serializer gives it, before compression, and when it is read after that."""
    channels: int = 10_000
    """Channels of a checkpoint."""
    writes: int = 10_000
    """Pending writes of one `put_writes`."""
    chunks: int = 100_000
    """Chunks of one value, with the lists of chunks above them. A chunk is about half a kilobyte, or one long element."""
    depth: int = 32
    """How many levels the lists of chunks of one value have. Those of 100,000 chunks have 6 or so."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        for each in fields(self):
            given = getattr(self, each.name)
            if isinstance(given, bool) or not isinstance(given, int):
                raise TypeError(f"Limits({each.name}={shown(given)}): an int")
            if given < 1:
                raise ValueError(f"Limits({each.name}={shown(given)}): 1 at the least")


def check(limits: Limits, setting: str, amount: int, what: str, *named: object) -> None:
    """Check what is about to be written.

    Args:
        limits: The limits of the saver.
        setting: A field of theirs.
        amount: How much there is.
        what: A sentence for the message, as `str.format` takes it: `"channel {!r} has {} bytes"`.
        named: What stands in it before the amount, which is its last.

    Raises:
        LimitExceeded: It is more than the setting.
    """
    if amount > (most := getattr(limits, setting)):
        raise LimitExceeded(
            f"{sentence(what, *named, f'{amount:,}')}; the most is {most:,}. Nothing was written. Store less (a reference to a file, say), or "
            f"raise the limit: limits=Limits({setting}={amount}) on every saver that reads it, too"
        )


def check_name(limits: Limits, name: str, what: str) -> None:
    """Check a name; `what` says of what it is.

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
    """What stored bytes may still become in memory: those of one checkpoint, or the chunks in one reply."""

    __slots__ = ("_left", "_limits", "_place")

    def __init__(self, limits: Limits, place: object) -> None:
        """Begin with what the limits allow; `place` says whose bytes they are, for the message."""
        self._limits, self._place, self._left = limits, place, _VALUES_PER_REPLY * limits.value_bytes

    def unfold(self, setting: str, amount: int) -> None:
        """Note that a value has so many bytes, chunks or levels of chunks, before it is made.

        Raises:
            LimitExceeded: That is more than the setting, or all values are together.
        """
        most = getattr(self._limits, setting)
        if setting == "value_bytes":
            self._left -= amount
        if amount > most or self._left < 0:
            raise LimitExceeded(
                f"a value of {self._place} unfolds to {amount:,} ({setting}); the most is {most:,}, and {_VALUES_PER_REPLY} times that for all "
                "its values. It is left as it is. If it was written with larger limits, read it with them: "
                f"limits=Limits({setting}=...); if not, the thread is damaged: give it up with delete_thread()"
            )
