"""The benchmark's smallest run, its result, and the pages with published figures."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import run_python

from bench import pages, results
from bench.contestants import Contestant
from bench.measuring import Run, WrongResult
from bench.noop import NothingSaver

PLOTS = {"chat.svg", "throughput.svg", "memory.svg"}
ROOT = Path(__file__).parents[2]
SERVED = {"redis_saver", "raw calls"}
SAVERS = {*SERVED, "InMemorySaver", "do-nothing"}
FIELDS = {
    "workload", "metric", "unit", "saver", "median", "p25", "p75", "p90", "p99", "min", "samples", "of_memory",
    "of_nothing", "of_raw", "of_raw_calls", "of_ours",
}  # fmt: skip
OF_ALL = {
    "chat": {"turn", "turn, processor time of this process"},
    "fleet": {"turn"},
    "throughput": {"turns"},
    "operations": {"put", "put_writes", "get_tuple"},
    "calls": {"put", "put_writes", "get_tuple"},
    "fan-out": {"superstep"},
    "files": {"turn"},
    "sends": {"run"},
    "delta": {"turn", "turns: x plain list", "turns, processor time of this process: x plain list"},
    "cost": {"turn"},
    "growth": {"get_tuple", "put", "put and get_tuple"},
}
if find_spec("deepagents"):  # in the extra "bench", for Python 3.11 and later
    OF_ALL["deep-agent"] = {"turn", "turn, second half: x first half"}
OF_SERVED: dict[str, set[str]] = {
    "capacity": {"server time a call", "turns that fill a core", "calls made"},
    "files": {"sent", "received"},
    "shapes": {"sent", "kept"},
    "sends": {"sent", "stored"},
    "delta": {"sent on average", "received on average", "worst turn, both ways"},
    "cost": {
        "sent a turn", "received a turn", "memory grown", "keys grown", "MEMORY USAGE of keys grown", "sent on average",
        "received on average", "commands a turn", "commands in scripts a turn", "server time a call",
        "server time a turn",
    },
    "growth": {"sent by put", "received by get_tuple"},
}  # fmt: skip
if find_spec("deepagents"):
    OF_SERVED["deep-agent"] = {
        "sent on average", "received on average", "bytes both ways, second half: x first half", "worst turn, both ways",
    }  # fmt: skip
OVERHEADS = {
    f"{what}: {rest}"
    for what in ("turn", "put", "put_writes")
    for rest in ("work", "work, x without", "time, x without")
}
STORES = {"redis_saver", "memory", "tiered"}
LANGGRAPH_REDIS = "langgraph.store.redis"
OF_STORES = {
    "get", "put", *(f"batch of 100 {what}s{whose}" for what in ("get", "put") for whose in ("", " of 100 users")),
    *(f"search of 20, {what}" for what in ("the newest 10", "the newest 100", "filter, 10 of a third", "filter, none")),
}  # fmt: skip
TIERS = {"TieredSaver", "TieredSaver behind", "TieredSaver latest"}
OF_TIERS = {
    "turn": {"redis_saver", *TIERS},
    "a turn, until all is where it is to be": {"redis_saver", *TIERS},
    "statements to Postgres, a turn": TIERS,
}


def bench(*arguments: str, is_forked: bool = True) -> str:
    done = run_python("-m", "bench", *arguments, is_forked=is_forked)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def test_smallest_run_has_every_row_and_field(empty_database: str, tmp_path: Path) -> None:
    """All savers and stores on Postgres share that of the tests, instead of starting four."""
    asked_for = ",".join(["langgraph-checkpoint-redis", *SAVERS, *TIERS])
    nowhere = "redis://127.0.0.1:1"
    options = {
        "savers": asked_for, "stores": ",".join([*STORES, LANGGRAPH_REDIS]), "redis-modules-url": nowhere,
        "postgres-url": empty_database, "results": str(tmp_path), "name": "smallest",
    }  # fmt: skip
    said = bench("--smallest", *(f"--{name}={value}" for name, value in options.items()), is_forked=False)
    found = json.loads((tmp_path / "smallest.json").read_text())
    assert found == json.loads((tmp_path / "latest.json").read_text())
    check_rows(found)
    check_what_it_says_of_itself(found, said)
    assert str(tmp_path) not in found["command"]
    if find_spec("matplotlib"):
        assert {file.name for file in tmp_path.glob("*.svg")} == PLOTS
    else:
        assert "no plots" in said


def check_rows(found: dict[str, Any]) -> None:
    assert found["failures"] == []
    seen: dict[tuple[str, str], set[str]] = {}
    for row in found["rows"]:
        assert row.keys() >= FIELDS, row
        assert row["samples"] > 0
        assert row["median"] >= 0 or row["metric"] == "memory grown"
        seen.setdefault((row["workload"], row["metric"]), set()).add(row["saver"])
        if row["saver"] in SAVERS and row["metric"] in OF_ALL.get(row["workload"], ()):
            assert row["of_memory"] is not None, row
    for workload, metrics in OF_ALL.items():
        for metric in metrics:
            assert seen.pop((workload, metric)) >= SAVERS, metric
    for workload, metrics in OF_SERVED.items():
        for metric in metrics:
            assert seen.pop((workload, metric)) == SERVED, metric
    for metric, savers in OF_TIERS.items():
        assert seen.pop(("tiers", metric)) == savers, metric
    assert seen.pop(("reads", "get_tuple")) == {"redis_saver", "TieredSaver", "TieredSaver behind"}
    for metric in OVERHEADS:
        assert seen.pop(("overheads", metric)) == {"redis_saver"}, metric
    for metric in ("all had the thread", "handover", "server's share of a core"):
        assert seen.pop(("waiting", metric)) == {"redis_saver"}, metric
    for metric in ("processor time", "memory grown"):
        assert seen.pop(("inspector", metric)) == {"redis_saver"}, metric
    for metric in OF_STORES:
        assert seen.pop(("store", metric)) == STORES, metric
    for metric in ("20: numpy's product", "20: the nearest 10", "20: the nearest 10, filter, of a third"):
        assert seen.pop(("store-vectors", metric)) == STORES - {"tiered"}, metric
    assert not seen
    assert bool(find_spec("deepagents")) != any("deepagents" in note["note"] for note in found["notes"])
    raw = [row for row in found["rows"] if row["saver"] == "raw SET / GET"]
    assert {(row["metric"], row["flavour"]) for row in raw} == {
        (metric, flavour) for metric in OF_ALL["operations"] for flavour in ("sync", "async")
    }


def check_what_it_says_of_itself(found: dict[str, Any], said: str) -> None:
    assert found["machine"].keys() == {"cpu", "cores", "memory_gib", "os", "native", "python"}
    assert found["servers"]["redis_saver"].startswith(("Redis ", "Valkey "))
    assert found["packages"].keys() >= {"redis", "langgraph", "langgraph-checkpoint"}
    assert len(found["budgets"]) == 55
    measured = [budget for budget in found["budgets"] if budget["met"] is not None]
    assert len(measured) == 19  # the others need more than the smallest run
    for budget in found["budgets"]:
        assert budget["budget"] in said
    assert found["not_run"].keys() == {"langgraph-checkpoint-redis", LANGGRAPH_REDIS, f"{LANGGRAPH_REDIS} with vectors"}
    for name, reason in found["not_run"].items():
        assert reason.startswith("ConnectionError") or find_spec("redisvl") is None
        assert f"{name} did not run" in said


def test_the_pages_have_the_published_figures() -> None:
    """The figures are written by `python -m bench pages bench/results/latest.json`."""
    published = results.load(results.FOLDER / "latest.json")
    assert not [page for page in pages.PAGES if pages.rendered(page.read_text(), published) != page.read_text()]
    tables = [name for page in pages.PAGES for name in re.findall("<!-- bench: (?!end)(.*) -->", page.read_text())]
    assert sorted(tables) == sorted(pages.TABLES)


def test_only_tables_with_rows_are_written() -> None:
    fields = {
        "workload": "overheads",
        "saver": "redis_saver",
        "option": "own(thread)",
        "metric": "put: work, x without",
    }
    result = {"rows": [{**fields, "median": 1.0304}]}
    page = "<!-- bench: overheads -->\nold\n<!-- bench: end -->\n<!-- bench: cost -->\nold\n<!-- bench: end -->\n"
    said = pages.rendered(page, result)
    assert "| own(thread) | | 1.03 | |\n" in said and said.endswith("<!-- bench: cost -->\nold\n<!-- bench: end -->\n")


def test_a_wrong_result_discards_its_samples() -> None:
    run, one = Run([], asyncio.new_event_loop()), Contestant("one", NothingSaver(), NothingSaver())
    run.sample(one, {}, "turn", "ms", 1)
    run.sample("other", {}, "turn", "ms", 2)
    with pytest.raises(WrongResult), run.judging(one):
        raise WrongResult
    run.loop.close()
    run.finish("delta")
    assert [row["saver"] for row in run.rows] == ["other"]


def test_the_profile_names_its_categories() -> None:
    said = bench("profile", "--messages", "10", "--seconds", "0.3", "--async")
    assert "the saver's own code" in said
    assert "the client library" in said


GRAPHS_OF_OTHERS = """
from langgraph.checkpoint.memory import InMemorySaver
from pyperf._runner import Runner
from uvloop import new_event_loop
from bench.chain import chain

