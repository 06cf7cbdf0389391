"""The commands `migrate`, `export` and `import`, which copy threads; with `--store`, the items of a store (`items.py`)."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Literal, TypeAlias

import typer

from redis_saver._cli import items, screen
from redis_saver._cli.arguments import Json, Words, count, duration, refuse_embedded, words_of
from redis_saver._cli.show import MAX_PROBLEMS, progress_bar, tell_problems
from redis_saver._common.display import counted, shown
from redis_saver._migrate.engine import SAMPLE, Report, migrate
from redis_saver._migrate.opening import FORMS, SOURCE_FORMS, STORE_FORMS, is_file_of_items, opened
from redis_saver.errors import EndpointError

_ENDPOINTS = (
    f"SOURCE and TARGET: {FORMS}. SOURCE may also be {SOURCE_FORMS}. With LANGGRAPH_AES_KEY set, encrypted values are read, and all values are written encrypted. With --store: {STORE_FORMS}. "
    "Exit code: 0, all is there; 1, something conflicts or failed; 2, a URL, a login, a file or a missing package is at fault."
)


@dataclasses.dataclass(frozen=True)
class Options:
    """What a command was given."""

    source: str
    target: str
    threads: Sequence[str] | None = None
    thread_prefix: str = ""
    sample: int = SAMPLE
    store: bool = False
    source_prefix: str | None = None
    target_prefix: str = "langgraph"
    namespace: Sequence[str] | None = None
    ttl: timedelta | None = None
    replace: Literal["older", "all"] | None = None
    dry_run: bool = False
    as_json: bool = False


_Source: TypeAlias = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Where the threads or items are (it is only read).")
]
_Target: TypeAlias = Annotated[str, typer.Argument(metavar="TARGET", help="Where to copy them.")]
_ThreadPrefix: TypeAlias = Annotated[
    str, typer.Option(metavar="TEXT", help="Only threads whose names begin with TEXT.")
]
_Sample: TypeAlias = Annotated[
    int,
    typer.Option(
        metavar="N",
        parser=count("checkpoints", 0),
        help="Checkpoints of each copied thread to read again and compare in full.",
    ),
]
_Store: TypeAlias = Annotated[bool, typer.Option("--store", help="The items of a store instead of threads.")]
_SourcePrefix: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="PREFIX",
        help="The beginning of all keys in a SOURCE in Redis (default: langgraph; of other packages' savers, whatever it is).",
    ),
]
_Threads: TypeAlias = Annotated[
    list[str] | None, typer.Option("--thread", metavar="NAME", help="Only this thread (may be repeated).")
]
_TargetPrefix: TypeAlias = Annotated[
    str, typer.Option(metavar="PREFIX", help="The beginning of all keys in a TARGET in Redis.")
]
_Labels: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace",
        metavar="LABEL...",
        help="Of a store, only items whose namespaces begin with these labels, such as --namespace memories user-1.",
    ),
]
_Ttl: TypeAlias = Annotated[
    timedelta | None,
    typer.Option(
        metavar="DURATION",
        parser=duration,
        help="When threads expire in a TARGET in Redis, such as 7d or 90m (default: never), and when items do (default: as in the source).",
    ),
]
_Replace: TypeAlias = Annotated[
    Literal["older", "all"] | None,
    typer.Option(
        help="Of a store, replace an item of which TARGET has another value: if it was put earlier there, or always. Default: leave and name it."
    ),
]
_DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Write no thread and no item, and count what would be written.")
]


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("migrate", cls=Words, epilog=_ENDPOINTS)(_migrate)
    app.command("export", cls=Words, epilog=_ENDPOINTS)(_export)
    app.command("import", cls=Words, epilog=_ENDPOINTS)(_import)


def _migrate(
    source: _Source,
    target: _Target,
    *,
    threads: _Threads = None,
    thread_prefix: _ThreadPrefix = "",
    sample: _Sample = SAMPLE,
    store: _Store = False,
    source_prefix: _SourcePrefix = None,
    target_prefix: _TargetPrefix = "langgraph",
    namespace: _Labels = None,
    ttl: _Ttl = None,
    replace: _Replace = None,
    dry_run: _DryRun = False,
    as_json: Json = False,
) -> int:
    """Copy threads between savers with all their history, and compare.

    What the target has already is not written again, so an interrupted migration goes on where it ended.
    A thread that differs in the target is left alone and named. With --store: copy the items of a store.
    """
    names = threads, thread_prefix, sample, store, source_prefix, target_prefix, _labels(namespace)
    return _run(Options(source, target, *names, ttl, replace, dry_run, as_json))


def _export(
    source: _Source,
    target: Annotated[str, typer.Argument(metavar="FILE", help="A file that is not there yet.")],
    *,
    threads: _Threads = None,
    thread_prefix: _ThreadPrefix = "",
    sample: _Sample = SAMPLE,
    store: _Store = False,
    source_prefix: _SourcePrefix = None,
    namespace: _Labels = None,
    as_json: Json = False,
) -> int:
    """Write threads with all their history to a file, or with --store the items of a store.

    The file appears under its name when it is complete.
    """
    names = threads, thread_prefix, sample, store, source_prefix
    return _run(Options(source, _file(target), *names, namespace=_labels(namespace), as_json=as_json))


def _import(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A file that export wrote.")],
    target: _Target,
    *,
    threads: _Threads = None,
    thread_prefix: _ThreadPrefix = "",
    sample: _Sample = SAMPLE,
    target_prefix: _TargetPrefix = "langgraph",
    namespace: _Labels = None,
    ttl: _Ttl = None,
    replace: _Replace = None,
    dry_run: _DryRun = False,
    as_json: Json = False,
) -> int:
    """Read threads, or the items of a store, from a file that export wrote.

    Its first line says which. The whole file is checked before anything is written.
    """
    given = Options(
        _file(source), target, threads, thread_prefix, sample, target_prefix=target_prefix, namespace=_labels(namespace)
    )
    return _run(dataclasses.replace(given, ttl=ttl, replace=replace, dry_run=dry_run, as_json=as_json))


def _labels(uses: Sequence[str] | None) -> Sequence[str] | None:
    """The labels that `--namespace` was given.

    Raises:
        EndpointError: It was given more than once.
    """
    if not uses:
        return None
    first, *others = words_of(uses)
    if others:
        raise EndpointError(
            f"--namespace {shown(' '.join(others[0]))}: give --namespace once, and run this again for another"
        )
    return first


def _file(text: str) -> str:
    return text if text.startswith("file:") else f"file:{text}"


def _run(given: Options) -> int:
    if given.dry_run and given.target.startswith("file:"):
        raise EndpointError(
            "--dry-run compares with what the target has, and a file is always new: leave --dry-run out"
        )
    refuse_embedded(given.source)
    refuse_embedded(given.target)
    if given.store or is_file_of_items(given.source):
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


def _move_threads(given: Options) -> int:
    with (
        opened(given.source, target=False, prefix=given.source_prefix) as source,
        opened(given.target, target=True, prefix=given.target_prefix, ttl=given.ttl) as target,
        progress_bar("threads") as show,
    ):

        def progress(report: Report) -> None:
            show(report.threads, report.total, f"{counted(report.checkpoints, 'checkpoint')}")

        report = migrate(
            source,
            target,
            threads=given.threads,
            thread_prefix=given.thread_prefix,
            sample=given.sample,
            dry_run=given.dry_run,
            progress=progress,
        )
    if given.as_json:
        screen.emit(report)
    else:
        _tell(report, dry_run=given.dry_run)
    if given.thread_prefix and not report.total:
        sys.stderr.write(f"no thread's name begins with {shown(given.thread_prefix)}\n")
    return 1 if report.conflicts or report.failed else 0


def _tell(report: Report, *, dry_run: bool) -> None:
    would = "to be " if dry_run else ""
    lines = [
        f"{counted(report.threads, 'thread')}: {report.moved:,} {would}copied, {report.completed:,} {would}completed, {report.unchanged:,} there already, "
        f"{counted(len(report.conflicts), 'conflict')}, {len(report.failed):,} failed",
        f"{counted(report.checkpoints, 'checkpoint')} and {report.writes:,} groups of pending writes {would}written, "
        f"{counted(report.compared, 'checkpoint')} compared, {report.seconds:.1f} s",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    for kind, found in (("conflict", report.conflicts), ("failed", report.failed)):
        tell_problems([f"{kind}: {said}" for said in found[:MAX_PROBLEMS]], len(found), kind)
