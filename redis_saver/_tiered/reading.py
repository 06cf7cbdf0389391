"""Reading checkpoints and histories of `DeltaChannel`s: from hot, or on a miss from cold, which then fills hot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint import delta, reading
from redis_saver._checkpoint.guards import ANYBODY
from redis_saver._checkpoint.writing import whole
from redis_saver._common import config as configs, names
from redis_saver._common.config import Address
from redis_saver._common.display import shown
from redis_saver._common.logs import ThrottledLog
from redis_saver._engine.replies import FillLeaseReply, FillReply
from redis_saver._engine.requests import Argument, Batch, Call, Operation
from redis_saver._storage import codec
from redis_saver._storage.context import Context
from redis_saver._storage.keyed import with_key
from redis_saver._storage.sealing import SpecialCall
from redis_saver._tiered import context, requests, scripts
from redis_saver._tiered.carrying import is_lossy
from redis_saver._tiered.context import HOT_CANNOT_HAVE, WHOLE, Fill, Tiers, for_cold, newest_of, writes_of
from redis_saver._tiered.flushing import busy, flush_now, until_busy
from redis_saver._tiered.intents import change, enroll, repair
from redis_saver._tiered.listing import dirty
from redis_saver._tiered.requests import ColdCall, HotFailed, SingleFlight, Tiered, attempt, best_effort
from redis_saver._tiered.twins import BY_PARENTS
from redis_saver.errors import PlainValueRefused, ThreadDamaged

_LOG = ThrottledLog("redis_saver.tiered")
_ATTEMPTS = 3
TOKEN = 16
"""Number of hex digits of a fill lease's token. Each put sends it, so it is short."""


def get_tuple(tiers: Tiers, config: RunnableConfig) -> Tiered[CheckpointTuple | None]:
    """Return the newest checkpoint, or the one that a config names. After a miss, reads cold and fills hot."""
    address, waited, repairs = configs.address(config), False, 0
    keys = tiers.hot_context.keyspace.reading_keys(address.thread_id)
    is_believed = tiers.verify == "never" or address.checkpoint_id is not None
    hear = partial(tiers.fills.hear, address.thread_id, address.checkpoint_ns)

    def read(hot: Context) -> Operation[CheckpointTuple | None]:
        return reading.read(hot, address, keys, hear)

    while True:
        damage: ThreadDamaged | None = None
        try:
            saved, is_answer = None, True
            with suppress(reading.Nowhere):  # hot knows that none exists
                hot = tiers.hot_context
                saved = yield from (read(hot) if hot.data_keys is None else with_key(hot, address.thread_id, read))
                is_answer = saved is not None
            if is_answer and (is_believed or (yield from _is_newest(tiers, address, saved))):
                tiers.counts.hits += 1
                if saved or address.checkpoint_id is None:
                    tiers.saw(address.thread_id, address.checkpoint_ns, saved.checkpoint["id"] if saved else "")
                return saved
            tiers.counts.misses += 1
        except reading.HasIntents:
            tiers.counts.intents += 1
        except ThreadDamaged as error:
            if repairs == _ATTEMPTS or isinstance(error, PlainValueRefused):  # then a setting is wrong, not the thread
                raise
            damage, repairs = error, repairs + 1
            tiers.counts.misses += 1
        except HotFailed:
            tiers.counts.bypasses += 1
            return (yield ColdCall("get_tuple", (for_cold(config),)))  # type: ignore[no-any-return]
        if damage:
            yield from best_effort(tiers, repair(tiers, address.thread_id, damage))
        # Another caller may have read it from cold without filling hot. Then read it here.
        fetched = (yield from _fetch(tiers, address, config)) if waited else (yield fetching(tiers, address, config))
        if fetched is not None:
            return fetched[0]
        waited = True


