"""Real LangGraph graphs on our savers, compared with the same graphs on LangGraph's `InMemorySaver`.

A scenario is a coroutine that drives graphs through a `Run`. What it returns must be the same on both savers. Features
that LangGraph's saver lacks (prune, copy_thread, TTLs) are compared with the thread itself.
"""

from __future__ import annotations

import asyncio
import operator
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.pregel._loop import PregelLoop
from langgraph.types import Command, Overwrite, Send, StateSnapshot, StateUpdate, interrupt
from tests.support.servers import url_of
from typing_extensions import TypedDict
from tests.support.uniform import Target, Uniform

from redis_saver import CalledOnEventLoop, RedisSaver

WAYS = {
    "sync": ("sync", "here"),
    "async": ("async", "awaited"),
    "sync-awaited": ("sync", "awaited"),
    "async-in-thread": ("async", "thread"),
}
"""Names of pairs: the saver's flavour, and how graphs are called.

They are called by `graph.invoke` here, `graph.ainvoke`, or `graph.invoke` in a worker thread.
"""

NATIVE = ["sync", "async"]
SERVERS = ["redis", "redis62"]
DURABILITIES = ["sync", "async", "exit"]


@pytest.fixture(autouse=True)
def one_task_at_a_time_is_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serialize `PregelLoop.put_writes`.

    Without a lock, two tasks of a sync graph that end at the same moment in their OS threads can lose each other's
    writes, as the loop rebuilds its list of pending writes. With `durability="exit"` only that list is stored, so no
    saver can notice.
    """
    works, one_at_a_time = PregelLoop.put_writes, threading.Lock()

    def locked(loop: Any, task_id: str, writes: Any, **options: Any) -> None:
        with one_at_a_time:
            works(loop, task_id, writes, **options)

    monkeypatch.setattr(PregelLoop, "put_writes", locked)


class Run:
    """Savers on one store, and a way to call graphs on them."""

    def __init__(self, make: Callable[..., Any], how: str, durability: str) -> None:
        self.make, self.how, self.durability = make, how, durability
        self.saver = make()
        self.target: Any = None

    async def call(self, function: str, on: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a graph, or its `a` twin; return an iterator's items as a list."""
        if self.how == "awaited":
            answer = getattr(on, "a" + function)(*args, **kwargs)
            return [one async for one in answer] if hasattr(answer, "__aiter__") else await answer

        def plain() -> Any:
            answer = getattr(on, function)(*args, **kwargs)
            return list(answer) if hasattr(answer, "__next__") else answer

        return await asyncio.to_thread(plain) if self.how == "thread" else plain()

    def chat(self, builder: Any, thread: str = "thread", saver: Any = None, **options: Any) -> Chat:
        return Chat(self, builder.compile(checkpointer=saver or self.saver, **options), thread)

    @property
    def uniform(self) -> Any:
        return Uniform(self.saver)


class Chat:
    """A compiled graph on one thread. `at` is a config that names one of its checkpoints."""

    def __init__(self, run: Run, graph: Any, thread: str) -> None:
        self.run, self.graph = run, graph
        self.config: Any = {"configurable": {"thread_id": thread}}

    async def invoke(self, given: Any, at: Any = None, **options: Any) -> Any:
        options.setdefault("durability", self.run.durability)
        return await self.run.call("invoke", self.graph, given, at or self.config, **options)

    async def stream(self, given: Any, **options: Any) -> Any:
        return await self.run.call("stream", self.graph, given, self.config, **options)

    async def state(self, at: Any = None, **options: Any) -> StateSnapshot:
        return await self.run.call("get_state", self.graph, at or self.config, **options)  # type: ignore[no-any-return]

    async def states(self, at: Any = None, **options: Any) -> list[StateSnapshot]:
        """Return the history, newest first."""
        return await self.run.call("get_state_history", self.graph, at or self.config, **options)  # type: ignore[no-any-return]

    async def update(self, values: Any, at: Any = None, **options: Any) -> Any:
        return await self.run.call("update_state", self.graph, at or self.config, values, **options)

    async def bulk_update(self, supersteps: Any) -> Any:
        return await self.run.call("bulk_update_state", self.graph, self.config, supersteps)

    async def history(self) -> list[Any]:
        """Return the history as `seen`, each state with the position of its parent."""
        states = await self.states()
        positions = {id_of(state.config): position for position, state in enumerate(states)}
        return [(seen(one), positions.get(id_of(one.parent_config), "-")) for one in states]

    async def by_id(self) -> dict[str, Any]:
        """Return the content of each checkpoint, as `get_state` shows it."""
        return {id_of(one.config): seen(await self.state(one.config)) for one in await self.states()}

    async def resume_map(self, answers: dict[Any, Any]) -> Command[Any]:
        """Return a `Command` that answers waiting interrupts by their values."""
        waiting = (await self.state(subgraphs=True)).interrupts
        return Command(resume={one.id: answers[one.value] for one in waiting if one.value in answers})


def id_of(config: Any) -> str:
    return str(config["configurable"]["checkpoint_id"]) if config else ""


def seen(state: StateSnapshot) -> dict[str, Any]:
    """Return a state without ids and times, which differ in each run."""
    return {
        "values": state.values,
        "next": state.next,
        "metadata": {key: value for key, value in (state.metadata or {}).items() if key != "parents"},
        "namespaces": len((state.metadata or {}).get("parents", {})),
        "interrupts": [(waiting.value, waiting.response_schema) for waiting in state.interrupts],
        "tasks": [
            (
                one.name,
                one.error,
                [(waiting.value, waiting.response_schema) for waiting in one.interrupts],
                one.result,
                seen(one.state) if isinstance(one.state, StateSnapshot) else one.state is not None,
            )
            for one in state.tasks
        ],
    }


