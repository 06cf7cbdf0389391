"""Encryption of cold: the calls of cold, with envelopes in place of values and metadata (`_storage/envelopes.py`).

The driver runs these operations in place of the calls. So cold never gets a plain value, whoever writes, and nobody
decodes a value of cold before it is opened at its place: cold itself does not, either (`guarding.py`).
"""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import TASKS

from redis_saver._checkpoint import rotating
from redis_saver._checkpoint.delta import COUNTERS
from redis_saver._common import config as configs
from redis_saver._common.display import shown
from redis_saver._engine.lockstep import together
from redis_saver._engine.requests import Command
from redis_saver._storage.context import Context
from redis_saver._storage.envelopes import HEAD, MAGIC, EnvelopeSerializer, begin, envelope, head_of, is_snapshot, seal
from redis_saver._storage.framing import pack, take
from redis_saver._storage.keys import wrapped_by
from redis_saver._storage.opaque import Opaque
from redis_saver._storage.rewrapping import PLAIN as PLAIN_ROW, ROTATED, UNCHANGED, Rewrapping
from redis_saver._storage.sealing import (
    PAIR,
    PLAIN,
    Cipher,
    SpecialCall,
    check_special,
    check_writes,
    digests_of,
    split,
)
from redis_saver._storage.skipping import Skipping
from redis_saver._tiered.context import Tiers, named
from redis_saver._tiered.in_cold import InCold
from redis_saver._tiered.postgres import SEALED
from redis_saver._tiered.requests import ColdCall, Tiered
from redis_saver.encryption import KeyStatus, Rotated
from redis_saver.errors import NotEncrypted, RedisSaverError, decoding

REMEDY = "Nothing was changed. Restore the row from a backup, or delete the thread with delete_thread()."
IN_THE_OPEN = ("source", "step", "parents", "run_id", COUNTERS, "delta_writes_versioned")
"""Metadata that savers and `postgres.py` look at in cold."""


