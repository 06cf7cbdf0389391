"""Findings about a server and its threads, for `stats`, `doctor` and the inspector."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from redis.crc import key_slot

from redis_saver._checkpoint.listing import mapped, scan_keys
from redis_saver._checkpoint.saver import context_of, driver_of
from redis_saver._checkpoint.threads import ANY, ThreadInfo
from redis_saver._common import times
from redis_saver._common.display import error_text, printable
from redis_saver._common.names import DIRTY, Keyspace
from redis_saver._engine import probe
from redis_saver._engine.requests import Batch, Call, Command, Operation, Request, ToEach
from redis_saver._engine.runner import Driver
from redis_saver._inspector.source import Limit, Source, until
from redis_saver._inspector.values import named, states_of
from redis_saver._tiered import scripts
from redis_saver._tiered.backlog import LONGEST_PAUSE
from redis_saver._tiered.thread_info import Damaged
from redis_saver.errors import UnsupportedServer

MAX_NAMED = 20
"""Maximum number of threads to name."""
OTHER_PREFIX = "check that --prefix, and the database in --redis, are those of the saver"
"""Remedy if there are no threads."""
_SOON, _DAY = timedelta(hours=1), timedelta(days=1)
_COUNTS = (
    *("threads", "active", "interrupted", "failed", "orphaned", "damaged", "checkpoints", "bytes", "largest_thread"),
    *("largest_bytes", "owned", "pinned", "never_expire", "expire_within_1h", "expire_within_1d"),
    *("dirty_threads", "backlog", "oldest_seconds", "set_aside", "paused_seconds", "intents"),
    "lost_records",
)
"""Numbers of `stats`. A thread counts in each of its states, as in the filters of `threads`. `owned` counts leases that
have not expired, and `never_expire` threads without a deadline that are not pinned.

