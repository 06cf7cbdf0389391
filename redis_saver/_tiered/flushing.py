"""Flushing one thread: bring its records to cold, in the order in which they were written.

A record (a checkpoint, pending writes of a task, a checkpoint to remove, a deletion) is noted by its name and the time it was written. The flusher reads it, gives it to
cold, and strikes it off if it was not written again meanwhile. So each record gets to cold at least once, and what cold gets last is what was
written last. One flusher at a time works on a thread. A flusher that takes longer than its claim (it was stopped, or its machine slept) finds that out at the ack.
What it may have done to cold is then done again (`lua/tiered/ack.lua`).
"""

from __future__ import annotations

import copy
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver._checkpoint import delta, listing, reading
from redis_saver._common import config, names
from redis_saver._common.display import error_text, shown
from redis_saver._common.limits import Allowance
from redis_saver._common.logs import ThrottledLog
from redis_saver._engine import scripts
from redis_saver._engine.replies import AckReply, ClaimReply
from redis_saver._engine.requests import Argument, Call, Command, Sleep
from redis_saver._serde.serializer import FastSerializer, SafeSerializer, StrictSerializer
from redis_saver._storage import codec
from redis_saver._storage.chunk_cache import ChunkCache
from redis_saver._storage.chunks import Write
from redis_saver._storage.context import Context
from redis_saver._storage.opaque import OpaqueSerializer
from redis_saver._tiered import context
from redis_saver._tiered.context import Tiers, calls_for, release, task_paths_in_hot, to_put, versions_of_values
from redis_saver._tiered.requests import Attempt, ColdCall, HotFailed, Tiered
from redis_saver.errors import DecodeError, RedisSaverError, ThreadBusy, decoding

_LOG = ThrottledLog("redis_saver.tiered")
RECORDS_PER_CLAIM = 50
FLUSH_LEASE = 30_000
"""Milliseconds after which another flusher may take over a claim. A flusher begins no record after a third of them."""
DELETIONS_KEPT = 3_600_000
"""Milliseconds for which a deletion is remembered, for flushers that may turn out to be fenced."""
MAX_PAUSE = 10
"""The longest pause, in seconds, until a record that cold refused is tried again."""
_PROBE = ColdCall("get_tuple", (config.to_config("redis_saver", "", "0"),))
"""Tells whether cold answers. No checkpoint has this id."""


class Flushed(NamedTuple):
    """The result of a claim."""

    left: int
    """Records that cold still does not have; 1 if another flusher took over, because then it is not known."""
    brought: int
    coalesced: int
    """Records that cold does not need."""
    failed: Sequence[Exception]
    """The errors of cold, and of reading from hot."""
    is_refused: bool = False
    """True if cold answered and refused a record, or hot could not read one."""


def put_tombstone(tiers: Tiers, thread: str) -> Tiered[bool]:
    """Delete a thread in hot, and note a tombstone for cold. Returns False if somebody is writing the thread to cold."""
    keys = tiers.hot.keyspace.tier_keys(thread)
    tiers.hot.chunk_cache.forget(keys.data_key)
    return bool((yield Call(scripts.PUT_TOMBSTONE, keys.writing, ())))


def flush_now(tiers: Tiers, thread: str) -> Tiered[None]:
    """Flush all of a thread. It goes on as long as cold catches up: while fewer records are left than ever before.

    Raises:
        Exception: What cold raised.
        ThreadBusy: Others flushed or wrote the thread all the time.
    """
    deadline, fewest = until_busy(), math.inf
    while True:
        done = yield from flush(tiers, thread, at_once=True)
        if done and done.failed:
            raise done.failed[0]
        if done and done.left == 0:
            return
        if done and done.left < fewest:
            deadline, fewest = until_busy(), done.left
        elif time.monotonic() >= deadline:
            raise busy(thread)
        if done is None:
            yield Sleep(0.02)


def until_busy() -> float:
    """When who begins to wait for others to leave a thread alone raises `busy`: in as long as two claims last."""
    return time.monotonic() + 2 * FLUSH_LEASE / 1000


