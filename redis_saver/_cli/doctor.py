"""Commands about a server and its threads: `stats`, `doctor`, `check`, and `inspect` (the inspector)."""

from __future__ import annotations

import asyncio
import gc
import secrets
import socket
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

import typer
from rich.text import Text

from redis_saver._checkpoint import checking
from redis_saver._checkpoint.saver import driver_of
from redis_saver._cli import screen
from redis_saver._cli.cold import of_cold
from redis_saver._cli.options import EVERY, JSON, command
from redis_saver._cli.servers import Servers, redis_url
from redis_saver._common.display import counted, printable
from redis_saver._inspector.health import Answers, of_all_else, of_scripts, overview
from redis_saver._inspector.values import named
from redis_saver._migrate.savers import our_prefixes
from redis_saver.errors import ColdTimeout, EndpointError, KeyUnavailable, ThreadBusy, ThreadNotFound

_LOOKS = 24
"""Number of looks in a trend of `stats --watch`."""
_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim", "ok": "green"}


@command("stats", has_postgres=False)
def _stats(servers: Servers, *, watch: bool = False, as_json: bool = JSON) -> int:
    """Show numbers about threads (state, size, expiry, backlog) and the server (memory, commands per second).

    It scans all keys of the server, and reads no values.
    With --watch it repeats that every two seconds, and shows trends.
    The calls of one process are counted by `stats()` in Python.

    Exit codes:
        0: success.
        2: a URL or a login is wrong, or a package is missing.
    """
    past = defaultdict[str, deque[Any]](lambda: deque(maxlen=_LOOKS))
    columns = ("", "now", "change", "trend") if watch else ("", "")
    with servers.savers() as savers:
        for clear in screen.looks(watch=watch):
            counts, answers = overview(savers.source).counts, Answers(savers.hot)
            server = answers.numbers()
            if as_json:
                screen.emit({"threads": counts, "server": server, "refused": list(answers.refused)})
                continue
            numbers = {name: value for name, value in {**counts, **server}.items() if value is not None}
            for name, value in numbers.items():
                past[name].append(value)
            rows = [(name.replace("_", " "), *_cells(past[name])) for name in numbers if not watch or any(past[name])]
            clear()
            screen.table(columns, [row[: len(columns)] for row in rows], whole=("", "change", "trend"))
            for finding in answers.unanswered():
                screen.note(finding.what)
    return 0


def _cells(past: Sequence[Any]) -> tuple[str, str, str]:
    """Return the newest of the values of `stats`, its change since the oldest, and the trend, as cells."""
    value = past[-1]
    if isinstance(value, str):
        return named(value), "", ""
    change = round(value - past[0], 3)
    return f"{value:,}", f"{change:+,}" if change else "", screen.sparkline(past)


# -- doctor


@command("doctor", has_postgres=False)
def _doctor(servers: Servers, *, cold: str | None = None, as_json: bool = JSON) -> int:
    """Check whether a server fits savers, and whether its threads are sound. Each finding has a remedy.

    The server: what the scripts rely on, version, role, persistence, eviction, memory, slow scripts, missing rights.
    The threads: damage, threads that never expire, orphaned threads, the backlog for cold.
    It writes a few keys of its own for some milliseconds, and reads no values. The command check reads them.
    With --cold it also tries whether a saver can be the cold tier, on a thread of its own, which it deletes.

    Options:
        cold SAVER: postgresql://user@host/database, or MODULE:NAME of a saver, or of a function that returns one or a
            context manager of one.

    Exit codes:
        0: nothing is wrong.
        1: there is an error or a warning.
        2: a URL or a login is wrong, or a package is missing.

    If the user lacks rights, they are named, and everything else is checked.
    """
    with servers.savers() as savers:
        results = [finding for holds, finding in of_scripts(driver_of(savers.hot), servers.prefix) if holds]
        if not any(finding.severity == "error" for finding in results):  # else no thread can be read
            answers = Answers(savers.hot)
            threads = overview(savers.source, busy_slots=answers.busy_slots())
            results += of_all_else(answers, threads, servers.prefix, our_prefixes(driver_of(savers.hot)))
    if cold is not None:
        results += asyncio.run(of_cold(redis_url(servers.url), servers.prefix, cold))
    lines: list[Sequence[str | Text]] = []
    for result in results:
        if as_json:
            screen.emit(result)
        lines.append([Text(result.severity, _STYLES[result.severity]), result.about, result.what])
        lines += [["", "", result.remedy]] if result.remedy else []
    if not as_json:
        screen.table(("", "", ""), lines, wrapped=True)
    return 1 if any(result.severity in ("error", "warning") for result in results) else 0


# -- check


