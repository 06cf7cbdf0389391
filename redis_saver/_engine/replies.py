"""Codes that scripts answer in place of a result, by their names there (`tests/project/test_scripts.py` holds the two against each other)."""

from __future__ import annotations

from enum import IntEnum


class GetReply(IntEnum):
    """`lua/checkpoint/get.lua`."""

    INTENTS = 1
    """The thread is being written where this server does not see it."""
    NOWHERE = 2
    """Cold has no such checkpoint either."""


class HistoryReply(IntEnum):
    """`lua/checkpoint/history.lua`."""

    INTENTS = 1
    """The thread is being written where this server does not see it."""
    PARTIAL = 2
    """Not all of the ancestors it takes are here."""


class PutReply(IntEnum):
    """`lua/tiered/put_behind.lua`, `lua/tiered/put_writes_behind.lua`."""

    REFUSED = -1
    """Cold has to be written first: nothing was done."""


class IntentReply(IntEnum):
    """`lua/tiered/begin_intent.lua`: what cold has of the thread."""

    ABSENT = 0
    """Who knows: hot does not have it."""
    COMPLETE = 1
    """All values that hot has."""
    PARTIAL = 2
    """Not what was coalesced; or another changes all of the thread."""
    BEHIND = 3
    """Not what was written last."""
    UNNOTED = 4
    """Nothing, as the thread is from before there were tiers."""
    WAIT = 5
    """Not what was coalesced and is to get, which has to wait for others who are writing it."""


class RepairReply(IntEnum):
    """`lua/tiered/repair.lua`."""

    ASK_COLD = 0
    """Cold is to be asked whether it has the thread."""
    GIVEN_UP = 1
    """Hot has nothing left of it."""
    DIRTY = 2
    """It can be opened: others repaired it, or the damage lies deeper."""


class FillLeaseReply(IntEnum):
    """`lua/tiered/fill_lease.lua`."""

    WRITING = 0
    """The thread is being written to cold."""
    GRANTED = 1
    """The fill lease is given."""
    HERE = 2
    """Hot can answer by now."""
    BEHIND = 3
    """Cold has to get what hot has of the namespace first."""


class ClaimReply(IntEnum):
    """`lua/tiered/claim.lua`."""

    BUSY = 1
    """Another flusher is at work, or a writer between cold and hot."""


class AckReply(IntEnum):
    """`lua/tiered/ack.lua`."""

    FENCED = -1
    """Another flusher had taken over."""
