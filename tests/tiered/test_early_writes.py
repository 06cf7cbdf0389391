"""Pending writes that reach the tiers before their checkpoint, as LangGraph sends them, while hot loses threads."""

from __future__ import annotations

import operator
import random
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import pytest
import tiered_operations as operations
from interleaving import Interleaving
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.graph import START, StateGraph
from langgraph.types import Command as Resume, Send, interrupt
from typing_extensions import TypedDict

from redis_saver import TieredSaver
from redis_saver._engine.requests import Sleep
from redis_saver._tiered import flushing, scripts
from tests.support.factories import checkpoint, config
from tests.support.seeds import seeds_and_slow, targets
from tests.support.sharing import text
from tests.support.talking import call_graph, joined
from tests.support.tiering import BEHIND, VERSIONS, Tiers, between, both_modes, drained
from tests.support.tiering import keys_of, mark_new, new, put_new, only_in_cold
from tests.support.wrappers import Around, script_of

# -- by hand


@both_modes
@pytest.mark.parametrize("before", [0, 1], ids=["first checkpoint", "second checkpoint"])
async def test_early_writes_survive_if_only_cold_has_them(tiers: Tiers, mode: dict[str, Any], before: int) -> None:
    """Hot loses the thread after the flush, and another process fills it before the checkpoint arrives."""
    uniform, reader, cold = await tiers.uniform(**mode), await tiers.uniform(**mode), await tiers.cold_uniform()
    await uniform.get_tuple(config())
    where = await put_new(uniform, number=1) if before else config()
    second = new()
    coming = config("thread", "", second["id"])
    await uniform.put_writes(coming, [("n", [1])], "task-a")
    await only_in_cold(tiers, uniform)
    await reader.get_tuple(config())
    await uniform.put_writes(coming, [(INTERRUPT, ["?"])], "task-b")
    await uniform.put(where, second, {}, VERSIONS)
    for each in (uniform, reader, await tiers.uniform(**mode), cold):
        if each is cold:
            await drained(uniform)
        for place in (config(), coming):
            found = await each.get_tuple(place)
            assert found.checkpoint["id"] == second["id"]
            assert sorted(found.pending_writes) == [("task-a", "n", [1]), ("task-b", INTERRUPT, ["?"])]


# -- in any order


LONG = [text(number, 4000) for number in range(3)]


