"""What ValkeySaver stores (langgraph-checkpoint-aws): JSON texts in strings.

    checkpoint:{<thread>}:<namespace>:<checkpoint>   a checkpoint: its names, and the whole of it in LangGraph's format, in base64
    writes:{<thread>}:<namespace>:<checkpoint>       its pending writes: a list
    thread:{<thread>}:<namespace>                    the ids of its checkpoints: a list, which is not needed here

Names may hold colons and braces, so a key does not say where they end: the text does, as it begins with the names. It says nothing of the tasks' paths.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._common import names
from redis_saver._engine.requests import Command, Operation, Page, Scan, Stream
from redis_saver._migrate import records
from redis_saver._migrate.endpoints import special
from redis_saver._migrate.foreign import ForeignSource, Place, batched, found_tuple, of_type, told_by_each
from redis_saver._migrate.records import Key, Task, TaskInfo
from redis_saver._migrate.thread_keys import ThreadKey

PREFIX = "checkpoint"
_HEAD_BYTES = 1000
"""So much of a text is read to learn its names; if they are longer, all of it."""
_NAMES = ("thread_id", "checkpoint_id", "parent_checkpoint_id")
_TEXT = rb'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(
    rb'\{"thread_id":(%s),"checkpoint_id":(%s),"parent_checkpoint_id":(%s|null),' % (_TEXT, _TEXT, _TEXT)
)


class ValkeyStrings(ForeignSource):
    """The strings of ValkeySaver on a server."""

    kind = "langgraph-checkpoint-aws"

    @staticmethod
    def scan() -> Stream[ThreadKey]:
        """The keys of all checkpoints."""
        position: Any = None
        while True:
            position, keys = yield Scan(b"checkpoint:{*", position)
            texts = yield from of_type(keys, b"string")
            found = zip(texts, (yield from _heads(texts)), strict=True)
            yield Page([ThreadKey(head[0], key, PREFIX) for key, head in found if head is not None])
            if position is None:
                return

    def survey(self, thread: str, keys: Sequence[bytes]) -> Operation[Mapping[Key, Place]]:
        """What a thread has."""
        heads = yield from _heads(keys)
        places = list[tuple[Key, str | None, tuple[bytes, bytes]]]()
        for key, head in zip(keys, heads, strict=True):
            if head is not None and head[0] == thread:
                place = key, b"writes" + key.removeprefix(PREFIX.encode())
                places.append(((head[1], head[2]), head[3], place))
        tasks = yield from told_by_each("GET", [writes_key for _, _, (_, writes_key) in places], self._tasks)
        return {at: Place(parent, place, some) for (at, parent, place), some in zip(places, tasks, strict=True)}

    def _tasks(self, stored: Any) -> Mapping[Task, TaskInfo]:
        tasks: dict[Task, TaskInfo] = {}
        for write in _writes(stored):
            named = records.task(write["task_id"], write["channel"])
            tasks[named] = TaskInfo(None, special(named, self._written(write)) if named[1] else b"")
        return tasks

    def read(self, thread: str, key: Key, place: Place) -> Operation[CheckpointTuple | None]:
        """A checkpoint with its pending writes."""
        stored, writes = yield from batched([Command(("GET", each)) for each in place.keys])
        if stored is None:
            return None
        found = json.loads(stored)
        checkpoint = self._serde.loads_typed((found["type"], base64.b64decode(found["checkpoint"])))
        metadata = json.loads(base64.b64decode(found["metadata"]) or "{}")
        written = [(write["task_id"], write["channel"], self._written(write)) for write in _writes(writes)]
        return found_tuple(thread, key, place.parent, checkpoint, metadata, written)

    def _written(self, write: Mapping[str, Any]) -> Any:
        """The value of a pending write."""
        return self._serde.loads_typed((write["type"], base64.b64decode(write["value"])))


_Head = tuple[str, str, str, "str | None"]
"""Thread, namespace, checkpoint and parent."""


def _heads(keys: Sequence[bytes]) -> Operation[list[_Head | None]]:
    """The names of checkpoints; None for those that are gone, or are not of the saver."""
    beginnings = yield from batched([Command(("GETRANGE", key, 0, _HEAD_BYTES - 1)) for key in keys])
    matches = [_HEAD.match(_raw(found)) for found in beginnings]
    said = [_parsed(b"[%s]" % b",".join(match.groups())) if match else None for match in matches]
    others = [at for at, found in enumerate(said) if found is None]
    for at, found in zip(others, (yield from told_by_each("GET", [keys[at] for at in others], _said)), strict=True):
        said[at] = found
    return [_head(key, *found) if found else None for key, found in zip(keys, said, strict=True)]


def _said(text: Any) -> list[Any] | None:
    """The names in the whole text of a checkpoint; None if it is none."""
    found = _parsed(text or "null")
    return list(map(found.get, _NAMES)) if isinstance(found, dict) else None


def _parsed(text: Any) -> Any:
    """What JSON says; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _head(key: bytes, thread: Any, checkpoint_id: Any, parent: Any) -> _Head | None:
    if not isinstance(thread, str) or not isinstance(checkpoint_id, str):
        return None
    before, after = names.encode(f"{PREFIX}:{{{thread}}}:"), names.encode(f":{checkpoint_id}")
    if not (key.startswith(before) and key.endswith(after) and len(key) >= len(before) + len(after)):
        return None
    return thread, names.decode(key[len(before) : -len(after)]), checkpoint_id, parent or None


def _writes(stored: Any) -> Iterator[Mapping[str, Any]]:
    yield from json.loads(stored or "[]")


def _raw(found: bytes | str) -> bytes:
    return found.encode() if isinstance(found, str) else found
