"""What we know of other packages: their faults, and private parts, without which our code falls back.

Programs of the reports in `docs/upstream/` still show what they report. If one does not, its workaround may go.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import langchain_core.messages as lc
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.postgres.shallow import ShallowPostgresSaver

from redis_saver._common import postgres
from redis_saver._serde import messages
from redis_saver._tiered import postgres as statements

UPSTREAM = Path(__file__).parents[2] / "docs" / "upstream"
SHOWN = {
    "ormsgpack-concurrent-mutation": (-signal.SIGSEGV, ""),
    "langgraph-nested-extensions": (-signal.SIGSEGV, "bytes\n"),
    "langgraph-pending-writes": (1, " are stored\n"),
    "redis-py-asyncio-cluster": (0, "one INCR returned 2\n"),
}
"""Exit code of each page's first program, and the end of its output."""


def test_each_report_is_known() -> None:
    assert {page.stem for page in UPSTREAM.glob("*.md")} == SHOWN.keys() | {"langgraph-conformance"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_report_has_a_program_that_shows_it(name: str, tmp_path: Path) -> None:
    page = (UPSTREAM / f"{name}.md").read_text()
    program = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    code, end = SHOWN[name]
    assert done.returncode == code, done.stdout + done.stderr
    assert (done.stdout + done.stderr).endswith(end)


# -- private parts of other packages


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
