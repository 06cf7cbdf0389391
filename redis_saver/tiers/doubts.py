"""Saying in hot that a thread is being written elsewhere, and that it is no more."""

from __future__ import annotations

from typing import NamedTuple
from uuid import uuid4

from redis_saver import names, scripts, threads
from redis_saver.context import default_ttl
from redis_saver.errors import ThreadDamaged
from redis_saver.requests import Call, Command, Operation
from redis_saver.tiers.adopting import adopt
from redis_saver.tiers.model import DOUBTS_KEPT, Cold, Tiered, Tiers, by_choice

ALL, NOWHERE = b"*" * 16, b"?"
"""A record that is all of a thread; a field that there never is."""
_UNKNOWN, _NOT_YET = 0, 1
"""What is in cold of a thread: hot does not have it; hot has it from before there were tiers."""


class Doubt(NamedTuple):
    """What a writer said, and was told."""

    token: str
    has_all: bool
    """Whether cold is known to have all of the thread."""
    is_pathless: bool
    """Whether writes of the checkpoint were brought back without their paths."""
    newest: bytes
    """Of which namespace hot will have what is newest, as `lua/trust.lua` takes it."""


def put_in_doubt(
    tiers: Tiers, thread: str, record: bytes, writes: bytes = b"", *, unseen: bool = False
) -> Tiered[Doubt]:
    """Say in hot that the thread is being written. One that only hot has is brought to cold first, and believed until then.

    Unseen: it is going to be deleted, so what is only in hot, or damaged there, goes first.
    """
    token, keyspace = uuid4().hex, tiers.hot.keyspace
    keys = (*keyspace.keys(thread), keyspace.doubts(thread), keyspace.lease(thread))
    ns, leave = tiers.empty.pop(thread, ("", ""))
    arguments = (token, default_ttl(tiers.hot), DOUBTS_KEPT, writes, leave, record)
    while True:
        try:
            in_cold, is_pathless, nothing_since = yield Call(scripts.DOUBT, keys, arguments)
        except ThreadDamaged as damage:
            if unseen:
                yield from threads.delete_thread(tiers.hot, thread)
            else:
                yield from mend(tiers, thread, damage)
            continue
        if in_cold != _NOT_YET:
            newest = b"@newest" + names.component(ns) if nothing_since else b""
            return Doubt(token, in_cold != _UNKNOWN, bool(is_pathless), newest)
        if unseen:
            yield from threads.delete_thread(tiers.hot, thread)
        else:
            yield from adopt(tiers, thread)


def mend(tiers: Tiers, thread: str, damage: ThreadDamaged) -> Tiered[None]:
    """Give up what hot has left of a thread that cold has; what it does not have is lost, and that is the error it is."""
    data = tiers.hot.keyspace.keys(thread).data_key
    if (yield Command(("EXISTS", data))):
        in_cold = yield Command(("HEXISTS", data, "@home"))
    else:
        in_cold = yield Cold("list", ({"configurable": {"thread_id": thread}},), {"limit": 1})
    if not in_cold:
        raise damage
    yield from threads.delete_thread(tiers.hot, thread)


def trust(tiers: Tiers, thread: str, doubt: Doubt, needed: bytes) -> Operation[None]:
    """End a doubt: hot has what was written, if it has the field `needed`."""
    keyspace = tiers.hot.keyspace
    keys = (*keyspace.keys(thread), keyspace.doubts(thread), keyspace.lease(thread))
    yield Call(scripts.TRUST, keys, (doubt.token, doubt.newest, needed))


def change(tiers: Tiers, thread: str, cold: Cold, *, unseen: bool = False) -> Tiered[None]:
    """Change a thread in cold, and give it up in hot; unseen: whatever it is."""
    doubt = yield from put_in_doubt(tiers, thread, ALL, unseen=unseen)
    yield cold
    yield from by_choice(tiers, given_up(tiers, thread, doubt))


def given_up(tiers: Tiers, thread: str, doubt: Doubt) -> Operation[None]:
    """End a doubt: hot forgets the thread."""
    yield from threads.delete_thread(tiers.hot, thread)
    yield from trust(tiers, thread, doubt, NOWHERE)