Scenario = Callable[[Run], Awaitable[Any]]


@pytest.fixture
async def play() -> AsyncIterator[Callable[..., Awaitable[Run]]]:
    """A function that makes `Run`s on one of our savers, with a prefix of the test's own."""
    targets: list[Target] = []

    async def make(server: str, way: str, durability: str = "async", **options: Any) -> Run:
        flavour, how = WAYS[way]
        target = Target(server, flavour, url_of(server), f"graphs-{uuid4().hex}")
        targets.append(target)
        run = Run(lambda: target.uniform(**options).saver, how, durability)
        run.target = target
        return run

    yield make
    for target in targets:
        await target.close()


async def same(scenario: Scenario, ours: Run) -> None:
    """Check that a scenario returns the same on our saver as on LangGraph's."""
    memory = InMemorySaver()
    theirs = Run(lambda: memory, ours.how, ours.durability)
    wanted, got = await scenario(theirs), await scenario(ours)
    assert got == wanted
    assert wanted, "the scenario compared nothing"


def matches_memory(ways: list[str], servers: list[str], durabilities: list[str]) -> Callable[[Scenario], Any]:
    """Make a test of a scenario: it must return the same on our saver as on LangGraph's."""

    def decorate(scenario: Scenario) -> Any:
        @everywhere(ways, servers, durabilities)
        async def test(play: Any, at: Any) -> None:
            await same(scenario, await play(*at))

        test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
        return test

    return decorate


def everywhere(ways: list[str], servers: list[str], durabilities: list[str]) -> pytest.MarkDecorator:
    """Parametrize `at` with arguments of `play`.

    The first server has all ways and all durabilities, each at least once. Each other server has one of `NATIVE`.
    Before Python 3.11, asyncio tasks inherit no context, so `interrupt` does not work in them.
    """
    if sys.version_info < (3, 11):
        ways = [way for way in ways if WAYS[way][1] != "awaited"]
    cases = [
        (servers[0], ways[turn % len(ways)], durabilities[turn % len(durabilities)])
        for turn in range(max(len(ways), len(durabilities)))
    ]
    native = [way for way in ways if way in NATIVE]
    cases += [
        (server, native[turn % len(native)], durabilities[-2:][0]) for turn, server in enumerate(servers[1:]) if native
    ]
    return pytest.mark.parametrize("at", cases, ids=["-".join(case) for case in cases])


# -- graphs


def echo_chat() -> Any:
    """A chat whose bot answers with the number of messages it has seen."""

    def bot(state: Any) -> Any:
        count = len(state["messages"])
        return {"messages": [AIMessage(content=f"seen {count}", id=f"ai-{count}")]}

    return sequence(MessagesState, bot=bot)


class Log(TypedDict):
    """State in which `log` grows and `last` is overwritten."""

    log: Annotated[list[str], operator.add]
    last: str


def sequence(schema: Any, **nodes: Any) -> Any:
    """Make a chain of nodes."""
    return StateGraph(schema).add_sequence([*nodes.items()]).add_edge(START, next(iter(nodes)))


def steps(*names: str, stop_at: str = "", schema: Any = Log, then: dict[str, Any] | None = None) -> Any:
    """Make a chain of nodes that log their names, and of others. The node `stop_at` asks first."""

    def node(name: str) -> Any:
        def act(state: Any) -> Any:
            said = f"{name}:{interrupt(f'{name}?')}" if name == stop_at else name
            return {"log": [said], "last": said}

        return act

    return sequence(schema, **{name: node(name) for name in names}, **(then or {}))


def said(text: str) -> Any:
    return {"log": [text]}


# -- chats


@matches_memory(list(WAYS), [*SERVERS, "cluster", "fakeredis"], DURABILITIES)
async def test_chats_match_memory(run: Run) -> Any:
    chat, other = run.chat(echo_chat()), run.chat(echo_chat(), "other")
    found = []
    for turn in range(5):
        found.append(await chat.invoke({"messages": [HumanMessage(f"turn {turn}", id=f"human-{turn}")]}))
        found.append(await other.invoke({"messages": [HumanMessage("hello", id="same id")]}))
    found.append(await chat.invoke({"messages": [RemoveMessage("ai-1"), HumanMessage("changed", id="human-0")]}))
    assert [message.content for message in found[-1]["messages"]][:2] == ["changed", "turn 1"]
    assert len((await other.state()).values["messages"]) == 6
    return found, await chat.history(), await other.history()


@matches_memory(NATIVE, SERVERS, ["sync"])
async def test_filtered_histories_match_memory(run: Run) -> Any:
    """Metadata and tags of a run's config are stored in the history, and can filter it."""
    chat = run.chat(steps("a", "b"))
    for user in ("ann", "bob"):
        config = {"configurable": {"thread_id": "thread", "colour": "red"}, "metadata": {"user": user, "n": 1}}
        await chat.invoke(said(user), config)
    filters: list[Any] = [
        {"user": "ann"},
        {"user": "nobody"},
        {"source": "input"},
        {"step": 1, "colour": "red", "n": 1},
    ]
    found = [[seen(one) for one in await chat.states(filter=wanted)] for wanted in filters]
    assert [len(one) for one in found] == [4, 0, 2, 1]
    third = (await chat.states())[2].config
    before = [seen(one) for one in await chat.states(before=third, limit=2)]
    assert len(before) == 2
    return found, before


@matches_memory(list(WAYS), ["redis"], ["sync"])
async def test_streams_match_memory(run: Run) -> Any:
    chat = run.chat(steps("a", "ask", stop_at="ask"))
    found = [[list(chunk) for chunk in await chat.stream(said("in"), stream_mode=["updates", "values"])]]
    found.append([list(chunk) for chunk in await chat.stream(Command(resume="yes"), stream_mode=["updates", "values"])])
    return [str(found).count("__interrupt__"), found[1]]


