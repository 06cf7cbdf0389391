"""The rule for checkpoints that prune keeps (in Redis and Postgres), and references between a thread's fields."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple, TypeAlias

from redis_saver._checkpoint import reading, scripts
from redis_saver._common import config, limits, names, times
from redis_saver._common.display import shown
from redis_saver._engine.requests import Argument, Call, Command, Operation
from redis_saver._storage import chunks, codec, header
from redis_saver._storage.context import Context
from redis_saver._storage.framing import unpack
from redis_saver.errors import decoding

CheckpointKey = tuple[str, str]
"""A checkpoint in its thread: namespace and id."""

_CALL = ":"
"""Precedes the task's id in the namespace of a subgraph call. Subgraphs with `checkpointer=True` have no task id."""


class Retention(NamedTuple):
    """Keeps the newest `keep_last` checkpoints of each namespace, and all younger than `older_than`."""

    keep_last: int = 1
    older_than: timedelta | None = None

    def kept(self, written: Mapping[CheckpointKey, str]) -> set[CheckpointKey]:
        """Return the checkpoints to keep, given the `ts` of each. They may include finished calls."""
        by_namespace: dict[str, list[str]] = defaultdict(list)
        for ns, checkpoint_id in written:
            by_namespace[ns].append(checkpoint_id)
        keep = {(ns, newest) for ns, ids in by_namespace.items() for newest in sorted(ids)[-self.keep_last :]}
        if self.older_than is not None:
            try:
                horizon = datetime.now(timezone.utc) - self.older_than
            except OverflowError:  # before the year 1, so nothing is older
                return set(written)
            for key, time in written.items():
                moment = times.moment(time)
                if moment is None or moment >= horizon:
                    keep.add(key)
        return keep


def retention(strategy: str, keep_last: int | None, older_than: timedelta | str | None) -> Retention | None:
    """Check the arguments of prune. Returns None if they delete whole threads.

    Raises:
        ValueError, TypeError: An argument is invalid.
    """
    if strategy in {"delete", "delete_all"}:
        if keep_last is not None or older_than is not None:
            raise ValueError(f"strategy={shown(strategy)} removes whole threads: leave out keep_last and older_than")
        return None
    if strategy != "keep_latest":
        raise ValueError(f"strategy={shown(strategy)} is unknown; write 'keep_latest' or 'delete'")
    kept = 1 if keep_last is None else keep_last
    config.number("keep_last", kept, 1, whole=True)
    return Retention(kept, None if older_than is None else times.of(older_than, name="older_than"))


def is_call(ns: str) -> bool:
    """True if a namespace belongs to a single subgraph call. Nobody reads it once the call is finished."""
    return _CALL in ns


def root_of(metadata: Mapping[str, object]) -> str | None:
    """Return the id of the root checkpoint that started a subgraph call, according to the call's metadata."""
    parents = metadata.get("parents")
    root = parents.get("") if isinstance(parents, Mapping) else None
    return root if isinstance(root, str) else None


def finished_calls(
    roots: Mapping[str, str | None], saved: Collection[CheckpointKey], keep: Collection[CheckpointKey]
) -> set[str]:
    """Return the namespaces of the subgraph calls whose root checkpoint is removed.

    Args:
        roots: The root checkpoint of each call, by the call's namespace.
        saved: All checkpoints of the thread. A call whose root checkpoint is missing counts as unfinished, because
        LangGraph saves in the background.
        keep: The checkpoints to keep.
    """
    return {ns for ns, root in roots.items() if root and ("", root) in saved and ("", root) not in keep}


LINKS_PER_PAGE = 200
MEMBERS_PER_PAGE = 500
VALUES_PER_PAGE = 500

STRAY, OVER_AT = b"@gc_roots", b"@over_at"
OF_THREAD = (
    *(b"@ttl", b"@history", b"@cold_backed", b"@complete"),
    *(b"@no_task_path", b"@deferred_ttl", b"@cold_gaps"),
)
"""Fields with a thread's settings, and what hot and cold have of it. A thread that is copied onto itself keeps them."""
OF_NAMESPACE = (OVER_AT, b"@has_latest", b"@flushed_head")
"""Fields of a namespace, without its name. Such a copy keeps them, too. The last checkpoint takes them with it."""
FIELDS = (*OF_THREAD, *OF_NAMESPACE, STRAY, b"@state", b"@rewritten", b"@key", b"@copy", b"@copy_pages")
"""All fields of a thread that begin with `@`. `docs/storage-format.md` explains them."""


