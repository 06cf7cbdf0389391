"""Ownership of a thread: one run at a time writes it, usually in a block `with saver.own(...)`.

Redis holds the owner in a key beside the thread: a token, the end of the lease, and the owner's description of itself.
The token begins with an *epoch*, a number that grows with each owner. Scripts that write compare the writer's token
with the stored one (`guards.py`). So they refuse a late writer whose thread was taken, even if clocks differ.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from langchain_core.runnables import RunnableConfig

from redis_saver._checkpoint import guards, pruning, scripts
from redis_saver._client import loops
from redis_saver._common import config, limits, names, times, ttl
from redis_saver._common.display import error_text, printable, shown
from redis_saver._common.logs import Log
from redis_saver._engine.replies import OwnershipReply
from redis_saver._engine.requests import Call, Operation, Sleep
from redis_saver._engine.runner import Driver
from redis_saver._storage.context import Context
from redis_saver.errors import NotOwner, RedisSaverError, ThreadsPatched, decoding, not_owner, others_wait

OnBusy: TypeAlias = Literal["raise", "wait", "take", "rollback"]
KEPT = 24 * 3_600_000
"""Milliseconds for which Redis keeps an owner's key after the lease. Until then a late owner may still write."""
_LONGEST_LEASE = timedelta(days=1)
_RENEWALS = 3
"""Number of renewals during one lease."""
_MODES = {"raise": "free", "wait": "wait", "take": "any", "rollback": "any"}
_ARRIVAL = re.compile(rb"\d{1,16}")
_lines: dict[tuple[names.Keyspace, str], dict[str, tuple[int, float]]] = {}
"""Waiters of this process, by thread and nonce: the arrival, and the time (`time.monotonic`) at which it is dropped.
Only the first waiter of a thread polls, so a hundred waiters cost Redis as much as one.
"""
_asleep: set[str] = set()
"""Nonces of waiters of this process that sleep, so that no request of theirs is under way."""
_PAUSE_PER_WAITER, _LONGEST_PAUSE = 0.01, 0.3
"""Seconds that any other waiter sleeps: per waiter ahead of it, and the maximum."""
_LATE = 0.4
"""A waiter that wakes up later than this, in seconds, is skipped: its event loop may have ended."""
_MAX_PAUSE = 10_000
"""Maximum pause in a reply, in milliseconds. A reply with a longer one is damaged."""
_MAX_BY = 200
_REFUSED = 10_000
"""Milliseconds for which a cancelled owner is refused, because its request to take may arrive after the release."""


class Owner(NamedTuple):
    """The owner of a thread."""

    by: str
    """The owner's description of itself."""
    since: datetime
    """Beginning of the ownership, by the server's clock."""
    run_id: str | None
    """The owner's run, or None if it named none."""
    lease_left: timedelta
    """Rest of the lease, or 0 if the owner is late or gone."""
    lease_until: datetime | None = None
    """End of the lease, by the server's clock. None for a run of the Agent Server, which has no lease."""

    @property
    def orphaned(self) -> bool:
        """True if the lease ended before the owner released the thread."""
        return self.lease_until is not None and not self.lease_left


class Record(NamedTuple):
    """The content of an owner key."""

    token: str
    until: int
    """End of the lease, in milliseconds. 0 without a lease."""
    since: int
    """Beginning of the ownership, in microseconds."""
    run_id: str | None
    before: str
    """`-`, unless the thread was taken from an owner during its lease: then its percent-encoded run, or `?`."""
    by: str

    @property
    def was_owned(self) -> bool:
        """True if the thread was taken from an owner during its lease."""
        return self.before != "-"

    @property
    def run_before(self) -> str | None:
        """The run of that owner, if it named one."""
        return None if self.before in ("-", "?") else unquote(self.before, errors="surrogatepass")

    @classmethod
    def of(cls, raw: bytes) -> Record:
        """Decode the content of an owner key.

        Raises:
            ValueError: It is not a record.
        """
        token, until, since, run, before, by = raw.decode("ascii").split(" ", 5)
        run_id = None if run == "-" else unquote(run, errors="surrogatepass")
        return cls(token, int(until), int(since), run_id, before, by)

    def owner(self, left: int) -> Owner:
        """Return the owner as users see it. `left` is the rest of the lease in milliseconds."""
        epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
        since, rest = epoch + timedelta(microseconds=self.since), timedelta(milliseconds=max(0, left))
        until = epoch + timedelta(milliseconds=self.until) if self.until else None
        return Owner(self.by, since, self.run_id, rest, until)


