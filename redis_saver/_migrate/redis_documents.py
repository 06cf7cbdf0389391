"""What langgraph-checkpoint-redis stores (from 0.1 on): JSON documents, one for each checkpoint and for each pending write.

    <prefix>:<thread>:<namespace>:<checkpoint>             a checkpoint of RedisSaver, with the values of its channels
    <prefix>:<thread>:<namespace>                          the newest checkpoint of ShallowRedisSaver
    <writes>:<thread>:<namespace>:<checkpoint>:<task>:<n>  a pending write; n is its index

An empty namespace is `__empty__` in keys and documents, but in the keys of ShallowRedisSaver it is empty, and in the documents of its twin for asyncio.

Names may hold colons, so a key does not say where they end: the documents do, as they repeat all names. Documents are found by their type and these
names, whatever their prefixes are; a pending write belongs to the checkpoint that it names. What else there is (pointers to the newest checkpoint, lists
of keys, search indexes) can be made from these.

0.1 stored the JSON of a pending write as it is, and from 0.2 on it is in base64; a thread may have both. 0.0 named the parent in place of the checkpoint, so
a thread with its documents is refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple

from redis_saver._engine.requests import Command, Operation, Page, Scan, Stream
from redis_saver._migrate import foreign_values, records
from redis_saver._migrate.endpoints import special
from redis_saver._migrate.foreign import ForeignSource, Place, batched, found_tuple, of_type, told_by_each
from redis_saver._migrate.records import Key, Task, TaskInfo
from redis_saver._migrate.thread_keys import ThreadKey

_TYPE = b"ReJSON-RL"
_CHECKPOINT = ("$.thread_id", "$.checkpoint_ns", "$.checkpoint_id", "$.parent_checkpoint_id")
_WRITE = ("$.task_id", "$.idx", "$.task_path", "$.channel")
_NO_NAMESPACE = "__empty__"
_NO_ID = "00000000-0000-0000-0000-000000000000"


class RedisDocuments(ForeignSource):
    """The documents of langgraph-checkpoint-redis on a server."""

    kind = "langgraph-checkpoint-redis"

    @staticmethod
    def scan() -> Stream[ThreadKey]:
        """The keys of all documents of the saver."""
        position: Any = None
        while True:
            position, keys = yield Scan(b"*", position)
            heads = yield from _heads((yield from of_type(keys, _TYPE)))
            yield Page([ThreadKey(head.thread, head.key, head.prefix) for head in heads if head is not None])
            if position is None:
                return

    def survey(self, thread: str, keys: Sequence[bytes]) -> Operation[Mapping[Key, Place]]:
        """What a thread has."""
        heads = [head for head in (yield from _heads(keys)) if head is not None and head.thread == thread]
        _check_release(heads)
        # Of a checkpoint that both savers stored, RedisSaver's document is taken, as it names the parent.
        found = {head.at: head for head in sorted(heads, key=_has_parent) if head.is_checkpoint}
        writes: dict[Key, dict[tuple[str, int], _Head]] = {}
        for head in heads:
            if not head.is_checkpoint:
                writes.setdefault(head.at, {})[head.task, head.number] = head
        digests = yield from self._digests([head for some in writes.values() for head in some.values()])
        places: dict[Key, Place] = {}
        for key, head in found.items():
            tasks, of_checkpoint = dict[Task, TaskInfo](), sorted(writes.get(key, {}).values(), key=_order)
            for write in of_checkpoint:
                named = records.task(write.task, write.channel)
                tasks.setdefault(named, TaskInfo(write.path, digests.get(write.key, b"")))
            places[key] = Place(head.parent, (head.key, *(write.key for write in of_checkpoint)), tasks)
        return places

    def _digests(self, writes: Sequence[_Head]) -> Operation[Mapping[bytes, bytes]]:
        """Digests of the values written to special channels."""
        asked = [write.key for write in writes if write.channel in WRITES_IDX_MAP]
        digests = yield from told_by_each("JSON.GET", asked, self._digest)
        return {key: digest for key, digest in zip(asked, digests, strict=True) if digest is not None}

    def _digest(self, stored: Any) -> bytes | None:
        """The digest of a value written to a special channel; None if it is gone."""
        if (document := _parsed(stored)) is None:
            return None
        return special(records.task(document["task_id"], document["channel"]), self._written(document))

    def read(self, thread: str, key: Key, place: Place) -> Operation[CheckpointTuple | None]:
        """A checkpoint with its pending writes."""
        replies = yield from batched([Command(("JSON.GET", each)) for each in place.keys])
        document, *writes = map(_parsed, replies)
        if document is None:
            return None
        checkpoint, metadata = _object(document["checkpoint"]), _object(document["metadata"])
        checkpoint = {name: value for name, value in checkpoint.items() if name not in ("type", "pending_sends")}
        values = checkpoint["channel_values"] or {}
        checkpoint["channel_values"] = {
            channel: self._serde.loads_typed(foreign_values.typed(value, marked_bytes=True))
            for channel, value in values.items()
        }
        written = [(write["task_id"], write["channel"], self._written(write)) for write in writes if write is not None]
        return found_tuple(thread, key, place.parent, checkpoint, metadata, written)

    def _written(self, document: Mapping[str, Any]) -> Any:
        """The value of a pending write."""
        kind, blob = document["type"], document["blob"]
        if kind == "json":
            found = foreign_values.with_interrupts(document["channel"], _json(blob))
            return self._serde.loads_typed(foreign_values.typed(found, marked_bytes=False))
        data = base64.b64decode(blob, validate=True)
        return self._serde.loads_typed(("bytes" if kind == "base64" else kind, data))


class _Head(NamedTuple):
    """What a document says of itself, without values."""

    key: bytes
    prefix: str | None
    """Of a checkpoint's key."""
    thread: str
    at: Key
    """The checkpoint that it is, or that it belongs to."""
    parent: str | None
    task: str
    number: int
    """Its index among the task's writes; below 0 for special channels."""
    path: str | None
    channel: str

    @property
    def is_checkpoint(self) -> bool:
        return self.prefix is not None


