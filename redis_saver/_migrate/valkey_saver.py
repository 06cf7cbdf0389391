"""Checkpoints of ValkeySaver (langgraph-checkpoint-aws): JSON texts in strings.

    checkpoint:{<thread>}:<namespace>:<checkpoint>   a checkpoint: its names, and all in LangGraph's format, in base64
    writes:{<thread>}:<namespace>:<checkpoint>       its pending writes: a list
    thread:{<thread>}:<namespace>                    the ids of its checkpoints: a list, which is not needed here

Names may hold colons and braces, so a key does not show where they end. The text begins with the names. It has no paths
of tasks.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint.comparing import Task, task_of
from redis_saver._checkpoint.listing import mapped, scan_keys
from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._common import names
from redis_saver._engine.requests import Command, Operation, Stream
from redis_saver._migrate.endpoints import TaskInfo, special
from redis_saver._migrate.foreign import ForeignSource, Place, ThreadKey, as_tuple, batched, of_type, raw, summarized

PREFIX = "checkpoint"
_HEAD_BYTES = 1000
"""Bytes of a text that are read to learn its names. If they are longer, the whole text is read."""
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
        """Find the keys of all checkpoints."""
        return mapped(scan_keys(b"checkpoint:{*"), _thread_keys)

    def survey(self, thread: str, keys: Sequence[bytes]) -> Operation[Mapping[CheckpointKey, Place]]:
        """Find the checkpoints of a thread."""
        pairs = zip(keys, (yield from _heads(keys)), strict=True)
        heads = {key: head for key, head in pairs if head is not None and head[0] == thread}
        writes = [b"writes" + key.removeprefix(PREFIX.encode()) for key in heads]
        tasks = yield from summarized("GET", writes, self._tasks)
        return {
            (ns, checkpoint_id): Place(parent, (key, writes_key), some)
            for (key, (_, ns, checkpoint_id, parent)), writes_key, some in zip(
                heads.items(), writes, tasks, strict=True
            )
        }

    def _tasks(self, stored: Any) -> Mapping[Task, TaskInfo]:
        tasks: dict[Task, TaskInfo] = {}
        for write in json.loads(stored or "[]"):
            task = task_of(write["task_id"], write["channel"])
            tasks[task] = TaskInfo(None, special(task, self._written(write)) if task[1] else b"")
        return tasks

    def read(self, thread: str, key: CheckpointKey, place: Place) -> Operation[CheckpointTuple | None]:
        """Read a checkpoint with its pending writes."""
        stored, writes = yield from batched([Command(("GET", key)) for key in place.keys])
        if stored is None:
            return None
        fields = json.loads(stored)
        checkpoint = self._serde.loads_typed((fields["type"], base64.b64decode(fields["checkpoint"])))
        metadata = json.loads(base64.b64decode(fields["metadata"]) or "{}")
        written = [(write["task_id"], write["channel"], self._written(write)) for write in json.loads(writes or "[]")]
        return as_tuple(thread, key, place.parent, checkpoint, metadata, written)

    def _written(self, write: Mapping[str, Any]) -> Any:
        """Return the value of a pending write."""
        return self._serde.loads_typed((write["type"], base64.b64decode(write["value"])))


def _thread_keys(keys: Sequence[bytes]) -> Operation[list[ThreadKey]]:
    """Select the keys of checkpoints."""
    texts = yield from of_type(keys, b"string")
    heads = zip(texts, (yield from _heads(texts)), strict=True)
    return [ThreadKey(head[0], key, PREFIX) for key, head in heads if head is not None]


_Head = tuple[str, str, str, "str | None"]
"""Thread, namespace, checkpoint and parent."""


def _heads(keys: Sequence[bytes]) -> Operation[list[_Head | None]]:
    """Read the names in checkpoints. The result is None for a key that is gone, or is not the saver's."""
    beginnings = yield from batched([Command(("GETRANGE", key, 0, _HEAD_BYTES - 1)) for key in keys])
    matches = [_HEAD.match(raw(beginning)) for beginning in beginnings]
    found = [_parsed(b"[%s]" % b",".join(match.groups())) if match else None for match in matches]
    longer = [at for at, values in enumerate(found) if values is None]
    for at, values in zip(longer, (yield from summarized("GET", [keys[at] for at in longer], _names)), strict=True):
        found[at] = values
    return [_head(key, *values) if values else None for key, values in zip(keys, found, strict=True)]


def _names(text: Any) -> list[Any] | None:
    """Return the names in the whole text of a checkpoint; None for another text."""
    fields = _parsed(text or "null")
    return list(map(fields.get, _NAMES)) if isinstance(fields, dict) else None


def _parsed(text: Any) -> Any:
    """Parse JSON; None for another text."""
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