def busy(thread: str) -> ThreadBusy:
    """The error when others have flushed or written a thread for as long as two claims last."""
    return ThreadBusy(
        f"other processes have been flushing thread {shown(thread)} to cold, or writing it there, for {2 * FLUSH_LEASE / 1000:g} seconds; try again"
    )


def flush_what_goes(tiers: Tiers, thread: str) -> Tiered[bool]:
    """Flush what cold takes of a thread. Returns whether cold has all now.

    Records that cold refuses stay in hot, and so does a thread that others flush or write all the time.
    """
    deadline, fewest = until_busy(), math.inf
    while True:
        done = yield from flush(tiers, thread, at_once=True)
        if done and not done.left:
            return True
        if done and not done.brought + done.coalesced:
            return False
        if done and done.left < fewest:
            deadline, fewest = until_busy(), done.left
        elif time.monotonic() >= deadline:
            return False
        if done is None:
            yield Sleep(0.02)


def flush(tiers: Tiers, thread: str, *, at_once: bool = False, seconds: float = math.inf) -> Tiered[Flushed | None]:
    """Claim a thread and bring some of its records to cold. None: another flusher has claimed it, or a writer has an intent.

    If hot fails, the claim is released; if even that fails, the next attempt of this process goes on with it. If the operation is cancelled during a call
    of cold, nobody knows when that call is over. Then the claim has to run out.

    Args:
        tiers: The saver.
        thread: The thread.
        at_once: Whether to try records that are set aside, too.
        seconds: No record is begun after this many seconds.
    """
    keys, claim = tiers.hot.keyspace.tier_keys(thread), _Claim(tiers, thread)
    token = tiers.leases.token(keys.flush)
    try:
        return (yield from _run_claim(claim, token, at_once=at_once, seconds=seconds))
    except BaseException as error:
        if not claim.is_asking_cold:
            tiers.leases.keep(keys.flush, token)
            if isinstance(error, Exception):
                yield release(keys, token)
        raise


def _run_claim(claim: _Claim, token: str, *, at_once: bool, seconds: float) -> Tiered[Flushed | None]:
    """Do what `flush` does, with this token: claim, give to cold, ack."""
    began, queue = time.monotonic(), claim.tiers.flush_queue
    claimed = yield claim.request(token, at_once=at_once)
    if claimed == ClaimReply.BUSY:
        return None
    with decoding("what cold does not have of thread {!r}", claim.thread):
        bases, there, unacked, *raw = claimed
        there = index(there)
        if any(tuple(map(type, one[:3])) != (bytes, bytes, int) for one in raw):
            raise TypeError("a record without a name, a time and a number of tries")
        claim.add([Record(*one) for one in raw], dict(zip(bases[::2], bases[1::2], strict=True)))
    if not raw:
        return Flushed(there, 0, 0, ())
    if unacked:
        _LOG.info(
            "the flusher takes over thread %s from one that did not end its work, and does that again",
            shown(claim.thread),
        )
    seconds = min(seconds, FLUSH_LEASE / 3000)  # the rest of the lease is for the last call of cold
    coalesces = queue is not None and queue.history == "latest" and not unacked
    until = began + seconds, time.time() + seconds  # the first stands still while a machine sleeps
    yield from claim.run(*until, coalesces=coalesces)
    ack = claim.ack(token)
    try:
        left = yield ack
    except Exception:  # noqa: BLE001 - who was fenced must not miss that. Where it was acked, and that is not known, all of this claim is done again
        left = yield ack
    with decoding("how much cold lacks of thread {!r}", claim.thread):
        left = index(left)
    if left == AckReply.FENCED:
        _LOG.warning(
            "another flusher has taken over thread %s, as this one took too long; what it did to cold is done again",
            shown(claim.thread),
        )
        return claim.counted(1, time.monotonic() - began)
    claim.tiers.backlog.flushed(len(claim.done))
    if queue:
        for escaped, (raw_id, versions) in claim.latest.items():
            queue.remember((claim.thread, names.name_of(escaped)), names.name_of(raw_id), versions)
    return claim.counted(left, time.monotonic() - began)


