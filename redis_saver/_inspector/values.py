"""Names, times, sizes and values as pages show them.

Trees of values are limited in depth, breadth and length, and masked on request. No `__repr__` or `__str__` of a
foreign class runs.
"""

from __future__ import annotations

import ipaddress
import math
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

from langchain_core.messages import BaseMessage, convert_to_messages
from langgraph.checkpoint.serde.types import SendProtocol
from pydantic import BaseModel

from redis_saver._common import times
from redis_saver._common.display import printable, shown

_HIDDEN = {
    *range(0x20), *range(0x7F, 0xA0),
    *range(0xD800, 0xE000),  # lone surrogates, which have no UTF-8
    *range(0x202A, 0x202F),  # marks that turn the direction of a text
    *range(0x2066, 0x206A),
    0x200E, 0x200F, 0x061C, 0x2028, 0x2029, 0xFEFF,
} - {ord("\n"), ord("\t")}  # fmt: skip
_ESCAPES = {code: repr(chr(code))[1:-1] for code in _HIDDEN}


def visible(text: str) -> str:
    """Escape control characters, direction marks and lone surrogates, as Python does."""
    return text.translate(_ESCAPES)


def named(name: object) -> str:
    """Return a name as it is, or its `repr` if it is empty, long, or has unprintable characters."""
    if name is None:
        return "-"
    if not isinstance(name, str):
        return visible(shown(name))
    plain = name.isprintable() and name.strip() == name and name[:1] not in ("", "'", '"') and len(name) <= 200
    return name if plain else shown(name)


def ago(at: datetime | None) -> str:
    """Return how long ago a moment was."""
    if at is None:
        return "-"
    seconds = int(max(datetime.now(timezone.utc) - at, timedelta()).total_seconds())
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:,} {unit} ago"
    return f"{seconds} s ago"


def moment(at: datetime | None) -> str:
    """Return a moment as text, in UTC."""
    return at.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if at else "-"


def expiry(at: datetime | None) -> str:
    """Return when something expires."""
    if at is None:
        return "never"
    seconds = int((at - datetime.now(timezone.utc)).total_seconds())
    return f"in {times.shown(timedelta(seconds=max(0, seconds)))}"


def size(amount: int | None) -> str:
    """Return a number of bytes as text, with three digits."""
    if amount is None:
        return "-"
    if amount < 1000:
        return f"{amount} B"
    if amount < 999_500:
        return f"{amount / 1000:,.3g} kB"
    return f"{amount / 1e6:,.3g} MB" if amount < 999.5e6 else f"{amount / 1e6:,.0f} MB"


STATES = ("orphaned", "failed", "interrupted", "active")
"""States of threads, most urgent first."""


def states_of(info: Any) -> list[str]:
    """Return all states of a thread."""
    return [state for state in STATES[:-1] if getattr(info, state)] or ["active"]


def state_of(info: Any) -> str:
    """Return the most urgent state of a thread."""
    return states_of(info)[0]


def owner_text(owner: Any) -> str:
    """Return an owner as text. If it left its thread orphaned, with its run and the end of its lease."""
    run = f", run {named(owner.run_id)}" if owner.run_id is not None else ""
    return named(owner.by) + (f"{run}, lease ended {ago(owner.lease_until)}" if owner.orphaned else "")


CHILDREN = 50
"""Page size for the elements of a list or dict."""
NODES = 2_000
"""Maximum number of elements on a page."""
_JSON_DEPTH = 100
"""Maximum depth of a value in JSON."""
DEPTH = 8
"""Maximum depth of a tree. Links lead to deeper elements."""
MARKDOWN = 40_000
"""Maximum number of characters on a page that are rendered as Markdown. It takes up to 3 ms for 1,000."""
TEXT = 2_000
"""Maximum number of characters of a text in a tree."""
WHOLE_TEXT = 200_000
"""Maximum number of characters of a text on its own page."""

At: TypeAlias = tuple[int, ...]
"""Positions that lead to a part of a channel's value, from the outermost on."""
_Kinds: TypeAlias = type[Any] | tuple[type[Any], ...]


