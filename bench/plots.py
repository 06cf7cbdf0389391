"""The plots, as SVG that is readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

from bench.contestants import MEMORY, NOTHING, OURS
from bench.results import Result

INK = "#808080"
COLORS = {
    OURS: "#d9480f", MEMORY: "#2b8a3e", NOTHING: INK, "ValkeySaver": "#7048e8", "langgraph-checkpoint-redis": "#c2255c",
    "PostgresSaver": "#1c7ed6", "SqliteSaver": "#b08900",
}  # fmt: skip
STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "redis_saver", "font.family": "sans-serif", "font.size": 10,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "grid.color": INK, "grid.alpha": 0.25,
    "legend.frameon": False, "savefig.transparent": True, "figure.figsize": (6.4, 3.6),
}  # fmt: skip
Rows = list[dict[str, Any]]


def lines(rows: Rows, x: str) -> dict[str, tuple[list[float], list[float]]]:
    """The points of each saver, by a field of its rows."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in sorted(rows, key=lambda row: row[x]):
        xs, ys = found.setdefault(row["saver"], ([], []))
        xs.append(row[x])
        ys.append(row["median"])
    return {saver: found[saver] for saver in COLORS if saver in found}


def plot(rows: Rows, x: str, title: str, xlabel: str, file: Path, shape: Callable[[Any], None]) -> Path | None:
    """One plot, or None where nothing was measured for it."""
    if not rows:
        return None
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(layout="constrained")
        for saver, (xs, ys) in lines(rows, x).items():
            width, dash = (2.6, "-") if saver == OURS else (1.4, "--" if saver in (MEMORY, NOTHING) else "-")
            axes.plot(xs, ys, dash, marker="o", markersize=3.5, linewidth=width, color=COLORS.get(saver), label=saver)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel(xlabel)
        axes.grid(True, which="major")
        shape(axes)
        axes.xaxis.set_major_locator(mpl.ticker.FixedLocator(sorted({row[x] for row in rows})))
        if axes.get_yscale() == "log":
            axes.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.4g}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(mpl.ticker.NullFormatter())
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)
    return file


def _log_log(axes: Any) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")


def _log_x(axes: Any) -> None:
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)


def _log_y(axes: Any) -> None:
    axes.set_yscale("log")


def draw(result: Result, folder: Path) -> list[Path]:
    """All plots of a result that it has the rows for."""

    def rows(**wanted: Any) -> Rows:
        return [row for row in result["rows"] if all(row.get(key) == value for key, value in wanted.items())]

    chat = rows(workload="chat", metric="turn", flavour="sync", durability="sync", start="warm")
    drawn = [
        plot(chat, "messages", "A turn of an agent, ms", "messages of history", folder / "chat.svg", _log_log),
        plot(
            rows(workload="throughput", metric="turns"), "callers", "Turns a second, 50 messages of history",
            "callers at once", folder / "throughput.svg", _log_x,
        ),
        plot(
            rows(workload="cost", metric="memory grown"), "turns", "What turns leave in the server, MB",
            "turns, from 100 messages on", folder / "memory.svg", _log_y,
        ),
        plot(
            rows(workload="cost", metric="sent a turn"), "turns", "Sent to the server a turn, kB",
            "turns, from 100 messages on", folder / "sent.svg", _log_y,
        ),
    ]  # fmt: skip
    return [file for file in drawn if file is not None]