class _Claim:
    """One flusher's claim of a thread."""

    def __init__(self, tiers: Tiers, thread: str) -> None:
        self.tiers, self.thread = tiers, thread
        self.records: Sequence[Record] = ()
        self.failed: list[tuple[Record, Exception]] = []
        """Records that are set aside, each with its error."""
        self.unreachable: Exception | None = None
        """The error of cold that ended the claim, because cold did not answer the probe after it."""
        self._bases: Mapping[bytes, bytes] = {}
        self._filled_up: set[str] = set()
        self._removed: dict[str, Exception | None] = {}
        """The namespaces in which checkpoints were removed, with cold's error."""
        self.is_asking_cold = False
        """Whether a call of cold is under way. It stays true if the operation was cancelled during the call."""
        self.done: list[Record] = []
        self.latest: dict[bytes, tuple[bytes, Mapping[str, Any]]] = {}
        """The id (escaped) and the versions of the checkpoint that cold got last, by escaped namespace."""
        self.coalesced = 0
        self.gaps = b"0"

    def request(self, token: str, *, at_once: bool) -> Call:
        """The call that claims the thread."""
        keys = self.tiers.hot.keyspace.tier_keys(self.thread)
        return Call(
            scripts.CLAIM,
            (keys.data_key, keys.dirty, keys.flush, keys.intents),
            (token, FLUSH_LEASE, RECORDS_PER_CLAIM, b"1" if at_once else b"0", context.WRITER_GONE),
        )

    def ack(self, token: str) -> Call:
        """The call that says in hot what cold has got, and what it refused."""
        keys = self.tiers.hot.keyspace.tier_keys(self.thread)
        brought = [argument for record in self.done for argument in (record.member, record.score)]
        failed: list[Argument] = []
        for record, error in self.failed:
            pause = min(MAX_PAUSE, 2 ** min(record.tries, 5)) * 1000
            failed += (record.member, pause, names.encode(error_text(error)[:500]))
        latest = [argument for ns, (checkpoint_id, _) in self.latest.items() for argument in (ns, checkpoint_id)]
        return Call(
            scripts.ACK,
            (keys.index_key, keys.data_key, keys.dirty, keys.flush, keys.intents),
            (token, len(self.done), len(self.failed), DELETIONS_KEPT, self.gaps, *brought, *failed, *latest),
        )

    def counted(self, left: int, seconds: float) -> Flushed:
        """The result of the claim; it is also counted in the saver's stats."""
        counts, brought = self.tiers.counts, len(self.done) - self.coalesced
        counts.flushes += 1
        counts.flushed += brought
        counts.coalesced += self.coalesced
        counts.refused += len(self.failed)
        counts.flush_seconds += seconds
        errors = [error for _, error in self.failed]
        if self.unreachable is not None:
            counts.unreachable += 1
            errors.append(self.unreachable)
        return Flushed(left, brought, self.coalesced, errors, bool(self.failed))

    def add(self, records: Sequence[Record], bases: Mapping[bytes, bytes]) -> None:
        """Take over the claimed records, and what cold got last in each namespace. A record that makes no sense counts as failed at once."""
        problems = [(record, record.problem()) for record in records]
        self.records = [record for record, problem in problems if problem is None]
        self.failed = [(record, problem) for record, problem in problems if problem is not None]
        self._bases = bases

    def run(self, until: float, until_by_clock: float, *, coalesces: bool) -> Tiered[None]:
        """Give the records to cold, one after the other. It ends if cold does not answer, or refuses the first two.

        It coalesces only if the claim before was acked. If not, cold may have some of those records already.
        """
        plan = Plan({}, set())
        if coalesces:
            plan = yield from plan_coalescing(self.tiers, self.thread, self.records)
        for record in self.records:
            if time.monotonic() > until or time.time() > until_by_clock:
                return
            if record.member in plan.newest:
                continue
            error = yield from self._give(record, plan.whole)
            if error is not None and not isinstance(error, RedisSaverError):
                if time.monotonic() > until or (yield from self._ask_cold(_PROBE)) is not None:
                    self.unreachable = error
                    return
                error = yield from self._give(record, plan.whole)  # the connection may have been a broken one
            if error is None:
                self.done.append(record)
                continue
            self.failed.append((record, error))
            if record.kind == b"d" or (len(self.failed) > 1 and not self.done):
                return
        given = {record.member for record in self.done}
        for record in self.records:
            if plan.newest.get(record.member) in given:
                self.done.append(record)
                self.coalesced += 1
                if record.kind == b"c":
                    self.gaps = b"1"

    def _give(self, record: Record, whole: set[str]) -> Tiered[Exception | None]:
        """Give a record to cold. Returns the error, if there is one."""
        try:
            if record.kind == b"c" and record.place[0] in whole and (error := (yield from self._fill(record.place[0]))):
                return error
            if record.kind == b"d":
                return (yield from self._delete())
            if record.kind == b"r":
                return (yield from self._remove(record.place[0]))
            if record.kind == b"c":
                return (yield from self._give_checkpoint(record))
            return (yield from self._give_writes(record))
        except HotFailed:
            raise
        except RedisSaverError as error:  # hot has lost it, or cannot read it
            return error

    def _delete(self) -> Tiered[Exception | None]:
        """Delete the thread in cold. From then on nothing counts as what cold got last."""
        self._bases = {}
        self.latest.clear()
        return (yield from self._ask_cold(ColdCall("delete_thread", (self.thread,))))

    def _remove(self, ns: str) -> Tiered[Exception | None]:
        """Remove in cold all checkpoints of a namespace that this claim has to remove, in one call.

        The values of what cold got last may go with them, so the next checkpoint brings all of its own.
        """
        if ns not in self._removed:
            self._bases = {escaped: base for escaped, base in self._bases.items() if escaped != names.component(ns)}
            self.latest.pop(names.component(ns), None)
            gone = [record.place[1] for record in self.records if record.kind == b"r" and record.place[0] == ns]
            call = ColdCall("delete_checkpoints", (self.thread, ns, gone))
            self._removed[ns] = yield from self._ask_cold(call)
        return self._removed[ns]

    def _ask_cold(self, call: ColdCall) -> Tiered[Exception | None]:
        """Call cold. Returns the error, if there is one."""
        self.is_asking_cold = True
        error = (yield Attempt(call)).error
        self.is_asking_cold = False
        return error  # type: ignore[no-any-return]

    def _fill(self, ns: str) -> Tiered[Exception | None]:
        """Give cold what was coalesced in a namespace and is needed now."""
        hot, data = self.tiers.opaque_hot, self.tiers.hot.keyspace.keys(self.thread).data_key
        if ns in self._filled_up or not (yield Command(("HEXISTS", data, "@cold_gaps"))):
            return None
        asked = listing.query(config.to_config(self.thread, ns, ""), None, None, None)
        checkpoints = yield from listing.collect(listing.list_checkpoints(hot, asked))
        paths = yield from task_paths_in_hot(hot, self.thread, checkpoints)
        for found in reversed(checkpoints):
            for call in calls_for(self._opened(found), self.thread, paths):
                if (error := (yield from self._ask_cold(call))) is not None:
                    return error
        self._filled_up.add(ns)
        return None

    def _opened(self, found: CheckpointTuple) -> CheckpointTuple:
        if not isinstance(self.tiers.opaque_hot.serde, OpaqueSerializer):
            return found
        with decoding("{}", config.address(found.config)):
            return opened(found, self.tiers.hot.serde)

    def _give_checkpoint(self, record: Record) -> Tiered[Exception | None]:
        ns, checkpoint_id = record.place
        hot = self.tiers.opaque_hot
        found = yield from reading.get_tuple(hot, config.to_config(self.thread, ns, checkpoint_id))
        if found is None:  # it was pruned or deleted meanwhile
            return None
        found = self._opened(found)
        escaped = names.component(ns)
        before = yield from self._versions_in_cold(ns, escaped)
        versions = versions_of_values(found.checkpoint)
        new = {channel: version for channel, version in versions.items() if before.get(channel) != version}
        error = yield from self._ask_cold(to_put(found, self.thread, new))
        if error is None:
            self.latest[escaped] = (names.component(checkpoint_id), versions)
        return error

    def _versions_in_cold(self, ns: str, escaped: bytes) -> Tiered[Mapping[str, Any]]:
        """The channel versions of the checkpoint that cold got last in a namespace. Cold has their values."""
        if escaped in self.latest:
            return self.latest[escaped][1]
        if (base := self._bases.get(escaped)) is None:
            return {}
        with decoding("what cold got last of thread {!r}", self.thread):
            base_id = names.name_of(base)
        known = self.tiers.flush_queue.versions((self.thread, ns), base_id) if self.tiers.flush_queue else None
        if known is None:
            found = yield from reading.get_tuple(self.tiers.opaque_hot, config.to_config(self.thread, ns, base_id))
            known = versions_of_values(found.checkpoint) if found else {}
        return known

    def _give_writes(self, record: Record) -> Tiered[Exception | None]:
        if record.writes is None:  # pruned or deleted meanwhile
            return None
        hot, place = self.tiers.opaque_hot, f"thread {shown(self.thread)}"
        with decoding("pending writes of {}", place):
            ns, checkpoint_id, task = names.components(record.member[1:])
            where = config.to_config(self.thread, ns, checkpoint_id)
            writes = codec.decode_writes((names.component(task), record.writes), place)
            allowance = Allowance(hot.limits, place)
            chunks = codec.as_chunks(hot, record.chunks, self.thread)
            given = [codec.load_write(hot, write, place, allowance, chunks)[1:] for write in writes]
            allowance.unfold("writes", writes[-1].idx)
        if writes[-1].idx >= len(writes):  # special writes stood between them; each keeps its index
            given = yield from self._filled(record.member, writes, given)
        return (yield from self._ask_cold(ColdCall("put_writes", (where, given, task, writes[0].task_path))))

    def _filled(
        self, member: bytes, writes: Sequence[Write], given: Sequence[tuple[str, Any]]
    ) -> Tiered[list[tuple[str, Any]]]:
        """A task's regular writes at their indexes, with its special ones in the gaps, as they were given to put_writes."""
        keys, hot, place = (
            self.tiers.hot.keyspace.keys(self.thread),
            self.tiers.opaque_hot,
            f"thread {shown(self.thread)}",
        )
        fields = [member + b"%d" % index for index in (-1, -2, -3, -4)]
        records, allowance = (yield Command(("HMGET", keys.data_key, *fields))), Allowance(hot.limits, place)
        with decoding("pending writes of {}", place):
            special = [
                codec.load_write(hot, write, place, allowance)[1:]
                for record in records
                if record
                for write in codec.decode_writes((names.component(""), record), place)
            ]
        if not special:
            return list(given)
        by_index = {write.idx: one for write, one in zip(writes, given, strict=True)}
        return [by_index.get(index) or special[index % len(special)] for index in range(writes[-1].idx + 1)]


