"""How a history is drawn: a chain runs straight down, a fork opens a lane for each branch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Drawn(NamedTuple):
    """One checkpoint of a drawing."""

    lane: str
    """What stands in front of it."""
    id: str
    parent: str


def lanes(found: Sequence[tuple[str, str, T]]) -> Iterator[tuple[Drawn, T]]:
    """Checkpoints from the oldest on, branch after branch.

    Args:
        found: Of each, newest first: its id, its parent's (empty: it has none), and what it is. One whose parent is not among them begins a branch.
    """
    ids, children = {one[0] for one in found}, dict[str, list[tuple[str, T]]]()
    for here, parent, what in found:
        children.setdefault(parent if parent in ids else "", []).append((here, what))
    stack, seen = [("", "", "", here, what) for here, what in children.get("", ())], set[str]()
    rest = iter(
        [("", "", parent, here, what) for here, parent, what in found]
    )  # of those that are each other's ancestors
    while stack or (stack := list(islice(rest, 1))):
        lane, below, parent, here, what = stack.pop()
        if here in seen:
            continue
        seen.add(here)
        yield Drawn(lane, here, parent), what
        branches = children.get(here, ())
        for position, branch in enumerate(branches):  # the newest first, so that the oldest is on top of the stack
            fork, past = ("", "") if len(branches) == 1 else ("├─", "│ ") if position else ("└─", "  ")
            stack.append((below + fork, below + past, here, *branch))
