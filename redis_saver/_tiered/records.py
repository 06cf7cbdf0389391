"""Records: notes in hot of what cold does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from redis_saver._common import names
from redis_saver.errors import DecodeError, decoding


class Record(NamedTuple):
    """A note of one thing that cold does not have."""

    member: bytes
    """Its member of the index, with an `r` in place of the `c` for a checkpoint that was rolled back; `d`: the thread was deleted."""
    score: bytes
    """When it was written."""
    tries: int
    """How often cold refused it."""
    writes: bytes | None
    """The pending writes, if it is about writes and they still exist."""
    chunks: Sequence[bytes] = ()
    """What these are made of: a flat list of fields and bytes."""

    def problem(self) -> DecodeError | None:
        """What is wrong with the note, which another program may have written; None if nothing is."""
        try:
            with decoding("the note {!r} of what cold does not have", self.member):
                if self.kind not in (b"c", b"w", b"r", b"d"):
                    raise ValueError("it names neither a checkpoint, nor pending writes, nor a removal, nor a deletion")
                if self.kind != b"d":
                    names.component(self.place[1])
        except DecodeError as error:
            return error
        return None

    @property
    def kind(self) -> bytes:
        """`c` a checkpoint, `w` pending writes, `r` a checkpoint to remove, `d` a deletion of the thread."""
        return self.member[:1]

    @property
    def place(self) -> tuple[str, str]:
        """The namespace and the id of the checkpoint.

        Raises:
            DecodeError: It names none.
        """
        with decoding("the name {!r} of what cold does not have", self.member):
            ns, checkpoint_id = names.components(self.member[1:])[:2]
            return ns, checkpoint_id