# -- interrupts


@matches_memory(list(WAYS), SERVERS, DURABILITIES)
async def test_interrupts_can_be_answered_through_other_instances(run: Run) -> Any:
    """One node asks twice, and each answer comes through another saver instance."""
    entered = Counter[str]()

    def ask(state: Any) -> Any:
        entered["ask"] += 1
        first = interrupt("first?", response_schema={"type": "string"})
        return {"log": [first, interrupt(f"second, after {first}?")]}

    builder = steps("before", then={"ask": ask})
    found = [await run.chat(builder).invoke(said("in"))]
    found.append(await run.chat(builder, saver=run.make()).history())
    found.append(await run.chat(builder, saver=run.make()).invoke(Command(resume="one")))
    found.append(await run.chat(builder, saver=run.make()).history())
    found.append(await run.chat(builder, saver=run.make()).invoke(Command(resume="two")))
    assert found[-1]["log"] == ["in", "before", "one", "two"]
    assert entered["ask"] == 3
    return plain(found), await run.chat(builder).history()


def plain(found: Any) -> Any:
    """Replace interrupts in answers of `invoke` by their sorted values, as ids and order differ in each run."""
    if isinstance(found, list):
        return [plain(one) for one in found]
    if isinstance(found, dict) and "__interrupt__" in found:
        return {**found, "__interrupt__": sorted(one.value for one in found["__interrupt__"])}
    return found


def ask_three() -> Any:
    """Three nodes in one step: two ask, one only works."""
    builder = StateGraph(Log)
    for name in ("red", "green"):
        builder.add_node(name, lambda state, name=name: {"log": [f"{name}={interrupt(name)}"]})
    builder.add_node("worker", lambda state: {"log": ["worked"]})
    builder.add_node("after", lambda state: {"log": ["after"]})
    for name in ("red", "green", "worker"):
        builder.add_edge(START, name)
    builder.add_edge(["red", "green", "worker"], "after")
    return builder


@matches_memory(list(WAYS), SERVERS, DURABILITIES)
async def test_several_interrupts_in_one_step_match_memory(run: Run) -> Any:
    chat = run.chat(ask_three())
    found = [await chat.invoke(said("in"))]
    assert sorted(one.value for one in found[0]["__interrupt__"]) == ["green", "red"]
    with pytest.raises(RuntimeError, match="multiple pending interrupts"):
        await chat.invoke(Command(resume="for whom?"))
    found.append(await chat.invoke(await chat.resume_map({"green": 1})))
    states = [seen(await chat.state())]
    found.append(await chat.invoke(await chat.resume_map({"red": 2})))
    assert found[-1]["log"] == ["in", "green=1", "red=2", "worked", "after"]

    both = run.chat(ask_three(), "both at once")
    await both.invoke(said("in"))
    found.append(await both.invoke(await both.resume_map({"green": 1, "red": 2})))
    assert found[-1] == found[-2]
    return plain(found), states, await chat.history(), await both.history()


@matches_memory(NATIVE, SERVERS, DURABILITIES)
async def test_unanswered_interrupts_match_memory(run: Run) -> Any:
    """Covers new input instead of an answer, an answer with an update and a goto, and static breakpoints."""
    chat = run.chat(steps("a", "ask", "b", stop_at="ask"))
    found = [await chat.invoke(said("in")), await chat.invoke(said("never mind"))]
    found.append(await chat.invoke(Command(resume="ok", update={"last": "updated"})))
    found.append(await chat.invoke(Command(goto="b", update=said("jump"))))
    stopping = run.chat(steps("a", "b", "c"), "breakpoints", interrupt_before=["b"], interrupt_after=["b"])
    for given in (said("in"), None, None):
        found.append(await stopping.invoke(given))
        found.append((await stopping.state()).next)
    assert [found[5], found[7], found[9]] == [("b",), ("c",), ()]
    return plain(found), await chat.history(), await stopping.history()


# -- many tasks in one step


@contextmanager
def taken_in() -> Iterator[set[str]]:
    """Collect the log entries of tasks that LangGraph's loops have accepted."""
    found, works = set[str](), PregelLoop.put_writes

    def noted(loop: Any, task_id: str, writes: Any, **options: Any) -> None:
        works(loop, task_id, writes, **options)
        found.update(one for channel, value in writes if channel == "log" for one in value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PregelLoop, "put_writes", noted)
        yield found


def fan_out(size: int, ran: Counter[Any], healthy: threading.Event, taken: set[str]) -> Any:
    """Send one task per number. The last one waits until all others are accepted, then fails until `healthy` is set."""

    def work(given: Any) -> Any:
        number = given["number"]
        ran[number] += 1
        if number == size - 1 and not healthy.is_set():
            for _ in range(6000):
                if len(taken & {f"{one:02}" for one in range(size - 1)}) == size - 1:
                    break
                time.sleep(0.01)
            raise ValueError("the last one fails")
        return {"log": [f"{number:02}"]}

    builder: Any = StateGraph(Log)
    builder.add_node("plan", lambda state: {"log": ["plan"]})
    builder.add_node("work", work)
    builder.add_node("sum", lambda state: {"last": ",".join(state["log"])})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", {"number": n}) for n in range(size)], ["work"])
    builder.add_edge("work", "sum")
    return builder