class Record(NamedTuple):
    """A note of one thing that cold does not have."""

    member: bytes
    """Its member of the index, with an `r` in place of the `c` for a checkpoint that was rolled back; `d`: the thread was deleted."""
    score: bytes
    """When it was written."""
    tries: int
    """How often cold refused it."""
    writes: bytes | None
    """The pending writes, if it is about writes and they still exist."""
    chunks: Sequence[bytes] = ()
    """What these are made of: a flat list of fields and bytes."""

    def problem(self) -> DecodeError | None:
        """What is wrong with the note, which another program may have written; None if nothing is."""
        try:
            with decoding("the note {!r} of what cold does not have", self.member):
                if self.kind not in (b"c", b"w", b"r", b"d"):
                    raise ValueError("it names neither a checkpoint, nor pending writes, nor a removal, nor a deletion")
                if self.kind != b"d":
                    names.component(self.place[1])
        except DecodeError as error:
            return error
        return None

    @property
    def kind(self) -> bytes:
        """`c` a checkpoint, `w` pending writes, `r` a checkpoint to remove, `d` a deletion of the thread."""
        return self.member[:1]

    @property
    def place(self) -> tuple[str, str]:
        """The namespace and the id of the checkpoint.

        Raises:
            DecodeError: It names none.
        """
        with decoding("the name {!r} of what cold does not have", self.member):
            ns, checkpoint_id = names.components(self.member[1:])[:2]
            return ns, checkpoint_id


