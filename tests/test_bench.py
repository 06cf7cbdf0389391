"""The benchmark runs: the smallest of every workload, every row and field there."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SAVERS = {"redis_saver", "InMemorySaver", "do-nothing"}
FIELDS = {
    "workload", "metric", "unit", "saver", "median", "p25", "p75", "p90", "p99", "min", "samples", "of_memory",
    "of_nothing",
}  # fmt: skip
OF_ALL = {
    "chat": {"turn", "turn, processor time of this process"},
    "throughput": {"turns"},
    "operations": {"put", "put_writes", "get_tuple"},
    "fan-out": {"superstep"},
    "files": {"turn"},
    "cost": {"turn"},
    "growth": {"get_tuple", "put", "put and get_tuple"},
}
OF_OURS = {
    "files": {"sent", "received"},
    "cost": {
        "sent a turn", "received a turn", "memory grown", "keys grown", "MEMORY USAGE of keys grown", "sent on average",
        "received on average", "commands a turn", "commands in scripts a turn", "server time a call",
        "server time a turn",
    },
    "growth": {"sent by put", "received by get_tuple"},
}  # fmt: skip


def bench(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    folder = tmp_path_factory.mktemp("results")
    asked_for = ",".join(["langgraph-checkpoint-redis", *SAVERS])
    said = bench("--smallest", "--savers", asked_for, "--results", str(folder), "--name", "smallest")
    return json.loads((folder / "smallest.json").read_text()), said, folder


@pytest.mark.xdist_group("bench")
def test_every_row_and_field(result: tuple[dict[str, Any], str, Path]) -> None:
    found, said, folder = result
    assert found["failures"] == []
    assert found == json.loads((folder / "latest.json").read_text())
    seen: dict[tuple[str, str], set[str]] = {}
    for row in found["rows"]:
        assert row.keys() >= FIELDS, row
        assert row["samples"] > 0
        assert row["median"] >= 0
        seen.setdefault((row["workload"], row["metric"]), set()).add(row["saver"])
        if row["saver"] in SAVERS and row["metric"] in OF_ALL[row["workload"]]:
            assert row["of_memory"] is not None, row
    for workload, metrics in OF_ALL.items():
        for metric in metrics:
            assert seen.pop((workload, metric)) >= SAVERS, metric
    for workload, metrics in OF_OURS.items():
        for metric in metrics:
            assert seen.pop((workload, metric)) == {"redis_saver"}, metric
    assert not seen
    raw = [row for row in found["rows"] if row["saver"] == "raw SET / GET"]
    assert {(row["metric"], row["flavour"]) for row in raw} == {
        (metric, flavour) for metric in OF_ALL["operations"] for flavour in ("sync", "async")
    }


@pytest.mark.xdist_group("bench")
def test_what_the_result_says_of_itself(result: tuple[dict[str, Any], str, Path]) -> None:
    found, said, folder = result
    assert found["machine"].keys() == {"cpu", "cores", "memory_gib", "os", "python"}
    assert found["servers"]["redis_saver"].startswith(("Redis ", "Valkey "))
    assert found["packages"].keys() >= {"redis", "langgraph", "langgraph-checkpoint"}
    assert str(folder) not in found["command"]
    assert len(found["floors"]) == 13
    measured = [floor for floor in found["floors"] if floor["met"] is not None]
    assert len(measured) == 7  # the others take more than the smallest run has
    for floor in found["floors"]:
        assert floor["floor"] in said
    assert "--redis-modules-url" in found["not_run"]["langgraph-checkpoint-redis"] or find_spec("redisvl") is None
    assert "langgraph-checkpoint-redis did not run" in said


@pytest.mark.xdist_group("bench")
def test_plots(result: tuple[dict[str, Any], str, Path]) -> None:
    pytest.importorskip("matplotlib")
    _, _, folder = result
    for file in folder.glob("*.svg"):
        file.unlink()
    bench("--results", str(folder), "plot", str(folder / "smallest.json"))
    assert {file.name for file in folder.glob("*.svg")} == {"chat.svg", "throughput.svg", "memory.svg", "sent.svg"}


@pytest.mark.xdist_group("bench")
def test_list() -> None:
    said = bench("--list")
    assert all(workload in said for workload in OF_ALL)
    assert all(saver in said for saver in SAVERS)


@pytest.mark.xdist_group("bench")
def test_profile() -> None:
    said = bench("profile", "--messages", "10", "--seconds", "0.3", "--async")
    assert "the saver's own code" in said
    assert "the client library" in said
