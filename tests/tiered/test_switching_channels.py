"""Graphs that switch a channel between a plain list and a `DeltaChannel`, in every mode, compared with InMemorySaver.

Each turn runs on both savers: an input, a fork, an update of the state, a copy, an eviction of hot. Then both have the
same states, read by a graph of either kind.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Overwrite, interrupt
from typing_extensions import TypedDict

from tests.support.factories import config
from tests.support.seeds import seeds_and_slow, targets
from tests.support.talking import call_graph, joined, plainly_joined
from tests.support.tiering import BEHIND, LATEST, Tiers, drained
from tests.support.uniform import Uniform

pytestmark = [pytest.mark.random, pytest.mark.encrypted_too]
MODES: dict[str, dict[str, Any]] = {"alone": {}, "through": {}, "behind": BEHIND, "latest": LATEST}
CHANNELS = ("log", "notes")
TURNS = 25


def graph(saver: Any, kinds: Mapping[str, int]) -> Any:
    """Return a graph. `kinds` has the snapshot frequency of each channel; 0: a plain list."""
    return compiled(tuple(kinds.items())).copy({"checkpointer": saver})


@cache
def compiled(kinds: tuple[tuple[str, int], ...]) -> Any:
    fields: dict[str, Any] = {"count": int}
    for channel, snapshots in kinds:
        reducer: Any = DeltaChannel(joined, snapshot_frequency=snapshots) if snapshots else plainly_joined
        fields[channel] = Annotated[list[str], reducer]
    state: Any = TypedDict("State", fields)  # type: ignore[operator]

    def note(state: Any) -> Any:
        update: dict[str, Any] = {"count": state.get("count", 0) + 1}
        last = (state["log"] or [""])[-1]
        if "note" in last:
            update["notes"] = [f"noted {last}"]
        if "forget" in last:
            update["log"] = Overwrite(["forgotten"])
        return update

    def aside(state: Any) -> Any:
        last = (state["log"] or [""])[-1]
        return {"notes": [f"beside {last}"]} if "note" in last else {}

    def answer(state: Any) -> Any:
        last = (state["log"] or [""])[-1]
        text = interrupt(f"about {last}?") if "ask" in last else "answered"
        return {"log": [f"{text} {last}"]}

    inner = StateGraph(state).add_node("answer", answer).add_edge(START, "answer").compile()
    builder = StateGraph(state).add_node("note", note).add_node("aside", aside).add_node("answer", answer)
    builder.add_node("inner", lambda given: {"count": len(inner.invoke({"log": [f"in {given.get('count')}"]})["log"])})
    builder.add_edge(START, "note").add_edge(START, "aside").add_edge("note", "answer").add_edge("answer", "inner")
    return builder.compile()


class Play:
    """The same turns on both savers."""

    def __init__(self, tiers: Tiers, mode: str, chance: random.Random) -> None:
        self.tiers, self.mode, self.chance = tiers, mode, chance
        self.model, self.turn = InMemorySaver(), 0
        self.told: list[str] = []
        self.pairs: dict[str, dict[str, str]] = {}
        """By thread: the id here of each checkpoint of the model."""
        self.uniform: Uniform

    async def begin(self) -> None:
        """Start as another process."""
        if self.mode == "alone":
            self.uniform = self.tiers.target.uniform()
        else:
            self.uniform = await self.tiers.uniform(**MODES[self.mode])

    def kinds(self) -> dict[str, int]:
        return {channel: self.chance.choice([0, 0, 1, 2, 3, 1000, 1000]) for channel in CHANNELS}

    async def both(
        self, thread: str, kinds: Mapping[str, int], at: str | None, method: str, *rest: Any, **more: Any
    ) -> Any:
        """Call a method of both graphs at a checkpoint of the model, or at the newest. Returns both answers."""
        answers = list[Any]()
        for saver, one in ((self.model, at), (self.uniform.saver, at and self.pairs[thread].get(at))):
            where = config(thread, None if at is None else "", one)
            arguments = (*rest, where) if method == "invoke" else (where, *rest)
            try:
                answers.append(await call_graph(graph(saver, kinds), method, *arguments, **more))
            except Exception as error:  # noqa: BLE001 - both must fail alike
                answers.append(type(error))
                self.told.append(f"{type(error).__name__}: {error}"[:300])
        return answers

    def tell(self) -> str:
        """Return the turns so far, for a failure."""
        return "\n" + "\n".join(self.told)

    async def pair(self, thread: str) -> None:
        """Pair the new checkpoints of both sides, in order. Some that were coalesced are gone, so pair by step.

        Such a checkpoint may be gone before it was listed. Then it is known only as the parent of another one.
        """
        pairs = self.pairs.setdefault(thread, {})
        new = sorted(self.model.storage[thread][""].keys() - pairs.keys())
        ours = sorted(await self.uniform.list(config(thread)), key=lambda one: one.checkpoint["id"])
        mine = [one for one in ours if one.checkpoint["id"] not in pairs.values()]
        if self.mode == "latest":
            steps = [self.step(thread, one) for one in new]
            new = [new[steps.index(one.metadata["step"])] for one in mine]
        assert len(new) == len(mine), (self.tell(), len(new), len(mine))
        pairs.update(zip(new, [one.checkpoint["id"] for one in mine], strict=True))
        if self.mode == "latest":
            for one, here in zip(new, mine, strict=True):
                parent = self.model.get_tuple(config(thread, "", one)).parent_config
                if parent and here.parent_config:
                    gone = here.parent_config["configurable"]["checkpoint_id"]
                    pairs.setdefault(parent["configurable"]["checkpoint_id"], gone)

    def step(self, thread: str, checkpoint_id: str) -> Any:
        return self.model.get_tuple(config(thread, "", checkpoint_id)).metadata["step"]

    async def act(self) -> None:
        """Take a turn."""
        chance = self.chance
        self.turn += 1
        thread, kinds = chance.choice(["a", "a", "b"]), self.kinds()
        ids = sorted(await self.there(thread))
        at = chance.choice(ids) if ids and chance.random() < 0.25 else None
        what = chance.choice(
            ["say"] * 6 + ["update", "resume", "replay", "copy", "delete", "evict", "evict", "process"]
        )
        self.told.append(f"{self.turn}: {what} {thread} {kinds} at {at and ids.index(at)}")
        durability = chance.choice(["sync", "async", "exit"])
        if what == "say":
            words = chance.choice(["hi", "note", "ask", "forget", "hi", "note"])
            given = {"log": [f"{words} {self.turn}"], **({"notes": [f"n{self.turn}"]} if chance.random() < 0.3 else {})}
            await self.same(thread, kinds, at, "invoke", given, durability=durability)
        elif what == "resume":
            await self.same(thread, kinds, at, "invoke", Command(resume=f"yes {self.turn}"), durability=durability)
        elif what == "replay" and ids:
            await self.same(thread, kinds, at, "invoke", None, durability=durability)
        elif what == "update":
            value: Any = [f"set {self.turn}"]
            value = Overwrite(value) if chance.random() < 0.3 else value
            given = {chance.choice(CHANNELS): value}
            await self.same(thread, kinds, at, "update_state", given, as_node=chance.choice(["note", "answer"]))
        elif what == "copy" and ids:
            await self.copy(thread, "b" if thread == "a" else "a")
        elif what == "delete" and chance.random() < 0.2:
            self.model.delete_thread(thread)
            await self.uniform.delete_thread(thread)
            self.pairs.pop(thread, None)
        elif what == "evict" and self.mode != "alone":
            await drained(self.uniform)
            self.tiers.evict(thread=thread)
        elif what == "process":
            await self.flushed()
            await self.begin()
        await self.compare(thread)

    async def flushed(self) -> None:
        if self.mode != "alone":
            await drained(self.uniform)

    async def there(self, thread: str) -> list[str]:
        """Return the checkpoints of the model that are here, too. Some of them were coalesced, and are gone."""
        ours = {one.checkpoint["id"] for one in await self.uniform.list(config(thread))}
        pairs = self.pairs.get(thread, {})
        if self.mode != "latest":
            assert set(pairs.values()) == ours, self.tell()
        return [one for one, here in pairs.items() if here in ours]

    async def same(
        self, thread: str, kinds: Mapping[str, int], at: str | None, method: str, *rest: Any, **more: Any
    ) -> None:
        theirs, ours = await self.both(thread, kinds, at, method, *rest, **more)
        if method == "invoke" or isinstance(theirs, type) or isinstance(ours, type):
            assert self.plain(theirs) == self.plain(ours), self.tell()
        await self.pair(thread)

    @staticmethod
    def plain(answer: Any) -> Any:
        if not isinstance(answer, dict) or "__interrupt__" not in answer:
            return answer
        return {**answer, "__interrupt__": [one.value for one in answer["__interrupt__"]]}

    async def copy(self, source: str, target: str) -> None:
        self.model.delete_thread(target)
        self.model.storage[target] = copy.deepcopy(self.model.storage[source])
        for kept in (self.model.writes, self.model.blobs):
            of_source = {key: value for key, value in kept.items() if key[0] == source}
            kept.update({(target, *key[1:]): copy.deepcopy(value) for key, value in of_source.items()})
        await self.uniform.copy_thread(source, target)
        self.pairs[target] = dict(self.pairs[source])

    async def compare(self, thread: str) -> None:
        """Compare the newest state, and sometimes all, read by a graph of any kind."""
        kinds = self.kinds()
        theirs, ours = await self.both(thread, kinds, None, "get_state")
        assert self.seen(theirs, thread) == self.seen(ours, thread, is_ours=True), (kinds, self.tell())
        if self.chance.random() < 0.5:
            there = set(await self.there(thread))
            theirs, ours = await self.both(thread, kinds, None, "get_state_history")
            expected = [one for one in theirs if one.config["configurable"]["checkpoint_id"] in there]
            for one, other in zip(expected, ours, strict=True):
                assert self.seen(one, thread) == self.seen(other, thread, is_ours=True), (kinds, self.tell())

    def seen(self, state: Any, thread: str, *, is_ours: bool = False) -> Any:
        if isinstance(state, type):
            return state
        pairs = {here: one for one, here in self.pairs.get(thread, {}).items()} if is_ours else {}
        ids = [where and where["configurable"].get("checkpoint_id") for where in (state.config, state.parent_config)]
        metadata = {key: (state.metadata or {}).get(key) for key in ("source", "step")}
        tasks = [(task.name, [one.value for one in task.interrupts], type(task.error)) for task in state.tasks]
        return [pairs.get(one, one) for one in ids], state.values, state.next, metadata, tasks


@pytest.mark.parametrize("target_name", targets("redis"), indirect=True)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 20)))
@pytest.mark.by_turns
async def test_graphs_that_switch_channels_match_the_model(tiers: Tiers, mode: str, seed: int) -> None:
    play = Play(tiers, mode, random.Random(f"{seed} {mode}"))
    await play.begin()
    for _ in range(TURNS):
        await play.act()
    await play.flushed()
