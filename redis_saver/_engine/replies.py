"""Codes that scripts answer in place of a result.

They have the same names in the scripts (`tests/project/test_scripts.py` compares the two).
"""

from __future__ import annotations

from enum import IntEnum


class GetReply(IntEnum):
    """`lua/checkpoint/get.lua`."""

    INTENTS = 1
    """The thread has write intents: cold may be newer than hot."""
    NOWHERE = 2
    """Cold has no such checkpoint either."""


class HistoryReply(IntEnum):
    """`lua/checkpoint/history.lua`."""

    INTENTS = 1
    """The thread has write intents: cold may be newer than hot."""
    PARTIAL = 2
    """Hot lacks some of the ancestors that the history needs."""


class PutReply(IntEnum):
    """`lua/tiered/put_behind.lua`, `lua/tiered/put_writes_behind.lua`, `lua/tiered/put_through.lua`."""

    REFUSED = -1
    """Hot did not store it, because cold has to have it first, or because hot may lack something of it."""


class IntentReply(IntEnum):
    """`lua/tiered/begin_intent.lua`: what cold has of the thread."""

    ABSENT = 0
    """Not known, because hot does not have the thread."""
    COMPLETE = 1
    """Cold has all that hot has."""
    PARTIAL = 2
    """Cold lacks what was coalesced; or another writer has an intent on the whole thread."""
    BEHIND = 3
    """Cold lacks what was written last."""
    UNNOTED = 4
    """Cold has nothing, and no record says so: the thread is from before there were tiers."""
    WAIT = 5
    """Cold lacks what was coalesced and has to get it, but must wait for others who write the thread."""


class RepairReply(IntEnum):
    """`lua/tiered/repair.lua`."""

    ASK_COLD = 0
    """Ask cold whether it has the thread."""
    GIVEN_UP = 1
    """Hot has nothing left of it."""
    DIRTY = 2
    """Nothing was done: the thread can be opened, as others repaired it, or the damage lies deeper."""


class FillLeaseReply(IntEnum):
    """`lua/tiered/fill_lease.lua`."""

    WRITING = 0
    """The thread is being written to cold."""
    GRANTED = 1
    """The fill lease is given."""
    HERE = 2
    """No lease is needed: hot can answer by now."""
    BEHIND = 3
    """No lease: cold has to get first what only hot has of the namespace."""


class FillReply(IntEnum):
    """`lua/tiered/fill.lua`."""

    ENDED = 0
    """The fill lease has ended. Nothing was done."""
    FILLED = 1
    """Hot has the newest checkpoint of the namespace, or knows that there is none."""
    ABSENT = 2
    """Hot does not have the thread, so nothing can be noted."""


class ClaimReply(IntEnum):
    """`lua/tiered/claim.lua`."""

    BUSY = 1
    """Another flusher holds the claim, or a writer has an intent."""


class AckReply(IntEnum):
    """`lua/tiered/ack.lua`."""

    FENCED = -1
    """Another flusher has taken over the claim. Nothing was struck off."""


class RollBackReply(IntEnum):
    """`lua/tiered/roll_back.lua`. Each means that nothing was done."""

    CHANGED = 0
    """The thread changed since the caller looked at it."""
    UNKNOWN = 1
    """Hot does not have all of the thread, so cold has to say what it has of the run."""
    WRITING = 2
    """Somebody has a write intent on the thread."""


class OwnershipReply(IntEnum):
    """`lua/checkpoint/take_ownership.lua`."""

    OWNED = 0
    """Somebody else has the thread, or comes first."""
    TAKEN = 1
    """The caller has it."""


class StoreReply(IntEnum):
    """The scripts of the store, `lua/store/`; each answers some of these."""

    MORE = 1
    """More items have expired than one call removes. Nothing else was done: call again."""
    NOT_ANNOUNCED = 2
    """Nothing was done: the directory has to know the partition first, or to keep it for longer."""
    CONFLICT = 3
    """Nothing was done: an item has another version than the caller expects."""
    EMPTIED = 4
    """The partition has no item left."""
    SAME = 5
    """The page is what the caller knows."""
    DOCUMENTED = 7
    """Nothing was done: the items have documents, whose keys have to be named, too."""
