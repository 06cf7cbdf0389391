"""What there is in a thread, by name: what prune, delete_for_runs and copy_thread make their plans with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from redis_saver import names
from redis_saver.checkpoint.reading import BYTES_A_PAGE
from redis_saver.display import shown
from redis_saver.engine import scripts
from redis_saver.engine.requests import Argument, Call, Command, Operation
from redis_saver.errors import decoding
from redis_saver.limits import Allowance
from redis_saver.storage import codec, headers
from redis_saver.storage import parts as parted
from redis_saver.storage.context import Context
from redis_saver.storage.frames import unpack

LINKS_A_PAGE = 200
WRITES_A_PAGE = 500
VALUES_A_PAGE = 500

STRAY = b"@gc_roots"
"""The field with the roots of values whose parts may be nobody's by now."""

Place = tuple[str, str]
"""A checkpoint in its thread: namespace and id."""


class Survey(NamedTuple):
    """The links of a thread's checkpoints, in the order of (namespace, id), at a revision."""

    revision: bytes
    links: dict[Place, headers.Links]


def survey(context: Context, thread: str) -> Operation[Survey | None]:
    """Read the links of a thread; None where there is no such thread."""
    keys = context.keyspace.keys(thread)
    links: dict[Place, headers.Links] = {}
    lower, revision = b"[c", None
    while True:
        page = yield Call(scripts.LIST_REFERENCES, keys, (lower, LINKS_A_PAGE))
        if page is None:
            return None
        with decoding("the checkpoints of thread {!r}", thread):
            if not isinstance(page[0], bytes):
                raise TypeError(f"{shown(page[0])} is no revision")
            revision = revision or page[0]
            parts, allowance = (
                codec.as_parts(context, page[1], thread),
                Allowance(context.limits, f"thread {shown(thread)}"),
            )
            for member, head in zip(page[2::2], page[3::2], strict=True):
                ns, checkpoint_id = names.components(member[1:])
                links[ns, checkpoint_id] = headers.decode_links(head, parts, thread, allowance)
            is_last = len(page) < 2 + 2 * LINKS_A_PAGE
            lower = lower if is_last else _behind(lower, page[-2])
        if is_last:
            return Survey(revision, links)


def _behind(lower: bytes, member: bytes) -> bytes:
    """The lower bound of the page behind one that began at `lower` and ends with a member."""
    if member < lower[1:] or b"(" + member == lower:
        raise ValueError(f"the members above {shown(lower)} end with {shown(member)}")
    return b"(" + member


def write_members(context: Context, thread: str) -> Operation[list[bytes]]:
    """The members of all pending writes of a thread."""
    index, found, lower = context.keyspace.keys(thread).index_key, list[bytes](), b"[w"
    while True:
        page = yield Command(("ZRANGEBYLEX", index, lower, b"(x", "LIMIT", 0, WRITES_A_PAGE))
        with decoding("the names of pending writes of thread {!r}", thread):
            for member in page:
                if len(names.components(member[1:])) != 3:
                    raise ValueError(f"{shown(member)} names no task")
            found += page
            is_last = len(page) < WRITES_A_PAGE
            lower = lower if is_last else _behind(lower, page[-1])
        if is_last:
            return found


class Holdings(NamedTuple):
    """What the values of a thread that are in parts are made of."""

    roots: dict[bytes, bytes]
    """By the value's field, what it holds."""
    strays: list[bytes]
    """Roots of values that were overwritten or removed; others may hold their parts too."""
    lists: dict[bytes, bytes]
    """The lists of parts below all of these, by field."""

    def parts(self, values: Iterable[bytes]) -> set[bytes]:
        """All parts of some values, by the values' fields."""
        return parted.holdings((self.roots[field] for field in values if field in self.roots), self.lists)


def holdings(context: Context, thread: str, seen: Survey) -> Operation[Holdings]:
    """Find out which parts the values of a thread are made of."""
    values = {names.blob(ns, entry[1:]) for (ns, _), links in seen.links.items() for entry in links.entries}
    left, found = [STRAY, *values], Holdings({}, [], {})
    while left:
        arguments: tuple[Argument, ...] = (BYTES_A_PAGE, *left[:VALUES_A_PAGE])
        answer = yield Call(scripts.PARTS, context.keyspace.keys(thread), arguments)
        with decoding("the parts of values of thread {!r}", thread):
            flat, first, *others = answer
            roots = [first, *others]
            found.lists.update(codec.as_parts(context, flat, thread))
            for field, root in zip(left, roots, strict=False):
                if field == STRAY:
                    found.strays.extend(unpack(root))
                elif root:
                    found.roots[field] = root
        left = left[len(roots) :]
    return found
