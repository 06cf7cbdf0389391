"""The packed fields of messages: in Python, and in C if `native.c` could be built.

An element of a list of messages is an Ext made of them, with a head and an end that depend on the class. A message's
encoder packs its fields (`redis_saver._serde.message_codec`), and checks that they are plain. Fields that were packed
before are compared, or made into messages again, all at once.

The C functions return None for whatever they do not know; then Python does it. At import, the results of both for
samples are compared.
"""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from itertools import repeat
from typing import Any, Final, cast

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from redis_saver._common.logs import Log
from redis_saver._serde import message_codec as single
from redis_saver._serde.annotations import kind_of
from redis_saver._serde.message_codec import ENCODERS, METHOD, PLAIN, UNLIKE, Encoder
from redis_saver._serde.msgpack import ext_header, header, header_length

FAILURES: Final = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)
"""Errors for messages that are not plain, or that another OS thread is changing."""

_fields = operator.attrgetter("__dict__")
_SUFFIX: Final = ormsgpack.packb(METHOD)


class Heads(dict[int, bytes]):
    """Bytes before a message's packed fields (the head of the Ext, module and name), by the length of the fields."""

    def __init__(self, cls: type) -> None:
        self.constant: bytes = b"\x94" + ormsgpack.packb(cls.__module__) + ormsgpack.packb(cls.__name__)
        self.body: slice = slice(len(self.constant), -len(_SUFFIX))
        """The position of the packed fields in a payload."""

    def __missing__(self, size: int) -> bytes:
        head = ext_header(5, len(self.constant) + size + len(_SUFFIX)) + self.constant
        if size < 2048:
            self[size] = head
        return head


def known(messages: Sequence[Any]) -> tuple[list[type], list[dict[str, Any]]] | None:
    """The classes of messages and their fields; None if one is not known, or has more than its fields."""
    kinds = list(map(type, messages))
    if not HEADS.keys() >= set(kinds) or any(map(single.extra_of, messages)):
        return None
    return kinds, list(map(_fields, messages))


def pack(kinds: Sequence[type], messages: Sequence[Any]) -> list[bytes] | None:
    """Pack the fields of each message; None if some are not plain."""
    payloads = [ENCODERS[kind](message) for kind, message in zip(kinds, messages)]  # noqa: B905 - as many
    if None in payloads:
        return None
    pairs = zip(kinds, cast("list[bytes]", payloads))  # noqa: B905 - as many
    return [payload[HEADS[kind].body] for kind, payload in pairs]


def pack_all(fields: list[dict[str, Any]]) -> bytes:
    """The fields of all messages, packed one after another."""
    return ormsgpack.packb(fields, None, PLAIN)[header_length(len(fields)) :]


def unpack_all(packed: bytes, count: int) -> list[dict[str, Any]]:
    """The inverse of `pack_all`, for `count` messages."""
    return cast("list[dict[str, Any]]", ormsgpack.unpackb(header(count, list) + packed))


def make(kinds: Sequence[type], fields: Sequence[dict[str, Any]]) -> list[Any]:
    """Return messages made of these fields.

    The fields have to be complete, in the order of the class, and as validation would leave them.
    """
    messages: list[Any] = list(map(object.__new__, kinds))
    set_fields, set_names, set_extra, set_private = single.SETTERS
    deque(map(set_fields, messages, fields), maxlen=0)
    deque(map(set_names, messages, map(set, map(_NAMES.__getitem__, kinds))), maxlen=0)
    deque(map(set_extra, messages, iter(dict, None)), maxlen=0)
    deque(map(set_private, messages, repeat(None)), maxlen=0)
    return messages


def elements(kinds: Sequence[type], bodies: Sequence[bytes]) -> list[bytes]:
    """The elements of a list: an Ext for each message, made of its packed fields."""
    heads = map(operator.getitem, map(HEADS.__getitem__, kinds), map(len, bodies))
    return list(map(b"".join, zip(heads, bodies, repeat(_SUFFIX))))


# -- the classes that are known


