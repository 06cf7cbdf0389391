"""LangGraph's own conformance suite: all eight capabilities, on every server, for both savers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES
from tests.support.uniform import Target


@pytest.mark.everywhere
@pytest.mark.encrypted_too
async def test_conformance_is_full(target: Target) -> None:
    @checkpointer_test(name=target.prefix)
    async def factory() -> AsyncGenerator[Any, None]:
        yield target.uniform().saver

    report = await validate(factory)
    failures = [failure for result in report.results.values() for failure in result.failures or []]
    assert not failures
    assert {name for name, result in report.results.items() if result.passed} == {cap.value for cap in ALL_CAPABILITIES}
    assert report.conformance_level() == "FULL"