class Terms(NamedTuple):
    """The checked arguments of an `own` call."""

    thread: str
    lease: int
    """Milliseconds."""
    on_busy: OnBusy
    wait: float | None
    """Seconds; None: no limit."""
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
        """Check the arguments of an `own` call.

        Raises:
            TypeError, ValueError: An argument is invalid.
        """
        span = times.of(lease, name="lease")
        if not timedelta(seconds=1) <= span <= _LONGEST_LEASE:
            raise ValueError(f"lease={shown(lease)}: write a time from a second to a day; the block renews the lease")
        config.one_of(Terms, "on_busy", on_busy, "raise", "wait", "take", "rollback")
        if wait is not None and on_busy != "wait":
            raise ValueError(f"wait={shown(wait)} goes with on_busy='wait', and on_busy={shown(on_busy)} does not wait")
        longest = None if wait is None else times.of(wait, name="wait").total_seconds()
        if longest is not None and longest < 0:
            raise ValueError(f"wait={shown(wait)}: write a duration of at least 0, or None to wait as long as it takes")
        if by is not None and not isinstance(by, str):
            raise TypeError(f"by={shown(by)}: write a str that tells people who the owner is")
        described = printable(by or f"{socket.gethostname()}, process {os.getpid()}", _MAX_BY)
        described = described.encode("ascii", "backslashreplace").decode()
        run = None if run_id is None else config.name(run_id, "run_id") or None
        milliseconds = ttl.milliseconds(span, lease, "lease")
        return cls(config.name(thread, "thread_id"), milliseconds, on_busy, longest, described, run)


def take(context: Context, terms: Terms, nonce: str) -> Operation[Record]:
    """Take a thread, and remove the last owner's run if the terms ask for a rollback. Otherwise the same as `taken`."""
    record = yield from taken(context, terms, nonce)
    if run := to_roll_back(terms, record):
        writer = guards.writer_of(context, terms.thread, record.token)
        yield from pruning.remove_runs(context, terms.thread, {names.run(run)}, writer)
    return record


def to_roll_back(terms: Terms, record: Record) -> str | None:
    """Return the run to roll back after the thread was taken, if any."""
    return record.run_before if terms.on_busy == "rollback" else None


class Busy(NamedTuple):
    """The reply to a caller that did not get the thread."""

    owner: Record | None
    """None if the thread is free but reserved for a waiter that arrived earlier."""
    pause: float
    """Seconds to the caller's next poll."""
    arrival: int
    """The caller's arrival, an argument of its next poll. 0 if it does not wait."""


def taken(context: Context, terms: Terms, nonce: str) -> Operation[Record]:
    """Take a thread. A waiter polls until its turn comes. The queue in Redis is in order of arrival.

    Args:
        context: The saver on the server that holds the owners of threads.
        terms: The terms of the ownership.
        nonce: 16 hex digits that name this owner. Taking the thread again with the same nonce gives the same token.

    Returns:
        The record that the owner key holds now.

    Raises:
        NotOwner: Somebody else owns the thread. With `on_busy="wait"`, this is still so when `wait` has passed.
    """
    limits.check_name(context.limits, terms.thread, "a thread")
    limits.check_name(context.limits, terms.run_id or "", "a run")
    run = "-" if terms.run_id is None else quote(terms.run_id, safe="", errors="surrogatepass").replace("-", "%2D")
    arguments = scripts.TakeOwnershipArguments(
        nonce=nonce, lease=terms.lease, kept=KEPT, mode=_MODES[terms.on_busy], run=run, by=terms.by, arrival=0
    )
    keys = context.keyspace.owner_keys(terms.thread)
    deadline = math.inf if terms.wait is None else time.monotonic() + terms.wait
    try:
        while True:
            reply = yield Call(scripts.TAKE_OWNERSHIP, keys, arguments)
            with decoding("the owner of thread {!r}", terms.thread):
                answer = _answered(reply, nonce)
            if isinstance(answer, Record):
                return answer
            if terms.on_busy != "wait" or time.monotonic() >= deadline:
                if terms.on_busy == "wait":  # leave the queue before the error, so that the next waiter moves up
                    yield from release(context, terms.thread, nonce)
                owner = answer.owner
                raise others_wait(keys[1]) if owner is None else not_owner(str(owner.since), owner.by, keys[0])
            arguments = arguments._replace(arrival=answer.arrival)
            yield from _sleep((context.keyspace, terms.thread), nonce, answer, deadline)
    finally:
        _leave((context.keyspace, terms.thread), nonce)


def _sleep(thread: tuple[names.Keyspace, str], nonce: str, answer: Busy, deadline: float) -> Operation[None]:
    """Sleep until the next poll or the deadline. A waiter sleeps longer, until it is the first of this process."""
    line, arrival, pause = _lines.setdefault(thread, {}), answer.arrival, answer.pause
    while True:
        pause = max(0.0, min(pause, deadline - time.monotonic()))
        line[nonce] = arrival, time.monotonic() + pause + _LATE
        _asleep.add(nonce)
        yield Sleep(pause)
        _asleep.discard(nonce)
        now = time.monotonic()
        ahead = sum(came < arrival and until > now for came, until in line.copy().values())
        if not ahead or now >= deadline:
            return
        pause = min(ahead * _PAUSE_PER_WAITER, _LONGEST_PAUSE)


