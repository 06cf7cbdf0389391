"""Commands about a server and its threads: `stats`, `doctor`, `check`, and `inspect` (the inspector)."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlencode

import typer
from redis.exceptions import NoPermissionError, ResponseError
from rich.text import Text

from redis_saver._checkpoint import checking
from redis_saver._checkpoint.listing import mapped, scan_keys
from redis_saver._checkpoint.saver import RedisSaver, context_of, driver_of
from redis_saver._checkpoint.threads import ANY, ThreadInfo
from redis_saver._cli import screen
from redis_saver._cli.looking import OTHER_PREFIX
from redis_saver._cli.options import EVERY, JSON, command
from redis_saver._cli.servers import Servers
from redis_saver._common import times
from redis_saver._common.display import counted, printable
from redis_saver._common.names import DIRTY, Keyspace
from redis_saver._engine import probe
from redis_saver._engine.requests import Batch, Call, Operation
from redis_saver._engine.runner import Driver
from redis_saver._inspector.values import state_of
from redis_saver._migrate.savers import our_prefixes
from redis_saver._tiered import scripts
from redis_saver._tiered.thread_info import Damaged, threads_of
from redis_saver.errors import EndpointError, ThreadBusy, ThreadNotFound, UnsupportedServer

MAX_NAMED = 20
"""Maximum number of threads to name."""
_SOON = timedelta(hours=1)
_COUNTS = (
    *("threads", "active", "interrupted", "failed", "damaged", "checkpoints", "bytes", "largest_thread"),
    *("largest_bytes", "pinned", "never_expire", "expire_within_1h", "dirty_threads", "backlog", "oldest_seconds"),
    *("set_aside", "intents"),
)
"""Numbers of `stats`. `never_expire` counts threads without a deadline that are not pinned.

Cold lacks `backlog` records of `dirty_threads` threads, and has refused `set_aside` of them. `intents` counts threads
with an unfinished write to cold, whose writer may have died.
"""


@dataclass
class Overview:
    """Counts of all threads of a prefix."""

    counts: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0) | {"largest_thread": None})
    owned: int = 0
    """Threads with an owner whose lease has not expired."""
    late: list[str] = field(default_factory=list)
    """Names of the first threads whose owner's lease has expired, if no one else has taken them."""
    errors: dict[str, str] = field(default_factory=dict)
    """Errors of the first damaged threads, by name."""

    def add(self, info: ThreadInfo | Damaged) -> None:
        """Count a thread."""
        if isinstance(info, Damaged):
            self.count(threads=1, damaged=1)
            if len(self.errors) < MAX_NAMED:
                self.errors[info.thread_id] = str(info.error)
            return
        lasts = info.ttl is None and not info.pinned
        self.count(threads=1, checkpoints=info.checkpoints, bytes=info.bytes, pinned=info.pinned, never_expire=lasts)
        self.count(expire_within_1h=info.ttl is not None and info.ttl <= _SOON, **{state_of(info): 1})
        if info.owner is not None and info.owner.lease_left:
            self.owned += 1
        elif info.owner is not None and len(self.late) < MAX_NAMED:
            self.late.append(info.thread_id)
        if self.counts["largest_thread"] is None or info.bytes > self.counts["largest_bytes"]:
            self.counts |= {"largest_thread": info.thread_id, "largest_bytes": info.bytes}

    def count(self, **numbers: int) -> None:
        """Add to counts."""
        for name, number in numbers.items():
            self.counts[name] += number


def overview(saver: RedisSaver) -> Overview:
    """Count all threads, including damaged ones. Cost: a scan of all keys. No values are read."""
    threads, driver, keyspace = Overview(), driver_of(saver), context_of(saver).keyspace
    for info in driver.stream(threads_of(context_of(saver), ANY)):
        threads.add(info)
    for records, age, aside in driver.stream(mapped(scan_keys(keyspace.dirty_pattern), partial(_backlogs, keyspace))):
        threads.count(dirty_threads=records > 0, backlog=records, set_aside=aside)
        threads.counts["oldest_seconds"] = max(threads.counts["oldest_seconds"], age / 1000)
    threads.count(intents=sum(1 for _ in driver.stream(scan_keys(keyspace.intents_pattern))))
    return threads