def _is_newest(tiers: Tiers, address: Address, saved: CheckpointTuple | None) -> Tiered[bool]:
    """True unless cold has a newer checkpoint than hot (`verify="on_open"`). Then hot drops the thread."""
    namespace = address[:2]
    if namespace in tiers.verified:
        return True
    newest = yield ColdCall("get_tuple", (for_cold(configs.to_config(*namespace, "")),), is_sealed=True)
    hot_id, cold_id = saved and saved.checkpoint["id"], newest and newest.checkpoint["id"]
    may_lag = tiers.flush_queue and (cold_id is None or (hot_id is not None and cold_id < hot_id))
    is_newest = bool(hot_id == cold_id or may_lag)
    if not is_newest:
        yield from change(tiers, address.thread_id, ANYBODY, None)
    tiers.verified.store(namespace, True, sum(map(len, namespace)))  # not after an error, when hot is still behind
    return is_newest


def fetching(tiers: Tiers, address: Address, config: RunnableConfig | None = None) -> SingleFlight:
    """Return a request that fills hot with a checkpoint (by default the newest one) unless hot has it."""
    names_it = config or configs.to_config(*address[:2], address.checkpoint_id or "")
    return SingleFlight((*address[:2], address.checkpoint_id or ""), lambda: _fetch(tiers, address, names_it))


def _fetch(tiers: Tiers, address: Address, config: RunnableConfig) -> Tiered[tuple[CheckpointTuple | None] | None]:
    """Read from cold and fill hot. Returns a tuple with the result, or None if hot has it now.

    Raises:
        ThreadBusy: After each flush, cold again lacked records of hot.
    """
    thread, ns, checkpoint_id = address
    token, deadline = uuid4().hex[:TOKEN].encode(), until_busy()
    lease = _lease(tiers, token, thread, ns, names.component(checkpoint_id) if checkpoint_id else b"")
    try:
        while (leased := (yield lease)) == FillLeaseReply.BEHIND:
            if time.monotonic() >= deadline:
                raise busy(thread)
            yield from flush_now(tiers, thread, reads=True)
        if leased == FillLeaseReply.HERE:
            return None
    except HotFailed:
        leased = 0
        tiers.counts.bypasses += 1
    fill = Fill(token, tiers.fills.now())
    saved = yield ColdCall("get_tuple", (for_cold(config),), is_packed=True)
    if leased and (saved or not checkpoint_id) and not _is_lossy(saved, thread):
        restore = partial(_restore, tiers, address, fill, saved)
        creates = saved is not None
        yield from best_effort(tiers, with_key(tiers.packed_hot, thread, restore, creates=creates, config=config))
    return (tiers.carrier.opened(saved),)


def _is_lossy(answer: object, thread: str) -> bool:
    """True if hot must not be filled with an answer of cold. The log says so."""
    if is_lossy(answer):
        text = "thread %s was read from cold, but hot was not filled, as this process may not decode all of its values"
        _LOG.info(text, shown(thread))
    return is_lossy(answer)


def _lease(tiers: Tiers, token: bytes, thread: str, ns: str, checkpoint: bytes) -> Call:
    """Return the request for a fill lease. `checkpoint` is an escaped id, or empty for the newest."""
    arguments = scripts.FillLeaseArguments(
        token=token, oldest=context.WRITER_GONE, length=context.FILL_LEASE, ns=names.component(ns), id=checkpoint
    )
    return Call(scripts.FILL_LEASE, tiers.hot_context.keyspace.tier_keys(thread).writing, arguments)


def _restore(tiers: Tiers, address: Address, fill: Fill, saved: CheckpointTuple | None, hot: Context) -> Tiered[None]:
    """Fill hot with cold's packed answer. If cold has nothing in the namespace, hot or this process remembers that."""
    thread, ns, checkpoint_id = address
    arguments: Sequence[Argument] = scripts.FillArguments(
        token=fill.token, writes=b"", newest=names.component(ns), last=b"1", n=0
    )
    try:
        if saved:
            arguments = fill_arguments(hot, saved, fill.token, newest=not checkpoint_id)
    except HOT_CANNOT_HAVE:  # only cold has it then
        return
    reply = yield from _tried(_fill(tiers, thread, arguments))
    if reply == FillReply.FILLED:
        tiers.counts.rehydrations += saved is not None
        if hot.cipher is not None:
            tiers.in_cold.filled(thread, ns, hot.cipher.id)
        if not checkpoint_id:
            tiers.fills.learn(thread, ns, fill)
    elif reply == FillReply.ABSENT:
        others = yield requests.newest_in_cold(thread)
        tiers.fills.learn(thread, ns, fill._replace(field=newest_of(ns) if others else WHOLE))