class SealedCold:
    """The cold saver, with envelopes."""

    def __init__(self, hot: Context, known: InCold, serde: SerializerProtocol, *, is_sql: bool, waits: bool) -> None:
        """Describe it.

        Args:
            hot: The hot saver, which encrypts.
            known: This process's memory of cold.
            serde: The serializer of what is in envelopes: cold's, or one that carries (`carrying.py`).
            is_sql: True if cold stores only new versions of values, and keeps the first parent of a checkpoint
                (LangGraph's Postgres saver).
            waits: True if its calls wait for cold without a limit.
        """
        assert hot.data_keys is not None  # noqa: S101 - for the type checker
        self._keyspace, self._keys, self._known = hot.keyspace, hot.data_keys, known
        self._serde, self._is_sql, self._waits = serde, is_sql, waits

    def _ask(self, method: str, *arguments: Any, **options: Any) -> ColdCall:
        """Return a call of cold with envelopes."""
        return ColdCall(method, arguments, options, is_sealed=True, waits=self._waits)

    # -- calls that store

    def put(
        self, config: RunnableConfig, checkpoint: Any, metadata: Any, new_versions: Mapping[str, Any]
    ) -> Tiered[RunnableConfig]:
        """Store a checkpoint. Its metadata have those of the config already.

        Its head lists the channels whose value cold surely has: the new ones, and those whose version this process put
        or read before. LangGraph also puts values whose version never had one, and cold stores only new versions.
        """
        thread, ns, parent = configs.address(config)
        cipher = yield from self._cipher(thread, config)
        if self._is_sql:
            parent = yield from self._first_parent(cipher, thread, ns, checkpoint["id"], parent or "")
        versions, known = checkpoint["channel_versions"], self._known.versions(thread, ns, cipher.id)
        values, stored = dict[str, Any](), dict[str, Any]()
        for channel, value in checkpoint["channel_values"].items():
            is_new, version = channel in new_versions, new_versions.get(channel, versions.get(channel))
            if not self._is_sql or is_new:
                values[channel] = seal(cipher, self._serde, value, "value", thread, ns, channel, str(version))
            else:
                values[channel] = type(value)(MAGIC) if is_snapshot(value) else MAGIC  # Postgres has it, if anybody
            if version == versions.get(channel, versions) and (is_new or known.get(channel, known) == version):
                stored[channel] = version
        merged: dict[str, Any] = {**metadata}
        rest = {**checkpoint, "channel_values": {}}
        known_writes = self._keys.writes_of(cipher, ns, parent) if COUNTERS in merged and parent else b""
        record = [merged, rest, parent or "", [*stored], known_writes]
        head = seal(cipher, self._serde, record, "head", thread, ns, checkpoint["id"])
        given = {key: merged[key] for key in IN_THE_OPEN if key in merged}
        given[HEAD] = base64.b64encode(head).decode()
        outer = {key: part for key, part in checkpoint.items() if key != "pending_sends"}
        arguments = named(thread, ns, parent), {**outer, "channel_values": values}, given, new_versions
        answer: RunnableConfig = yield self._ask("put", *arguments)
        self._known.learn(thread, ns, cipher.id, checkpoint["id"], parent or "", stored)
        return answer

    def _first_parent(self, cipher: Cipher, thread: str, ns: str, checkpoint_id: str, parent: str) -> Tiered[str]:
        """Return the parent that cold has for a checkpoint, or else the given one.

        Postgres keeps the first parent of a checkpoint that is put again. Costs a call of cold, unless this process has
        put or read the checkpoint, or it is new.
        """
        kept = self._known.parent(thread, ns, cipher.id, checkpoint_id)
        if kept is None and self._known.may_have(thread, ns, checkpoint_id, parent):
            one = named(thread, ns, checkpoint_id)
            saved: CheckpointTuple | None = yield self._ask("get_tuple", one)
            if saved is not None:
                _, _, kept, *_ = yield from self._open_head(saved)
        return parent if kept is None else kept

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> Tiered[None]:
        """Store the pending writes of a task.

        Each knows how many regular ones there are, so none can be cut off. A special one also knows its call.
        """
        thread, ns, checkpoint_id = configs.address(config)
        cipher = yield from self._cipher(thread, config)
        special = [WRITES_IDX_MAP[channel] for channel, _ in writes if channel in WRITES_IDX_MAP]
        regular = len(writes) - len(special)
        call = SpecialCall.new(special, range(regular)) if special else None
        place, sealed = ("write", thread, ns, checkpoint_id or "", task_id), list[tuple[str, Any]]()
        for index, (channel, value) in enumerate(writes):
            order = [task_path, str(WRITES_IDX_MAP.get(channel, index)), str(regular)]
            if call is not None and WRITES_IDX_MAP.get(channel) in PAIR:
                order.append(call.sealed.hex())
            sealed.append((channel, seal(cipher, self._serde, value, *place, channel, *order)))
        yield self._ask("put_writes", named(thread, ns, checkpoint_id), sealed, task_id, task_path)
        self._keys.note_writes(cipher, ns, checkpoint_id or "", digests_of([(task_id, write[0]) for write in writes]))

    def _cipher(self, thread: str, config: RunnableConfig) -> Tiered[Cipher]:
        """Return the cipher of a thread that is written.

        Raises:
            PlainValueRefused: The thread is plain.
        """
        data = self._keyspace.keys(thread).data_key
        cipher = yield from self._keys.load(thread, data)
        if cipher is None and (yield Command(("EXISTS", data))):  # another process may have made it since
            cipher = yield from self._keys.load(thread, data)
            if cipher is None:
                raise decoding("thread {!r}", thread).of(NotEncrypted(PLAIN))
        cipher = cipher or (yield from self._keys.make(thread, config))
        return (yield from self._keys.of_envelope(thread, cipher.argument))

    def delete_thread(self, thread: str) -> Tiered[None]:
        """Delete a thread."""
        self._known.forget(thread)
        yield self._ask("delete_thread", thread)

    # -- calls that read

    def get_tuple(self, config: RunnableConfig) -> Tiered[CheckpointTuple | None]:
        """Read a checkpoint."""
        saved = yield self._ask("get_tuple", config)
        if saved is None:
            thread, ns, checkpoint_id = configs.address(config)
            if checkpoint_id is None:
                self._known.saw(thread, ns, "")
            return None
        opened = yield from self._opened(saved)
        thread, ns, _ = configs.address(saved.config)
        made = opened.saved.checkpoint
        versions = {channel: made["channel_versions"][channel] for channel in made["channel_values"]}
        self._known.learn(thread, ns, opened.cipher.id, made["id"], opened.parent, versions)
        return opened.saved

    def list(self, config: RunnableConfig | None, **options: Any) -> Tiered[Sequence[CheckpointTuple]]:
        """List checkpoints."""
        rows = yield self._ask("list", config, **options)
        with Skipping(self._keys, names_one=config is not None) as skipping:
            return (yield from self.opened(rows, skipping))

    def opened(self, rows: Sequence[CheckpointTuple], skipping: Skipping) -> Tiered[Sequence[CheckpointTuple]]:
        """Open checkpoints that cold listed, except those of skipped threads."""
        yield from self._load_keys(rows, skipping)
        found = list[CheckpointTuple]()
        for saved in rows:
            opened = yield from skipping.each(configs.thread_id(saved.config), self._opened(saved))
            found += [opened.saved] if opened else []
        return found

    def _load_keys(self, page: Sequence[CheckpointTuple], skipping: Skipping) -> Tiered[None]:
        """Load the data keys of a page. The provider gets several questions at a time."""
        wanted = dict[tuple[str, bytes], None]()
        for saved in page if self._keys.keeps else ():
            with suppress(ValueError):  # `_opened` raises it, and names the checkpoint
                wanted[configs.thread_id(saved.config), envelope(head_of(saved.metadata)).key] = None
        yield from together([skipping.each(thread, self._keys.of_envelope(thread, key)) for thread, key in wanted])

    def get_delta_channel_history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Tiered[Mapping[str, DeltaChannelHistory]]:
        """Read seeds and writes, as `BaseCheckpointSaver.get_delta_channel_history` defines them.

        Cold's own method does not say where it found them. So the ancestors are read one by one, and each is opened at
        its place.
        """
        answers: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
        remaining = {*channels}
        at: RunnableConfig | None = config
        above: _Opened | None = None
        while remaining and at is not None:
            if (saved := (yield self._ask("get_tuple", at))) is None:
                break
            child, above = above, (yield from self._opened(saved))
            opened = above.saved
            at = opened.parent_config
            if child is None:  # this is the target, not an ancestor
                continue
            with decoding("the ancestors in cold of {}", configs.address(config), remedy=REMEDY):
                check_writes(child.known_writes, opened.pending_writes or (), opened.checkpoint["id"])
            for write in reversed(opened.pending_writes or ()):
                if write[1] in remaining:
                    answers[write[1]]["writes"].insert(0, write)
            for channel in remaining & opened.checkpoint["channel_values"].keys():
                answers[channel]["seed"] = opened.checkpoint["channel_values"][channel]
                remaining.discard(channel)
        if remaining and above is not None and above.parent:
            last = above.saved
            counters: Any = dict(last.metadata).get(COUNTERS) or {}
            with decoding("the ancestors in cold of {}", configs.address(last.config), remedy=REMEDY):
                if lost := [channel for channel in remaining if counters.get(channel, (0,))[0]]:
                    raise ValueError(f"its parent {shown(above.parent)} is gone, which the DeltaChannels {lost} need")
        return answers

    def _opened(self, saved: CheckpointTuple) -> Tiered[_Opened]:
        """Open a checkpoint.

        If the row has no parent, but one is sealed, the parent was pruned, or somebody has cleared the row. So cold is
        asked for it.

        Raises:
            PlainValueRefused: It is plain, or a part of it.
            DecodeError: A part was changed, moved or removed.
        """
        address = configs.address(saved.config)
        thread, ns, checkpoint_id = address[0], address[1], address[2] or ""
        head = yield from self._open_head(saved)
        reading = decoding("{} in cold", address, remedy=REMEDY)
        with reading:
            metadata, checkpoint, parent, stored, *known = head
            versions, in_cold = checkpoint["channel_versions"], saved.checkpoint["channel_values"]
            # Postgres answers True for a snapshot whose value it lacks.
            in_cold = {channel: value for channel, value in in_cold.items() if value is not True or channel in stored}
            if saved.parent_config is not None and configs.checkpoint_id(saved.parent_config) != parent:
                raise ValueError(f"its parent is {shown(parent)}, and another one was put in its place")
            if lost := [channel for channel in stored if channel not in in_cold]:
                raise ValueError(f"the values of its channels {shown(lost)} are gone")
            if TASKS in in_cold and TASKS not in versions:
                raise ValueError("LangGraph wrote it before 2025, with pending sends, which have no place of their own")
        for channel in in_cold.keys() & versions.keys():
            place = "value", thread, ns, channel, str(versions[channel])
            checkpoint["channel_values"][channel], _ = yield from self._open(in_cold[channel], address, *place)
        pending = yield from self._open_writes(saved, address)
        opened = saved._replace(checkpoint=checkpoint, metadata=metadata, pending_writes=[*pending])
        cipher = yield from self._keys.of_envelope(thread, envelope(head_of(saved.metadata)).key)
        self._keys.note_writes(cipher, ns, checkpoint_id, digests_of(pending))
        self._keys.note_writes(cipher, ns, parent, split(b"".join(known)))
        if saved.parent_config is None and parent:
            there = configs.to_config(thread, ns, parent)
            if (yield self._ask("get_tuple", there)) is not None:
                opened = opened._replace(parent_config=there)
        return _Opened(opened, cipher, parent, b"".join(known))

    def _open_writes(self, saved: CheckpointTuple, address: configs.Address) -> Tiered[Sequence[PendingWrite]]:
        """Open the pending writes of a checkpoint, and check that those of each task belong together."""
        place = "write", address.thread_id, address.checkpoint_ns, address.checkpoint_id or ""
        pending = list[tuple[tuple[str, str, int], PendingWrite]]()
        counts, indexes = dict[str, int](), defaultdict[str, Counter[int]](Counter)
        calls = defaultdict[str, dict[int, SpecialCall]](dict)
        for task, channel, value in saved.pending_writes or ():
            write, (path, index, count, *call) = yield from self._open(value, address, *place, task, channel)
            if channel in WRITES_IDX_MAP:
                calls[task][WRITES_IDX_MAP[channel]] = SpecialCall.of(bytes.fromhex("".join(call)))
            pending.append((writes_sort_key(path, task, int(index)), (task, channel, write)))
            indexes[task][int(index)] += 1
            counts[task] = max(counts.get(task, 0), int(count))
        with decoding("{} in cold", address, remedy=REMEDY):
            for task, expected in counts.items():
                regular = [number for number in indexes[task] if number >= 0]
                if len(regular) < expected or max(indexes[task].values()) > 1:
                    raise ValueError(f"of {expected} writes of task {shown(task)} {len(regular)} are there")
            for task, of_task in calls.items():
                check_special(task, of_task)
        return [write for _, write in sorted(pending, key=lambda write: write[0])]

    def _open_head(self, saved: CheckpointTuple) -> Tiered[Any]:
        """Open the head of a checkpoint: its metadata, the checkpoint, its parent, and its channels with a value."""
        address = configs.address(saved.config)
        place = address.thread_id, address.checkpoint_ns, address.checkpoint_id or ""
        with decoding("{} in cold", address, remedy=REMEDY):
            sealed = head_of(saved.metadata)
        head, _ = yield from self._open(sealed, address, "head", *place)
        return head

    def _open(
        self, stored: Any, address: configs.Address, kind: str, thread: str, *place: str
    ) -> Tiered[tuple[Any, Sequence[str]]]:
        """Open an envelope. Returns its value, and the rest of its place."""
        reading = decoding("a {} {!r} of {} in cold", kind, place[-2:], address, remedy=REMEDY)
        with reading:
            sealed = envelope(stored.value if is_snapshot(stored) else stored)
            rest = sealed.place_after(kind, thread, *place)
        cipher = yield from self._keys.of_envelope(thread, sealed.key)
        with reading:
            value = sealed.open(cipher, self._serde)
        return type(stored)(value) if is_snapshot(stored) else value, rest