def _leave(thread: tuple[names.Keyspace, str], nonce: str) -> None:
    """Remove a waiter of this process."""
    line = _lines.get(thread, {})
    line.pop(nonce, None)
    if not line:
        _lines.pop(thread, None)


def _answered(reply: Any, nonce: str) -> Record | Busy:
    """Decode the reply of `lua/checkpoint/take_ownership.lua`. A record means that the caller owns the thread.

    Raises:
        ValueError, TypeError: The script cannot have sent this reply.
    """
    code, raw, *rest = reply
    record = Record.of(raw) if raw else None
    if code == OwnershipReply.TAKEN and not rest and record and record.token.endswith(f"-{nonce}"):
        return record
    if code == OwnershipReply.OWNED:
        pause, arrival = rest
        if isinstance(pause, int) and 0 < pause < _MAX_PAUSE and _ARRIVAL.fullmatch(arrival):
            return Busy(record, pause / 1000, int(arrival))
    raise ValueError(f"{shown(reply)} names neither this owner nor another one")


def renew(context: Context, thread: str, token: str, lease: int) -> Operation[bool]:
    """Start a new lease, in milliseconds. Returns False if the thread was taken or deleted."""
    reply = yield Call(scripts.RENEW_OWNERSHIP, (context.keyspace.owner_key(thread),), (token, lease, KEPT))
    return _is_done(reply, thread)


def release(context: Context, thread: str, token: str, *, refused: int = 0) -> Operation[bool]:
    """Release a thread, or leave its queue. `token` may be the nonce alone.

    For `refused` milliseconds, Redis then refuses a request of the same owner to take the thread.

    Returns False if that owner no longer owned the thread.
    """
    reply = yield Call(scripts.RELEASE_OWNERSHIP, context.keyspace.owner_keys(thread), (token, refused))
    return _is_done(reply, thread)


def _is_done(reply: Any, thread: str) -> bool:
    with decoding("the owner of thread {!r}", thread):
        if not isinstance(reply, int) or reply not in (0, 1):
            raise ValueError(f"{shown(reply)} is neither 1 nor 0")
    return bool(reply)


_LOG = Log("redis_saver.checkpoint")
Taking: TypeAlias = Callable[[Terms, str], Generator[Any, Any, Record]]