class Plan(NamedTuple):
    """What to do with a burst."""

    newest: dict[bytes, bytes]
    """The records that cold does not need (checkpoints that are not the newest of their namespace, and their writes). Each is mapped to the
    newest checkpoint, which cold has to get instead."""
    whole: set[str]
    """Namespaces in which nothing is coalesced, because the newest checkpoint needs its ancestors: a `DeltaChannel` is rebuilt from the writes to them."""


def plan_coalescing(tiers: Tiers, thread: str, records: Sequence[Record]) -> Tiered[Plan]:
    """Plan which of the gathered records to coalesce."""
    of_ns: dict[str, set[str]] = defaultdict(set)
    for record in records:
        if record.kind == b"c":
            ns, checkpoint_id = record.place
            of_ns[ns].add(checkpoint_id)
    whole = set()
    for ns, ids in of_ns.items():
        if (yield from _needs_ancestors(tiers, thread, ns, max(ids))):
            whole.add(ns)
    newest = dict[bytes, bytes]()
    for record in records:
        ns, checkpoint_id = record.place if record.kind != b"d" else ("", "")
        ids = of_ns[ns] if ns in of_ns and ns not in whole else set()
        if checkpoint_id in ids and checkpoint_id != max(ids):
            newest[record.member] = names.checkpoint(ns, max(ids))
    return Plan(newest, whole)