class _Opened(NamedTuple):
    """A checkpoint of cold, opened."""

    saved: CheckpointTuple
    cipher: Cipher
    """That of its head."""
    parent: str
    """The sealed id of its parent, which may be gone. Empty if it has none."""
    known_writes: bytes
    """The known tasks with writes at its parent."""


def key_status(tiers: Tiers, serde: EnvelopeSerializer) -> Tiered[KeyStatus]:
    """Count the threads of hot and the rows of cold that each key protects."""
    counts, hot = Counter[str](), (yield from rotating.key_status(tiers.hot_context))
    failed = yield from _each_row(tiers, serde, counts)
    plain = hot.plain + counts.pop(PLAIN_ROW, 0)
    rows = dict(sorted(counts.items()))
    return hot._replace(plain=plain, failed=hot.failed | failed, rows=rows, cold_backed=0)


def rotate_keys(tiers: Tiers, serde: EnvelopeSerializer) -> Tiered[Rotated]:
    """Wrap the data keys of the threads of hot, and of the rows of cold, anew."""
    counts, rewrapping = Counter[str](), Rewrapping(tiers.hot_context.data_keys)
    failed = yield from _each_row(tiers, serde, counts, rewrapping.wrapped)
    hot = yield from rotating.rotate_keys(tiers.hot_context)
    numbers = hot.rotated + counts[ROTATED], hot.unchanged + counts[UNCHANGED], hot.plain + counts[PLAIN_ROW]
    return Rotated(*numbers, hot.failed | failed)