def _backlogs(keyspace: Keyspace, keys: Sequence[bytes]) -> Operation[list[Any]]:
    """Read the number of records, the age in milliseconds and the number of refused records of each backlog."""
    names = [name for key in keys if (name := keyspace.thread_of(key, DIRTY)) is not None]
    calls = [Call(scripts.BACKLOG_STATS, (tier.dirty, tier.flush), ()) for tier in map(keyspace.tier_keys, names)]
    return (yield Batch(calls)) if calls else []


class Answers:
    """Information that the saver's servers return about themselves."""

    def __init__(self, saver: RedisSaver) -> None:
        driver: Any = driver_of(saver)
        self._client = driver.client
        self.refused: dict[str, None] = {}
        """Commands, as an ACL names them, that the user may not call or the server does not know."""

    def ask(self, *command: Any) -> dict[str, Any]:
        """Return the reply of each server by its name. It is empty if the user may not ask."""
        try:
            if not hasattr(self._client, "get_primaries"):
                return {"": self._client.execute_command(*command)}
            nodes = self._client.get_primaries()
            return {node.name: self._client.execute_command(*command, target_nodes=node) for node in nodes}
        except (NoPermissionError, ResponseError) as error:
            if not isinstance(error, NoPermissionError) and "unknown" not in str(error).lower():
                raise
            self.refused["|".join(map(str.lower, command[:2]))] = None
            return {}


_OF_SERVER = (
    *("connected_clients", "used_memory", "maxmemory"),
    *("instantaneous_ops_per_sec", "evicted_keys", "expired_keys"),
)
_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim", "ok": "green"}
_FULL = 0.9
_SLOW = 20_000
"""Microseconds after which a call of a script is slow."""
_LATE = 300
"""Age in seconds after which a backlog is a warning."""
_ROOM = "raise maxmemory, shorten TTLs, or prune"


@command("stats", has_postgres=False)
def _stats(servers: Servers, *, watch: bool = False, as_json: bool = JSON) -> int:
    """Show numbers about threads (state, size, expiry, backlog) and the server (memory, commands per second).

    It scans all keys of the server, and reads no values.
    The calls of one process are counted by `stats()` in Python.

    Exit codes:
        0: success.
        2: a URL or a login is wrong, or a package is missing.
    """
    with servers.savers() as savers:
        for _ in screen.looks(watch=watch, cleared=not as_json):
            counts, answers = overview(savers.hot).counts, Answers(savers.hot)
            infos = list(answers.ask("INFO").values())
            known = [name for name in _OF_SERVER if any(name in info for info in infos)]
            server = {name: sum(int(info.get(name, 0)) for info in infos) for name in known}
            if as_json:
                screen.emit({"threads": counts, "server": server, "refused": list(answers.refused)})
                continue
            rows = [
                (name.replace("_", " "), screen.named(value) if isinstance(value, str) else f"{value:,}")
                for name, value in {**counts, **server}.items()
                if value is not None
            ]
            screen.table(("", ""), rows)
            for right in answers.refused:
                screen.note(f"this user may not call {right.replace('|', ' ').upper()}")
    return 0


# -- doctor


class Finding(NamedTuple):
    """A result of `doctor`."""

    severity: Literal["error", "warning", "info", "ok"]
    about: str
    what: str
    remedy: str = ""


_error, _warning, _info, _ok = (partial(Finding, severity) for severity in ("error", "warning", "info", "ok"))
_Rows: TypeAlias = Iterable[tuple[object, Finding]]
"""Findings, each with its condition."""


@command("doctor", has_postgres=False)
def _doctor(servers: Servers, *, as_json: bool = JSON) -> int:
    """Check whether a server fits savers, and whether its threads are sound. Each finding has a remedy.

    The server: what the scripts rely on, version, role, persistence, eviction, memory, slow scripts, missing rights.
    The threads: damage, threads that never expire, owners whose lease has expired, the backlog for cold.
    It writes a few keys of its own for some milliseconds, and reads no values. The command check reads them.

    Exit codes:
        0: nothing is wrong.
        1: there is an error or a warning.
        2: a URL or a login is wrong, or a package is missing.

    If the user lacks rights, they are named, and everything else is checked.
    """
    with servers.savers() as savers:
        results = [finding for holds, finding in _of_scripts(driver_of(savers.hot), servers.prefix) if holds]
        if not any(finding.severity == "error" for finding in results):  # else no thread can be read
            results += _of_all_else(savers.hot, servers.prefix)
    lines: list[Sequence[str | Text]] = []
    for result in results:
        if as_json:
            screen.emit(result)
        lines.append([Text(result.severity, _STYLES[result.severity]), result.about, result.what])
        lines += [["", "", result.remedy]] if result.remedy else []
    if not as_json:
        screen.table(("", "", ""), lines, wrapped=True)
    return 1 if any(result.severity in ("error", "warning") for result in results) else 0


