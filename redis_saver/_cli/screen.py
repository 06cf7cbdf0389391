"""What commands print: tables, values in short, JSON. Colours, and names that are cut off, on a terminal alone."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from langchain_core.messages import BaseMessage
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


def console() -> Console:
    """Where results go. What is no terminal gets whole lines, and no colour unless it is forced."""
    found = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not found.is_terminal:
        found.width = 10_000
    return found


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, right: Iterable[str] = ()) -> None:
    """Print a table without lines. The columns named in `right` are numbers."""
    made = Table(box=None, pad_edge=False, header_style="dim", show_header=any(columns))
    numbers = set(right)
    for column in columns:
        justify: Any = "right" if column in numbers else "left"
        made.add_column(Text(column), no_wrap=True, overflow="ellipsis", justify=justify)
    for row in rows:
        made.add_row(*[cell if isinstance(cell, Text) else Text(cell) for cell in row])
    to = console()
    with to.capture() as capture:
        to.print(made)
    for line in capture.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


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
        text = (
            f"{value.type}: {value.content}"
            if value.content
            else f"{value.type}: {len(getattr(value, 'tool_calls', ()))} tool calls"
        )
    elif isinstance(value, (bytes, bytearray)):
        return f"{len(value):,} bytes"
    elif isinstance(value, (list, tuple)) and value:
        last = gist(value[-1])
        text = f"{len(value):,} elements, the last: {last}"
    elif isinstance(value, Mapping) and len(value) > 3:
        text = f"{len(value):,} keys: {', '.join(map(str, list(value)[:10]))}"
    else:
        text = value if isinstance(value, str) else repr(value)
    cut = text if len(text) <= _GIST else f"{text[:_GIST]}..."
    return cut if cut.isprintable() else shown(cut)


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
