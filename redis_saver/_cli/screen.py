"""Output of commands: lines, tables, JSON and progress. Colours and cut columns are only for terminals."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any

from langchain_core.messages import BaseMessage
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"
_DEEPEST = 100
_GAP = 2
"""Blanks between two columns."""
_NARROWEST = 12
"""Minimum width of a column that is cut."""
_LEAST = {"says": 30, "value": 40}
"""Minimum widths of columns of texts, so that others are cut first."""
_ENDING = 8
"""Minimum number of characters of a shortened id. Commands accept such an ending for the id."""


def line(text: str) -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a remark about the results on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def looks(*, watch: bool) -> Iterator[Callable[[], None]]:
    """Yield once, or with `watch` every two seconds until Ctrl-C.

    The yielded function clears the terminal, except the first time. Call it when the next results are there.
    """
    yield lambda: None
    while watch:
        time.sleep(2)
        yield _console().clear


def sparkline(values: Sequence[float]) -> str:
    """Draw numbers as bars, from the smallest to the largest of them."""
    least, span = min(values), max(values) - min(values)
    return "".join(_BARS[int((value - least) / span * (len(_BARS) - 1)) if span else 0] for value in values)


@contextmanager
def progress_bar(unit: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """Show progress on a terminal. The block gets a function of the number done, the total and a text."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, _text: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    words = TextColumn(f"{unit}  {{task.description}}")
    with Progress(BarColumn(), MofNCompleteColumn(), words, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        row = bar.add_task("", total=None)
        yield lambda done, total, text: bar.update(row, completed=done, total=total, description=text)


# -- JSON


def emit(value: Any) -> None:
    """Print a value as a line of JSON."""
    line(json.dumps(plain(value), ensure_ascii=True))


def show(value: Any, text: str, *, as_json: bool) -> None:
    """Print a result: `value` as JSON, or `text`."""
    if as_json:
        emit(value)
    else:
        line(text)


_CONVERSIONS: tuple[tuple[type[Any], Callable[[Any], Any]], ...] = (
    (float, lambda value: value if math.isfinite(value) else repr(value)),
    (datetime, datetime.isoformat),
    (timedelta, timedelta.total_seconds),
    (BaseMessage, lambda value: {"type": value.type, **vars(value)}),
)


def plain(value: Any, depth: int = 0) -> Any:
    """Turn a value into JSON's types.

    Dataclasses, named tuples and messages become objects. Times become ISO 8601 texts, durations become seconds, and
    anything else becomes its `repr`.
    """
    if depth > _DEEPEST:
        return "..."
    value = next((convert(value) for kind, convert in _CONVERSIONS if isinstance(value, kind)), value)
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


# -- tables


def _console() -> Console:
    """Return the console for results. Without a terminal, lines are whole, and there is no colour unless forced."""
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = sys.maxsize
    return console


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

    On a narrow terminal, ids are shortened to their endings, then the widest columns are cut. Columns at the end that
    still do not fit are left out, and stderr names them.

    Args:
        columns: Heads of the columns.
        rows: Cells.
        right: Columns of numbers, which are never cut.
        ids: Columns of ids, or of ids joined by commas. They are shortened, but never cut.
        whole: Other columns that are never cut, such as times.
        wrapped: True to wrap the last column instead of cutting it.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    console, numbers, kept = _console(), set(right), {*right, *ids, *whole}
    if sum(_widths(columns, cells)) + _GAP * (len(columns) - 1) > console.width:
        for at in (at for at, name in enumerate(columns) if name in set(ids)):
            _shorten(cells, at)
    pairs = zip(columns, _widths(columns, cells), strict=True)
    widths = [width if name in kept else min(width, _LEAST.get(name, _NARROWEST)) for name, width in pairs]
    number = len(columns)
    while number > 1 and sum(widths[:number]) + _GAP * (number - 1) > console.width:
        number -= 1
    printed = Table(box=None, pad_edge=False, header_style="dim", show_header=any(columns))
    for name, width in zip(columns[:number], widths, strict=False):
        justify: Any = "right" if name in numbers else "left"
        printed.add_column(Text(name), no_wrap=name in kept, min_width=width, justify=justify)
    for row in cells:
        for cell in row[: len(columns) - wrapped]:
            cell.no_wrap, cell.overflow = True, "ellipsis"
        printed.add_row(*row[:number])
    with console.capture() as capture:
        console.print(printed)
    for text in capture.get().splitlines():
        line(text.rstrip())
    if left_out := columns[number:]:
        note(f"the terminal is too narrow for: {', '.join(left_out)}. Widen it, or use --json")


def _widths(columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> list[int]:
    return [max([cell_len(name), *(row[at].cell_len for row in cells)]) for at, name in enumerate(columns)]


def _shorten(cells: Sequence[list[Text]], at: int) -> None:
    """Shorten the ids of a column to endings that differ."""
    known = {word for row in cells for word in row[at].plain.split(", ")}
    length = next(size for size in range(_ENDING, 1000) if len({word[-size:] for word in known}) == len(known))
    for row in cells:
        words = row[at].plain.split(", ")
        row[at] = Text(", ".join(f"…{word[-length:]}" if len(word) > length + 1 else word for word in words))
