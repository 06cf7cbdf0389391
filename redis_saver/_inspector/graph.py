"""How a page of checkpoints is drawn: newest on top, a lane for each branch, dashed lines to the checkpoints that calls of subgraphs began from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis_saver._checkpoint.auditing import Entry

MAX_LANES = 12
"""Lanes that are drawn; those beyond lie on the last one."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line inside of a row, from top (0), middle (50) or bottom (100) to one of these, in percent; `x` counts lanes."""

    x1: int
    y1: int
    x2: int
    y2: int
    is_dashed: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A checkpoint in a drawing."""

    lane: int
    lines: tuple[Line, ...]
    width: int
    """How many lanes the row takes."""


@dataclass(slots=True)
class _Lane:
    """A lane that goes down to a checkpoint: its namespace and id."""

    wanted: tuple[str, str]
    is_dashed: bool


def drawn(found: Sequence[Entry]) -> list[Row]:
    """The rows of some checkpoints, newest first."""
    lanes, rows = list[_Lane | None](), list[Row]()
    for one in found:
        here = (one.ns, one.id)
        coming = [at for at, lane in enumerate(lanes) if lane is not None and lane.wanted == here]
        solid = [at for at in coming if not _is_dashed(lanes[at])]
        mine = (solid or [_free(lanes)])[0]
        lines = [_line(at, 0, mine, 50, dashed=_is_dashed(lanes[at])) for at in coming]
        lines += [
            _line(at, 0, at, 100, dashed=lane.is_dashed)
            for at, lane in enumerate(lanes)
            if lane is not None and at not in coming
        ]
        for at in coming:
            lanes[at] = None
        if (below := _below(one)) is not None:
            if mine == len(lanes):
                lanes.append(None)
            lanes[mine] = below
            lines.append(_line(mine, 50, mine, 100, dashed=below.is_dashed))
        while lanes and lanes[-1] is None:
            lanes.pop()
        widest = max([mine, *(end for line in lines for end in (line.x1, line.x2))])
        rows.append(Row(min(mine, MAX_LANES - 1), tuple(dict.fromkeys(lines)), min(widest, MAX_LANES - 1) + 1))
    return rows


def _below(one: Entry) -> _Lane | None:
    """What a checkpoint leads down to: its parent; of the first one of a subgraph's call, the checkpoint that the call began from."""
    if one.parent is not None:
        return _Lane((one.ns, one.parent), is_dashed=False)
    if not one.ns:
        return None
    outer = one.ns.rpartition("|")[0]
    return _Lane((outer, one.parents[outer]), is_dashed=True) if outer in one.parents else None


def _free(lanes: Sequence[_Lane | None]) -> int:
    return next((at for at, lane in enumerate(lanes) if lane is None), len(lanes))


def _is_dashed(lane: _Lane | None) -> bool:
    return lane is not None and lane.is_dashed


def _line(x1: int, y1: int, x2: int, y2: int, *, dashed: bool) -> Line:
    return Line(min(x1, MAX_LANES - 1), y1, min(x2, MAX_LANES - 1), y2, dashed)
