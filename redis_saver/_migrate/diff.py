"""Compares a thread in source and target: what the target lacks, where it differs, and whether a checkpoint arrived as it was."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from redis_saver._common.display import shown
from redis_saver._migrate.records import Key, Record, Task, ThreadOutline
from redis_saver._storage.opaque import same

Lacking = dict[Key, tuple[bool, set[Task]]]
"""What a target lacks, by checkpoint: whether it lacks the checkpoint itself, and the tasks whose writes it lacks."""


def age(key: Key) -> tuple[str, str]:
    """A sort key for checkpoints, from the oldest to the newest."""
    return key[1], key[0]


def conflict(source: str, there: ThreadOutline, target: str, has: ThreadOutline) -> str:
    """Where a target differs from the source, in words that name both; empty if the target has a part of what the source has."""
    if more := sorted(has.keys() - there.keys(), key=age):
        return f"{target} has {len(more)} checkpoints that {source} lacks, the newest is {shown(more[-1][1])}; to copy the thread anew, delete it in the target first"
    for key, entry in has.items():
        if entry.parent != there[key].parent:
            return f"the parent of checkpoint {shown(key[1])} is {shown(there[key].parent)} in {source}, {shown(entry.parent)} in {target}"
        if tasks := entry.tasks.keys() - there[key].tasks.keys():
            return f"{target} has pending writes on checkpoint {shown(key[1])} that {source} lacks, of task {shown(min(tasks)[0])}"
    return ""


def lacking_of(there: ThreadOutline, has: ThreadOutline, *, specials: bool) -> Lacking:
    """What the target lacks, oldest first. With `specials`, also writes to special channels that have another value there."""
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
    """The checkpoints to compare in full: the newest, and others at random."""
    keys = list(lacking)
    newest, others = keys[-1:], keys[:-1]
    return {*newest[:sample], *random.sample(others, max(0, min(sample - 1, len(others))))}


class Storing(Protocol):
    """An endpoint that stores metadata in a form of its own."""

    def as_stored(self, metadata: Mapping[str, Any]) -> Any:
        """Metadata as the endpoint gives them back, or in a form that is equal if and only if those are."""


def difference(target: Storing, one: Record, found: Record) -> str:
    """Where two checkpoints differ, in words; empty if they are the same."""
    written, stored = dict(one.checkpoint), dict(found.checkpoint)
    values, others = written.pop("channel_values"), stored.pop("channel_values")
    if one.parent != found.parent:
        return f"its parent is {shown(one.parent)}, and {shown(found.parent)} there"
    for said, mine, theirs in (("value of channel", values, others), ("field", written, stored)):
        if (name := _differing(mine, theirs)) is not None:
            return f"the {said} {shown(name)}"
    if not same(target.as_stored(one.metadata), target.as_stored(found.metadata)):
        return "the metadata"
    if not same(_pending(one), _pending(found)):
        return "its pending writes"
    return ""


def _differing(mine: Any, theirs: Any) -> str | None:
    """The first key at which two dicts differ; None: they do not. Keys are names, but of a damaged checkpoint may be anything."""
    for name in sorted(mine.keys() | theirs.keys(), key=str):
        if name not in mine or name not in theirs or not same(mine[name], theirs[name]):
            return str(name)
    return None


def _pending(one: Record) -> Sequence[Any]:
    return [[writes.task[0], *write] for writes in one.writes for write in writes.writes]
