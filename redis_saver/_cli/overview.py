"""Facts for `doctor` and `stats`: the counts of all threads, what cold lacks, and the servers' own numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from redis_saver._checkpoint import threads
from redis_saver._checkpoint.threads import ThreadInfo
from redis_saver._common.names import DATA, DIRTY, Keyspace
from redis_saver._engine.requests import Batch, Call, Operation, Page, Scan
from redis_saver._engine.runner import Pump
from redis_saver._inspector.values import state_of
from redis_saver._storage.context import Context
from redis_saver._tiered import scripts
from redis_saver._tiered.thread_info import Damaged, threads_of

MAX_NAMED = 20
"""Maximum number of threads that are named."""
_SOON = timedelta(hours=1)
_PREFIX = re.compile(r"([^{}]+):\{[^{}]*\}:", re.DOTALL)


@dataclass
class Overview:
    """Counts of all threads of a prefix."""

    threads: int = 0
    active: int = 0
    interrupted: int = 0
    failed: int = 0
    damaged: int = 0
    checkpoints: int = 0
    bytes: int = 0
    largest_thread: str | None = None
    largest_bytes: int = 0
    pinned: int = 0
    never_expire: int = 0
    """Threads that have no deadline and are not pinned."""
    expire_within_1h: int = 0
    dirty_threads: int = 0
    """Threads of which cold lacks something."""
    backlog: int = 0
    """Records that cold lacks."""
    oldest_seconds: float = 0.0
    """Age of the oldest of these records."""
    set_aside: int = 0
    """Records that cold refused."""
    intents: int = 0
    """Threads that are being written to cold, or whose writer is gone."""
    owned: int = field(default=0, metadata={"named": True})
    """Threads whose owner's lease lasts."""
    late: list[str] = field(default_factory=list, metadata={"named": True})
    """Names of the first threads whose owner's lease has expired, and that no one else has taken."""
    errors: dict[str, str] = field(default_factory=dict, metadata={"named": True})
    """Errors of the first damaged threads, by name."""

    def numbers(self) -> dict[str, Any]:
        """Return the counts for `stats`."""
        return {each.name: getattr(self, each.name) for each in fields(self) if not each.metadata}

    def add(self, info: ThreadInfo | Damaged) -> None:
        """Count a thread."""
        self.threads += 1
        if isinstance(info, Damaged):
            self.damaged += 1
            if len(self.errors) < MAX_NAMED:
                self.errors[info.thread_id] = str(info.error)
            return
        state = state_of(info)
        setattr(self, state, getattr(self, state) + 1)
        self.checkpoints += info.checkpoints
        self.bytes += info.bytes
        self.pinned += info.pinned
        self.never_expire += info.ttl is None and not info.pinned
        self.expire_within_1h += info.ttl is not None and info.ttl <= _SOON
        if info.owner is not None and info.owner.lease_left:
            self.owned += 1
        elif info.owner is not None and len(self.late) < MAX_NAMED:
            self.late.append(info.thread_id)
        if self.largest_thread is None or info.bytes > self.largest_bytes:
            self.largest_thread, self.largest_bytes = info.thread_id, info.bytes


def overview(context: Context) -> Operation[Overview]:
    """Count all threads, damaged ones too, with SCAN, a page at a time. No values are read."""
    counts, pump = Overview(), Pump(threads_of(context, threads.ANY))
    for step in pump:
        if isinstance(step, Page):
            for info in step.items:
                counts.add(info)
            continue
        with pump:
            pump.reply = yield step
    keyspace = context.keyspace
    position: Any = None
    while True:
        position, keys = yield Scan(keyspace.dirty_pattern, position)
        names = [name for key in keys if (name := keyspace.thread_of(key, DIRTY)) is not None]
        tiers = [keyspace.tier_keys(name) for name in names]
        calls = [Call(scripts.BACKLOG_STATS, (each.dirty, each.flush), ()) for each in tiers]
        for records, age, aside in (yield Batch(calls)) if calls else ():
            counts.dirty_threads += records > 0
            counts.backlog += records
            counts.oldest_seconds = max(counts.oldest_seconds, age / 1000)
            counts.set_aside += aside
        if position is None:
            break
    while True:
        position, keys = yield Scan(keyspace.intents_pattern, position)
        counts.intents += len(keys)
        if position is None:
            return counts


def nested_prefixes(context: Context) -> Operation[list[str]]:
    """Find prefixes with threads that begin with this one and a colon, or that this one begins with.

    An ACL pattern such as `~a:*` matches the keys of prefix `a:b`, too.
    """
    prefix, nested = context.keyspace.prefix, set[str]()
    parents = [prefix[:end] for end, letter in enumerate(prefix) if letter == ":" and end]
    own = context.keyspace.pattern.removesuffix(b"{*}:*")
    patterns = [Keyspace(parent).pattern[:-1] + DATA for parent in parents]
    for pattern in (*patterns, own + b"*:{*}:" + DATA):
        position = None
        while len(nested) < MAX_NAMED:
            position, keys = yield Scan(pattern, position)
            matches = (_PREFIX.match(key.decode("utf-8", "replace")) for key in keys)
            nested.update(match[1] for match in matches if match)
            if position is None:
                break
    return sorted(nested)


class Answers:
    """Answers of the servers behind a client about themselves."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.refused: dict[str, None] = {}
        """Rights, as an ACL names them, that the user lacks or the server does not have."""

    def ask(self, *command: Any) -> dict[str, Any]:
        """Return the reply of each server by its name. There are none if the user may not ask."""
        try:
            if not hasattr(self._client, "get_primaries"):
                return {"": self._client.execute_command(*command)}
            nodes = self._client.get_primaries()
            return {node.name: self._client.execute_command(*command, target_nodes=node) for node in nodes}
        except (NoPermissionError, ResponseError) as error:
            if not isinstance(error, NoPermissionError) and "unknown" not in str(error).lower():
                raise
            self.refused["|".join(map(str.lower, command[: 1 if command[0] == "INFO" else 2]))] = None
            return {}

    def info(self, section: str) -> dict[str, Mapping[str, Any]]:
        """Return a section of INFO by server."""
        return {name: _as_info(reply) for name, reply in self.ask("INFO", section).items()}


def _as_info(reply: Any) -> Mapping[str, Any]:
    """Return INFO as a dict, whether the client has parsed it or not."""
    if isinstance(reply, Mapping):
        return reply
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    return dict(row.split(":", 1) for row in text.splitlines() if ":" in row)