graph = chain().compile(checkpointer=InMemorySaver())
Runner().bench_async_func("chain_checkpoint", None, graph, {"n": 1}, loop_factory=new_event_loop)
Runner().bench_func("chain_checkpoint_sync", None, graph, {"n": 1})
Runner().bench_func("chain_compilation", None, graph)
"""
CHAIN = """
from typing import TypedDict
from langgraph.graph import StateGraph

def chain():
    return StateGraph(TypedDict("State", {"n": int})).add_node("a", lambda state: state).set_entry_point("a")
"""
DELTAS = """
SCENARIOS, TURN_COUNTS = [("K=1", [50])], [100]

def _run_scenario(freqs, turns, saver, thread_id):
    saver.get_tuple({"configurable": {"thread_id": thread_id}})
    return {"write_per_invoke_ms": 1.0, "read_avg_ms": len(freqs)}
"""


CHANNELS = """
from collections import namedtuple
BenchmarkCase = namedtuple("BenchmarkCase", "mode backend updates payload repetition seed")

def _message_for_update(index, size): return "x" * size
def _config(case): return {"configurable": {"thread_id": f"c-{case.mode}-{case.seed}"}}
def _write_and_read(case, saver, messages): return {"write_p50_ms": 1.0}, saver.get_tuple(_config(case))
def _cold_read(case, saver): return 2.0, saver.get_tuple(_config(case))
def _validate_materialized(case, messages, warm, cold): assert warm == cold
"""
PRODUCTION = """
from collections import namedtuple
from deerflow.runtime import checkpoint_mode
from app.gateway import STATE
ProductionCase = namedtuple("ProductionCase", "mode turns payload frequency limits reads repetition seed")
_TimingSaver = namedtuple("_TimingSaver", "saver")

