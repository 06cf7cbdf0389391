"""A trial of a cold saver: one life of a thread, in Redis alone and over two tiers, where hot then loses it.

Savers differ in what they keep of a checkpoint, and in which order they return pending writes. With one that changes
something, a conversation continues differently once Redis has lost it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, TASKS

from redis_saver._checkpoint.delta import COUNTERS
from redis_saver._checkpoint.interface import Interface
from redis_saver._common.config import to_config
from redis_saver._common.display import error_text, shown
from redis_saver._serde import fallback
from redis_saver._storage.opaque import same

HISTORIES, LISTS, CLOCKS, DELETIONS = (
    *("histories of a DeltaChannel", "lists of a whole thread"),
    *("clocks that differ", "deletions"),
)
"""Subjects that do not matter to every service."""
_NO_TASK, _A, _B, _D, _E, _F = (f"{number:08}-0000-0000-0000-000000000000" for number in range(6))
"""Ids of tasks. LangGraph makes UUIDs, and the first one is that of writes without a task, such as an update's."""
CHILD, GRANDCHILD = f"child:{_A}", f"child:{_A}|node:{_B}"
_LATE, _FIRST, _SECOND, _FORKED, _THIRD = (f"{number:032}.0.5" for number in range(5))
"""Versions. LangGraph's savers make such texts. A saver may also make ints or floats, as in the subgraphs here."""
_CHANNELS: dict[str, str | int | float] = dict.fromkeys(("text", "count", "share", "nothing", "log"), _FIRST)
_VALUES = {"text": "one", "count": 7, "share": 0.5, "nothing": None}
_METADATA = {"tenant": "a", "none": None, "nested": {"list": [1, None, "x", 0.5], "": True}, "run_id": "run 1"}


AnySaver: TypeAlias = Interface[Any]


class Difference(NamedTuple):
    """Answers that are not those of Redis alone."""

    about: str
    """The subject, such as `metadata`."""
    first: str
    """The first one: the question and both answers, or the error."""
    answers: int
    """Number of such answers."""


async def tried(alone: AnySaver, before: AnySaver, after: AnySaver, gone: AnySaver) -> tuple[int, list[Difference]]:
    """Let a thread live, and ask about it. It is removed in the end.

    Args:
        alone: A saver on Redis.
        before: A saver over two tiers in mode write-through.
        after: A saver over the same cold, whose hot lacks the thread.
        gone: Another one.

    Returns:
        The number of questions, and what changed.
    """
    thread = f"redis-saver-doctor-{os.urandom(8).hex()}"
    skewed = f"{thread}-clocks"
    changed = dict[str, list[str]]()
    try:
        for saver in (alone, before):
            await _live(saver, thread)
            await _live_under_two_clocks(saver, skewed)
        expected, found = await _answers(alone, thread, skewed), await _answers(after, thread, skewed)
    finally:
        errors = [
            await _said(saver.adelete_thread(name)) for saver in (after, before, alone) for name in (thread, skewed)
        ]
    if error := next(filter(None, errors), None):
        changed[DELETIONS] = [f"delete_thread raises {error.rstrip(': ')}, so this saver keeps {thread}"]
    else:
        left = await _left(gone, thread)
        expected, found = {**expected, **dict.fromkeys(left)}, {**found, **left}
        await gone.adelete_thread(thread)
    for (about, question), wanted in expected.items():
        if not same(wanted, answer := found.get((about, question))):
            changed.setdefault(about, []).append(f"{question}: {_apart(wanted, answer)}")
    return len(expected), [Difference(about, texts[0], len(texts)) for about, texts in changed.items()]


def _apart(wanted: Any, answer: Any, *path: object) -> str:
    """Return the first part in which two answers differ, and its place in them."""
    parts: Iterable[Any] = ()
    if isinstance(wanted, Mapping) and isinstance(answer, Mapping):
        parts = [(name, wanted.get(name), answer.get(name)) for name in {**wanted, **answer}]
    elif isinstance(wanted, list) and isinstance(answer, list) and len(wanted) == len(answer):
        parts = zip(range(len(wanted)), wanted, answer, strict=True)
    for place, one, other in parts:
        if not same(one, other):
            return _apart(one, other, *path, place)
    return f"{''.join(f'[{place!r}]' for place in path)} {shown(wanted)} is {shown(answer)}".lstrip()


