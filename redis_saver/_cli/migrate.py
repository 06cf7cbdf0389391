"""The commands `migrate`, `export` and `import`, which copy threads, or with `--store` the items of a store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias

import typer

from redis_saver._cli import screen
from redis_saver._cli.options import (
    JSON,
    Words,
    app,
    count,
    duration,
    flag,
    labels_of,
    option,
    refuse_embedded,
    words_of,
)
from redis_saver._common.display import counted, shown
from redis_saver._migrate.engine import SAMPLE, ItemsReport, Report, migrate, migrate_items
from redis_saver._migrate.opening import FORMS, SOURCE_FORMS, STORE_FORMS, is_file_of_items, opened, opened_store
from redis_saver.errors import EndpointError

_CODES = (
    f"SOURCE and TARGET: {FORMS}. SOURCE may also be {SOURCE_FORMS}. With LANGGRAPH_AES_KEY set, encrypted values are "
    f"read, and all values are written encrypted. With --store: {STORE_FORMS}. "
    "Exit code: 0, all is there; 1, something conflicts or failed; 2, a URL, a login, a file or a missing package is "
    "at fault."
)
_Source: TypeAlias = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Where the threads or items are (it is only read).")
]
_Target: TypeAlias = Annotated[str, typer.Argument(metavar="TARGET", help="Where to copy them.")]
_THREADS = option("Only this thread (may be repeated).", "NAME", None, "--thread")
_THREAD_PREFIX = option("Only threads whose names begin with TEXT.", "TEXT", "")
_SAMPLE = option(
    "Checkpoints of each copied thread to read again and compare in full.", "N", SAMPLE, parser=count("checkpoints", 0)
)
_STORE = flag("--store", "The items of a store instead of threads.")
_SOURCE_PREFIX = option(
    "The beginning of all keys in a SOURCE in Redis (default: langgraph; of other packages' savers, whatever it is).",
    "PREFIX",
)
_TARGET_PREFIX = option("The beginning of all keys in a TARGET in Redis.", "PREFIX", "langgraph")
_NAMESPACE = option(
    "Of a store, only items whose namespaces begin with these labels, such as --namespace memories user-1.", "LABEL..."
)
_TTL = option(
    "When threads expire in a TARGET in Redis, such as 7d or 90m (default: never), and when items do "
    "(default: as in the source).",
    "DURATION",
    parser=duration,
)
_REPLACE = option(
    "Of a store, replace an item of which TARGET has another value: if it was put earlier there, or always. "
    "Default: leave and name it."
)
_DRY_RUN = flag("--dry-run", "Write no thread and no item, and count what would be written.")
_Replace: TypeAlias = Literal["older", "all"]


@app.command("migrate", cls=Words, epilog=_CODES)
def _migrate(
    source: _Source,
    target: _Target,
    *,
    threads: list[str] | None = _THREADS,
    thread_prefix: str = _THREAD_PREFIX,
    sample: int = _SAMPLE,
    store: bool = _STORE,
    source_prefix: str | None = _SOURCE_PREFIX,
    target_prefix: str = _TARGET_PREFIX,
    namespace: list[str] | None = _NAMESPACE,
    ttl: timedelta | None = _TTL,
    replace: _Replace | None = _REPLACE,
    dry_run: bool = _DRY_RUN,
    as_json: bool = JSON,
) -> int:
    """Copy threads between savers with all their history, and compare.

    What the target has already is not written again, so an interrupted migration goes on where it ended.
    A thread that differs in the target is left alone and named. With --store: copy the items of a store.
    """
    if dry_run and target.startswith("file:"):
        raise EndpointError(
            "--dry-run compares with what the target has, and a file is always new: leave --dry-run out"
        )
    refuse_embedded(source)
    refuse_embedded(target)
    labels, *others = words_of(namespace) or [[]]
    if others:
        again = shown(" ".join(others[0]))
        raise EndpointError(f"--namespace {again}: give --namespace once, and run this again for another")
    common: Any = {"dry_run": dry_run, "as_json": as_json}
    if store or is_file_of_items(source):
        if threads or thread_prefix or sample != SAMPLE:
            raise EndpointError(
                "--thread, --thread-prefix and --sample are about threads, and these are the items of a store"
            )
        source_prefix = "langgraph" if source_prefix is None else source_prefix
        return _move_items(source, source_prefix, target, target_prefix, labels, replace=replace, ttl=ttl, **common)
    if namespace or replace:
        raise EndpointError(
            "--namespace and --replace are about the items of a store, and these are threads: say --store, too"
        )
    if threads and thread_prefix:
        raise EndpointError("--thread and --thread-prefix: give one of the two")
    with (
        opened(source, target=False, prefix=source_prefix) as there,
        opened(target, target=True, prefix=target_prefix, ttl=ttl) as here,
        screen.progress_bar("threads") as show,
    ):

        def progress(report: Report) -> None:
            show(report.threads, report.total, counted(report.checkpoints, "checkpoint"))

        report = migrate(
            there,
            here,
            threads=threads,
            thread_prefix=thread_prefix,
            sample=sample,
            dry_run=dry_run,
            progress=progress,
        )
    _print_threads(report, **common)
    if thread_prefix and not report.total:
        screen.note(f"no thread's name begins with {shown(thread_prefix)}")
    return 1 if report.conflicts or report.failed else 0


@app.command("export", cls=Words, epilog=_CODES)
def _export(
    source: _Source,
    target: Annotated[str, typer.Argument(metavar="FILE", help="A file that is not there yet.")],
    *,
    threads: list[str] | None = _THREADS,
    thread_prefix: str = _THREAD_PREFIX,
    sample: int = _SAMPLE,
    store: bool = _STORE,
    source_prefix: str | None = _SOURCE_PREFIX,
    namespace: list[str] | None = _NAMESPACE,
    as_json: bool = JSON,
) -> int:
    """Write threads with all their history to a file, or with --store the items of a store.

    The file appears under its name when it is complete.
    """
    words: Any = {"threads": threads, "thread_prefix": thread_prefix, "sample": sample, "store": store}
    words |= {"source_prefix": source_prefix, "target_prefix": "langgraph", "namespace": namespace, "as_json": as_json}
    return _migrate(source, _file(target), ttl=None, replace=None, dry_run=False, **words)


@app.command("import", cls=Words, epilog=_CODES)
def _import(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A file that export wrote.")],
    target: _Target,
    *,
    threads: list[str] | None = _THREADS,
    thread_prefix: str = _THREAD_PREFIX,
    sample: int = _SAMPLE,
    target_prefix: str = _TARGET_PREFIX,
    namespace: list[str] | None = _NAMESPACE,
    ttl: timedelta | None = _TTL,
    replace: _Replace | None = _REPLACE,
    dry_run: bool = _DRY_RUN,
    as_json: bool = JSON,
) -> int:
    """Read threads, or the items of a store, from a file that export wrote.

    Its first line says which. The whole file is checked before anything is written.
    """
    words: Any = {"threads": threads, "thread_prefix": thread_prefix, "sample": sample, "target_prefix": target_prefix}
    words |= {"namespace": namespace, "ttl": ttl, "replace": replace, "dry_run": dry_run, "as_json": as_json}
    return _migrate(_file(source), target, store=False, source_prefix=None, **words)


def _file(text: str) -> str:
    return text if text.startswith("file:") else f"file:{text}"


def _print_threads(report: Report, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        screen.emit(report)
        return
    would = "to be " if dry_run else ""
    screen.line(
        f"{counted(report.threads, 'thread')}: {report.moved:,} {would}copied, {report.completed:,} {would}completed, "
        f"{report.unchanged:,} there already, {counted(len(report.conflicts), 'conflict')}, "
        f"{len(report.failed):,} failed"
    )
    screen.line(
        f"{counted(report.checkpoints, 'checkpoint')} and {report.writes:,} groups of pending writes {would}written, "
        f"{counted(report.compared, 'checkpoint')} compared, {report.seconds:.1f} s"
    )
    for kind, texts in (("conflict", report.conflicts), ("failed", report.failed)):
        screen.problems([f"{kind}: {text}" for text in texts[: screen.MAX_PROBLEMS]], len(texts), kind)


def _move_items(
    source: str,
    source_prefix: str,
    target: str,
    target_prefix: str,
    words: Sequence[str],
    *,
    replace: _Replace | None,
    ttl: timedelta | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Copy items, and return the exit code."""
    labels = labels_of(words)
    with (
        opened_store(source, target=False, prefix=source_prefix) as there,
        opened_store(target, target=True, prefix=target_prefix) as here,
        screen.progress_bar("items") as show,
    ):

        def progress(report: ItemsReport) -> None:
            show(report.items, None, f"{report.written + report.replaced:,} written")

        report = migrate_items(
            there, here, namespace=labels, replace=replace, ttl=ttl, dry_run=dry_run, progress=progress
        )
    if as_json:
        screen.emit(report)
    else:
        would = "to be " if dry_run else ""
        screen.line(
            f"{counted(report.items, 'item')}: {report.written:,} {would}copied, {report.replaced:,} {would}replaced, "
            f"{report.unchanged:,} there already, {report.expired:,} expired, {counted(report.conflicts, 'conflict')}, "
            f"{report.failed:,} failed, {report.seconds:.1f} s"
        )
        for kind, number in (("conflict", report.conflicts), ("failed", report.failed)):
            screen.problems([text for text in report.problems if text.startswith(f"{kind}: ")], number, kind)
    if labels and not report.items:
        screen.note(f"no item's namespace begins with {shown(labels)}")
    return 1 if report.conflicts or report.failed else 0
