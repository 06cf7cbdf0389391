"""Checkpoints of langgraph-checkpoint-redis since 0.1: a JSON document for each checkpoint and each pending write.

    <prefix>:<thread>:<namespace>:<checkpoint>             a checkpoint of RedisSaver, with the values of its channels
    <prefix>:<thread>:<namespace>                          the newest checkpoint of ShallowRedisSaver
    <writes>:<thread>:<namespace>:<checkpoint>:<task>:<n>  a pending write; n is its index

An empty namespace is `__empty__` in keys and documents. It is empty in the keys of ShallowRedisSaver, and in the
documents of its twin for asyncio. Names may hold colons, so a key does not show where they end. The documents repeat
all names, so they are found by their type and these names, with any prefix. Everything else (pointers to the newest
checkpoint, lists of keys, search indexes) follows from them.

0.1 stored the JSON of a pending write as it is. Since 0.2 it is in base64. A thread may have both. 0.0 named the parent
in place of the checkpoint, so a thread with such documents is refused.

In these documents an object is a dict with a mark:

    {"lc": 1, "type": "constructor", "id": [...], "kwargs": {...}}    an object of langchain_core, such as a message
    {"lc": 2, "type": "constructor", "id": [module, ..., name], ...}  any other object, with "kwargs" or "args"; a set
                                                                      with "args", or kwargs.__set_items__ (before 0.5);
                                                                      "method" (0.1) makes an object of one argument
    {"__interrupt__": true, "value": ..., "id": ...}                  an Interrupt; without the mark in 0.1
    {"__send__": true, "node": ..., "arg": ...}                       a Send
    {"__delta_snapshot__": true, "value": ...}                        a snapshot of a DeltaChannel (from 0.5 on)
    {"__bytes__": base64}                                             bytes, in documents of checkpoints

They become the msgpack extensions that LangGraph's serializer writes for the same objects, so no class is imported.
Only objects of langchain_core are made, by LangChain's own loader, which allows no others.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ormsgpack
from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple
from langgraph.checkpoint.serde.jsonplus import LC_REVIVER
from langgraph.checkpoint.serde.types import INTERRUPT

from redis_saver._checkpoint.comparing import Task, task_of
from redis_saver._checkpoint.listing import mapped, scan_keys
from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._engine.requests import Command, Operation, Stream
from redis_saver._migrate.endpoints import TaskInfo, special
from redis_saver._migrate.foreign import ForeignSource, Place, ThreadKey, as_tuple, batched, of_type, summarized
from redis_saver._storage.opaque import OpaqueSerializer

_CHECKPOINT = ("$.thread_id", "$.checkpoint_ns", "$.checkpoint_id", "$.parent_checkpoint_id")
_WRITE = ("$.task_id", "$.idx", "$.task_path", "$.channel")
_NO_NAMESPACE = "__empty__"
_NO_ID = "00000000-0000-0000-0000-000000000000"
_ONE_ARGUMENT, _ARGUMENTS, _KEYWORDS, _METHOD, _SNAPSHOT = 0, 1, 2, 3, 7
"""Codes of LangGraph's msgpack extensions."""
_SERIALIZER = OpaqueSerializer()
_NOT_REVIVED = (ValueError, TypeError, LookupError, AttributeError, ImportError, NotImplementedError)
"""Errors of LangChain's loader for an object that it does not know or allow."""