def _of_scripts(driver: Driver[Any], prefix: str) -> _Rows:
    """Try what the scripts rely on."""
    about, traffic = "scripts", driver.traffic  # type: ignore[attr-defined]
    loads = traffic.script_loads
    try:
        core, trial = (driver.run(probe.probe(prefix, everything=everything)) for everything in (False, True))
    except UnsupportedServer as error:
        yield True, _error(about, str(error), "docs/servers.md says what is known of servers")
        return
    remedy = "each call sends its script again. Let the proxy or server keep the scripts of EVAL"
    yield traffic.script_loads > loads + 1, _warning(about, "NOSCRIPT follows an EVAL of the same script", remedy)
    for failure in core.failures:
        yield True, _error(about, failure, probe.remedy_of(failure))
    more = [failure for failure in trial.failures if failure not in core.failures]
    for failure in more:
        refused = probe.is_refused(failure)
        about_use = "ownership, two tiers and stores need it"
        yield refused, _info("rights", failure, f"{about_use}: {probe.remedy_of(failure)}")
        yield not refused, _error(about, failure, f"{about_use}: {probe.remedy_of(failure)}")
    skipped = f"writes were not tried: {trial.refused}"
    yield trial.refused, _info(about, skipped, "run doctor on the primary, as a user who may write")
    if trial.refused or core.failures:
        return
    alone = probe.is_isolated(driver, prefix)
    what = "other commands run between those of a script, so threads will be damaged"
    yield not alone, _error(about, what, "Garnet: start it with --lua-transaction-mode; else it cannot be used")
    yield alone and not more, _ok(about, "everything that scripts rely on works, and each one runs alone")


def _of_all_else(saver: RedisSaver, prefix: str) -> Iterator[Finding]:
    """Check the servers and the threads."""
    answers, threads = Answers(saver), overview(saver)
    yield from _of_servers(answers, threads.counts, prefix)
    prefixes = our_prefixes(driver_of(saver))
    rows = [*_of_threads(threads, prefix), *_of_cold(threads.counts), *_of_prefixes(prefixes, prefix)]
    for right in answers.refused:
        what = f"this user may not call {right.replace('|', ' ').upper()}, so that was not checked"
        rows.append((True, _info("rights", what, f"allow +{right}, or use another user")))
    yield from (finding for holds, finding in rows if holds)


def _of_servers(answers: Answers, counts: Mapping[str, Any], prefix: str) -> Iterator[Finding]:
    """Check each server. A finding that several servers of a cluster share comes once, with their names."""
    servers: dict[Finding, list[str]] = {}
    checks: dict[tuple[str, ...], Callable[[Any], _Rows]] = {
        ("INFO",): lambda info: _of_server(info, counts),
        ("ACL", "WHOAMI"): _of_user,
        ("SLOWLOG", "GET", "128"): lambda entries: _of_slow(entries, prefix),
    }
    for question, check in checks.items():
        for name, answer in answers.ask(*question).items():
            for holds, finding in check(answer):
                if holds:
                    servers.setdefault(finding, []).append(name)
    for finding, names in servers.items():
        yield finding._replace(what=f"{', '.join(names)}: {finding.what}") if any(names) else finding