@dataclass(slots=True)
class Node:
    """A part of a value."""

    name: Any
    """Its key, field or position. None for the whole value."""
    kind: str
    """The name of its class."""
    at: At
    text: str | None = None
    """Its text. None if it has elements or is masked."""
    count: int = 0
    """Number of elements."""
    children: list[Node] = field(default_factory=list)
    """Elements that are shown."""
    is_cut: bool = False
    """True if some elements, or the end of the text, are not shown."""
    is_masked: bool = False


Hides: TypeAlias = Callable[[object], bool]
"""True for names of channels, keys and fields whose values are hidden."""


def hiding(patterns: Sequence[str]) -> Hides:
    """Hide values whose names match a pattern, in upper or lower case. `*` hides all."""
    lowered = [pattern.lower() for pattern in patterns]

    def hides(name: object) -> bool:
        text = str(name).lower() if isinstance(name, (str, int)) else ""
        return any(fnmatchcase(text, pattern) for pattern in lowered)

    return hides


def nothing(_: object) -> bool:
    """Hide nothing."""
    return False


class Trees:
    """Makes the trees of a page, with at most `NODES` elements in all.

    A tree grows level by level, so all elements of a level come before their children.
    """

    def __init__(self, hides: Hides) -> None:
        """Make trees without values that are hidden by their names."""
        self.hides, self._left, self.markdown_left = hides, NODES, MARKDOWN

    def tree(self, name: object, value: object, at: At = (), first: int = 0, *, whole: bool = False) -> Node:
        """Return the tree of a value.

        Args:
            name: Its name, by which it may be hidden.
            value: The value.
            at: Its position in the value of its channel.
            first: Position of the first element to show.
            whole: True to show up to `WHOLE_TEXT` characters of a text.
        """
        root, parts = self._node(name, value, at, WHOLE_TEXT if whole else TEXT)
        waiting = deque([(root, parts, first, 0)])
        while waiting:
            node, parts, start, depth = waiting.popleft()
            shown = parts[start : start + CHILDREN] if depth < DEPTH else []
            if len(shown) > self._left:
                shown = shown[: self._left] if node is root else []
            self._left -= len(shown)
            node.is_cut = node.is_cut or start > 0 or len(shown) < len(parts)
            for position, (key, child) in enumerate(shown, start):
                made, inner = self._node(key, child, (*node.at, position), TEXT)
                node.children.append(made)
                waiting.append((made, inner, 0, depth + 1))
        return root

    def masked(self, name: object, value: object, at: At = ()) -> Node:
        """Return a placeholder for a hidden value."""
        return Node(name, type(value).__name__, at, is_masked=True)

    def _node(self, name: object, value: object, at: At, length: int) -> tuple[Node, list[tuple[Any, Any]]]:
        """Return a part without its elements, with a text of up to `length` characters, and the elements."""
        if self.hides(name):
            return self.masked(name, value, at), []
        if (parts := elements(value)) is not None:
            return Node(name, type(value).__name__, at, count=len(parts)), parts
        text = _text(value)
        return Node(name, type(value).__name__, at, visible(text[:length]), is_cut=len(text) > length), []