def _agree(cls: type[BaseModel]) -> bool:
    """True if the functions here give the same results for samples as the ordinary path."""
    ordinary = JsonPlusSerializer()
    for sample in single.samples(cls):
        pair = [sample, sample]
        found = known(pair)
        if found is None:
            continue
        kinds, fields = found
        bodies = pack(kinds, pair)
        if bodies is None:
            return False
        data, packed = b"\x92" + b"".join(elements(kinds, bodies)), b"".join(bodies)
        if ordinary.dumps_typed(pair) != ("msgpack", data) or pack_all(fields) != packed:
            return False
        read: list[Any] = ordinary.loads_typed(("msgpack", data))
        if [single.state(one) for one in make(kinds, unpack_all(packed, 2))] != [single.state(one) for one in read]:
            return False
    return True


def _build() -> None:
    """Fill the tables of known classes."""
    for cls in ENCODERS:
        try:
            HEADS[cls], _NAMES[cls] = Heads(cls), frozenset(cast("type[BaseModel]", cls).model_fields)
            agree = _agree(cls)
        except UNLIKE:
            agree = False
        if not agree:
            HEADS.pop(cls, None)


HEADS: Final[dict[type, Heads]] = {}
_NAMES: Final[dict[type, frozenset[str]]] = {}
_build()


# -- in C


def _load() -> Any:
    """The compiled module. None if it was not built, or cannot be loaded, which is logged."""
    try:
        return import_module("redis_saver._serde.native")
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        _LOG.warning(
            "redis_saver goes on without its compiled part, which cannot be loaded, and is slower: %s. Install it "
            "again for this machine",
            error,
        )
        return None


_LOG: Final = Log("redis_saver.serde")
native: Any = _load()

_NOTHING_CHANGES, _CALLS_STAY, _UNREADABLE = range(3)
"""The conditions under which constructor and validators leave the fields as they are: none, one that `native.c` checks,
or others. Numbered as in `native.c`."""


def payload(message: Any, encode: Encoder) -> bytes | None:
    """The payload of the Ext of a message whose class has an encoder. The encoder makes it if C cannot."""
    data = None if native is None else native.payload(message)
    return encode(message) if data is None else data


def _rule(cls: type[BaseModel]) -> int:
    conditions = single.conditions(cls)
    if conditions == [single.TOOL_CALLS_STAY]:
        return _CALLS_STAY
    return _UNREADABLE if conditions else _NOTHING_CHANGES


def _learn(cls: type[BaseModel]) -> bool:
    """Register a class with the compiled module. Returns whether it gives the same results as Python."""
    fields = {sys.intern(name): kind_of(field.annotation) for name, field in cls.model_fields.items()}
    packed, head = tuple(map(ormsgpack.packb, fields)), HEADS[cls].constant
    told = native.learn(
        cls, tuple(fields), packed, tuple(fields.values()), head, dict.fromkeys(fields), frozenset(fields), _rule(cls)
    )
    return told and all(map(_agrees_on, single.samples(cls)))


def _agrees_on(sample: Any) -> bool:
    """True if both give the same result for a sample."""
    cls, pair = type(sample), [sample, sample]
    packed = native.pack(pair)
    if packed is None:
        return bool(sample.model_extra)
    bodies, fields = packed
    found = known(pair)
    payload = single.ENCODERS[cls](sample)
    if found is None or payload is None:
        return False
    kinds = tuple(found[0])
    if (bodies, native.payload(sample)) != (pack(kinds, pair), payload):
        return False
    made = native.make(kinds, fields)
    states = [single.state(message) for message in make(kinds, unpack_all(b"".join(bodies), 2))]
    read = native.read(payload)
    return (
        native.encode(pair) == b"\x92" + b"".join(elements(kinds, bodies))
        and native.unchanged(pair, kinds, fields) == 2
        and made is not None
        and [single.state(message) for message in made] == states
        and (_rule(cls) == _UNREADABLE if read is None else single.state(read) == states[0])
    )


CLASSES: Final[set[type]] = set()
"""The classes that the compiled module knows."""
if native is not None:
    for _cls in HEADS:
        try:
            _agrees = _learn(_cls)
        except single.UNLIKE as _error:
            _LOG.info("%s is left to Python: %r", _cls.__name__, _error)
            _agrees = False
        if _agrees:
            CLASSES.add(_cls)
        else:
            native.forget(_cls)
