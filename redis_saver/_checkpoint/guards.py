"""Who may write: operations whose scripts look first whether the writer owns the thread, or whether a parent is the newest checkpoint."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple

from redis_saver._common import config, names
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.names import Keyspace
from redis_saver._engine.requests import Batch, Call
from redis_saver._engine.runner import Pump
from redis_saver._engine.scripts import Script
from redis_saver._storage.context import Context

T = TypeVar("T")


class Held:
    """What a block owns while it runs."""

    token = ""
    """Nothing behind the block, also where code that began in it goes on."""
    before: Held | None = None
    """What a block around it owns: the same thread, until this one took it."""


Tokens: TypeAlias = Mapping[tuple[Keyspace, bytes], Held]
_NOTHING: Tokens = MappingProxyType({})
_held: ContextVar[Tokens] = ContextVar("redis_saver_held", default=_NOTHING)
"""What is owned where the code runs, inside of `with saver.own(...)`: by the saver's keyspace, and the owner key."""
_NOT_HELD = Held()
_ON_PURPOSE = ("update", "fork")
"""How LangGraph names the source of a checkpoint that may fork: `update_state`, and a run that was sent back in time."""
_begun: BoundedCache[tuple[Keyspace, str, str], str] = BoundedCache(10_000, 4 * 2**20)
"""Newest checkpoint of each namespace that a loop of this process began, by keyspace, thread and namespace.

A loop that starts on an empty namespace has no marker in its configs, so its next checkpoint is matched by its parent's
id. The next put of a forgotten loop is not checked for a fork."""


class Guard(NamedTuple):
    """What the scripts of an operation are to look at."""

    scripts: Mapping[Script, Script]
    """The scripts that look, in place of those that the operation names."""
    token: str
    """The writer's, of all threads that the operation writes; nothing: what `held` has."""
    keyspace: Keyspace
    held: Tokens
    is_required: bool
    parentage: bytes = b""
    """The member of a checkpoint whose parent has to be the newest, and the parent's id as a component; nothing: that is not looked at."""

    def of(self, request: Any) -> Any:
        """The request that looks."""
        if isinstance(request, Call):
            return self._of_call(request)
        if isinstance(request, Batch):
            return Batch([self.of(one) for one in request.requests])
        return request

    def _of_call(self, call: Call) -> Call:
        if (script := self.scripts.get(call.script)) is None:
            return call
        owner = names.owner_beside(call.keys[0])
        token = self.token or self.held.get((self.keyspace, owner), _NOT_HELD).token
        required = b"!" if self.is_required and not token else b""
        writer = b"%b %b%b" % (token.encode(), required, self.parentage)
        return Call(script, (*call.keys, owner), (*call.arguments, writer))


def guarded(operation: Generator[Any, Any, T], guard: Guard) -> Generator[Any, Any, T]:
    """Run an operation whose scripts look first."""
    pump = Pump(operation)
    for request in pump:
        with pump:
            pump.reply = yield guard.of(request)
    return pump.result


def of_put(
    context: Context,
    by: Mapping[Script, Script],
    operation: Generator[Any, Any, T],
    given: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
) -> Generator[Any, Any, T]:
    """`put`, guarded where something is to be looked at."""
    if context.refuses_forks and metadata.get("source") not in _ON_PURPOSE:
        where, found = config.address(given), config.configurable(given)
        place = (context.keyspace, where.thread_id, where.checkpoint_ns)
        begins = not where.checkpoint_id and metadata.get("source") == "input"
        goes_on = metadata.get("source") == "loop" and _begun.get(place) == where.checkpoint_id is not None
        if begins or goes_on or found.get(config.NEWEST_KEY):
            member = names.checkpoint(where.checkpoint_ns, config.name(checkpoint["id"], "checkpoint id"))
            parent = names.component(where.checkpoint_id) if where.checkpoint_id else b""
            guard = guard_of(context, by, config.thread_owner(given))
            put = guarded(operation, guard._replace(parentage=member + parent))
            return _remembered(put, place, checkpoint["id"]) if begins or goes_on else put
    return of_write(context, by, operation, given)


def _remembered(
    operation: Generator[Any, Any, T], place: tuple[Keyspace, str, str], made: str
) -> Generator[Any, Any, T]:
    """A put of a loop that began a namespace."""
    stored = yield from operation
    _begun.store(place, made, len(place[1]) + len(place[2]))
    return stored


def of_write(
    context: Context, by: Mapping[Script, Script], operation: Generator[Any, Any, T], given: RunnableConfig
) -> Generator[Any, Any, T]:
    """An operation that writes the thread of a config, guarded where something is to be looked at."""
    token = config.thread_owner(given)
    if not token and not context.requires_owner and not _held.get():
        return operation
    return guarded(operation, guard_of(context, by, token))


def of_change(
    context: Context, by: Mapping[Script, Script], operation: Generator[Any, Any, T], *, deletes: bool = False
) -> Generator[Any, Any, T]:
    """An operation that changes whole threads, guarded where something is to be looked at. One that deletes or replaces them removes their owners, too."""
    if not deletes and not context.requires_owner and not _held.get():
        return operation
    return guarded(operation, guard_of(context, by))


def guard_of(context: Context, by: Mapping[Script, Script], token: str = "") -> Guard:
    """The guard of a writer with that token; without one, with those that it holds."""
    return Guard(by, token, context.keyspace, _held.get(), context.requires_owner)


def hold(keyspace: Keyspace, owner: bytes, held: Held) -> None:
    """From now on, what runs here writes that thread with that token."""
    held.before = _held.get().get((keyspace, owner))
    _held.set({**_held.get(), (keyspace, owner): held})


def let_go(keyspace: Keyspace, owner: bytes, held: Held) -> None:
    """From now on, nothing is written with that token; what runs here has the one of the block around, which still has its say if it lost the thread."""
    held.token = ""
    tokens, before = dict(_held.get()), held.before
    if tokens.get((keyspace, owner)) is not held:  # blocks that are not one inside of the other
        return
    while before is not None and not before.token:
        before = before.before
    del tokens[keyspace, owner]
    if before is not None:
        tokens[keyspace, owner] = before
    _held.set(tokens or _NOTHING)


def marked(
    operation: Generator[Any, Any, CheckpointTuple | None], given: RunnableConfig
) -> Generator[Any, Any, CheckpointTuple | None]:
    """`get_tuple`, with a mark in the config it answers, where that is the newest checkpoint of the namespace; else with none that a caller may have had."""
    found = yield from operation
    if found is None:
        return None
    is_newest = config.checkpoint_id(given) is None
    if not is_newest and config.NEWEST_KEY not in config.configurable(given):
        return found
    where = {**config.configurable(found.config), config.NEWEST_KEY: is_newest}
    return found._replace(config={**found.config, "configurable": where})