Cold lacks `backlog` records of `dirty_threads` threads, and has refused `set_aside` of them. Flushing is paused for
another `paused_seconds`. `intents` counts threads with an unfinished write to cold, whose writer may have died.
`lost_records` are those of the last loss, for a day.
"""


@dataclass
class Overview:
    """Counts of all threads of a prefix."""

    counts: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0) | {"largest_thread": None})
    orphans: list[str] = field(default_factory=list)
    """Names of the first orphaned threads."""
    errors: dict[str, str] = field(default_factory=dict)
    """Errors of the first damaged threads, by name."""
    busy: dict[tuple[int, float], list[str]] = field(default_factory=dict)
    """Names of the threads in busy slots, by the slot and its share of the traffic."""
    is_hot_tier: bool = False
    """True if a cold tier was named, or if Redis shows that savers have written to one in the last hour."""

    def add(self, info: ThreadInfo | Damaged) -> None:
        """Count a thread."""
        if isinstance(info, Damaged):
            self.count(threads=1, damaged=1)
            if len(self.errors) < MAX_NAMED:
                self.errors[info.thread_id] = str(info.error)
            return
        lasts = info.ttl is None and not info.pinned and getattr(info, "tier", "hot") != "cold"
        self.count(threads=1, checkpoints=info.checkpoints, bytes=info.bytes, pinned=info.pinned, never_expire=lasts)
        for name, within in (("expire_within_1h", _SOON), ("expire_within_1d", _DAY)):
            self.count(**{name: info.ttl is not None and info.ttl <= within})
        self.count(owned=info.owner is not None and info.owner.lease_left > timedelta())
        self.count(**dict.fromkeys(states_of(info), 1))
        if info.orphaned and len(self.orphans) < MAX_NAMED:
            self.orphans.append(info.thread_id)
        if self.counts["largest_thread"] is None or info.bytes > self.counts["largest_bytes"]:
            self.counts |= {"largest_thread": info.thread_id, "largest_bytes": info.bytes}

    def count(self, **numbers: int) -> None:
        """Add to counts."""
        for name, number in numbers.items():
            self.counts[name] += number


def overview(
    source: Source, is_over: Callable[[], bool] = lambda: False, busy_slots: Mapping[int, float] | None = None
) -> Overview:
    """Count all threads, including damaged ones, and name those in busy slots.

    Cost: a scan of all keys. No values are read. `is_over` is called before each request. True ends the count.
    """
    threads, driver, keyspace = Overview(), driver_of(source.hot), context_of(source.hot).keyspace
    for info in source.threads(ANY, is_over):
        threads.add(info)
        if busy_slots and (slot := key_slot(keyspace.keys(info.thread_id).index_key)) in busy_slots:
            threads.busy.setdefault((slot, busy_slots[slot]), []).append(info.thread_id)
    backlogs = mapped(scan_keys(keyspace.dirty_pattern), partial(_backlogs, keyspace))
    for records, age, aside in driver.stream(until(is_over, backlogs)):
        threads.count(dirty_threads=records > 0, backlog=records, set_aside=aside)
        threads.counts["oldest_seconds"] = max(threads.counts["oldest_seconds"], age / 1000)
    until_then, loss, counted = driver.request(Command(("HMGET", keyspace.unflushed, "paused", "lost", "generation")))
    left = int(until_then) / 1000 - time.time() if (until_then or b"").isdigit() else 0
    threads.counts["paused_seconds"] = round(left) if 0 < left <= LONGEST_PAUSE else 0
    lost, _, at = (loss or b"").partition(b" ")
    if lost.isdigit() and at.isdigit() and time.time() - int(at) < _DAY.total_seconds():
        threads.counts["lost_records"] = int(lost)
    threads.count(intents=sum(1 for _ in driver.stream(until(is_over, scan_keys(keyspace.intents_pattern)))))
    unfinished = threads.counts["dirty_threads"] or threads.counts["intents"]
    threads.is_hot_tier = source.tiers is not None or counted is not None or unfinished > 0
    return threads


def _backlogs(keyspace: Keyspace, keys: Sequence[bytes]) -> Operation[list[Any]]:
    """Read the number of records, the age in milliseconds and the number of refused records of each backlog."""
    names = [name for key in keys if (name := keyspace.thread_of(key, DIRTY)) is not None]
    calls = [Call(scripts.BACKLOG_STATS, (tier.dirty, tier.flush), ()) for tier in map(keyspace.tier_keys, names)]
    return (yield Batch(calls)) if calls else []


_OF_SERVER = (
    *("connected_clients", "used_memory", "maxmemory"),
    *("instantaneous_ops_per_sec", "evicted_keys", "expired_keys"),
)


class Answers:
    """Information that the saver's servers return about themselves."""

    def __init__(self, saver: Any) -> None:
        """Ask the servers of a saver of Redis."""
        self._driver = driver_of(saver)
        self.refused: dict[str, str] = {}
        """The server's error for each refused command, as an ACL names it. Empty if the user may not call it."""

    def busy_slots(self) -> dict[int, float]:
        """Return slots of a cluster that had much of their primary's traffic, with the share of its bytes.

        Servers count it from Redis 8.2 and Valkey 8 on, with `cluster-slot-stats-enabled yes`. They do not count the
        processor time of scripts.
        """
        busy, infos = dict[int, float](), self.ask("INFO")
        for way in ("in", "out"):
            name = f"network-bytes-{way}"
            for node, slots in self.ask("CLUSTER", "SLOT-STATS", "ORDERBY", name, "LIMIT", 4, "DESC").items():
                total = int(infos.get(node, {}).get(f"total_net_{way}put_bytes", 0))
                for slot, counts in slots:
                    flat = [part for pair in counts.items() for part in pair] if isinstance(counts, Mapping) else counts
                    share = flat[flat.index(name.encode()) + 1] / total if total else 0
                    if share > _BUSY:
                        busy[slot] = max(share, busy.get(slot, 0))
        self.refused.pop("cluster|slot-stats", None)  # no cluster, or it does not count
        return busy

    def ask(self, *command: Any) -> dict[str, Any]:
        """Return the reply of each server by its name. It is empty if the server refuses the command."""
        return self.request(command, ToEach(command)) or {}

    def request(self, command: Sequence[str], request: Request) -> Any:
        """Return the reply to a request with this command, or None if the server refuses it."""
        try:
            return self._driver.request(request)
        except Exception as error:  # each client has classes of its own
            kinds = {kind.__name__ for kind in type(error).__mro__}
            if "ResponseError" not in kinds:
                raise
            lacks_right = "NoPermissionError" in kinds
            if not lacks_right or "key" not in str(error):  # else the user may call it for other keys
                self.refused["|".join(map(str.lower, command[:2]))] = "" if lacks_right else error_text(error)
            return None

    def unanswered(self) -> Iterator[Finding]:
        """Yield a finding for each refused command."""
        for right, error in self.refused.items():
            name = right.replace("|", " ").upper()
            if error:
                yield _info("server", f"the server refuses {name} ({error})", _SERVERS)
            else:
                yield _info("rights", f"this user may not call {name}", f"allow +{right}, or use another user")

    def numbers(self) -> dict[str, int]:
        """Return numbers of INFO that are known, added up over all servers."""
        infos = list(self.ask("INFO").values())
        known = [name for name in _OF_SERVER if any(name in info for info in infos)]
        return {name: sum(int(info.get(name, 0)) for info in infos) for name in known}


