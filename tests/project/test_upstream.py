"""Programs of the reports in `docs/upstream/` still show what they report. If one does not, its workaround may go."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
