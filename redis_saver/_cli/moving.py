"""Commands that copy threads, or items of a store: `migrate`, `export`, `import`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import typer

from redis_saver._cli import screen
from redis_saver._cli.options import JSON, MAX_NUMBER, command, duration, encryption_of, labels_of
from redis_saver._cli.servers import Servers, refuse_embedded
from redis_saver._client import urls
from redis_saver._common.display import counted, shown
from redis_saver._migrate.engine import SAMPLE, ItemsReport, Replace, Report, migrate, migrate_items
from redis_saver._migrate.opening import FORMS, SOURCE_FORMS, STORE_FORMS, is_file_of_items, opened, opened_store
from redis_saver._migrate.savers import SaverEndpoint, endpoint_of
from redis_saver.encryption import Encryption
from redis_saver.errors import EndpointError

_CODES = f"""SOURCE and TARGET: {FORMS}. SOURCE may also be {SOURCE_FORMS}. With --store: {STORE_FORMS}.

If LANGGRAPH_AES_KEY is set, encrypted values are read, and all values are written encrypted. With keys, encrypted
threads and items in Redis are read, too, and a TARGET in Redis is encrypted. Databases and files have no keys, so they
need --plain for what is encrypted.

Exit codes:
    0: the target has everything.
    1: something conflicts or failed.
    2: a URL, a login or a file is wrong, or a package is missing.
