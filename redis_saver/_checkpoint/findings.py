"""What `check` finds wrong with a thread, and how it names what it is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeAlias

from redis_saver._common import names
from redis_saver._storage import chunks as chunked
from redis_saver.errors import LimitExceeded, ThreadDamaged, decoding

Severity: TypeAlias = Literal["error", "warning", "info"]

MAX_FINDINGS = 100
"""The most findings of a thread that are listed. Others are only counted."""
RESTORE = "restore the thread from a backup, or give it up with delete_thread()"


class Finding(NamedTuple):
    """Something that is wrong with a thread."""

    severity: Severity
    """`error`: something is lost, cannot be read, or is answered wrongly. `warning`: something is left over or counted wrong, and all can
    be read. `info`: it repairs itself."""
    where: str
    """What it is about; names are written as `repr` does."""
    what: str
    """What is wrong with it."""
    remedy: str
    """What to do."""


class Findings(list[Finding]):
    """Findings, of which the first `MAX_FINDINGS` are kept."""

    more: int = 0
    """How many there are beside those."""

    def add(self, severity: Severity, where: str, what: str, remedy: str) -> None:
        """Add a finding."""
        if len(self) < MAX_FINDINGS:
            self.append(Finding(severity, where, what, remedy))
        else:
            self.more += 1

    @contextmanager
    def reading(self, where: str, remedy: str = RESTORE) -> Iterator[None]:
        """A context in which an error becomes a finding: the bytes at `where` cannot be read."""
        try:
            with decoding("{}", where):
                yield
        except (ThreadDamaged, LimitExceeded) as error:
            cause = error.__cause__
            why = str(error) if cause is None else f"{type(cause).__name__}: {cause}"
            self.add("error", where, f"it cannot be read: {why}", remedy)


def describe(name: bytes) -> str:
    """A field of the data or a member of the index, in words."""
    try:
        return _described(name[:1], name[1:])
    except (ValueError, IndexError):
        return f"field {name!r}"


def _described(kind: bytes, rest: bytes) -> str:
    if kind in (b"c", b"i"):
        ns, checkpoint_id = names.components(rest)[:: 1 if kind == b"c" else -1]
        return f"checkpoint {checkpoint_id!r}{_of(ns)}"
    if kind == b"w":
        head, _, index = rest.rpartition(b"\0")
        ns, checkpoint_id, task = names.components(head + b"\0")
        special = f" to the special channel {int(index)}" if index else ""
        return f"writes of task {task!r}{special} on checkpoint {checkpoint_id!r}{_of(ns)}"
    if kind == b"b":
        (ns, channel), version = names.components(rest)[:2], rest.split(b"\0", 2)[2]
        return f"value of channel {channel!r} in version {names.version_from(version)!r}{_of(ns)}"
    if kind == b"r":
        return f"run {names.decode(rest)!r}"
    if kind in chunked.KINDS and len(rest) == chunked.DIGEST:
        return f"chunk {kind.decode()}:{rest.hex()}"
    raise ValueError


def _of(ns: str) -> str:
    return f" of namespace {ns!r}" if ns else ""