def elements(value: object) -> list[tuple[Any, Any]] | None:
    """Return the elements of a value with their keys, fields or positions. None if it is no container."""
    for kind, open_up in _OPENED:
        if isinstance(value, kind):
            return open_up(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [(attribute.name, getattr(value, attribute.name, None)) for attribute in fields(value)]
    if isinstance(value, SendProtocol) and not isinstance(value, type):
        return [("node", value.node), ("arg", value.arg)]
    if isinstance(value, _LEAVES) or callable(value) or not hasattr(value, "__dict__"):
        return None
    return list(vars(value).items())


def _in_order(value: Any) -> list[tuple[Any, Any]]:
    """Return the elements of a list or tuple, each with its position. A named tuple has field names instead."""
    return list(zip(getattr(type(value), "_fields", range(len(value))), value, strict=False))


_OPENED: tuple[tuple[_Kinds, Callable[[Any], list[tuple[Any, Any]]]], ...] = (
    (Mapping, lambda value: list(value.items())),
    (BaseModel, lambda value: [*vars(value).items(), *(value.__pydantic_extra__ or {}).items()]),
    ((list, tuple), _in_order),
    ((set, frozenset), lambda value: list(enumerate(value))),
    (BaseException, lambda value: list(enumerate(value.args))),
)


def _text(value: object) -> str:
    for kind, write in _WRITTEN:
        if isinstance(value, kind):
            return write(value)
    named = value if isinstance(value, type) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _bytes_text(value: bytes) -> str:
    return f"{len(value):,} bytes: {bytes(value[:64]).hex(' ')}{' ...' if len(value) > 64 else ''}"


_MAX_DECIMAL = 4096
"""Maximum number of bits of an integer that is shown in decimal. Longer ones are shown in hexadecimal, because Python
limits decimal digits."""
_WRITTEN: tuple[tuple[_Kinds, Callable[[Any], str]], ...] = (
    (Enum, lambda value: f"{type(value).__name__}.{value.name}"),
    (str, str.__str__),
    ((bytes, bytearray), _bytes_text),
    (bool, repr),
    (int, lambda value: int.__repr__(value) if value.bit_length() < _MAX_DECIMAL else f"{value:#x}"),
    ((float, complex, type(None)), repr),
    (re.Pattern, lambda value: f"/{value.pattern}/"),
    ((UUID, Decimal, date, time, timedelta, timezone, ZoneInfo, PurePath), str),
    ((ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network), str),
)
_LEAVES: Any = tuple(kinds for kinds, _ in _WRITTEN)


def plain(value: Any, hides: Hides, depth: int = 0) -> Any:
    """Convert a value to JSON's types, without hidden parts. Objects become their fields, and other leaves a text."""
    parts = elements(value)
    if parts is None:
        is_json = value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))
        return value if is_json else _text(value)
    if depth > _JSON_DEPTH:
        return "…"
    if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields"):
        return [plain(each, hides, depth + 1) for _, each in parts]
    return {_text(key): "masked" if hides(key) else plain(each, hides, depth + 1) for key, each in parts}


def part(value: Any, at: At) -> tuple[list[Any], Any]:
    """Return the names that lead to a part of a value, and the part.

    Raises:
        LookupError: There is no such part.
    """
    names = []
    for position in at:
        parts = elements(value)
        if parts is None or position >= len(parts):
            raise LookupError(f"nothing is at {shown(at)}")
        name, value = parts[position]
        names.append(name)
    return names, value


# -- previews

_WORDS = 500
"""Maximum number of characters of a text in a preview."""
_NESTED = 4
"""Maximum depth of a preview."""
_TEXTS = 10_000
"""Maximum number of parts of a value that a search reads."""


def gist(value: Any, hides: Hides = nothing, depth: int = 0) -> str:
    """Return a value as a short text, for `one_line`. A message shows its role, its text and its tool calls."""
    if (message := message_of(value)) is not None:
        tool = named(message.name) if message.name and not hides("name") else ""
        who = " ".join(filter(None, (message.type, tool, "failed"))) if has_failed(message) else message.type
        return f"{who}: {' '.join(_message_gist(message, hides, depth))}"
    if isinstance(value, _interrupts()):
        return gist(value.value, hides, depth)
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value):,} bytes"
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {' '.join(gist(each, hides, depth + 1) for each in value.args[:3])}"
    parts = elements(value)
    return _text(value)[:_WORDS] if parts is None else _gist_of(value, parts, hides, depth)


def _gist_of(value: Any, parts: Sequence[tuple[Any, Any]], hides: Hides, depth: int) -> str:
    if not parts or depth >= _NESTED:
        return f"{type(value).__name__}, {len(parts) or 'empty'}"
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        count = "1 element" if len(parts) == 1 else f"{len(parts):,} elements, the last"
        return f"{count}: {gist(value[-1], hides, depth + 1)}"
    if len(parts) > 3:
        return f"{len(parts):,} keys: {', '.join(_text(key)[:_WORDS] for key, _ in parts[:10])}"
    return ", ".join(f"{_text(key)[:_WORDS]}: {_hidden_or_gist(key, each, hides, depth)}" for key, each in parts)


