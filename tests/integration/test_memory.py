"""The store in a real graph, with a saver of the same prefix and client, and as the files of a Deep Agent."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from langgraph.config import get_store
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from tests.support.stores import check_sound
from typing_extensions import TypedDict
from tests.support.uniform import Target, Uniform

pytestmark = pytest.mark.parametrize("target_name", ["redis", "cluster"])


class State(TypedDict):
    said: str
    known: list[str]


def graph(store: BaseStore, saver: Any, *, is_async: bool) -> Any:
    """Make a graph that remembers what each user said. One node uses the runtime, the other `get_store`."""

    def remember(state: State, runtime: Runtime[None]) -> None:
        assert runtime.store is not None
        runtime.store.put(("memories", "ada"), state["said"], {"said": state["said"]})

    async def aremember(state: State, runtime: Runtime[None]) -> None:
        assert runtime.store is not None
        await runtime.store.aput(("memories", "ada"), state["said"], {"said": state["said"]})

    def recall(_: State) -> dict[str, Any]:
        return {"known": [item.value["said"] for item in get_store().search(("memories", "ada"))]}

    async def arecall(_: State) -> dict[str, Any]:
        return {"known": [item.value["said"] for item in await get_store().asearch(("memories",))]}

    builder = StateGraph(State)
    builder.add_node("remember", aremember if is_async else remember)
    builder.add_node("recall", arecall if is_async else recall)
    builder.add_edge(START, "remember")
    builder.add_edge("remember", "recall")
    return builder.compile(checkpointer=saver, store=store)


async def test_a_memory_outlives_its_thread(target: Target) -> None:
    client = target.client()
    store, saver = target.store(client=client), target.uniform(client=client)
    made = graph(store.saver, saver.saver, is_async=store.native_async)

    async def turn(thread: str, said: str) -> list[str]:
        config = {"configurable": {"thread_id": thread}}
        given = {"said": said, "known": []}
        found = await made.ainvoke(given, config) if store.native_async else made.invoke(given, config)
        return found["known"]  # type: ignore[no-any-return]

    assert await turn("first", "tea") == ["tea"]
    await saver.delete_thread("first")
    assert await turn("second", "cake") == ["cake", "tea"]
    assert await store.delete_namespace(("memories", "ada")) == 2
    assert await turn("second", "jam") == ["jam"]
    await saver.delete_thread("second")
    check_sound(target)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="deepagents needs Python 3.11")
async def test_files_of_a_deep_agent_match_an_in_memory_store(target: Target, store: Uniform) -> None:
    """Each answer of the backend equals that of an `InMemoryStore`."""
    from deepagents.backends import StoreBackend

    ours = StoreBackend(store=store.saver, namespace=lambda _: ("files", "ada@example"))
    theirs = StoreBackend(store=InMemoryStore(), namespace=lambda _: ("files", "ada@example"))

    async def both(method: str, *args: Any) -> Any:
        found = getattr(ours, f"a{method}") if store.native_async else getattr(ours, method)
        answer = await found(*args) if store.native_async else found(*args)
        expected = getattr(theirs, method)(*args)
        assert without_times(answer) == without_times(expected), method
        return answer

    for number in range(120):
        await both("write", f"/notes/{number % 7}/file {number}.md", f"notes {number}\nabout tea\n")
    await both("write", "/long.md", "\n".join(f"{number}: {'words ' * 8}" for number in range(2000)))
    for number in range(20):
        await both("edit", "/long.md", f"\n{number * 90}: ", f"\n{number} was edited here: ")
        await both("read", "/long.md", number * 80, 100)
    for _ in range(2):
        await both("ls", "/notes/")
        await both("glob", "**/file 1*.md", "/")
        await both("grep", "notes 11", "/", None)
        await both("read", "/notes/3/file 3.md")
        await both("edit", "/notes/3/file 3.md", "about tea", "about cake")
        await both("write", "/notes/3/file 3.md", "again")
        await both("delete", "/notes/5")
    check_sound(target)


def without_times(answer: Any) -> Any:
    """Return an answer of a backend without times, and sorted, as an `InMemoryStore` keeps the order of insertion."""
    if hasattr(answer, "__dict__"):
        answer = vars(answer)
    if isinstance(answer, dict):
        return {name: without_times(one) for name, one in answer.items() if not name.endswith("_at")}
    if isinstance(answer, (list, tuple)):
        return sorted((without_times(one) for one in answer), key=repr)
    return answer
