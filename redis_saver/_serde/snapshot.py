"""A copy of a value's containers, which no other OS thread can change while the value is packed.

ormsgpack reads the length of a list once, and holds no reference to an element while it packs it. It keeps the interpreter's
lock, so nothing changes as long as it runs no Python code. But when it calls `default`, or asks a key
for its value, other OS threads may run. If one of them shortens a list that is being packed, the interpreter crashes
(`docs/upstream/ormsgpack-concurrent-mutation.md`). A graph can do that to state that is saved in the background.

Copied are the containers that ormsgpack walks through by itself: lists, dicts and tuples, and subclasses of lists and dicts, whose methods
it does not call either. Each container is copied in one step, so all of it is from one moment. Two containers may be from two moments.
"""

from __future__ import annotations

from enum import EnumMeta
from types import NoneType
from typing import Any, Final

import ormsgpack

from redis_saver._serde import native_bridge
from redis_saver._serde.message_codec import ENCODERS

_LEAVES: Final = frozenset({str, int, float, bool, NoneType, bytes, bytearray, memoryview, ormsgpack.Ext})
"""Types of values that need no copy. (The packer copies bytes that can be changed in one step.)"""

DEEPEST: Final = 1024
"""No packer goes this deep. A value that is nested deeper most likely contains itself."""


def snapshot(value: Any) -> tuple[Any, int]:
    """A copy of a value for the packer. It packs to the same bytes, and shares no container with others that can change it.

    Tuples become lists, and messages become what they are packed as. Objects stay; what they hold is copied when
    `default` returns it.

    Returns:
        The copy, and how deep its containers are nested.

    Raises:
        MsgpackEncodeError: They are nested deeper than can be packed.
    """
    found = None if native_bridge.native is None else native_bridge.native.snapshot(value, _message)
    return _snapshot(value) if found is None else found


def _snapshot(value: Any) -> tuple[Any, int]:
    top = [value]
    copies: list[tuple[Any, int]] = [(top, 0)]
    deepest = 0
    # The last one first, so that a list that contains itself twice is copied only as often as it is deep.
    while copies:
        container, depth = copies.pop()
        deepest = max(deepest, depth)
        if depth > DEEPEST:
            raise ormsgpack.MsgpackEncodeError(
                f"containers are nested more than {DEEPEST} deep; one may contain itself"
            )
        for at, item in enumerate(container) if type(container) is list else container.items():
            kind = type(item)
            if kind in _LEAVES:
                continue
            if kind in ENCODERS:
                container[at] = _message(item)
            elif (copy := _copied(item, kind)) is not None:
                container[at] = copy
                copies.append((copy, depth + 1))
    return top[0], deepest


def _message(message: Any) -> Any:
    """What a message is packed as; the message itself if `default` has to decide."""
    data = native_bridge.payload(message, ENCODERS[type(message)])
    return message if data is None else ormsgpack.Ext(5, data)


def _copied(item: Any, kind: type) -> list[Any] | dict[Any, Any] | None:
    """A copy of a container as a list or dict; None if the packer does not walk through it."""
    if kind is list or kind is tuple:
        return list(item)  # not item[:], which may collect garbage halfway before Python 3.12
    if kind is dict:
        return dict(item)
    if type(kind) is EnumMeta:
        return None
    # The contents of subclasses, without their own methods.
    if issubclass(kind, list):
        return list(list.__iter__(item))
    if issubclass(kind, dict):
        return dict(list(dict.items(item)))  # the list first, because hashing a key may run Python code
    return None