@matches_memory(list(WAYS), [*SERVERS, "cluster", "fakeredis"], DURABILITIES)
async def test_only_the_failed_task_of_fifty_runs_again(run: Run) -> Any:
    ran, healthy = Counter[Any](), threading.Event()
    with taken_in() as taken, pytest.raises(ValueError, match="the last one fails"):
        chat = run.chat(fan_out(50, ran, healthy, taken))
        await chat.invoke(said("in"))
    assert ran == Counter(range(50))
    failed = seen(await chat.state())
    assert len([one for one in failed["tasks"] if one[1]]) == 1
    healthy.set()
    again = Run(run.make, run.how, run.durability)
    result = await again.chat(fan_out(50, ran, healthy, taken)).invoke(None)
    assert ran == Counter([*range(50), 49]), "only the failed task ran again"
    assert result["log"] == ["in", "plan", *(f"{n:02}" for n in range(50))]
    return failed, result, await chat.history()


@matches_memory(["sync", "async-in-thread"], SERVERS, DURABILITIES)
async def test_the_functional_api_matches_memory(run: Run) -> Any:
    """Finished tasks of the functional API do not run again, and `previous` is the saved value."""
    ran = Counter[Any]()

    @task
    def double(number: int) -> int:
        ran[number] += 1
        return 2 * number

    @entrypoint(checkpointer=run.saver)
    def flow(numbers: list[int], *, previous: Any = None) -> Any:
        doubled = [one.result() for one in [double(number) for number in numbers]]
        name = interrupt("name?")
        return entrypoint.final(value=(name, doubled, previous), save=[*(previous or []), *doubled])

    chat = Chat(run, flow, "thread")
    found = []
    for turn in range(2):
        await chat.invoke([turn, turn + 10])
        found.append(await chat.invoke(Command(resume=f"turn {turn}")))
    assert found == [("turn 0", [0, 20], None), ("turn 1", [2, 22], [0, 20])]
    assert ran == Counter([0, 10, 1, 11])
    return found, await chat.history()


# -- subgraphs


def with_child(child: Any) -> Any:
    return sequence(Log, first=lambda state: {"log": ["first"]}, child=child, last=lambda state: {"log": ["last"]})


class Inner(TypedDict):
    """State in which `inner` is the child's own and `last` is shared."""

    inner: Annotated[list[str], operator.add]
    last: str


def child_graph(ran: Counter[str]) -> Any:
    """Make a child graph with a child that asks."""

    def note(name: str) -> Any:
        def act(state: Any) -> Any:
            ran[name] += 1
            return {"inner": [name], "last": name}

        return act

    def ask(state: Any) -> Any:
        return {"inner": [interrupt("deep?")], "last": "asked"}

    deep = sequence(Inner, note=note("deep"), ask=ask)
    return sequence(Inner, note=note("middle"), deep=deep.compile())


@matches_memory(list(WAYS), SERVERS, DURABILITIES)
async def test_interrupts_in_subgraphs_match_memory(run: Run) -> Any:
    ran = Counter[str]()
    chat = run.chat(with_child(child_graph(ran).compile()))
    found = []
    for turn in range(2):
        found.append(await chat.invoke(said(f"turn {turn}")))
        state = await chat.state(subgraphs=True)
        found.append(seen(state))
        deepest = state.tasks[0].state.tasks[0].state  # type: ignore[union-attr]
        assert isinstance(deepest, StateSnapshot)
        assert deepest.values["inner"] == ["middle", "deep"]
        found.append(seen(await chat.state(deepest.config)))
        found.append([seen(one) for one in await chat.states(deepest.config)])
        again = run.chat(with_child(child_graph(ran).compile()), saver=run.make())
        found.append(await again.invoke(Command(resume=f"answer {turn}")))
    assert found[-1]["log"] == ["turn 0", "first", "last", "turn 1", "first", "last"]
    assert ran == {"middle": 2, "deep": 2}
    return plain(found), await chat.history()


@matches_memory(NATIVE, SERVERS, DURABILITIES)
async def test_a_subgraph_can_keep_its_own_state(run: Run) -> Any:
    """A subgraph with checkpointer=True keeps its state between turns, in its own namespace."""
    child = sequence(Inner, count=lambda state: {"inner": ["x"], "last": f"{len(state.get('inner', [])) + 1} calls"})
    chat = run.chat(with_child(child.compile(checkpointer=True)))
    other = run.chat(with_child(child.compile(checkpointer=True)), "other")
    found = [await chat.invoke(said(f"turn {turn}")) for turn in range(3)] + [await other.invoke(said("alone"))]
    assert [one["last"] for one in found] == ["1 calls", "2 calls", "3 calls", "1 calls"]
    own: Any = {"configurable": {"thread_id": "thread", "checkpoint_ns": "child"}}
    if run.how == "awaited":
        stored = [one async for one in run.saver.alist(own)]
    else:
        stored = await asyncio.to_thread(lambda: list(run.saver.list(own)))
    assert stored[0].checkpoint["channel_values"]["inner"] == ["x"] * 3
    assert {one.config["configurable"]["checkpoint_ns"] for one in stored} == {"child"}
    about = [(one.metadata["source"], one.metadata["step"], one.checkpoint["channel_values"]) for one in stored]
    return found, about, await chat.history()


@matches_memory(list(WAYS), SERVERS, ["async"])
async def test_a_node_can_call_another_graph(run: Run) -> Any:
    """A node calls another graph itself. With `graph.ainvoke`, LangGraph runs the node in an OS thread."""
    inner = steps("x", "ask", stop_at="ask").compile()

    def call(state: Any) -> Any:
        return {"log": inner.invoke({"log": ["inner"], "last": state["last"]})["log"]}

    chat = run.chat(steps("a", then={"call": call}))
    found = [
        await chat.invoke(said("in")),
        seen(await chat.state(subgraphs=True)),
        await chat.invoke(Command(resume="yes")),
    ]
    assert found[-1] == {"log": ["in", "a", "inner", "x", "ask:yes"], "last": "a"}
    return plain(found), await chat.history()


