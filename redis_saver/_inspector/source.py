"""Reads of a saver for pages and commands, which block. Only `copy` writes."""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, cast

from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.serde.types import TASKS

from redis_saver._checkpoint import auditing, copying, delta, listing, reading, threads
from redis_saver._checkpoint.auditing import Entry, Size, VersionInfo, WriteHead, WriteInfo
from redis_saver._checkpoint.comparing import CheckpointDiff, compare
from redis_saver._checkpoint.saver import Saver, context_of, driver_of
from redis_saver._checkpoint.threads import ThreadInfo, ThreadQuery
from redis_saver._common import config as configs, names, postgres, times
from redis_saver._common.config import Address
from redis_saver._common.display import kind_of, printable, shown
from redis_saver._engine.requests import Command, Page
from redis_saver._engine.runner import Pump
from redis_saver._inspector.values import is_chat
from redis_saver._storage import codec
from redis_saver._storage.chunk_cache import ChunkCache
from redis_saver._storage.context import Context
from redis_saver._storage.keyed import with_key
from redis_saver._tiered.requests import ColdCall, with_own_errors
from redis_saver._tiered.saver import TwoTiers, driver_over, tiers_of
from redis_saver._tiered.thread_info import in_both, threads_of, tiered_threads
from redis_saver.errors import EndpointError, LimitExceeded, ThreadNotFound

MAX_CHANNELS = 200
"""Maximum number of channels whose history is read at once."""

SECONDS = 10.0
"""Time limit in seconds of a walk through ancestors."""
_COLD_PAGE = 50
"""Page size for checkpoints of the cold saver."""
MAX_NEXT = 50
"""Maximum number of checkpoints among which children are looked for."""
_MAX_LISTED, _MAX_COLD_IDS = 5, 1000
_NEAR_SECONDS, _NEAR_LENGTH = 1.0, 200
"""Seconds to search for similar names, and maximum length of a name. Comparing two names takes quadratic time."""