def _fill(tiers: Tiers, thread: str, arguments: Sequence[Argument]) -> Call:
    keys = tiers.hot_context.keyspace.tier_keys(thread)
    return Call(scripts.FILL, (keys.index_key, keys.data_key, keys.lease), arguments)


def _tried(fill: Call | Batch) -> Tiered[Any]:
    """Fill hot. Returns the reply, or None if hot cannot store the checkpoint."""
    reply, error = yield from attempt(fill)
    # The next reader repairs a damaged thread. A full server goes without the checkpoint.
    if error is not None and not isinstance(error, ThreadDamaged) and not requests.is_out_of_memory(error):
        raise error
    return reply


def fill_arguments(
    hot: Context, saved: CheckpointTuple, token: str | bytes, *, newest: bool, is_last: bool = True
) -> list[Argument]:
    """Return the arguments of `lua/tiered/fill.lua`."""
    address = configs.address(saved.config)
    ns, checkpoint_id = address.checkpoint_ns, address.checkpoint_id or ""
    records: list[Argument] = []
    count = 0
    for order, ((task, is_regular), writes) in enumerate(context.by_call(saved.pending_writes or ()).items()):
        # Cold does not return the task paths that define this order, so the position replaces them.
        regular, special = codec.encode_writes(hot, writes, f"{order:08}")
        member = names.task(ns, checkpoint_id, task)
        if hot.cipher is not None:
            regular = hot.cipher.seal_writes(member, regular)
            if special:
                special = hot.cipher.seal_special(member, special, SpecialCall.new(special, ()))
        if is_regular:
            records += (member, b"".join(regular), len(regular))
        for index, record in special.items():
            records += (member + b"%d" % index, record, 1)
        count += is_regular + len(special)
    escaped = names.component(ns) if newest else b""
    fixed = scripts.FillArguments(
        token=token, writes=writes_of(address), newest=escaped, last=b"1" if is_last else b"0", n=count
    )
    return [*fixed, *records, *whole(hot, saved)]


# -- histories of `DeltaChannel`s


ANCESTORS_FILLED, BYTES_FILLED = 200, 4_000_000
"""Maximum number of ancestors, and of bytes, with which a history fills hot. By default LangGraph takes a snapshot
every 50 writes."""
_ANCESTORS_PER_CALL = 20
"""Number of ancestors per call of cold, because each comes with all its values."""


def get_delta_channel_history(tiers: Tiers, config: RunnableConfig, channels: Sequence[str]) -> Tiered[Any]:
    """Read seeds and writes of `DeltaChannel`s from hot if it has the ancestors, else from cold after a flush.

    This process remembers cold's answer. The ancestors fill hot for other processes, up to `ANCESTORS_FILLED` and
    `BYTES_FILLED`.
    """
    address, damage, basis = configs.address(config), None, None
    thread, keys = address.thread_id, tiers.hot_context.keyspace.reading_keys(address.thread_id)
    try:
        if tiers.verify == "never" or address.checkpoint_id is not None:
            return (
                yield from with_key(
                    tiers.hot_context, thread, lambda hot: delta.histories(hot, address, channels, keys)
                )
            )
    except reading.HasIntents:
        pass
    except delta.Partial as partial_history:
        basis = partial_history.basis
    except ThreadDamaged as damaged:
        damage = damaged
    except HotFailed:
        tiers.counts.bypasses += 1
        return tiers.carrier.opened_history((yield from _history_in_cold(tiers, config, channels)))
    if damage:
        yield from best_effort(tiers, repair(tiers, thread, damage))
    yield from enroll(tiers, thread)
    try:
        if (yield from dirty(tiers, thread)):
            yield from flush_now(tiers, thread, reads=True)
            basis = None  # cold may still lack records that it refused
    except HotFailed:  # the next request to hot counts it
        basis = None
    history = yield from _history_in_cold(tiers, config, channels)
    if basis is not None and not _is_lossy(history, thread):
        keep = partial(_keep, tiers, address, basis, channels, history)
        yield from best_effort(tiers, with_key(tiers.packed_hot, thread, keep, creates=True, config=config))
    return tiers.carrier.opened_history(history)