class Ownership:
    """Context manager of `with saver.own(...) as config:`, and of `async with`. Each instance serves one block."""

    token: str = ""
    """The token, which `configurable["thread_owner"]` carries. Empty before the block begins.

    Its form is `<epoch>-<16 hex digits>`. The epoch grows with each owner of a thread, so other systems that an agent
    writes to can refuse a token with a smaller epoch.
    """
    is_lost: bool = False
    """True once a renewal was refused: the thread was taken or deleted, or the server lost the key.

    A write is refused at once, so it does not wait for the next renewal.
    """

    def __init__(
        self, terms: Terms, context: Context, owner_driver: Driver[Any], driver: Driver[Any], take: Taking
    ) -> None:
        """Prepare the block. The thread is taken when the block begins.

        Args:
            terms: The terms of the ownership.
            context: The saver on the server that holds the owners of threads.
            owner_driver: Driver of that server. Its `failures` are the errors that it raises if the server fails.
            driver: Driver that runs `take`.
            take: Operation that takes the thread, given the terms and a nonce.
        """
        self._terms, self._context, self._owner_driver = terms, context, owner_driver
        self._driver, self._take = driver, take
        self._key = context.keyspace.owner_key(terms.thread)
        self._nonce, self._pid, self._held = "", 0, guards.Held()
        self._renewing: Future[None] | None = None
        self._ended = threading.Event()

    # -- the block

    def __enter__(self) -> RunnableConfig:
        with self._taking() as taking:
            return self._begin(self._driver.run(taking))

    def __exit__(self, *_: object) -> None:
        if self._end():
            self._release(self.token)

    async def __aenter__(self) -> RunnableConfig:
        with self._taking() as taking:
            return self._begin(await self._driver.arun_sleeping(taking))

    async def __aexit__(self, *_: object) -> None:
        if self._end():
            try:
                await self._give_back(self.token)
            except asyncio.CancelledError:  # in a cancelled scope of anyio nothing can be awaited
                self._release_soon(self.token)
                raise

    @contextmanager
    def _taking(self) -> Iterator[Generator[Any, Any, Record]]:
        """Make the operation that takes the thread. If the body fails, release the thread in the background.

        The server may have given the thread to this owner, except after `NotOwner`, or may do so later: the request
        may still be under way. A forked child does not release it.
        """
        if self._nonce:
            raise RuntimeError(f"thread {shown(self._terms.thread)}: this block has begun already: call own() again")
        self._nonce, self._pid = os.urandom(8).hex(), os.getpid()
        try:
            yield self._take(self._terms, self._nonce)
        except BaseException as error:
            nonce, self._nonce = self._nonce, ""
            refused = 0 if nonce in _asleep else _REFUSED
            _asleep.discard(nonce)
            if self._pid == os.getpid() and not isinstance(error, NotOwner | ThreadsPatched):
                self._release_soon(nonce, refused)
            raise

    def _begin(self, record: Record) -> RunnableConfig:
        terms = self._terms
        self.token = self._held.token = record.token
        self._start_renewing()
        guards.hold(self._context.keyspace, self._key, self._held)
        if record.was_owned:
            _LOG.info("thread %s was taken over by %s", shown(terms.thread), terms.by)
        of_block: RunnableConfig = {"configurable": {"thread_id": terms.thread, config.OWNER_KEY: record.token}}
        if terms.run_id is not None:
            of_block["metadata"] = {"run_id": terms.run_id}
        return of_block

    def _start_renewing(self) -> None:
        if loops.threads_are_patched():
            threading.Thread(target=self._renew_in_thread, name="redis_saver lease", daemon=True).start()
            return
        self._renewing = loops.start(self._renew())
        self._renewing.add_done_callback(self._renewed)

    def _renewed(self, renewing: Future[None]) -> None:
        """Restart the renewals if an error ended them, such as a SystemExit in a log handler."""
        if not renewing.cancelled() and renewing.exception() is not None:
            self._start_renewing()

    def _end(self) -> bool:
        """Stop the renewals. Returns False in a forked child, which must not release the thread."""
        guards.let_go(self._context.keyspace, self._key, self._held)
        if self._pid != os.getpid():
            return False
        self._ended.set()
        if self._renewing is not None:
            self._renewing.cancel()
        return True

    def _release_soon(self, token: str, refused: int = 0) -> None:
        """Release the thread in the background."""
        if loops.threads_are_patched():
            threading.Thread(target=self._release, args=(token, refused), daemon=True).start()
        else:
            loops.start(self._give_back(token, refused))

    def _release(self, token: str, refused: int = 0) -> None:
        with self._logged():
            self._owner_driver.run(release(self._context, self._terms.thread, token, refused=refused))

    async def _give_back(self, token: str, refused: int = 0) -> None:
        with self._logged():
            await self._owner_driver.arun(release(self._context, self._terms.thread, token, refused=refused))

    @contextmanager
    def _logged(self) -> Iterator[None]:
        """Log a failure to release the thread. The lease expires anyway, and the block's work is done."""
        try:
            yield
        except (*self._owner_driver.failures, RedisSaverError) as error:  # type: ignore[attr-defined]
            text = "could not release thread %s, so it stays owned until its lease ends: %s"
            _LOG.warning(text, shown(self._terms.thread), error_text(error))

    async def _renew(self) -> None:
        """Renew the lease until the block ends or loses the thread.

        If the server fails, the next renewal tries again. A request is cancelled when the lease has expired, because
        the client may have no timeout.
        """
        terms = self._terms
        left = terms.lease / 1000 - terms.renewal_interval
        while self._held.token and not self.is_lost:
            await asyncio.sleep(terms.renewal_interval)
            renewed = renew(self._context, terms.thread, self.token, terms.lease)
            try:
                self._note(await asyncio.wait_for(self._owner_driver.arun(renewed), left))
            except Exception as error:  # noqa: BLE001 - the next renewal may succeed, and scripts check each write
                no_answer = f"no answer in {times.shown(timedelta(seconds=left))}"
                self._not_renewed(no_answer if isinstance(error, asyncio.TimeoutError) else error_text(error))

    def _renew_in_thread(self) -> None:
        """`_renew` where threads are greenlets, which cannot run an event loop of their own."""
        terms = self._terms
        while not self.is_lost and not self._ended.wait(terms.renewal_interval):
            try:
                self._note(self._owner_driver.run(renew(self._context, terms.thread, self.token, terms.lease)))
            except Exception as error:  # noqa: BLE001, PERF203 - as in `_renew`
                self._not_renewed(error_text(error))

    def _note(self, is_owned: bool) -> None:
        if not is_owned:
            text = "thread %s was taken or deleted by somebody else, or the server lost its key"
            _LOG.warning(text, shown(self._terms.thread))
            self.is_lost = True  # whoever sees that finds the reason in the log

    def _not_renewed(self, why: str) -> None:
        _LOG.warning("the lease of thread %s was not renewed: %s", shown(self._terms.thread), why)
