"""The demo: an agent with a scripted model chats, stops for a human, resumes in a new worker, forks, and remembers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
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
from langgraph.types import Command, interrupt
from rich.console import Console
from rich.text import Text

from redis_saver._checkpoint.saver import RedisSaver
from redis_saver._cli.looking import MARKS, STATES
from redis_saver._client.clients import connect
from redis_saver._client.urls import without_login
from redis_saver._common import times
from redis_saver._inspector.rows import PREVIEWED, text_tree, turns
from redis_saver._inspector.source import Source
from redis_saver._store.store import RedisStore

_Agent: TypeAlias = Any
"""A compiled graph. Its type is unknown without the extra."""
FLIGHTS = {"Lisbon": {"TP 531": 189, "LH 1166": 240}, "Split": {"OU 411": 132}}
_BRANCHES = {"├": "blue", "│": "blue", "└": "magenta", " ": "magenta"}
SPEAKERS = {"you": "cyan", "agent": "green", "tool": "blue", "waits": "yellow", "human": "yellow"}
STORY = """\
1  An agent chats: each step becomes a checkpoint
Thread {thread} on {server}. Only the model is scripted.
"says" is its new message, "bytes" the size of the writes that made it.

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
BEFORE_LIVE = """\
Before you go live, run your tests with RedisSaver(..., check_values="raise"):
it names the values that come back as something else, such as tuples."""
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
        self.is_begun: bool = False

    def run(self, *, keep: bool) -> None:
        """Tell the story, and delete the thread unless `keep` is set."""
        try:
            with self._worker() as (saver, agent):
                self._section(thread=self.thread, server=without_login(self.url))
                self._turn(agent, "Hi! I want to see the sea on Saturday.")
                self._turn(agent, "Which flights go to Lisbon?")
                self._draw(saver)
                self._section()
                self._turn(agent, "Book the first one, please.")
                self._draw(saver)
            del saver, agent
            time.sleep(1)  # only the thread is left, and its TTL runs
            with self._worker() as (saver, agent):
                self._section()
                self._status(saver)
                self._turn(agent, Command(resume="yes"))
                self._draw(saver)
                self._section()
                ends = [past for past in agent.get_state_history(self.config) if not past.next]
                self._turn(agent, "And what about Split?", ends[1].config)
                self.drawn.clear()
                self._draw(saver)
                info = Source(saver).thread(self.thread)
                self._section(bytes=info.bytes)
                facts = {**info._asdict(), "ttl": info.ttl and times.shown(info.ttl)}
                facts["updated_at"] = info.updated_at and info.updated_at.isoformat()
                self.console.print("  ".join(f"{name}={value}" for name, value in facts.items()))
            self._section()
            self._another_thread()
        finally:
            if self.is_begun and not keep:
                with self._worker() as (saver, _):
                    saver.delete_thread(self.thread)
        self.console.print(f"\n{self._ending(kept=keep)}", soft_wrap=True)
        self.console.print(BEFORE_LIVE, style="dim", soft_wrap=True)

    def _another_thread(self) -> None:
        """Let the traveller come back in a new thread. Then delete that thread and the traveller's items."""
        again: RunnableConfig = {"configurable": {"thread_id": f"{self.traveller}-again"}}
        with self._servers() as (saver, store):
            for item in store.search(("travellers", self.traveller)):
                self.console.print(f"{item.namespace}  {item.key!r}: {item.value}")
            self._turn(build_agent(saver, store), "Hi! It's me again.", again)
            saver.delete_thread(f"{self.traveller}-again")
            store.delete_namespace(("travellers", self.traveller))

    @contextmanager
    def _servers(self) -> Iterator[tuple[RedisSaver, RedisStore]]:
        url, ttl = self.url, self.ttl
        with RedisSaver.from_conn_string(url, ttl=ttl) as saver, RedisStore.from_conn_string(url, ttl=ttl) as store:
            yield saver, store

    @contextmanager
    def _worker(self) -> Iterator[tuple[RedisSaver, _Agent]]:
        """Open what a worker needs: clients, a saver, a store, a graph."""
        with self._servers() as (saver, store):
            saver.setup()
            self.is_begun = True
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
            self.console.print(Text.assemble((f"{speaker:5}  ", f"bold {SPEAKERS[speaker]}"), str(message)))

    def _draw(self, saver: RedisSaver) -> None:
        """Print the new checkpoints as a tree, and the state of the thread."""
        self.console.print()
        if not self.drawn:
            self.console.print("checkpoint  ran        next       bytes  says", style="dim")
        drawings = turns(Source(saver).entries(self.thread, None, None, 1000, longest=PREVIEWED))
        for lane, _, row in text_tree(drawings):
            if row.entry.id not in self.drawn:
                branch = STATES.get(row.state, "") or _BRANCHES.get(lane[:1], "cyan")
                columns = (
                    f"{', '.join(row.ran) or row.entry.source:9}  {', '.join(row.next) or '-':9}  {row.bytes:5,}  "
                )
                name = row.entry.id[-6:].ljust(8 - len(lane))
                mark, said = (f"{MARKS[row.state]} ", branch), (row.notice or row.preview, STATES.get(row.state, ""))
                line = Text.assemble((lane, "dim"), mark, f"{name}  ", columns, said)
                line.rstrip()
                self.console.print(line, no_wrap=True, overflow="ellipsis")
                self.drawn.add(row.entry.id)
        self._status(saver)

    def _status(self, saver: RedisSaver) -> None:
        info = Source(saver).thread(self.thread)
        line = f"{info.checkpoints} checkpoints, {info.bytes:,} bytes, {self._keys()} keys, "
        line += "does not expire" if info.ttl is None else f"expires {info.expires}"
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
            f"Kept: {thread}. What to try next:\n"
            f"  redis-saver tree {thread} --redis {server}\n"
            f"  redis-saver show {thread} --redis {server}\n"
            f"  redis-saver inspect {thread} --redis {server}"
        )


def _gist(message: Any) -> tuple[str, str]:
    """Return the speaker and the text of a message."""
    tool_calls = getattr(message, "tool_calls", ())
    calls = [f"{call['name']}({', '.join(map(str, call['args'].values()))})" for call in tool_calls]
    speaker = {"human": "you", "ai": "agent"}.get(message.type, message.type)
    return speaker, f"calls {', '.join(calls)}" if calls else str(message.content)
