"""What this process knows of the histories of `DeltaChannel`s: below which checkpoint it knows them, and what they were.

A history is asked for once a run, and is all that was before and a little more. So the next request names the checkpoint, and the script
(`lua/checkpoint/history.lua`) answers what lies above it, if what is below it depends on nothing that has changed. What is remembered are
stored bytes: each answer is decoded anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from redis_saver._storage.chunk_cache import Version
from redis_saver._storage.codec import Write

_OVERHEAD = 600
"""Bytes that Python takes for a write beside its data."""


class History(NamedTuple):
    """A channel's nearest stored value below a checkpoint, and the writes since."""

    seed: bytes | None
    """What the value's field holds; None where no ancestor has one."""
    version: Version | None
    """The same, where it is in chunks."""
    writes: tuple[Write, ...]
    """Oldest first."""


class KnownPoint(NamedTuple):
    """A checkpoint below which histories are known, and what they depend on, as the script answered it."""

    checkpoint_id: bytes
    """Escaped, and so is the next but one."""
    rewritten: bytes
    lowest: bytes
    """The lowest id that matters."""
    checkpoints: int
    """How many checkpoints have ids from the lowest one on up to this."""
    tasks: int
    """Of how many tasks there are writes on those."""
    histories: Mapping[str, History]
    """By channel."""
    size: int
    """The memory it takes, about, but for versions (`size_of`)."""


def size_of(histories: Mapping[str, History]) -> int:
    """The memory that histories take, about, but for versions. It takes as long as they are, so it is asked once."""
    return _OVERHEAD + sum(
        len(history.seed or b"") + sum([len(write.data) + _OVERHEAD for write in history.writes])
        for history in histories.values()
    )
