"""Code that uses private parts of other packages falls back if those have changed."""

from __future__ import annotations

from typing import Any

import langchain_core.messages as lc
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.postgres.shallow import ShallowPostgresSaver

from redis_saver._common import postgres
from redis_saver._tiered import postgres as statements
from redis_saver._serde import messages


class Changed(PostgresSaver):
    """A saver as a later release might have it."""

    _cursor: Any = None


def test_an_unknown_postgres_saver_is_used_only_through_its_interface(caplog: Any) -> None:
    changed, known = object.__new__(Changed), object.__new__(PostgresSaver)
    assert postgres.is_known(known)
    for method in ("delete_for_runs", "describe_threads", "prune_thread"):
        assert statements.method_of(known, method) and statements.amethod_of(object.__new__(AsyncPostgresSaver), method)
        assert statements.method_of(changed, method) is statements.amethod_of(changed, method) is None
    assert statements.method_of(known, "delete_thread") is None, "PostgresSaver has its own delete_thread"
    shallow = object.__new__(ShallowPostgresSaver)
    assert postgres.is_known(shallow) and not postgres.has_history(shallow)
    assert statements.method_of(shallow, "prune_thread") is None, "a shallow saver has other tables"
    assert not postgres.is_known(changed)
    assert not postgres.is_renewable(changed)
    assert "langgraph-checkpoint-postgres" in caplog.text
    assert not postgres.is_known(InMemorySaver())


def test_changed_message_models_take_the_ordinary_path(monkeypatch: pytest.MonkeyPatch) -> None:
    class Native:
        forgotten = list[type]()

        def forget(self, cls: type) -> None:
            self.forgotten.append(cls)

    monkeypatch.setattr(messages, "native", Native())
    assert messages.is_plain(lc.HumanMessage)
    assert not messages._learned(object)  # type: ignore[arg-type]
    monkeypatch.setattr(lc.HumanMessage, "__pydantic_post_init__", "model_post_init")
    assert not messages._learned(lc.HumanMessage)
    assert Native.forgotten == [object, lc.HumanMessage]
