"""Ownership of a thread: one run at a time writes it.

Redis holds who owns it in a key beside the thread: a token, until when the lease lasts, and who the owner says it is. The token begins with an *epoch*, a
number that grows with each owner. Scripts that write look whether the writer's token is the one that is there (`guards.py`). So a writer whose
thread was taken is refused however late it comes, and no clock decides that.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from redis_saver._checkpoint import guards
from redis_saver._checkpoint.pruning import remove_runs
from redis_saver._common import config, limits, names, times, ttl
from redis_saver._common.display import printable, shown
from redis_saver._engine import scripts
from redis_saver._engine.replies import OwnershipReply
from redis_saver._engine.requests import Call, Operation, Sleep
from redis_saver._storage.context import Context
from redis_saver.errors import decoding, not_owner

OnBusy: TypeAlias = Literal["raise", "wait", "take", "rollback"]
KEPT = 24 * 3_600_000
"""Milliseconds for which Redis keeps the key of an owner behind its lease. So long may an owner be late, and go on if nobody took the thread."""
_LONGEST_LEASE = timedelta(days=1)
_RENEWALS = 3
"""How often a lease is renewed before it would run out."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_MAX_BY = 200


class Owner(NamedTuple):
    """Who owns a thread."""

    by: str
    """As the owner described itself."""
    since: datetime
    """Since when, by the server's clock."""
    run_id: str | None
    """Its run."""
    lease_left: timedelta
    """How long the lease lasts still. Nothing is left where the owner is late, or gone."""


class Record(NamedTuple):
    """What the key of an owner holds."""

    token: str
    until: int
    """Until when the lease lasts, in milliseconds."""
    since: int
    """In microseconds."""
    run_id: str | None
    before: str
    """`-`; if it was taken from an owner whose lease lasted, that one's run, percent-encoded, or `?`."""
    by: str

    @property
    def was_owned(self) -> bool:
        """Whether it was taken from an owner whose lease lasted."""
        return self.before != "-"

    @property
    def run_before(self) -> str | None:
        """The run of that owner, if it told."""
        return None if self.before in ("-", "?") else unquote(self.before, errors="surrogatepass")

    @classmethod
    def of(cls, raw: bytes) -> Record:
        """Take it apart.

        Raises:
            ValueError: It is not a record.
        """
        token, until, since, run, before, by = raw.decode("ascii").split(" ", 5)
        run_id = None if run == "-" else unquote(run, errors="surrogatepass")
        return cls(token, int(until), int(since), run_id, before, by)

    def owner(self, left: int) -> Owner:
        """As users see it, with so many milliseconds of the lease left."""
        since = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=self.since)
        return Owner(self.by, since, self.run_id, timedelta(milliseconds=max(0, left)))


class Terms(NamedTuple):
    """How a thread is to be owned."""

    thread: str
    lease: int
    """Milliseconds."""
    on_busy: OnBusy
    wait: float | None
    """Seconds; None: as long as it takes."""
    by: str
    run_id: str | None

    @property
    def renewal_interval(self) -> float:
        """Seconds from one renewal of the lease to the next."""
        return self.lease / 1000 / _RENEWALS

    @classmethod
    def of(
        cls,
        thread: object,
        lease: timedelta | str,
        on_busy: OnBusy,
        wait: timedelta | str | None,
        by: str | None,
        run_id: object,
    ) -> Terms:
        """Check what a caller passed.

        Raises:
            TypeError, ValueError: An argument makes no sense.
        """
        span = times.of(lease, name="lease")
        if not timedelta(seconds=1) <= span <= _LONGEST_LEASE:
            raise ValueError(
                f"lease={shown(lease)}: a lease lies between a second and a day; it is renewed while the block runs"
            )
        config.one_of(Terms, "on_busy", on_busy, "raise", "wait", "take", "rollback")
        if wait is not None and on_busy != "wait":
            raise ValueError(f"wait={shown(wait)} goes with on_busy='wait', and on_busy={shown(on_busy)} does not wait")
        longest = None if wait is None else times.of(wait, name="wait").total_seconds()
        if longest is not None and longest < 0:
            raise ValueError(f"wait={shown(wait)}: write a duration of at least 0, or None to wait as long as it takes")
        if by is not None and not isinstance(by, str):
            raise TypeError(f"by={shown(by)}: write a str that tells people who the owner is")
        described = printable(by or f"{socket.gethostname()}, process {os.getpid()}", _MAX_BY)
        run = None if run_id is None else config.name(run_id, "run_id")
        return cls(
            config.name(thread, "thread_id"),
            ttl.milliseconds(span, lease, "lease"),
            on_busy,
            longest,
            described.encode("ascii", "backslashreplace").decode(),
            run or None,
        )


