"""The command line."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from bench import pages, results, table
from bench.contestants import OPENERS, Setting, open_all
from bench.measuring import Run
from bench.store import LANGGRAPH_REDIS, STORES, opening
from bench.workloads import DESCRIPTIONS, OF_STORES, WORKLOADS

WIDTH = 160
"""Width of the tables if the output is not a terminal."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Checkpoint savers and stores of LangGraph, side by side."
    )
    parser.add_argument("--quick", action="store_true", help="a rough answer within minutes")
    parser.add_argument("--smallest", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", action="append", metavar="NAME", help="this workload; may be given again")
    parser.add_argument("--savers", metavar="A,B", help="these savers; all are: " + ", ".join(OPENERS))
    parser.add_argument("--stores", metavar="A,B", help="these stores; all are: " + ", ".join(STORES))
    parser.add_argument("--list", action="store_true", help="say what workloads and savers there are")
    parser.add_argument(
        "--redis-url", help="for redis_saver: a Redis or Valkey that nobody else uses; else one is started"
    )
    parser.add_argument("--valkey-saver-url", help="for ValkeySaver: another one; else one is started")
    parser.add_argument(
        "--redis-modules-url",
        default=os.environ.get("REDIS_SAVER_STACK_URL"),
        help="a server with RedisJSON and RediSearch, for langgraph-checkpoint-redis and its store (default: REDIS_SAVER_STACK_URL; else one is started, if "
        "redis-stack-server is there)",
    )
    parser.add_argument("--postgres-url", help="a Postgres that nobody else uses; else one is started")
    parser.add_argument("--name", help="name of the result's file; by default date and time")
    parser.add_argument("--results", type=Path, default=results.FOLDER, help="folder of the results")
    commands = parser.add_subparsers(dest="command", metavar="plot | pages | profile | third-party | neighbours")
    plot = commands.add_parser("plot", help="draw the plots of a result again")
    plot.add_argument("file", type=Path)
    written = commands.add_parser("pages", help="write the tables of README.md and docs/ with the figures of a result")
    written.add_argument("file", type=Path)
    profile = commands.add_parser("profile", help="where the time of our chat turn goes")
    profile.add_argument("--messages", type=int, default=100)
    profile.add_argument("--async", action="store_true", dest="asynchronous")
    profile.add_argument("--seconds", type=float, default=10)
    profile.add_argument("--saver", default="redis_saver", choices=list(OPENERS))
    others = commands.add_parser(
        "third-party", help="run other people's benchmarks; without arguments, say how to get them"
    )
    others.add_argument("--langgraph", type=Path, metavar="CHECKOUT", help="of langchain-ai/langgraph")
    others.add_argument("--deerflow", type=Path, metavar="CHECKOUT", help="of bytedance/deer-flow")
    others.add_argument("--coding-agent", action="store_true", help="200 turns, as LangChain describes them")
    neighbours = commands.add_parser(
        "neighbours", help="run other people's packages on LangGraph's saver and on ours, and compare what they leave"
    )
    neighbours.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="these; default: all")
    given = parser.parse_args(arguments)
    for name in given.only or []:
        if name not in WORKLOADS:
            parser.error(f"--only {name}: there are {', '.join(WORKLOADS)}")
    given.names = given.savers.split(",") if given.savers else list(OPENERS)
    for name in given.names:
        if name not in OPENERS:
            parser.error(f"--savers {name}: there are {', '.join(OPENERS)}")
    given.store_names = given.stores.split(",") if given.stores else list(STORES)
    for name in given.store_names:
        if name not in STORES:
            parser.error(f"--stores {name}: there are {', '.join(STORES)}")
    return given


def setting_of(given: argparse.Namespace, stack: ExitStack) -> Setting:
    """Return the servers' URLs, and an event loop that is closed with the stack."""
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    return Setting(loop, stack, given.redis_url, given.valkey_saver_url, given.redis_modules_url, given.postgres_url)