@matches_memory(NATIVE, SERVERS, ["sync", "async"])
async def test_time_travel_in_subgraphs_matches_memory(run: Run) -> Any:
    """Covers time travel to a checkpoint before the child ran, and to one inside the child."""
    ran = Counter[str]()
    chat = run.chat(with_child(child_graph(ran).compile()))
    await chat.invoke(said("in"))
    inside = (await chat.state(subgraphs=True)).tasks[0].state
    assert isinstance(inside, StateSnapshot)
    found = [await chat.invoke(Command(resume="one"))]
    before_child = next(one for one in await chat.states() if one.next == ("child",))
    found.append(await chat.invoke(None, before_child.config))
    found.append(await chat.invoke(Command(resume="two")))
    found.append(await chat.invoke(None, inside.config))
    found.append(await chat.invoke(Command(resume="three")))
    return plain(found), dict(ran), await chat.history()


# -- time travel


@matches_memory(list(WAYS), [*SERVERS, "fakeredis", "cluster"], ["sync", "async"])
async def test_time_travel_leaves_old_branches_unchanged(run: Run) -> Any:
    """Covers a replay, other input and an update, all from one old checkpoint. Old branches stay as they were."""
    chat = run.chat(steps("a", "b", "c"))
    await chat.invoke(said("one"))
    await chat.invoke(said("two"))
    untouched = await chat.by_id()
    states = await chat.states()
    found = []
    middle = next(one for one in states if one.next == ("b",))
    found.append(await chat.invoke(None, middle.config))
    end_of_first = next(one for one in states if one.next == () and one.values["log"] == ["one", "a", "b", "c"])
    found.append(await chat.invoke(said("other two"), end_of_first.config))
    forked = await chat.update(said("put in"), middle.config, as_node="a")
    found.append(await chat.invoke(None, forked))
    found.append(await chat.invoke(said("after")))
    assert found[1]["log"] == ["one", "a", "b", "c", "other two", "a", "b", "c"]
    assert found[2]["log"] == [*middle.values["log"], "put in", "b", "c"]
    assert found[3]["log"] == [*found[2]["log"], "after", "a", "b", "c"]
    now = await chat.by_id()
    assert {key: now[key] for key in untouched} == untouched, "an old branch changed"
    assert len(now) > len(untouched)
    return found, await chat.history()


@matches_memory(list(WAYS), SERVERS, ["async"])
async def test_state_updates_match_memory(run: Run) -> Any:
    chat = run.chat(steps("a", "b", "c"))
    await chat.update(said("by hand"), as_node="a")
    found = [seen(await chat.state()), await chat.invoke(None)]
    await chat.update({"last": "no node"})
    found.append(seen(await chat.state()))
    await chat.update(None, as_node=END)
    found.append(seen(await chat.state()))
    await chat.update(None, as_node="__copy__")
    found.append(seen(await chat.state()))
    bulk = [("in bulk", "__input__"), ("started", START), ("in place of a", "a")]
    await chat.bulk_update([[StateUpdate(said(text), node)] for text, node in bulk])
    found.append(seen(await chat.state()))
    found.append(await chat.invoke(None))
    assert found[-1]["log"] == ["by hand", "b", "c", "started", "in place of a", "b", "c"]

    wide = run.chat(ask_three(), "wide")
    first, second = (
        [StateUpdate(said("in"), START)],
        [StateUpdate(said(name), name) for name in ("red", "green", "worker")],
    )
    await wide.bulk_update([first, second])
    found.append(seen(await wide.state()))
    found.append(await wide.invoke(None))
    assert sorted(found[-1]["log"]) == ["after", "green", "in", "red", "worker"]
    return found, await chat.history(), await wide.history()


@matches_memory(NATIVE, SERVERS, DURABILITIES)
async def test_an_interrupt_can_be_answered_again_from_its_checkpoint(run: Run) -> Any:
    """Answer an interrupt, then answer it differently from the same old checkpoint."""
    chat = run.chat(steps("a", "ask", "b", stop_at="ask"))
    await chat.invoke(said("in"))
    waiting = await chat.state()
    found = [await chat.invoke(Command(resume="yes"))]
    found.append(await chat.invoke(None, waiting.config))
    found.append(await chat.invoke(Command(resume="no")))
    assert [one["log"][2] for one in found if len(one["log"]) == 4] == ["ask:yes", "ask:no"]
    found.append(await chat.invoke(Command(resume="maybe"), waiting.config))
    found.append(await chat.invoke(Command(update=said("put in"), resume="maybe"), waiting.config))
    return plain(found), await chat.history()


# -- DeltaChannel


def extend(state: list[str], writes: Any) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


def merge(state: dict[str, int], writes: Any) -> dict[str, int]:
    merged = dict(state)
    for write in writes:
        merged.update(write)
    return merged


def delta_log(frequency: int, other: int = 4) -> Any:
    """Return a state with two delta channels that take snapshots at different times, and an ordinary channel."""
    log: Any = DeltaChannel(extend, snapshot_frequency=frequency)
    notes: Any = DeltaChannel(merge, snapshot_frequency=other)
    fields: Any = {"log": Annotated[list[str], log], "notes": Annotated[dict[str, int], notes], "last": str}
    return TypedDict("DeltaLog", fields)  # type: ignore[operator]


class NotedLog(Log):
    """State with the same fields in ordinary channels."""

    notes: Annotated[dict[str, int], operator.or_]


def delta_steps(frequency: int, stop_at: str = "") -> Any:
    """Make a chain of three steps; the last one notes the length of the log."""

    def note(state: Any) -> Any:
        return {"notes": {str(len(state["log"])): len(state["notes"])}}

    return steps("a", "b", stop_at=stop_at, schema=delta_log(frequency), then={"c": note})