_FULL = 0.9
_SLOW = 20_000
"""Microseconds after which a call of a script is slow."""
_LATE = 300
"""Age in seconds after which a backlog is a warning."""
_BUSY = 0.25
"""Share of a primary's traffic from which a slot is busy."""
_ROOM = "raise maxmemory, shorten TTLs, or prune"
_COSTS = "redis-saver docs limits has the cost of each call"
_SERVERS = "redis-saver docs servers says what is known of servers"
_PERSISTENCE = "redis-saver docs operations#persistence"


class Finding(NamedTuple):
    """A result of `doctor`."""

    severity: Literal["error", "warning", "info", "ok"]
    about: str
    what: str
    remedy: str = ""


SEVERITIES: tuple[Literal["error", "warning", "info", "ok"], ...] = ("error", "warning", "info", "ok")
_error, _warning, _info, _ok = (partial(Finding, severity) for severity in SEVERITIES)
_Rows: TypeAlias = Iterable[tuple[object, Finding]]
"""Findings, each with its condition."""


def of_scripts(driver: Driver[Any], prefix: str) -> _Rows:
    """Try what the scripts rely on."""
    about, traffic = "scripts", driver.traffic  # type: ignore[attr-defined]
    loads = traffic.script_loads
    try:
        core, trial = (driver.run(probe.probe(prefix, everything=everything)) for everything in (False, True))
    except UnsupportedServer as error:
        yield True, _error(about, str(error), _SERVERS)
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


def of_all_else(answers: Answers, threads: Overview, prefix: str, prefixes: Iterable[str]) -> Iterator[Finding]:
    """Check the servers and the threads. `prefixes` are those of all threads of the server."""
    yield from _of_servers(answers, threads, prefix)
    rows = [*_of_threads(threads, prefix), *_of_cold(threads.counts), *_of_prefixes(prefixes, prefix)]
    for (slot, share), there in threads.busy.items():
        what = f"slot {slot} had {share:.0%} of its primary's traffic: {', '.join(map(named, there[:MAX_NAMED]))}"
        rows.append((True, _info("busy threads", what, _COSTS)))
    rows += [(True, one._replace(what=f"{one.what}, so that was not checked")) for one in answers.unanswered()]
    yield from (finding for holds, finding in rows if holds)


