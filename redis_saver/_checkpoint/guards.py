"""Guards of writes: the writer argument of scripts with the rule `owned`, for ownership and for forks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple

from redis_saver._common import config, names
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.config import Address, ThreadSettings
from redis_saver._engine.requests import Argument, Call
from redis_saver._engine.scripts import Script
from redis_saver._storage.context import Context

ANYBODY = b""
"""A writer for which the script checks nothing."""


class Held:
    """The ownership of a running block."""

    token = ""
    """The owner's token. Empty after the block exits, even in tasks that it started."""
    before: Held | None = None
    """The ownership of an enclosing block, which owned the same thread until this block took it."""


Tokens: TypeAlias = Mapping[tuple[names.Keyspace, bytes], Held]
_NOTHING: Tokens = MappingProxyType({})
_held: ContextVar[Tokens] = ContextVar("redis_saver_held", default=_NOTHING)
"""Ownership of the enclosing `with saver.own(...)` blocks, by the saver's keyspace and the owner key."""
_NOT_HELD = Held()
_owner_keys: BoundedCache[str, bytes] = BoundedCache(10_000, 2 * 2**20)
"""The owner key of each token that a block of this process got. It names prefix and thread."""
_ON_PURPOSE = ("update", "fork")
"""LangGraph's sources of checkpoints that may fork: `update_state`, and a run from an older checkpoint."""
_begun: BoundedCache[tuple[names.Keyspace, str, str], str] = BoundedCache(10_000, 4 * 2**20)
"""Newest checkpoint of each namespace that a loop of this process began, by keyspace, thread and namespace.

A loop that starts on an empty namespace has no marker in its configs, so its next checkpoint is matched by its parent's
id. The next put of a forgotten loop is not checked for a fork."""


class NewCheckpoint(NamedTuple):
    """A checkpoint to put."""

    address: Address
    """The parent."""
    settings: ThreadSettings
    config: RunnableConfig
    """The parent's config, which may add metadata."""
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions
    """The versions of the channels that were written."""


class GuardedScript(NamedTuple):
    """A script on the keys of a thread, with the writer that it checks if it has the rule `owned`."""

    script: Script
    keys: Sequence[bytes]
    writer: bytes
    more: Sequence[Argument] = ()
    """Extra arguments, after those of `call`."""

    def call(self, *arguments: Argument) -> Call:
        """Return the call. The keys of the owner and the waiters are among its keys only if needed."""
        keys = self.keys
        if self.writer:
            owner, waiters = names.ownership_beside(keys[0])
            keys = (*keys, waiters, owner) if self.script.ends_ownership else (*keys, owner)
        writer = (self.writer,) if self.script.is_owned else ()
        return Call(self.script, keys, (*arguments, *self.more, *writer))


def writer_of(context: Context, thread: str, token: str = "", *, deletes: bool = False) -> bytes:
    """Return the writer of a thread as scripts take it (`lua/lib/may_write.lua`).

    Args:
        context: The saver on the server that knows who owns threads.
        thread: The thread.
        token: Explicit owner token. If empty, or known as the token of another thread, use the token held by the
            current block.
        deletes: True if the writer deletes or replaces the thread, which ends any ownership.
    """
    if token and _owner_keys.get(token, key := context.keyspace.owner_key(thread)) != key:
        token = ""  # copied with the config of another thread
    if not token and (held := _held.get()):
        token = held.get((context.keyspace, context.keyspace.owner_key(thread)), _NOT_HELD).token
    if token:
        return token.encode() + b" "
    if context.requires_owner:
        return b" !"
    return b" " if deletes else ANYBODY


def with_parent(writer: bytes, context: Context, new: NewCheckpoint) -> bytes:
    """Return the writer of a checkpoint for `on_fork="raise"`: with the parent, if that must be the newest."""
    if new.metadata.get("source") in _ON_PURPOSE or not (new.settings.is_newest or _is_loop(context, new)):
        return writer
    _, ns, parent = new.address
    member = names.checkpoint(ns, config.name(new.checkpoint["id"], "checkpoint id"))
    return (writer or b" ") + member + (names.component(parent) if parent else b"")


def remember_loop(context: Context, new: NewCheckpoint) -> None:
    """Remember a checkpoint of a loop that began on an empty namespace, once it is stored."""
    if _is_loop(context, new):
        thread, ns, _ = new.address
        _begun.store((context.keyspace, thread, ns), new.checkpoint["id"], len(thread) + len(ns))


def _is_loop(context: Context, new: NewCheckpoint) -> bool:
    """True if a checkpoint is of a loop that began on an empty namespace, and that this process remembers."""
    source, (thread, ns, parent) = new.metadata.get("source"), new.address
    if source == "input":
        return not parent
    return source == "loop" and _begun.get((context.keyspace, thread, ns)) == parent is not None


def hold(keyspace: names.Keyspace, owner: bytes, held: Held) -> None:
    """Use this token for all further writes to that thread in the current context."""
    _owner_keys.store(held.token, owner, len(held.token) + len(owner))
    held.before = _held.get().get((keyspace, owner))
    _held.set({**_held.get(), (keyspace, owner): held})


def let_go(keyspace: names.Keyspace, owner: bytes, held: Held) -> None:
    """Make no further write use this token.

    An enclosing block's token is used again, even if that block lost the thread: then its writes are refused.
    """
    held.token = ""
    tokens, before = dict(_held.get()), held.before
    if tokens.get((keyspace, owner)) is not held:  # the blocks overlap without being nested
        return
    while before is not None and not before.token:
        before = before.before
    del tokens[keyspace, owner]
    if before is not None:
        tokens[keyspace, owner] = before
    _held.set(tokens or _NOTHING)


def marked(saved: CheckpointTuple | None, requested: RunnableConfig) -> CheckpointTuple | None:
    """Return a checkpoint that was read, with a mark in its config if it is the newest of its namespace.

    For another checkpoint the mark in the caller's config is cleared.
    """
    if saved is None:
        return None
    is_newest = config.checkpoint_id(requested) is None
    if not is_newest and config.NEWEST_KEY not in config.configurable(requested):
        return saved
    configurable = {**config.configurable(saved.config), config.NEWEST_KEY: is_newest}
    return saved._replace(config={**saved.config, "configurable": configurable})