def _hidden_or_gist(name: object, value: Any, hides: Hides, depth: int) -> str:
    return "masked" if hides(name) else gist(value, hides, depth + 1)


def _message_gist(message: BaseMessage, hides: Hides, depth: int) -> Iterator[str]:
    content = message.content
    for each in content[:3] if isinstance(content, list) and not hides("content") else [content]:
        text = each.get("text") if isinstance(each, dict) and each.get("type") == "text" else None
        if said := _hidden_or_gist("content", each if text is None else text, hides, depth):
            yield said
    for call in () if hides("tool_calls") else (getattr(message, "tool_calls", None) or ())[:3]:
        name, arguments = (call.get("name"), call.get("args")) if isinstance(call, dict) else ("?", call)
        inside = "masked" if hides("args") else gist(arguments, hides, depth + 1) if arguments else ""
        yield f"calls {'masked' if hides('name') else _text(name)[:_WORDS]}({inside})"


def questions_in(value: Any) -> list[tuple[Any, Any]]:
    """Return the questions of a write to LangGraph's channel of interrupts, each with the schema of its answer."""
    each = value if isinstance(value, (list, tuple)) else [value]
    return [(one.value, getattr(one, "response_schema", None)) for one in each if isinstance(one, _interrupts())]


def _interrupts() -> tuple[type[Any], ...]:
    """Return LangGraph's `Interrupt` if something imported it. The import takes as long as the rest of a command."""
    types = sys.modules.get("langgraph.types")
    return () if types is None else (types.Interrupt,)


def one_line(text: str, longest: int) -> str:
    """Return a text in one printable line of up to `longest` characters, with an ellipsis if cut. `↵` is a new line."""
    line = printable(re.sub(r"\s*\n\s*", " ↵ ", text.strip()[: longest + 1]), 3 * longest)
    return line if len(line) <= longest else f"{line[:longest]}…"


_MARKS = re.compile(r"[*`]+|__|(?<!\S)(#+|>) ")


def unmarked(line: str) -> str:
    """Return a line without the marks of Markdown."""
    return _MARKS.sub("", line)


def texts(name: object, value: object, hides: Hides) -> Iterator[str]:
    """Iterate over the keys and texts in a value, of up to 10,000 parts."""
    waiting = deque([(name, value)])
    for _ in range(_TEXTS):
        if not waiting:
            return
        key, each = waiting.popleft()
        if hides(key):
            continue
        yield _text(key)
        if (parts := elements(each)) is None:
            yield _text(each)
        else:
            waiting.extend(parts)


_ROLES = frozenset({"human", "user", "ai", "assistant", "system", "developer", "tool", "function"})
"""Roles of messages that are written as pairs or dicts."""


def message_of(value: Any) -> BaseMessage | None:
    """Return a message, also one that is written as LangGraph's `add_messages` takes it.

    These are `(role, content)` and `{"role": ..., "content": ...}`. A text alone may be anything.
    """
    if isinstance(value, BaseMessage):
        return value
    if isinstance(value, (tuple, list)):  # a pair is stored as a list
        role, content = value if len(value) == 2 else (None, None)
    elif isinstance(value, dict):
        role, content = value.get("role", value.get("type")), value.get("content")
    else:
        return None
    if not isinstance(role, str) or role not in _ROLES or not isinstance(content, (str, list)):
        return None
    try:
        return convert_to_messages([value])[0]
    except Exception:  # noqa: BLE001 - whatever a stored dict makes of it, it is no message
        return None


def has_failed(message: BaseMessage) -> bool:
    """True for the answer of a tool that failed."""
    return vars(message).get("status") == "error"