class Supersteps(Interleaving):
    """Runs whose pending writes arrive before up to three of their checkpoints."""

    MOST_AHEAD = 3

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.ahead = defaultdict[tuple[str, str], list[Any]](list)
        """The next puts of each namespace, in order."""

    def begin(self, thread: str) -> None:
        kinds = ["go_ahead"] * 6 + ["early"] * 6 + ["put"] * 6 + ["writes"] * 2 + ["delete"]
        kinds += ["get"] * 5 + ["list"] + ["deltas"] * 2 + ["flush"] * 6 + ["forget"] * 4
        getattr(self, self.chance.choice(kinds))(thread)

    def go_ahead(self, thread: str) -> None:
        """End a superstep, which gives its checkpoint an id. A run most often reads first."""
        ns = self.chance.choice(["", "", "sub"])
        ahead = self.ahead[thread, ns]
        if len(ahead) < self.MOST_AHEAD and not self.is_being(thread, "delete"):
            if not ahead and self.chance.random() < 0.8:
                self.read_at(config(thread, ns))
            ahead.append(self.following(thread, ns, ahead[-1] if ahead else None))

    def following(self, thread: str, ns: str, last: Any) -> tuple[Any, ...]:
        """Arguments of the next put. `log` has no value, like a `DeltaChannel`."""
        found = self.model.get_tuple(config(thread, ns)) if last is None else None
        before: Any = last[1] if last else found.checkpoint if found else checkpoint({}, {})
        parent = last[1]["id"] if last else found and found.checkpoint["id"]
        self.number += 1
        new = dict.fromkeys([self.chance.choice("xyz"), "log"], f"{self.number:032}.1")
        versions = {**before["channel_versions"], **new}
        values = dict(before["channel_values"])
        values |= {channel: [version, "v" * 900, self.result()] for channel, version in new.items() if channel != "log"}
        return config(thread, ns, parent), checkpoint(values, versions), {"step": self.number}, new

    def early(self, thread: str) -> None:
        """Write to a checkpoint that is not stored yet."""
        ns = self.chance.choice(["", "", "sub"])
        if ahead := self.ahead[thread, ns]:
            self.write_to(config(thread, ns, self.chance.choice(ahead)[1]["id"]))

    def writes(self, thread: str) -> None:
        if found := self.some_newest(thread):
            self.write_to(found.config)

    def write_to(self, where: Any) -> None:
        thread, task = where["configurable"]["thread_id"], f"task {self.number}"
        if not self.is_being(thread, "delete"):
            channels = self.chance.choice([["x"], ["x", "log"], [INTERRUPT], ["log", INTERRUPT, "y"]])
            writes = [(channel, [self.number, self.result()]) for channel in channels]
            self.write("put_writes", thread, *self.calling("put_writes", (where, writes, task, f"path {task}")))

    def put(self, thread: str) -> None:
        """Start the next put of a run, if none is under way. The writes may go through another process."""
        ns = self.chance.choice(["", "", "sub"])
        if not self.ahead[thread, ns] or self.is_being(thread, f"put {ns}") or self.is_being(thread, "delete"):
            return
        make, happened = self.calling("put", self.ahead[thread, ns][0])

        def stored() -> None:
            happened()
            self.ahead[thread, ns].pop(0)

        self.write(f"put {ns}", thread, make, stored)

    def result(self) -> str:
        """Return a value that often shares chunks with another one."""
        return self.chance.choice(["", "", *LONG])

    def delete(self, thread: str) -> None:
        if self.is_only_being_deleted(thread):
            super().delete(thread)
            for ns in ("", "sub"):
                self.ahead[thread, ns].clear()

    def deltas(self, thread: str) -> None:
        """Read the history of a channel that has no value in any checkpoint."""
        if not self.is_coalescing and (found := self.some_newest(thread)):
            where = found.config
            self.read(
                "get_delta_channel_history",
                thread,
                lambda saver: operations.get_delta_channel_history(saver, where, ["log"]),
                lambda: self.model.get_delta_channel_history(config=where, channels=["log"]),
            )

    def check_all(self) -> None:
        while any(self.ahead.values()):
            for thread, _ in list(self.ahead):
                self.put(thread)
            while self.running:
                self.step(self.chance.choice(self.running))
        super().check_all()


@pytest.mark.also_on(cluster="async")
@pytest.mark.parametrize("last", ["put", "put_writes"])
@pytest.mark.parametrize("empty", ["new", "filled"])
async def test_a_write_that_hot_lost_during_another_is_read_from_cold(tiers: Tiers, empty: str, last: str) -> None:
    """The last writer knows that the thread was empty, but not that hot has lost what another one wrote since."""
    uniform, other = await tiers.uniform(), await tiers.uniform()
    mark_new(tiers, "thread") if empty == "new" else await uniform.get_tuple(config())
    one = new()
    where = config("thread", "", one["id"])

    async def early() -> None:
        await other.put_writes(where, [("n", 7)], "early")
        tiers.evict()

    between(uniform, scripts.PUT_THROUGH if last == "put" else scripts.PUT_WRITES_THROUGH, early)
    if last == "put_writes":
        await uniform.put_writes(where, [("n", 8)], "last")
    await uniform.put(config(), one, {}, VERSIONS)
    expected = [("early", "n", 7), ("last", "n", 8)][: 1 if last == "put" else 2]
    for saver in (await tiers.uniform(), uniform):
        assert [found.pending_writes for found in await saver.list(config())] == [expected]
        assert (await saver.get_tuple(config())).pending_writes == expected