def _of_servers(answers: Answers, threads: Overview, prefix: str) -> Iterator[Finding]:
    """Check each server. A finding that several servers of a cluster share comes once, with their names."""
    servers: dict[Finding, list[str]] = {}
    checks: dict[tuple[str, ...], Callable[[Any], _Rows]] = {
        ("INFO",): lambda info: [*_of_server(info, threads), *_of_memory(info, threads)],
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


def _of_server(info: Mapping[str, Any], threads: Overview) -> _Rows:
    counts = threads.counts
    kind = "valkey" if "valkey_version" in info else "redis"
    yield True, _ok("version", f"{kind} {info.get('valkey_version') or info.get('redis_version')}")

    is_primary = info.get("role") == "master"
    yield is_primary, _ok("role", f"primary, {info.get('connected_slaves', 0)} replicas")
    remedy = "name the primary, or redis+sentinel://"
    yield not is_primary, _warning("role", "a replica: writes fail, reads may be stale", remedy)

    has_aof, backlog = str(info.get("aof_enabled", 0)) == "1", counts["backlog"]
    disk = "read the server's log: its disk"
    aof_fails, about = has_aof and info.get("aof_last_write_status") == "err", "persistence"
    yield aof_fails, _error(about, "the last write to the AOF failed", f"{disk} may be full")
    yield has_aof and not aof_fails, _ok(about, "appendonly yes")
    lost, remedy = f"appendonly is off, and {backlog:,} records are in Redis alone", "set appendonly yes"
    yield not has_aof and backlog, _error(about, lost, f"{remedy}: write-behind needs it ({_PERSISTENCE})")
    lost = "appendonly is off: a crash loses everything since the last snapshot"
    remedy += ", unless Redis is the hot tier of write-through"
    yield not has_aof and not backlog, _info(about, lost, remedy)
    snapshot_fails = info.get("rdb_last_bgsave_status") == "err"
    yield snapshot_fails, _warning(about, "the last snapshot failed", f"{disk} or memory may be full")


def _of_memory(info: Mapping[str, Any], threads: Overview) -> _Rows:
    counts = threads.counts
    policy = info.get("maxmemory_policy", "")
    used, most = (int(info.get(name, 0)) for name in ("used_memory", "maxmemory"))
    evicts, is_known = most and policy != "noeviction", policy or most
    is_volatile = policy.startswith("volatile")
    all_expire = is_volatile and not counts["never_expire"] and not counts["pinned"]
    is_hot = is_volatile and threads.is_hot_tier
    evicting = f"maxmemory-policy {policy}: it may evict one of a thread's two keys, and the conversation is lost"
    yield is_known and not evicts, _ok("eviction", f"{policy or 'none'}{'' if most else ', no maxmemory'}")
    remedy = "set noeviction, unless Redis is the hot tier over Postgres"
    yield evicts and all_expire and not is_hot, _info("eviction", evicting, remedy)
    remedy = "set noeviction, or volatile-ttl for a hot tier over Postgres"
    yield evicts and not all_expire and not is_hot, _warning("eviction", evicting, remedy)
    evicting = f"maxmemory-policy {policy}: it evicts threads that cold has, and the items of a store for good"
    yield evicts and is_hot, _info("eviction", evicting, "keep stores on another server")
    is_full, of_most = most and used > _FULL * most, f" of {most:,}" if most else ""
    yield is_full, _warning("memory", f"{used:,}{of_most} bytes are used", _ROOM)
    yield is_known and not is_full, _ok("memory", f"{used:,} bytes used{of_most}")
    evicted = int(info.get("evicted_keys", 0))
    yield evicted, _warning("eviction", f"it evicted {evicted:,} keys since it started", f"{_ROOM}; then check --all")


def _of_user(user: bytes | str) -> _Rows:
    name = user.decode("utf-8", "replace") if isinstance(user, bytes) else user
    remedy = "give the service a user of its own: redis-saver docs operations#rights has the rights that it needs"
    return [(True, _info("user", name, remedy) if name == "default" else _ok("user", named(name)))]


def _of_slow(entries: Any, prefix: str) -> _Rows:
    """Find slow scripts on our keys. An entry has an id, a time, microseconds and the words of the command."""
    slow = [int(entry[2]) for entry in entries if entry[2] >= _SLOW and _is_ours(entry[3], prefix)]
    longest = f"the longest {max(slow, default=0) / 1000:,.0f} ms"
    remedy = f"{_COSTS}. Shorten long histories: prune, or history={{'keep_last': n}}"
    what = f"{len(slow):,} of the last slow commands were scripts on threads, {longest}"
    return [(slow, _warning("slow scripts", what, remedy))]


def _is_ours(words: Sequence[bytes | str], prefix: str) -> bool:
    name, *others = [word if isinstance(word, bytes) else word.encode() for word in words]
    stem = prefix.encode("utf-8", "surrogatepass") + b":{"
    of_probe = stem + probe.THREAD.encode() + b"}:"
    return name[:4].upper() == b"EVAL" and any(
        word.startswith(stem) and not word.startswith(of_probe) for word in others
    )


def _of_threads(threads: Overview, prefix: str) -> _Rows:
    counts, about = threads.counts, "threads"
    total, lasting, damaged = counts["threads"], counts["never_expire"], counts["damaged"]
    for name, error in threads.errors.items():
        remedy = "redis-saver check says how to repair it"
        yield True, _error(about, f"{named(name)}: {printable(error)}", remedy)
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
    yield not total, _info(about, f"none under prefix {named(prefix)}", OTHER_PREFIX)
    is_well = total and not lasting and not damaged
    yield is_well, _ok(about, f"{total:,}, all of them expire or are pinned")

    yield counts["owned"], _ok("owners", f"owned: {counts['owned']:,}")
    more = ", ..." if counts["orphaned"] > MAX_NAMED else ""
    orphaned = f"{counts['orphaned']:,} of {total:,} are orphaned: {', '.join(map(named, threads.orphans))}{more}"
    why = "the processes of their runs are stopped or gone, or cannot reach the server"
    yield counts["orphaned"], _info("owners", orphaned, f"{why}. redis-saver threads --state orphaned names the runs")


def _of_cold(counts: Mapping[str, Any]) -> _Rows:
    age, paused = counts["oldest_seconds"], counts["paused_seconds"]
    severity = _warning if age > _LATE and not paused else _info
    what = f"flushing is paused for another {times.shown(timedelta(seconds=paused))}"
    yield paused, _info("backlog", what, "redis-saver flush --resume ends the pause")
    lost = f"Redis lost its data in the last day, and with it about {counts['lost_records']:,} records that cold lacked"
    yield counts["lost_records"], _warning("backlog", lost, f"{_PERSISTENCE} says how to lose less")
    late = f"cold lacks {counts['backlog']:,} records of {counts['dirty_threads']:,} threads"
    what = f"{late}, the oldest for {times.shown(timedelta(seconds=int(age)))}"
    check = "redis-saver docs operations#the-backlog-of-write-behind says what to check"
    yield counts["backlog"], severity("backlog", what, f"redis-saver flush writes them to cold. {check}")
    refused = f"cold refused {counts['set_aside']:,} records"
    yield counts["set_aside"], _warning("backlog", refused, "redis-saver check names them")


def _of_prefixes(prefixes: Iterable[str], prefix: str) -> _Rows:
    """Find prefixes with threads that begin with this one, or this one with them. `~a:*` also allows prefix `a:b`."""
    nested = [other for other in sorted(prefixes) if other.startswith(f"{prefix}:") or prefix.startswith(f"{other}:")]
    shorter = named(min((prefix, *nested), key=len))
    what = f"{', '.join(map(named, (*nested[:MAX_NAMED], prefix)))}: one begins with another"
    remedy = f"a user with ~{shorter}:* can use all of them. redis-saver docs security explains how to name prefixes"
    yield nested, _info("prefixes", what, remedy)


# -- keys

SAMPLE = 50
"""Maximum number of keys of a part whose memory is measured."""
MAX_PARTS = 1000
"""Maximum number of parts. Further ones count as other keys."""
_OF_THREAD = {b"index", b"data", b"owner", b"waiters", b"intents", b"lease", b"dirty", b"flush", b"replicated"}
_KINDS = {b":store": "store", b":store:documents": "store", b":cache": "cache", b":llm_cache": "cache"}


@dataclass
class Part:
    """The keys of one kind of one prefix."""

    prefix: str
    """Empty for other keys."""
    kind: str
    """`threads`, `store`, `cache` or `other`."""
    keys: int = 0
    memory: int | None = None
    """Estimated bytes. None if the server does not answer MEMORY USAGE for such keys."""
    sample: list[bytes] = field(default_factory=list)


def parts(answers: Answers, source: Source, is_over: Callable[[], bool]) -> list[Part]:
    """Count the keys of the server by prefix and kind, and estimate the memory of the 20 largest parts.

    Cost: a scan of all keys, and MEMORY USAGE of up to 50 keys per part.
    """
    by_name = dict[tuple[str, str], Part]()
    for key in driver_of(source.hot).stream(until(is_over, scan_keys(b"*"))):
        prefix, kind = _part_of(key)
        if (prefix, kind) not in by_name and len(by_name) >= MAX_PARTS:
            prefix, kind = "", "other"
        part = by_name.setdefault((prefix, kind), Part(prefix, kind))
        part.keys += 1
        if len(part.sample) < SAMPLE:
            part.sample.append(key)
    found = sorted(by_name.values(), key=lambda part: -part.keys)[:MAX_NAMED]
    for part in found:
        command = ("MEMORY", "USAGE")
        asked = Batch([Command((*command, key), (key,)) for key in part.sample])
        if (sizes := answers.request(command, asked)) is not None:
            known = [int(size) for size in sizes if size is not None]  # others have expired
            part.memory = sum(known) * part.keys // len(known) if known else 0
    return sorted(found, key=lambda part: -(part.memory or 0))


def _part_of(key: bytes) -> tuple[str, str]:
    """Return the prefix and the kind of a key."""
    stem, _, rest = key.partition(b":{")
    tag, closing, ending = rest.partition(b"}:")
    suffix = next((suffix for suffix in _KINDS if stem.endswith(suffix)), b"")
    kind = _KINDS.get(suffix, "other") if closing else "other"
    is_shard = kind == "cache" and tag.isdigit()  # has a key `index`, too
    if closing and not is_shard and b"{" not in tag and ending.partition(b".")[0] in _OF_THREAD:
        kind, suffix = "threads", b""
    prefix = stem[: len(stem) - len(suffix)] if kind != "other" else b""
    return prefix.decode("utf-8", "backslashreplace"), kind


# -- the page


def look(source: Source, threads_seconds: float, keys_seconds: float) -> dict[str, Any]:
    """Look at the threads and the keys of a server, each for a limited time. Return what the page shows."""
    hot, limit = source.hot, Limit(threads_seconds)
    answers = Answers(hot)
    threads, of_keys = overview(source, limit, answers.busy_slots()), Limit(keys_seconds)
    found, prefix = parts(answers, source, of_keys), context_of(hot).keyspace.prefix
    prefixes = {part.prefix for part in found if part.kind == "threads"} - {prefix}
    findings = sorted(of_all_else(answers, threads, prefix, prefixes), key=lambda one: SEVERITIES.index(one.severity))
    return {
        "url": driver_of(hot).server, "counts": threads.counts, "numbers": answers.numbers(), "parts": found,
        "findings": findings, "is_partial": limit.is_over, "is_part_of_keys": of_keys.is_over,
        "is_hot_tier": threads.is_hot_tier,
    }  # fmt: skip