def messages_in(value: Any) -> Sequence[BaseMessage]:
    """Return the messages of a value: itself, or the elements of a list or of a snapshot that are messages."""
    value = unpacked(value)[1]
    if (message := message_of(value)) is not None:
        return [message]
    return [each for each in map(message_of, value if isinstance(value, (list, tuple)) else ()) if each is not None]


def used_tokens(message: BaseMessage) -> int:
    """Return the total tokens of a message's `usage_metadata`, or 0."""
    usage = vars(message).get("usage_metadata")  # most messages have none, for which getattr takes long
    total = usage.get("total_tokens") if isinstance(usage, dict) else 0
    return total if type(total) is int else 0


# -- messages


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a chat."""

    role: str
    """`human`, `ai`, `tool` or `system`."""
    has_failed: bool
    """True for the answer of a tool that failed."""
    name: str | None
    texts: Sequence[tuple[str, bool]]
    """Texts, and True for each that is rendered as Markdown."""
    tokens: int
    """Total tokens of its `usage_metadata`, or 0."""
    blocks: Sequence[Node]
    """Parts of the content other than text."""
    calls: Sequence[Node]
    """Tool calls with their arguments."""
    all: Node
    """All fields."""
    at: At
    is_masked: bool
    """True if the content is hidden."""


def unpacked(value: Any) -> tuple[At, Any]:
    """Return the value in a snapshot of a `DeltaChannel`, whose class is not public, with its position.

    Other values are returned as they are.
    """
    is_snapshot = isinstance(value, tuple) and getattr(type(value), "_fields", None) == ("value",)
    return ((0,), value[0]) if is_snapshot else ((), value)


def is_chat(value: object) -> bool:
    """True if a value is a non-empty list of messages."""
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(item, BaseMessage) for item in value)


def reads_as_chat(value: object) -> bool:
    """True if a value is a non-empty list of messages, however they are written (see `message_of`)."""
    return isinstance(value, (list, tuple)) and bool(value) and all(message_of(item) is not None for item in value)


def chat(trees: Trees, messages: Sequence[Any], first: int, at: At = ()) -> list[ChatMessage]:
    """Return up to `CHILDREN` messages from position `first` on, of a value that reads as a chat."""
    shown = enumerate(messages[first : first + CHILDREN], first)
    return [
        _message(trees, message, value, (*at, position))
        for position, value in shown
        if (message := message_of(value)) is not None
    ]


def _message(trees: Trees, message: BaseMessage, written: Any, at: At) -> ChatMessage:
    content, hides = message.content, trees.hides
    is_masked = hides("content")
    texts, blocks = list[tuple[str, bool]](), list[Node]()
    for each in () if is_masked else content if isinstance(content, list) else [content]:
        text = each.get("text") if isinstance(each, dict) and each.get("type") == "text" else each
        if not isinstance(text, str):
            blocks.append(trees.tree(None, each, at))
        elif text and not hides("text"):
            cut = len(text) - TEXT * 4
            trees.markdown_left -= min(len(text), TEXT * 4)
            is_markdown = message.type != "tool" and trees.markdown_left >= 0
            more = f" … {cut:,} more characters" if cut > 0 else ""
            texts.append((visible(text[: TEXT * 4]) + more, is_markdown))
    calls = () if hides("tool_calls") else getattr(message, "tool_calls", None) or ()
    shown_calls = [_call(trees, call, at) for call in calls]
    whole = trees.tree(None, written, at)
    name = message.name if isinstance(message.name, str) and not hides("name") else None
    failed = has_failed(message)
    return ChatMessage(
        str(message.type), failed, name, texts, used_tokens(message), blocks, shown_calls, whole, at, is_masked
    )


def _call(trees: Trees, call: Any, at: At) -> Node:
    """Return a tool call as a tree of its arguments, under its name."""
    name, arguments = (call.get("name"), call.get("args")) if isinstance(call, dict) else ("?", call)
    shown_name = "…" if trees.hides("name") else str(name)
    make = trees.masked if trees.hides("args") else trees.tree
    return make(shown_name, arguments, at)