def measure(given: argparse.Namespace, console: Console) -> results.Result:
    """Run the selected workloads."""
    started, clock = results.now(), time.monotonic()
    chosen = given.only or list(WORKLOADS)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as stack:
        setting = setting_of(given, stack)
        progress = stack.enter_context(Progress(*columns, console=console))
        bar = progress.add_task("opening the savers", total=len(chosen))
        contestants, absent = open_all(setting, given.names if set(chosen) - set(OF_STORES) else [])
        urls = {"postgres": given.postgres_url, LANGGRAPH_REDIS: given.redis_modules_url}
        urls = {name: url for name, url in urls.items() if url}

        def open_stores(names: Sequence[str], index: Any) -> AbstractContextManager[Sequence[Any]]:
            return opening([name for name in names if name in given.store_names], index, absent, urls)

        run = Run(contestants, setting.loop, given.quick, given.smallest, open_stores)
        for contestant in contestants:
            progress.console.print(f"{contestant.name}: {contestant.server or 'in this process'}")
        for name, reason in absent.items():
            progress.console.print(f"[yellow]{name} does not run: {reason}")

        def advance(what: str) -> None:
            progress.update(bar, description=what)

        run.advance = advance
        for name in chosen:
            begun = time.monotonic()
            WORKLOADS[name](run)
            run.finish(name)
            progress.console.print(f"{name}: {time.monotonic() - begun:.0f} s")
            progress.advance(bar)
        for failure in run.failures:
            progress.console.print(f"[red]{failure['saver']} failed in {failure['workload']}: {failure['reason']}")
        return results.collect(run, absent, started, time.monotonic() - clock)


def main(arguments: list[str] | None = None) -> None:
    given, console = parse(arguments), Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    warnings.filterwarnings("ignore", module="langgraph|langchain")
    signal.signal(signal.SIGTERM, _terminated)
    if given.list:
        for name, description in DESCRIPTIONS.items():
            console.print(f"[bold]{name:12}[/] {description}")
        console.print(f"[bold]{'savers':12}[/] {', '.join(OPENERS)}")
        console.print(f"[bold]{'stores':12}[/] {', '.join(STORES)}")
    elif given.command == "plot":
        draw(results.load(given.file), given, console)
    elif given.command == "pages":
        for page in pages.write(results.load(given.file)):
            console.print(f"written: {page}")
    elif given.command == "profile":
        from bench import profiling

        with ExitStack() as stack:
            setting = setting_of(given, stack)
            contestants, absent = open_all(setting, [given.saver])
            if absent:
                raise SystemExit(f"{given.saver}: {absent[given.saver]}")
            profiling.profile(contestants[0], setting.loop, given.messages, given.asynchronous, given.seconds, console)
    elif given.command == "third-party":
        run_third_party(given, console)
    elif given.command == "neighbours":
        from bench.neighbours import runner

        if unknown := set(given.scenarios) - set(runner.NEIGHBOURS):
            raise SystemExit(f"{', '.join(unknown)}: there are {', '.join(runner.NEIGHBOURS)}")
        if not runner.show(given.scenarios or runner.NEIGHBOURS, console):
            raise SystemExit(1)
    else:
        result = measure(given, console)
        file = results.save(result, given.results, given.name)
        table.show(result, console)
        console.print(f"written: {file}")
        draw(result, given, console)


def run_third_party(given: argparse.Namespace, console: Console) -> None:
    from bench import third_party

    chosen = {name: getattr(given, name) for name in ("langgraph", "deerflow", "coding_agent")}
    if not any(chosen.values()):
        console.print(third_party.SOURCES, markup=False, highlight=False)
        return
    started, clock = results.now(), time.monotonic()
    with ExitStack() as stack:
        setting = setting_of(given, stack)
        contestants, absent = open_all(setting, given.names if given.savers else list(third_party.SAVERS))
        run = Run(contestants, setting.loop, given.quick, given.smallest, advance=console.print)
        third_party.measure(run, **chosen)
        result = results.collect(run, absent, started, time.monotonic() - clock) | {"budgets": []}
    table.show(result, console)
    console.print(f"written: {results.save(result, given.results, given.name or 'third-party', latest=False)}")


def draw(result: results.Result, given: argparse.Namespace, console: Console) -> None:
    try:
        from bench import plots
    except ImportError as missing:
        console.print(f"[yellow]no plots: {missing}")
        return
    for file in plots.draw(result, given.results):
        console.print(f"written: {file}")


def _terminated(*_: Any) -> None:
    raise SystemExit(143)
