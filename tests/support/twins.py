"""Threads with long pending writes of odd shapes, and a model that gets the same calls."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import INTERRUPT, _DeltaSnapshot
from langgraph.types import Send
from pydantic import BaseModel
from tests.support.factories import checkpoint, config
from tests.support.raw import check_chunks, check_sound
from tests.support.sharing import all_said, fields_of, name, said, text
from tests.support.uniform import Target, Uniform


class Report(BaseModel):
    title: str
    parts: list[dict[str, Any]]
    drafts: list[Any] = []


@dataclass
class Draft:
    path: str
    text: str
    lines: list[str] = field(default_factory=list)


SHAPES: dict[str, Callable[[list[str]], Any]] = {
    "list": list,
    "dict": lambda texts: {f"key {n % 7} {n}": one for n, one in enumerate(texts)},
    "nested": lambda texts: {"a": [{"b": texts}, [[texts[:2]], {"c": {"d": texts[-1]}}]], "e": None, 7: 1.0},
    "model": lambda texts: Report(title="t", parts=[{"text": one} for one in texts], drafts=[Draft("p", texts[0])]),
    "dataclass": lambda texts: Draft("/notes.md", "\n".join(texts), texts),
    "bytes": lambda texts: "".join(texts).encode(),
    "bytearray": lambda texts: bytearray("".join(texts).encode()),
    "text": "".join,
    "file": lambda texts: {"/a.md": {"content": "".join(texts).splitlines(), "at": 1}, "/b.md": texts[0]},
    "tuples": lambda texts: {"pairs": [(n, one) for n, one in enumerate(texts)], "all": (tuple(texts), ())},
    "sets": lambda texts: {"set": set(texts), "frozen": frozenset(texts), "of bytes": {one.encode() for one in texts}},
    "messages": lambda texts: [(HumanMessage, AIMessage)[n % 2](one, id=str(n)) for n, one in enumerate(texts)],
    "send": lambda texts: [Send("node", {"texts": texts}), Send("other", texts[-1])],
    "snapshot": _DeltaSnapshot,
    "deque": deque,
    "short": lambda texts: len(texts),
}
"""Values of some texts. Most of them share chunks with each other."""
WRAPPED: list[Callable[[Any], Any]] = [lambda one: one, lambda one: [one], lambda one: {"in": {"a": (one, 1)}}]


def ordered(value: Any) -> Any:
    """Return a value with its sets in order, as a set that was read may have another one."""
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(value)
    if type(value) is dict:
        return {key: ordered(one) for key, one in value.items()}
    return type(value)(map(ordered, value)) if type(value) in (list, tuple) else value


def plain(one: Any) -> Any:
    """Return a checkpoint as plain data that tell apart 1 and True, and without what Postgres returns differently."""
    place, above = one.config["configurable"], one.parent_config or {"configurable": {}}
    writes = [(task, channel, said(ordered(value))) for task, channel, value in one.pending_writes]
    values, versions = all_said(ordered(one.checkpoint["channel_values"])), dict(one.checkpoint["channel_versions"])
    return (
        place["checkpoint_id"],
        above["configurable"].get("checkpoint_id"),
        dict(sorted(values.items())),
        versions,
        writes,
    )


class Twin:
    """A thread, and the model of it. Its values grow and are edited as a seed says."""

    def __init__(self, seed: object, thread: str = "thread") -> None:
        self.chance, self.thread, self.model = random.Random(repr(seed)), thread, InMemorySaver()
        self.number, self.tasks, self.runs, self.versions = 0, 0, dict[str, list[int]](), dict[int, dict[str, str]]()
        self.shapes = [*SHAPES]
        self.texts = [text((seed, "first"), 3000)]
        self._expected: tuple[Any, list[Any]] = (None, [])
        """The keys of the model, and its checkpoints, since the last call."""

    def where(self, number: int | None = None) -> dict[str, Any]:
        """Return the config of a checkpoint, or of the thread."""
        return config(self.thread, "", number and name(number))

    def edit(self) -> None:
        """Change the texts as an agent does: append, insert, edit in the middle, drop the first."""
        chance, new = self.chance, text(self.chance.random(), self.chance.choice([100, 900, 5000]))
        for change in chance.sample(["append", "append", "insert", "edit", "drop"], 2):
            at = chance.randrange(len(self.texts))
            if change == "append":
                self.texts = [*self.texts, new]
            elif change == "insert":
                self.texts = [*self.texts[:at], new[:200], *self.texts[at:]]
            elif change == "edit":
                one, cut = self.texts[at], chance.randrange(len(self.texts[at]))
                self.texts = [*self.texts[:at], f"{one[:cut]}\n{new[:50]}{one[cut + 9 :]}", *self.texts[at + 1 :]]
            elif sum(map(len, self.texts)) > 9000:
                self.texts = self.texts[1:]

    def value(self) -> Any:
        return self.chance.choice(WRAPPED)(SHAPES[self.chance.choice(self.shapes)](self.texts))

    def some_writes(self) -> list[tuple[str, Any]]:
        found = [(self.chance.choice("ab"), self.value()) for _ in range(self.chance.choice([1, 1, 2, 3]))]
        return [*found, (INTERRUPT, self.value())] if self.chance.random() < 0.1 else found

    async def write(
        self, uniform: Uniform, *writes: tuple[str, Any], number: int | None = None, task: Any = ""
    ) -> None:
        """Write to a checkpoint, by default the newest. A task writes again only if it is named."""
        self.tasks += 1
        made = self.where(number or self.number), list(writes), f"task {task or self.tasks}", f"path {task}"
        self._expected = None, []
        self.model.put_writes(*made)
        await uniform.put_writes(*made)

    async def put(self, uniform: Uniform, parent: int | None = None, **new: Any) -> None:
        """Put a checkpoint with new values on another one, by default the newest."""
        parent = self.number if parent is None else parent
        before, self.number = self.model.get_tuple(self.where(parent)) if parent else None, self.number + 1
        versions = dict.fromkeys(new, f"{self.number:032}.1")
        held = {**before.checkpoint["channel_values"], **new} if before else new
        all_versions = {**before.checkpoint["channel_versions"], **versions} if before else versions
        made = checkpoint(held, all_versions, name(self.number))
        metadata = {"source": "loop", "step": self.number, "parents": {}, "run_id": f"run {self.number // 2}"}
        call = self.where(parent or None), made, metadata, versions
        self._expected = None, []
        self.model.put(*call)
        await uniform.put(*call)

    def forget(self, gone: Callable[[int], bool], *, prunes: bool = False) -> None:
        """Remove checkpoints with their writes from the model, as `delete_for_runs` or `prune` does."""
        stored: Any = self.model.storage[self.thread][""]
        self._expected = None, []
        for number in [number for number in map(number_of, [*stored]) if gone(number)]:
            del stored[name(number)]
            self.model.writes.pop((self.thread, "", name(number)), None)
        if prunes:
            for each, (made, metadata, parent) in stored.items():
                stored[each] = made, metadata, parent if parent in stored else None
            for place in [place for place in self.model.writes if place[2] not in stored and place[2] < max(stored)]:
                del self.model.writes[place]
        if not stored and not self.model.writes:
            self.model.delete_thread(self.thread)

    def numbers(self) -> list[int]:
        """Return the numbers of the model's checkpoints, newest first."""
        return sorted(map(number_of, self.model.storage.get(self.thread, {}).get("", ())), reverse=True)

    async def check(self, *uniforms: Any, thread: str | None = None, each: bool = True) -> None:
        """Check that savers read what the model has: all, the newest, and with `each` every one by its id."""
        keys = [*self.model.storage[self.thread][""]], [(place, len(one)) for place, one in self.model.writes.items()]
        if self._expected[0] != keys:
            listed = [plain(one) for one in self.model.list(self.where())]
            self._expected = keys, sorted(listed, key=lambda one: one[0], reverse=True)
        expected = self._expected[1]
        for uniform in uniforms:
            assert [plain(one) for one in await uniform.list(config(thread or self.thread))] == expected
            for one in expected if each else ():
                assert plain(await uniform.get_tuple(config(thread or self.thread, "", one[0]))) == one
            newest = await uniform.get_tuple(config(thread or self.thread))
            assert (newest and plain(newest)) == (expected[0] if expected else None)


def number_of(checkpoint_id: str) -> int:
    return int(checkpoint_id[1:])


def check_stored(target: Target) -> None:
    """Check that nothing of the thread is missing or left over, except what it knows as garbage."""
    if fields := fields_of(target):
        check_chunks(target)
        if b"@gc_roots" not in fields:
            check_sound(target)
