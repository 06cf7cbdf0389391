"""Calls between event loops: the background loop of this package, and actions at the end of a loop.

The background loop serves callers without a loop, or with a loop that ends soon. It runs on its own OS thread, from its
first use to the end of the process. So no caller waits for a loop that another caller may end. All savers of a process
share it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError as OtherCancelled, Future, wait
from typing import Any

from redis_saver._common import forks
from redis_saver._engine.requests import T
from redis_saver.errors import CalledOnEventLoop, LoopEnded, ThreadsPatched

END_TIMEOUT = 5.0
"""Time limit for closing the background loop's connections at the end of the process, in seconds."""
CHECK_INTERVAL = 0.5
"""Interval in seconds at which a waiting caller checks that the other loop still runs."""


class _Background:
    """The background loop of this process."""

    def __init__(self) -> None:
        self._begin()
        forks.watch(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], None] | None = None
        self.closing: set[asyncio.Task[Any]] = set()
        """Tasks that the loop finishes before it ends."""
        self.endings: set[Ending] = set()
        """Pending actions of all loops of this process."""

    def after_fork(self) -> None:
        """In the child, do not touch the parent's loop. The next use starts a new one."""
        forks.keep((self._loop, self.closing, self.endings))
        self._begin()

    def is_loop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """True if this is the background loop."""
        return loop is self._loop

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop. Starts it if it does not run. It takes calls at once, so no caller waits for its OS thread.

        Raises:
            ThreadsPatched: The loop would run in a greenlet, on the OS thread of its callers.
        """
        forks.check()
        loop = self._loop
        if loop is not None and not loop.is_closed():
            return loop
        check_threads()
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                loop, stopping = asyncio.new_event_loop(), asyncio.Event()
                thread = threading.Thread(target=self._run, args=(loop, stopping), name="redis_saver loop", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no OS thread is left
                    loop.close()
                    raise
                self._loop, self._thread, self._stop = loop, thread, stopping.set
            return self._loop

    def end(self) -> None:
        """Cancel the loop's tasks and close its connections. Called at the end of the process."""
        if self._loop is not None and self._stop is not None and self._thread is not None and not forks.is_missed():
            _soon(self._loop, self._stop)
            self._thread.join(END_TIMEOUT)

    def _run(self, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
        async def serve() -> None:
            await stopping.wait()
            if self.closing:
                await asyncio.wait(self.closing, timeout=END_TIMEOUT)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await asyncio.get_running_loop().shutdown_asyncgens()

        serving = loop.create_task(serve())
        serving.add_done_callback(lambda _: loop.stop())
        try:
            while not serving.done() and not loop.is_closed():
                # asyncio raises only these two errors of a caller's code. That caller gets its error, and the loop goes
                # on for the others. Any other error means that the loop cannot run, so it is raised.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    loop.run_forever()
        finally:
            loop.close()


_background = _Background()
is_background: Callable[[asyncio.AbstractEventLoop], bool] = _background.is_loop
atexit.register(_background.end)


def running() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs on this OS thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def threads_are_patched() -> bool:
    """True if gevent or eventlet replaced Python's threads by greenlets, which share one OS thread."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    return bool(
        (gevent and gevent.is_module_patched("threading")) or (eventlet and eventlet.is_monkey_patched("thread"))
    )


def check_threads() -> None:
    """Refuse asyncio where threads are greenlets: an OS thread runs one loop at a time, and these all share one.

    Raises:
        ThreadsPatched: They are.
    """
    if threads_are_patched():
        raise ThreadsPatched(
            "gevent or eventlet has patched Python's threads, so each event loop would block the others: asyncio "
            "savers, stores and caches do not work here. Use RedisSaver (RedisStore, RedisCache, TieredSaver) with a "
            "blocking client and graph.invoke, or another kind of worker (celery --pool prefork, gunicorn -k gthread)"
        )


def call(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> T:
    """Run a coroutine on the background loop, or on a given loop, and block until it ends.

    Raises:
        CalledOnEventLoop: This OS thread runs a loop, which would be blocked.
        LoopEnded: The given loop ended first.
        ThreadsPatched: Threads are greenlets.
    """
    if running() is not None:
        coroutine.close()
        check_threads()
        raise CalledOnEventLoop(
            "a synchronous method of an async saver or store was called inside of a running event loop, which it would "
            "block. Await the method whose name begins with 'a' (graph.ainvoke instead of graph.invoke), or call it in "
            "a worker thread (asyncio.to_thread)"
        )
    future = start(coroutine, loop)
    try:
        while loop is not None and not wait([future], CHECK_INTERVAL).done:
            if not loop.is_running():
                raise _ended()
        return future.result()
    except OtherCancelled:
        raise _ended() from None
    finally:
        future.cancel()  # no effect unless this OS thread was interrupted


async def acall(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> T:
    """Run a coroutine as `call` does, for a task of any loop. Cancelling the task cancels the coroutine.

    Raises:
        LoopEnded: The given loop ended first.
    """
    here = asyncio.get_running_loop()
    if here is _loop_for(coroutine, loop):
        return await coroutine
    future, done = start(coroutine, loop), here.create_future()

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    future.add_done_callback(lambda _: _soon(here, wake))
    try:
        while loop is not None and not (await asyncio.wait([done], timeout=CHECK_INTERVAL))[0]:
            if not loop.is_running():
                raise _ended()
        await done
        return future.result()
    except OtherCancelled:
        raise _ended() from None
    finally:
        future.cancel()


def start(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> Future[T]:
    """Start a coroutine on the background loop, or on a given loop."""
    if loop is not None and not loop.is_running():
        coroutine.close()
        raise _ended()
    return asyncio.run_coroutine_threadsafe(coroutine, _loop_for(coroutine, loop))


def _loop_for(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    try:
        return loop or _background.loop()
    except BaseException:  # else Python warns that nobody awaited it
        coroutine.close()
        raise


def _soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the loop was just closed, so nobody waits there any more
        if not loop.is_closed():
            raise


def _ended() -> LoopEnded:
    return LoopEnded(
        "the event loop of a call ended before it answered. Call again. Use objects bound to a loop only while it runs"
    )


class Ending:
    """An action that the running loop awaits at its end, or earlier by `now`.

    `asyncio.run` closes all asynchronous generators at the end of a loop (`loop.shutdown_asyncgens`). Closing the
    generator of this object runs the action. A loop that is closed without that does not run it.

    Until then `_Background.endings` keeps the object alive. Otherwise Python's garbage collector might run on another
    OS thread, and leave connections half closed.
    """

    def __init__(self, act: Callable[[], Awaitable[None]]) -> None:
        """Keep the action."""
        self._loop, self._forgotten = asyncio.get_running_loop(), False
        self._generator = self._until_then(act)
        with contextlib.suppress(StopIteration):
            self._generator.__anext__().send(None)  # run up to its yield
        _background.endings.add(self)

    def now(self) -> None:
        """Let the loop run the action now. Any OS thread may call this."""
        _soon(self._loop, self._begin)

    def forget(self) -> None:
        """Never run the action."""
        self._forgotten = True
        _background.endings.discard(self)

    def _begin(self) -> None:
        task = self._loop.create_task(self._generator.aclose())
        if is_background(self._loop):
            _background.closing.add(task)
            task.add_done_callback(_background.closing.discard)

    async def _until_then(self, act: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            _background.endings.discard(self)
            if not self._forgotten:
                await act()
