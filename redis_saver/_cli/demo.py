"""The demo: an agent with a scripted model chats, stops for a human, resumes in a new worker, forks, and remembers."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from threading import Lock
from typing import Any, TypeAlias

from langchain_core.language_models.fake_chat_models import FakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.config import get_config, get_store
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.store.base import BaseStore
from langgraph.types import Command, StateSnapshot, interrupt
from rich.console import Console
from rich.text import Text

from redis_saver._checkpoint.saver import RedisSaver
from redis_saver._client.clients import connect
from redis_saver._client.urls import without_login
from redis_saver._common import times
from redis_saver._inspector.rows import lanes
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import left
from redis_saver._store.store import RedisStore

_Agent: TypeAlias = Any
"""A compiled graph. Its type is unknown without the extra."""
FLIGHTS = {"Lisbon": {"TP 531": 189, "LH 1166": 240}, "Split": {"OU 411": 132}}
_BRANCHES = {"├": "blue", "│": "blue", "└": "magenta", " ": "magenta"}
STYLES = {"you": "cyan", "agent": "green", "tool": "blue", "waits": "yellow", "human": "yellow"}
STORY = """\
1  An agent chats: each step becomes a checkpoint
Thread {thread} on {server}. Only the model is scripted.
"bytes" is what each adds to the thread: header, changed values, writes.

2  A booking needs a human: the agent stops
interrupt() ends the run. The question is stored, so no process has to wait.

3  The worker is gone: a new one resumes
Client, saver and graph are gone, and a second has passed. New ones find this:

4  Back in time: a fork
Another wish, sent to the checkpoint before the booking. Both branches stay.

5  One thread: two keys, one deadline
The checkpoints take {bytes:,} bytes, without Redis's overhead. saver.threads():

6  Another thread: the agent remembers
The booking tool has put it into the store, which all threads share:"""
LAST_BOOKING = "last booking"
"""Key of the item that the agent remembers of a traveller."""


@tool
def find_flights(city: str) -> str:
    """Find Saturday's flights to a city."""
    return ", ".join(f"{flight} for {price} EUR" for flight, price in FLIGHTS[city].items())


@tool
def book_flight(flight: str) -> str:
    """Book a flight, once a human approves."""
    price = next(prices[flight] for prices in FLIGHTS.values() if flight in prices)
    answer = interrupt(f"Book {flight} for {price} EUR?")
    if answer == "yes":
        get_store().put(_memories(), LAST_BOOKING, {"flight": flight, "price": price})
    return f"{flight} is booked for {price} EUR" if answer == "yes" else f"not booked, the human said {answer!r}"


def _memories() -> tuple[str, str]:
    """Return the namespace of the current traveller's items."""
    return "travellers", get_config()["configurable"]["traveller"]


class ScriptedModel(FakeChatModel):
    """A chat model that answers by rules, so it answers the same after a resume or a fork."""

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        last, text, call = messages[-1], str(messages[-1].content), {}
        answer = f"{' and '.join(FLIGHTS)} are warm now. Where shall I look?"
        if isinstance(messages[0], SystemMessage):
            answer = f"Welcome back! {messages[0].content} {answer}"
        if isinstance(last, ToolMessage):
            answer = f"{text}. " + ("Shall I book?" if last.name == find_flights.name else "Have a good trip!")
        elif "book" in text.lower():
            offers = next(str(past.content) for past in reversed(messages) if isinstance(past, ToolMessage))
            call = {"name": book_flight.name, "args": {"flight": offers.partition(" for ")[0]}}
        elif city := next((city for city in FLIGHTS if city in text), None):
            call = {"name": find_flights.name, "args": {"city": city}}
        calls = [{**call, "id": f"call-{len(messages)}"}] if call else []
        return ChatResult(generations=[ChatGeneration(message=AIMessage("" if call else answer, tool_calls=calls))])


