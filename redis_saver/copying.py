"""Copying a thread, between cluster slots too.

Page by page through the client into a place beside the target, then one step that puts the copy in the target's place.
"""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

from redis_saver import codec, frames, names, scripts
from redis_saver.context import Context, default_ttl
from redis_saver.errors import ThreadBusy
from redis_saver.names import Keys
from redis_saver.pruning import ATTEMPTS, survey, write_members
from redis_saver.reading import BYTES_A_PAGE
from redis_saver.requests import Argument, Call, Command, Operation

FIELDS_A_PAGE = 500
ABANDONED_AFTER = 3_600_000
"""Milliseconds after which a copy whose maker died goes by itself."""


def copy_thread(context: Context, source: str, target: str) -> Operation[None]:
    """Make the target what the source is now."""
    if source == target:
        return
    for _ in range(ATTEMPTS):
        token = uuid4().hex
        staged = context.keyspace.keys(target, token)
        fields = yield from _plan(context, source)
        if not fields:
            return
        if (yield from _stage(context, source, target, fields, staged)):
            keys = (*context.keyspace.keys(target), *staged)
            if (yield Call(scripts.INSTALL, keys, (token, default_ttl(context)))):
                return
        yield Command(("UNLINK", *staged))
    raise ThreadBusy(f"thread {source!r} kept losing checkpoints while it was copied ({ATTEMPTS} attempts); try again")


def _plan(context: Context, source: str) -> Operation[dict[bytes, list[bytes]]]:
    """The fields to copy, each with its members of the index; nothing where there is no such thread."""
    if (seen := (yield from survey(context, source))) is None:
        return {}
    fields: dict[bytes, list[bytes]] = {}
    for place, links in seen.links.items():
        header = names.checkpoint(*place)
        fields[header] = [header, names.by_age(*place)]
        for entry in links.entries:
            if entry[:1] != codec.ABSENT:
                fields[names.blob(place[0], entry)] = []
    for member in (yield from write_members(context, source)):
        fields[member] = [member]
    return fields


def _stage(
    context: Context, source: str, target: str, fields: dict[bytes, list[bytes]], staged: Keys
) -> Operation[bool]:
    """Copy the fields beside the target. False where one of them went away since the plan was made."""
    left, counted = list(fields), Counter[bytes]()
    data = context.keyspace.keys(source).data_key
    while left:
        values = yield Call(scripts.FETCH, (data,), (BYTES_A_PAGE, *left[:FIELDS_A_PAGE]))
        pairs: list[Argument] = []
        members: list[bytes] = []
        for field, stored in zip(left, values, strict=False):
            if stored is None:
                return False
            is_header = field[:1] == b"c"
            value = codec.copied_header(context.serde, stored, source, target) if is_header else stored
            pairs += (field, value)
            members += fields[field]
            counted[b"@bytes"] += len(value)
            counted[b"@blobs"] += field[:1] == b"b"
            counted[b"@writes"] += len(frames.unpack(value)) // 5 if field[:1] == b"w" else 0
        yield Call(scripts.STAGE, staged, (ABANDONED_AFTER, len(pairs) // 2, *pairs, *members))
        left = left[len(values) :]
    counters: list[Argument] = [b"@rev", 1]
    for counter, amount in counted.items():
        counters += (counter, amount)
    yield Call(scripts.STAGE, staged, (ABANDONED_AFTER, len(counters) // 2, *counters, b""))
    return True