async def _live(saver: AnySaver, thread: str) -> None:
    """Put checkpoints and pending writes as LangGraph does, and some as it rarely does."""
    first = _checkpoint(1, _VALUES, _CHANNELS, {"__input__": {}, "node": {"text": _CHANNELS["text"]}})
    await saver.aput(to_config(thread, "", ""), first, _metadata("input", -1), _CHANNELS)
    at_first = to_config(thread, "", first["id"])
    for path, task in (("~__pregel_pull, b", _A), ("~__pregel_pull, a", _B), ("", _NO_TASK)):
        writes = [("text", f"of {task}"), ("nothing", None), ("text", [task]), ("log", [task, 1])]
        await saver.aput_writes(at_first, writes, task, path)
        await saver.aput_writes(at_first, [("text", "too late"), *writes[1:]], task, path)
    for question in ("first?", "second?"):  # the newest counts
        await saver.aput_writes(at_first, [(INTERRUPT, [question])], _B, "~__pregel_pull, a")
    await saver.aput_writes(at_first, [(RESUME, ["yes", None])], _B, "~__pregel_pull, a")
    await saver.aput_writes(at_first, [(ERROR, "it failed")], _D, "~__pregel_pull, d")

    versions = {**_CHANNELS, **dict.fromkeys(("text", "count", "share", "log"), _SECOND)}
    new: dict[str, str | int | float] = {name: version for name, version in versions.items() if version == _SECOND}
    snapshot: Any = fallback.delta_snapshot
    values = {**_VALUES, "text": "two", "count": 8, "share": 0.25, "log": snapshot(["a", 1]) if snapshot else ["a", 1]}
    seen = {"__input__": {}, "node": {"text": versions["text"]}, "other": {"count": _FIRST}}
    second = _checkpoint(2, values, versions, seen)
    await saver.aput(at_first, second, _metadata("loop", 0), new)
    at_second = to_config(thread, "", second["id"])
    await saver.aput_writes(at_second, [("log", ["b", None]), (TASKS, "a task")], _E, "~__pregel_pull, e")
    emptied = {**versions, "text": _THIRD, "log": _THIRD}
    rest = {name: value for name, value in values.items() if name not in ("text", "log")}
    third = _checkpoint(3, rest, emptied, seen)
    counted: Any = {**_metadata("loop", 1), COUNTERS: {"log": [1, 1]}}
    await saver.aput(at_second, third, counted, {"text": _THIRD, "log": _THIRD})
    its_own = {**_CHANNELS, "text": _FORKED}
    fork = _checkpoint(4, {**_VALUES, "text": "fork"}, its_own, seen)
    await saver.aput(at_first, fork, _metadata("fork", 1), {"text": _FORKED})
    for ns, version in ((CHILD, 1), (GRANDCHILD, 1.5)):
        inner = _checkpoint(5, {"inner": [ns, None]}, {"inner": version}, {"inside": {"inner": version}})
        metadata: Any = {**_metadata("loop", 0), "parents": {"": second["id"]}}
        await saver.aput(to_config(thread, ns, ""), inner, metadata, {"inner": version})
        await saver.aput_writes(to_config(thread, ns, inner["id"]), [("inner", b"\0\xff")], _F, "~__pregel_pull, a")


async def _live_under_two_clocks(saver: AnySaver, thread: str) -> None:
    """Put a checkpoint, then one with a lower id, as a worker does whose clock is behind."""
    for number, version in ((1, _FIRST), (0, _LATE)):
        saved = _checkpoint(number, {"text": version}, {"text": version}, {})
        await saver.aput(to_config(thread, "", ""), saved, _metadata("update", number), {"text": version})


def _id(number: int) -> str:
    return f"1f000000-0000-6000-8000-{number:012}"


def _checkpoint(number: int, values: Mapping[str, Any], versions: Mapping[str, Any], seen: Mapping[str, Any]) -> Any:
    about = {"v": 4, "id": _id(number), "ts": f"2026-01-01T00:00:0{number}+00:00", "updated_channels": sorted(versions)}
    of_channels = {"channel_values": dict(values), "channel_versions": dict(versions), "versions_seen": dict(seen)}
    return {**empty_checkpoint(), **about, **of_channels}


def _metadata(source: str, step: int) -> Any:
    return {"source": source, "step": step, "parents": {}, **_METADATA}


_OF_ROOT = 4
_IDS = [("", _id(number)) for number in range(1, _OF_ROOT + 1)] + [(CHILD, _id(5)), (GRANDCHILD, _id(5))]
_LISTS: Sequence[tuple[str | None, Mapping[str, Any]]] = (
    ("", {}),
    (None, {}),
    (CHILD, {}),
    ("", {"limit": 2}),
    ("", {"before": 3}),
    ("", {"filter": {"source": "loop"}}),
    ("", {"filter": {"step": 1}}),
    ("", {"filter": {"tenant": "a", "step": -1}}),
)


