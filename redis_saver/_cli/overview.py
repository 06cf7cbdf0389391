"""What `doctor` and `stats` ask of a server: its own numbers, all threads, and what cold lacks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from redis_saver._checkpoint import threads
from redis_saver._checkpoint.threads import ThreadInfo
from redis_saver._common.names import DATA, DIRTY, Keyspace
from redis_saver._engine import scripts
from redis_saver._engine.requests import Batch, Call, Operation, Page, Scan
from redis_saver._engine.runner import Pump
from redis_saver._storage.context import Context
from redis_saver._tiered.all_threads import Damaged, threads_of

_SOON = timedelta(hours=1)
MAX_NAMED = 20
"""The most damaged threads that are named."""

_PREFIX = re.compile(r"([^{}]+):\{[^{}]*\}:", re.DOTALL)
OTHER_PREFIX = "see whether --prefix, and the database in --redis, are those of the saver"
"""What helps where there is no thread at all."""


def state_of(info: Any) -> str:
    """A thread's state, in a word."""
    return "failed" if info.failed else "interrupted" if info.interrupted else "active"


_TOLD = ("thread_id", "checkpoint_id", "updated_at", "checkpoints", "bytes", "ttl", "pinned", "interrupted", "failed")


def about(info: Any) -> dict[str, Any]:
    """A thread, for JSON; one of two tiers has two fields more."""
    more = {name: getattr(info, name) for name in ("tier", "lacking") if hasattr(info, name)}
    return {**{name: getattr(info, name) for name in _TOLD}, "state": state_of(info), **more}


@dataclass
class Overview:
    """All threads of a prefix, counted."""

    threads: int = 0
    states: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    checkpoints: int = 0
    pinned: int = 0
    lasting: int = 0
    """Those that never expire, and are not pinned."""
    soon: int = 0
    """Those that expire within an hour."""
    owned: int = 0
    """Those that somebody owns, by a lease that lasts."""
    late: list[str] = field(default_factory=list)
    """Those whose owner's lease has run out, without that anybody gave them back or took them: the first ones."""
    largest: ThreadInfo | None = None
    damaged: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    """What is wrong with damaged threads, of the first ones."""
    dirty_threads: int = 0
    records: int = 0
    """Records that cold lacks."""
    oldest_ms: int = 0
    """The age of the oldest of those."""
    set_aside: int = 0
    """Those that cold refused."""
    intents: int = 0
    """Threads that are being written to cold, or whose writer is gone."""

    def count(self, one: ThreadInfo) -> None:
        """Count a thread."""
        self.threads += 1
        self.states[state_of(one)] += 1
        self.bytes += one.bytes
        self.checkpoints += one.checkpoints
        self.pinned += one.pinned
        self.lasting += one.ttl is None and not one.pinned
        self.soon += one.ttl is not None and one.ttl <= _SOON
        if one.owner is not None and one.owner.lease_left:
            self.owned += 1
        elif one.owner is not None and len(self.late) < MAX_NAMED:
            self.late.append(one.thread_id)
        if self.largest is None or one.bytes > self.largest.bytes:
            self.largest = one

    def note(self, one: Damaged) -> None:
        """Count a thread that cannot be read."""
        self.threads += 1
        self.damaged += 1
        if len(self.errors) < MAX_NAMED:
            self.errors[one.thread_id] = str(one.error)


def overview(context: Context) -> Operation[Overview]:
    """Count all threads, damaged ones too; with SCAN, a page at a time. No values are read."""
    found, pump = Overview(), Pump(threads_of(context, threads.ANY))
    for step in pump:
        if not isinstance(step, Page):
            with pump:
                pump.reply = yield step
            continue
        for one in step.items:
            if isinstance(one, Damaged):
                found.note(one)
            else:
                found.count(one)
    yield from _backlog(context, found)
    return found


def nested_prefixes(context: Context) -> Operation[list[str]]:
    """Find prefixes with threads that begin with this one and a colon, or that this one begins with.

    An ACL pattern such as `~a:*` matches the keys of prefix `a:b`, too.
    """
    prefix, found = context.keyspace.prefix, set[str]()
    parents = [prefix[:end] for end, letter in enumerate(prefix) if letter == ":" and end]
    own = context.keyspace.pattern.removesuffix(b"{*}:*")
    patterns = [Keyspace(parent).pattern[:-1] + DATA for parent in parents]
    for pattern in (*patterns, own + b"*:{*}:" + DATA):
        position = None
        while len(found) < MAX_NAMED:
            position, keys = yield Scan(pattern, position)
            names = (_PREFIX.match(key.decode("utf-8", "replace")) for key in keys)
            found.update(name[1] for name in names if name)
            if position is None:
                break
    return sorted(found)


def _backlog(context: Context, found: Overview) -> Operation[None]:
    """Count what cold lacks, and the threads with write intents."""
    keyspace, position = context.keyspace, None
    while True:
        position, keys = yield Scan(keyspace.dirty_pattern, position)
        names = [name for key in keys if (name := keyspace.thread_of(key, DIRTY)) is not None]
        of_threads = [keyspace.tier_keys(name) for name in names]
        calls = [Call(scripts.BACKLOG_STATS, (one.dirty, one.flush), ()) for one in of_threads]
        for records, age, aside in (yield Batch(calls)) if calls else ():
            found.dirty_threads += records > 0
            found.records += records
            found.oldest_ms = max(found.oldest_ms, age)
            found.set_aside += aside
        if position is None:
            break
    while True:
        position, keys = yield Scan(keyspace.intents_pattern, position)
        found.intents += len(keys)
        if position is None:
            return


class Answers:
    """What the servers behind a client say of themselves. What may not be asked is noted."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._is_cluster = hasattr(client, "get_primaries")
        self.refused: dict[str, None] = {}
        """The commands that this user may not use, or that the server does not have, each once."""

    def ask(self, *command: Any) -> dict[str, Any]:
        """The reply of each server, by its name; nothing where it may not be asked."""
        try:
            if not self._is_cluster:
                return {"": self._client.execute_command(*command)}
            nodes = self._client.get_primaries()
            return {node.name: self._client.execute_command(*command, target_nodes=node) for node in nodes}
        except (NoPermissionError, ResponseError) as error:
            known = isinstance(error, NoPermissionError) or "unknown" in str(error).lower()
            if not known:
                raise
            self.refused.update({right_of(command): None})
            return {}

    def info(self, section: str) -> dict[str, Mapping[str, Any]]:
        """A section of INFO, by server."""
        return {name: _as_info(reply) for name, reply in self.ask("INFO", section).items()}


def right_of(command: tuple[Any, ...]) -> str:
    """The right that a command takes, as an ACL names it."""
    return "|".join(map(str.lower, command[: 1 if command[0] == "INFO" else 2]))


def _as_info(reply: Any) -> Mapping[str, Any]:
    """INFO as a dict, whether the client took it apart or not."""
    if isinstance(reply, Mapping):
        return reply
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    return dict(one.split(":", 1) for one in text.splitlines() if ":" in one)
