"""What a target lacks of a thread, what it has otherwise, and whether a checkpoint is there as it was."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from redis_saver._common.display import shown
from redis_saver._migrate.records import Key, Record, Task, ThreadOutline
from redis_saver._storage.opaque import same

Lacking = dict[Key, tuple[bool, set[Task]]]
"""What a target lacks: of each checkpoint whether it is that itself, and the tasks whose writes."""


def age(key: Key) -> tuple[str, str]:
    """What sorts checkpoints from the oldest to the newest."""
    return key[1], key[0]


def conflict(source: str, there: ThreadOutline, target: str, has: ThreadOutline) -> str:
    """What a target has otherwise, in words with the names of both; nothing if it has a part of what the source has."""
    if more := sorted(has.keys() - there.keys(), key=age):
        return f"{target} has {len(more)} checkpoints that {source} has not, the newest {shown(more[-1][1])}; to copy the thread anew, delete it in the target first"
    for key, entry in has.items():
        if entry.parent != there[key].parent:
            return f"the parent of checkpoint {shown(key[1])} is {shown(there[key].parent)} in {source}, {shown(entry.parent)} in {target}"
        if tasks := entry.tasks.keys() - there[key].tasks.keys():
            return f"{target} has writes to checkpoint {shown(key[1])} that {source} has not, of task {shown(min(tasks)[0])}"
    return ""


def lacking_of(there: ThreadOutline, has: ThreadOutline, *, specials: bool) -> Lacking:
    """What the target lacks, oldest first; writes to special channels that have another value, too, if these are looked at."""
    lacking: Lacking = {}
    for key in sorted(there, key=age):
        if key not in has:
            lacking[key] = (True, set(there[key].tasks))
            continue
        had = has[key].tasks
        tasks = {
            task
            for task, told in there[key].tasks.items()
            if task not in had or (specials and told.digest != had[task].digest)
        }
        if tasks:
            lacking[key] = (False, tasks)
    return lacking


def chosen(lacking: Lacking, sample: int) -> set[Key]:
    """The checkpoints to compare: the newest, and others at random."""
    keys = list(lacking)
    newest, others = keys[-1:], keys[:-1]
    return {*newest[:sample], *random.sample(others, max(0, min(sample - 1, len(others))))}


class Storing(Protocol):
    """What stores metadata in a form of its own."""

    def as_stored(self, metadata: Mapping[str, Any]) -> Any:
        """What it answers of metadata, or something that is equal where that is."""


def difference(target: Storing, one: Record, found: Record) -> str:
    """Where two checkpoints differ; nothing where they do not."""
    written, stored = dict(one.checkpoint), dict(found.checkpoint)
    values, others = written.pop("channel_values"), stored.pop("channel_values")
    if one.parent != found.parent:
        return f"its parent is {shown(one.parent)}, there {shown(found.parent)}"
    for said, mine, theirs in (("value of channel", values, others), ("field", written, stored)):
        if name := _differing(mine, theirs):
            return f"the {said} {shown(name)}"
    if not same(target.as_stored(one.metadata), target.as_stored(found.metadata)):
        return "the metadata"
    if not same(_pending(one), _pending(found)):
        return "its pending writes"
    return ""


def _differing(mine: Any, theirs: Any) -> str | None:
    """The first key with another value in one of two dicts."""
    for name in sorted(mine.keys() | theirs.keys()):
        if name not in mine or name not in theirs or not same(mine[name], theirs[name]):
            return name  # type: ignore[no-any-return]
    return None


def _pending(one: Record) -> Sequence[Any]:
    return [[writes.task[0], *write] for writes in one.writes for write in writes.writes]