def _check_release(heads: Sequence[_Head]) -> None:
    """Refuse what 0.0 stored: the document of a checkpoint has the id of its parent, twice, and of the first one it has none.

    Raises:
        ValueError: There is such a document.
    """
    for head in heads:
        if head.is_checkpoint and head.at[1] in ("", head.parent):
            raise ValueError(
                "it has documents of langgraph-checkpoint-redis 0.0, which name the parent in place of the checkpoint. "
                "Read its state with that release, and put it into a new thread by update_state"
            )


def _json(blob: str) -> Any:
    """A value's JSON: as it is (0.1), or in base64. No text is both, as JSON begins otherwise than the base64 of JSON does."""
    try:
        return json.loads(blob)
    except json.JSONDecodeError:
        return json.loads(base64.b64decode(blob, validate=True))


def _has_parent(head: _Head) -> bool:
    return head.parent is not None


def _order(head: _Head) -> tuple[str, str, int, bytes]:
    """The order of pending writes: by tasks, as LangGraph orders those, and each task's in the order it wrote them."""
    return head.path or "", head.task, head.number, head.key


def _heads(keys: Sequence[bytes]) -> Operation[list[_Head | None]]:
    """What documents say of themselves; None for those that are gone, or are not of the saver."""
    replies = yield from batched([Command(("JSON.GET", key, *_CHECKPOINT, *_WRITE)) for key in keys])
    return [_head(key, found) for key, found in zip(keys, map(_parsed, replies), strict=True)]


def _head(key: bytes, found: Any) -> _Head | None:
    if not isinstance(found, dict):
        return None
    said = {path: values[0] for path, values in found.items() if values}
    thread, ns, checkpoint_id, parent = map(said.get, _CHECKPOINT)
    task, number, path, channel = map(said.get, _WRITE)
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
    return _Head(key, prefix, thread_id, at, _without(parent or "", _NO_ID) or None, "", 0, None, "")


def _without(name: str, stand_in: str) -> str:
    return "" if name == stand_in else name


def _prefix(key: bytes, rest: str) -> str | None:
    """What stands in front of the rest of a key; None if that is not its rest."""
    raw = rest.encode("utf-8", "surrogatepass")
    return key.removesuffix(raw).decode("utf-8", "backslashreplace") if key.endswith(raw) else None


def _parsed(found: Any) -> Any:
    """The reply to JSON.GET. Clients on which redis-py's `json()` was called parse it themselves."""
    return json.loads(found) if isinstance(found, (bytes, str)) else found


def _object(found: Any) -> Any:
    """A dict that may be stored as the text of one."""
    return json.loads(found) if isinstance(found, str) else found