def _needs_ancestors(tiers: Tiers, thread: str, ns: str, newest: str) -> Tiered[bool]:
    try:
        found = yield from reading.get_tuple(tiers.opaque_hot, config.to_config(thread, ns, newest))
    except HotFailed:
        raise
    except RedisSaverError:  # the flusher reports it when it reads the record
        return True
    return found is None or delta.COUNTERS in found.metadata


CACHE_BYTES = 16_000_000
"""Bytes of the flusher's own chunk cache."""
_PLAIN = (JsonPlusSerializer, SafeSerializer, FastSerializer, StrictSerializer)
_KINDS = ("null", "bytes", "bytearray", "msgpack", "json", "pickle")
"""The types that LangGraph's serializer writes, or wrote once."""


class _CarryingSerializer(OpaqueSerializer):
    """An `OpaqueSerializer` that takes no type that cold's serializer does not know: cold would keep what it cannot read."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, _ = data
        if "+" not in kind and kind not in _KINDS:
            raise ValueError(f"it has the type {shown(kind)}, which LangGraph's serializer does not know")
        return super().loads_typed(data)


def opaque_pair(hot: Context, cold: BaseCheckpointSaver[Any]) -> tuple[Context, BaseCheckpointSaver[Any]]:
    """Both savers with serializers that leave objects packed, if that is possible. Hot gets a chunk cache of its own."""
    hot = hot._replace(chunk_cache=ChunkCache(CACHE_BYTES))
    own = type(cold).__module__.startswith("langgraph.checkpoint.")
    if own and type(hot.serde) in _PLAIN and type(cold.serde) in _PLAIN:
        cold = copy.copy(cold)
        cold.serde = OpaqueSerializer()
        hot = hot._replace(serde=_CarryingSerializer())
    return hot, cold


def opened(found: CheckpointTuple, serde: SerializerProtocol) -> CheckpointTuple:
    """A checkpoint that was read with packed objects. All but its values are decoded here, because cold may store that as JSON."""
    closed = OpaqueSerializer()

    def open_up(value: Any) -> Any:
        return serde.loads_typed(closed.dumps_typed(value))

    checkpoint = open_up({**found.checkpoint, "channel_values": {}})
    checkpoint["channel_values"] = found.checkpoint["channel_values"]
    return found._replace(checkpoint=checkpoint, metadata=open_up(found.metadata))
