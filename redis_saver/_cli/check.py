"""The command `check`: looks whether threads are whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from redis_saver._checkpoint.checking import CheckReport
from redis_saver._checkpoint.findings import Finding
from redis_saver._cli.arguments import Json, Postgres, Prefix, Redis, is_encrypted, postgres_url, redis_url
from redis_saver._cli.opening import cold_failed
from redis_saver._common.display import counted
from redis_saver._migrate.opening import opened
from redis_saver._tiered.sync import TieredSaver
from redis_saver.errors import ThreadBusy, ThreadNotFound

_CODES = (
    "Exit code: 0, all threads are sound; 1, some are damaged or not there; 2, a URL, a login or a missing package is at fault. "
    "With LANGGRAPH_AES_KEY set, values are decrypted, and those that are not encrypted are named."
)


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check", epilog=_CODES)(_check)


def _check(
    threads: Annotated[list[str] | None, typer.Argument(metavar="THREAD", help="The names of the threads.")] = None,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Check all threads; those that are sound are only counted.")
    ] = False,
    url: Redis = None,
    postgres: Postgres = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Check whether threads are whole: headers, digests, references, deadlines and counters.

    With --postgres, also whether Postgres has the same. It names what is wrong and how to repair it, and writes nothing. Threads may be in use.
    """
    if bool(threads) == every:
        raise typer.BadParameter("name the threads, or say --all.", param_hint="THREAD")
    url, postgres = redis_url(url), postgres_url(postgres)
    with ExitStack() as stack:
        endpoint = stack.enter_context(opened(url, target=False, prefix=prefix, require_encryption=is_encrypted()))
        hot = endpoint.saver
        saver: Any = hot
        failures: tuple[type[Exception], ...] = ()
        if postgres:
            cold = stack.enter_context(opened(postgres, target=False))
            saver, failures = TieredSaver(hot, cold.saver), cold.failures
        wanted = endpoint.threads() if every else threads or ()
        try:
            reports = (_report(saver, thread, named=not every) for thread in wanted)
            return _tell(filter(None, reports), every=every, as_json=as_json)
        except failures as error:
            raise cold_failed(error) from error


def _report(saver: Any, thread: str, *, named: bool) -> CheckReport | None:
    """The report on a thread. If the thread cannot be checked, a report with the reason. None: nobody named it, and it is gone by now."""
    try:
        return saver.check(thread)  # type: ignore[no-any-return]
    except ThreadNotFound:
        if not named:
            return None
        remedy = "see whether its name and --prefix are right"
        what = "it is not there: it was never written, was deleted, or has expired"
        return CheckReport(thread, findings=(Finding("error", f"thread {thread!r}", what, remedy),))
    except ThreadBusy as error:
        remedy = "check it again when it is not in use"
        return CheckReport(thread, findings=(Finding("error", f"thread {thread!r}", str(error), remedy),))


def _tell(reports: Iterable[CheckReport], *, every: bool, as_json: bool) -> int:
    looked_at, unsound = 0, 0
    for report in reports:
        looked_at += 1
        unsound += not report.sound
        if as_json:
            findings = [finding._asdict() for finding in report.findings]
            said = {**report._asdict(), "sound": report.sound, "findings": findings}
            sys.stdout.write(json.dumps(said) + "\n")
        elif report.findings or not every:
            sys.stdout.write("\n".join(_lines(report)) + "\n")
    if every and not as_json:
        sys.stdout.write(f"{counted(looked_at, 'thread')}: {looked_at - unsound:,} sound, {unsound:,} not\n")
    return 1 if unsound else 0


def _lines(report: CheckReport) -> Iterator[str]:
    compared = f", {counted(report.compared, 'checkpoint')} compared with cold" if report.compared else ""
    lacking = f", {counted(report.lacking, 'record')} still to be brought to cold" if report.lacking else ""
    yield (
        f"{report.thread_id!r}: {'sound' if report.sound else 'not sound'}: {counted(report.checkpoints, 'checkpoint')}, {counted(report.values, 'value')}, "
        f"{counted(report.chunks, 'chunk')}, {counted(report.writes, 'pending write')}, {counted(report.bytes, 'byte')}{compared}{lacking}"
    )
    for finding in report.findings:
        what = " ".join(finding.what.split())
        yield f"  {finding.severity}: {finding.where}: {what}"
        yield f"    {finding.remedy}"
    if report.more:
        yield f"  and {report.more:,} more"