def _of_server(info: Mapping[str, Any], counts: Mapping[str, Any]) -> _Rows:
    kind = "valkey" if "valkey_version" in info else "redis"
    yield True, _ok("version", f"{kind} {info.get('valkey_version') or info.get('redis_version')}")

    is_primary = info.get("role") == "master"
    yield is_primary, _ok("role", f"primary, {info.get('connected_slaves', 0)} replicas")
    remedy = "name the primary, or redis+sentinel://"
    yield not is_primary, _warning("role", "a replica: writes fail, reads may be stale", remedy)

    has_aof, backlog, disk = (
        str(info.get("aof_enabled", 0)) == "1",
        counts["backlog"],
        "read the server's log: its disk",
    )
    aof_fails, about = has_aof and info.get("aof_last_write_status") == "err", "persistence"
    yield aof_fails, _error(about, "the last write to the AOF failed", f"{disk} may be full")
    yield has_aof and not aof_fails, _ok(about, "appendonly yes")
    lost, remedy = f"appendonly is off, and {backlog:,} records are in Redis alone", "set appendonly yes"
    yield not has_aof and backlog, _error(about, lost, f"{remedy}: write-behind needs it (docs/operations.md)")
    lost = "appendonly is off: a crash loses everything since the last snapshot"
    remedy += ", unless Redis is the hot tier of write-through"
    yield not has_aof and not backlog, _info(about, lost, remedy)
    snapshot_fails = info.get("rdb_last_bgsave_status") == "err"
    yield snapshot_fails, _warning(about, "the last snapshot failed", f"{disk} or memory may be full")

    policy, used, most = (
        info.get("maxmemory_policy", ""),
        int(info.get("used_memory", 0)),
        int(info.get("maxmemory", 0)),
    )
    evicts, is_known = most and policy != "noeviction", policy or most
    all_expire = policy.startswith("volatile") and not counts["never_expire"] and not counts["pinned"]
    evicting = f"maxmemory-policy {policy}: it may evict one of a thread's two keys, and the conversation is lost"
    yield is_known and not evicts, _ok("eviction", f"{policy or 'none'}{'' if most else ', no maxmemory'}")
    remedy = "set noeviction, unless Redis is the hot tier over Postgres"
    yield evicts and all_expire, _info("eviction", evicting, remedy)
    remedy = "set noeviction, or volatile-ttl for a hot tier over Postgres"
    yield evicts and not all_expire, _warning("eviction", evicting, remedy)
    is_full, of_most = most and used > _FULL * most, f" of {most:,}" if most else ""
    yield is_full, _warning("memory", f"{used:,}{of_most} bytes are used", _ROOM)
    yield is_known and not is_full, _ok("memory", f"{used:,} bytes used{of_most}")
    evicted = int(info.get("evicted_keys", 0))
    yield evicted, _warning("eviction", f"it evicted {evicted:,} keys since it started", f"{_ROOM}; then check --all")


def _of_user(user: bytes | str) -> _Rows:
    name = user.decode("utf-8", "replace") if isinstance(user, bytes) else user
    remedy = "give the service a user of its own with the rights of docs/operations.md"
    return [(True, _info("user", name, remedy) if name == "default" else _ok("user", screen.named(name)))]


def _of_slow(entries: Any, prefix: str) -> _Rows:
    """Find slow scripts on our keys. An entry has an id, a time, microseconds and the words of the command."""
    slow = [int(entry[2]) for entry in entries if entry[2] >= _SLOW and _is_ours(entry[3], prefix)]
    longest = f"the longest {max(slow, default=0) / 1000:,.0f} ms"
    remedy = "docs/limits.md has the cost of each call. Shorten long histories: prune, or history={'keep_last': n}"
    what = f"{len(slow):,} of the last slow commands were scripts on threads, {longest}"
    return [(slow, _warning("slow scripts", what, remedy))]


def _is_ours(words: Sequence[bytes | str], prefix: str) -> bool:
    name, *others = [word if isinstance(word, bytes) else word.encode() for word in words]
    stem = prefix.encode("utf-8", "surrogatepass") + b":{"
    return name[:4].upper() == b"EVAL" and any(word.startswith(stem) for word in others)


def _of_threads(threads: Overview, prefix: str) -> _Rows:
    counts, about = threads.counts, "threads"
    total, lasting, damaged = counts["threads"], counts["never_expire"], counts["damaged"]
    for name, error in threads.errors.items():
        remedy = "redis-saver check says how to repair it"
        yield True, _error(about, f"{screen.named(name)}: {printable(error)}", remedy)
    more = f"{damaged - MAX_NAMED:,} more are damaged"
    yield damaged > MAX_NAMED, _error(about, more, "redis-saver check --all")
    failed = f"{counts['failed']:,} of {total:,} failed in a task"
    yield counts["failed"], _info(about, failed, "redis-saver threads --state failed")
    flushed = "threads of the backlog expire once they are flushed; else " if counts["dirty_threads"] else ""
    some = f"{lasting:,} of {total:,} never expire, and are not pinned"
    remedy = f"{flushed}if that is not intended, give all savers a ttl. redis-saver ttl sets that of a thread"
    yield 0 < lasting < total, _info(about, some, remedy)
    remedy = f"{flushed}give the saver a ttl, or prune on a schedule"
    yield 0 < lasting == total, _info(about, f"none of {total:,} expires", remedy)
    yield not total, _info(about, f"none under prefix {screen.named(prefix)}", OTHER_PREFIX)
    is_well = total and not lasting and not damaged
    yield is_well, _ok(about, f"{total:,}, all of them expire or are pinned")

    yield threads.owned, _ok("owners", f"owned: {threads.owned:,}")
    number = f"{len(threads.late):,}{' or more' if len(threads.late) == MAX_NAMED else ''}"
    what = f"the leases of {number} owners have expired: {', '.join(map(screen.named, threads.late))}"
    why = "their processes are stopped or gone, or cannot reach the server"
    yield threads.late, _info("owners", what, f"{why}. The next writer takes the thread")


