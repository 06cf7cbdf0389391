"""The packed fields of messages. An element of a list of messages is an Ext made of them, with a head and an end that depend on the class.

A message's encoder packs its fields (`redis_saver._serde.message_codec`), and checks that they are plain. Fields that were packed before are
compared, or made into messages again, all at once.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final, cast

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from redis_saver._serde import message_codec as single
from redis_saver._serde import pydantic_models
from redis_saver._serde.message_codec import ENCODERS, METHOD, PLAIN, UNLIKE
from redis_saver._serde.msgpack import ext_header, header, header_length

FAILURES: Final = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)
"""What is raised for messages that are not plain, or that another OS thread is changing."""

_fields = operator.attrgetter("__dict__")
_SUFFIX: Final = ormsgpack.packb(METHOD)


class Heads(dict[int, bytes]):
    """What stands in front of a message's packed fields (the head of the Ext, module and name), by the length of the fields."""

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
    if not HEADS.keys() >= set(kinds) or any(map(pydantic_models.extra_of, messages)):
        return None
    return kinds, list(map(_fields, messages))


def pack(kinds: Sequence[type], messages: Sequence[Any]) -> list[bytes] | None:
    """Pack the fields of each message; None if some are not plain."""
    payloads = [ENCODERS[kind](message) for kind, message in zip(kinds, messages)]  # noqa: B905 - as many
    if None in payloads:
        return None
    return [payload[HEADS[kind].body] for kind, payload in zip(kinds, cast("list[bytes]", payloads))]  # noqa: B905 - as many


def pack_all(fields: list[dict[str, Any]]) -> bytes:
    """The fields of all messages, packed one after another."""
    return ormsgpack.packb(fields, None, PLAIN)[header_length(len(fields)) :]


def unpack_all(packed: bytes, count: int) -> list[dict[str, Any]]:
    """The inverse of `pack_all`, for `count` messages."""
    return cast("list[dict[str, Any]]", ormsgpack.unpackb(header(count, list) + packed))


def make(kinds: Sequence[type], fields: Sequence[dict[str, Any]]) -> list[Any]:
    """Messages made of these fields, which have to be complete, in the order of the class, and as validation would leave them."""
    messages: list[Any] = list(map(object.__new__, kinds))
    set_fields, set_names, set_extra, set_private = pydantic_models.SETTERS
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
    """Whether the functions here give the same results for samples as the ordinary path."""
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