def _each_row(
    tiers: Tiers,
    serde: EnvelopeSerializer,
    counts: Counter[str],
    act: Callable[[str, bytes], Tiered[bytes | None]] | None = None,
) -> Tiered[dict[str, str]]:
    """Count the rows of cold by the id of their key, or with `act` by result.

    `act` returns what replaces the wrapped key of a thread, or None.

    Returns:
        The errors by thread.
    """
    if not tiers.cold_is_postgres:
        raise NotImplementedError("cold is not LangGraph's Postgres saver, so its wrapped keys cannot be found")
    failed = dict[str, str]()
    refused = set[tuple[str, bytes]]()  # so that a provider is asked once for each data key, not for each row
    for table in SEALED:
        key: Sequence[Any] = ()
        while rows := (yield ColdCall("sealed_rows", (table, key))):
            changes, replaced = list[tuple[Any, ...]](), dict[tuple[str, bytes], bytes | None]()
            for *key, kind, data in rows:
                thread = key[0]
                try:
                    with decoding("the row {!r} of {} in cold", (*key,), table, remedy=REMEDY):
                        row = _Row(kind, data, serde)
                        key_id = wrapped_by(row.stored) if row.stored else PLAIN_ROW
                    if act is None or not row.stored:
                        counts[key_id] += 1
                        continue
                    if (thread, row.stored) in refused:
                        continue
                    if (thread, row.stored) not in replaced:
                        refused.add((thread, row.stored))
                        replaced[thread, row.stored] = yield from act(thread, row.stored)
                        refused.discard((thread, row.stored))
                except RedisSaverError as error:
                    failed[f"cold {thread}"] = str(error)
                    continue
                if (wrapped := replaced[thread, row.stored]) is None:
                    counts[UNCHANGED] += 1
                else:
                    changes.append((key, *row.change(wrapped)))
            if changes:
                counts[ROTATED] += yield ColdCall("replace_envelopes", (table, changes))
    return failed


