"""What there is in a thread, by name: what prune, delete_for_runs and copy_thread make their plans with."""

from __future__ import annotations

from typing import NamedTuple

from redis_saver import codec, names, scripts
from redis_saver.context import Context
from redis_saver.requests import Call, Command, Operation

LINKS_A_PAGE = 200
WRITES_A_PAGE = 500

Place = tuple[str, str]
"""A checkpoint in its thread: namespace and id."""


class Survey(NamedTuple):
    """The links of a thread's checkpoints, in the order of (namespace, id), at a revision."""

    revision: bytes
    links: dict[Place, codec.Links]


def survey(context: Context, thread: str) -> Operation[Survey | None]:
    """Read the links of a thread; None where there is no such thread."""
    keys = context.keyspace.keys(thread)
    links: dict[Place, codec.Links] = {}
    lower, revision = b"[c", None
    while True:
        page = yield Call(scripts.SURVEY, keys, (lower, LINKS_A_PAGE))
        if page is None:
            return None
        revision = revision or page[0]
        for member, head in zip(page[1::2], page[2::2], strict=True):
            ns, checkpoint_id = names.components(member[1:])
            links[ns, checkpoint_id] = codec.decode_links(head, thread)
            lower = b"(" + member
        if len(page) < 1 + 2 * LINKS_A_PAGE:
            return Survey(revision, links)


def write_members(context: Context, thread: str) -> Operation[list[bytes]]:
    """The members of all pending writes of a thread."""
    index, found, lower = context.keyspace.keys(thread).index_key, list[bytes](), b"[w"
    while True:
        page = yield Command(("ZRANGEBYLEX", index, lower, b"(x", "LIMIT", 0, WRITES_A_PAGE))
        found += page
        if len(page) < WRITES_A_PAGE:
            return found
        lower = b"(" + page[-1]
