"""Values as langgraph-checkpoint-redis keeps them in JSON documents, turned into those of LangGraph's own format.

Its documents are JSON, in which objects are dicts with a mark:

    {"lc": 1, "type": "constructor", "id": [...], "kwargs": {...}}    an object of langchain_core, such as a message
    {"lc": 2, "type": "constructor", "id": [module, ..., name], ...}  any other object: "kwargs", or "args"; a set has "args", or its
                                                                      items in kwargs.__set_items__ (before 0.5); "method", if that
                                                                      made it of one argument (0.1)
    {"__interrupt__": true, "value": ..., "id": ...}                  an Interrupt; without the mark in 0.1
    {"__send__": true, "node": ..., "arg": ...}                       a Send
    {"__delta_snapshot__": true, "value": ...}                        a snapshot of a DeltaChannel (from 0.5 on)
    {"__bytes__": base64}                                             bytes, in documents of checkpoints

Here they become the msgpack extensions that LangGraph's serializer writes for the same objects. So no class has to be imported, but for messages and
other classes of langchain_core: these are made by LangChain's own loader, which allows no others.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import LC_REVIVER
from langgraph.checkpoint.serde.types import INTERRUPT

from redis_saver._storage.opaque import OpaqueSerializer

_ONE_ARGUMENT, _ARGUMENTS, _KEYWORDS, _METHOD, _SNAPSHOT = 0, 1, 2, 3, 7
"""Codes of LangGraph's msgpack extensions."""
_SERIALIZER = OpaqueSerializer()
_NOT_REVIVED = (ValueError, TypeError, LookupError, AttributeError, ImportError, NotImplementedError)
"""What LangChain's loader raises for an object that it does not know or allow."""


def typed(found: Any, *, marked_bytes: bool) -> tuple[str, bytes]:
    """A value that was parsed from JSON, as LangGraph's serializer would store it: a type and bytes.

    Args:
        found: The value.
        marked_bytes: Whether `{"__bytes__": ...}` means bytes.

    Raises:
        ValueError: It holds what msgpack cannot, such as an integer of more than 64 bits.
    """
    try:
        return _SERIALIZER.dumps_typed(_value(found, marked_bytes))
    except ormsgpack.MsgpackEncodeError as error:
        raise ValueError(f"LangGraph's serializer cannot hold it: {error}") from error


def with_interrupts(channel: str, found: Any) -> Any:
    """What was written to a channel, with the mark that interrupts had not got in 0.1. Nothing else is written to their channel."""
    if channel != INTERRUPT or not isinstance(found, list):
        return found
    return [{**one, "__interrupt__": True} if isinstance(one, dict) and "id" in one else one for one in found]


def _value(found: Any, marked_bytes: bool) -> Any:
    if isinstance(found, list):
        return [_value(item, marked_bytes) for item in found]
    if not isinstance(found, dict):
        return found
    if marked_bytes and found.keys() == {"__bytes__"} and (raw := _bytes(found["__bytes__"])) is not None:
        return raw
    return _object({key: _value(item, marked_bytes) for key, item in found.items()})


def _bytes(text: Any) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        return None


def _object(found: dict[str, Any]) -> Any:
    """The object that a dict stands for; the dict itself if it stands for none. Its values have been turned already."""
    if found.get("__interrupt__") is True and "value" in found:
        fields = {name: value for name, value in found.items() if name != "__interrupt__"}
        return _packed(_KEYWORDS, "langgraph.types", "Interrupt", fields)
    if found.get("__send__") is True and found.keys() == {"__send__", "node", "arg"}:
        return _packed(_ARGUMENTS, "langgraph.types", "Send", (found["node"], found["arg"]))
    if found.get("__delta_snapshot__") is True and found.keys() == {"__delta_snapshot__", "value"}:
        return ormsgpack.Ext(_SNAPSHOT, _pack(found["value"]))
    return _constructed(found) if found.get("type") == "constructor" else found


def _constructed(found: dict[str, Any]) -> Any:
    if found.get("lc") == 2 and _is_name(found.get("id")):
        return _of_class(found)
    try:
        return LC_REVIVER(found) if found.get("lc") == 1 else found
    except _NOT_REVIVED:
        return found  # as their own saver answers


def _of_class(found: dict[str, Any]) -> Any:
    *module, name = found["id"]
    args, kwargs = found.get("args"), found.get("kwargs")
    if found["id"] == ["builtins", "set"]:
        items = args[0] if args else (kwargs or {}).get("__set_items__", ())
        return _packed(_ONE_ARGUMENT, "builtins", "set", tuple(sorted(items, key=_pack)))  # equal sets, equal bytes
    if args and kwargs:
        return found
    if isinstance(method := found.get("method"), str):
        if not args or len(args) > 1:
            return found
        return _packed(_METHOD, ".".join(module), name, args[0], method)
    if args:
        return _packed(_ARGUMENTS, ".".join(module), name, tuple(args))
    return _packed(_KEYWORDS, ".".join(module), name, kwargs or {})


def _is_name(found: Any) -> bool:
    return isinstance(found, list) and len(found) > 1 and all(isinstance(part, str) for part in found)


def _packed(code: int, module: str, name: str, *arguments: Any) -> ormsgpack.Ext:
    """An object: of its class, what it is made of, and the method that makes it, if it is not the class itself."""
    return ormsgpack.Ext(code, _pack((module, name, *arguments)))


def _pack(value: Any) -> bytes:
    kind, data = _SERIALIZER.dumps_typed(value)
    return data if kind == "msgpack" else ormsgpack.packb(value)