async def delta_run(run: Run, frequency: int) -> Any:
    """Covers a long run, each old state, a fork in the middle, updates, an Overwrite, and an interrupt."""
    chat = run.chat(delta_steps(frequency, stop_at="b"))
    found: list[Any] = []
    for turn in range(5):
        await chat.invoke(said(f"in {turn}"))
        again = run.chat(delta_steps(frequency, stop_at="b"), saver=run.make())
        found.append(await again.invoke(Command(resume=str(turn))))
    expected = [word for turn in range(5) for word in (f"in {turn}", "a", f"b:{turn}")]
    assert found[-1]["log"] == expected
    assert len(found[-1]["notes"]) == 5
    before = await chat.by_id()
    assert all(
        one["values"]["log"] == expected[: len(one["values"]["log"])] for one in before.values() if one["values"]
    )

    old = next(one for one in await chat.states() if one.next == () and len(one.values["log"]) == 12)
    found.append(await chat.invoke(said("fork"), old.config))
    found.append(await chat.invoke(Command(resume="forked")))
    assert found[-1]["log"] == [*expected[:12], "fork", "a", "b:forked"]
    await chat.update(said("by hand"), as_node="b")
    found.append(await chat.invoke(None))
    await chat.update({"log": Overwrite(["fresh"])}, as_node="a")
    found.append(await chat.invoke(None))
    found.append(await chat.invoke(Command(resume="over")))
    assert found[-1]["log"] == ["fresh", "b:over"]
    now = await chat.by_id()
    assert {key: now[key] for key in before} == before, "an old branch changed"
    return plain(found), await chat.history()


@pytest.mark.parametrize("frequency", [1, 1000])
@everywhere(NATIVE, ["redis"], DURABILITIES)
async def test_delta_channels_match_memory(play: Any, at: Any, frequency: int) -> None:
    await same(lambda run: delta_run(run, frequency), await play(*at))


@matches_memory(list(WAYS), [*SERVERS, "fakeredis", "cluster"], DURABILITIES)
async def test_delta_channels_match_memory_on_every_server(run: Run) -> Any:
    return await delta_run(run, 3)


@everywhere(["async"], ["redis"], ["exit"])
async def test_a_delta_history_longer_than_a_page_is_complete(play: Any, at: Any) -> None:
    """210 checkpoints without a snapshot are read in pages."""
    run = await play(*at)
    chat = run.chat(steps("a", schema=delta_log(1000)))
    for turn in range(210):
        await chat.invoke(said(f"in {turn}"))
    words = [word for turn in range(210) for word in (f"in {turn}", "a")]
    assert (await chat.state()).values["log"] == words
    states = await chat.states(limit=10)
    assert [one.values["log"] for one in states] == [words[: 420 - 2 * back] for back in range(10)]


@matches_memory(NATIVE, SERVERS, DURABILITIES)
async def test_a_delta_channel_keeps_the_order_of_parallel_tasks(run: Run) -> Any:
    """Parallel tasks write one delta channel, which is rebuilt in the order of the tasks."""
    builder = StateGraph(delta_log(1000))
    builder.add_node("work", lambda given: {"log": [f"{given['number']:02}"]})
    builder.add_node("end", lambda state: {"last": ",".join(state["log"])})
    builder.add_conditional_edges(START, lambda state: [Send("work", {"number": n}) for n in range(20)], ["work"])
    builder.add_edge("work", "end")
    chat = run.chat(builder)
    found = [await chat.invoke(said(f"in {turn}")) for turn in range(2)]
    words = [word for turn in range(2) for word in (f"in {turn}", *(f"{n:02}" for n in range(20)))]
    assert found[-1]["log"] == words
    assert (await chat.state()).values == {"log": words, "notes": {}, "last": ",".join(words)}
    return found, await chat.history()


# -- prune


async def pruned_copies(run: Run, frequency: int, keep_last: int | None) -> AsyncIterator[Any]:
    """Prune a copy of a thread after each of its turns. Yields the copy, its states before, and its states after."""
    chat, copy = run.chat(delta_steps(frequency)), run.chat(delta_steps(frequency), "copy")
    for turn in range(6):
        await chat.invoke(said(f"in {turn}"))
        await run.uniform.copy_thread("thread", "copy")
        before = await copy.by_id()
        pruned = await run.uniform.prune(["copy"], keep_last=keep_last)
        after = await copy.by_id()
        assert len(after) == len(before) - pruned.checkpoints
        yield copy, before, after


