"""A record of the puts on a thread, and checks of the stored data."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tests.support.factories import checkpoint, config, ids
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from tests.support.raw import check_chunks, check_counters, check_sound
from tests.support.uniform import Target, Uniform

from bench.history import history, message
from redis_saver._common.names import Keyspace

THREAD = "thread"


_plain = JsonPlusSerializer()


def name(number: int) -> str:
    return f"c{number:06}"


def text(seed: object, length: int = 300) -> str:
    """Return a text that differs for each seed, and is the same for the same one."""
    return _text(repr(seed), length)


@lru_cache(20_000)
def _text(seed: str, length: int) -> str:
    return random.Random(seed).randbytes(length // 2).hex()


def texts(count: int, seed: object = 0, length: int = 300) -> list[str]:
    return [text((seed, n), length) for n in range(count)]


def said(value: Any) -> tuple[str, bytes]:
    """Serialize a value as LangGraph does, which tells apart 1, True and 1.0, and the orders of a dict."""
    return _plain.dumps_typed(value)


def all_said(values: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
    return {channel: said(value) for channel, value in values.items()}


def fields_of(target: Target, thread: str = THREAD) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = target.raw.hgetall(Keyspace(target.prefix).keys(thread).data_key)
    return found


def key_of(target: Target, thread: str = THREAD) -> bytes:
    return Keyspace(target.prefix).keys(thread).data_key


class TaskInfo:
    """A record of the puts on a thread, and checks that it can be read.

    Versions are ints: the number of the checkpoint that wrote the value. So a recreated thread reuses the versions of
    the deleted one.
    """

    def __init__(self, target: Target, thread: str = THREAD) -> None:
        self.target, self.thread = target, thread
        self.values: dict[int, dict[str, tuple[str, bytes]]] = {}
        self.versions: dict[int, dict[str, int]] = {}
        self.parents: dict[int, int | None] = {}

    async def put(
        self,
        uniform: Uniform,
        number: int,
        parent: int | None = None,
        *,
        same: dict[str, Any] | None = None,
        run: str | None = None,
        **new: Any,
    ) -> None:
        """Put checkpoint `number`. Channels in `same` keep the versions of the parent; all others are new."""
        versions = {channel: self.versions[parent][channel] for channel in same} if same and parent is not None else {}
        versions |= dict.fromkeys(new, number)
        values = {**(same or {}), **new}
        made = checkpoint(values, versions, name(number))
        self.values[number], self.versions[number], self.parents[number] = all_said(values), versions, parent
        metadata = {"source": "loop", "step": number, "parents": {}, **({"run_id": run} if run else {})}
        where = config(self.thread, "", name(parent) if parent is not None else None)
        await uniform.put(where, made, metadata, dict.fromkeys(new, number))

    def forget(self, gone: Callable[[int], bool] = lambda number: True) -> None:
        for number in [number for number in self.values if gone(number)]:
            del self.values[number], self.versions[number], self.parents[number]

    async def read(self, *uniforms: Uniform, thread: str | None = None) -> None:
        """Check that savers return each checkpoint as it was put.

        The first one also reads histories. A copy has the same bytes, so it is listed.
        """
        for uniform in uniforms:
            where = thread or self.thread
            listed = await uniform.list(config(where))
            assert ids(listed) == [name(number) for number in sorted(self.values, reverse=True)]
            for one in listed:
                self.same(one)
            for number in sorted(self.values) if thread is None else ():
                self.same(await uniform.get_tuple(config(where, "", name(number))))
            for number in sorted(self.values)[-8:] if uniform is uniforms[0] else ():
                await self.seeds(uniform, where, number)
            newest = await uniform.get_tuple(config(where))
            assert (newest is None) == (not self.values)
            if newest is not None:
                assert newest.checkpoint["id"] == name(max(self.values))
                self.same(newest)

    def same(self, found: Any) -> None:
        number = int(found.checkpoint["id"][1:])
        assert all_said(found.checkpoint["channel_values"]) == self.values[number], f"checkpoint {number}"
        assert found.checkpoint["channel_versions"] == self.versions[number]

    async def seeds(self, uniform: Uniform, thread: str, number: int) -> None:
        channels = sorted(set().union(*self.values.values()))
        where = config(thread, "", name(number))
        found = await uniform.get_delta_channel_history(config=where, channels=channels)
        for channel in channels:
            ancestor = self.parents[number]
            while ancestor in self.values and channel not in self.values[ancestor]:
                ancestor = self.parents[ancestor]
            expected = self.values[ancestor][channel] if ancestor in self.values else None
            seed = found[channel]
            assert (said(seed["seed"]) if "seed" in seed else None) == expected

    async def check(self, *uniforms: Uniform, swept: bool = False) -> None:
        """Check that new and given savers can read everything, also in a copy, and that nothing else is stored."""
        fresh = self.target.uniform()
        await self.read(fresh, *uniforms)
        if not self.values:
            assert self.target.raw.exists(key_of(self.target, self.thread)) == 0
            return
        check_chunks(self.target, self.thread, swept=swept)
        check_counters(fields_of(self.target, self.thread))
        if b"@gc_roots" not in fields_of(self.target, self.thread):
            check_sound(self.target, self.thread)
        copied = f"a copy of {self.thread}"
        await fresh.copy_thread(self.thread, copied)
        await self.read(self.target.uniform(), thread=copied)
        check_sound(self.target, copied)
        check_chunks(self.target, copied, swept=True)
        await fresh.delete_thread(copied)

    async def swept(self, uniform: Uniform) -> None:
        """Prune without removing a checkpoint, and check that only used chunks are left."""
        await uniform.prune([self.thread], keep_last=len(self.values) or 1)
        await self.check(swept=True)


FILES = {f"/notes/{n:03}.md": text(("file", n), 400) for n in range(60)}


def _replaced(one: list[Any], at: int, by: Any) -> list[Any]:
    return [*one[:at], by, *one[at + 1 :]]


BASE = texts(150)


EDITS: dict[str, Any] = {
    "appended": [*BASE, "new"],
    "many appended": [*BASE, *texts(100, "more")],
    "first changed": _replaced(BASE, 0, "new"),
    "middle changed": _replaced(BASE, 70, "new"),
    "middle longer": _replaced(BASE, 70, text("long", 20_000)),
    "last changed": _replaced(BASE, -1, "new")[:150],
    "front removed": BASE[1:],
    "many of the front removed": BASE[60:],
    "inserted in front": ["new", *BASE],
    "inserted in the middle": [*BASE[:70], "new", *BASE[70:]],
    "middle removed": [*BASE[:60], *BASE[90:]],
    "end removed": BASE[:100],
    "reversed": BASE[::-1],
    "twice": BASE * 2,
    "rotated": [*BASE[50:], *BASE[:50]],
    "one element": BASE[:1],
    "two elements": BASE[:2],
    "empty": [],
    "the same": list(BASE),
    "other types": [n for one in BASE for n in (one, len(one), 1.5, None, True, b"x" * 50, {"a": [one]})],
    "a dict": {one[:20]: one for one in BASE},
    "a dict in another order": {one[:20]: one for one in BASE[::-1]},
    "a text": "".join(BASE),
    "nothing": None,
    "nested": [BASE[:50], [BASE[:20], {"a": BASE[:30]}], BASE],
    "deep": {"a": {"b": {"c": BASE}}, "d": BASE},
    "a tuple": tuple(BASE),
    "snapshot": _DeltaSnapshot(BASE),
    "snapshot appended": _DeltaSnapshot([*BASE, "new"]),
    "snapshot of a dict": _DeltaSnapshot({one[:20]: one for one in BASE}),
    "messages": history(60),
    "one message more": [*history(60), HumanMessage("hello", id="h")],
    "ints": list(range(10_000)),
    "ints edited": [*range(5_000), 7, *range(5_000, 10_000)],
    "floats": [n / 7 for n in range(3_000)],
    "floats appended": [n / 7 for n in range(3_001)],
    "bools": [bool(n % 3) for n in range(5_000)],
    "equal": ["the same text all along " * 10] * 1000,
    "equal, one more": ["the same text all along " * 10] * 1001,
    "equal but one": _replaced(["the same text all along " * 10] * 1000, 500, "new"),
    "equal messages": [message(3)] * 1000,
    "blobs": [random.Random(n).randbytes(3000) for n in range(30)],
    "blobs edited": [random.Random(n).randbytes(3000) for n in range(30) if n != 11],
    "looks like a root": [b"p" + bytes(60), b"n" + bytes(60), "1:p"] * 30,
    "one": [1] * 3000,
    "True": [True] * 3000,
    "1.0": [1.0] * 3000,
}
