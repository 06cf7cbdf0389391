"""Helpers of the inspector's tests: a thread that has everything, and a crawler."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from typing import Annotated, Any
from urllib.parse import urlsplit

import fakeredis
import httpx
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from redis_saver import AsyncRedisSaver, RedisSaver, TieredSaver, inspector
from redis_saver._client.clients import connect
from redis_saver._engine.counting import size_of_reply
from tests.support.wrappers import Around

TOKEN = "a-token"
SECRET = "hunter2"
HOSTILE = (
    "<img src=x onerror=alert(1)>", "\"'><script>alert(2)</script>", "{{ 1234567 * 7654321 }}{% raw %}",
    "line\nbreak\r\n\x1b[31m", "a/../b?c=d&e#f%00%", "\u202egnp.exe", "\ud800 alone", "наступний 👩‍👩‍👧", "",
)  # fmt: skip
TAGS = set(
    """
    html head meta title link script body a header span nav form input main footer h1 h2 h3 p b label select option pre code h4
    em strong ul blockquote hr br button section div table thead tbody tfoot tr th td dl dt dd ol li details summary svg line
    circle rect
    """.split()
)


class Inner(TypedDict):
    q: str


class State(MessagesState):
    facts: dict[str, Any]
    log: Annotated[list[str], operator.add]


def ask(_: Any) -> dict[str, Any]:
    return {"q": str(interrupt({"question": "May I send it?"}))}


inner = StateGraph(Inner).add_node("ask", ask).add_edge(START, "ask").compile()


def plan(state: Any) -> dict[str, Any]:
    call = {"name": "search", "args": {"q": "<script>", "token": SECRET}, "id": f"c{len(state['messages'])}"}
    facts = {"count": len(state["messages"]), "password": SECRET, "deep": {"list": [1, None, b"\0" * 100]}}
    return {"messages": [AIMessage("Let me <b>see</b>.", tool_calls=[call])], "facts": facts}


def tool(state: Any) -> dict[str, Any]:
    return {"messages": [ToolMessage("21 degrees", tool_call_id=state["messages"][-1].tool_calls[0]["id"])]}


builder = StateGraph(State)
builder.add_node("plan", plan)
builder.add_node("tool", tool)
builder.add_node("research", lambda _: {"log": [inner.invoke({"q": ""})["q"]]})
builder.add_edge(START, "plan").add_edge("plan", "tool").add_edge("tool", "research")


def make_thread(saver: Any, thread: str) -> dict[str, Any]:
    """Make a thread with messages, a subgraph, a fork and a pending interrupt; return its config."""
    graph, config = builder.compile(checkpointer=saver), {"configurable": {"thread_id": thread}}
    graph.invoke({"messages": [HumanMessage("What is the weather?")]}, config)
    graph.invoke(Command(resume="yes"), config)
    before = next(one for one in graph.get_state_history(config) if one.next == ("tool",))
    changed = {"facts": {"count": 99, "password": SECRET, "raw": b"\0" * 100}}
    graph.invoke(None, graph.update_state(before.config, changed, as_node="plan"))
    return config


def make_failed(saver: Any, thread: str) -> None:
    """Make a thread whose node raised."""

    def fail(_: Any) -> None:
        raise ValueError("the model said <no>")

    graph = StateGraph(MessagesState).add_node("bot", fail).set_entry_point("bot").compile(checkpointer=saver)
    try:
        graph.invoke({"messages": "hi"}, {"configurable": {"thread_id": thread}})
    except ValueError:
        pass


def orphan(saver: RedisSaver, thread: str) -> None:
    """End the lease of a thread's owner, as if its process had died."""
    key, raw = saver._context.keyspace.owner_key(thread), saver._driver.client
    token, _, rest = raw.get(key).split(b" ", 2)
    raw.set(key, b" ".join([token, b"1", rest]))


def joined(state: list[Any], writes: list[Any]) -> list[Any]:
    return [*state, *(one for some in writes for one in some)]


class Talk(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(joined, snapshot_frequency=3)]


def talking(saver: Any) -> Any:
    """Make a graph whose messages are a `DeltaChannel`."""
    graph = StateGraph(Talk).add_node("bot", lambda _: {"messages": [AIMessage("an answer")]})
    return graph.set_entry_point("bot").compile(checkpointer=saver)


def embedded(**options: Any) -> RedisSaver:
    """Make a saver on an embedded server of its own."""
    return RedisSaver(fakeredis.FakeRedis(version=(7,)), **options)


def inspected(kind: str) -> tuple[RedisSaver, Any]:
    """Make a saver on an embedded server, and one of a kind ("redis", "async", "tiers") that is inspected."""
    server = fakeredis.FakeServer(version=(7,))
    hot = RedisSaver(fakeredis.FakeRedis(server=server))
    made: dict[str, Callable[[], Any]] = {
        "redis": lambda: hot,
        "async": lambda: AsyncRedisSaver(fakeredis.FakeAsyncRedis(server=server)),
        "tiers": lambda: TieredSaver(hot, InMemorySaver()),
    }
    return hot, made[kind]()


class Longest:
    """Length of the longest reply that a saver gets from now on, in bytes."""

    def __init__(self, saver: Any) -> None:
        self.bytes = 0

        def around(request: Any) -> Any:
            reply = yield request
            self.bytes = max(self.bytes, size_of_reply(reply))
            return reply

        Around(saver, around)


def writer(url: str, prefix: str = "langgraph") -> RedisSaver:
    """Make a saver that writes the inspected threads."""
    return RedisSaver(connect(url, asynchronous=False), prefix=prefix)


def browser(saver: Any, *, base: str = "http://localhost", enter: bool = True, **options: Any) -> httpx.AsyncClient:
    """Make an HTTP client over ASGI, with the token if `enter`."""
    app = inspector.app(saver, **{"token": TOKEN, **options})
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=base)
    if enter:
        client.headers["authorization"] = f"Bearer {TOKEN}"
    return client


async def opened(saver: Any, *urls: str, **options: Any) -> Any:
    """Return a page, or several, whose markup is checked."""
    async with browser(saver, **options) as client:
        found = [(await client.get(url)).text for url in urls]
    for text in found:
        check_markup(text)
    return found if len(found) > 1 else found[0]


def links(page: str) -> list[str]:
    return [unescape(one) for one in re.findall(r'href="([^"]+)"', page)]


async def crawled(client: httpx.AsyncClient, start: str = "/", limit: int = 150) -> dict[str, str]:
    """Follow all links from `start`; return the pages. Each must answer 200."""
    found, left = dict[str, str](), [start]
    while left and len(found) < limit:
        url = left.pop(0).partition("#")[0]
        if not url or url in found or "/static/" in url:
            continue
        if urlsplit(url).path.startswith("/docs"):
            continue  # `test_inspector_docs.py` opens these
        answer = await client.get(url)
        assert answer.status_code == 200, f"{url}: {answer.status_code} {answer.text[-900:]}"
        found[url] = answer.text
        left += links(answer.text)
    return found


class Checked(HTMLParser):
    """Parser that checks that a page has only our tags, and no inline script or style."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert not name.startswith("on") and name != "style", (tag, name)
            if name in ("href", "src", "action"):
                assert value is not None and re.match(r"/(?!/)|#", value), (tag, value)
        assert tag != "script" or "src" in dict(attrs)


def check_markup(page: str) -> None:
    Checked().feed(page)
