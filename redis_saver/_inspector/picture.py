"""The checkpoints of a thread as a picture (SVG) that needs no other file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from unicodedata import east_asian_width

from redis_saver._common.display import counted, printable
from redis_saver._inspector.rows import Drawing, TreeRow, Turn, drawn
from redis_saver._inspector.values import moment, named

_LANE, _ROW, _LETTER, _GAP = 14, 24, 7.3, 14
"""Widths of a lane, of a letter and between columns, and height of a row, in pixels."""
_LONGEST = 80
"""Maximum number of letters of a label."""
_HEADS = [("soft", head) for head in ("turn", "ran", "says", "checkpoint", "created (UTC)")]
_STYLE = """
svg { --ground: #fff; --ink: #1d2125; --soft: #667079; --bad: #b3271e; --warn: #8a5a00;
  --l0: #4c78c9; --l1: #c2632a; --l2: #2f8f63; --l3: #8d5bc1; --l4: #b04a83; --l5: #6d7780; }
@media (prefers-color-scheme: dark) {
  svg { --ground: #14171a; --ink: #e6e9ec; --soft: #98a2ab; --bad: #ff8f85; --warn: #f2c55c;
    --l0: #7ea6f0; --l1: #ee9a63; --l2: #66c497; --l3: #bd95ea; --l4: #e487b8; --l5: #a0aab3; } }
rect { fill: var(--ground); }
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--ink); white-space: pre; }
.soft { fill: var(--soft); } .failed { fill: var(--bad); } .interrupted, .answered { fill: var(--warn); }
line { stroke-width: 2; } .dashed { stroke-dasharray: 3 3; }
circle.failed, circle.interrupted, circle.answered { fill: var(--ground); stroke-width: 2.5; }
circle.failed { stroke: var(--bad); } circle.interrupted, circle.answered { stroke: var(--warn); }
circle.answered { stroke-width: 1.5; }
"""


def svg(thread: str, turns: Sequence[Turn]) -> str:
    """Draw turns, given newest first, with a line for each checkpoint: turn, node, what it said, id and time."""
    cells, rows = [_HEADS], [row for turn in turns for row in turn.rows]
    for turn in turns:
        cells += [_cells(turn, row) for row in turn.rows]
    drawings = drawn([row.entry for row in rows])
    left = (max([drawing.width for drawing in drawings], default=1) + 1) * _LANE
    ends = [left]
    for column in zip(*cells, strict=True):
        ends.append(ends[-1] + round(max([_width(text) for _, text in column]) * _LETTER) + _GAP)
    title = _cut(f"thread {named(thread)}, {counted(len(rows), 'checkpoint')}, newest first")
    width, height = max(ends[-1], round(_width(title) * _LETTER) + 2 * _GAP), (len(cells) + 1) * _ROW + _GAP
    colours = "".join(f".l{at} {{ stroke: var(--l{at}); }} circle.l{at} {{ fill: var(--l{at}); }}\n" for at in range(6))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>{escape(title)}</title><style>{colours}{_STYLE}</style>",
        f'<rect width="{width}" height="{height}"/><text x="{_GAP}" y="{_ROW - 6}">{escape(title)}</text>',
    ]
    for at, texts in enumerate(cells, 1):
        for x, (kind, text) in zip(ends, texts, strict=False):
            parts.append(f'<text x="{x}" y="{at * _ROW + 16}" class="{kind}">{escape(text)}</text>')
    for at, (drawing, row) in enumerate(zip(drawings, rows, strict=True), 2):
        parts += _lanes(drawing, row, at * _ROW)
    return "\n".join((*parts, "</svg>", ""))


def _lanes(drawing: Drawing, row: TreeRow, top: int) -> list[str]:
    def x(lane: int) -> int:
        return _LANE * (lane + 1)

    parts = [
        f'<line class="l{line.x2 % 6}{" dashed" if line.is_dashed else ""}" x1="{x(line.x1)}" x2="{x(line.x2)}" '
        f'y1="{top + line.y1 * _ROW / 100:g}" y2="{top + line.y2 * _ROW / 100:g}"/>'
        for line in drawing.lines
    ]
    centre = f'cx="{x(drawing.lane)}" cy="{top + _ROW // 2}"'
    return [*parts, f'<circle class="l{drawing.lane % 6} {row.state}" {centre} r="4.5"/>']


def _cells(turn: Turn, row: TreeRow) -> list[tuple[str, str]]:
    """Return the cells of a row, each with its class."""
    entry = row.entry
    ran = ": ".join((*map(named, row.levels), ", ".join(map(named, row.ran)) or f"({named(entry.source)})"))
    number = f"{turn.number}" if row is turn.rows[0] else ""
    said, made = printable(row.notice or row.preview), moment(entry.created_at)
    return [("soft", number), ("", _cut(ran)), (row.state, _cut(said)), ("", _cut(named(entry.id))), ("soft", made)]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _width(text: str) -> int:
    """Return the width of a text, in letters."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)
