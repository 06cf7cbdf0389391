"""The commands `migrate`, `export` and `import`, which copy threads; with `--store`, the items of a store (`items.py`)."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from redis_saver._cli import items
from redis_saver._cli.arguments import add_namespace, duration, refuse_embedded
from redis_saver._cli.show import MAX_PROBLEMS, progress_bar, tell_problems
from redis_saver._common.display import shown
from redis_saver._migrate.engine import SAMPLE, Report, migrate
from redis_saver._migrate.item_opening import STORE_FORMS
from redis_saver._migrate.opening import FORMS, SOURCE_FORMS, opened
from redis_saver.errors import EndpointError


def add(commands: Any) -> None:
    """Add the commands to a parser's."""
    about = (
        "Copy threads with all their history, and compare. What the target has already is not written again, so an interrupted migration "
        "goes on where it ended. A thread that differs in the target is left alone and named. With --store: copy the items of a store."
    )
    endpoints = f"SOURCE and TARGET: {FORMS}. SOURCE may also be {SOURCE_FORMS}. With LANGGRAPH_AES_KEY set, encrypted values are read, and all values are written encrypted. With --store: {STORE_FORMS}."
    moving = commands.add_parser(
        "migrate", allow_abbrev=False, help="copy threads between savers", description=about, epilog=endpoints
    )
    moving.add_argument("source", metavar="SOURCE", help="where the threads or items are (it is only read)")
    moving.add_argument("target", metavar="TARGET", help="where to copy them")
    _add_options(moving, source=True, target=True)

    about = "Write threads with all their history to a file, or with --store the items of a store. The file appears under its name when it is complete."
    saving = commands.add_parser(
        "export",
        allow_abbrev=False,
        help="write threads, or the items of a store, to a file",
        description=about,
        epilog=endpoints,
    )
    saving.add_argument("source", metavar="SOURCE", help="where the threads or items are")
    saving.add_argument("target", metavar="FILE", help="a file that is not there yet", type=_file)
    _add_options(saving, source=True, target=False)

    about = "Read threads, or the items of a store, from a file that export wrote. Its first line says which. The whole file is checked before anything is written."
    loading = commands.add_parser(
        "import",
        allow_abbrev=False,
        help="read threads, or the items of a store, from a file",
        description=about,
        epilog=endpoints,
    )
    loading.add_argument("source", metavar="FILE", help="a file that export wrote", type=_file)
    loading.add_argument("target", metavar="TARGET", help="where to copy them")
    _add_options(loading, source=False, target=True)


def _add_options(command: argparse.ArgumentParser, *, source: bool, target: bool) -> None:
    command.add_argument("--thread-prefix", default="", metavar="TEXT", help="only threads whose names begin with TEXT")
    command.add_argument(
        "--thread", dest="threads", action="append", metavar="NAME", help="only this thread (may be repeated)"
    )
    command.add_argument(
        "--sample",
        type=_count,
        default=SAMPLE,
        metavar="N",
        help="checkpoints of each copied thread to read again and compare in full (default: %(default)s)",
    )
    keys = "the beginning of all keys in a {} in Redis (default: {})"
    if source:
        command.add_argument("--store", action="store_true", help="the items of a store instead of threads")
        default = "langgraph; of other packages' savers, whatever it is"
        command.add_argument("--source-prefix", metavar="PREFIX", help=keys.format("SOURCE", default))
    said = "of a store, only items whose namespaces begin with these labels, such as --namespace memories user-1"
    add_namespace(command, said=said, action="store")
    if target:
        command.add_argument(
            "--target-prefix", default="langgraph", metavar="PREFIX", help=keys.format("TARGET", "%(default)s")
        )
        command.add_argument(
            "--ttl",
            type=duration,
            metavar="DURATION",
            help="when threads expire in a TARGET in Redis, such as 7d or 90m (default: never), and when items do (default: as in the source)",
        )
        command.add_argument(
            "--replace",
            choices=("older", "all"),
            help="of a store, replace an item of which TARGET has another value: if it was put earlier there, or always (default: leave and name it)",
        )
        command.add_argument(
            "--dry-run", action="store_true", help="write no thread and no item, and count what would be written"
        )
    command.set_defaults(
        run=_run,
        store=False,
        source_prefix=None,
        target_prefix="langgraph",
        ttl=None,
        replace=None,
        dry_run=False,
    )


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
    refuse_embedded(given.source)
    refuse_embedded(given.target)
    if given.store or items.is_file(given.source):
        if given.threads or given.thread_prefix or given.sample != SAMPLE:
            raise EndpointError(
                "--thread, --thread-prefix and --sample are about threads, and these are the items of a store"
            )
        return items.run(given)
    if given.namespace or given.replace:
        raise EndpointError(
            "--namespace and --replace are about the items of a store, and these are threads: say --store, too"
        )
    if given.threads and given.thread_prefix:
        raise EndpointError("--thread and --thread-prefix: give one of the two")
    return _move_threads(given)


def _move_threads(given: argparse.Namespace) -> int:
    with (
        opened(given.source, target=False, prefix=given.source_prefix) as source,
        opened(given.target, target=True, prefix=given.target_prefix, ttl=given.ttl) as target,
        progress_bar("threads") as show,
    ):

        def progress(report: Report) -> None:
            show(report.threads, report.total, f"{report.checkpoints:,} checkpoints")

        settings: Any = {"threads": given.threads, "thread_prefix": given.thread_prefix, "sample": given.sample}
        report = migrate(source, target, progress=progress, dry_run=given.dry_run, **settings)
    _tell(report, dry_run=given.dry_run)
    if given.thread_prefix and not report.total:
        sys.stderr.write(f"no thread's name begins with {shown(given.thread_prefix)}\n")
    return 1 if report.conflicts or report.failed else 0


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
        tell_problems([f"{kind}: {said}" for said in found[:MAX_PROBLEMS]], len(found), kind)