def _thread_id(case): return f"p-{case.mode}-{case.seed}"
async def _run_phase(case, saver, timing, folder):
    assert checkpoint_mode._frozen_checkpoint_channel_mode in (None, case.mode) and folder.is_dir()
    checkpoint_mode._frozen_checkpoint_channel_mode = case.mode
    await saver.aget_tuple({"configurable": {"thread_id": _thread_id(case)}})
    return {"turn_ms": [1.0, 2.0, 3.0]}
async def _read_phase(case, saver, timing):
    return {"state_wire_sha256": STATE, "state_warm_p50_ms": 1.0, "history_limit_50_warm_p50_ms": 2.0}
"""


def test_benchmarks_of_others_run_from_a_checkout(tmp_path: Path) -> None:
    package, tests = tmp_path / "libs" / "langgraph" / "bench", tmp_path / "libs" / "langgraph" / "tests"
    backend = tmp_path / "backend"
    for file, text in {
        package / "__init__.py": "",
        package / "__main__.py": GRAPHS_OF_OTHERS,
        package / "chain.py": CHAIN,
        tests / "test_delta_channel_benchmark.py": DELTAS,
        backend / "scripts" / "benchmark" / "checkpoint" / "bench_channels.py": CHANNELS,
        backend / "scripts" / "benchmark" / "checkpoint" / "bench_production.py": PRODUCTION,
        backend / "app" / "gateway" / "__init__.py": "STATE = 'digest'",
        backend
        / "packages"
        / "harness"
        / "deerflow"
        / "runtime"
        / "checkpoint_mode.py": "_frozen_checkpoint_channel_mode = None",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    options = ("--smallest", "--savers", "redis_saver,InMemorySaver", "--results", str(tmp_path), "third-party")
    bench(*options, "--langgraph", str(tmp_path), "--deerflow", str(tmp_path), "--coding-agent")
    found = results.load(tmp_path / "third-party.json")
    assert found["failures"] == []
    measured = {(row["workload"], row["metric"], row["saver"]) for row in found["rows"]}
    assert {("langgraph", "run", saver) for saver in ("redis_saver", "InMemorySaver")} <= measured
    assert {("langgraph-delta", "stored", "redis_saver"), ("coding-agent", "stored", "redis_saver")} <= measured
    assert {
        ("deerflow-channels", "cold read", "redis_saver"),
        ("deerflow-production", "turn", "redis_saver"),
    } <= measured
    assert not (tmp_path / "latest.json").exists()
    assert "LangGraph's graphs" in pages.TABLES["third-party"](pages.Rows(found))


def test_it_says_how_to_get_the_benchmarks_of_others() -> None:
    assert "--langgraph" in bench("third-party")


# -- servers and their folders are gone after a killed run


PROGRAMS = {
    "redis": "from tests.support.servers import Server; s = Server(); print(s.process.pid, s.folder, flush=True); input()",
    "postgres": (
        "from bench.servers import Postgres, folder, _unprivileged\n"
        "with folder(_unprivileged()) as place:\n"
        "    p = Postgres(place, _unprivileged()); p.start(); print(p.server.pid, place, flush=True); input()"
    ),
}


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_killed_run_leaves_no_servers(kind: str) -> None:
    root = Path(__file__).parents[2]
    path = str(root)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAMS[kind]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as run:  # fmt: skip
        assert run.stdout is not None
        server, folder = run.stdout.readline().split()
        assert is_running(int(server))
        run.kill()
    for _ in range(200):
        if not is_running(int(server)) and not Path(folder).exists():
            break
        time.sleep(0.05)
    assert not is_running(int(server))
    assert not Path(folder).exists()