@pytest.mark.random
@pytest.mark.parametrize("target_name", targets("redis"), indirect=True)
@pytest.mark.parametrize("flavour", ["sync"], indirect=True)
@pytest.mark.parametrize("history", ["all", "latest"])
@pytest.mark.parametrize("seed", seeds_and_slow(range(2), range(2, 60)))
async def test_random_supersteps_match_the_model(tiers: Tiers, seed: int, history: str) -> None:
    behind = {**BEHIND, "cold_history": history}
    await Supersteps(tiers, seed, [behind, behind, {}], history).run(800)


# -- graphs


Delta = Annotated[list[str], DeltaChannel(joined, snapshot_frequency=7)]


Answer = TypedDict("Answer", {"answer": str})
Inner = TypedDict("Inner", {"answer": str, "of": str, "thoughts": Delta})
Seen = TypedDict("Seen", {"seen": str})
Memory = TypedDict("Memory", {"seen": str, "of": str, "memory": Delta})
Part = TypedDict("Part", {"of": str, "number": int})
Log = Annotated[list[str], operator.add]
Outer = TypedDict("Outer", {"of": str, "notes": Delta, "log": Log, "answer": str, "seen": str})


def talking(ran: Counter[str]) -> StateGraph[Any]:
    """Build a graph with parallel tasks, a subgraph that interrupts, and one with a memory. `ran` counts node runs."""

    def counted(node: Callable[[Any], Any]) -> Any:
        @wraps(node)
        def run(state: Any) -> Any:
            ran[f"{node.__name__} {state['of']} {state.get('number')}"] += 1
            return node(state)

        return run

    @counted
    def first(state: Outer) -> dict[str, Any]:
        return {"notes": [f"first {state['of']}"]}

    @counted
    def part(state: Part) -> dict[str, Any]:
        return {"log": [f"{state['number']} {state['of']}"], "notes": [f"part {state['number']}"]}

    @counted
    def last(state: Outer) -> dict[str, Any]:
        return {"notes": [f"last {len(state['notes'])}, heard {state['answer']}, seen {state['seen']}"]}

    @counted
    def think(state: Inner) -> dict[str, Any]:
        return {"thoughts": [f"think {state['of']}"]}

    def ask(state: Inner) -> dict[str, Any]:
        return {"answer": interrupt(f"sure of {state['thoughts'][-1]}?"), "thoughts": ["asked"]}

    @counted
    def end(state: Inner) -> dict[str, Any]:
        return {"thoughts": [f"end {len(state['thoughts'])}"]}

    @counted
    def remember(state: Memory) -> dict[str, Any]:
        return {"memory": [state["of"]], "seen": f"{len(state['memory'])} before {state['of']}"}

    def fan_out(state: Outer) -> list[Any]:
        return [*(Send("part", {"of": state["of"], "number": number}) for number in range(3)), "inner", "memory"]

    inner = StateGraph(Inner, output_schema=Answer).add_node("think", think).add_node("ask", ask).add_node("end", end)
    inner.add_edge(START, "think").add_edge("think", "ask").add_edge("ask", "end")
    memory = StateGraph(Memory, output_schema=Seen).add_node("remember", remember).add_edge(START, "remember")
    outer = StateGraph(Outer).add_node("first", first).add_node("part", part).add_node("last", last, defer=True)
    outer.add_node("inner", inner.compile()).add_node("memory", memory.compile(checkpointer=True))
    outer.add_edge(START, "first").add_conditional_edges("first", fan_out, ["part", "inner", "memory"])
    return outer.add_edge("part", "last").add_edge("inner", "last").add_edge("memory", "last")


REMOVE_IF_CLEAN = """
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 or redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
return redis.call('UNLINK', KEYS[1], KEYS[2])
"""


