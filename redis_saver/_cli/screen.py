"""What commands print: tables, values in short, JSON. Colours, and names that are cut off, on a terminal alone."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from langchain_core.messages import BaseMessage
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from redis_saver._common import times
from redis_saver._common.display import shown

STATES = {"interrupted": "yellow", "failed": "red", "active": ""}
KINDS = {
    "added": "green",
    "removed": "red",
    "changed": "yellow",
    "error": "bold red",
    "warning": "yellow",
    "ok": "green",
}
_GIST = 60
"""Characters of a value in short."""
_DEEPEST = 100
_GAP = 2
"""Blanks between two columns."""
_NARROWEST = 12
"""The minimum width of a column that is cut."""
_ENDING = 8
"""The minimum number of characters of a shortened id. Commands take such an ending for the id."""


def console() -> Console:
    """Where results go. What is no terminal gets whole lines, and no colour unless it is forced."""
    found = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not found.is_terminal:
        found.width = 10_000
    return found


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Iterable[str] = (),
    ids: Iterable[str] = (),
    whole: Iterable[str] = (),
    wrapped: bool = False,
) -> None:
    """Print a table without lines.

    On a terminal that is too narrow, ids are shortened to their endings, then the widest columns are cut between words. The last columns that still do not fit
    are left out, and stderr names them.

    Args:
        columns: The heads of the columns.
        rows: The cells.
        right: The columns of numbers, which are never cut.
        ids: The columns of ids, or of lists of ids that commas separate. They are never cut, only shortened.
        whole: Other columns that are never cut, such as times.
        wrapped: True to continue the last column on the next line instead of cutting it.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = _widths(columns, cells)
    numbers, to = set(right), console()
    if to.is_terminal:
        if sum(widths) + _GAP * (len(widths) - 1) > to.width:
            for at in [at for at, name in enumerate(columns) if name in set(ids)]:
                _shorten(cells, at)
        kept = numbers | set(ids) | set(whole)
        widths = _fitted(_widths(columns, cells), [name in kept for name in columns], to.width)
        last = len(columns) - 1 if wrapped else len(columns)
        cells = [
            [_cut(cell, width) for cell, width in zip(row[:last], widths, strict=False)] + row[last:] for row in cells
        ]
    to.width = max(to.width, sum(widths) + _GAP * len(widths))
    made = Table(box=None, pad_edge=False, header_style="dim", show_header=any(columns))
    for name, width in zip(columns, widths, strict=False):
        is_cut = not wrapped or len(made.columns) < len(columns) - 1
        overflow: Any = "ellipsis" if is_cut else "fold"
        justify: Any = "right" if name in numbers else "left"
        made.add_column(Text(name), no_wrap=is_cut, overflow=overflow, justify=justify, width=width)
    for row in cells:
        made.add_row(*row[: len(widths)])
    with to.capture() as capture:
        to.print(made)
    for text in capture.get().splitlines():
        sys.stdout.write(text.rstrip() + "\n")
    if left_out := columns[len(widths) :]:
        note(f"the terminal is too narrow for: {', '.join(left_out)}; a wider one shows them, and so does --json")