class RedisDocuments(ForeignSource):
    """The documents of langgraph-checkpoint-redis on a server."""

    kind = "langgraph-checkpoint-redis"

    @staticmethod
    def scan() -> Stream[ThreadKey]:
        """Find the keys of all documents of the saver."""
        return mapped(scan_keys(b"*"), _thread_keys)

    def survey(self, thread: str, keys: Sequence[bytes]) -> Operation[Mapping[CheckpointKey, Place]]:
        """Find the checkpoints of a thread.

        Raises:
            ValueError: The thread has documents of release 0.0, which have the parent's id twice, or none.
        """
        heads = [head for head in (yield from _heads(keys)) if head is not None and head.thread == thread]
        if any(head.prefix is not None and head.at[1] in ("", head.parent) for head in heads):
            raise ValueError(
                "it has documents of langgraph-checkpoint-redis 0.0, which name the parent in place of the checkpoint. "
                "Read its state with that release, and put it into a new thread by update_state"
            )
        # If both savers stored a checkpoint, RedisSaver's document wins, because it names the parent.
        by_parent = sorted(heads, key=lambda head: head.parent is not None)
        checkpoints = {head.at: head for head in by_parent if head.prefix is not None}
        writes: dict[CheckpointKey, dict[tuple[str, int], _Head]] = {}
        for head in heads:
            if head.prefix is None:
                writes.setdefault(head.at, {})[head.task, head.number] = head
        specials = [write.key for some in writes.values() for write in some.values() if write.channel in WRITES_IDX_MAP]
        digests = dict(zip(specials, (yield from summarized("JSON.GET", specials, self._digest)), strict=True))
        places: dict[CheckpointKey, Place] = {}
        for key, head in checkpoints.items():
            tasks, ordered = dict[Task, TaskInfo](), sorted(writes.get(key, {}).values(), key=_order)
            for write in ordered:
                info = TaskInfo(write.path, digests.get(write.key, b""))
                tasks.setdefault(task_of(write.task, write.channel), info)
            places[key] = Place(head.parent, (head.key, *(write.key for write in ordered)), tasks)
        return places

    def _digest(self, stored: Any) -> bytes:
        """Return the digest of a value in a special channel. It is empty if the value is gone."""
        if (document := _parsed(stored)) is None:
            return b""
        return special(task_of(document["task_id"], document["channel"]), self._written(document))

    def read(self, thread: str, key: CheckpointKey, place: Place) -> Operation[CheckpointTuple | None]:
        """Read a checkpoint with its pending writes."""
        replies = yield from batched([Command(("JSON.GET", key)) for key in place.keys])
        document, *writes = map(_parsed, replies)
        if document is None:
            return None
        checkpoint, metadata = _object(document["checkpoint"]), _object(document["metadata"])
        checkpoint = {name: value for name, value in checkpoint.items() if name not in ("type", "pending_sends")}
        checkpoint["channel_values"] = {
            channel: self._serde.loads_typed(typed(value, marked_bytes=True))
            for channel, value in (checkpoint["channel_values"] or {}).items()
        }
        written = [(write["task_id"], write["channel"], self._written(write)) for write in writes if write is not None]
        return as_tuple(thread, key, place.parent, checkpoint, metadata, written)

    def _written(self, document: Mapping[str, Any]) -> Any:
        """Return the value of a pending write."""
        kind, blob = document["type"], document["blob"]
        if kind != "json":
            data = base64.b64decode(blob, validate=True)
            return self._serde.loads_typed(("bytes" if kind == "base64" else kind, data))
        try:
            value = json.loads(blob)  # 0.1; no text is both, because base64 of JSON does not begin as JSON does
        except json.JSONDecodeError:
            value = json.loads(base64.b64decode(blob, validate=True))
        if document["channel"] == INTERRUPT and isinstance(value, list):  # 0.1 has no mark
            value = [
                {**each, "__interrupt__": True} if isinstance(each, dict) and "id" in each else each for each in value
            ]
        return self._serde.loads_typed(typed(value, marked_bytes=False))


class _Head(NamedTuple):
    """Names in a document."""

    key: bytes
    prefix: str | None
    """Beginning of the key of a checkpoint. It is None for a pending write."""
    thread: str
    at: CheckpointKey
    """The checkpoint, or the one that a write belongs to."""
    parent: str | None
    task: str = ""
    number: int = 0
    """Index among the task's writes. It is negative for special channels."""
    path: str | None = None
    channel: str = ""


def _thread_keys(keys: Sequence[bytes]) -> Operation[list[ThreadKey]]:
    """Select the keys of the saver's documents."""
    heads = yield from _heads((yield from of_type(keys, b"ReJSON-RL")))
    return [ThreadKey(head.thread, head.key, head.prefix) for head in heads if head is not None]


def _order(head: _Head) -> tuple[str, str, int, bytes]:
    """Sort pending writes by task as LangGraph does, and each task's in the order in which it wrote them."""
    return head.path or "", head.task, head.number, head.key


def _heads(keys: Sequence[bytes]) -> Operation[list[_Head | None]]:
    """Read the names in documents. The result is None for a key that is gone, or is not the saver's."""
    replies = yield from batched([Command(("JSON.GET", key, *_CHECKPOINT, *_WRITE)) for key in keys])
    return [_head(key, reply) for key, reply in zip(keys, map(_parsed, replies), strict=True)]


def _head(key: bytes, reply: Any) -> _Head | None:
    if not isinstance(reply, dict):
        return None
    fields = {path: values[0] for path, values in reply.items() if values}
    thread, ns, checkpoint_id, parent = map(fields.get, _CHECKPOINT)
    task, number, path, channel = map(fields.get, _WRITE)
    if not (isinstance(thread, str) and isinstance(ns, str) and isinstance(checkpoint_id, str)):
        return None
    thread_id, at = _without(thread, _NO_ID), (_without(ns, _NO_NAMESPACE), _without(checkpoint_id, _NO_ID))
    in_key = f":{thread}:{ns or _NO_NAMESPACE}:{checkpoint_id}"
    if isinstance(task, str) and isinstance(number, int) and isinstance(channel, str):
        if _prefix(key, f"{in_key}:{task}:{number}") is None:
            return None
        return _Head(key, None, thread_id, at, None, task, number, path, channel)
    if (prefix := _prefix(key, in_key)) is None and (prefix := _prefix(key, f":{thread}:{at[0]}")) is None:
        return None
    return _Head(key, prefix, thread_id, at, _without(parent or "", _NO_ID) or None)


