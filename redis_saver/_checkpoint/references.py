"""References between the fields of a thread. The plans of prune, delete_for_runs and copy_thread are made from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from redis_saver._checkpoint import scripts
from redis_saver._checkpoint.reading import BYTES_PER_PAGE
from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._common import names
from redis_saver._common.display import shown
from redis_saver._common.limits import Allowance
from redis_saver._engine.requests import Argument, Call, Command, Operation
from redis_saver._storage import chunks as chunked
from redis_saver._storage import codec
from redis_saver._storage import header as headers
from redis_saver._storage.context import Context
from redis_saver._storage.framing import unpack
from redis_saver.errors import decoding

LINKS_PER_PAGE = 200
MEMBERS_PER_PAGE = 500
VALUES_PER_PAGE = 500

CHUNKED_WRITES = 2
STRAY = b"@gc_roots"
"""The field with the roots of overwritten or removed values, whose chunks may be unused."""


class References(NamedTuple):
    """The links of a thread's checkpoints, at a revision."""

    revision: bytes
    format: int
    """The thread's format. From `CHUNKED_WRITES` on, pending writes may be in chunks."""
    size: int
    """Size of the thread in bytes."""
    strays: int
    """Size of `@gc_roots` in bytes."""
    writes: list[bytes]
    """The members of all pending writes, in their order."""
    links: dict[CheckpointKey, headers.Links]
    """In the order of (namespace, id)."""


def read_references(context: Context, thread: str) -> Operation[References | None]:
    """Read the links of a thread; None if there is no such thread."""
    keys = context.keyspace.keys(thread)
    links: dict[CheckpointKey, headers.Links] = {}
    lower, first, newest_format = b"[c", tuple[Any, ...](), 0
    while True:
        page = yield Call(scripts.LIST_REFERENCES, keys, (lower, LINKS_PER_PAGE))
        if page is None:
            return None
        with decoding("the checkpoints of thread {!r}", thread):
            revision, thread_format, size, strays, writes, flat, *pairs = page
            if [type(revision), type(thread_format), type(size), type(strays)] != [bytes, int, int, int]:
                raise TypeError(f"{shown(page[:4])} is no revision with a format and two sizes")
            first = first or (revision, size, strays, _checked(writes, b"w", b"[w"))
            newest_format = max(newest_format, thread_format)
            chunks = codec.as_chunks(context, flat, thread)
            allowance = Allowance(context.limits, f"thread {shown(thread)}")
            for member, head in zip(pairs[::2], pairs[1::2], strict=True):
                ns, checkpoint_id = names.components(member[1:])
                links[ns, checkpoint_id] = headers.decode_links(head, chunks, thread, allowance)
            is_last = len(pairs) < 2 * LINKS_PER_PAGE
            lower = lower if is_last else _after(lower, pairs[-2])
        if is_last:
            break
    revision, size, strays, writes = first
    if len(writes) == MEMBERS_PER_PAGE:
        writes += yield from members(context, thread, b"w", b"(" + writes[-1])
    with decoding("the names of pending writes of thread {!r}", thread):
        for member in writes:
            if member.count(b"\0") != 3:
                raise ValueError(f"the member {shown(member)} names no task")
    return References(revision, newest_format, size, strays, writes, links)


def _after(lower: bytes, member: bytes) -> bytes:
    """Return the lower bound of the page after one that began at `lower` and ended with `member`."""
    if member < lower[1:] or b"(" + member == lower:
        raise ValueError(f"the page of members above {shown(lower)} ends with {shown(member)}, which is not above it")
    return b"(" + member


def members(context: Context, thread: str, kind: bytes = b"", lower: bytes = b"") -> Operation[list[bytes]]:
    """Return the members of a thread's index in their order: all, those of a kind, or those from a lower bound on."""
    index, all_members = context.keyspace.keys(thread).index_key, list[bytes]()
    lower, upper = lower or (b"[" + kind if kind else b"-"), b"(" + bytes((kind[0] + 1,)) if kind else b"+"
    while True:
        page = yield Command(("ZRANGEBYLEX", index, lower, upper, "LIMIT", 0, MEMBERS_PER_PAGE))
        with decoding("the index of thread {!r}", thread):
            all_members += _checked(page, kind, lower)
            is_last = len(page) < MEMBERS_PER_PAGE
            lower = lower if is_last else _after(lower, page[-1])
        if is_last:
            return all_members


def _checked(page: list[bytes], kind: bytes, lower: bytes) -> list[bytes]:
    """Return a page of members, after a check that all are of that kind."""
    for member in page:
        if not isinstance(member, bytes) or not member.startswith(kind):
            raise ValueError(f"{shown(member)} is no member of the kind {shown(kind)} above {shown(lower)}")
    return page


class ReachableChunks(NamedTuple):
    """The chunks of a thread's values and pending writes."""

    roots: dict[bytes, list[bytes]]
    """The root of each value in chunks, by its field, and the roots of each record's writes, by its member."""
    strays: list[bytes]
    """Roots of overwritten or removed values. Other values may share their chunks."""
    lists: dict[bytes, bytes]
    """The lists of chunks below all of these, by field."""

    def chunks(self, fields: Iterable[bytes]) -> set[bytes]:
        """Return all chunks of some values and records."""
        return chunked.reachable((root for field in fields for root in self.roots.get(field, ())), self.lists)

    def unused(self, fields: Iterable[bytes], used: set[bytes]) -> set[bytes]:
        """Return the chunks of some values and records and of strays, except `used`: all chunks of all others."""
        roots = [root for field in fields for root in self.roots.get(field, ())]
        return chunked.reachable((*roots, *self.strays), self.lists, used)


def reachable_chunks(context: Context, thread: str, seen: References) -> Operation[ReachableChunks]:
    """Find all chunks of the values and pending writes of a thread."""
    values = {names.blob(ns, entry[1:]) for (ns, _), links in seen.links.items() for entry in links.entries}
    records = seen.writes if seen.format >= CHUNKED_WRITES else ()
    left, reachable = [STRAY, *values, *records], ReachableChunks({}, [], {})
    while left:
        arguments: tuple[Argument, ...] = (BYTES_PER_PAGE, *left[:VALUES_PER_PAGE])
        answer = yield Call(scripts.CHUNK_LISTS, context.keyspace.keys(thread), arguments)
        with decoding("the chunks of values of thread {!r}", thread):
            flat, first, *others = answer
            roots = [first, *others]
            reachable.lists.update(codec.as_chunks(context, flat, thread))
            for field, root in zip(left, roots, strict=False):
                if field == STRAY:
                    reachable.strays.extend(unpack(root))
                elif root:
                    reachable.roots[field] = unpack(root) if field[:1] == b"w" else [root]
        left = left[len(roots) :]
    return reachable