def _widths(columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> list[int]:
    return [max([cell_len(name), *(row[at].cell_len for row in cells)]) for at, name in enumerate(columns)]


def _shorten(cells: Sequence[list[Text]], at: int) -> None:
    """Replace the ids of a column by their endings, which are long enough to tell them apart."""
    known = {word for row in cells for word in row[at].plain.split(", ")}
    length = next(size for size in range(_ENDING, 1000) if len({word[-size:] for word in known}) == len(known))
    for row in cells:
        words = row[at].plain.split(", ")
        row[at] = Text(", ".join(f"…{word[-length:]}" if len(word) > length + 1 else word for word in words))


def _cut(cell: Text, width: int) -> Text:
    """Cut a cell to a width: between two words, if that keeps half of it."""
    if cell.cell_len <= width:
        return cell
    cut = cell.copy()
    cut.truncate(width - 1)
    if not cell.plain[len(cut.plain)].isspace() and (end := cut.plain.rfind(" ")) >= width // 2:
        cut = cut[:end]
    cut.rstrip()
    return cut.append("…")


def _fitted(widths: Sequence[int], kept: Sequence[bool], room: int) -> list[int]:
    """The widths of as many columns, from the first on, as have room beside each other. One that may be cut keeps `_NARROWEST` at least."""
    least = [width if keep else min(width, _NARROWEST) for width, keep in zip(widths, kept, strict=True)]
    count = len(widths)
    while count > 1 and sum(least[:count]) + _GAP * (count - 1) > room:
        count -= 1
    fitted = [max(least[at], min(widths[at], room)) for at in range(count)]
    over = sum(fitted) + _GAP * (count - 1) - room
    while over > 0 and (some := [at for at in range(count) if fitted[at] > least[at]]):
        fitted[max(some, key=fitted.__getitem__)] -= 1
        over -= 1
    return fitted


def looks(*, watch: bool, cleared: bool) -> Iterator[None]:
    """Once; or every two seconds, on a cleared screen if that is said, until Ctrl-C."""
    yield
    while watch:
        time.sleep(2)
        if cleared:
            console().clear()
        yield


def line(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Say something about the results that is none of them: on stderr."""
    sys.stderr.write(text + "\n")


def named(name: str | None) -> str:
    """A name as it can stand on a screen: as it is, or as `repr` writes it if it has anything in it that does not print, or is empty."""
    if name is None:
        return "-"
    return name if name.isprintable() and name.strip() == name and name[:1] not in ("", "'", '"') else shown(name)


def styled(text: str, style: str) -> Text:
    """A text with a style, which a terminal shows."""
    return Text(text, style)


def ago(at: datetime | None) -> str:
    """How long ago a moment is."""
    if at is None:
        return "-"
    past = datetime.now(timezone.utc) - at
    return f"{times.shown(timedelta(seconds=int(max(past, timedelta()).total_seconds())))} ago"


def left(ttl: timedelta | None, *, pinned: bool = False) -> str:
    """When a thread expires."""
    if pinned:
        return "pinned"
    return "never" if ttl is None else f"in {times.shown(timedelta(seconds=int(ttl.total_seconds())))}"


def size(amount: int | None) -> str:
    """A number of bytes."""
    return "-" if amount is None else f"{amount:,}"


def gist(value: Any) -> str:
    """A value in short, in one line."""
    if isinstance(value, BaseMessage):
        calls = ", ".join(str(call["name"]) for call in getattr(value, "tool_calls", ()))
        text = f"{value.type}: {value.content or (f'calls {calls}' if calls else '')}"
    elif isinstance(value, _interrupts()):
        return gist(value.value)
    elif isinstance(value, (bytes, bytearray)):
        return f"{len(value):,} bytes"
    elif isinstance(value, (list, tuple)) and value:
        text = f"{'1 element' if len(value) == 1 else f'{len(value):,} elements, the last'}: {gist(value[-1])}"
    elif isinstance(value, Mapping) and len(value) > 3:
        text = f"{len(value):,} keys: {', '.join(map(str, list(value)[:10]))}"
    else:
        text = value if isinstance(value, str) else repr(value)
    cut = text if len(text) <= _GIST else f"{text[:_GIST]}..."
    return cut if cut.isprintable() else shown(cut)


def _interrupts() -> tuple[type[Any], ...]:
    """LangGraph's `Interrupt`, if a value can be one: to import it takes as long as all the rest of a command."""
    types = sys.modules.get("langgraph.types")
    return () if types is None else (types.Interrupt,)


def emit(found: Any) -> None:
    """Print something as a line of JSON."""
    sys.stdout.write(json.dumps(plain(found), ensure_ascii=True) + "\n")


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON can hold it: dataclasses, tuples with names, and messages become objects, times and durations texts and seconds, other objects texts."""
    if depth > _DEEPEST:
        return "..."
    opened = next((make(value) for kind, make in _OPENED if isinstance(value, kind)), value)
    if hasattr(opened, "_asdict"):
        opened = opened._asdict()
    elif is_dataclass(opened) and not isinstance(opened, type):
        opened = {one.name: getattr(opened, one.name) for one in fields(opened)}
    if isinstance(opened, Mapping):
        return {str(key): plain(one, depth + 1) for key, one in opened.items()}
    if isinstance(opened, (list, tuple, set, frozenset)):
        return [plain(one, depth + 1) for one in opened]
    return opened if opened is None or isinstance(opened, (bool, int, float, str)) else repr(opened)


_OPENED: tuple[tuple[type[Any], Callable[[Any], Any]], ...] = (
    (float, lambda value: value if math.isfinite(value) else repr(value)),
    (datetime, datetime.isoformat),
    (timedelta, timedelta.total_seconds),
    (BaseMessage, lambda value: {"type": value.type, **vars(value)}),
)
"""What becomes something else before JSON holds it."""
