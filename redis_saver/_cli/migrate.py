"""The commands `migrate`, `export` and `import`, which copy threads, or with `--store` the items of a store."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import typer

from redis_saver._cli import screen
from redis_saver._cli.options import JSON, command, count, duration, labels_of, refuse_embedded, words_of
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
_Replace: TypeAlias = Literal["older", "all"]


@command("migrate", _CODES)
def _migrate(
    source: str,
    target: str,
    *,
    threads: list[str] | None = typer.Option(None, "--thread"),
    thread_prefix: str = "",
    sample: int = typer.Option(SAMPLE, parser=count("checkpoints", 0)),
    store: bool = False,
    source_prefix: str | None = None,
    target_prefix: str = "langgraph",
    namespace: list[str] | None = None,
    ttl: timedelta | None = typer.Option(None, parser=duration),
    replace: _Replace | None = None,
    dry_run: bool = False,
    as_json: bool = JSON,
) -> int:
    """Copy threads between savers with all their history, and compare.

    What the target has already is not written again, so an interrupted migration goes on where it ended.
    A thread that differs in the target is left alone and named. With --store: copy the items of a store.

    Options:
        source SOURCE: Where the threads or items are (it is only read).
        target TARGET: Where to copy them.
        threads NAME: Only this thread (may be repeated).
        thread_prefix TEXT: Only threads whose names begin with TEXT.
        sample N: Checkpoints of each copied thread to read again and compare in full.
        store: The items of a store instead of threads.
        source_prefix PREFIX: The beginning of all keys in a SOURCE in Redis (default: langgraph; of other packages'
            savers, whatever it is).
        target_prefix PREFIX: The beginning of all keys in a TARGET in Redis.
        namespace LABEL...: Of a store, only items whose namespaces begin with these labels, such as --namespace
            memories user-1.
        ttl DURATION: When threads expire in a TARGET in Redis, such as 7d or 90m (default: never), and when items do
            (default: as in the source).
        replace: Of a store, replace an item of which TARGET has another value: if it was put earlier there, or always.
            Default: leave and name it.
        dry_run: Write no thread and no item, and count what would be written.
    """
    if dry_run and target.startswith("file:"):
        raise EndpointError(
            "--dry-run compares with what the target has, and a file is always new: leave --dry-run out"
        )
    refuse_embedded(source)
    refuse_embedded(target)
    words, *others = words_of(namespace) or [[]]
    if others:
        again = shown(" ".join(others[0]))
        raise EndpointError(f"--namespace {again}: give --namespace once, and run this again for another")
    if store or is_file_of_items(source):
        if threads or thread_prefix or sample != SAMPLE:
            raise EndpointError(
                "--thread, --thread-prefix and --sample are about threads, and these are the items of a store"
            )
        return _move_items(
            opened_store(source, target=False, prefix=source_prefix),
            opened_store(target, target=True, prefix=target_prefix),
            labels_of(words),
            dry_run=dry_run,
            as_json=as_json,
            replace=replace,
            ttl=ttl,
        )
    if namespace or replace:
        raise EndpointError(
            "--namespace and --replace are about the items of a store, and these are threads: say --store, too"
        )
    if threads and thread_prefix:
        raise EndpointError("--thread and --thread-prefix: give one of the two")
    return _move_threads(
        opened(source, target=False, prefix=source_prefix),
        opened(target, target=True, prefix=target_prefix, ttl=ttl),
        thread_prefix,
        dry_run=dry_run,
        as_json=as_json,
        threads=threads,
        sample=sample,
    )


@command(
    "export",
    _CODES,
    like=_migrate,
    fixed={"target_prefix": "langgraph", "ttl": None, "replace": None, "dry_run": False},
)
def _export(target: str, **words: Any) -> int:
    """Write threads with all their history to a file, or with --store the items of a store.

    The file appears under its name when it is complete.

    Options:
        target FILE: A file that is not there yet.
    """
    return _migrate(target=f"file:{target.removeprefix('file:')}", **words)


@command("import", _CODES, like=_migrate, fixed={"store": False, "source_prefix": None})
def _import(source: str, **words: Any) -> int:
    """Read threads, or the items of a store, from a file that export wrote.

    Its first line says which. The whole file is checked before anything is written.

    Options:
        source FILE: A file that export wrote.
    """
    return _migrate(source=f"file:{source.removeprefix('file:')}", **words)


def _move_threads(
    source: AbstractContextManager[Any],
    target: AbstractContextManager[Any],
    prefix: str,
    *,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Copy threads, and return the exit code."""

    def progress(report: Report) -> None:
        show(report.threads, report.total, counted(report.checkpoints, "checkpoint"))

    with source as there, target as here, screen.progress_bar("threads") as show:
        report = migrate(there, here, thread_prefix=prefix, dry_run=dry_run, progress=progress, **options)
    if as_json:
        screen.emit(report)
    else:
        would = "to be " if dry_run else ""
        screen.line(
            f"{counted(report.threads, 'thread')}: {report.moved:,} {would}copied, {report.completed:,} {would}"
            f"completed, {report.unchanged:,} there already, {counted(len(report.conflicts), 'conflict')}, "
            f"{len(report.failed):,} failed"
        )
        screen.line(
            f"{counted(report.checkpoints, 'checkpoint')} and {report.writes:,} groups of pending writes {would}"
            f"written, {counted(report.compared, 'checkpoint')} compared, {report.seconds:.1f} s"
        )
        for kind, texts in (("conflict", report.conflicts), ("failed", report.failed)):
            screen.problems([f"{kind}: {text}" for text in texts[: screen.MAX_PROBLEMS]], len(texts), kind)
    if prefix and not report.total:
        screen.note(f"no thread's name begins with {shown(prefix)}")
    return 1 if report.conflicts or report.failed else 0


def _move_items(
    source: AbstractContextManager[Any],
    target: AbstractContextManager[Any],
    labels: tuple[str, ...],
    *,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Copy items, and return the exit code."""

    def progress(report: ItemsReport) -> None:
        show(report.items, None, f"{report.written + report.replaced:,} written")

    with source as there, target as here, screen.progress_bar("items") as show:
        report = migrate_items(there, here, namespace=labels, dry_run=dry_run, progress=progress, **options)
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
