"""The time limit of calls of cold (`cold_timeout`), for callers that a hanging cold must not stop.

A blocking call of cold cannot be ended from outside, and the end of a cancelled one may take long. So each call with a
limit runs on an OS thread or in a task of its own. When the time is up, the caller goes on, and the call is abandoned:
nobody waits for its end. Then its connection returns to the pool, and the log has its result.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextvars import copy_context
from typing import Any

from redis_saver._common import config, forks
from redis_saver._common.display import kind_of
from redis_saver._common.logs import ThrottledLog
from redis_saver._engine.requests import T
from redis_saver.errors import ColdTimeout

MAX_CALLS = 32
"""Maximum number of blocking calls under way, and of abandoned calls, per saver. Each blocking call takes an OS
thread."""
_LOG = ThrottledLog("redis_saver.tiered")


class ColdTimeouts:
    """The limit of a saver's calls of cold, and the calls that were abandoned and have not ended."""

    def __init__(self, cold: object, seconds: float | None) -> None:
        """Begin without calls. None: no limit. Then calls run where they are made.

        Raises:
            ValueError: The limit is invalid.
        """
        if seconds is not None:
            config.number("cold_timeout", seconds, 0.001)
        self._cold, self.seconds = cold, seconds
        self._left = set[Any]()
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Begin without calls in the child: abandoned ones end in the parent."""
        if self._left:
            forks.keep(self._left)
        self._left = set[Any]()
        """Futures and tasks of abandoned calls."""
        self._lock, self._slots = threading.Lock(), threading.Semaphore(MAX_CALLS)

    @property
    def abandoned(self) -> int:
        """Number of abandoned calls that have not ended."""
        return len(self._left)

    def run(self, what: str, act: Callable[[], T]) -> T:
        """Make a blocking call on an OS thread. Returns its result, or raises its error.

        Raises:
            ColdTimeout: It did not end in time, or too many abandoned calls have not ended.
        """
        if self.seconds is None:
            return act()
        self._refuse(what)
        began, call = time.monotonic(), Future[T]()
        if not self._slots.acquire(timeout=self.seconds):
            raise self._error(what, f"was not sent, because {MAX_CALLS} other calls have not ended")
        worker = threading.Thread(
            target=copy_context().run, args=(self._work, call, act), name="redis_saver cold", daemon=True
        )
        try:
            worker.start()
        except RuntimeError:  # the interpreter is shutting down and starts no threads
            self._slots.release()
            return act()
        done = set[Any]()
        try:
            done, _ = wait([call], began + self.seconds - time.monotonic())
        finally:
            if not done:
                self._leave(what, began, call)
        if not done:
            raise self._error(what)
        try:
            return call.result()
        finally:
            del call, done  # else its error would keep this frame alive, and the frame the error

    def _work(self, call: Future[T], act: Callable[[], T]) -> None:
        try:
            answer = act()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            call.set_exception(error)
        else:
            call.set_result(answer)
        self._slots.release()

    async def arun(self, what: str, make: Callable[[], Coroutine[Any, Any, T]], *, cancels: bool = True) -> T:
        """`run` for asyncio. With `cancels`, an abandoned call is cancelled, so that its connection is soon free."""
        if self.seconds is None:
            return await make()
        self._refuse(what)
        began, task = time.monotonic(), asyncio.get_running_loop().create_task(make())
        try:
            await asyncio.wait([task], timeout=self.seconds)
        except asyncio.CancelledError:
            task.cancel()
            self._leave(what, began, task)
            raise
        if task.done():
            return task.result()
        if cancels:
            task.cancel()
        self._leave(what, began, task)
        raise self._error(what)

    def _leave(self, what: str, began: float, call: Future[Any] | asyncio.Task[Any]) -> None:
        """Abandon a call. It is kept until it ends, because event loops hold only weak references to tasks."""

        def ended(call: Future[Any] | asyncio.Task[Any]) -> None:
            with self._lock:
                if call not in self._left:  # it ended in the parent of a fork
                    return
                self._left.discard(call)
            error = None if call.cancelled() else call.exception()
            how = "" if error is None else f", with {type(error).__name__}"
            seconds = time.monotonic() - began
            _LOG.info("an abandoned call of cold ended: %s, after %.1f seconds%s", what, seconds, how)

        with self._lock:
            self._left.add(call)
        call.add_done_callback(ended)

    def _refuse(self, what: str) -> None:
        """Refuse a call if too many abandoned ones have not ended.

        Raises:
            ColdTimeout: That is so.
        """
        if self.abandoned >= MAX_CALLS:
            with self._lock:  # tasks of an event loop that was closed never end
                self._left -= {
                    call for call in self._left if isinstance(call, asyncio.Task) and call.get_loop().is_closed()
                }
        if self.abandoned >= MAX_CALLS:
            raise self._error(what, f"was not sent, because {self.abandoned} abandoned calls have not ended")

    def _error(self, what: str, why: str = "") -> ColdTimeout:
        """Return the error of a call."""
        why = why or f"did not end within {self.seconds:g} seconds (cold_timeout), and was abandoned"
        return ColdTimeout(
            f"cold ({kind_of(self._cold)}) does not answer: {what} {why}. Cold may wait for a lock, as during an ALTER "
            "TABLE (pg_stat_activity shows it), or its pool has no connection left, or cannot connect (logger "
            "psycopg.pool). It is safe to try again. If cold is only slow, set a longer cold_timeout="
        )
