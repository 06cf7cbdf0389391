"""Forks of the process: the child gets new locks, loops and connections.

A child has the parent's memory, but only one OS thread. Locks that other OS threads held stay locked, event loops that
they ran stop, and the connections are shared with the parent. So every object with a lock, a loop or a connection
registers here (`watch`). Python calls its `after_fork` in the child before anything else runs.

The child keeps inherited connections unchanged until it ends. If Python collected an asyncio connection, it would close
it, and remove the socket from the selector that parent and child share
(https://man7.org/linux/man-pages/man7/epoll.7.html).

`os.fork`, and so `multiprocessing`, gunicorn and Celery, call the hooks of `os.register_at_fork`. A program that forks
in C has to call `PyOS_BeforeFork` and `PyOS_AfterFork_Child`, as uWSGI does with `py-call-uwsgi-fork-hooks` and
`enable-threads`. Without these hooks, calls that need an OS thread or a connection of the parent raise `ForkMissed`.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol

from redis_saver.errors import ForkMissed

try:
    from ctypes import py_object, pythonapi
except ImportError:  # a Python without ctypes closes inherited connections, with a warning, when the child ends
    pythonapi = None  # type: ignore[assignment]


class Forkable(Protocol):
    """An object that needs a change in the child of a fork."""

    def after_fork(self) -> None:
        """Make this object usable in the child. It must not connect or start anything. No other OS thread runs yet."""


generation: int = 0
"""Number of forks between this process and the one that imported this module."""
_process = os.getpid()
_watched: dict[int, weakref.ref[Forkable]] = {}
_guards: dict[int, weakref.ref[Any]] = {}
_held: list[Any] = []
_forking = threading.Lock()
"""Held during a fork, so that only one OS thread forks at a time."""
_kept: list[object] = []


def watch(thing: Forkable) -> None:
    """Call `after_fork` of this object in each child. This does not keep the object alive."""
    key = id(thing)
    _watched[key] = weakref.ref(thing, lambda _: _watched.pop(key, None))


def hold(lock: Any) -> None:
    """Hold this lock during each fork. So the child's data is consistent, and no vanished OS thread holds the lock."""
    key = id(lock)
    _guards[key] = weakref.ref(lock, lambda _: _guards.pop(key, None))


def keep(thing: object) -> None:
    """Keep this object alive, even at the end of the process."""
    _kept.append(thing)
    if pythonapi is not None:
        pythonapi.Py_IncRef(py_object(thing))


def is_missed() -> bool:
    """True if this process was forked without Python's hooks, so that `after_fork` was not called."""
    return os.getpid() != _process


def check() -> None:
    """Refuse a call if this process was forked without Python's hooks.

    Raises:
        ForkMissed: The locks, loops and connections belong to the parent.
    """
    if os.getpid() != _process:
        raise ForkMissed(
            f"process {os.getpid()} was forked from process {_process} in C, without Python's fork hooks. The saver "
            "would use connections and OS threads of the parent. Nothing was sent. Under uWSGI set "
            "py-call-uwsgi-fork-hooks and enable-threads, or lazy-apps. In C call PyOS_BeforeFork and "
            "PyOS_AfterFork_Child"
        )


def _before() -> None:
    _forking.acquire()
    for key in sorted(_guards):
        if (guard := _guards.get(key)) is not None and (lock := guard()) is not None:
            lock.acquire()
            _held.append(lock)


def _release() -> None:
    while _held:
        _held.pop().release()
    _forking.release()


def _in_child() -> None:
    global generation, _process
    generation, _process = generation + 1, os.getpid()
    if _forking.locked():  # not if a fork in C called only PyOS_AfterFork_Child
        _release()
    for reference in list(_watched.values()):
        if (thing := reference()) is not None:
            thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