def _history_in_cold(tiers: Tiers, config: RunnableConfig, channels: Sequence[str]) -> Tiered[Any]:
    """Read packed histories from cold.

    LangGraph's Postgres saver looks for ancestors only below the id of a checkpoint. A worker whose clock was ahead has
    made a parent with a greater id, so then each parent is followed by a call of its own.
    """
    call = ColdCall("get_delta_channel_history", (), {"config": for_cold(config), "channels": channels}, True)
    thread, ns, _ = configs.address(config)
    if tiers.reads_by_ids and (yield ColdCall("has_late_parent", (thread, ns))):
        call = call._replace(method=BY_PARENTS)
    return (yield call)


def _keep(
    tiers: Tiers, address: Address, basis: delta.Basis, channels: Sequence[str], history: Any, hot: Context
) -> Tiered[None]:
    """Remember a packed history of cold, and fill hot with its ancestors."""
    with suppress(*HOT_CANNOT_HAVE):  # then the next history comes from cold as well
        delta.remember(hot, address, hot.keyspace.keys(address.thread_id).data_key, basis, history)
    yield from _fill_ancestors(tiers, hot, address, basis, channels)


def _fill_ancestors(
    tiers: Tiers, hot: Context, address: Address, basis: delta.Basis, channels: Sequence[str]
) -> Tiered[None]:
    """Fill hot with the ancestors of a history, from the first missing one to the value of the last channel.

    Hot needs all of them to answer. If they are too many or too large, none are filled.
    """
    thread, ns, _ = address
    token = uuid4().hex.encode()
    if not (basis.missing and tiers.lists_by_id):
        return
    if (yield _lease(tiers, token, thread, ns, basis.missing)) != FillLeaseReply.GRANTED:
        return
    remaining, wanted, before = set(channels), names.name_of(basis.missing), names.name_of(basis.target)
    fills, size = list[list[Argument]](), 0
    while wanted and remaining:
        if not (page := (yield from _page_in_cold(thread, ns, wanted, before))):
            return
        before = min(before, *page)
        while wanted in page and remaining:
            saved = page[wanted]
            if is_lossy(saved):
                return
            try:
                fills.append(fill_arguments(hot, saved, token, newest=False, is_last=False))
            except HOT_CANNOT_HAVE:
                return
            size += sum([len(argument) for argument in fills[-1] if isinstance(argument, (bytes, str))])
            if len(fills) > ANCESTORS_FILLED or size > BYTES_FILLED:
                return
            remaining.difference_update(saved.checkpoint["channel_values"])
            wanted = (configs.checkpoint_id(saved.parent_config) if saved.parent_config else None) or ""
    fills[-1] = fill_arguments(hot, saved, token, newest=False)
    fill = Batch([_fill(tiers, thread, arguments) for arguments in fills])
    tiers.counts.rehydrations += ((yield from _tried(fill)) or []).count(1)


def _page_in_cold(thread: str, ns: str, wanted: str, before: str) -> Tiered[dict[str, Any]]:
    """Read packed checkpoints of cold next below `before`, by id, or only the wanted one if it is not among them."""
    options = {"limit": _ANCESTORS_PER_CALL, "before": configs.to_config("", "", before)}
    listed = yield ColdCall("list", (for_cold(configs.to_config(thread, ns, "")),), options, is_packed=True)
    page = {saved.checkpoint["id"]: saved for saved in listed}
    if wanted in page:
        return page
    # It was removed, or made by a clock that was ahead.
    late = yield ColdCall("get_tuple", (for_cold(configs.to_config(thread, ns, wanted)),), is_packed=True)
    return {} if late is None else {wanted: late}