async def _answers(saver: AnySaver, thread: str, skewed: str) -> dict[tuple[str, str], Any]:
    """Ask everything. Returns each part of an answer by its subject and the question. An error is an answer, too."""
    answers = dict[tuple[str, str], Any]()
    newest: list[tuple[str, str | None]] = [(ns, None) for ns in ("", CHILD, GRANDCHILD, "none")]
    for ns, checkpoint_id in (*newest, *_IDS):
        question = f"get_tuple({ns!r}, {'newest' if checkpoint_id is None else checkpoint_id})"
        saved = await _said(saver.aget_tuple(to_config(thread, ns, checkpoint_id or "")))
        answers |= {(about, question): part for about, part in _parts(saved).items()}
    for listed, options in _LISTS:
        about = LISTS if listed is None else "lists"
        answers[about, f"list({listed!r}, {options})"] = await _said(_ids(saver, *_listing(thread, listed, options)))
    for ns, id_ in _IDS[:_OF_ROOT]:
        where = to_config(thread, ns, id_)
        histories = saver.aget_delta_channel_history(config=where, channels=["log", "text"])
        answers[HISTORIES, id_] = await _said(histories)
    where = to_config(skewed, "", "")
    saved = await _said(saver.aget_tuple(where))
    answers[CLOCKS, "get_tuple('', newest)"] = getattr(saved, "checkpoint", saved)
    answers[CLOCKS, "list('', {})"] = await _said(_ids(saver, where, {}))
    return answers


def _parts(saved: Any) -> dict[str, Any]:
    if not isinstance(saved, CheckpointTuple):  # there is none, or it is an error
        return {"checkpoints": saved}
    checkpoint = dict(saved.checkpoint)
    return {
        "checkpoints": [_place(saved.config), checkpoint.pop("id"), checkpoint.pop("ts"), checkpoint.pop("v")],
        "parents": _place(saved.parent_config),
        "values": checkpoint.pop("channel_values"),
        "versions of channels": _typed(checkpoint.pop("channel_versions")),
        "versions that nodes have seen": _typed(checkpoint.pop("versions_seen")),
        "other fields": checkpoint,
        "metadata": saved.metadata,
        "pending writes": _by_channel(saved.pending_writes),
    }


def _by_channel(writes: Any) -> Any:
    """Return the values that each task wrote to each channel.

    LangGraph applies writes in the order of their tasks' paths, which it knows. So their order matters within a channel
    of a task, and in a history.
    """
    values = dict[str, list[Any]]()
    for task, channel, value in writes or ():
        values.setdefault(f"{task} {channel}", []).append(value)
    return dict(sorted(values.items()))


def _typed(versions: Any) -> Any:
    """Tell apart 1 and 1.0, which LangGraph compares as greater or smaller with versions of one type only."""
    if isinstance(versions, Mapping):
        return {name: _typed(version) for name, version in sorted(versions.items())}
    return [type(versions).__name__, versions]


def _place(where: RunnableConfig | None) -> Any:
    given = (where or {}).get("configurable", {})
    return [given.get(name) for name in ("checkpoint_ns", "checkpoint_id")] if where else None


async def _ids(saver: AnySaver, where: RunnableConfig, options: Mapping[str, Any]) -> list[Any]:
    found = [_place(saved.config) async for saved in saver.alist(where, **options)]
    return found if "checkpoint_ns" in where["configurable"] else sorted(found, key=str)  # each saver has an order


def _listing(thread: str, ns: str | None, options: Mapping[str, Any]) -> tuple[RunnableConfig, Mapping[str, Any]]:
    where: RunnableConfig = {"configurable": {"thread_id": thread}}
    if ns is not None:
        where["configurable"]["checkpoint_ns"] = ns
    if "before" in options:
        return where, {"before": to_config(thread, "", _id(options["before"]))}
    return where, options


async def _left(saver: AnySaver, thread: str) -> dict[tuple[str, str], Any]:
    """Look for what a deletion left: checkpoints, and pending writes of a checkpoint that comes again."""
    left = dict[tuple[str, str], Any]()
    for ns, checkpoint_id in _IDS:
        answer = await _said(saver.aget_tuple(to_config(thread, ns, checkpoint_id)))
        found = "a checkpoint" if isinstance(answer, CheckpointTuple) else answer
        left[DELETIONS, f"get_tuple({ns!r}, {checkpoint_id})"] = found
    first = _checkpoint(1, _VALUES, _CHANNELS, {})
    await saver.aput(to_config(thread, "", ""), first, _metadata("input", -1), _CHANNELS)
    again: Any = await saver.aget_tuple(to_config(thread, "", first["id"]))
    left[DELETIONS, "pending writes of a checkpoint that was put again"] = again.pending_writes or None
    return left


async def _said(asked: Any) -> Any:
    """Return an answer, or the error as a text: any saver may be tried, so any error may come."""
    try:
        return await asked
    except Exception as error:  # noqa: BLE001 - a saver of others raises what it likes
        return error_text(error)
