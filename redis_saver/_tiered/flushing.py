"""Flushing one thread: write its records to cold, in the order in which they were written.

A record stands for a checkpoint, a task's pending writes, a checkpoint to remove, or a deletion of the thread. It has
the time of the write. The flusher reads a record, writes it to cold, and removes it unless it was written again
meanwhile. So cold gets each record at least once, and the last version last.

One flusher at a time works on a thread. A flusher may outlive its claim, if its process was stopped or its machine
slept. Then its ack fails, and the records that it may have overwritten in cold are queued again (`lua/tiered/ack.lua`).

The flusher carries values as bytes and does not build the objects in them (`carrying.py`). Building them would take
most of its time, their classes may not be installed (`redis-saver flush`), and a strict serializer would refuse some.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from operator import index
from typing import Any, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP

from redis_saver._checkpoint import delta, listing, reading
from redis_saver._checkpoint.guards import GuardedScript
from redis_saver._common import config, names, times
from redis_saver._common.display import error_text, shown
from redis_saver._common.limits import Allowance
from redis_saver._common.logs import ThrottledLog
from redis_saver._engine.replies import AckReply, ClaimReply
from redis_saver._engine.requests import Argument, Call, Command, Operation, Sleep, T
from redis_saver._storage import codec
from redis_saver._storage.chunks import Write
from redis_saver._storage.context import Context
from redis_saver._storage.keyed import with_key
from redis_saver._tiered import context, scripts
from redis_saver._tiered.context import Tiers, calls_for, release, task_paths_in_hot, to_put, versions_of_values
from redis_saver._tiered.requests import ColdCall, Tiered, TimeLimited, attempt
from redis_saver.errors import DecodeError, FlushPaused, RedisSaverError, ThreadBusy, decoding

_LOG = ThrottledLog("redis_saver.tiered")
RECORDS_PER_CLAIM = 50
FLUSH_LEASE = 30_000
"""Length of a claim in milliseconds, after which another flusher may take over. A flusher starts records only in the
first third."""
DELETIONS_KEPT = 3_600_000
"""Milliseconds for which hot remembers a deletion, in case a flusher turns out to be fenced."""
MAX_PAUSE = 10
"""Maximum pause before a refused record is tried again, in seconds."""
_PROBES_AFTER = 0.5
"""Seconds after which a waiter probes cold, again and again. The flusher that has the thread may be waiting for it."""
_PROBE = ColdCall("get_tuple", (config.to_config("redis_saver", "", "0"),), is_sealed=True)
"""A call that shows whether cold answers. No checkpoint has this id."""


class Flushed(NamedTuple):
    """The result of a claim."""

    left: int
    """Number of records that cold lacks. 1 if another flusher took over, because then the number is unknown."""
    brought: int
    """Number of records that were written to cold."""
    coalesced: int
    """Number of records that cold does not need."""
    failed: Sequence[Exception]
    """Errors of cold, and of reading from hot."""
    is_refused: bool = False
    """True if cold refused a record, or if a record in hot cannot be read."""


def put_tombstone(tiers: Tiers, thread: str, writer: bytes) -> Tiered[bool]:
    """Delete a thread in hot, and record a tombstone for cold. Returns False if a writer has an intent."""
    keys = tiers.hot_context.keyspace.tier_keys(thread)
    tiers.hot_context.chunk_cache.forget(keys.data_key)
    return bool((yield GuardedScript(scripts.PUT_TOMBSTONE, keys.writing, writer).call()))


def flush_now(tiers: Tiers, thread: str, *, reads: bool = False) -> Tiered[None]:
    """Flush all of a thread. Continues while each claim leaves fewer records than any claim before.

    Args:
        tiers: The saver.
        thread: The thread.
        reads: True for a reader, which waits for other flushers only for `cold_timeout`.

    Raises:
        Exception: Cold's own error.
        ThreadBusy: Others kept flushing or writing the thread.
        ColdTimeout: Cold does not answer.
        FlushPaused: Flushing is paused.
    """
    if left := (yield from tiers.backlog_count.pause()):
        raise FlushPaused(
            f"cold lacks records of thread {shown(thread)} that this call needs there, and flushing is paused for "
            f"another {times.shown(timedelta(seconds=math.ceil(left)))}. Nothing was changed. Wait, or end the pause: "
            "resume_flushing(), or redis-saver flush --resume"
        )
    seconds = patience(tiers if reads else None)
    flushed = yield from _flush_while(tiers, thread, lambda flushed: not flushed.failed, seconds)
    if flushed is None or (flushed.left and not flushed.failed):
        raise busy(thread, seconds)
    if flushed.failed:
        raise flushed.failed[0]


def flush_what_goes(tiers: Tiers, thread: str) -> Tiered[bool]:
    """Flush the records that cold accepts, for a reader. Returns True if cold has the whole thread now.

    Records that cold refuses stay in hot. So do all records if others keep flushing or writing the thread, and while
    flushing is paused.

    Raises:
        Exception: Cold's own error, as it does not answer.
        ThreadBusy: Others had the thread for `cold_timeout`.
    """
    if (yield from tiers.backlog_count.pause()):
        return False
    seconds = patience(tiers)
    flushed = yield from _flush_while(tiers, thread, lambda flushed: flushed.brought + flushed.coalesced > 0, seconds)
    if flushed is None and seconds < patience():
        raise busy(thread, seconds)
    if flushed and flushed.failed and not flushed.is_refused:
        raise flushed.failed[0]
    return flushed is not None and not flushed.left


def _flush_while(
    tiers: Tiers, thread: str, goes_on: Callable[[Flushed], bool], seconds: float
) -> Tiered[Flushed | None]:
    """Flush until nothing is left, `goes_on` rejects a claim's result, or others kept the thread busy for `seconds`.

    Returns the result of the last claim, or None if others had the thread.

    Raises:
        Exception: Cold's own error. It does not answer this waiter, either.
    """
    deadline, fewest = time.monotonic() + seconds, math.inf
    probes_at = time.monotonic() + min(_PROBES_AFTER, seconds / 2)
    claim = partial(flush, tiers, thread, at_once=True, seconds=patience(tiers) / 2)
    while True:
        flushed: Flushed | None = yield TimeLimited("a flush", claim)
        if flushed and (not flushed.left or not goes_on(flushed)):
            return flushed
        if flushed and flushed.left < fewest:
            deadline, fewest = time.monotonic() + seconds, flushed.left
        elif time.monotonic() >= deadline:
            return flushed
        if flushed is None:
            if time.monotonic() > probes_at:
                yield _PROBE
                probes_at = time.monotonic() + _PROBES_AFTER
            yield Sleep(0.02)


def patience(reader: Tiers | None = None) -> float:
    """Return the seconds for which a waiter lets others flush: two claim lengths, or `cold_timeout` if it reads."""
    limit = reader.cold_timeout if reader else None
    return min(2 * FLUSH_LEASE / 1000, math.inf if limit is None else limit)


def until_busy() -> float:
    """Return the deadline after which a waiter raises `busy`: two claim lengths from now."""
    return time.monotonic() + patience()


def busy(thread: str, seconds: float | None = None) -> ThreadBusy:
    """Return the error for a thread that others kept flushing or writing, by default for two claim lengths."""
    return ThreadBusy(
        f"other processes have been flushing thread {shown(thread)} to cold, or writing it there, for "
        f"{patience() if seconds is None else seconds:g} seconds; try again"
    )


def flush(tiers: Tiers, thread: str, *, at_once: bool = False, seconds: float = math.inf) -> Tiered[Flushed | None]:
    """Claim a thread and write some of its records to cold.

    After an error the claim is released. If the release fails too, the next attempt of this process continues the
    claim. If the operation is cancelled while cold is writing, the write may still be going on, so the claim is kept
    until it expires.

    Args:
        tiers: The saver.
        thread: The thread.
        at_once: True: also try records that are set aside.
        seconds: Seconds after which no further record is begun.

    Returns:
        None if another flusher has claimed the thread, or a writer has an intent.
    """
    keys = tiers.hot_context.keyspace.tier_keys(thread)
    claim = _Claim(tiers, thread, keys, tiers.leases.token(keys.flush))
    try:
        return (yield from claim.flush(at_once=at_once, seconds=seconds))
    except BaseException as error:  # also a cancellation: this process may hold the claim
        if not claim.is_asking_cold:
            tiers.leases.keep(keys.flush, claim.token)
            if isinstance(error, Exception):
                yield from release(keys, claim.token)
        raise


class _Claim:
    """One flusher's claim of a thread."""

    def __init__(self, tiers: Tiers, thread: str, keys: names.TierKeys, token: str) -> None:
        self.tiers, self.thread, self.keys, self.token = tiers, thread, keys, token
        self._hot: Context = tiers.flusher_hot
        """Hot with the serializer of flushers, and with the thread's data key."""
        self.records: list[BacklogRecord] = []
        self.failed: list[tuple[BacklogRecord, Exception]] = []
        """Records that cold refused or that hot could not read, each with its error."""
        self.unreachable: Exception | None = None
        """Cold's error that ended the claim, because the probe after it failed as well."""
        self._bases: Mapping[bytes, bytes] = {}
        """The id of the checkpoint that cold stored last, by namespace. Both are escaped."""
        self._filled_up: set[str] = set()
        self._removed: dict[str, Exception | None] = {}
        """Namespaces in which this claim removed checkpoints, each with cold's error."""
        self.is_asking_cold = False
        """True during a call of cold. Stays true if the operation is cancelled during the call."""
        self.done: list[BacklogRecord] = []
        self.latest: dict[bytes, tuple[bytes, Mapping[str, Any]]] = {}
        """Id (escaped) and channel versions of the checkpoint that this claim flushed last, by escaped namespace."""
        self.coalesced: list[BacklogRecord] = []
        self._newest: dict[bytes, bytes] = {}
        """Records that cold does not need: older checkpoints of a namespace, and their writes. Each maps to the newest
        checkpoint of the namespace, which cold gets instead."""
        self._whole: set[str] = set()
        """Namespaces without coalescing, because a `DeltaChannel` is rebuilt from writes to the ancestors."""

    def flush(self, *, at_once: bool, seconds: float) -> Tiered[Flushed | None]:
        """Claim the thread, write its records to cold, and report to hot which of them cold stored or refused."""
        began, queue, keys = time.monotonic(), self.tiers.flush_queue, self.keys
        arguments = scripts.ClaimArguments(
            token=self.token, length=FLUSH_LEASE, most=RECORDS_PER_CLAIM, at_once=b"1" if at_once else b"0",
            gone=context.WRITER_GONE,
        )  # fmt: skip
        claimed = yield Call(scripts.CLAIM, (keys.data_key, keys.dirty, keys.flush, keys.intents), arguments)
        if claimed == ClaimReply.BUSY:
            return None
        with decoding("the backlog of thread {!r}", self.thread):
            bases, left, unacked, *raw = claimed
            left = index(left)
            if any(tuple(map(type, fields[:3])) != (bytes, bytes, int) for fields in raw):
                raise TypeError("a record without a name, a time and a number of tries")
            self._bases = dict(zip(bases[::2], bases[1::2], strict=True))
            for ns, base in self._bases.items():
                self.tiers.saw(self.thread, names.name_of(ns), names.name_of(base))
            for fields in raw:
                record = BacklogRecord(*fields)
                try:
                    record.check()
                    self.records.append(record)
                except DecodeError as error:
                    self.failed.append((record, error))
        if not raw:
            return Flushed(left, 0, 0, ())
        if unacked:
            self.tiers.in_cold.forget(self.thread)  # the other flusher may have put newer checkpoints than hot noted
            text = "the flusher takes over thread %s from a flusher that did not finish, and repeats its work"
            _LOG.info(text, shown(self.thread))
        seconds = min(seconds, FLUSH_LEASE / 3000)  # the rest of the lease is for the last cold call
        coalesces = queue is not None and queue.history == "latest" and not unacked
        until = began + seconds, time.time() + seconds  # the monotonic clock stops while a machine sleeps
        yield from self.run(*until, coalesces=coalesces)
        ack, scan_id = self._ack(), self.tiers.backlog_count.scan_id
        try:
            left = yield ack
        except Exception:  # noqa: BLE001 - a fenced flusher must learn it
            left = yield ack
        with decoding("the size of the backlog of thread {!r}", self.thread):
            left = index(left)
        if left == AckReply.FENCED:
            text = "this flusher took too long, so another one took over thread %s and repeats what it did to cold"
            _LOG.warning(text, shown(self.thread))
            left = 1
        else:
            self.tiers.backlog_count.flushed(len(self.done), scan_id)
            if queue:
                for escaped, (raw_id, versions) in self.latest.items():
                    queue.remember((self.thread, names.name_of(escaped)), names.name_of(raw_id), versions)
        return self._counted(left, time.monotonic() - began)

    def _ack(self) -> Call:
        brought = [argument for record in self.done for argument in (record.member, record.score)]
        failed: list[Argument] = []
        for record, error in self.failed:
            pause = min(MAX_PAUSE, 2 ** min(record.tries, 5)) * 1000
            text = error_text(error) if self._hot.data_keys is None else self.tiers.log_text(error)
            failed += (record.member, pause, names.encode(text[:500]))
        latest = [argument for ns, (checkpoint_id, _) in self.latest.items() for argument in (ns, checkpoint_id)]
        gaps = b"1" if any(record.kind == b"c" for record in self.coalesced) else b"0"
        arguments = scripts.AckArguments(
            token=self.token, n=len(self.done), m=len(self.failed), kept=DELETIONS_KEPT, gaps=gaps
        )
        keys = self.keys
        return Call(
            scripts.ACK,
            (keys.index_key, keys.data_key, keys.dirty, keys.flush, keys.intents),
            (*arguments, *brought, *failed, *latest),
        )

    def _counted(self, left: int, seconds: float) -> Flushed:
        """Add the claim to the saver's stats and return its result."""
        counts, coalesced = self.tiers.counts, len(self.coalesced)
        brought = len(self.done) - coalesced
        counts.flushes += 1
        counts.flushed += brought
        counts.coalesced += coalesced
        counts.refused += len(self.failed)
        counts.flush_seconds += seconds
        errors = [error for _, error in self.failed]
        if self.unreachable is not None:
            counts.unreachable += 1
            errors.append(self.unreachable)
        return Flushed(left, brought, coalesced, errors, bool(self.failed))

    def run(self, until: float, until_by_clock: float, *, coalesces: bool) -> Tiered[None]:
        """Write the records to cold one by one. Stops if cold does not answer, or refuses the first two records.

        Args:
            until: Deadline of `time.monotonic` for beginning a record.
            until_by_clock: The same deadline of `time.time`.
            coalesces: False unless the previous claim was acked: cold may already have some of its records.
        """
        if coalesces:
            yield from self._plan()
        for record in self.records:
            if time.monotonic() > until or time.time() > until_by_clock:
                return
            if record.member in self._newest:
                continue
            error = yield from self._give(record)
            if error is not None and not isinstance(error, RedisSaverError):
                if time.monotonic() > until or (yield from self._ask_cold(_PROBE)) is not None:
                    self.unreachable = error
                    return
                error = yield from self._give(record)  # the connection may have been broken
            if error is None:
                self.done.append(record)
                continue
            self.failed.append((record, error))
            if record.kind == b"d" or (len(self.failed) > 1 and not self.done):
                return
        brought = {record.member for record in self.done}
        self.coalesced = [record for record in self.records if self._newest.get(record.member) in brought]
        self.done += self.coalesced

    def _plan(self) -> Tiered[None]:
        """Choose the records to coalesce, with `cold_history="latest"`."""
        ids = defaultdict[str, set[str]](set)
        for record in self.records:
            if record.kind == b"c":
                ns, checkpoint_id = record.address
                ids[ns].add(checkpoint_id)
        for ns, of_ns in ids.items():
            newest = max(of_ns)
            if (yield from self._needs_ancestors(ns, newest)):
                self._whole.add(ns)
                continue
            for record in self.records:
                if record.address[0] == ns and record.address[1] in of_ns - {newest}:
                    self._newest[record.member] = names.checkpoint(ns, newest)

    def _needs_ancestors(self, ns: str, newest: str) -> Tiered[bool]:
        """True if a `DeltaChannel` is rebuilt from the ancestors, also by a graph in which it is a plain list now."""
        try:
            saved = yield from self._keyed(
                lambda: reading.get_tuple(self._hot, config.to_config(self.thread, ns, newest))
            )
            if saved is None or delta.COUNTERS in saved.metadata:
                return True
            channels = delta.lacking(saved.checkpoint["channel_versions"], saved.checkpoint["channel_values"])
            if not channels:
                return False
            address = config.Address(self.thread, ns, newest)
            walked = yield from self._keyed(lambda: delta.walk(self._hot, address, channels))
            return any(ancestor.writes for ancestor in walked.ancestors)
        except RedisSaverError:  # the flusher reports it when it reads the record
            return True

    def _keyed(self, step: Callable[[], Tiered[T]]) -> Tiered[T]:
        """Run a step with the thread's data key."""

        def make(hot: Context) -> Any:
            self._hot = hot
            return step()

        return with_key(self.tiers.flusher_hot, self.thread, make)

    def _give(self, record: BacklogRecord) -> Tiered[Exception | None]:
        """Write a record to cold. Returns its error, or None."""
        ns, _ = record.address
        try:
            if record.kind == b"d":
                return (yield from self._delete())
            if record.kind == b"r":
                return (yield from self._remove(ns))
            if record.kind == b"w":
                return (yield from self._keyed(lambda: self._give_writes(record)))
            error = (yield from self._keyed(lambda: self._fill(ns))) if ns in self._whole else None
            return error or (yield from self._keyed(lambda: self._give_checkpoint(record)))
        except RedisSaverError as error:  # hot lost the record or cannot read it
            return error

    def _delete(self) -> Tiered[Exception | None]:
        """Delete the thread in cold, and forget which checkpoints cold stored last."""
        self._bases = {}
        self.latest.clear()
        return (yield from self._ask_cold(ColdCall("delete_thread", (self.thread,))))

    def _remove(self, ns: str) -> Tiered[Exception | None]:
        """Remove all checkpoints of a namespace that this claim has to remove, in one call of cold.

        Cold may lose the values of the checkpoint that it stored last. So the next checkpoint is written with all its
        values.
        """
        if ns not in self._removed:
            self._bases = {escaped: base for escaped, base in self._bases.items() if escaped != names.component(ns)}
            self.latest.pop(names.component(ns), None)
            gone = [record.address[1] for record in self.records if record.kind == b"r" and record.address[0] == ns]
            call = ColdCall("delete_checkpoints", (self.thread, ns, gone))
            self._removed[ns] = yield from self._ask_cold(call)
        return self._removed[ns]

    def _ask_cold(self, call: ColdCall) -> Tiered[Exception | None]:
        self.is_asking_cold, waiting = True, self.tiers.counts.waiting
        waiting[self] = time.monotonic()
        try:
            _, error = yield from attempt(call._replace(is_packed=True, waits=True))
        finally:
            waiting.pop(self, None)
        self.is_asking_cold = False
        return error

    def _fill(self, ns: str) -> Tiered[Exception | None]:
        """Write to cold the checkpoints of a namespace that were coalesced and are needed now."""
        if ns in self._filled_up or not (yield Command(("HEXISTS", self.keys.data_key, "@cold_gaps"))):
            return None
        query = listing.query(config.to_config(self.thread, ns, ""), None, None, None)
        checkpoints = yield from listing.collect(listing.list_checkpoints(self._hot, query))
        paths = yield from task_paths_in_hot(self._hot, self.thread, checkpoints)
        for saved in reversed(checkpoints):
            for call in calls_for(self.tiers.for_cold(saved), self.thread, paths):
                if (error := (yield from self._ask_cold(call))) is not None:
                    return error
        self._filled_up.add(ns)
        return None

    def _give_checkpoint(self, record: BacklogRecord) -> Tiered[Exception | None]:
        ns, checkpoint_id = record.address
        saved = yield from reading.get_tuple(self._hot, config.to_config(self.thread, ns, checkpoint_id))
        if saved is None:  # pruned or deleted meanwhile
            return None
        saved = self.tiers.for_cold(saved)
        escaped = names.component(ns)
        before = yield from self._versions_in_cold(ns, escaped)
        versions = versions_of_values(saved.checkpoint)
        new = {channel: version for channel, version in versions.items() if before.get(channel) != version}
        error = yield from self._ask_cold(to_put(saved, self.thread, new))
        if error is None:
            self.latest[escaped] = (names.component(checkpoint_id), versions)
        return error

    def _versions_in_cold(self, ns: str, escaped: bytes) -> Tiered[Mapping[str, Any]]:
        """Return the channel versions of the checkpoint that cold stored last in a namespace. Cold has these values."""
        if escaped in self.latest:
            return self.latest[escaped][1]
        if (base := self._bases.get(escaped)) is None:
            return {}
        with decoding("the last flushed checkpoint of thread {!r}", self.thread):
            base_id = names.name_of(base)
        versions = self.tiers.flush_queue.versions((self.thread, ns), base_id) if self.tiers.flush_queue else None
        if versions is None:
            saved = yield from reading.get_tuple(self._hot, config.to_config(self.thread, ns, base_id))
            # If the checkpoint was put again, cold does not have hot's version of it yet.
            is_dirty = (yield Command(("ZSCORE", self.keys.dirty, names.checkpoint(ns, base_id)))) is not None
            versions = versions_of_values(saved.checkpoint) if saved and not is_dirty else {}
        return versions

    def _give_writes(self, record: BacklogRecord) -> Tiered[Exception | None]:
        if record.writes is None:  # pruned or deleted meanwhile
            return None
        hot, location = self._hot, f"thread {shown(self.thread)}"
        with decoding("pending writes of {}", location):
            ns, checkpoint_id, task = names.components(record.member[1:])
            target = config.to_config(self.thread, ns, checkpoint_id)
            address, stored = config.Address(self.thread, ns, checkpoint_id), [_suffix(record.member), record.writes]
        if hot.cipher is not None and stored[0][-1:] != b"\0":  # those of one call are sealed together
            stored = (yield from self._special_in_hot(record.member[: record.member.rindex(b"\0") + 1])) or stored
        with decoding("pending writes of {}", location):
            writes = codec.decode_writes(hot, stored, address)
            allowance = Allowance(hot.limits, location)
            decoder = codec.Decoder(hot, codec.as_chunks(hot, record.chunks, self.thread), allowance)
            pairs = [decoder.write(write)[1:] for write in writes]
            allowance.unfold("writes", writes[-1].idx)
        if writes[-1].idx >= len(writes):  # there were special writes between them, and each write keeps its index
            pairs = yield from self._filled(record.member, writes, pairs)
        return (yield from self._ask_cold(ColdCall("put_writes", (target, pairs, task, writes[0].task_path))))

    def _filled(
        self, member: bytes, writes: Sequence[Write], pairs: Sequence[tuple[str, Any]]
    ) -> Tiered[list[tuple[str, Any]]]:
        """Put a task's regular writes at their indexes, and fill the gaps with special writes of the task."""
        hot, location = self._hot, f"thread {shown(self.thread)}"
        stored, decoder = (
            (yield from self._special_in_hot(member)),
            codec.Decoder(hot, {}, Allowance(hot.limits, location)),
        )
        with decoding("pending writes of {}", location):
            address = config.Address(self.thread, *names.components(member[1:])[:2])
            special = [decoder.write(write)[1:] for write in codec.decode_writes(hot, stored, address)]
        if not special:
            return list(pairs)
        by_index = {write.idx: pair for write, pair in zip(writes, pairs, strict=True)}
        return [by_index.get(index) or special[index % len(special)] for index in range(writes[-1].idx + 1)]

    def _special_in_hot(self, member: bytes) -> Operation[list[bytes]]:
        """Return the special writes of a task in hot, as `codec.decode_writes` takes them."""
        fields = [member + b"%d" % index for index in WRITES_IDX_MAP.values()]
        records = yield Command(("HMGET", self.keys.data_key, *fields))
        with decoding("pending writes of thread {!r}", self.thread):
            pairs = zip(fields, records, strict=True)
            return [part for field, record in pairs if record for part in (_suffix(field), record)]


