"""Copying a thread, also between cluster slots.

The client copies the source, page by page, into keys beside the target. Then a script replaces the target by the copy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias
from uuid import uuid4

from redis_saver._checkpoint import guards, pruning, reading, scripts
from redis_saver._checkpoint.checking import describe
from redis_saver._checkpoint.retention import ReachableChunks, References, reachable_chunks, read_references, roots_of
from redis_saver._common import config, limits, names
from redis_saver._common.display import shown
from redis_saver._engine.requests import Argument, Call, Command, Operation
from redis_saver._storage import codec, header
from redis_saver._storage.chunks import IN_CHUNKS
from redis_saver._storage.context import Context, default_ttl
from redis_saver._storage.framing import pack, unpack
from redis_saver._storage.keys import FIELD
from redis_saver._storage.sealing import Cipher
from redis_saver.errors import ThreadBusy, ThreadDamaged, decoding, from_text

FIELDS_PER_PAGE = 500
ABANDONED_AFTER = 3_600_000
"""Milliseconds after which an unfinished copy of a dead process expires."""
Fields: TypeAlias = "dict[bytes, list[bytes] | None]"
"""Fields to copy, each with its members of the index. A field that may be missing has None instead."""
Convert: TypeAlias = Callable[[bytes, bytes], tuple[bytes, bytes]]
"""Takes a field and its contents. Returns those of the copy."""


def copy_thread(context: Context, source: str, target: str) -> Operation[None]:
    """Make the target a copy of the source as it is now."""
    if source == target:
        return
    limits.check_name(context.limits, target, "a thread")
    for _ in range(pruning.ATTEMPTS):
        token = uuid4().hex
        staged = context.keyspace.keys(target, token)
        if (references := (yield from read_references(context, source))) is None:
            return
        reachable = yield from reachable_chunks(context, source, references)
        sealing = None
        if context.data_keys is not None and (cipher := context.opener()) is not None:
            sealing = yield from context.data_keys.wrap_anew(target, cipher, copies=True)
        convert = partial(_copied, context, source, target, sealing)
        with decoding("the contents of thread {!r}", source):
            fields = fields_of(references, reachable)
        counted = yield from stage(context, source, references, reachable, fields, staged, convert, sealing)
        if counted is not None:
            keys, writer = (*context.keyspace.keys(target), *staged), guards.writer_of(context, target, deletes=True)
            arguments = (token, counted[0], default_ttl(context), *counted[1:], references.format, b"")
            if (yield guards.GuardedScript(scripts.PROMOTE, keys, writer).call(*arguments)):
                context.chunk_cache.forget(keys[1])
                if sealing is not None and context.data_keys is not None:
                    context.data_keys.keep(target, sealing)
                return
        yield Command(("UNLINK", *staged))
    raise ThreadBusy(
        f"thread {shown(source)} kept changing while it was copied, during each of {pruning.ATTEMPTS} attempts. "
        "The target was not changed; try again when nobody prunes the thread"
    )


def fields_of(references: References, reachable: ReachableChunks) -> Fields:
    """Return the fields to copy."""
    fields: Fields = {}
    for key, links in references.checkpoints.items():
        member = names.checkpoint(*key)
        fields[member] = [member, names.by_age(*key)] if key[0] else [member]
        fields[links.names_chunk] = []
        for entry in links.entries:
            field = names.blob(key[0], entry[1:])
            if entry[:1] == header.ABSENT:
                fields.setdefault(field, None)
            else:
                fields[field] = []
    fields.update((chunk, []) for chunk in reachable.chunks(reachable.roots))
    fields.update((member, [member]) for member in references.writes)
    return fields


def stage(
    context: Context,
    source: str,
    references: References,
    reachable: ReachableChunks,
    fields: Fields,
    staged: names.Keys,
    convert: Convert,
    sealing: Cipher | None,
) -> Operation[tuple[int, ...] | None]:
    """Copy fields, in their order, into keys beside the target. `sealing` is the target's cipher.

    Returns the numbers of pages, bytes, values and pending writes, or None if the copy has to start again.
    """
    left, size, blobs, writes, pages = list(fields), 0, 0, 0, 0
    data = context.keyspace.keys(source).data_key
    while left:
        values = yield Call(scripts.READ_FIELDS, (data,), (reading.BYTES_PER_PAGE, *left[:FIELDS_PER_PAGE]))
        pairs, members = list[Argument](), list[bytes]()
        if sealing is not None and not pages:
            pairs += (FIELD, sealing.argument)
        with decoding("the contents of thread {!r}", source):
            if not values:
                raise ValueError("the server answered a page without values")
            page = dict(zip(left, values, strict=False))
            lost = [field for field, stored in page.items() if stored is None and fields[field] is not None]
            for field, stored in () if lost else page.items():
                if stored is None:
                    continue
                if not isinstance(stored, bytes):
                    raise TypeError(f"the field {shown(field)} holds {shown(stored)} in place of bytes")
                if not _is_as_planned(field, stored, references, reachable):
                    return None
                name, value = convert(field, stored)
                blobs += field[:1] == b"b"
                writes += codec.count_writes(value, source) if field[:1] == b"w" else 0
                size += len(value)
                pairs += (name, value)
                members += fields[field] or ()
        if lost:  # damage, unless a removal gave the thread another revision
            now = yield from read_references(context, source)
            if now and now.revision == references.revision:
                text = f"DAMAGED a stored value is gone: {describe(lost[0])}"
                raise from_text(text, context.keyspace.keys(source)) or ThreadDamaged(text)
            return None
        pages += 1
        left = left[len(values) :]
        if not (yield Call(scripts.STAGE, staged, (ABANDONED_AFTER, pages, len(pairs) // 2, *pairs, *members))):
            return None
    return pages, size, blobs, writes


def _copied(
    context: Context, source: str, target: str, sealing: Cipher | None, field: bytes, stored: bytes
) -> tuple[bytes, bytes]:
    """Convert a field for the target. Headers and pending writes are sealed for the target."""
    if field[:1] == b"c":
        address = config.Address(source, *names.components(field[1:]))
        copy = header.copied(context, header.opened(context, field, stored), address, target)
        return field, copy if sealing is None else sealing.seal_header(field, copy)
    if field[:1] == b"w" and sealing is not None and context.cipher is not None:
        return field, resealed_writes(context.cipher, sealing, field, stored)
    return field, stored


def resealed_writes(
    cipher: Cipher, sealing: Cipher, field: bytes, stored: bytes, root: Callable[[bytes], bytes] = bytes
) -> bytes:
    """Return a record of pending writes, sealed by another cipher. `root` converts the root of a write in chunks."""
    end, records = field.rindex(b"\0") + 1, list[bytes]()
    task = field[:end]
    frames = cipher.open_writes(task, field[end:], unpack(stored))
    for begin in range(0, len(frames), 5):
        *place, kind, data = frames[begin : begin + 5]
        records.append(pack([*place, kind, root(data) if kind == IN_CHUNKS else data]))
    return b"".join(sealing.seal_writes(task, records))


def _is_as_planned(field: bytes, stored: bytes, references: References, reachable: ReachableChunks) -> bool:
    """True if a field still refers to the values or chunks that it had when the copy was planned."""
    if field[:1] == b"c":
        ns, checkpoint_id = names.components(field[1:])
        return stored.startswith(references.checkpoints[ns, checkpoint_id].raw)
    return roots_of(field, stored) == reachable.roots.get(field, [])
