"""A copy of a value's containers, which no other OS thread can change while the value is packed.

ormsgpack reads the length of a list once, and holds no reference to an element while it packs that. It keeps the interpreter's
lock all the time, so nothing can change under it as long as it runs no Python code. But where it calls `default`, or asks a key
for its value, other OS threads may run, and if one of them shortens a list that is being packed, the interpreter crashes
(`docs/upstream/ormsgpack-concurrent-mutation.md`). A graph can do that to state which is saved in the background.

What is copied is what ormsgpack walks through by itself: lists, dicts and tuples, and subclasses of the first two, whose methods
it does not call either. Each container is copied in one step, so all of it is of one moment; two containers may be of two.
"""

from __future__ import annotations

from enum import EnumMeta
from types import NoneType
from typing import Any, Final

import ormsgpack

from redis_saver._serde import native_bridge
from redis_saver._serde.message_codec import ENCODERS

_LEAVES: Final = frozenset({str, int, float, bool, NoneType, bytes, bytearray, memoryview, ormsgpack.Ext})
"""Types of values in which there is nothing to copy. (Bytes that can be changed are copied by the packer, in one step.)"""

DEEPEST: Final = 1024
"""So deep no packer goes: what is nested deeper most likely holds itself."""


def snapshot(value: Any) -> tuple[Any, int]:
    """A copy of a value as the packer is to be given it: the same bytes, and nothing in it that others have and can change.

    Tuples become lists, and messages what they are packed as. Objects are what they were: what they hold is copied when
    `default` answers it.

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
    # The last first, so that of a list which holds itself twice no more than its depth is copied.
    while copies:
        container, depth = copies.pop()
        deepest = max(deepest, depth)
        if depth > DEEPEST:
            raise ormsgpack.MsgpackEncodeError(f"containers are nested more than {DEEPEST} deep; one may hold itself")
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
    """What a message is packed as; it itself where `default` is to say."""
    data = native_bridge.payload(message, ENCODERS[type(message)])
    return message if data is None else ormsgpack.Ext(5, data)


def _copied(item: Any, kind: type) -> list[Any] | dict[Any, Any] | None:
    """A copy of a container as a list or dict; None where the packer does not walk through it."""
    if kind is list or kind is tuple:
        return list(item)  # and not item[:], in the middle of which garbage may be collected before Python 3.12
    if kind is dict:
        return dict(item)
    if type(kind) is EnumMeta:
        return None
    # What they hold, whatever their own methods say.
    if issubclass(kind, list):
        return list(list.__iter__(item))
    if issubclass(kind, dict):
        return dict(list(dict.items(item)))  # first the list: to hash a key may run Python code
    return None