class Source:
    """Reader of a saver's data. Its reads move no deadline, and copy nothing to hot."""

    def __init__(self, saver: object, largest: int | None = None) -> None:
        """Read from a saver. `largest` limits the bytes of a decompressed value, and of a history that is compared.

        Raises:
            TypeError: The saver is not one of this package.
        """
        if not isinstance(saver, (Saver, TwoTiers)):
            raise TypeError(f"saver is {kind_of(saver)}: pass a RedisSaver, a TieredSaver, or an asyncio form of these")
        self.saver: Any = saver
        self._largest = largest
        self.tiers: TwoTiers[Any] | None = saver if isinstance(saver, TwoTiers) else None
        self.hot: Saver[Any] = saver.hot if isinstance(saver, TwoTiers) else saver

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """Exceptions of the Redis client, and of Postgres if there is a cold tier."""
        return (*driver_of(self.hot).failures, *(() if self.tiers is None else postgres.failures()))

    @property
    def _context(self) -> Context:
        """Settings for Redis. Reads with these settings move no deadline, and do not use the saver's cache."""
        context = context_of(self.hot)
        most = context.limits.value_bytes
        limits = replace(context.limits, value_bytes=min(self._largest or most, most))
        expiry = context.expiry._replace(refresh_on_read=False)
        return context._replace(expiry=expiry, chunk_cache=ChunkCache(0), limits=limits)

    # -- threads

    def threads(self, query: ThreadQuery, is_over: Callable[[], bool] = lambda: False) -> Iterator[Any]:
        """Iterate over the threads that match, each once, and over all damaged ones, as `Damaged`.

        `is_over` is called before each request. True ends the iteration.
        """
        if self.tiers is None:
            return driver_of(self.hot).stream(until(is_over, threads_of(self._context, query)))
        stream = with_own_errors(tiered_threads(tiers_of(self.tiers), query))
        return driver_over(self.tiers).stream(until(is_over, stream))

    def thread(self, name: str) -> Any:
        """Return the information about a thread.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        if self.tiers is None:
            info = self.saver.get_thread(name)
        else:  # cold is asked in any case
            info = driver_over(self.tiers).run(with_own_errors(in_both(tiers_of(self.tiers), name)))
        if info is None:
            raise threads.not_there(name)
        return info

    def near(self, name: str) -> list[str]:
        """Return the names of up to 5 threads in Redis that resemble or contain this name. It takes up to a second."""
        containing = list[str]()
        if not name or len(name) > _NEAR_LENGTH:
            return []

        def names_there() -> Iterator[str]:
            stream = until(Limit(_NEAR_SECONDS), listing.scan_threads(self._context))
            for other in driver_of(self.hot).stream(stream):
                if len(other) <= _NEAR_LENGTH:
                    if name.lower() in other.lower() and len(containing) < _MAX_LISTED:
                        containing.append(other)
                    yield other

        close = difflib.get_close_matches(name, names_there(), _MAX_LISTED)
        return list(dict.fromkeys([*close, *containing]))[:_MAX_LISTED]

    def in_redis(self, name: str) -> ThreadInfo | None:
        """Return the information about a thread in Redis alone. Cost: one round trip."""
        return driver_of(self.hot).run(threads.get_thread(self._context, name))

    # -- checkpoints without their values

    def entries(
        self, thread: str, ns: str | None, before: str | None, limit: int, *, cold: bool = False, longest: int = -1
    ) -> list[Entry]:
        """Return up to `limit` checkpoints of Redis, newest first. With `cold`, those of the cold saver.

        Pending writes of up to `longest` bytes are read, too. The cold saver also reads all values.
        """
        if not cold:
            stream = self._stream(auditing.entries(self._context, thread, ns, before, longest))
            entries = list(islice(stream, limit))
            return entries if longest < 0 or before else [self._with_sends(thread, each, entries) for each in entries]
        config: Any = {"configurable": {"thread_id": thread, **({} if ns is None else {"checkpoint_ns": ns})}}
        options = {"limit": limit, "before": configs.to_config(thread, ns or "", before) if before else None}
        return [entry_of(saved) for saved in self._cold("list", (config,), options)]

    def entries_of_both(
        self, thread: str, ns: str | None, before: str | None, limit: int, *, longest: int = -1
    ) -> list[Entry]:
        """Return up to `limit` checkpoints of both tiers, newest first. If both have one, return that of Redis.

        The cold saver, which sends all values, is read in pages.
        """
        in_redis = self.entries(thread, ns, before, limit, longest=longest)
        if self.tiers is None:
            return in_redis
        found, left = {entry[:2]: entry for entry in in_redis}, limit
        while left > 0 and (page := self.entries(thread, ns, before, min(left, _COLD_PAGE), cold=True)):
            found = {entry[:2]: entry for entry in page} | found
            left, before = left - len(page), page[-1].id
        return sorted(found.values(), key=lambda entry: entry.id, reverse=True)[:limit]

    def _with_sends(self, thread: str, entry: Entry, entries: Sequence[Entry]) -> Entry:
        """Add the nodes of the newest root checkpoint's `Send`s, whose tasks may not have written yet."""
        if entry.writes or TASKS not in entry.present or entry is not next((x for x in entries if not x.ns), None):
            return entry
        return entry._replace(sends=auditing.nodes_of(self.channel(Address(thread, entry.ns, entry.id), TASKS)))

    def measured(self, address: Address, longest: int) -> tuple[Entry, Mapping[str, Size]] | None:
        """Return a checkpoint of Redis without values, their sizes, and what it shares with its parent.

        Pending writes of up to `longest` bytes are read. Cost: one round trip or two.
        """
        return driver_of(self.hot).run(auditing.measured(self._context, address.thread_id, address, longest))

    def costs(
        self, thread: str, is_over: Callable[[], bool], longest: int
    ) -> Iterator[tuple[Entry, Mapping[str, Size]]]:
        """Iterate over the checkpoints of a thread in Redis, newest first, with the sizes of their values.

        Pending writes of up to `longest` bytes are read.
        """
        return self._stream(until(is_over, auditing.costs(self._context, thread, longest)))

    def history(self, thread: str, channel: str, ns: str, limit: int) -> list[VersionInfo]:
        """Return the newest versions of a channel in Redis."""
        stream = self._stream(auditing.channel_history(self._context, thread, channel, ns))
        return list(islice(stream, limit))

    def writes(self, thread: str, ns: str | None, limit: int) -> list[WriteInfo]:
        """Return the newest writes of a thread in Redis."""
        return list(islice(self._stream(auditing.writes(self._context, thread, ns)), limit))

    def _stream(self, stream: Generator[Any, Any, None]) -> Iterator[Any]:
        return driver_of(self.hot).stream(stream)

    # -- checkpoints

    def copy(self, thread: str, target: str, newest: str) -> None:
        """Copy a thread in Redis, up to a checkpoint, over another one."""
        driver_of(self.hot).run(copying.copy_thread(context_of(self.hot), thread, target, newest))

    def large_histories(self, address: Address, channels: Sequence[str]) -> dict[str, int]:
        """Return the `DeltaChannel`s whose histories have more than `largest` bytes as stored, with these sizes.

        Cost: one round trip, and for a thread of more bytes the older checkpoints of the namespace, down to the last
        snapshots, for up to `SECONDS`.
        """
        info = self.in_redis(address.thread_id) if channels and self._largest else None
        if info is None or self._largest is None or info.bytes <= self._largest:
            return {}
        sizes, waiting = dict.fromkeys(channels, 0), set(channels)
        wanted, above = address.checkpoint_id, f"{address.checkpoint_id}\0"  # the smallest greater id
        stream = auditing.entries(self._context, address.thread_id, address.checkpoint_ns, above, -1)
        for entry in self._stream(until(Limit(SECONDS), stream)):
            if entry.id != wanted:
                continue  # it is of another branch
            wanted = entry.parent
            if entry.id == address.checkpoint_id:
                continue
            for write in entry.writes:
                if write.channel in waiting:
                    sizes[write.channel] += write.size
            if seeds := waiting & entry.present:
                _, stored = self.measured(address._replace(checkpoint_id=entry.id), -1) or (entry, {})
                for channel in seeds & stored.keys():
                    sizes[channel] += stored[channel].bytes
                waiting -= seeds
            if not waiting or wanted is None:
                break
        return {channel: size for channel, size in sizes.items() if size > self._largest}

    def histories(self, address: Address, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """Read the histories of `DeltaChannel`s from Redis. Cost: one round trip."""
        if not channels:
            return {}
        config = configs.to_config(address.thread_id, address.checkpoint_ns, address.checkpoint_id or "")
        wanted = list(channels)[:MAX_CHANNELS]
        histories = with_key(
            self._context, address.thread_id, lambda of: delta.get_delta_channel_history(of, config, wanted)
        )
        return driver_of(self.hot).run(histories)

    def find(self, address: Address) -> CheckpointTuple | None:
        """Read a checkpoint from Redis, else from the cold saver. Without an id, read the newest of the namespace."""
        config: Any = configs.to_config(address.thread_id, address.checkpoint_ns, address.checkpoint_id or "")
        operation = with_key(self._context, address.thread_id, lambda of: reading.get_tuple(of, config))
        in_redis = driver_of(self.hot).run(operation)
        if self.tiers is None or (in_redis is not None and address.checkpoint_id):
            return in_redis
        if in_redis is None and self.saver.get_thread(address.thread_id) is None:
            return None  # cold may have a thread that it still has to delete
        in_cold: CheckpointTuple | None = self._cold("get_tuple", (config,), {})
        both = [saved for saved in (in_redis, in_cold) if saved is not None]
        return max(both, key=lambda saved: saved.checkpoint["id"], default=None)

    def get(self, address: Address) -> CheckpointTuple:
        """Read a checkpoint, as `find` does.

        Raises:
            ThreadNotFound: There is no such checkpoint.
        """
        if (saved := self.find(address)) is None:
            raise ThreadNotFound(f"{address} is not there: it was never written, was removed, or has expired")
        return saved

    def partly(
        self, thread: str, entry: Entry, sizes: Mapping[str, Size], most: float
    ) -> tuple[CheckpointTuple, dict[str, int]]:
        """Read the smallest of some values of a checkpoint in Redis, up to `most` bytes as stored.

        Cost: one round trip for each value.

        Returns:
            The checkpoint with these values, and the sizes of the values that were not read. Of pending writes, it has
            those that `entry` has, and the sizes of others as texts.
        """
        where, left, values, left_out = Address(thread, entry.ns, entry.id), most, dict[str, Any](), dict[str, int]()
        for channel, size in sorted(sizes.items(), key=lambda item: item[1].bytes):
            left -= size.bytes
            try:
                if left >= 0:
                    values[channel] = self.channel(where, channel)
            except LimitExceeded:  # it is compressed
                if most == math.inf:
                    raise
            if channel not in values:
                left_out[channel] = size.bytes
        checkpoint: Any = {
            "id": entry.id, "ts": entry.created_at and entry.created_at.isoformat(), "channel_values": values,
            "channel_versions": entry.versions, "versions_seen": entry.seen,
        }  # fmt: skip
        writes = [
            (task, channel, f"{size:,} bytes, not read" if value is None and size > 1 else value)
            for task, _, channel, size, value, _ in entry.writes
        ]
        parent = configs.to_config(thread, entry.ns, entry.parent) if entry.parent else None
        config = configs.to_config(thread, entry.ns, entry.id)
        return CheckpointTuple(config, checkpoint, entry.metadata, parent, writes), left_out  # type: ignore[arg-type]

    def channel(self, address: Address, channel: str) -> Any:
        """Read the value of a channel in a checkpoint in Redis. None if it has none. Cost: one round trip."""
        read = auditing.channel_value(self._context, address.thread_id, address, channel)
        return driver_of(self.hot).run(read)

    def search(self, address: Address) -> CheckpointTuple:
        """Read a checkpoint, as `get` does. The address may have only the beginning or the end of the id.

        If the namespace has no such id, the thread's others are searched. Cost: a shortened id, or one of another
        namespace, takes one more round trip, which reads all ids of the thread. If Redis has no such id, the cold saver
        lists its newest 1,000 checkpoints of the namespace.

        Raises:
            EndpointError: Several ids match.
            ThreadNotFound: There is no such checkpoint.
        """
        if (saved := self.find(address)) is not None:
            return saved
        part = (address.checkpoint_id or "").lstrip("…")

        def matching(listed: Sequence[Address]) -> list[Address]:
            return [one for one in listed if (name := one.checkpoint_id or "").startswith(part) or name.endswith(part)]

        everywhere = matching(self.addresses(address.thread_id)) if part else []
        chosen = [one for one in everywhere if one.checkpoint_ns == address.checkpoint_ns]
        chosen = chosen or (matching(self._in_cold(address)) if part else []) or everywhere
        if len(chosen) > 1:
            listed = ", ".join(printable(one.checkpoint_id or "") for one in chosen[:_MAX_LISTED])
            more = f" and {len(chosen) - _MAX_LISTED:,} more" if len(chosen) > _MAX_LISTED else ""
            raise EndpointError(f"{len(chosen):,} checkpoints begin or end with {shown(part)}: {listed}{more}")
        if not chosen and part and self.in_redis(address.thread_id) is not None:
            raise ThreadNotFound(
                f"no checkpoint id of thread {shown(address.thread_id)} begins or ends with {shown(part)}"
            )
        return self.get(chosen[0] if chosen else address)

    def addresses(self, thread: str) -> list[Address]:
        """Return the checkpoints of a thread in Redis, by namespace and id. Cost: one round trip."""
        index, _ = self._context.keyspace.keys(thread)
        members = driver_of(self.hot).request(Command(("ZRANGEBYLEX", index, b"[c", b"(d")))
        return [Address(thread, *names.components(member[1:])) for member in members]

    def _in_cold(self, address: Address) -> list[Address]:
        """Return the newest checkpoints of a namespace in the cold saver."""
        config = configs.to_config(address.thread_id, address.checkpoint_ns, "")
        saved = self._cold("list", (config,), {"limit": _MAX_COLD_IDS})
        return [address._replace(checkpoint_id=each.checkpoint["id"]) for each in saved]

    def has(self, address: Address) -> bool:
        """True if a checkpoint is in Redis. Cost: one round trip."""
        index, _ = self._context.keyspace.keys(address.thread_id)
        member = b"[" + names.checkpoint(address.checkpoint_ns, address.checkpoint_id or "")
        return bool(driver_of(self.hot).request(Command(("ZRANGEBYLEX", index, member, member))))

    def children(self, address: Address) -> list[Address]:
        """Return the children among the next 50 checkpoints of the namespace in Redis. Cost: two round trips."""
        index, _ = self._context.keyspace.keys(address.thread_id)
        ns = names.component(address.checkpoint_ns)
        bounds = b"(c" + ns + names.component(address.checkpoint_id or ""), b"(c" + ns[:-1] + b"\1"
        members = driver_of(self.hot).request(Command(("ZRANGEBYLEX", index, *bounds, "LIMIT", 0, MAX_NEXT)))
        if not members:
            return []
        upper = f"{names.name_of(members[-1][1 + len(ns) :])}\0"  # the smallest greater id
        following = self.entries(address.thread_id, address.checkpoint_ns, upper, len(members))
        return [address._replace(checkpoint_id=one.id) for one in following if one.parent == address.checkpoint_id]

    def compare(self, first: CheckpointTuple, second: CheckpointTuple) -> CheckpointDiff:
        """Compare two checkpoints, and `DeltaChannel`s of messages by the last snapshot and the writes since.

        Cost: a round trip for each checkpoint in which such a channel has no snapshot.
        """
        compared = compare(self.hot.serde, first, second)
        lists = [self._lists(saved, compared.not_compared) for saved in (first, second) if compared.not_compared]
        chats = [
            name for name in compared.not_compared
            if any(each[name] for each in lists) and all(is_chat(each[name]) or each[name] == [] for each in lists)
        ]  # fmt: skip
        if not chats:
            return compared
        for saved, values in ((first, lists[0]), (second, lists[1])):
            saved.checkpoint["channel_values"].update((name, values[name]) for name in chats)
        return compare(self.hot.serde, first, second)

    def chats(self, saved: CheckpointTuple, channels: Sequence[str]) -> dict[str, Any]:
        """Return the `DeltaChannel`s that hold messages: those since the last snapshot, and in it. One round trip."""
        return {name: value for name, value in self._lists(saved, channels).items() if is_chat(value)}

    def _lists(self, saved: CheckpointTuple, channels: Sequence[str]) -> dict[str, Any]:
        """Return each `DeltaChannel` as its snapshot here, or as the elements of the last one and of later writes."""
        values = saved.checkpoint["channel_values"]
        here = {name: codec.held(values[name]) for name in channels if name in values}
        where, missing = configs.address(saved.config), [name for name in channels if name not in here]
        large = self.large_histories(where, missing)
        found = self.histories(where, [name for name in missing if name not in large])
        written = {name: elements_of(history) for name, history in found.items()}
        return {**{name: [] for name in channels}, **written, **here, **dict.fromkeys(large)}

    def _cold(self, method: str, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
        if self.tiers is None:
            return [] if method == "list" else None
        return driver_over(self.tiers).request(ColdCall(method, arguments, options))


def elements_of(history: DeltaChannelHistory) -> list[Any]:
    """Return the elements of a `DeltaChannel`'s last snapshot and of the writes since, which its graph would reduce."""
    parts = [*([codec.held(history["seed"])] if "seed" in history else ()), *(value for *_, value in history["writes"])]
    return [item for part in parts for item in (part if isinstance(part, list) else [part])]


class Limit:
    """A time limit. It remembers that it was reached."""

    def __init__(self, seconds: float) -> None:
        """Begin now."""
        self._end, self.is_over = time.monotonic() + seconds, False

    def __call__(self) -> bool:
        """Return True once the time is up."""
        self.is_over = time.monotonic() >= self._end
        return self.is_over


def until(is_over: Callable[[], bool], stream: Generator[Any, Any, None]) -> Generator[Any, Any, None]:
    """End a stream before a request if `is_over` returns True."""
    pump = Pump(stream)
    for step in pump:
        if isinstance(step, Page):
            yield step
        elif is_over():
            pump.close()
            return
        else:
            with pump:
                pump.reply = yield step


def entry_of(saved: CheckpointTuple) -> Entry:
    """Return a checkpoint of another saver as an `Entry` without sizes."""
    _, ns, checkpoint_id = configs.address(saved.config)
    parent = configs.address(saved.parent_config).checkpoint_id if saved.parent_config else None
    return Entry(
        ns=ns,
        id=checkpoint_id or "",
        parent=parent,
        created_at=times.moment(saved.checkpoint.get("ts") or ""),
        metadata=cast("Mapping[str, Any]", saved.metadata or {}),
        versions=saved.checkpoint["channel_versions"],
        seen=saved.checkpoint.get("versions_seen") or {},
        present=frozenset(saved.checkpoint["channel_values"]),
        writes=[WriteHead(task, "", channel, 0, value) for task, channel, value in saved.pending_writes or ()],
        sends=auditing.nodes_of(saved.checkpoint["channel_values"].get(TASKS)),
    )
