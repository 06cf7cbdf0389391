"""Plots as SVG. Each line is named at its end. The colours contrast equally with white and with a dark page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

from bench.contestants import MEMORY, NOTHING, OURS, POSTGRES, RAW_CALLS
from bench.results import Result

INK = "#75787b"
COLORS = {
    OURS: "#d4480c", "ValkeySaver": "#7a5cf0", "langgraph-checkpoint-redis": "#d6336c", POSTGRES: "#1a7fd4",
    "SqliteSaver": "#9a7400", MEMORY: "#2b8a3e", RAW_CALLS: INK, NOTHING: INK,
}  # fmt: skip
NAMES = {RAW_CALLS: "bare Redis calls", NOTHING: "LangGraph alone"}
"""Names in plots that differ from the saver's."""
STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "redis_saver", "font.family": "sans-serif", "font.size": 13,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "grid.color": INK, "grid.alpha": 0.25,
    "savefig.transparent": True, "figure.figsize": (10, 5.6),
}  # fmt: skip
RIGHT_OF_LINES = 0.7
"""Share of the plot's width for the lines; their names follow."""
LINE_HEIGHT = 1.35
"""Distance of names below each other, as a multiple of the font size."""
Rows = list[dict[str, Any]]


def lines(rows: Rows, x: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return the points of each saver, with field `x` on the x axis."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in sorted(rows, key=lambda row: row[x]):
        xs, ys = found.setdefault(row["saver"], ([], []))
        xs.append(row[x])
        ys.append(row["median"])
    return {saver: found[saver] for saver in COLORS if saver in found}


def apart(places: list[float], least: float) -> list[float]:
    """Move sorted places as little as possible, so that they are `least` apart."""
    found: list[list[float]] = []  # groups of places that touch
    for place in places:
        found.append([place])
        while len(found) > 1 and _low(found[-1], least) < _low(found[-2], least) + least * len(found[-2]):
            touching = found.pop()
            found[-1] += touching
    return [_low(group, least) + least * number for group in found for number in range(len(group))]


def _low(group: list[float], least: float) -> float:
    """Return the place of a group's first member that keeps the group's middle."""
    return sum(group) / len(group) - least * (len(group) - 1) / 2


def name_lines(axes: Any, drawn: dict[str, tuple[list[float], list[float]]], unit: str) -> None:
    """Write each saver's name and last value at the end of its line, without overlaps."""
    ends = sorted((ys[-1], saver) for saver, (_, ys) in drawn.items())
    points = axes.transData.transform([(1, value) for value, _ in ends])[:, 1]
    size = mpl.rcParams["font.size"] * axes.figure.dpi / 72
    for (value, saver), place in zip(ends, apart(list(points), LINE_HEIGHT * size), strict=True):
        at = axes.transAxes.inverted().transform((0, place))[1]
        said = f"{NAMES.get(saver, saver)}: {value:,.3g} {unit}"
        weight = "bold" if saver == OURS else "normal"
        axes.text(1.02, at, said, transform=axes.transAxes, va="center", color=COLORS[saver], weight=weight)


def plot(
    rows: Rows, x: str, title: str, xlabel: str, unit: str, file: Path, shape: Callable[[Any], None]
) -> Path | None:
    """Draw one plot; return None if there are no rows for it."""
    if not rows:
        return None
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots()
        figure.subplots_adjust(left=0.07, right=RIGHT_OF_LINES, top=0.9, bottom=0.12)
        drawn = lines(rows, x)
        for saver, (xs, ys) in drawn.items():
            width, dash = (4, "-") if saver == OURS else (2, ":" if saver in (NOTHING, RAW_CALLS) else "-")
            axes.plot(xs, ys, dash, marker="o", markersize=5, linewidth=width, color=COLORS[saver], clip_on=False)
        axes.set_title(title, loc="left", fontsize=16, pad=14)
        axes.set_xlabel(xlabel)
        axes.grid(True, which="major", axis="y")
        shape(axes)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(mpl.ticker.FixedLocator(sorted({row[x] for row in rows})))
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.4g}"))
        name_lines(axes, drawn, unit)
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)
    return file


def _log_x(axes: Any) -> None:
    axes.set_xscale("log")


def _linear(axes: Any) -> None:
    axes.set_xlim(left=0)


def draw(result: Result, folder: Path) -> list[Path]:
    """Draw all plots that the result has rows for."""

    def rows(**wanted: Any) -> Rows:
        return [row for row in result["rows"] if all(row.get(key) == value for key, value in wanted.items())]

    chat = rows(workload="chat", metric="turn", flavour="sync", durability="sync", start="warm")
    kept = [row for row in rows(workload="cost", metric="memory grown") if row["saver"] != RAW_CALLS]
    drawn = [
        plot(
            chat, "messages", "A turn of an agent: milliseconds, less is better", "messages in the chat before the turn",
            "ms", folder / "chat.svg", _linear,
        ),
        plot(
            rows(workload="throughput", metric="turns"), "callers", "Turns a second (/s) of one process: more is better",
            "callers at once, each in a chat of 50 messages", "/s", folder / "throughput.svg", _log_x,
        ),
        plot(
            kept, "turns", "What a chat leaves in the server: megabytes, less is better",
            "turns from 100 messages on, with the whole history kept", "MB", folder / "memory.svg", _linear,
        ),
    ]  # fmt: skip
    return [file for file in drawn if file is not None]