def _of_cold(counts: Mapping[str, Any]) -> _Rows:
    age, severity = counts["oldest_seconds"], _warning if counts["oldest_seconds"] > _LATE else _info
    late = f"cold lacks {counts['backlog']:,} records of {counts['dirty_threads']:,} threads"
    what = f"{late}, the oldest for {times.shown(timedelta(seconds=int(age)))}"
    remedy = "redis-saver flush writes them to cold. docs/operations.md says what to check"
    yield counts["backlog"], severity("backlog", what, remedy)
    refused = f"cold refused {counts['set_aside']:,} records"
    yield counts["set_aside"], _warning("backlog", refused, "redis-saver check names them")


def _of_prefixes(prefixes: Iterable[str], prefix: str) -> _Rows:
    """Find prefixes with threads that begin with this one, or this one with them. `~a:*` also allows prefix `a:b`."""
    nested = [other for other in sorted(prefixes) if other.startswith(f"{prefix}:") or prefix.startswith(f"{other}:")]
    shorter = screen.named(min((prefix, *nested), key=len))
    what = f"{', '.join(map(screen.named, (*nested[:MAX_NAMED], prefix)))}: one begins with another"
    remedy = f"a user with ~{shorter}:* can use all of them. docs/security.md explains how to name prefixes"
    yield nested, _info("prefixes", what, remedy)


# -- check


@command("check")
def _check(servers: Servers, threads: list[str] | None = None, *, every: bool = EVERY, as_json: bool = JSON) -> int:
    """Check whether threads are sound: headers, digests, references, deadlines and counters.

    With --postgres it also compares them with Postgres. It names each fault and how to repair it.
    It writes nothing, and threads may be in use.

    Options:
        every: Check all threads. Sound ones are only counted.

    Exit codes:
        0: all threads are sound.
        1: some are damaged or missing.
        2: a URL or a login is wrong, or a package is missing.

    With keys, or if LANGGRAPH_AES_KEY is set, values are decrypted, and values without encryption are named.
    """
    if bool(threads) == every:
        raise typer.BadParameter("name the threads, or say --all.", param_hint="THREAD")
    looked_at = unsound = 0
    with servers.savers(readable=False, require_encryption=True) as savers:
        for thread in savers.endpoints[0].threads() if every else threads or ():
            if (report := _report(savers.saver, thread, is_named=not every)) is None:
                continue
            looked_at += 1
            unsound += not report.sound
            if as_json or report.findings or not every:
                screen.show({**report._asdict(), "sound": report.sound}, "\n".join(_lines(report)), as_json=as_json)
    if every and not as_json:
        screen.line(f"{counted(looked_at, 'thread')}: {looked_at - unsound:,} sound, {unsound:,} not")
    return 1 if unsound else 0


def _report(saver: Any, thread: str, *, is_named: bool) -> checking.CheckReport | None:
    """Check a thread. If it cannot be checked, report why. Return None if nobody named it and it is gone."""
    try:
        return saver.check(thread)  # type: ignore[no-any-return]
    except ThreadNotFound:
        if not is_named:
            return None
        what = "it is not there: it was never written, was deleted, or has expired"
        remedy = "check its name and --prefix"
    except ThreadBusy as error:
        what, remedy = str(error), "run this again when the thread is not in use"
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
        allow_changes: Let users delete and pin threads, and set their TTL.

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
    with servers.savers(connections=4) as savers, _listening(host, port) as listening:
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
