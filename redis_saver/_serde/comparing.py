"""Compare a value with what its serializer makes of it, by type and content, without calling code of its classes.

Messages name paths and types. They quote keys of dicts, but no values.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import PurePath
from re import Pattern
from types import FunctionType, MemberDescriptorType
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.display import MAX_NAME, printable, shown
from redis_saver._common.logs import Log
from redis_saver.errors import value_changed

_LOG = Log("redis_saver.serde")

MAX_PARTS = 20_000
"""Maximum number of parts of a value that are compared."""
MAX_CHANGES = 10
"""Maximum number of changes that are named."""

_SAID = 1000
"""Maximum number of logged changes that a saver remembers, so that it does not repeat them."""
_Path: TypeAlias = "tuple[Any, ...]"
"""The path of the parent, and a segment."""
_ATOMS = frozenset({bool, bytes, bytearray, int, str, type(None)})
_BY_REPR = frozenset({complex, date, float, timedelta, timezone, Decimal, UUID})
"""Classes whose `repr` has all of an object. It tells -0.0 from 0.0, and equals itself for NaN."""
_OF_SUBCLASS: tuple[tuple[type, Any], ...] = (
    (float, float.__repr__), (int, int.__index__), (str, str.__str__), (bytes, bytes.hex), (bytearray, bytearray.hex),
    (PurePath, PurePath.__str__), (Pattern, lambda pattern: (pattern.pattern, pattern.flags)),
)  # fmt: skip
"""Functions that return the content of an object of a subclass, in spite of what that overrides."""
_OF_PICKLE = "__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__"
_PROTOCOL = 4
"""Pickle's protocol in calls of `__reduce_ex__`. Earlier ones leave out the `fold` of times."""
_DATE, _TIME = ("year", "month", "day"), ("hour", "minute", "second", "microsecond", "fold")
_FURTHER_FIELDS = frozenset({"__pydantic_extra__", "__pydantic_private__"})
_IGNORED = frozenset({"__pydantic_fields_set__", "__fields_set__"})
"""Slots that are no part of a model's content: pydantic's `==` ignores them, too."""
_ROLES = frozenset({"human", "user", "ai", "assistant", "system", "developer"})
_CHANNEL, _PARTS = 'state["messages"]', frozenset({("[]", "messages"), ".messages"})
_INPUTS = frozenset({'state["__start__"]', 'state["__pregel_tasks"]'})
"""The channels of the input and of each `Send`, whose states have the parts in `_PARTS`."""
_TRIGGERS = ("branch:to:", "join:")
"""Beginnings of LangGraph's own channels. With `defer=True` they hold a tuple of their value and whether it is due."""
_GOTO = (('state["__start__"]',), ".goto")
"""The nodes of a `Command` that is an input. LangGraph's default is `()`, and it only iterates over them."""
_TZ_OF_PYDANTIC = ("pydantic_core._pydantic_core", "TzInfo")
_MISSING: Any = object()


class Change(NamedTuple):
    """A part of a value that does not come back equal."""

    path: str
    before: str
    after: str

    def __str__(self) -> str:
        """Return `state["order"].status: Status → str`."""
        return f"{self.path}: {self.before} → {self.after}"


class ValueCheck:
    """The check of a saver's `check_values`."""

    def __init__(self, *, raises: bool) -> None:
        """Raise an error for a change if `raises` is set. Otherwise log it, once for its channel and types."""
        self._raises = raises
        self._said = BoundedCache[tuple[str, ...], bool](_SAID)

    def check(self, serde: SerializerProtocol, values: Iterable[tuple[str, Any]]) -> None:
        """Encode and decode the values of channels, and compare them.

        Raises:
            ValueChanged: A value does not come back equal, and changes raise.
        """
        for channel, value in values:
            if channel == ERROR:  # LangGraph's own, which it stores as a text
                continue
            if type(value) is tuple and (channel == INTERRUPT or channel.startswith(_TRIGGERS)):
                value = list(value)  # noqa: PLW2901 - LangGraph's own, which it only iterates over or unpacks
            if not (found := changes(serde, value, f"state[{_quoted(channel)}]")):
                continue
            if self._raises:
                raise value_changed(channel, found)
            for change in found:
                said = channel, type(value).__qualname__, change.before, change.after
                if said not in self._said:
                    self._said.store(said, True)
                    _LOG.warning("a value will not come back equal: %s (redis-saver docs changing-state)", change)


