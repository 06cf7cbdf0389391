"""What the store's scripts answer, as their headers say it: which kinds of values, in which order.

A reply is held against that where it comes in (`checked`). So no operation meets a number where it expects bytes, and takes a part of a list for another one.
What the bytes say is read, and checked, by who needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

from redis_saver._common.display import shown
from redis_saver._engine import scripts
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.scripts import Script
from redis_saver.errors import reading_store

Kinds: TypeAlias = frozenset[type] | int
"""What a value may be: of one of these types, or this code."""
_BYTES: Kinds = frozenset((bytes,))
_NUMBER: Kinds = frozenset((int,))
_RECORD: Kinds = frozenset((bytes, NoneType))


class Answer(NamedTuple):
    """What a script may answer."""

    head: tuple[Kinds, ...] = ()
    """What it begins with. A code that stands there alone may also come without a list."""
    rest: Kinds = 0
    """What each value behind that is, where there may be any."""
    width: int = 1
    """They come by so many."""

    def fits(self, reply: list[Any]) -> bool:
        """Whether a reply may be this."""
        length = len(self.head)
        if len(reply) < length or not all(map(_is, reply, self.head)):
            return False
        rest = reply[length:]
        if isinstance(self.rest, int):
            return not rest
        return len(rest) % self.width == 0 and self.rest.issuperset(map(type, rest))


def _is(value: Any, kinds: Kinds) -> bool:
    return type(value) is int and value == kinds if isinstance(kinds, int) else type(value) in kinds


_NOTHING = Answer()
_DONE = Answer((0,))
_MORE = Answer((StoreReply.MORE,))
_NOT_ANNOUNCED = Answer((StoreReply.NOT_ANNOUNCED, _BYTES, _BYTES))
_DOCUMENTED = Answer((StoreReply.DOCUMENTED,))
_EMPTIED = Answer((StoreReply.EMPTIED, _BYTES))
_TEXT = Answer((_BYTES,))

_ANSWERS: Mapping[Script, tuple[Answer, ...]] = {
    scripts.ANNOUNCE: (Answer((_BYTES, _BYTES)),),
    scripts.LIST_PARTITIONS: (Answer((), _BYTES, 2),),
    scripts.GET_ITEMS: (Answer((), _RECORD), _MORE, _NOT_ANNOUNCED, _DOCUMENTED),
    scripts.SEARCH_ITEMS: (
        Answer((_BYTES, _BYTES, _NUMBER), _BYTES, 3),
        _MORE,
        _NOT_ANNOUNCED,
        Answer((StoreReply.SAME,)),
        _DOCUMENTED,
    ),
    scripts.LIST_ITEMS: (_NOTHING, Answer((_BYTES, _NUMBER, _BYTES, _NUMBER), _BYTES), _MORE),
    scripts.COUNT_NAMESPACES: (_NOTHING, Answer((_BYTES, _NUMBER), _BYTES, 2), _MORE),
    scripts.EXPORT_ITEMS: (Answer((), _BYTES, 2), _MORE),
    scripts.GET_VECTORS: (_NOTHING, Answer((_BYTES, _NUMBER), _BYTES, 2), _MORE),
    scripts.DOCUMENT_ITEMS: (Answer((_BYTES, _BYTES), _BYTES), _MORE),
    scripts.SWEEP_ITEMS: (Answer((_NUMBER, _NUMBER, _NUMBER, _BYTES)),),
    scripts.PUT_ITEMS: (
        _DONE,
        _MORE,
        _NOT_ANNOUNCED,
        Answer((StoreReply.CONFLICT, _NUMBER, _BYTES)),
        _EMPTIED,
        _DOCUMENTED,
    ),
    scripts.IMPORT_ITEMS: (_DONE, _MORE, _NOT_ANNOUNCED, Answer((StoreReply.CONFLICT,), _NUMBER), _DOCUMENTED),
    scripts.GET_COPIES: (Answer((_BYTES,), _RECORD), _MORE),
    scripts.CHECK_COMPLETE: (_TEXT, Answer((_BYTES, _BYTES, _BYTES)), _MORE),
    scripts.FILL_COPIES: (_TEXT, _MORE, _NOT_ANNOUNCED),
    scripts.MARK_COMPLETE: (_TEXT, _MORE),
    scripts.BEGIN_WRITES: (Answer((_BYTES, _BYTES)), _MORE),
    scripts.END_WRITES: (_TEXT, _EMPTIED, _MORE, _NOT_ANNOUNCED),
}


def item_at(position: int, count: int) -> int:
    """Which of so many items a script means that counts them from 1; the result counts from 0.

    Raises:
        ValueError: It is none of them.
    """
    if not 1 <= position <= count:
        raise ValueError(f"it names item {position} of {count}")
    return position - 1


def checked(script: Script, key: bytes, reply: Any) -> Any:
    """A reply of a script, if it is what that answers. Cost: a comparison for each value.

    Raises:
        StoreDamaged: It is something else.
    """
    given = [reply] if isinstance(reply, int) else reply
    if isinstance(given, list) and any(answer.fits(given) for answer in _ANSWERS[script]):
        return reply
    with reading_store(key):
        raise ValueError(f"the script about it answered {shown(reply)}")
