"""The commands `migrate`, `export` and `import`, which copy threads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from redis_saver._cli.arguments import duration
from redis_saver._common.display import shown
from redis_saver._migrate.engine import SAMPLE, Report, migrate
from redis_saver._migrate.opening import FORMS, opened
from redis_saver.errors import EndpointError

_SHOWN = 20
"""The most conflicts, and the most failures, that are shown."""


def add(commands: Any) -> None:
    """Add the commands to a parser's."""
    about = (
        "Copy threads with all their history, and compare. What the target has already is not written again, so an interrupted migration "
        "goes on where it ended. A thread that differs in the target is left alone and named."
    )
    endpoints = f"SOURCE and TARGET: {FORMS}. With LANGGRAPH_AES_KEY set, encrypted values are read, and all values are written encrypted."
    moving = commands.add_parser(
        "migrate", allow_abbrev=False, help="copy threads between savers", description=about, epilog=endpoints
    )
    moving.add_argument("source", metavar="SOURCE", help="where the threads are (it is only read)")
    moving.add_argument("target", metavar="TARGET", help="where to copy them")
    _add_options(moving, source=True, target=True)

    about = "Write threads with all their history to a file. The file appears under its name when it is complete."
    saving = commands.add_parser(
        "export", allow_abbrev=False, help="write threads to a file", description=about, epilog=endpoints
    )
    saving.add_argument("source", metavar="SOURCE", help="where the threads are")
    saving.add_argument("target", metavar="FILE", help="a file that is not there yet", type=_file)
    _add_options(saving, source=True, target=False)

    about = "Read threads from a file that export wrote. The whole file is checked before anything is written."
    loading = commands.add_parser(
        "import", allow_abbrev=False, help="read threads from a file", description=about, epilog=endpoints
    )
    loading.add_argument("source", metavar="FILE", help="a file that export wrote", type=_file)
    loading.add_argument("target", metavar="TARGET", help="where to copy the threads")
    _add_options(loading, source=False, target=True)


def _add_options(command: argparse.ArgumentParser, *, source: bool, target: bool) -> None:
    command.add_argument("--thread-prefix", default="", metavar="TEXT", help="only threads whose names begin with TEXT")
    command.add_argument(
        "--sample",
        type=_count,
        default=SAMPLE,
        metavar="N",
        help="checkpoints of each copied thread to read again and compare in full (default: %(default)s)",
    )
    keys = "the beginning of all keys in a SOURCE in Redis (default: %(default)s)"
    if source:
        command.add_argument("--source-prefix", default="langgraph", metavar="PREFIX", help=keys)
    if target:
        command.add_argument(
            "--target-prefix", default="langgraph", metavar="PREFIX", help=keys.replace("SOURCE", "TARGET")
        )
        command.add_argument(
            "--ttl",
            type=duration,
            metavar="DURATION",
            help="when threads expire in a TARGET in Redis, such as 7d or 90m (default: never)",
        )
        command.add_argument("--dry-run", action="store_true", help="write no thread, and count what would be written")
    command.set_defaults(run=_run, source_prefix="langgraph", target_prefix="langgraph", ttl=None, dry_run=False)


def _file(text: str) -> str:
    return text if text.startswith("file:") else f"file:{text}"


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{shown(text)} is no number of checkpoints: write 0 or more")
    return int(text)


def _run(given: argparse.Namespace) -> int:
    if given.dry_run and given.target.startswith("file:"):
        raise EndpointError(
            "--dry-run compares with what the target has, and a file is always new: leave --dry-run out"
        )
    for url in (given.source, given.target):
        if url.startswith("memory:"):
            raise EndpointError(
                f"{url}: an embedded server is empty when this command begins, and ends with it. Name a server, such as redis://host:6379"
            )
    with (
        opened(given.source, target=False, prefix=given.source_prefix) as source,
        opened(given.target, target=True, prefix=given.target_prefix, ttl=given.ttl) as target,
        _progress() as progress,
    ):
        settings: Any = {"thread_prefix": given.thread_prefix, "sample": given.sample, "dry_run": given.dry_run}
        report = migrate(source, target, progress=progress, **settings)
    _tell(report, dry_run=given.dry_run)
    if given.thread_prefix and not report.total:
        sys.stderr.write(f"no thread's name begins with {shown(given.thread_prefix)}\n")
    return 1 if report.conflicts or report.failed else 0


@contextmanager
def _progress() -> Iterator[Callable[[Report], None] | None]:
    """A progress bar, if this is a terminal and rich (extra `cli`) is installed; if not, None."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("threads  {task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        row = bar.add_task("", total=None)

        def show(report: Report) -> None:
            said = f"{report.checkpoints:,} checkpoints"
            bar.update(row, completed=report.threads, total=report.total, description=said)

        yield show


def _tell(report: Report, *, dry_run: bool) -> None:
    would = "to be " if dry_run else ""
    lines = [
        f"{report.threads:,} threads: {report.moved:,} {would}copied, {report.completed:,} {would}completed, {report.unchanged:,} there already, "
        f"{len(report.conflicts):,} conflicts, {len(report.failed):,} failed",
        f"{report.checkpoints:,} checkpoints and {report.writes:,} groups of pending writes {would}written, "
        f"{report.compared:,} checkpoints compared, {report.seconds:.1f} s",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    for kind, found in (("conflict", report.conflicts), ("failed", report.failed)):
        for said in found[:_SHOWN]:
            sys.stderr.write(f"{kind}: {' '.join(said.split())}\n")
        if len(found) > _SHOWN:
            sys.stderr.write(f"{kind}: and {len(found) - _SHOWN:,} more\n")