def changes(serde: SerializerProtocol, value: Any, root: str) -> list[Change]:
    """Encode and decode a value, and return what changed: at most `MAX_CHANGES` of its parts.

    Args:
        serde: The serializer.
        value: The value. A value that cannot be encoded has no changes: its write raises the error.
        root: The name of the value in paths.
    """
    try:
        typed = serde.dumps_typed(value)
    except Exception:  # noqa: BLE001 - serializers raise any error, and the write raises it again
        return []
    try:
        decoded = serde.loads_typed(typed)
    except Exception as error:  # noqa: BLE001 - as above
        return [Change(root, _name(type(value)), f"unreadable ({_name(type(error))})")]
    with suppress(RuntimeError):  # another OS thread changes the value, so the next write of it is compared
        return compared(value, decoded, root)
    return []


def compared(value: Any, other: Any, root: str) -> list[Change]:
    """Return the parts in which two values differ. NaN equals itself, and -0.0 differs from 0.0.

    Objects are compared by their attributes, never by `__eq__`. Objects in sets, and those of compiled classes that
    pickle does not know, are compared by type alone.
    """
    found, queue = list[Change](), deque[tuple[Any, Any, _Path]]([(value, other, (root,))])
    seen, left, budget = dict[tuple[int, int], tuple[Any, Any]](), MAX_PARTS, [MAX_PARTS]
    while queue and len(found) < MAX_CHANGES:
        before, after, path = queue.popleft()
        if before is after:
            continue
        kind = type(before)
        if kind is tuple and type(after) is list and (_is_message(before, path) or path == _GOTO):
            before, kind = list(before), list
        if kind is not type(after):
            found.append(_changed(path, before, after))
        elif kind in _ATOMS:
            if before != after:
                found.append(_changed(path, before, after))
        elif (id(before), id(after)) not in seen:
            seen[id(before), id(after)] = before, after  # keeps both, as another object could get the id
            one, another = _parts_of(before, left, after), _parts_of(after, left, before)
            if one.content != another.content:
                found.append(_changed(path, before, after, one, another))
                continue
            pairs = [(mine, its, segment) for (segment, mine), (_, its) in zip(one.items, another.items, strict=False)]
            names = one.named if one.named.keys() == another.named.keys() else {**one.named, **another.named}
            pairs += [(one.named.get(name, _MISSING), another.named.get(name, _MISSING), name) for name in names]
            pairs = pairs[:left]
            left -= len(pairs)
            for mine, its, segment in pairs:
                if mine is not its and not _is_same(mine, its, budget):
                    queue.append((mine, its, (path, segment)))
    return found


def _is_message(value: tuple[Any, ...], path: _Path) -> bool:
    """True for `(role, content)` in `messages`. LangGraph makes a message of it, also of the list that it becomes."""
    where = (path[-1], path[0][-1]) if len(path) > 1 else path
    is_pair = len(value) == 2 and type(value[0]) is str and value[0] in _ROLES
    while len(path) > 1:
        path = path[0]
    is_there = _CHANNEL in where or (path[0] in _INPUTS and not _PARTS.isdisjoint(where))
    return is_pair and type(value[1]) in (str, list) and is_there


def _is_same(one: Any, another: Any, budget: list[int], depth: int = 20) -> bool:
    """True if two parts are surely equal: this is several times as fast as a search for changes.

    Args:
        one: A part.
        another: The part that it became.
        budget: Maximum number of items and attributes to compare. It is reduced.
        depth: Maximum depth.
    """
    kind: Any = type(one)
    if type(one) is not type(another) or kind in _ATOMS or not depth:
        return type(one) is type(another) and kind in _ATOMS and bool(one == another)
    pairs: Iterable[tuple[Any, Any]]
    if kind is list:
        pairs = zip(one, another, strict=False)
    elif kind is dict:
        if not all(type(key) is str for key in chain(one, another)):
            return False
        pairs = ((item, another.get(key, _MISSING)) for key, item in one.items())
    elif kind.__module__ != "builtins" and _layout(kind).is_plain:
        one, another = _attributes(one, kind), _attributes(another, kind)
        pairs = ((item, another.get(name, _MISSING)) for name, item in one.items())
    else:
        return False
    budget[0] -= len(one)
    return (
        len(one) == len(another)
        and budget[0] > 0
        and all(mine is its or _is_same(mine, its, budget, depth - 1) for mine, its in pairs)
    )


