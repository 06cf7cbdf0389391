"""Questions about threads on one server: who wrote what, the versions of a channel, one channel of many threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import Any

from redis_saver._checkpoint import auditing, latest
from redis_saver._checkpoint.audit_records import VersionInfo, WriteInfo
from redis_saver._checkpoint.interface import Interface
from redis_saver._checkpoint.latest import ChannelValue
from redis_saver._checkpoint.threads import ThreadInfo
from redis_saver._common import config as configs
from redis_saver._common import keywords
from redis_saver._common.display import shown


class QueryInterface(Interface[ThreadInfo]):
    """What savers on one server share. A saver over two tiers has these questions on its `hot`, where they cost what the docstrings say."""

    @keywords.checked
    def writes(self, thread_id: str, *, checkpoint_ns: str | None = None) -> Iterator[WriteInfo]:
        """Which task of which node wrote which channel, and how large: those that began from the newest checkpoint first.

        What pending writes say is known. Where they are gone (pruned, or run with `durability="exit"`), a write is inferred from the channel's
        version, and the node from `versions_seen`: `WriteInfo` says which is which. What led to a checkpoint without
        a parent (it was pruned, or the thread began with `durability="exit"` or `update_state`) is not known, and left out.

        Cost: a round trip for 50 checkpoints, and one for every ten whose tasks were started by a `Send`. The server sends headers and each such `Send`, and no
        other values. Memory holds a page, and a header for each branch of the history.

        Args:
            thread_id: The thread. One that is not there has no writes.
            checkpoint_ns: One namespace, empty for the root; None: all.

        Raises:
            ThreadDamaged: A part of the thread is gone or unreadable, while iterating.
        """
        return self._stream(self._writes(thread_id, checkpoint_ns), "writes")

    @keywords.checked
    def awrites(self, thread_id: str, *, checkpoint_ns: str | None = None) -> AsyncIterator[WriteInfo]:
        """`writes` for asyncio."""
        return self._astream(self._writes(thread_id, checkpoint_ns), "writes")

    def _writes(self, thread_id: str, ns: str | None) -> Generator[Any, Any, None]:
        ns = None if ns is None else configs.name(ns, "checkpoint_ns")
        return auditing.writes(self._context, configs.name(thread_id, "thread_id"), ns)

    @keywords.checked
    def channel_history(self, thread_id: str, channel: str, *, checkpoint_ns: str = "") -> Iterator[VersionInfo]:
        """The versions of a channel, newest first: when, by which writes, how many bytes, and how many of them it shares with the version before.

        Cost: a round trip for 20 checkpoints. Headers, sizes and lists of chunks are sent, no values. In memory are a page,
        and for each branch of the history a header with the names of the value's chunks.

        Args:
            thread_id: The thread. One that is not there has no versions.
            channel: The channel.
            checkpoint_ns: The namespace; empty for the root.

        Raises:
            ThreadDamaged: A part of the thread is gone or unreadable, while iterating.
        """
        return self._stream(self._history(thread_id, channel, checkpoint_ns), "channel_history")

    @keywords.checked
    def achannel_history(self, thread_id: str, channel: str, *, checkpoint_ns: str = "") -> AsyncIterator[VersionInfo]:
        """`channel_history` for asyncio."""
        return self._astream(self._history(thread_id, channel, checkpoint_ns), "channel_history")

    def _history(self, thread_id: str, channel: str, ns: str) -> Generator[Any, Any, None]:
        names = configs.name(channel, "channel"), configs.name(ns, "checkpoint_ns")
        return auditing.channel_history(self._context, configs.name(thread_id, "thread_id"), *names)

    @keywords.checked
    def latest_values(
        self,
        channel: str,
        *,
        thread_ids: Iterable[str] | None = None,
        thread_prefix: str | None = None,
        checkpoint_ns: str = "",
    ) -> Iterator[ChannelValue]:
        """One channel of the newest checkpoint of many threads; nothing else of them is read.

        Threads without a value in that channel are left out. A `DeltaChannel` has one stored where the newest checkpoint is a snapshot; else it is
        answered without its value, and `ChannelValue.stored` is False: a saver does not know the channel's reducer.

        Cost: a round trip for some threads (on a cluster one for each node), ten at first, then as many as have about 4 MB of values by those that
        were read before, one at least and 200 at the most. These are in memory at once. With a prefix also a look at all keys of the server, which may
        name a thread twice, as `threads()`.

        Args:
            channel: The channel.
            thread_ids: These threads, in this order.
            thread_prefix: All threads whose names begin so, in no order; `""`: all.
            checkpoint_ns: The namespace; empty for the root.

        Raises:
            TypeError, ValueError: Neither threads nor a prefix are given, or both. Raised by the call itself.
            ThreadDamaged: A thread cannot be read, while iterating; the message names it.
        """
        return self._stream(self._latest(channel, thread_ids, thread_prefix, checkpoint_ns), "latest_values")

    @keywords.checked
    def alatest_values(
        self,
        channel: str,
        *,
        thread_ids: Iterable[str] | None = None,
        thread_prefix: str | None = None,
        checkpoint_ns: str = "",
    ) -> AsyncIterator[ChannelValue]:
        """`latest_values` for asyncio."""
        return self._astream(self._latest(channel, thread_ids, thread_prefix, checkpoint_ns), "latest_values")

    def _latest(
        self, channel: str, thread_ids: Iterable[str] | None, thread_prefix: str | None, ns: str
    ) -> Generator[Any, Any, None]:
        if (thread_ids is None) == (thread_prefix is None):
            raise ValueError('latest_values: write either thread_ids=[...] or thread_prefix="..." ("" for all threads)')
        if thread_prefix is not None and not isinstance(thread_prefix, str):
            raise TypeError(f"thread_prefix={shown(thread_prefix)}: write a str")
        wanted = None if thread_ids is None else configs.names(thread_ids, "thread_id")
        names = configs.name(channel, "channel"), configs.name(ns, "checkpoint_ns")
        return latest.latest_values(self._context, names[0], wanted, thread_prefix or "", names[1])