def build_agent(saver: RedisSaver, store: BaseStore) -> _Agent:
    """Build the usual graph of a tool-calling agent. Its model gets the traveller's last booking."""
    model = ScriptedModel()

    def call_model(state: MessagesState) -> dict[str, list[BaseMessage]]:
        known = get_store().get(_memories(), LAST_BOOKING)
        memory = [SystemMessage(f"Last time you booked {known.value['flight']}.")] if known else []
        return {"messages": [model.invoke([*memory, *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", call_model)
    graph.add_node("tools", ToolNode([find_flights, book_flight]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile(checkpointer=saver, store=store)


class MeasuredSaver(RedisSaver):
    """A saver that counts the bytes that each checkpoint adds to the thread, with its writes."""

    costs: Counter[str]
    lock: Lock = Lock()  # LangGraph writes from several threads

    def put(self, *args: Any, **kwargs: Any) -> RunnableConfig:
        """Measure `RedisSaver.put`."""
        with self.lock:
            return self._note(super().put(*args, **kwargs))

    def put_writes(self, config: RunnableConfig, writes: Any, task_id: str, task_path: str = "") -> None:
        """Measure `RedisSaver.put_writes`."""
        with self.lock:
            super().put_writes(config, writes, task_id, task_path)
            self._note(config)

    def _note(self, config: RunnableConfig) -> RunnableConfig:
        thread = self.get_thread(config["configurable"]["thread_id"])
        self.costs[config["configurable"]["checkpoint_id"]] += (thread.bytes if thread else 0) - self.costs.total()
        return config


class Demo:
    """The story, told on a console with a thread of its own."""

    def __init__(self, console: Console, url: str, ttl: timedelta) -> None:
        self.console: Console = console
        self.ttl: timedelta = ttl
        self.thread: str = f"demo-{uuid.uuid4().hex[:8]}"
        # without a name, each client would get a server of its own
        self.url: str = url if url != "memory://" else f"memory://{self.thread}"
        self.traveller: str = uuid.uuid4().hex[:8]
        self.config: RunnableConfig = {"configurable": {"thread_id": self.thread, "traveller": self.traveller}}
        self.sections: Iterator[str] = iter(STORY.split("\n\n"))
        self.printed: set[str] = set()
        self.drawn: set[str] = set()
        self.costs: Counter[str] = Counter()

    def run(self, *, keep: bool) -> None:
        """Tell the story, and delete the thread unless `keep` is set."""
        try:
            with self._worker() as (saver, agent):
                self._section(thread=self.thread, server=without_login(self.url))
                self._turn(agent, "Hi! I want to see the sea on Saturday.")
                self._turn(agent, "Which flights go to Lisbon?")
                self._draw(saver, agent)
                self._section()
                self._turn(agent, "Book the first one, please.")
                self._draw(saver, agent)
            del saver, agent
            time.sleep(1)  # only the thread is left, and its TTL runs
            with self._worker() as (saver, agent):
                self._section()
                self._status(saver)
                self._turn(agent, Command(resume="yes"))
                self._draw(saver, agent)
                self._section()
                ends = [past for past in agent.get_state_history(self.config) if not past.next]
                self._turn(agent, "And what about Split?", ends[1].config)
                self.drawn.clear()
                self._draw(saver, agent)
                self._section(bytes=sum(self.costs[here] for here in self.drawn))
                info = Source(saver).thread(self.thread)
                facts = {**info._asdict(), "ttl": info.ttl and times.shown(info.ttl)}
                facts["updated_at"] = info.updated_at and info.updated_at.isoformat()
                self.console.print("  ".join(f"{name}={value}" for name, value in facts.items()))
            self._section()
            self._another_thread()
        finally:
            if self.costs and not keep:
                with self._worker() as (saver, _):
                    saver.delete_thread(self.thread)
        self.console.print(f"\n{self._ending(kept=keep)}", soft_wrap=True)

    def _another_thread(self) -> None:
        """Let the traveller come back in a new thread. Then delete that thread and the traveller's items."""
        again: RunnableConfig = {"configurable": {"thread_id": f"{self.traveller}-again"}}
        with self._servers(RedisSaver) as (saver, store):
            for item in store.search(("travellers", self.traveller)):
                self.console.print(f"{item.namespace}  {item.key!r}: {item.value}")
            self._turn(build_agent(saver, store), "Hi! It's me again.", again)
            saver.delete_thread(f"{self.traveller}-again")
            store.delete_namespace(("travellers", self.traveller))

    @contextmanager
    def _servers(self, kind: type[RedisSaver]) -> Iterator[tuple[Any, RedisStore]]:
        url, ttl = self.url, self.ttl
        with kind.from_conn_string(url, ttl=ttl) as saver, RedisStore.from_conn_string(url, ttl=ttl) as store:
            yield saver, store

    @contextmanager
    def _worker(self) -> Iterator[tuple[MeasuredSaver, _Agent]]:
        """Open what a worker needs: clients, a saver, a store, a graph."""
        with self._servers(MeasuredSaver) as (saver, store):
            saver.setup()
            saver.costs = self.costs
            yield saver, build_agent(saver, store)

    def _section(self, **facts: Any) -> None:
        title, _, why = next(self.sections).format(**facts).partition("\n")
        self.console.print()
        self.console.rule(Text(title, "bold"), align="left", style="dim")
        self.console.print(why, style="dim")

    def _turn(self, agent: _Agent, text: str | Command[Any], start: RunnableConfig | None = None) -> None:
        """Run the agent, and show the new messages."""
        sent: Any = {"messages": [HumanMessage(text)]} if isinstance(text, str) else text
        configurable = {**self.config["configurable"], **(start or self.config)["configurable"]}
        result = agent.invoke(sent, {"configurable": configurable})
        rows = [] if isinstance(text, str) else [("human", text.resume)]
        rows += [_gist(message) for message in result["messages"] if message.id not in self.printed]
        rows += [("waits", f"for a human: {question.value}") for question in result.get("__interrupt__", ())]
        self.printed |= {message.id for message in result["messages"]}
        for speaker, message in rows:
            self.console.print(Text.assemble((f"{speaker:5}  ", f"bold {STYLES[speaker]}"), str(message)))

    def _draw(self, saver: RedisSaver, agent: _Agent) -> None:
        """Print the new checkpoints as a tree, and the state of the thread."""
        history: list[StateSnapshot] = list(agent.get_state_history(self.config))
        self.console.print()
        for line in self._tree(history):
            self.console.print(line, no_wrap=True, overflow="ellipsis")
        self.drawn |= {_id_of(snapshot.config) for snapshot in history}
        self._status(saver)

    def _tree(self, history: list[StateSnapshot]) -> Iterator[Text]:
        """Draw the checkpoints that were not drawn before, oldest first."""
        if not self.drawn:
            yield Text("checkpoint  step  source  next        bytes  last message", "dim")
        gists: dict[str, str] = {}
        rows = [(_id_of(each.config), _id_of(each.parent_config), each) for each in history]
        for lane, snapshot in lanes(rows):
            here, parent = _id_of(snapshot.config), _id_of(snapshot.parent_config)
            mark, style, gists[here] = _seen(snapshot)
            if here not in self.drawn:
                metadata: Any = snapshot.metadata or {}
                name = here[-6:].ljust(8 - len(lane))
                columns = f"  {metadata['step']:4}  {metadata['source']:6}  {', '.join(snapshot.next) or '-':9}"
                columns += f"  {self.costs[here]:6,}  "
                last = ('"', "dim") if gists.get(parent) == gists[here] else (gists[here], style)
                branch = style or _BRANCHES.get(lane[:1], "cyan")
                yield Text.assemble((lane, "dim"), (f"{mark} ", branch), name, columns, last)

    def _status(self, saver: RedisSaver) -> None:
        info = Source(saver).thread(self.thread)
        line = f"{info.checkpoints} checkpoints, {info.bytes:,} bytes, {self._keys()} keys, "
        line += "does not expire" if info.ttl is None else f"expires {left(info)}"
        self.console.print(f"{line}{', waits for a human' if info.interrupted else ''}", style="bold magenta")

    def _keys(self) -> int:
        """Count the server's keys with the thread's name."""
        with closing(connect(self.url, asynchronous=False)) as client:
            return sum(1 for _ in client.scan_iter(match=f"*{self.thread}*", count=1000))

    def _ending(self, *, kept: bool) -> str:
        """Return what happened to the thread, and how to look at it."""
        thread, is_embedded = self.thread, self.url.startswith("memory:")
        if not kept:
            return f"Deleted: {self._keys()} keys of {thread} are left.{'' if is_embedded else ' --keep keeps it.'}"
        if is_embedded:
            return f"The embedded server ends with this process, and so does {thread}. --redis redis://host keeps it."
        server = without_login(self.url)
        return (
            f"Kept: {thread}. What to do with it next:\n"
            f"  redis-saver check {thread} --redis {server}\n"
            f"  redis-cli -u {server} --scan --pattern '*{thread}*'\n"
            "Or in Python:\n"
            "  from redis_saver import RedisSaver\n\n"
            f"  with RedisSaver.from_conn_string({server!r}) as saver:\n"
            f'      for saved in saver.list({{"configurable": {{"thread_id": {thread!r}}}}}):\n'
            "          print(saved.metadata['step'], saved.metadata['source'], "
            "len(saved.checkpoint['channel_values'].get('messages', ())))"
        )


def _id_of(config: RunnableConfig | None) -> str:
    return config["configurable"]["checkpoint_id"] if config else ""


def _gist(message: Any) -> tuple[str, str]:
    """Return the speaker and the text of a message."""
    tool_calls = getattr(message, "tool_calls", ())
    calls = [f"{call['name']}({', '.join(map(str, call['args'].values()))})" for call in tool_calls]
    speaker = {"human": "you", "ai": "agent"}.get(message.type, message.type)
    return speaker, f"calls {', '.join(calls)}" if calls else str(message.content)


def _seen(snapshot: StateSnapshot) -> tuple[str, str, str]:
    """Return a checkpoint's mark, the mark's style, and its last message or its question to a human."""
    for task in snapshot.tasks:
        for question in task.interrupts:
            mark, style, verb = ("◆", "bold yellow", "waits") if task.result is None else ("◇", "yellow", "asked")
            return mark, style, f"{verb}: {question.value}"
    of_input = (snapshot.metadata or {}).get("source") == "input"
    state: Any = snapshot.tasks[0].result if of_input else snapshot.values
    return "●", "", ": ".join(_gist(state["messages"][-1])) if state else ""
