"""The soak command, which runs random tests with fresh seeds: it ends in time and prints how to repeat a failure."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.soak import ON_THEIR_OWN, SUITES, TESTS, WHOLE

WITHOUT_PLUGINS = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Plug-ins start slowly, and these tests need none."""


def soak(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.soak", "--minutes", "0", *options]
    return subprocess.run(
        command, cwd=TESTS.parent, env=WITHOUT_PLUGINS, capture_output=True, text=True, timeout=280, check=False
    )


def test_suites_have_distinct_names() -> None:
    assert {*ON_THEIR_OWN, *WHOLE} < set(SUITES)
    assert len(SUITES) == len({*SUITES.values()}) > 40


PASSES = """
import pytest

@pytest.mark.random
def test_that_passes():
    pass
"""


def test_soak_stops_when_the_time_is_up(tmp_path: Path) -> None:
    path = tmp_path / "test_that_passes.py"
    path.write_text(PASSES)
    done = soak("--only", str(path), "--target", "fakeredis", "--target", "redis", "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"test_that_passes.py on fakeredis, seed \d+: 1 passed", done.stdout), done.stdout
    assert "on redis," not in done.stdout  # the time is up
    assert "1 runs in" in done.stdout


FAILS = """
import os
import pytest

@pytest.mark.random
def test_seed():
    assert int(os.environ["REDIS_SAVER_SEED"]) < 0

@pytest.mark.random
def test_target():
    assert os.environ["REDIS_SAVER_TARGETS"] == "fakeredis"

def test_that_is_not_random():
    assert False
"""


def test_a_failure_is_shown_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    path = tmp_path / "test_that_fails.py"
    path.write_text(FAILS)
    done = soak("--only", str(path), "--target", "fakeredis")
    assert done.returncode == 1
    assert "1 failed, 1 passed, 1 deselected" in done.stdout
    (seed,) = re.findall(r"on fakeredis failed with seed (\d+)\. Repeat with:", done.stdout)
    command = done.stdout.splitlines()[-1]
    first, second, _, *arguments = shlex.split(command)
    assert first == f"REDIS_SAVER_SEED={seed}"
    assert second == "REDIS_SAVER_TARGETS=fakeredis"
    again = subprocess.run(
        ["env", first, second, sys.executable, *arguments],
        cwd=TESTS.parent, env=WITHOUT_PLUGINS, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert f"assert {seed} < 0" in again.stdout


def test_an_unknown_suite_is_reported() -> None:
    done = soak("--only", "nothing")
    assert done.returncode == 2
    assert "--only nothing" in done.stderr
    assert "own_answers" in done.stderr
