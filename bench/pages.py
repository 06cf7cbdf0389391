"""Tables of the documentation with a result's figures: `python -m bench pages bench/results/latest.json`.

A table stands between `<!-- bench: NAME -->` and `<!-- bench: end -->`. It stays as it is if the result has no rows for
it.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.contestants import MEMORY, OURS, POSTGRES, RAW_CALLS
from bench.options import OPTIONS
from bench.results import Result
from bench.store import SIZES
from bench.table import number
from bench.workloads import fleet as fleets, shapes as shaped
from bench.workloads.delta import DELTA, LENGTHS, PLAIN

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
VALKEY, LANGGRAPH_REDIS, SQLITE = "ValkeySaver", "langgraph-checkpoint-redis", "SqliteSaver"
OF_REDIS = (OURS, VALKEY, LANGGRAPH_REDIS)
_TABLE = re.compile(r"(<!-- bench: (\w[\w-]*) -->\n)(.*?)(<!-- bench: end -->\n)", re.DOTALL)
Lines = list[tuple[str, list[str]]]


class Rows:
    """The rows of a result."""

    def __init__(self, result: Result) -> None:
        self.all: list[dict[str, Any]] = result["rows"]

    def value(self, saver: str, field: str = "median", **wanted: Any) -> float | None:
        """Return a field of the matching row; None if not measured."""
        for row in self.all:
            if row["saver"] == saver and all(row.get(key) == value for key, value in wanted.items()):
                return row[field]  # type: ignore[no-any-return]
        return None

    def those(self, savers: Iterable[str], workload: str) -> list[str]:
        """Return the savers that took part in a workload."""
        found = {row["saver"] for row in self.all if row["workload"] == workload}
        return [saver for saver in savers if saver in found]


def cell(value: float | None, scale: float = 1) -> str:
    return "" if value is None else number(value * scale)


def as_ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def table(title: str, columns: Sequence[str], lines: Lines) -> str:
    """Return a table in Markdown; empty if it has no figure."""
    if not any(any(cells) for _, cells in lines):
        return ""
    rows = [[title, *columns], *([name, *cells] for name, cells in lines)]
    head, *body = ["|" + "".join(f" {one} |" if one else " |" for one in row) for row in rows]
    return "\n".join([head, "|" + "---|" * (len(columns) + 1), *body, ""])


def turn(rows: Rows) -> str:
    savers = rows.those((OURS, MEMORY, VALKEY, LANGGRAPH_REDIS, POSTGRES), "chat")
    lines: Lines = []
    for messages in (10, 100, 400, 1000):
        wanted: Any = {"workload": "chat", "metric": "turn", "messages": messages, "start": "warm"} | _SYNC
        cells = []
        for saver in savers:
            of = "" if saver == MEMORY else as_ratio(rows.value(saver, "of_memory", **wanted))
            cells.append(cell(rows.value(saver, **wanted)) + (f" ({of})" if of else ""))
        lines.append((f"{messages:,}", cells))
    return table("Messages before", savers, lines)


def fleet(rows: Rows) -> str:
    savers = rows.those((OURS, MEMORY, VALKEY, LANGGRAPH_REDIS, POSTGRES), "fleet")
    lines: Lines = []
    for messages in fleets.LENGTHS:
        for workers in fleets.WORKERS:
            wanted: Any = {"workload": "fleet", "metric": "turn", "messages": messages, "workers": workers}
            found = [cell(rows.value(saver, **wanted)) for saver in savers]
            lines.append((f"{messages:,} messages, {workers}", found))
    return table("ms a turn, by workers", savers, lines)


def shapes(rows: Rows) -> str:
    columns = [(saver, returns) for saver in rows.those((OURS, VALKEY), "shapes") for returns in shaped.RETURNS]
    lines: Lines = []
    for shape in shaped.SHAPES:
        wanted: Any = {"workload": "shapes", "shape": shape, "turns": 40}
        lines.append((shape, [_both(rows, saver, returns=returns, **wanted) for saver, returns in columns]))
    said = dict(zip(shaped.RETURNS, ("new", "whole"), strict=True))
    return table("kB sent, kept", [f"{saver}, {said[returns]}" for saver, returns in columns], lines)


def _both(rows: Rows, saver: str, **wanted: Any) -> str:
    return ", ".join(cell(rows.value(saver, metric=metric, **wanted)) for metric in ("sent", "kept"))


def cost(rows: Rows) -> str:
    savers = rows.those((*OF_REDIS, POSTGRES, SQLITE), "cost")

    def line(metric: str) -> list[str]:
        return [cell(rows.value(saver, workload="cost", metric=metric, turns=100)) for saver in savers]

    lines = [
        ("stored, full history, MB", line("memory grown")),
        ("sent a turn, kB", line("sent on average")),
        ("received a turn, kB", line("received on average")),
    ]
    return table("100 turns, from 100 messages", savers, lines)


def put_bytes(rows: Rows) -> str:
    lengths = (100, 1000, 3000)
    lines = [
        (
            f"sent by a `put` of {saver}, kB",
            [cell(rows.value(saver, workload="growth", metric="sent by put", messages=length)) for length in lengths],
        )
        for saver in rows.those(OF_REDIS, "growth")
    ]
    return table("Messages", [f"{length:,}" for length in lengths], lines)


def turns_a_second(rows: Rows) -> str:
    savers = rows.those((OURS, MEMORY, VALKEY, LANGGRAPH_REDIS, POSTGRES, SQLITE), "throughput")
    found = [cell(rows.value(saver, workload="throughput", metric="turns", callers=100)) for saver in savers]
    return table("100 callers", savers, [("turns a second, on one event loop", found)])


def capacity(rows: Rows) -> str:
    savers = rows.those((OURS, RAW_CALLS, VALKEY, LANGGRAPH_REDIS), "capacity")
    time, ratio = "server time a call", "of_raw_calls"
    wanted: Any = {"workload": "capacity", "callers": 60}
    calls = [
        f"{cell(rows.value(saver, metric=time, **wanted))} ({as_ratio(rows.value(saver, ratio, metric=time, **wanted))})"
        for saver in savers
    ]
    fill = [cell(rows.value(saver, metric="turns that fill a core", **wanted)) for saver in savers]
    names = ["a bare SET for each" if saver == RAW_CALLS else saver for saver in savers]
    lines = [("Redis' time a call, microseconds", calls), ("turns a second that fill a core", fill)]
    return table("60 callers", names, lines if savers else [])


def delta(rows: Rows) -> str:
    columns = {
        "list: sent": (PLAIN, "sent on average"),
        "received": (PLAIN, "received on average"),
        "`DeltaChannel`: sent": (DELTA, "sent on average"),
        "received, with it": (DELTA, "received on average"),
        "its worst turn, both ways": (DELTA, "worst turn, both ways"),
    }
    wanted: Any = {"workload": "delta", "turns": 50}
    lines: Lines = [
        (
            f"{saver}, {length:,} messages",
            [
                cell(rows.value(saver, messages=length, channel=channel, metric=metric, **wanted))
                for channel, metric in columns.values()
            ],
        )
        for saver in rows.those(OF_REDIS, "delta")
        for length in LENGTHS
    ]
    return table("kB a turn", list(columns), lines)


def deep_agent(rows: Rows) -> str:
    savers = rows.those((OURS, MEMORY, VALKEY, LANGGRAPH_REDIS, POSTGRES, SQLITE), "deep-agent")
    wanted: Any = {"workload": "deep-agent", "turns": 100}

    def halves(saver: str, metric: str) -> str:
        both = [rows.value(saver, metric=metric, half=half, **wanted) for half in ("first", "second")]
        return "" if None in both else ", ".join(map(cell, both))

    lines = [
        ("sent, first 50 and last 50, kB", [halves(saver, "sent on average") for saver in savers]),
        ("received, first 50 and last 50, kB", [halves(saver, "received on average") for saver in savers]),
        (
            "the worst turn, both ways, kB",
            [cell(rows.value(saver, metric="worst turn, both ways", **wanted)) for saver in savers],
        ),
        (
            f"time of the last 50, x `{MEMORY}`",
            [as_ratio(rows.value(saver, "of_memory", metric="turn", half="second", **wanted)) for saver in savers],
        ),
    ]
    return table("A turn", savers, lines)


def stores(rows: Rows) -> str:
    names = {OURS: "RedisStore", "sqlite": "SqliteStore", "postgres": "PostgresStore", "valkey": "ValkeyStore"}
    names["langgraph.store.redis"] = "`langgraph.store.redis`"
    savers = rows.those(names, "store")
    _, middle, many = SIZES
    calls = {
        "get": "`get`",
        "put": "`put`",
        "batch of 100 gets": "`batch` of 100 gets",
        "batch of 100 puts": "`batch` of 100 puts",
        f"search of {middle:,}, the newest 10": f"`search` of {middle:,}, the newest 10",
        f"search of {middle:,}, filter, 10 of a third": f"`search` of {middle:,} with a filter, 10 found",
        f"search of {many:,}, the newest 10": f"`search` of {many:,}, the newest 10",
    }
    lines = [
        (said, [cell(rows.value(saver, workload="store", metric=metric), 1 / 1000) for saver in savers])
        for metric, said in calls.items()
    ]
    return table("", [names[saver] for saver in savers], lines)


def overheads(rows: Rows) -> str:
    calls = {"turn": "a turn", "put": "a `put`", "put_writes": "a `put_writes`"}
    lines: Lines = []
    for option in OPTIONS:
        wanted: Any = {"workload": "overheads", "option": option}
        ratios = [rows.value(OURS, metric=f"{what}: work, x without", **wanted) for what in calls]
        if any(ratios):  # else the option is newer than the result
            lines.append((option, list(map(as_ratio, ratios))))
    return table("Work with it, x without", list(calls.values()), lines)


def third_party(rows: Rows) -> str:
    """Return the median of the ratios to `InMemorySaver`, and how many runs were measured."""
    savers = (OURS, POSTGRES, SQLITE)
    lines: Lines = []
    for title, wanted in THIRD_PARTY.items():
        ratios = {
            saver: [
                row["of_memory"]
                for row in rows.all
                if row["saver"] == saver and row["of_memory"] and wanted.items() <= row.items()
            ]
            for saver in savers
        }
        if ratios[OURS]:
            cells = [as_ratio(statistics.median(ratios[saver])) if ratios[saver] else "" for saver in savers]
            lines.append((f"{title} ({len(ratios[OURS])})", cells))
    return table("Time, x `InMemorySaver`", savers, lines)


THIRD_PARTY: dict[str, dict[str, str]] = {
    "LangGraph's graphs, default durability": {"workload": "langgraph", "durability": "async"},
    'LangGraph\'s graphs, `durability="exit"`': {"workload": "langgraph", "durability": "exit"},
    "LangGraph's `DeltaChannel`s: write": {"workload": "langgraph-delta", "metric": "write"},
    "LangGraph's `DeltaChannel`s: read": {"workload": "langgraph-delta", "metric": "read"},
    "DeerFlow's messages: write": {"workload": "deerflow-channels", "metric": "write"},
    "DeerFlow's agent: turn": {"workload": "deerflow-production", "metric": "turn"},
    "DeerFlow's agent: state by HTTP": {"workload": "deerflow-production", "metric": "state"},
    "DeerFlow's agent: history of 50 by HTTP": {"workload": "deerflow-production", "metric": "history of 50"},
    "DeerFlow's messages: cold read": {"workload": "deerflow-channels", "metric": "cold read"},
}
"""Lines of the table, each with the fields of the rows it has."""
_SYNC = {"flavour": "sync", "durability": "sync"}
TABLES: dict[str, Callable[[Rows], str]] = {
    "turn": turn,
    "fleet": fleet,
    "shapes": shapes,
    "cost": cost,
    "put-bytes": put_bytes,
    "turns-a-second": turns_a_second,
    "capacity": capacity,
    "delta": delta,
    "deep-agent": deep_agent,
    "stores": stores,
    "overheads": overheads,
    "third-party": third_party,
}


def rendered(text: str, result: Result) -> str:
    """Return a page with a result's figures in its tables."""
    rows = Rows(result)
    return _TABLE.sub(lambda found: found[1] + (TABLES[found[2]](rows) or found[3]) + found[4], text)


def write(result: Result) -> list[Path]:
    """Write the tables of all pages. Returns the pages that changed."""
    changed = []
    for page in PAGES:
        if (text := page.read_text()) != (new := rendered(text, result)):
            page.write_text(new)
            changed.append(page)
    return changed