def _suffix(member: bytes) -> bytes:
    """Return the part of a member that names the task, and the index of a special write."""
    return member.split(b"\0", 2)[2]


class BacklogRecord(NamedTuple):
    """A record in hot of one thing that cold lacks."""

    member: bytes
    """Member of the index, with `r` instead of `c` for a rolled-back checkpoint. `d` for a deleted thread."""
    score: bytes
    """Time it was written."""
    tries: int
    """Number of refusals by cold."""
    writes: bytes | None
    """The pending writes, if they still exist."""
    chunks: Sequence[bytes] = ()
    """Chunks of these writes: a flat list of fields and bytes."""

    def check(self) -> None:
        """Check the format, because another program may have written the record.

        Raises:
            DecodeError: The record is malformed.
        """
        with decoding("the backlog record {!r}", self.member):
            if self.kind not in (b"c", b"w", b"r", b"d"):
                raise ValueError("it names neither a checkpoint, nor pending writes, nor a removal, nor a deletion")
            _ = self.address

    @property
    def kind(self) -> bytes:
        """`c`: checkpoint, `w`: pending writes, `r`: checkpoint to remove, `d`: deletion of the thread."""
        return self.member[:1]

    @property
    def address(self) -> tuple[str, str]:
        """Namespace and id of the checkpoint. Both are empty for a deletion."""
        if self.kind == b"d":
            return "", ""
        ns, checkpoint_id = names.components(self.member[1:])[:2]
        return ns, checkpoint_id
