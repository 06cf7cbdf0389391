"""The command `doctor`: looks whether a server is fit for savers, and whether its threads are sound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import typer

from redis_saver._checkpoint.saver import context_of, driver_of
from redis_saver._cli import screen
from redis_saver._cli.arguments import Json, Prefix, Redis, needed
from redis_saver._cli.opening import opened_savers
from redis_saver._cli.overview import MAX_NAMED, Answers, Overview, overview
from redis_saver._client.clients import connect
from redis_saver._common import times
from redis_saver._common.display import printable

Severity: TypeAlias = Literal["error", "warning", "info", "ok"]
_CODES = (
    "Exit code: 0, nothing is wrong; 1, there is an error or a warning; 2, a URL, a login or a missing package is at fault. What this user may not ask "
    "is named, and the rest is looked at."
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
    """Look whether a server is fit for savers, and whether its threads are sound. Each finding has its remedy.

    Version, role, persistence, eviction, memory, slow scripts; damaged threads, threads that never expire, what cold still has to get. It reads no
    values: check does. It writes nothing.
    """
    with opened_savers(url, prefix) as savers, closing(connect(needed(url), asynchronous=False)) as client:
        answers = Answers(client)
        counted = driver_of(savers.hot).run(overview(context_of(savers.hot)))
        found = [*_of_server(answers, counted, prefix), *_of_threads(counted), *_of_owners(counted), *_of_cold(counted)]
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
    for one in found:
        screen.table(
            ("", "", ""),
            [[screen.styled(f"{one.severity:8}", screen.KINDS.get(one.severity, "dim")), f"{one.about:12}", one.what]],
        )
        if one.remedy:
            screen.line(f"{'':10}{'':14}{one.remedy}")


def _of_server(answers: Answers, counted: Overview, prefix: str) -> Iterator[Finding]:
    for name, info in answers.info("server").items():
        what = "valkey" if "valkey_version" in info else "redis"
        yield Finding("ok", "version", f"{_at(name)}{what} {info.get('valkey_version') or info.get('redis_version')}")
    for name, info in answers.info("replication").items():
        yield from _of_role(_at(name), info)
    for name, info in answers.info("persistence").items():
        yield from _of_persistence(_at(name), info, counted)
    for name, info in answers.info("memory").items():
        yield from _of_memory(_at(name), info, counted)
    for name, info in answers.info("stats").items():
        if (evicted := int(info.get("evicted_keys", 0))) > 0:
            yield Finding(
                "warning",
                "eviction",
                f"{_at(name)}it evicted {evicted:,} keys since it started",
                "give it more memory, shorter TTLs, or prune; then check --all",
            )
    for name, user in answers.ask("ACL", "WHOAMI").items():
        text = user.decode("utf-8", "replace") if isinstance(user, bytes) else str(user)
        is_default = text == "default"
        remedy = "give the service a user of its own with the rights of docs/operations.md" if is_default else ""
        yield Finding("info" if is_default else "ok", "user", f"{_at(name)}{screen.named(text)}", remedy)
    for name, entries in answers.ask("SLOWLOG", "GET", 128).items():
        yield from _of_slow(_at(name), entries, prefix)


def _at(name: str) -> str:
    return f"{name}: " if name else ""


def _of_role(at: str, info: Mapping[str, Any]) -> Iterator[Finding]:
    if info.get("role") != "master":
        yield Finding(
            "warning",
            "role",
            f"{at}it is a replica: writes fail, and reads may be old",
            "name the primary, or redis+sentinel://",
        )
    else:
        yield Finding("ok", "role", f"{at}primary, {info.get('connected_slaves', 0)} replicas")


def _of_persistence(at: str, info: Mapping[str, Any], counted: Overview) -> Iterator[Finding]:
    has_aof = str(info.get("aof_enabled", 0)) == "1"
    if has_aof and info.get("aof_last_write_status") == "err":
        yield Finding(
            "error",
            "persistence",
            f"{at}the last write to the AOF failed",
            "see the server's log: its disk may be full",
        )
    elif has_aof:
        yield Finding("ok", "persistence", f"{at}appendonly yes")
    elif counted.records:
        remedy = "set appendonly yes: write-behind needs it (docs/operations.md)"
        yield Finding(
            "error", "persistence", f"{at}appendonly is off, and {counted.records:,} records are in Redis alone", remedy
        )
    else:
        remedy = "set appendonly yes, unless Redis is the hot tier of write-through"
        yield Finding(
            "info", "persistence", f"{at}appendonly is off: a crash loses all since the last snapshot", remedy
        )
    if info.get("rdb_last_bgsave_status") == "err":
        yield Finding(
            "warning",
            "persistence",
            f"{at}the last snapshot failed",
            "see the server's log: its disk or memory may be full",
        )


def _of_memory(at: str, info: Mapping[str, Any], counted: Overview) -> Iterator[Finding]:
    policy, used, most = (
        str(info.get("maxmemory_policy", "")),
        int(info.get("used_memory", 0)),
        int(info.get("maxmemory", 0)),
    )
    if not policy and not most:
        return
    if policy == "noeviction" or not most:
        yield Finding("ok", "eviction", f"{at}{policy or 'none'}{'' if most else ', no maxmemory'}")
    elif policy.startswith("volatile") and not counted.lasting and not counted.pinned:
        remedy = "set noeviction, unless Redis is the hot tier in front of Postgres"
        yield Finding("info", "eviction", f"{at}maxmemory-policy {policy}: {_EVICTING}", remedy)
    else:
        yield Finding(
            "warning",
            "eviction",
            f"{at}maxmemory-policy {policy}: {_EVICTING}",
            "set noeviction; volatile-ttl in front of Postgres",
        )
    if most and used > _FULL * most:
        yield Finding(
            "warning", "memory", f"{at}{used:,} of {most:,} bytes are used", "raise maxmemory, shorten TTLs, or prune"
        )
    else:
        yield Finding("ok", "memory", f"{at}{used:,} bytes used{f' of {most:,}' if most else ''}")


def _of_slow(at: str, entries: Any, prefix: str) -> Iterator[Finding]:
    """Calls of scripts on our keys that took long. An entry is a number, a time, microseconds, the words of the command, and more."""
    slow = [int(entry[2]) for entry in entries if entry[2] >= _SLOW and _is_ours(entry[3], prefix)]
    if slow:
        what = f"{at}{len(slow):,} of the last slow commands were scripts on threads, the longest {max(slow) / 1000:,.0f} ms"
        remedy = "docs/limits.md has what takes how long; long histories: prune, or history={'keep_last': n}"
        yield Finding("warning", "slow scripts", what, remedy)


def _is_ours(words: Sequence[bytes | str], prefix: str) -> bool:
    name, *others = [word if isinstance(word, bytes) else word.encode() for word in words]
    stem = prefix.encode("utf-8", "surrogatepass") + b":{"
    return name[:4].upper() == b"EVAL" and any(word.startswith(stem) for word in others)


def _of_threads(counted: Overview) -> Iterator[Finding]:
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
    elif not counted.damaged:
        yield Finding("ok", "threads", f"{counted.threads:,}, all of them expire or are pinned")


def _of_owners(counted: Overview) -> Iterator[Finding]:
    if counted.owned:
        yield Finding("ok", "owners", f"{counted.owned:,} threads are owned")
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
