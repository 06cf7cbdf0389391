"""A Deep Agent's session over two processes, and the cost of its turns.

Its messages and files are `DeltaChannel`s, and its subagents are subgraphs.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from tests.support.uniform import Target

pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 11), reason="deepagents needs Python 3.11"),
    pytest.mark.parametrize("target_name", ["redis"]),
]
if sys.version_info >= (3, 11):
    import deep_agent
    from deep_agent import SESSION, Session, agent, request

APPROVE = {"decisions": [{"type": "approve"}]}
EDIT = {"file_path": "/notes/edited.md", "content": "edited by a person " * 30}


@pytest.fixture
def other_process(target: Target) -> Iterator[ProcessPoolExecutor]:
    """A second process with a long-lived saver, whose cached state becomes stale."""
    context = multiprocessing.get_context("spawn")
    given = (target.url, target.prefix, target.flavour)
    with ProcessPoolExecutor(1, mp_context=context, initializer=deep_agent.begin, initargs=given) as pool:
        yield pool


class Both:
    """A session over two processes, and the same session on an `InMemorySaver`."""

    def __init__(self, target: Target, other: ProcessPoolExecutor) -> None:
        self.target, self.other = target, other
        uniform = target.uniform()
        self.ours = Session(uniform.saver, native_async=uniform.native_async)
        self.theirs = Session(InMemorySaver(), native_async=False)

    async def in_process(self, which: int, method: str, *args: Any) -> Any:
        """Call a method of the session in this process (0) or in the other one (1)."""
        if not which:
            return await getattr(self.ours, method)(*args)
        return await asyncio.wrap_future(self.other.submit(deep_agent.act, method, *args))

    async def act(self, which: int, method: str, given: Any = None, at: int | None = None) -> Any:
        """Act in one process; both processes must see the state of the `InMemorySaver`."""
        expected = await self.theirs.act(method, given, at)
        assert await self.in_process(which, "act", method, given, at) == expected
        assert await self.in_process(1 - which, "act", "look") == expected
        return expected

    async def request(self, which: int, what: object, decision: dict[str, Any] | None = None) -> None:
        """Send a request, then a person's decisions on its file and on the subagent's file.

        The processes take turns.
        """
        assert (await self.act(which, "invoke", request(what)))[2] == 1
        assert (await self.act(1 - which, "invoke", Command(resume=decision or APPROVE)))[2] == 1
        assert (await self.act(which, "invoke", Command(resume=APPROVE)))[1:] == ((), 0)

    async def compare(self) -> int:
        """Compare all states, read by the other process and by a new saver; return their number."""
        expected = await self.theirs.history()
        uniform = self.target.uniform()
        fresh = Session(uniform.saver, native_async=uniform.native_async)
        assert await fresh.history() == expected
        assert await self.in_process(1, "history") == expected
        return len(expected)


@pytest.mark.parametrize("flavour", ["async", pytest.param("sync", marks=pytest.mark.slow)], indirect=True)
async def test_a_session_over_two_processes_matches_memory(target: Target, other_process: ProcessPoolExecutor) -> None:
    """Includes interrupts, edits by a person, forks, and time travel to both sides of a snapshot."""
    both = Both(target, other_process)
    await both.request(0, "one")
    await both.request(
        1, "two", {"decisions": [{"type": "edit", "edited_action": {"name": "write_file", "args": EDIT}}]}
    )
    await both.request(1, "three", {"decisions": [{"type": "reject", "message": "no"}]})
    before = len(await both.theirs.states())
    await both.act(1, "update", request("fork"), 12)
    await both.act(0, "invoke", Command(resume=APPROVE))
    await both.act(1, "invoke", Command(resume=APPROVE))
    for number in range(3):
        await both.request(number % 2, f"fork-{number}")
    await both.act(0, "invoke", None, 9)
    await both.act(1, "invoke", None, before)
    await both.act(0, "invoke", request("last"))
    assert await both.compare() > 150
    stored = [one.checkpoint["channel_values"] for one in await target.uniform().list(SESSION)]
    assert sum("messages" in values for values in stored) > 5, "there are snapshots between the forks"


def bytes_of_turns(target: Target, turns: int) -> list[int]:
    """Return the bytes sent to and received from the server in each turn."""
    graph = agent(target.uniform().saver, delegates=False)

    def now() -> int:
        stats = target.raw.info("stats")
        return int(stats["total_net_input_bytes"] + stats["total_net_output_bytes"])

    found = list[int]()
    for number in range(turns):
        before = now()
        graph.invoke(request(number), SESSION)
        found.append(now() - before)
    state = graph.get_state(SESSION)
    assert len(state.values["messages"]) == 10 * turns
    assert len(state.values["files"]) == turns
    return found


@pytest.mark.parametrize("flavour", ["sync"])
def test_the_bytes_of_a_turn_do_not_grow(target: Target) -> None:
    """Each of sixty turns adds a file. There are twelve snapshots of the messages and one of the files.

    The limit allows a growth of a third of a percent per turn.
    """
    found = bytes_of_turns(target, 60)
    first, second = sum(found[:30]), sum(found[30:])
    assert second <= 1.08 * first
    assert max(found) <= 4 * sum(found) / 60