def take(context: Context, terms: Terms, nonce: str) -> Operation[Record]:
    """Take a thread, and remove what its last owner's run has written if that is to be rolled back.

    Args and errors: as `taken`.
    """
    record = yield from taken(context, terms, nonce)
    if run := to_roll_back(terms, record):
        guard = guards.guard_of(context, scripts.GUARDED, record.token)
        yield from guards.guarded(remove_runs(context, terms.thread, {names.run(run)}), guard)
    return record


def to_roll_back(terms: Terms, record: Record) -> str | None:
    """The run to remove, for who has just taken the thread."""
    return record.run_before if terms.on_busy == "rollback" else None


def taken(context: Context, terms: Terms, nonce: str) -> Operation[Record]:
    """Take a thread.

    Args:
        context: The saver.
        terms: How.
        nonce: 16 hex digits that name this owner. Asked again with the same, the same is answered.

    Returns:
        What the key holds now.

    Raises:
        NotOwner: Somebody else owns it, and it is not to be taken, or the time to wait is over.
    """
    limits.check_name(context.limits, terms.thread, "a thread")
    limits.check_name(context.limits, terms.run_id or "", "a run")
    mode = "any" if terms.on_busy in ("take", "rollback") else "free"
    run = "-" if terms.run_id is None else quote(terms.run_id, safe="", errors="surrogatepass").replace("-", "%2D")
    arguments = (nonce, terms.lease, KEPT, mode, run, terms.by)
    key = context.keyspace.owner_key(terms.thread)
    began, pause = time.monotonic(), _SHORTEST_PAUSE
    while True:
        reply = yield Call(scripts.TAKE_OWNERSHIP, (key,), arguments)
        with decoding("who owns thread {!r}", terms.thread):
            record, left = _answered(reply, nonce)
        if left is None:
            return record
        waited = time.monotonic() - began
        if terms.on_busy != "wait" or (terms.wait is not None and waited >= terms.wait):
            raise not_owner(str(record.since), record.by, key)
        until_free = max(left / 1000, _SHORTEST_PAUSE)
        yield Sleep(min(until_free, pause, *([] if terms.wait is None else [terms.wait - waited])))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _answered(reply: Any, nonce: str) -> tuple[Record, int | None]:
    """What `lua/checkpoint/take_ownership.lua` answers: who owns the thread, and for how many milliseconds still; None: the caller does.

    Raises:
        ValueError, TypeError: It is no such answer.
    """
    code, raw, *rest = reply
    record = Record.of(raw)
    if code == OwnershipReply.TAKEN and not rest and record.token.endswith(f"-{nonce}"):
        return record, None
    if code == OwnershipReply.OWNED and len(rest) == 1 and isinstance(rest[0], int):
        return record, rest[0]
    raise ValueError(f"{shown(reply)} says neither that the thread was taken nor who else has it")


def renew(context: Context, thread: str, token: str, lease: int) -> Operation[bool]:
    """Let a lease of so many milliseconds begin anew. Returns False if somebody else took the thread, or it was deleted."""
    reply = yield Call(scripts.RENEW_OWNERSHIP, (context.keyspace.owner_key(thread),), (token, lease, KEPT))
    return _is_done(reply, thread)


def release(context: Context, thread: str, token: str) -> Operation[bool]:
    """Give a thread back, by a token, or by a nonce alone. Returns False if it was not owned by that any more."""
    reply = yield Call(scripts.RELEASE_OWNERSHIP, (context.keyspace.owner_key(thread),), (token,))
    return _is_done(reply, thread)


def _is_done(reply: Any, thread: str) -> bool:
    with decoding("who owns thread {!r}", thread):
        if not isinstance(reply, int) or reply not in (0, 1):
            raise ValueError(f"{shown(reply)} is neither 1 nor 0")
    return bool(reply)