class _Parts(NamedTuple):
    """The parts of an object."""

    content: Any = None
    """The content of an object without its parts, such as the length of a list. It has no user's objects."""
    items: Sequence[tuple[Any, Any]] = ()
    """Items by position, each with its segment of the path. A class is that of what only pickle knows of an object."""
    named: Mapping[Any, Any] = {}
    """Attributes, and items of a dict whose keys are texts, by segment. `("[]", key)` is that of a key."""
    label: str = ""
    """Addition to the name of the class, such as the dtype of an array."""


def _parts_of(value: Any, most: int, other: Any) -> _Parts:
    """Return the parts of an object, at most about `most`. Those of `other`, of the same class, have equal names."""
    kind: Any = type(value)
    if kind in _BY_REPR:
        return _Parts(repr(value))
    if isinstance(value, dict):
        parts = _of_dict(value, most, other)
    elif isinstance(value, (list, tuple, deque)):
        base: Any = next(base for base in (list, tuple, deque) if isinstance(value, base))
        items = [(f"[{index}]", item) for index, item in enumerate(islice(base.__iter__(value), most))]
        length = base.__len__(value)
        label = f" of {length:,}"
        if base is deque:
            label += f", maxlen {deque.maxlen.__get__(value)}"
        parts = _Parts(label, items, label=label)
    elif isinstance(value, (set, frozenset)):
        base = set if isinstance(value, set) else frozenset
        marks = Counter(map(_mark, base.__iter__(value))) if base.__len__(value) <= most else None
        parts = _Parts((base.__len__(value), marks), label=f" of {base.__len__(value):,}")
    elif (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.ndarray):
        parts = _of_array(numpy.ndarray, value, most)
    elif isinstance(value, (datetime, time)):
        fields, tz = _fields(value)
        parts = _Parts(fields, () if kind in (datetime, time) else _reduced(value, kind), {".tzinfo": tz})
    else:
        parts = _Parts(_layout(kind).content(value), _reduced(value, kind))
    return parts if kind.__module__ == "builtins" else parts._replace(named={**parts.named, **_attributes(value, kind)})


def _of_dict(value: dict[Any, Any], most: int, other: dict[Any, Any]) -> _Parts:
    items, length = list(islice(dict.items(value), most)), dict.__len__(value)
    content, label = length, f" of {length:,}"
    if all(type(key) is str for key in chain(dict.keys(value), dict.keys(other))):
        return _Parts(content, (), {("[]", key): item for key, item in items}, label)
    by_position = list[tuple[str, Any]]()
    for index, (key, item) in enumerate(items):
        name = shown(key) if type(key) in (*_ATOMS, float) else f"<{_name(type(key))} {index}>"
        by_position += ((f"[key {name}]", key), (f"[{name}]", item))
    return _Parts(content, by_position, label=label)


def _of_array(base: Any, value: Any, most: int) -> _Parts:
    dtype, shape = base.dtype.__get__(value), base.shape.__get__(value)
    label = f" of {dtype}"
    if not dtype.hasobject:
        return _Parts((str(dtype), shape, base.tobytes(value)), label=label)
    flat = islice(base.flat.__get__(value), most)
    return _Parts((str(dtype), shape), [(f".flat[{index}]", item) for index, item in enumerate(flat)], label=label)


def _fields(value: Any) -> tuple[tuple[int, ...], Any]:
    """Return the numbers of a date or time, and its time zone."""
    base, names = (datetime, (*_DATE, *_TIME)) if isinstance(value, datetime) else (time, _TIME)
    tz = base.tzinfo.__get__(value)
    if (type(tz).__module__, type(tz).__name__) == _TZ_OF_PYDANTIC:  # a fixed offset, as it is stored
        tz = timezone(tz.utcoffset(None))
    return tuple(getattr(base, name).__get__(value) for name in names), tz


def _mark(value: Any, depth: int = 20) -> Any:
    """Return a member of a set as something that is equal for equal members, and calls no code of its class."""
    kind: Any = type(value)
    if kind in _ATOMS:
        return kind, value
    if kind in _BY_REPR:
        return kind, repr(value)
    if kind in (datetime, time):
        return kind, _fields(value)[0]
    if isinstance(value, Enum):
        return kind, value._name_
    if depth and (kind is tuple or kind is frozenset):
        marks = [_mark(item, depth - 1) for item in value]
        return kind, tuple(marks) if kind is tuple else frozenset(marks)
    return kind, _layout(kind).content(value)


