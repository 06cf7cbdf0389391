"""The command `doctor`: looks whether a server is fit for savers, and whether its threads are sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import typer
from rich.text import Text

from redis_saver._checkpoint.saver import context_of, driver_of
from redis_saver._cli import screen
from redis_saver._cli.arguments import Json, Prefix, Redis, redis_url
from redis_saver._cli.opening import opened_savers
from redis_saver._cli.overview import MAX_NAMED, OTHER_PREFIX, Answers, Overview, nested_prefixes, overview
from redis_saver._client.clients import connect
from redis_saver._common import times
from redis_saver._common.display import printable

Severity: TypeAlias = Literal["error", "warning", "info", "ok"]
_CODES = (
    "Exit code: 0, nothing is wrong; 1, there is an error or a warning; 2, a URL, a login or a missing package is at fault. What this user may not ask "
    "is named, and all else is looked at."
)
_FULL = 0.9
_SLOW = 20_000
"""Microseconds from which on a call of a script is told of."""
_LATE = 300_000
"""Milliseconds after which a backlog is told of."""
_EVICTING = "it may evict one of a thread's two keys, and the conversation is lost"


@dataclass(frozen=True)
class Finding:
    """Something that was looked at."""

    severity: Severity
    about: str
    what: str
    remedy: str = ""


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", epilog=_CODES)(_doctor)


def _doctor(*, url: Redis = None, prefix: Prefix = "langgraph", as_json: Json = False) -> int:
    """Find out whether a server is fit for savers, and its threads sound. Each finding has its remedy.

    The server: version, role, persistence, eviction, memory, slow scripts, what its user may not ask.
    The threads: damaged ones, those that never expire, owners whose lease has run out, what cold still has to get.
    It writes nothing, and reads no values; check does.
    """
    with opened_savers(url, prefix) as savers, closing(connect(redis_url(url), asynchronous=False)) as client:
        answers = Answers(client)
        counted = driver_of(savers.hot).run(overview(context_of(savers.hot)))
        found = [
            *_of_servers(answers, counted, prefix),
            *_of_threads(counted, prefix),
            *_of_owners(counted),
            *_of_cold(counted),
            *_of_prefixes(driver_of(savers.hot).run(nested_prefixes(context_of(savers.hot))), prefix),
        ]
        found += [_refused(command) for command in answers.refused]
    _tell(found, as_json=as_json)
    return 1 if any(one.severity in ("error", "warning") for one in found) else 0


def _refused(right: str) -> Finding:
    what = f"this user may not ask {right.replace('|', ' ').upper()}, so that was not looked at"
    return Finding("info", "rights", what, f"allow +{right}, or ask as a user who may")


def _tell(found: list[Finding], *, as_json: bool) -> None:
    if as_json:
        for one in found:
            screen.emit(one)
        return
    rows: list[Sequence[str | Text]] = []
    for one in found:
        style = screen.KINDS.get(one.severity, "dim")
        rows.append([screen.styled(one.severity, style), one.about, one.what])
        rows += [["", "", one.remedy]] if one.remedy else []
    screen.table(("", "", ""), rows, wrapped=True)


def _of_servers(answers: Answers, counted: Overview, prefix: str) -> Iterator[Finding]:
    """What was found at the servers. What several of a cluster have in common comes once, with their names."""
    servers: dict[Finding, list[str]] = {}
    for name, one in _of_each(answers, counted, prefix):
        servers.setdefault(one, []).append(name)
    for one, names in servers.items():
        yield replace(one, what=f"{', '.join(names)}: {one.what}") if any(names) else one


def _of_each(answers: Answers, counted: Overview, prefix: str) -> Iterator[tuple[str, Finding]]:
    """What was found at each server, with its name; one that is alone has none."""
    looks: tuple[tuple[str, Callable[[Mapping[str, Any]], Iterator[Finding]]], ...] = (
        ("server", _of_version),
        ("replication", _of_role),
        ("persistence", lambda info: _of_persistence(info, counted)),
        ("memory", lambda info: _of_memory(info, counted)),
        ("stats", _of_evictions),
    )
    for section, look in looks:
        for name, info in answers.info(section).items():
            yield from ((name, one) for one in look(info))
    for name, user in answers.ask("ACL", "WHOAMI").items():
        yield name, _of_user(user)
    for name, entries in answers.ask("SLOWLOG", "GET", 128).items():
        yield from ((name, one) for one in _of_slow(entries, prefix))


def _of_version(info: Mapping[str, Any]) -> Iterator[Finding]:
    what = "valkey" if "valkey_version" in info else "redis"
    yield Finding("ok", "version", f"{what} {info.get('valkey_version') or info.get('redis_version')}")


def _of_evictions(info: Mapping[str, Any]) -> Iterator[Finding]:
    if (evicted := int(info.get("evicted_keys", 0))) > 0:
        remedy = "give it more memory, shorter TTLs, or prune; then check --all"
        yield Finding("warning", "eviction", f"it evicted {evicted:,} keys since it started", remedy)


def _of_user(user: bytes | str) -> Finding:
    name = user.decode("utf-8", "replace") if isinstance(user, bytes) else user
    if name == "default":
        remedy = "give the service a user of its own with the rights of docs/operations.md"
        return Finding("info", "user", name, remedy)
    return Finding("ok", "user", screen.named(name))


def _of_role(info: Mapping[str, Any]) -> Iterator[Finding]:
    if info.get("role") != "master":
        yield Finding(
            "warning",
            "role",
            "it is a replica: writes fail, and reads may be old",
            "name the primary, or redis+sentinel://",
        )
    else:
        yield Finding("ok", "role", f"primary, {info.get('connected_slaves', 0)} replicas")


def _of_persistence(info: Mapping[str, Any], counted: Overview) -> Iterator[Finding]:
    has_aof = str(info.get("aof_enabled", 0)) == "1"
    if has_aof and info.get("aof_last_write_status") == "err":
        yield Finding(
            "error",
            "persistence",
            "the last write to the AOF failed",
            "see the server's log: its disk may be full",
        )
    elif has_aof:
        yield Finding("ok", "persistence", "appendonly yes")
    elif counted.records:
        remedy = "set appendonly yes: write-behind needs it (docs/operations.md)"
        yield Finding(
            "error", "persistence", f"appendonly is off, and {counted.records:,} records are in Redis alone", remedy
        )
    else:
        remedy = "set appendonly yes, unless Redis is the hot tier of write-through"
        yield Finding("info", "persistence", "appendonly is off: a crash loses all since the last snapshot", remedy)
    if info.get("rdb_last_bgsave_status") == "err":
        yield Finding(
            "warning",
            "persistence",
            "the last snapshot failed",
            "see the server's log: its disk or memory may be full",
        )


def _of_memory(info: Mapping[str, Any], counted: Overview) -> Iterator[Finding]:
    policy, used, most = (
        str(info.get("maxmemory_policy", "")),
        int(info.get("used_memory", 0)),
        int(info.get("maxmemory", 0)),
    )
    if not policy and not most:
        return
    if policy == "noeviction" or not most:
        yield Finding("ok", "eviction", f"{policy or 'none'}{'' if most else ', no maxmemory'}")
    elif policy.startswith("volatile") and not counted.lasting and not counted.pinned:
        remedy = "set noeviction, unless Redis is the hot tier in front of Postgres"
        yield Finding("info", "eviction", f"maxmemory-policy {policy}: {_EVICTING}", remedy)
    else:
        yield Finding(
            "warning",
            "eviction",
            f"maxmemory-policy {policy}: {_EVICTING}",
            "set noeviction; volatile-ttl in front of Postgres",
        )
    if most and used > _FULL * most:
        yield Finding(
            "warning", "memory", f"{used:,} of {most:,} bytes are used", "raise maxmemory, shorten TTLs, or prune"
        )
    else:
        yield Finding("ok", "memory", f"{used:,} bytes used{f' of {most:,}' if most else ''}")


def _of_slow(entries: Any, prefix: str) -> Iterator[Finding]:
    """Calls of scripts on our keys that took long. An entry is a number, a time, microseconds, the words of the command, and more."""
    slow = [int(entry[2]) for entry in entries if entry[2] >= _SLOW and _is_ours(entry[3], prefix)]
    if slow:
        what = (
            f"{len(slow):,} of the last slow commands were scripts on threads, the longest {max(slow) / 1000:,.0f} ms"
        )
        remedy = "docs/limits.md has what takes how long; long histories: prune, or history={'keep_last': n}"
        yield Finding("warning", "slow scripts", what, remedy)


def _is_ours(words: Sequence[bytes | str], prefix: str) -> bool:
    name, *others = [word if isinstance(word, bytes) else word.encode() for word in words]
    stem = prefix.encode("utf-8", "surrogatepass") + b":{"
    return name[:4].upper() == b"EVAL" and any(word.startswith(stem) for word in others)


def _of_threads(counted: Overview, prefix: str) -> Iterator[Finding]:
    for name, error in counted.errors.items():
        yield Finding(
            "error",
            "threads",
            f"{screen.named(name)}: {printable(error)}",
            "redis-saver check names what is wrong, and how it is repaired",
        )
    if counted.damaged > MAX_NAMED:
        yield Finding(
            "error", "threads", f"and {counted.damaged - MAX_NAMED:,} more that are damaged", "redis-saver check --all"
        )
    if failed := counted.states["failed"]:
        yield Finding(
            "info",
            "threads",
            f"{failed:,} of {counted.threads:,} failed in a task",
            "redis-saver threads --state failed",
        )
    if 0 < counted.lasting < counted.threads:
        remedy = "if that is not meant: give all savers a ttl; redis-saver ttl THREAD sets one"
        yield Finding(
            "info", "threads", f"{counted.lasting:,} of {counted.threads:,} never expire, and are not pinned", remedy
        )
    elif counted.lasting:
        yield Finding(
            "info", "threads", f"none of {counted.threads:,} expires", "give the saver a ttl, or prune on a schedule"
        )
    elif not counted.threads:
        yield Finding("info", "threads", f"none under prefix {screen.named(prefix)}", OTHER_PREFIX)
    elif not counted.damaged:
        yield Finding("ok", "threads", f"{counted.threads:,}, all of them expire or are pinned")


def _of_prefixes(nested: Sequence[str], prefix: str) -> Iterator[Finding]:
    if nested:
        shorter = min((prefix, *nested), key=len)
        what = f"{', '.join(map(screen.named, (*nested, prefix)))}: one begins with another"
        remedy = f"a user with ~{screen.named(shorter)}:* can use them all; docs/security.md says how to name prefixes"
        yield Finding("info", "prefixes", what, remedy)


def _of_owners(counted: Overview) -> Iterator[Finding]:
    if counted.owned:
        yield Finding("ok", "owners", f"owned: {counted.owned:,}")
    if counted.late:
        yield Finding(
            "info",
            "owners",
            f"the leases of {len(counted.late):,}{' or more' if len(counted.late) == MAX_NAMED else ''} owners have run out: "
            + ", ".join(map(screen.named, counted.late)),
            "their processes are stopped or gone, or cannot reach the server; whoever runs the thread next takes it",
        )


def _of_cold(counted: Overview) -> Iterator[Finding]:
    if not counted.records:
        return
    late = f"cold lacks {counted.records:,} records of {counted.dirty_threads:,} threads"
    oldest = times.shown(timedelta(seconds=counted.oldest_ms // 1000))
    severity: Severity = "warning" if counted.oldest_ms > _LATE else "info"
    yield Finding(
        severity,
        "backlog",
        f"{late}, the oldest for {oldest}",
        "redis-saver flush brings them there; docs/operations.md has what to look at",
    )
    if counted.set_aside:
        yield Finding(
            "warning",
            "backlog",
            f"{counted.set_aside:,} records were refused by cold",
            "redis-saver check names them, and what cold said",
        )
