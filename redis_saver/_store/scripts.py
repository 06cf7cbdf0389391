"""The scripts of the store (`lua/store/`), and the types of their replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from redis_saver._common.display import shown
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.scripts import Script, load
from redis_saver.errors import reading_store

_TYPES: Mapping[str, frozenset[type]] = {
    "b": frozenset((bytes,)),
    "i": frozenset((int,)),
    "r": frozenset((bytes, type(None))),
}
_REPLIES: dict[Script, tuple[str, Mapping[int, str]]] = {}


def _load(name: str, values: str, codes: Mapping[int, str] | None = None) -> Script:
    """Load a script, and note the types of its replies.

    Args:
        name: Its name.
        values: Types of the values that it answers: `b` is bytes, `i` an int, `r` bytes or None. Values after `*`
            repeat. A reply of `?` may be empty.
        codes: Types of the values that follow each code.
    """
    script = load(f"store/{name}")
    _REPLIES[script] = values, codes or {}
    return script


_MORE: Mapping[int, str] = {StoreReply.MORE: ""}
_TOKEN: Mapping[int, str] = {**_MORE, StoreReply.NOT_ANNOUNCED: "bb"}
_DOCUMENTS: Mapping[int, str] = {**_TOKEN, StoreReply.DOCUMENTED: ""}
_EMPTIED: Mapping[int, str] = {StoreReply.EMPTIED: "b"}

ANNOUNCE = _load("announce", "bb")
WITHDRAW = _load("withdraw", "i")
LIST_PARTITIONS = _load("list_partitions", "*bb")
GET_ITEMS = _load("get_items", "*r", _DOCUMENTS)
SEARCH_ITEMS = _load("search_items", "bbi*bbb", {**_DOCUMENTS, StoreReply.SAME: ""})
LIST_ITEMS = _load("list_items", "?bibi*b", _MORE)
COUNT_NAMESPACES = _load("count_namespaces", "?bi*bb", _MORE)
READ_ITEMS = _load("read_items", "?bi*bb", _MORE)
DOCUMENT_ITEMS = _load("document_items", "bb*b", _MORE)
SWEEP_ITEMS = _load("sweep_items", "iiib")
PUT_ITEMS = _load("put_items", "?", {**_DOCUMENTS, **_EMPTIED, 0: "", StoreReply.CONFLICT: "ib"})
IMPORT_ITEMS = _load("import_items", "?", {**_DOCUMENTS, 0: "", StoreReply.CONFLICT: "*i"})
GET_COPIES = _load("get_copies", "b*r", _MORE)
FILL_COPIES = _load("fill_copies", "b", _TOKEN)
MARK_COMPLETE = _load("mark_complete", "b", _MORE)
BEGIN_WRITES = _load("begin_writes", "bb", _MORE)
END_WRITES = _load("end_writes", "b", {**_TOKEN, **_EMPTIED})


def is_announced(script: Script) -> bool:
    """True if a script takes an announcement as its first two arguments."""
    return StoreReply.NOT_ANNOUNCED in _REPLIES[script][1]


class Reply(NamedTuple):
    """Reply of a script. Its values have the types that its script was loaded with."""

    code: int
    """A `StoreReply`; 0 for a plain reply."""
    values: list[Any]


def checked(script: Script, key: bytes, reply: Any) -> Reply:
    """Check the types of a script's reply, so that no operation takes a number for bytes or misses a part of a list.

    Raises:
        StoreDamaged: The script never answers that.
    """
    pattern, codes = _REPLIES[script]
    values = [reply] if isinstance(reply, int) else reply
    if isinstance(values, list):
        if codes and values and type(values[0]) is int:
            if (of_code := codes.get(values[0])) is not None and _fits(values[1:], of_code):
                return Reply(values[0], values[1:])
        elif _fits(values, pattern):
            return Reply(0, values)
    with reading_store(key):
        raise ValueError(f"the script about it answered {shown(reply)}")


def _fits(values: list[Any], pattern: str) -> bool:
    if pattern.startswith("?"):
        if not values:
            return True
        pattern = pattern[1:]
    head, _, repeated = pattern.partition("*")
    more = len(values) - len(head)
    if more < 0 or (more % len(repeated) if repeated else more):
        return False
    if not all(type(value) in _TYPES[letter] for value, letter in zip(values, head, strict=False)):
        return False
    return not repeated or _TYPES[repeated[0]].issuperset(map(type, values[len(head) :]))