@command("check")
def _check(servers: Servers, threads: list[str] | None = None, *, every: bool = EVERY, as_json: bool = JSON) -> int:
    """Check whether threads are sound: headers, digests, references, deadlines and counters.

    With --postgres it also compares them with Postgres. It names each fault and how to repair it.
    It writes nothing, and threads may be in use. With --all, threads whose keys are unavailable are skipped and named.
    Threads that only Postgres has are not checked.

    Options:
        every: Check all threads. Sound ones are only counted.

    Exit codes:
        0: all threads are sound.
        1: some are damaged or missing, or were skipped, or Postgres did not answer.
        2: a URL or a login is wrong, or a package is missing.

    With keys, or if LANGGRAPH_AES_KEY is set, values are decrypted, and values without encryption are named.
    """
    if bool(threads) == every:
        raise typer.BadParameter("name the threads, or say --all.", param_hint="THREAD")
    looked_at, unsound, skipped, is_compared = 0, 0, 0, True
    with servers.savers(readable=False, require_encryption=True) as savers:
        saver = savers.saver
        for thread in savers.endpoints[0].threads() if every else threads or ():
            try:
                report = _report(saver, thread, is_named=not every)
            except KeyUnavailable as error:
                screen.note(f"skipped: {named(thread)}: {printable(str(error))}")
                skipped += 1
                continue
            except ColdTimeout as error:
                screen.note(f"{printable(str(error))}. From here on, nothing is compared with Postgres")
                saver, is_compared = savers.hot, False
                report = _report(saver, thread, is_named=not every)
            if report is None:
                continue
            looked_at += 1
            unsound += not report.sound
            if as_json or report.findings or not every:
                screen.show({**report._asdict(), "sound": report.sound}, "\n".join(_lines(report)), as_json=as_json)
    if every and not as_json:
        more = f", and {skipped:,} skipped" if skipped else ""
        screen.line(f"{counted(looked_at, 'thread')}: {looked_at - unsound:,} sound, {unsound:,} not{more}")
    return 1 if unsound or skipped or not is_compared else 0


def _report(saver: Any, thread: str, *, is_named: bool) -> checking.CheckReport | None:
    """Check a thread. If it cannot be checked, report why. Return None if nobody named it and it is gone.

    Raises:
        KeyUnavailable: Nobody named it, and its key is unavailable.
    """
    try:
        return saver.check(thread)  # type: ignore[no-any-return]
    except ThreadNotFound as error:
        if not is_named:
            return None
        what, remedy = str(error), "check its name and --prefix"
    except ThreadBusy as error:
        what, remedy = str(error), "run this again when the thread is not in use"
    except KeyUnavailable as error:
        if not is_named:
            raise
        what, remedy = str(error), "check --keys-file"
    return checking.CheckReport(thread, findings=(checking.Finding("error", f"thread {thread!r}", what, remedy),))


def _lines(report: checking.CheckReport) -> Iterator[str]:
    numbers = [(report.checkpoints, "checkpoint"), (report.values, "value"), (report.chunks, "chunk")]
    numbers += [(report.writes, "pending write"), (report.bytes, "byte")]
    line = f"{report.thread_id!r}: {'sound' if report.sound else 'not sound'}: "
    line += ", ".join(counted(number, unit) for number, unit in numbers)
    line += f", {counted(report.compared, 'checkpoint')} compared with cold" if report.compared else ""
    yield line + (f", {counted(report.lacking, 'record')} not yet in cold" if report.lacking else "")
    for finding in report.findings:
        yield f"  {finding.severity}: {finding.where}: {' '.join(finding.what.split())}"
        yield f"    {finding.remedy}"
    if report.more:
        yield f"  and {report.more:,} more"


# -- inspect

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@command("inspect")
def _inspect(
    servers: Servers,
    thread: str | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = typer.Option(0, min=0, max=65535),
    allowed_host: list[str] | None = None,
    mask: list[str] | None = None,
    token: str | None = typer.Option(None, envvar="REDIS_SAVER_INSPECTOR_TOKEN"),
    allow_changes: bool = False,
) -> int:
    """Show threads, checkpoints and values in the browser, until Ctrl-C.

    It prints a URL with a token. Without --allow-changes it only reads.

    Options:
        thread THREAD: Print the URL of this thread. Default: the URL of the list of threads.
        host HOST: Address to listen on. Unless it is a loopback address, other machines can connect.
        port N: Port to listen on, or 0 for a free one.
        allowed_host NAME: Host name under which browsers open the pages, besides this machine's. May be repeated.
        mask PATTERN: Hide the values of channels, keys and fields with such a name (*token*); '*' hides all
            values. May be repeated.
        token TEXT: Token in the URL. Default: a random one.
        allow_changes: Let users pin, prune, copy and delete threads, and set their TTL.

    Exit codes:
        2: an argument, a URL or a login is wrong, a package is missing (extra inspector), or the port is taken.
        130: Ctrl-C ended it.

    If LANGGRAPH_AES_KEY is set, values are decrypted. Only objects of classes that LangGraph calls safe are made.
    """
    try:
        import uvicorn  # noqa: PLC0415 - the extra may be missing

        from redis_saver import inspector  # noqa: PLC0415
    except ImportError as error:
        raise EndpointError(f"this needs more packages: pip install 'redis-saver[inspector]' ({error})") from error
    token = token or secrets.token_urlsafe(24)
    is_ipv6 = ":" in host
    with servers.savers() as savers, _listening(host, port) as listening:
        pages = inspector.app(
            savers.saver,
            token=token,
            hosts=[f"[{name}]" if ":" in name else name for name in (host, *_LOOPBACK, *(allowed_host or ()))],
            mask=mask or (),
            allow_changes=allow_changes,
        )
        address = f"{f'[{host}]' if is_ipv6 else host}:{listening.getsockname()[1]}"
        arguments = {"token": token} if thread is None else {"id": thread, "token": token}
        path = "" if thread is None else "thread"
        screen.line(f"http://{address}/{path}?{urlencode(arguments, errors='surrogatepass')}")
        screen.note("Ctrl-C ends it.")
        gc.collect()
        gc.freeze()  # so that no later collection, while a page waits, walks the modules
        config = uvicorn.Config(pages, log_level="warning", access_log=False, server_header=False, lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])
    return 130  # it ends only by a signal, even if its parent ignores that


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        EndpointError: The port is taken, or the address does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise EndpointError(f"--host {printable(host)} --port {port}: {printable(str(error))}") from error