class _Row:
    """A row of cold. A long envelope in it is cut after its key."""

    def __init__(self, kind: str, data: Any, serde: EnvelopeSerializer) -> None:
        """Find the envelope. `data` is the text of a head, or bytes.

        Raises:
            ValueError: The head is not base64, or the type of an envelope was changed.
            DecodeError: The cipher of cold's serializer refused it.
        """
        self._kind, self._data, self._serde = kind, data, serde
        self._value: Any = None
        if kind == "head":
            self._value = base64.b64decode(data or "")
        elif kind == "bytes" or "+" in kind or MAGIC in begin(data):
            self._value = serde.loads_typed((kind, data))
        if isinstance(self._value, Opaque) and MAGIC in begin(data):
            raise ValueError(f"its type was changed to {shown(kind)}")
        inner = self._value.value if is_snapshot(self._value) else self._value
        self.stored: bytes = b""
        """The wrapped key. Empty: the row is plain."""
        if isinstance(inner, bytes) and inner.startswith(MAGIC):
            (self.stored,), end = take(inner, len(MAGIC), 1)
            self._begin, self._rest = inner[:end], inner[end:]

    def change(self, wrapped: bytes) -> tuple[Any, Any]:
        """Return what to replace, and by what, so that the envelope has this key."""
        begin = MAGIC + pack([wrapped])
        if self._kind == "bytes":
            return self._begin, begin
        if self._kind == "head":
            return self._data, base64.b64encode(begin + self._rest).decode()
        whole: Any = begin + self._rest
        return self._data, self._serde.dumps_typed(type(self._value)(whole))[1]
