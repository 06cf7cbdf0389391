"""Store a value while OS threads change it at every depth, and exit with 0 if all was right.

test_changing.py runs this in its own process. The arguments are "serializer" and `with` or `without` (the compiled
part), or "savers", "sync" or "async", a URL and a prefix.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import logging
import random
import sys
import threading
import time
import uuid
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.support.factories import config, put
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Interrupt, Send
from pydantic import BaseModel
from tests.support.compiled import compiled_left_out
from tests.support.seeds import seeds
from tests.support.uniform import Uniform

from redis_saver import AsyncRedisSaver, AsyncTieredSaver, EncodeError, RedisSaver, TieredSaver
from redis_saver._serde.serializer import FastSerializer, safe

WHEN = datetime.datetime(2026, 1, 1)
ROUNDS = 2
STORED = ("nested", "messages", "model", "data", "pair", "queue", "send", "named", "odd first")
"""Values that go through the savers."""
FAILURES = ("changed size", "mutated during", "changed during")
"""Texts of Python's errors about a collection that changed. Every other error is a bug."""


class Model(BaseModel, extra="allow"):
    rows: list[Any]
    named: dict[str, Any]
    anything: Any


@dataclasses.dataclass
class Data:
    rows: list[Any]
    named: dict[str, Any]


class Pair(NamedTuple):
    rows: list[Any]
    named: dict[str, Any]


class Rows(list):  # type: ignore[type-arg]
    pass


class Named(dict):  # type: ignore[type-arg]
    pass


class Color(enum.Enum):
    RED = "red"