class _Layout(NamedTuple):
    """The places where the objects of a class have their content."""

    content: Any
    """Returns what an object has as a subclass of a class such as `str`."""
    reduce: Any
    """Pickle's method, if it is compiled code and not that of `object`."""
    slots: Sequence[tuple[str, Any]]
    cached: frozenset[str]
    """Names of cached properties."""
    is_plain: bool
    """True if an object has nothing but attributes."""


@lru_cache(1000)
def _layout(kind: Any) -> _Layout:
    content = next((content for base, content in _OF_SUBCLASS if issubclass(kind, base)), None)
    members = [item for base in kind.__mro__ if base is not object for item in vars(base).items()]
    reduce = next((item for item in members if item[0] in _OF_PICKLE[:2]), None)
    slots = [item for item in members if type(item[1]) is MemberDescriptorType and item[0] not in _IGNORED]
    cached = frozenset(name for name, member in members if isinstance(member, cached_property))
    if issubclass(kind, (PurePath, BaseException)):  # a path caches its parts; an exception has its traceback
        slots = []
    own = any(type(member) is FunctionType and name in _OF_PICKLE for name, member in members)
    is_plain = reduce is None and content is None and not issubclass(kind, (dict, list, tuple))
    return _Layout(content or (lambda _: None), None if own else reduce, slots, cached, is_plain)


def _reduced(value: Any, kind: Any) -> list[tuple[Any, Any]]:
    """Return the parts of an object of a compiled class, as pickle gets them. The path does not name them."""
    if (reduce := _layout(kind).reduce) is None:
        return []
    name, method = reduce
    try:
        reduced = method.__get__(value)(*((_PROTOCOL,) if name == "__reduce_ex__" else ()))
    except Exception:  # noqa: BLE001 - a class that cannot be pickled may raise anything
        return []
    return [(kind, part) for part in reduced[1:3]] if type(reduced) is tuple else []


def _attributes(value: Any, kind: Any) -> dict[str, Any]:
    """Return the attributes of an object by segment, with the slots and without cached properties."""
    layout, found = _layout(kind), dict[str, Any]()
    for name, member in layout.slots:
        with suppress(AttributeError):  # the slot is empty
            found[name] = member.__get__(value)
    with suppress(AttributeError):
        own = object.__getattribute__(value, "__dict__")
        found |= {name: attribute for name, attribute in own.items() if name not in layout.cached}
    for name in _FURTHER_FIELDS & found.keys():
        if type(found[name]) is dict:
            found.update(found.pop(name))
    return {f".{name}": attribute for name, attribute in found.items()}


# -- messages


def _changed(path: _Path, before: Any, after: Any, one: _Parts | None = None, another: _Parts | None = None) -> Change:
    """Return the change of a part. Types are named; contents are not quoted."""
    kinds, segments, labels = (type(before), type(after)), list[str](), ("", "")
    if one and another:
        labels = one.label, another.label
        if labels[0] == labels[1] and isinstance(before, (set, frozenset)):
            mine, its = one.content[1] - another.content[1], another.content[1] - one.content[1]
            kinds = next(iter(mine))[0], next(iter(its))[0]
            segments.append("[member]")
    while len(path) > 1:
        path, segment = path
        if isinstance(segment, type):  # below is only what pickle gets of an object
            kinds, segments, labels = (segment, segment), [], ("", "")
        else:
            segments.append(segment if type(segment) is str else f"[{_quoted(segment[1])}]")
    where = printable(path[0] + "".join(reversed(segments)), MAX_NAME)
    if labels[0] != labels[1]:
        return Change(where, _name(kinds[0]) + labels[0], _name(kinds[1]) + labels[1])
    old, new = _name(kinds[0]), _name(kinds[1])
    if before is _MISSING or after is _MISSING:
        old, new = ("missing" if part is _MISSING else name for part, name in ((before, old), (after, new)))
    elif kinds[0] is kinds[1]:
        new = f"another {new}"
    elif old == new:
        old, new = (f"{kind.__module__}.{_name(kind)}" for kind in kinds)
    return Change(where, old, new)


def _quoted(text: str) -> str:
    return '"' + printable(text, MAX_NAME).replace('"', '\\"') + '"'


def _name(kind: type) -> str:
    return printable(str(kind.__qualname__).replace("<locals>.", ""), MAX_NAME)