Checkpoints: TypeAlias = Mapping[CheckpointKey, header.Links]
"""The links of checkpoints."""


class References(NamedTuple):
    """The links of a thread's checkpoints, at a revision."""

    revision: bytes
    format: int
    """The thread's format."""
    size: int
    """Size of the thread in bytes."""
    strays: int
    """Size of `@gc_roots` in bytes."""
    writes: list[bytes]
    """The members of all pending writes, in order."""
    checkpoints: dict[CheckpointKey, header.Links]
    """The links of each checkpoint, ordered by (namespace, id)."""


def read_references(context: Context, thread: str) -> Operation[References | None]:
    """Read the links of a thread. None if there is no such thread."""
    keys = context.keyspace.keys(thread)
    links: dict[CheckpointKey, header.Links] = {}
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
            names_chunks = codec.as_chunks(context, flat, thread)
            allowance = limits.Allowance(context.limits, f"thread {shown(thread)}")
            for member, head in zip(pairs[::2], pairs[1::2], strict=True):
                ns, checkpoint_id = names.components(member[1:])
                links[ns, checkpoint_id] = header.decode_links(head, names_chunks, thread, allowance)
            is_last = len(pairs) < 2 * LINKS_PER_PAGE
            lower = lower if is_last else _after(lower, pairs[-2])
        if is_last:
            break
    revision, size, strays, writes = first
    if len(writes) == MEMBERS_PER_PAGE:
        writes += yield from members(context, thread, b"w", b"(" + writes[-1])
    return References(revision, newest_format, size, strays, writes, links)


def _after(lower: bytes, member: bytes) -> bytes:
    """Return the lower bound of the page after one that began at `lower` and ended with `member`.

    Raises:
        ValueError: The page is not above `lower`, so that paging would not end.
    """
    if member < lower[1:] or b"(" + member == lower:
        raise ValueError(f"the page of members above {shown(lower)} ends with {shown(member)}, which is not above it")
    return b"(" + member


def members(context: Context, thread: str, kind: bytes = b"", lower: bytes = b"") -> Operation[list[bytes]]:
    """Return the members of a thread's index in order: all, those of a kind, or those from a lower bound on."""
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
    """Check that all members of a page are of that kind, and return the page."""
    for member in page:
        if not isinstance(member, bytes) or not member.startswith(kind):
            raise ValueError(f"{shown(member)} is no member of the kind {shown(kind)} above {shown(lower)}")
    return page


class ReachableChunks(NamedTuple):
    """The chunks of a thread's values and pending writes."""

    roots: dict[bytes, list[bytes]]
    """The roots of each value and record, by field."""
    strays: list[bytes]
    """Roots of overwritten or removed values. Other values may share their chunks."""
    lists: dict[bytes, bytes]
    """The lists of chunks below all roots, by field."""

    def chunks(self, fields: Iterable[bytes]) -> set[bytes]:
        """Return all chunks of some values and records."""
        return chunks.reachable((root for field in fields for root in self.roots.get(field, ())), self.lists)

    def unused(self, fields: Iterable[bytes], used: set[bytes]) -> set[bytes]:
        """Return the chunks of some values and records, and of strays, that are not in `used`.

        `used` must hold all chunks of all other values and records.
        """
        roots = [root for field in fields for root in self.roots.get(field, ())]
        return chunks.reachable((*roots, *self.strays), self.lists, used)


def roots_of(field: bytes, stored: bytes) -> list[bytes]:
    """Return the roots of a stored value, or of a record's writes; none if they are not in chunks."""
    if field[:1] == b"w":
        return codec.roots_in(stored)
    return [stored] if field[:1] == b"b" and chunks.in_chunks(stored) else []


def reachable_chunks(context: Context, thread: str, references: References) -> Operation[ReachableChunks]:
    """Read the roots and lists of chunks of all values and pending writes of a thread."""
    values = {names.blob(ns, entry[1:]) for (ns, _), links in references.checkpoints.items() for entry in links.entries}
    left, reachable = [STRAY, *values, *references.writes], ReachableChunks({}, [], {})
    while left:
        arguments: tuple[Argument, ...] = (reading.BYTES_PER_PAGE, *left[:VALUES_PER_PAGE])
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