def _without(name: str, stand_in: str) -> str:
    return "" if name == stand_in else name


def _prefix(key: bytes, rest: str) -> str | None:
    """Return the beginning of a key before `rest`; None if the key does not end so."""
    end = rest.encode("utf-8", "surrogatepass")
    return key.removesuffix(end).decode("utf-8", "backslashreplace") if key.endswith(end) else None


def _parsed(reply: Any) -> Any:
    """Parse a reply to JSON.GET. A client on which redis-py's `json()` was called has parsed it already."""
    return json.loads(reply) if isinstance(reply, (bytes, str)) else reply


def _object(value: Any) -> Any:
    """Return a dict that may be stored as JSON text."""
    return json.loads(value) if isinstance(value, str) else value


# -- values


def typed(value: Any, *, marked_bytes: bool) -> tuple[str, bytes]:
    """Encode a value that was parsed from JSON, as LangGraph's serializer would: a type and bytes.

    Args:
        value: The value.
        marked_bytes: True if `{"__bytes__": ...}` means bytes.

    Raises:
        ValueError: The value holds what msgpack cannot, such as an integer of more than 64 bits.
    """
    try:
        return _SERIALIZER.dumps_typed(_value(value, marked_bytes))
    except ormsgpack.MsgpackEncodeError as error:
        raise ValueError(f"LangGraph's serializer cannot hold it: {error}") from error


def _value(value: Any, marked_bytes: bool) -> Any:
    if isinstance(value, list):
        return [_value(item, marked_bytes) for item in value]
    if not isinstance(value, dict):
        return value
    if marked_bytes and value.keys() == {"__bytes__"}:
        try:
            return base64.b64decode(value["__bytes__"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            pass
    return _revived({key: _value(item, marked_bytes) for key, item in value.items()})


def _revived(fields: dict[str, Any]) -> Any:
    """Return the object that a dict means, or the dict itself if it means none. Its values are revived already."""
    if fields.get("__interrupt__") is True and "value" in fields:
        rest = {name: value for name, value in fields.items() if name != "__interrupt__"}
        return _packed(_KEYWORDS, "langgraph.types", "Interrupt", rest)
    if fields.get("__send__") is True and fields.keys() == {"__send__", "node", "arg"}:
        return _packed(_ARGUMENTS, "langgraph.types", "Send", (fields["node"], fields["arg"]))
    if fields.get("__delta_snapshot__") is True and fields.keys() == {"__delta_snapshot__", "value"}:
        return ormsgpack.Ext(_SNAPSHOT, _pack(fields["value"]))
    return _constructed(fields) if fields.get("type") == "constructor" else fields


def _constructed(fields: dict[str, Any]) -> Any:
    name = fields.get("id")
    if (
        fields.get("lc") == 2
        and isinstance(name, list)
        and len(name) > 1
        and all(isinstance(part, str) for part in name)
    ):
        return _of_class(fields)
    try:
        return LC_REVIVER(fields) if fields.get("lc") == 1 else fields
    except _NOT_REVIVED:
        return fields  # as their own saver answers


def _of_class(fields: dict[str, Any]) -> Any:
    *parts, name = fields["id"]
    module, args, kwargs = ".".join(parts), fields.get("args"), fields.get("kwargs")
    if (module, name) == ("builtins", "set"):
        items = args[0] if args else (kwargs or {}).get("__set_items__", ())
        return _packed(_ONE_ARGUMENT, "builtins", "set", tuple(sorted(items, key=_pack)))  # equal sets, equal bytes
    if args and kwargs:
        return fields
    if isinstance(method := fields.get("method"), str):
        return _packed(_METHOD, module, name, args[0], method) if args and len(args) == 1 else fields
    if args:
        return _packed(_ARGUMENTS, module, name, tuple(args))
    return _packed(_KEYWORDS, module, name, kwargs or {})


def _packed(code: int, *parts: Any) -> ormsgpack.Ext:
    """Pack an object: the module and name of its class, its arguments, and the method that makes it, if any."""
    return ormsgpack.Ext(code, _pack(parts))


def _pack(value: Any) -> bytes:
    kind, data = _SERIALIZER.dumps_typed(value)
    return data if kind == "msgpack" else ormsgpack.packb(value)