class Own(JsonPlusSerializer):
    """A user's serializer that calls its parent."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = super().dumps_typed(obj)
        return kind + "!", data[::-1]

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, stored = data
        return super().loads_typed((kind[:-1], stored[::-1]))


def rows() -> list[Any]:
    """Return a list that needs Python code to pack, so that other OS threads run."""
    return [WHEN, [1, "x", [WHEN]], {"k": [uuid.UUID(int=5)]}, "s" * 50, AIMessage("x", id="1")] * 6


def named() -> dict[str, Any]:
    return {f"key {number}": [WHEN, {"n": number}] for number in range(20)}


def odd_keys() -> dict[Any, Any]:
    return {**named(), Color.RED: 1, WHEN: 2, **dict.fromkeys(range(9), "v")}


class State:
    """A graph's values, and the parts of them that change."""

    def __init__(self) -> None:
        self.lists: list[Any] = []
        self.dicts: list[tuple[Any, Callable[[], Any]]] = []
        self.done = False
        self.queue, self.set = deque(rows()), set(range(50))
        message = AIMessage(
            [{"type": "text", "text": "x"}] * 5,
            additional_kwargs={"a": self.rows(), "b": self.named()},
            response_metadata={"m": self.rows()},
            tool_calls=[{"name": "f", "args": self.named(), "id": "1"}],
        )
        self.lists += [message.content, message.tool_calls]
        self.values: dict[str, Any] = {
            "list": self.rows(),
            "dict": self.named(fill=odd_keys),
            "nested": {"a": [{"b": self.rows()}], "tuple": (self.rows(), self.named())},
            "messages": [HumanMessage("x"), message, HumanMessage("y")],
            "message": message,
            "model": Model(rows=self.rows(), named=self.named(), anything=[self.rows()], more=self.named()),
            "data": Data(self.rows(), self.named()),
            "pair": Pair(self.rows(), self.named()),
            "queue": self.queue,
            "set": self.set,
            "send": Send("node", {"messages": self.rows(), "more": self.named()}),
            "interrupt": Interrupt(self.rows(), id="x"),
            "rows": self.rows(Rows),
            "named": self.named(Named, odd_keys),
            "ordered": self.named(OrderedDict),
            "default": self.named(lambda found: defaultdict(list, found)),
            "delta": _DeltaSnapshot(self.rows()),
        }
        self.values["all"] = dict(self.values)
        self.values["odd first"] = [WHEN, *self.values.values()]

    def rows(self, kind: Callable[[Any], Any] = list) -> Any:
        self.lists.append(kind(rows()))
        return self.lists[-1]

    def named(self, kind: Callable[[Any], Any] = dict, fill: Callable[[], Any] = named) -> Any:
        self.dicts.append((kind(fill()), fill))
        return self.dicts[-1][0]

    def change(self, seed: int) -> None:
        """Change values until the end."""
        chance = random.Random(seed)
        while not self.done:
            time.sleep(5e-5)  # leaves time for storing
            each, (entries, fill) = chance.choice(self.lists), chance.choice(self.dicts)
            changes = (
                each.clear, each.pop, lambda: each.extend(rows()), lambda: each.__setitem__(slice(None), rows()),
                lambda: each.__delitem__(slice(len(each) // 2, None)),
                entries.clear, entries.popitem, lambda: entries.update(fill()),
                lambda: entries.__setitem__(str(chance.random()), [WHEN]),
                self.queue.clear, lambda: self.queue.extend(rows()[:5]),
                lambda: (self.set.discard(chance.randrange(50)), self.set.add(chance.randrange(50))),
            )  # fmt: skip
            try:
                chance.choice(changes)()
                if len(each) > 60:
                    del each[5:]
                if len(entries) > 60:
                    entries.clear()
                if len(self.queue) > 60:
                    self.queue.clear()
            except (IndexError, KeyError):
                pass  # it was empty, or another OS thread was faster

    def __enter__(self) -> State:
        sys.setswitchinterval(1e-6)
        self.threads = [threading.Thread(target=self.change, args=(seed,)) for seed in seeds(range(3))]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done = True
        for thread in self.threads:
            thread.join()


def is_change(error: Exception) -> bool:
    return any(text in str(error) for text in FAILURES)


def serializers(found: list[Any]) -> None:
    """Encode and decode each value."""
    encoded = failed = 0
    with State() as state:
        for serializer in found:
            last = None
            for name, value in list(state.values.items()) * ROUNDS:
                try:
                    serializer.loads_typed(serializer.dumps_typed(value))
                    encoded += 1
                    if isinstance(serializer, FastSerializer):
                        found = serializer.dumps_rest(value, last if name == "messages" else None)
                        last = found.fingerprint if name == "messages" else last
                        if not found.front:
                            serializer.loads_typed(found[:2])
                except (TypeError, RuntimeError) as error:
                    failed += 1
                    if not is_change(error):
                        raise
    assert encoded > 20 * failed, (encoded, failed)


async def savers(flavour: str, url: str, prefix: str) -> None:
    """Store and read the values with every kind of serializer."""
    cipher = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    kind: Any = AsyncRedisSaver if flavour == "async" else RedisSaver
    tiered: Any = AsyncTieredSaver if flavour == "async" else TieredSaver
    with State() as state:
        for number, serde in enumerate([None, JsonPlusSerializer(), Own(), cipher, "tiers"]):
            options = {"prefix": f"{prefix}-{number}", "serde": None if serde == "tiers" else serde}
            opened = kind.from_conn_string(url, ttl=datetime.timedelta(hours=1), **options)
            hot = await opened.__aenter__() if flavour == "async" else opened.__enter__()
            uniform = Uniform(tiered(hot, InMemorySaver(serde=Own())) if serde == "tiers" else hot)
            where, stored = config(), 0
            for name, value in ((name, state.values[name]) for name in STORED):
                about = {"value": value} if name == "nested" else {}
                try:
                    where = await put(uniform, where, {name: value, "constant": 1}, metadata=about)
                    await uniform.put_writes(where, [("a", value), ("b", [value]), ("__interrupt__", value)], "task")
                    stored += 1
                except EncodeError as error:
                    if not is_change(error):
                        raise
                found = await uniform.get_tuple(config())
                assert found is None or found.checkpoint["channel_values"]["constant"] == 1
            assert stored > len(STORED) / 2, stored
            if flavour == "async":
                await opened.__aexit__(None, None, None)
            else:
                opened.__exit__(None, None, None)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    begun = time.monotonic()
    if sys.argv[1] == "serializer":
        if sys.argv[2] == "with":
            encrypted = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
            serializers([FastSerializer(), *map(safe, (Own(), encrypted, FastSerializer(pickle_fallback=True)))])
        else:
            with compiled_left_out():
                serializers([FastSerializer()])
    elif sys.argv[1] == "unsafe":
        serializers([JsonPlusSerializer()] * 5)
    else:
        asyncio.run(savers(*sys.argv[2:]))
    print(f"{time.monotonic() - begun:.1f} s")
