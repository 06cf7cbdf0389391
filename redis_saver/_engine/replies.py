"""Codes that scripts return instead of a result.

The scripts use the same names (`tests/project/test_scripts.py` compares them).
"""

from __future__ import annotations

from enum import IntEnum


class GetReply(IntEnum):
    """`lua/checkpoint/get.lua`."""

    INTENTS = 1
    """The thread has write intents: cold may be newer than hot."""
    NOWHERE = 2
    """Cold does not have the checkpoint either."""


class HistoryReply(IntEnum):
    """`lua/checkpoint/history.lua`."""

    INTENTS = 1
    """The thread has write intents: cold may be newer than hot."""
    PARTIAL = 2
    """Hot lacks some of the ancestors that the history needs."""


class PutReply(IntEnum):
    """`lua/tiered/put_behind.lua`, `lua/tiered/put_writes_behind.lua`, `lua/tiered/put_through.lua`."""

    REFUSED = -1
    """Hot stored nothing, because cold must store it first, or because hot may lack a part of it."""


class IntentReply(IntEnum):
    """`lua/tiered/begin_intent.lua`: the state of the thread in cold."""

    ABSENT = 0
    """Unknown, because hot does not have the thread."""
    COMPLETE = 1
    """Cold has everything that hot has."""
    PARTIAL = 2
    """Cold lacks coalesced checkpoints, or another writer has an intent on the whole thread."""
    BEHIND = 3
    """Cold lacks the last writes."""
    UNNOTED = 4
    """Cold has nothing, and no record says so: the thread is older than the tiers."""
    WAIT = 5
    """Coalesced checkpoints must be flushed first, but other writers of the thread are not done."""


class RepairReply(IntEnum):
    """`lua/tiered/repair.lua`."""

    ASK_COLD = 0
    """Cold has to say if it has the thread."""
    GIVEN_UP = 1
    """Hot has nothing left of the thread."""
    DIRTY = 2
    """Nothing was done: the thread is readable, because another process repaired it, or the damage lies deeper."""


class FillLeaseReply(IntEnum):
    """`lua/tiered/fill_lease.lua`."""

    WRITING = 0
    """The thread is being written to cold."""
    GRANTED = 1
    """The caller has the fill lease."""
    HERE = 2
    """No lease is needed, because hot can answer now."""
    BEHIND = 3
    """No lease, because cold still lacks a part of the namespace that hot has."""


class FillReply(IntEnum):
    """`lua/tiered/fill.lua`."""

    ENDED = 0
    """The fill lease has ended. Nothing was done."""
    FILLED = 1
    """Hot has the newest checkpoint of the namespace, or knows that there is none."""
    ABSENT = 2
    """Hot does not have the thread, so nothing can be recorded."""


class ClaimReply(IntEnum):
    """`lua/tiered/claim.lua`."""

    BUSY = 1
    """Another flusher holds the claim, or a writer has an intent."""


class AckReply(IntEnum):
    """`lua/tiered/ack.lua`."""

    FENCED = -1
    """Another flusher has taken the claim. Nothing was acknowledged."""


class RollBackReply(IntEnum):
    """`lua/tiered/roll_back.lua`: why nothing was done."""

    CHANGED = 0
    """The thread has changed since the caller read it."""
    UNKNOWN = 1
    """Hot does not have the whole thread, so the caller must ask cold for the run's checkpoints."""
    WRITING = 2
    """A writer has a write intent on the thread."""


class OwnershipReply(IntEnum):
    """`lua/checkpoint/take_ownership.lua`."""

    OWNED = 0
    """Another owner has the thread, or an earlier waiter comes first."""
    TAKEN = 1
    """The caller owns the thread."""


class StoreReply(IntEnum):
    """Scripts of the store, `lua/store/`. Each returns some of these."""

    MORE = 1
    """More items have expired than one call removes. Nothing else was done: call again."""
    NOT_ANNOUNCED = 2
    """Nothing was done: the directory must list the partition first, or give its entry a later deadline."""
    CONFLICT = 3
    """Nothing was done: an item has another version than the caller expects."""
    EMPTIED = 4
    """The partition has no item left."""
    DOCUMENTED = 7
    """Nothing was done: the items have documents, and the call must name their keys."""
    OTHER_KEY = 8
    """Nothing was done: the partition has another data key, or only one of it and the store is encrypted."""
