"""LangGraph's own conformance suite: all eight capabilities, on every server, for both savers. And two proposed ones."""

from __future__ import annotations

import contextlib
import runpy
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES
from langgraph.checkpoint.memory import InMemorySaver
from tests.support.servers import TARGETS, releases
from tests.support.uniform import Target

PROPOSED = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "upstream" / "conformance_proposals.py"))
KEEP, AT_MOST = 3, 3 + 32


@pytest.mark.everywhere
@pytest.mark.encrypted_too
@pytest.mark.parametrize("target_name", [*TARGETS, *releases()])
async def test_conformance_is_full(target: Target) -> None:
    client = target.client()  # of all savers, as connecting takes longer than a test

    @checkpointer_test(name=target.prefix)
    async def factory() -> AsyncGenerator[Any, None]:
        yield target.uniform(client=client).saver

    report = await validate(factory)
    failures = [failure for result in report.results.values() for failure in result.failures or []]
    assert not failures
    assert {name for name, result in report.results.items() if result.passed} == {cap.value for cap in ALL_CAPABILITIES}
    assert report.conformance_level() == "FULL"


@pytest.mark.also_on()
async def test_proposed_ownership_is_full(target: Target) -> None:
    async with contextlib.AsyncExitStack() as owners:

        async def claim(saver: Any, thread_id: str) -> Any:
            return await owners.enter_async_context(saver.own(thread_id, on_busy="take"))

        result = await PROPOSED["run_write_ownership_tests"](target.uniform().saver, claim)
    assert result == (7, 0, [])


@pytest.mark.also_on()
async def test_proposed_bounded_history_is_full(target: Target) -> None:
    saver = target.uniform(history={"keep_last": KEEP}).saver
    assert await PROPOSED["run_bounded_history_tests"](saver, (KEEP, AT_MOST)) == (4, 0, [])


async def test_a_saver_without_the_proposed_capabilities_fails() -> None:
    async def claim(_: Any, thread_id: str) -> Any:
        return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}

    _, failed, _ = await PROPOSED["run_write_ownership_tests"](InMemorySaver(), claim)
    assert failed == 3
    passed, failed, _ = await PROPOSED["run_bounded_history_tests"](InMemorySaver(), (KEEP, AT_MOST))
    assert (passed, failed) == (1, 3)
