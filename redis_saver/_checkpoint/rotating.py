"""Rotation of keys: of those that wrap the threads' data keys, and of the data keys themselves."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from uuid import uuid4

from redis_saver._checkpoint import copying, guards, listing, pruning, retention, scripts
from redis_saver._common import names
from redis_saver._common.display import shown
from redis_saver._common.limits import Allowance
from redis_saver._engine.requests import Command, Operation
from redis_saver._storage import chunks, compression, rewrapping
from redis_saver._storage.chunks import LIST, PLAIN, ZSTD
from redis_saver._storage.context import Context
from redis_saver._storage.framing import take
from redis_saver._storage.keys import made_at, with_key
from redis_saver._storage.rewrapping import GONE, ROTATED, UNCHANGED, Holder, Rewrapping
from redis_saver._storage.sealing import Cipher
from redis_saver.encryption import KeyStatus, Rotated
from redis_saver.errors import ThreadBusy, decoding


def key_status(context: Context) -> Operation[KeyStatus]:
    """Count the threads that each key protects."""
    return (yield from rewrapping.status("thread", (yield from _threads(context))))


def rotate_keys(context: Context, *, data: bool = False, before: datetime | None = None) -> Operation[Rotated]:
    """Wrap the data keys of all threads anew. With `data`, replace those that were made before a moment."""
    rewrap = Rewrapping(context.data_keys)
    if before is not None and (not data or not isinstance(before, datetime) or before.tzinfo is None):
        raise TypeError(f"before={shown(before)}: write a datetime with a tzinfo, and only with data=True")
    limit = (before or datetime.now(timezone.utc)).timestamp()

    def reseal(holder: Holder, stored: bytes) -> Operation[str]:
        if made_at(stored) >= limit:
            return UNCHANGED
        return (yield from with_key(context, holder.name, partial(_reseal, thread=holder.name)))

    threads = yield from _threads(context)
    return rewrapping.result(*(yield from rewrapping.each("thread", threads, reseal if data else rewrap)))


def _threads(context: Context) -> Operation[list[Holder]]:
    threads = dict.fromkeys((yield from listing.collect(listing.scan_threads(context))))
    keys = context.keyspace.keys
    return [Holder(thread, (keys(thread).data_key, keys(thread).index_key)) for thread in threads]


def _reseal(context: Context, thread: str) -> Operation[str]:
    """Replace a thread by a copy under a new data key."""
    data_keys, cipher, target = context.data_keys, context.cipher, context.keyspace.keys(thread)
    if data_keys is None or cipher is None:
        return GONE
    sealing = yield from data_keys.wrap_anew(thread, cipher, replaces=True)
    for _ in range(pruning.ATTEMPTS):
        token = uuid4().hex
        staged = context.keyspace.keys(thread, token)
        state = yield Command(("HGET", target.data_key, "@state"), (target.data_key,))
        references = yield from retention.read_references(context, thread)
        if state is None or references is None:
            return GONE
        reachable = yield from retention.reachable_chunks(context, thread, references)
        with decoding("the contents of thread {!r}", thread):
            fields = _fields(references, reachable)
        convert = _Resealer(context, cipher, sealing, reachable.lists)
        counted = yield from copying.stage(context, thread, references, reachable, fields, staged, convert, sealing)
        if counted is not None:
            arguments = (token, counted[0], b"", *counted[1:], references.format, state)
            if (yield guards.GuardedScript(scripts.PROMOTE, (*target, *staged), guards.ANYBODY).call(*arguments)):
                context.chunk_cache.forget(target.data_key)
                data_keys.keep(thread, sealing)
                return ROTATED
        yield Command(("UNLINK", *staged))
    raise ThreadBusy(
        f"others wrote to thread {shown(thread)} during each of {pruning.ATTEMPTS} attempts to replace its data key. "
        "It keeps its data key; try again"
    )


def _fields(references: retention.References, reachable: retention.ReachableChunks) -> copying.Fields:
    """Return the fields in the order of copying: chunks, lists of chunks, the others. Headers keep their runs."""
    fields = copying.fields_of(references, reachable)
    for key, links in references.checkpoints.items():
        member = names.checkpoint(*key)
        fields[member] = [*(fields[member] or ()), *([links.run] if links.run else ())]
    return dict(sorted(fields.items(), key=lambda field: b"znbcw".find(field[0][:1])))


class _Resealer:
    """Seals the fields of a thread by another cipher. Chunks get other names, which lists and roots then hold."""

    def __init__(self, context: Context, cipher: Cipher, sealing: Cipher, lists: Mapping[bytes, bytes]) -> None:
        self._context, self._cipher, self._sealing, self._lists = context, cipher, sealing, lists
        self._names = dict[bytes, bytes]()
        """The new names of chunks."""

    def __call__(self, field: bytes, stored: bytes) -> tuple[bytes, bytes]:
        """Convert a field, as `copying.stage` asks for."""
        old, new, kind = self._cipher, self._sealing, field[:1]
        if kind == b"c":
            return field, new.seal_header(field, old.open_header(field, stored)[0])
        if kind == b"w":
            return field, copying.resealed_writes(old, new, field, stored, self._root)
        if kind == b"b":
            return field, new.seal_value(field, self._root(old.open_value(field, stored))) if stored else stored
        if kind == LIST:
            return self._name(field), self._list(field)
        if field == PLAIN + chunks.digest(stored):  # a chunk of names, which stay open
            return field, stored
        chunk = whole = old.open_chunk(field, stored)
        if kind == ZSTD:
            whole = compression.decompress(chunk, Allowance(self._context.limits, "the thread"))
        name = self._names[field] = kind + new.digest(whole)
        return name, new.seal_chunk(name, chunk)

    def _name(self, field: bytes) -> bytes:
        if field not in self._names:  # a list
            self._names[field] = LIST + self._sealing.digest(self._list(field))
        return self._names[field]

    def _list(self, field: bytes) -> bytes:
        chunk = self._lists[field]
        return chunk[:1] + self._below(chunk[:1], chunk[1:])

    def _root(self, value: bytes) -> bytes:
        """Return a value, or the root of its chunks under their new names."""
        if not chunks.in_chunks(value):
            return value
        start = take(value, 1 + chunks.DIGEST, 2)[1]
        below = value[1 + chunks.DIGEST : start] + self._below(value[:1], value[start:])
        return value[:1] + self._sealing.digest(value[:1] + below) + below

    def _below(self, kind: bytes, digests: bytes) -> bytes:
        return chunks.digests_of([self._name(field) for field in chunks.children(kind, digests)])
