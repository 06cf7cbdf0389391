"""A result as text."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measuring import BASES
from bench.results import Result

_FIXED = {
    "workload", "metric", "unit", "saver", "median", "p25", "p75", "p90", "p99", "min", "samples", *BASES,
}  # fmt: skip


def case_of(row: dict[str, Any]) -> str:
    """Return the fields of a row that describe its case."""
    case = {key: value for key, value in row.items() if key not in _FIXED}
    told = [f"{value:,} {key}" for key, value in case.items() if isinstance(value, int)]
    told += [value if key == "flavour" else f"{key} {value}" for key, value in case.items() if isinstance(value, str)]
    return ", ".join(told)


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def show(result: Result, console: Console) -> None:
    """Print all rows by workload, the savers that did not run, and the budgets."""
    for workload in dict.fromkeys(row["workload"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["workload"] == workload]
        others = {row["saver"] for row in rows if row["saver"] not in result["savers"]}
        show_workload(rows, [*result["savers"], *sorted(others)], workload, console)
    for name, reason in result["not_run"].items():
        console.print(f"[yellow]{name} did not run: {reason}")
    for failure in result["failures"]:
        console.print(f"[red]{failure['saver']} failed in {failure['workload']}: {failure['reason']}")
    for note in result["notes"]:
        console.print(f"{note['workload']}, {note['saver']}: {note['note']}")
    budgets = Table("budget", "limit", "measured", "met", title="Budgets")
    for budget in result["budgets"]:
        met = {True: "[green]yes", False: "[red]no", None: "not measured"}[budget["met"]]
        budgets.add_row(budget["budget"], budget["limit"], number(budget["measured"]), met)
    if result["budgets"]:
        console.print(budgets)


def show_workload(rows: list[dict[str, Any]], savers: list[str], workload: str, console: Console) -> None:
    bases = ("of_memory", "of_raw_calls", "of_ours")
    base = next((each for each in bases if any(row[each] is not None for row in rows)), bases[0])
    measured = {row["saver"] for row in rows}
    savers = [saver for saver in savers if saver in measured]
    is_alone = len(savers) == 1
    brackets = "" if is_alone else f", and in brackets the ratio to {BASES[base]}"
    shown = Table(title=f"{workload}: medians{brackets}", title_justify="left")
    shown.add_column("", min_width=30)
    for saver in savers:
        shown.add_column(saver, justify="right", no_wrap=True)
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        bracket = "" if is_alone or row[base] is None else f" ({row[base]:.2f})"
        line = f"{row['metric']}, {row['unit']}: {case_of(row)}"
        lines.setdefault(line, {})[row["saver"]] = number(row["median"]) + bracket
    for line, cells in lines.items():
        shown.add_row(line, *(cells.get(saver, "-") for saver in savers))
    console.print(shown)