@pytest.mark.parametrize("frequency", [4, 7, 1000])
@pytest.mark.parametrize("keep_last", [None, 2])
@everywhere(NATIVE, ["redis"], ["async", "exit"])
async def test_prune_leaves_states_intact(play: Any, at: Any, frequency: int, keep_last: int | None) -> None:
    """All states that are left are intact, also those beyond `keep_last` and with snapshots at different times.

    The pruned thread also continues as if nothing had happened.
    """
    run = await play(*at)
    removed = 0
    async for copy, before, after in pruned_copies(run, frequency, keep_last):
        newest = sorted(before)[-(keep_last or 1) :]
        assert after.keys() >= {*newest}
        assert after == {one: before[one] for one in after}
        removed += len(before) - len(after)
    log = after[newest[-1]]["values"]["log"]
    for turn in range(3):
        await copy.invoke(said(f"then {turn}"))
        log = [*log, f"then {turn}", "a", "b"]
        await run.uniform.prune(["copy"], keep_last=keep_last)
        state = await copy.state()
        assert (state.values["log"], len(state.values["notes"])) == (log, len(log) // 3)
    assert removed or frequency > 4, "prune removed nothing"


@everywhere(NATIVE, ["redis62", "cluster", "fakeredis"], ["sync"])
async def test_prune_of_a_forked_thread_keeps_states_intact(play: Any, at: Any) -> None:
    """Covers ordinary channels and delta channels."""
    run = await play(*at)
    for name, builder in (("plain", steps("a", "b")), ("delta", delta_steps(1000))):
        chat = run.chat(builder, name)
        for turn in range(3):
            await chat.invoke(said(f"in {turn}"))
        tip = await chat.state()
        old = [one for one in await chat.states() if one.next == ()][1]
        await chat.invoke(said("fork"), old.config)
        before = await chat.by_id()
        await run.uniform.prune([name], keep_last=5)
        after = await chat.by_id()
        assert sorted(before)[-5:] == sorted(after)[-5:]
        assert after == {one: before[one] for one in after}
        await run.uniform.prune([name])
        assert (await chat.state()).values["log"] == ["in 0", "a", "b", "in 1", "a", "b", "fork", "a", "b"]
        assert tip.values["log"][-3:] == ["in 2", "a", "b"]
        assert (await chat.invoke(said("on")))["log"][-4:] == ["b", "on", "a", "b"]


@everywhere(NATIVE, SERVERS, DURABILITIES)
async def test_prune_keeps_pending_interrupts(play: Any, at: Any) -> None:
    """After prune, an answer finds the interrupt, and no finished task runs again."""
    run, ran, removed = await play(*at), Counter[str](), 0

    def busy(name: str) -> Any:
        def act(state: Any) -> Any:
            ran[name] += 1
            return {"log": [name], "notes": {name: 1}}

        return act

    def ask(state: Any) -> Any:
        return {"log": [interrupt("go on?")]}

    schemas = {"plain": NotedLog, "often": delta_log(2), "seldom": delta_log(1000)}
    for thread, schema in schemas.items():
        ran.clear()
        builder: Any = StateGraph(schema)
        for name, node in {"one": busy("one"), "two": busy("two"), "ask": ask}.items():
            builder.add_node(name, node).add_edge(START, name)
        chat = run.chat(builder, thread)
        for turn in range(3):
            await chat.invoke(said(f"in {turn}"))
            before = seen(await chat.state())
            removed += (await run.uniform.prune([thread])).checkpoints
            assert seen(await chat.state()) == before
            assert before["interrupts"] == [("go on?", None)]
            result = await run.chat(builder, thread, run.make()).invoke(Command(resume="yes"))
            assert ran == {"one": turn + 1, "two": turn + 1}
        assert result["log"] == [word for turn in range(3) for word in (f"in {turn}", "yes", "one", "two")]
    assert removed, "prune removed nothing"


@everywhere(NATIVE, SERVERS, DURABILITIES)
async def test_prune_keeps_pending_interrupts_in_subgraphs(play: Any, at: Any) -> None:
    run, ran = await play(*at), Counter[str]()
    chat = run.chat(with_child(child_graph(ran).compile()))
    for turn in range(2):
        await chat.invoke(said("in"))
        before = seen(await chat.state(subgraphs=True))
        removed = (await run.uniform.prune(["thread"])).checkpoints
        assert removed or not turn, "prune removed nothing"
        assert seen(await chat.state(subgraphs=True)) == before
        result = await chat.invoke(Command(resume="go"))
        assert ran == {"middle": turn + 1, "deep": turn + 1}
    assert result["log"] == ["in", "first", "last"] * 2


# -- copies


@everywhere(NATIVE, [*SERVERS, "cluster", "fakeredis"], ["async"])
async def test_a_copied_thread_is_independent(play: Any, at: Any) -> None:
    run = await play(*at)
    builders = {
        "plain": steps("a", "b", stop_at="b"),
        "delta": delta_steps(1000, stop_at="b"),
        "often": delta_steps(2, stop_at="b"),
    }
    for name, builder in builders.items():
        original, copy = run.chat(builder, name), run.chat(builder, f"{name} copy")
        await original.invoke(said("in"))
        await original.invoke(Command(resume="yes"))
        await original.invoke(said("both"))
        await run.uniform.copy_thread(name, f"{name} copy")
        frozen = await original.by_id()
        assert await copy.by_id() == frozen
        assert (await copy.state()).config["configurable"]["thread_id"] == f"{name} copy"

        common = ["in", "a", "b:yes", "both", "a"]
        assert (await copy.invoke(Command(resume="copy")))["log"] == [*common, "b:copy"]
        assert await original.by_id() == frozen, "the copy disturbs the original"
        assert (await original.invoke(Command(resume="original")))["log"] == [*common, "b:original"]
        await original.invoke(said("more"))
        await run.uniform.delete_thread(name)
        states = await copy.by_id()
        assert {one: states[one]["values"] for one in frozen} == {one: frozen[one]["values"] for one in frozen}
        assert (await copy.invoke(said("on")))["log"] == [*common, "b:copy", "on", "a"]


@everywhere(NATIVE, SERVERS, ["async"])
async def test_a_copied_thread_keeps_its_subgraphs(play: Any, at: Any) -> None:
    run, ran = await play(*at), Counter[str]()
    original = run.chat(with_child(child_graph(ran).compile()))
    await original.invoke(said("in"))
    await run.uniform.copy_thread("thread", "copy")
    copy = run.chat(with_child(child_graph(ran).compile()), "copy")
    assert seen(await copy.state(subgraphs=True)) == seen(await original.state(subgraphs=True))
    assert (await copy.invoke(Command(resume="go")))["log"] == ["in", "first", "last"]
    assert ran == {"middle": 1, "deep": 1}
    assert (await original.state()).interrupts[0].value == "deep?"


# -- threads that go away


def expire(target: Target) -> None:
    for key in target.keys():
        target.raw.pexpire(key, 1)
    time.sleep(0.02)


@everywhere(NATIVE, [*SERVERS, "cluster", "fakeredis"], ["async"])
async def test_an_expired_thread_starts_again_empty(play: Any, at: Any) -> None:
    """The TTL is the saver's, or the thread's own."""
    ttl = timedelta(hours=1)
    builders = [steps("a"), steps("a", "ask", stop_at="ask"), steps("a", schema=delta_log(100))]
    by_saver, by_thread = await play(*at, ttl=ttl), await play(*at)
    chats = [by_saver.chat(builder, str(number)) for number, builder in enumerate(builders)]
    for number, builder in enumerate(builders):
        chats.append(by_thread.chat(builder, str(number)))
        chats[-1].config["configurable"]["thread_ttl"] = ttl
    for chat in chats:
        await chat.invoke(said("lost"))
        assert (await chat.state()).values["log"] == ["lost", "a"]
    for target in (by_saver.target, by_thread.target):
        assert all(0 < target.raw.pttl(key) <= 3_600_000 for key in target.keys())
        expire(target)
    for chat in chats:
        gone = await chat.state()
        assert (gone.values, gone.next, gone.metadata, gone.tasks) == ({}, (), None, ())
        assert await chat.states() == []
        assert (await chat.invoke(said("fresh")))["log"] == ["fresh", "a"]
        states = await chat.states()
        assert states[-1].parent_config is None
        assert all("lost" not in one.values.get("log", []) for one in states)


@everywhere(NATIVE, ["redis"], DURABILITIES)
async def test_delete_for_runs_rolls_back_all_threads_of_the_run(play: Any, at: Any) -> None:
    """The threads can continue afterwards."""
    run = await play(*at)
    for name, builder in (("plain", steps("a", "b")), ("delta", delta_steps(1000)), ("often", delta_steps(2))):
        chats = [run.chat(builder, f"{name} {number}") for number in range(2)]
        before = []
        for chat in chats:
            for turn in range(2):
                await chat.invoke(said(f"in {turn}"), {**chat.config, "metadata": {"run_id": f"run {turn}"}})
            before.append(await chat.by_id())
            await chat.invoke(said("wrong"), {**chat.config, "metadata": {"run_id": "run *"}})
            assert (await chat.state()).values["log"][6:] == ["wrong", "a", "b"]
        await run.uniform.delete_for_runs(["run *"])
        for chat, states in zip(chats, before, strict=True):
            assert {key: one["values"] for key, one in (await chat.by_id()).items()} == {
                key: one["values"] for key, one in states.items()
            }
            assert (await chat.invoke(said("right")))["log"] == ["in 0", "a", "b", "in 1", "a", "b", "right", "a", "b"]
            assert (await chat.state()).values["log"][6:] == ["right", "a", "b"]


@pytest.mark.parametrize("goes", ["deleted", "expired"])
@everywhere(NATIVE, ["redis"], DURABILITIES)
async def test_a_run_stores_its_whole_state_after_the_thread_vanished(play: Any, at: Any, goes: str) -> None:
    """The thread is deleted, or expires."""
    run = await play(*at, ttl=timedelta(hours=1))
    other = RedisSaver(run.target.raw, prefix=run.target.prefix)
    gone = []

    def saved() -> Any:
        found = other.get_tuple({"configurable": {"thread_id": "thread"}})
        return found and found.checkpoint["channel_values"]["log"]

    def vanish(state: Any) -> Any:
        if "second" in state["log"]:
            while run.durability != "exit" and saved() != state["log"]:
                time.sleep(0.01)  # the last checkpoint is still in flight
            if goes == "deleted":
                other.delete_thread("thread")
            else:
                expire(run.target)
            gone.append(saved())
        return {"log": ["v"]}

    chat = run.chat(steps("a", "b", then={"vanish": vanish, "c": lambda state: {"log": ["c"]}}))
    await chat.invoke({"log": ["first"], "last": "x"})
    result = await chat.invoke(said("second"))
    state = await chat.state()
    assert gone == [None], "the thread was there all the time"
    assert result == {"log": ["first", "a", "b", "v", "c", "second", "a", "b", "v", "c"], "last": "b"}
    assert (state.values, state.next) == (result, ())
    assert other.get_thread_ttl("thread") > timedelta(minutes=59)
    assert (await chat.invoke(said("third")))["log"] == [*result["log"], "third", "a", "b", "v", "c"]


# -- the wrong thread


@pytest.mark.timeout(120)
@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="LangGraph has no interrupt() in asyncio tasks before Python 3.11"
)
@pytest.mark.parametrize("server", ["redis", "cluster"])
async def test_blocking_calls_on_the_event_loop_raise(play: Any, server: str) -> None:
    """Without the error, graph.invoke on an AsyncRedisSaver would deadlock on the loop's OS thread."""
    run = await play(server, "async")
    chat = run.chat(steps("a", "ask", stop_at="ask"))
    await chat.invoke(said("in"))
    calls: list[Callable[[], Any]] = [
        lambda: chat.graph.invoke(said("again"), chat.config),
        lambda: chat.graph.invoke(Command(resume="yes"), chat.config),
        lambda: list(chat.graph.stream(said("again"), chat.config)),
        lambda: chat.graph.get_state(chat.config),
        lambda: list(chat.graph.get_state_history(chat.config)),
        lambda: chat.graph.update_state(chat.config, said("by hand")),
    ]
    for call in calls:
        start = time.monotonic()
        with pytest.raises(CalledOnEventLoop, match="asyncio.to_thread"):
            call()
        assert time.monotonic() - start < 20
    assert (await chat.invoke(Command(resume="yes")))["log"] == ["in", "a", "ask:yes"]