"""
_MAX_PROBLEMS = 20
"""Maximum number of conflicts to print, and of failures."""
_Opened: TypeAlias = AbstractContextManager[Any]


@command("migrate", _CODES)
def _migrate(
    source: str,
    target: str,
    *,
    threads: list[str] | None = typer.Option(None, "--thread"),
    thread_prefix: str = "",
    sample: int = typer.Option(SAMPLE, min=0, max=MAX_NUMBER),
    store: bool = False,
    postgres: str | None = None,
    source_prefix: str | None = None,
    target_prefix: str = "langgraph",
    namespace: list[str] | None = None,
    ttl: timedelta | None = typer.Option(None, parser=duration),
    replace: Replace | None = None,
    plain: bool = False,
    dry_run: bool = False,
    keys_file: str | None = None,
    as_json: bool = JSON,
) -> int:
    """Copy threads between savers with all their history, and compare them.

    Only missing checkpoints are written, so an interrupted migration continues where it ended.
    A thread that differs in the target is left alone and named. With --store: copy the items of a store.

    Options:
        source SOURCE: Where the threads or items are. It is only read.
        target TARGET: Where to copy them.
        threads NAME: Only this thread. May be repeated.
        thread_prefix TEXT: Only threads whose names begin with TEXT.
        sample N: Number of checkpoints of each copied thread to read again and compare in full.
        store: Copy the items of a store instead of threads.
        postgres URL: The cold tier of a SOURCE in Redis, to copy the threads of both tiers.
        source_prefix PREFIX: Prefix of all keys in a SOURCE in Redis. Default: langgraph, or any prefix for
            the savers of other packages.
        target_prefix PREFIX: Prefix of all keys in a TARGET in Redis.
        namespace NAMESPACE: With --store, only items of this namespace and of its children, such as memories.user-1.
        ttl DURATION: TTL in a TARGET in Redis, such as 7d or 90m. Default: none for threads, and for items the same
            expiry as in the source.
        replace: With --store, replace items with another value in TARGET if they are older there, or always. Default:
            leave and name them.
        plain: With keys, write TARGET plain. Without it, encrypted threads or items are refused for a TARGET that is
            not in Redis.
        dry_run: Write nothing, and count what would be written.
    """
    if dry_run and target.startswith("file:"):
        raise EndpointError("--dry-run compares with the target, but a file is always new: leave --dry-run out")
    refuse_embedded(source)
    refuse_embedded(target)
    encryption = encryption_of(keys_file)
    of_target = None if plain else encryption
    if namespace and len(namespace) > 1:
        again = shown(namespace[1])
        raise EndpointError(f"--namespace {again}: write --namespace once, and run this again for another one")
    if store or is_file_of_items(source):
        if threads or thread_prefix or sample != SAMPLE:
            raise EndpointError("--thread, --thread-prefix and --sample are only for threads, not for items of a store")
        if postgres:
            raise EndpointError(
                "--postgres is only for threads. Of a TieredStore, Postgres has all items: name it SOURCE"
            )
        there = opened_store(source, target=False, prefix=source_prefix, encryption=encryption)
        here = opened_store(target, target=True, prefix=target_prefix, encryption=of_target)
        options: dict[str, Any] = {"namespace": labels_of(namespace or ()), "replace": replace, "ttl": ttl}
        options |= {"plain": plain, "dry_run": dry_run}
        return _move(migrate_items, there, here, options, as_json=as_json)
    if namespace or replace:
        raise EndpointError("--namespace and --replace are only for items of a store: add --store, or leave them out")
    if threads and thread_prefix:
        raise EndpointError("--thread and --thread-prefix: write only one of the two")
    if postgres:
        there = _both_tiers(source, postgres, source_prefix, encryption)
    else:
        there = opened(source, target=False, prefix=source_prefix, encryption=encryption)
    here = opened(target, target=True, prefix=target_prefix, ttl=ttl, encryption=of_target)
    options = {"threads": threads, "thread_prefix": thread_prefix, "sample": sample, "plain": plain, "dry_run": dry_run}
    return _move(migrate, there, here, options, as_json=as_json)


@contextmanager
def _both_tiers(
    source: str, postgres: str, prefix: str | None, encryption: Encryption | None
) -> Iterator[SaverEndpoint]:
    """Open Redis and its cold tier as a source.

    Raises:
        EndpointError: The source is not Redis, or a server cannot be reached.
    """
    if source.partition(":")[0] not in urls.SCHEMES:
        raise EndpointError(f"--postgres names the cold tier of a SOURCE in Redis, not of {urls.without_login(source)}")
    servers = Servers(source, postgres, "langgraph" if prefix is None else prefix, encryption)
    with servers.savers(readable=False) as savers:
        yield endpoint_of(savers.saver, " with ".join(endpoint.name for endpoint in savers.endpoints))


@command(
    "export",
    _CODES,
    like=_migrate,
    fixed={"target_prefix": "langgraph", "ttl": None, "replace": None, "dry_run": False},
)
def _export(target: str, **words: Any) -> int:
    """Write threads with all their history to a file, or with --store the items of a store.

    The file appears when it is complete.

    Options:
        target FILE: A new file.
    """
    return _migrate(target=f"file:{target.removeprefix('file:')}", **words)


@command(
    "import", _CODES, like=_migrate, fixed={"store": False, "postgres": None, "source_prefix": None, "plain": False}
)
def _import(source: str, **words: Any) -> int:
    """Read threads, or the items of a store, from a file that export wrote.

    The file's first line says which. The whole file is checked before anything is written.

    Options:
        source FILE: The file.
    """
    return _migrate(source=f"file:{source.removeprefix('file:')}", **words)


def _move(
    run: Callable[..., Any], source: _Opened, target: _Opened, options: Mapping[str, Any], *, as_json: bool
) -> int:
    """Copy threads or items, and print the report. Each of the first conflicts and failures is a line on stderr.

    Returns:
        The exit code.
    """

    def progress(report: Report | ItemsReport) -> None:
        if isinstance(report, Report):
            show(report.threads, report.total, counted(report.checkpoints, "checkpoint"))
        else:
            show(report.items, None, f"{report.written + report.replaced:,} written")

    with source as there, target as here, screen.progress_bar("threads" if run is migrate else "items") as show:
        report: Report | ItemsReport = run(there, here, **options, progress=progress)
    would = "to be " if options["dry_run"] else ""
    if isinstance(report, Report):
        conflicts, failed = len(report.conflicts), len(report.failed)
        text = (
            f"{counted(report.threads, 'thread')}: {report.moved:,} {would}copied, {report.completed:,} {would}"
            f"completed, {report.unchanged:,} there already, {counted(conflicts, 'conflict')}, {failed:,} failed\n"
            f"{counted(report.checkpoints, 'checkpoint')} and {report.writes:,} groups of pending writes {would}"
            f"written, {counted(report.compared, 'checkpoint')} compared, {report.seconds:.1f} s"
        )
        problems = [f"conflict: {each}" for each in report.conflicts] + [f"failed: {each}" for each in report.failed]
        count, begin, what = report.total, options["thread_prefix"], "thread's name"
    else:
        conflicts, failed, problems = report.conflicts, report.failed, report.problems
        text = (
            f"{counted(report.items, 'item')}: {report.written:,} {would}copied, {report.replaced:,} {would}replaced, "
            f"{report.unchanged:,} there already, {report.expired:,} expired, {counted(conflicts, 'conflict')}, "
            f"{failed:,} failed, {report.seconds:.1f} s"
        )
        count, begin, what = report.items, options["namespace"], "item's namespace"
    screen.show(report, text, as_json=as_json)
    for kind, number in () if as_json else (("conflict", conflicts), ("failed", failed)):
        of_kind = [problem for problem in problems if problem.startswith(f"{kind}: ")]
        for problem in of_kind[:_MAX_PROBLEMS]:
            screen.note(" ".join(problem.split()))
        if number > _MAX_PROBLEMS:
            screen.note(f"{kind}: and {number - _MAX_PROBLEMS:,} more")
    if begin and not count:
        screen.note(f"no {what} begins with {shown(begin)}")
    return 1 if conflicts or failed else 0