class Loses:
    """Makes hot lose a thread between requests of any saver. At other moments it flushes a dirty thread.

    Args:
        tiers: The servers.
        cold: A blocking saver.
        chance: Random numbers that decide when.
    """

    def __init__(self, tiers: Tiers, cold: Any, chance: random.Random) -> None:
        self._raw, self._keys, self._chance, self._lock = tiers.target.raw, keys_of(tiers), chance, threading.Lock()
        blocking = tiers.target.elsewhere(flavour="sync").uniform().saver
        self._flusher = TieredSaver(blocking, cold, **BEHIND)
        self.lost, self.share = 0, 0.0
        """Number of times that hot lost the thread, and the probability of that between two requests."""

    def watch(self, saver: Any) -> None:
        """Do that between the requests of a saver. Some puts are delayed, so the next writes overtake them."""

        def around(request: Any) -> Any:
            if script_of(request) in (scripts.PUT_BEHIND, scripts.PUT_THROUGH) and self._chance.random() < 0.5:
                yield Sleep(0.01)
            self._happen()
            return (yield request)

        Around(saver.hot, around)

    def _happen(self) -> None:
        with self._lock:
            if self._chance.random() < self.share:
                self._flusher._driver.run(flushing.flush(self._flusher._context, "thread", at_once=True))
                index, data, _, _, dirty = self._keys.writing
                self.lost += bool(self._raw.eval(REMOVE_IF_CLEAN, 3, index, data, dirty))


async def talk(tiers: Tiers, mode: dict[str, Any], durability: Any, turns: int, chance: random.Random) -> int:
    """Run turns on two savers and in memory. Return how often hot lost the thread."""
    counts, model = (Counter[str](), Counter[str]()), InMemorySaver()
    savers = [await tiers.saver(**mode) for _ in range(2)]
    with PostgresSaver.from_conn_string(tiers.url) as cold:
        loses = Loses(tiers, cold, chance)
        for saver in savers:
            loses.watch(saver)
        graphs = [talking(counts[0]).compile(checkpointer=saver) for saver in savers]
        expecting = talking(counts[1]).compile(checkpointer=model)
        is_asked = False
        for turn in range(turns):
            graph = chance.choice(graphs)
            loses.share = chance.choice([0.05, 0.2, 0.5])
            given = Resume(resume=f"yes {turn}") if is_asked else {"of": f"turn {turn}"}
            answers = [await run(each, given, durability) for each in (graph, expecting)]
            assert answers[0] == answers[1], turn
            assert counts[0] == counts[1], turn
            is_asked = "__interrupt__" in answers[1][0]
        return loses.lost


async def run(graph: Any, given: Any, durability: Any) -> tuple[Any, ...]:
    """Run a turn. Return the answer and the stored state, without random ids."""
    answer = await call_graph(graph, "invoke", given, config(), durability=durability)
    state = await call_graph(graph, "get_state", config(), subgraphs=True)
    if interrupts := answer.get("__interrupt__"):
        answer = {**answer, "__interrupt__": [one.value for one in interrupts]}
    return answer, *seen_in(state)


def seen_in(state: Any) -> Any:
    tasks = [(one.name, [each.value for each in one.interrupts], one.error, one.result) for one in state.tasks]
    inside = [seen_in(one.state) for one in state.tasks if one.state]
    return state.values, state.next, tasks, inside


ALSO_SLOW = [("behind", "sync"), ("through", "async"), ("behind", "exit")]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="interrupt() in asyncio tasks needs Python 3.11, says LangGraph")
@pytest.mark.random
@pytest.mark.parametrize("target_name", targets("redis"), indirect=True)
@pytest.mark.parametrize(
    ("mode", "durability"),
    [
        *(("through", "sync"), ("behind", "async"), ("through", "exit")),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ALSO_SLOW),
    ],
)
@pytest.mark.parametrize("seed", seeds_and_slow(range(1), range(1, 20)))
@pytest.mark.by_turns
async def test_graphs_match_the_model_while_hot_loses_the_thread(
    tiers: Tiers, mode: str, durability: str, seed: int
) -> None:
    """No finished node runs again, and no interrupt or entry of a `DeltaChannel` is lost."""
    settings, chance = BEHIND if mode == "behind" else {}, random.Random(f"{seed} {durability}")
    assert await talk(tiers, settings, durability, 16, chance) > 8
