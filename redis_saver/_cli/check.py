"""The command `check`: looks whether threads are whole."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from redis_saver._checkpoint.checking import CheckReport
from redis_saver._checkpoint.inventory import Finding
from redis_saver._cli.arguments import add_prefix
from redis_saver._migrate.opening import opened
from redis_saver._tiered.sync import TieredSaver
from redis_saver.errors import EndpointError, ThreadBusy, ThreadNotFound


def add(commands: Any) -> None:
    """Add the command to a parser's."""
    about = (
        "Check whether threads are whole: headers, digests, references, deadlines and counters. With --postgres, also whether Postgres has the "
        "same. It names what is wrong and how to repair it, and writes nothing. Threads may be in use."
    )
    code = (
        "Exit code: 0, all threads are sound; 1, some are damaged or not there; 2, a URL, a login or a missing package is at fault. "
        "With LANGGRAPH_AES_KEY set, values are decrypted, and those that are not encrypted are named."
    )
    check = commands.add_parser(
        "check", allow_abbrev=False, help="check whether threads are whole", description=about, epilog=code
    )
    check.add_argument("threads", metavar="THREAD", nargs="*", help="the names of the threads")
    check.add_argument("--all", action="store_true", help="check all threads; those that are sound are only counted")
    check.add_argument(
        "--redis",
        metavar="URL",
        dest="url",
        default=os.environ.get("REDIS_URL"),
        help="the server, such as redis://host:6379 (default: REDIS_URL of the environment)",
    )
    check.add_argument("--postgres", metavar="URL", help="the cold tier behind it, to compare with (default: none)")
    add_prefix(check)
    check.add_argument("--json", action="store_true", help="print a line of JSON for each thread")
    check.set_defaults(run=_run, parser=check)


def _run(given: argparse.Namespace) -> int:
    if bool(given.threads) == given.all:
        given.parser.error("name the threads, or say --all")
    if not given.url:
        raise EndpointError("--redis URL is missing, and there is no REDIS_URL in the environment")
    with ExitStack() as stack:
        encrypted = "LANGGRAPH_AES_KEY" in os.environ
        endpoint = stack.enter_context(
            opened(given.url, target=False, prefix=given.prefix, require_encryption=encrypted)
        )
        hot = endpoint.saver
        saver: Any = hot
        failures: tuple[type[Exception], ...] = ()
        if given.postgres:
            cold = stack.enter_context(opened(given.postgres, target=False))
            saver, failures = TieredSaver(hot, cold.saver), cold.failures
        threads = endpoint.threads() if given.all else given.threads
        try:
            return _tell(given, (_report(saver, thread) for thread in threads))
        except failures as error:
            raise EndpointError(f"--postgres: {error}") from error


def _report(saver: Any, thread: str) -> CheckReport:
    """The report on a thread. If the thread cannot be checked, a report with the reason."""
    try:
        return saver.check(thread)  # type: ignore[no-any-return]
    except ThreadNotFound:
        remedy = "see whether its name and --prefix are right"
        what = "it is not there: it was never written, was deleted, or has expired"
        return CheckReport(thread, findings=(Finding("error", f"thread {thread!r}", what, remedy),))
    except ThreadBusy as error:
        remedy = "check it again when it is not in use"
        return CheckReport(thread, findings=(Finding("error", f"thread {thread!r}", str(error), remedy),))


def _tell(given: argparse.Namespace, reports: Iterable[CheckReport]) -> int:
    looked_at, unsound = 0, 0
    for report in reports:
        looked_at += 1
        unsound += not report.sound
        if given.json:
            findings = [finding._asdict() for finding in report.findings]
            said = {**report._asdict(), "sound": report.sound, "findings": findings}
            sys.stdout.write(json.dumps(said) + "\n")
        elif report.findings or not given.all:
            sys.stdout.write("\n".join(_lines(report)) + "\n")
    if given.all and not given.json:
        sys.stdout.write(f"{looked_at:,} threads: {looked_at - unsound:,} sound, {unsound:,} not\n")
    return 1 if unsound else 0


def _lines(report: CheckReport) -> Iterator[str]:
    compared = f", {report.compared:,} checkpoints compared with cold" if report.compared else ""
    lacking = f", {report.lacking:,} records still to be brought to cold" if report.lacking else ""
    yield (
        f"{report.thread_id!r}: {'sound' if report.sound else 'not sound'}: {report.checkpoints:,} checkpoints, {report.values:,} values, "
        f"{report.chunks:,} chunks, {report.writes:,} pending writes, {report.bytes:,} bytes{compared}{lacking}"
    )
    for finding in report.findings:
        what = " ".join(finding.what.split())
        yield f"  {finding.severity}: {finding.where}: {what}"
        yield f"    {finding.remedy}"
    if report.more:
        yield f"  and {report.more:,} more"
