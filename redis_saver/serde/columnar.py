"""Lists of LangChain's messages to msgpack by columns: each check is one loop in C over all messages of a class.

`redis_saver.serde.message_codec` knows a message by itself. In a list of a hundred, what its functions spend on bytecode is most of
the time; here the fields of a class are looked at together, with `map`, `set` and `zip`. What is checked is the same, built
from the same annotations, and compared at import with what `JsonPlusSerializer` does. Any uncertainty answers None or raises one
of `FAILURES`, and the list goes the way on which each message is looked at.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, cast

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from redis_saver.serde import annotations as declared
from redis_saver.serde import message_codec as single
from redis_saver.serde.annotations import Kind, UnknownError, kind_of
from redis_saver.serde.message_codec import ENCODERS, METHOD, PLAIN, UNLIKE

Check = Callable[[Sequence[Any]], bool]
"""Whether all values of a column are plain."""
FAILURES: Final = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)
"""What messages that are not plain raise, or that another thread is changing."""

_fields = operator.attrgetter("__dict__")
_extra = operator.attrgetter("__pydantic_extra__")
_SUFFIX: Final = ormsgpack.packb(METHOD)
_DICTS: Final = frozenset({dict})
_BEHIND_HEADER: Final = slice(1, None)
_getitem: Any = operator.getitem


class _Heads(dict[int, bytes]):
    """What stands before the packed fields of a message, by their length: the head of the Ext, module and name."""

    def __init__(self, cls: type) -> None:
        self.constant = b"\x94" + ormsgpack.packb(cls.__module__) + ormsgpack.packb(cls.__name__)
        self.body = slice(len(self.constant), -len(_SUFFIX))
        """Where the packed fields are in a payload."""

    def __missing__(self, size: int) -> bytes:
        head = ext_header(5, len(self.constant) + size + len(_SUFFIX)) + self.constant
        if size < 2048:
            self[size] = head
        return head


class _Class(NamedTuple):
    """A class of messages."""

    fields: frozenset[str]
    checks: list[tuple[str, Check]]
    """Fields, and what to check of them."""
    heads: _Heads


def ext_header(code: int, size: int) -> bytes:
    """The header of an Ext of more than 16 bytes."""
    if size < 0x100:
        return bytes([0xC7, size, code])
    if size < 0x10000:
        return b"\xc8" + size.to_bytes(2, "big") + bytes([code])
    return b"\xc9" + size.to_bytes(4, "big") + bytes([code])


def header(count: int, kind: type) -> bytes:
    """The header of an array (list) or a map (dict) of so many elements."""
    short, medium, long = (0x90, b"\xdc", b"\xdd") if kind is list else (0x80, b"\xde", b"\xdf")
    if count < 16:
        return bytes([short | count])
    return medium + count.to_bytes(2, "big") if count < 0x10000 else long + count.to_bytes(4, "big")


def header_length(count: int) -> int:
    """How long it is for so many elements."""
    return 1 if count < 16 else 3 if count < 0x10000 else 5


def list_length(data: bytes) -> int | None:
    """Of how many elements the header of a list is with which some bytes begin; None where they do not begin with one."""
    first = data[0]
    count = first & 15 if first & 0xF0 == 0x90 else int.from_bytes(data[1 : 3 if first == 0xDC else 5], "big")
    return count if data.startswith(header(count, list)) else None


def _check(kind: Kind | None) -> Check | None:
    """The check of a column: that each `TypedDict` in it has the keys it should; None if there are no such dicts in it.

    Values of other types than annotated are written just as they are, so types need no check.

    Raises:
        UnknownError: There may be something else than None in place of the dicts.
    """
    if kind is None or not kind.nested:
        return None
    inner = _of_lists(_check(kind.element)) if kind.keys is None else _of_typed_dicts(kind.keys)
    if inner is None or not (kind.types & ~declared.LIST or kind.literals):
        return inner
    if kind.types & ~declared.LIST != declared.NONE or kind.literals:
        raise UnknownError(kind)
    return lambda values: inner([value for value in values if value is not None])


def _of_lists(inner: Check | None) -> Check | None:
    return inner and (lambda values: not any(values) or inner(list(chain.from_iterable(values))))


def _of_typed_dicts(keys: Mapping[str, tuple[Kind | None, bool]]) -> Check:
    names = frozenset(keys)
    required = operator.itemgetter(*found) if (found := [key for key, (_, needed) in keys.items() if needed]) else None
    inner = [(key, below) for key, (kind, _) in keys.items() if (below := _check(kind)) is not None]

    def check(values: Sequence[Any]) -> bool:
        if not values:
            return True
        # The keys may be in any order: it stays.
        if not _DICTS.issuperset(map(type, values)) or not names.issuperset(set().union(*values)):
            return False
        if required is not None:
            deque(map(required, values), maxlen=0)
        return all(below([value[key] for value in values if key in value]) for key, below in inner)

    return check


def _class(cls: type[BaseModel]) -> _Class:
    """What there is to know of a class.

    Raises:
        UnknownError: If a field's annotation is not known.
    """
    checks = {name: _check(kind_of(field.annotation)) for name, field in cls.model_fields.items()}
    found = [(name, check) for name, check in checks.items() if check is not None]
    return _Class(frozenset(checks), found, _Heads(cls))


def known(messages: Sequence[Any]) -> tuple[list[type], list[dict[str, Any]]] | None:
    """The classes of messages and their fields; None if one is not known, or has more than its fields."""
    kinds = list(map(type, messages))
    if not CLASSES.keys() >= set(kinds) or any(map(_extra, messages)):
        return None
    return kinds, list(map(_fields, messages))


def pack(kinds: Sequence[type], fields: Sequence[dict[str, Any]]) -> list[bytes] | None:
    """Pack the fields of each message; None if some are not plain."""
    groups: dict[type, list[Any]] = {kind: [] for kind in set(kinds)}
    for kind, each in zip(kinds, fields):  # noqa: B905 - as many
        groups[kind].append(each)
    for kind, group in groups.items():
        wanted, checks, _ = CLASSES[kind]
        # As many keys in each, and all together no others than there should be: then each has all.
        if set(map(len, group)) != {len(wanted)} or set().union(*group) != wanted:
            return None
        for name, check in checks:
            if not check([each[name] for each in group]):
                return None
    # In a tuple, as deep as in the payload: the packer counts.
    packed = map(ormsgpack.packb, zip(fields), repeat(None), repeat(PLAIN))
    return list(map(_getitem, packed, repeat(_BEHIND_HEADER)))


def pack_each(kinds: Sequence[type], messages: Sequence[Any]) -> list[bytes] | None:
    """The same for a few messages."""
    payloads = [ENCODERS[kind](message) for kind, message in zip(kinds, messages)]  # noqa: B905 - as many
    if None in payloads:
        return None
    return [payload[_HEADS[kind].body] for kind, payload in zip(kinds, cast("list[bytes]", payloads))]  # noqa: B905 - as many


def pack_all(fields: list[dict[str, Any]]) -> bytes:
    """The fields of all messages, packed one after another."""
    return ormsgpack.packb(fields, None, PLAIN)[header_length(len(fields)) :]


def unpack_all(packed: bytes, count: int) -> list[dict[str, Any]]:
    """The inverse of `pack_all`, for so many messages."""
    return cast("list[dict[str, Any]]", ormsgpack.unpackb(header(count, list) + packed))


def make(kinds: Sequence[type], fields: Sequence[dict[str, Any]]) -> list[Any]:
    """Messages of these fields: all of their classes in their order, and as validation would leave them."""
    messages: list[Any] = list(map(object.__new__, kinds))
    set_fields, set_names, set_extra, set_private = single.SETTERS
    deque(map(set_fields, messages, fields), maxlen=0)
    deque(map(set_names, messages, map(set, map(_NAMES.__getitem__, kinds))), maxlen=0)
    deque(map(set_extra, messages, iter(dict, None)), maxlen=0)
    deque(map(set_private, messages, repeat(None)), maxlen=0)
    return messages


def elements(kinds: Sequence[type], bodies: Sequence[bytes]) -> list[bytes]:
    """The elements of a list: an Ext for each message, of its fields."""
    heads = map(operator.getitem, map(_HEADS.__getitem__, kinds), map(len, bodies))
    return list(map(b"".join, zip(heads, bodies, repeat(_SUFFIX))))


# -- what is known


def _agree(cls: type[BaseModel]) -> bool:
    """Whether the columns of a class make of samples what the ordinary path does, wherever they answer."""
    ordinary = JsonPlusSerializer()
    for sample in single.samples(cls):
        for name in ("usage_metadata", None):
            pair = [sample, sample]
            found = known(pair)
            bodies = found and pack(*found)
            if found and bodies:
                data = b"\x92" + b"".join(elements(found[0], bodies))
                packed = b"".join(bodies)
                if ordinary.dumps_typed(pair) != ("msgpack", data) or pack_all(found[1]) != packed:
                    return False
                read: list[Any] = ordinary.loads_typed(("msgpack", data))
                if name and list(map(single.state, make(found[0], unpack_all(packed, 2)))) != list(
                    map(single.state, read)
                ):
                    return False
            if name and sample.__dict__.get(name):
                # In another order than declared.
                sample.__dict__[name] = dict(reversed(sample.__dict__[name].items()))
    return True


def _build() -> None:
    """Fill what is known of the classes."""
    for cls in ENCODERS:
        try:
            CLASSES[cls] = _class(cls)
            _HEADS[cls], _NAMES[cls] = CLASSES[cls].heads, CLASSES[cls].fields
            agree = _agree(cls)
        except UNLIKE:
            agree = False
        if not agree:
            CLASSES.pop(cls, None)


CLASSES: Final[dict[type, _Class]] = {}
_HEADS: Final[dict[type, _Heads]] = {}
_NAMES: Final[dict[type, frozenset[str]]] = {}
"""The last two are parts of the first, by themselves, as they are looked up for each message."""
_build()
