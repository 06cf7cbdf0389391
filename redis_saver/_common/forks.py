"""What a fork of the process makes unusable, and how it is put right in the child.

A child has the parent's memory, but one OS thread only: a lock that another one held stays locked for ever, an event loop that another one ran
stands still, and connections are shared with the parent. So whatever holds one of these is watched here, and told in the child before
anything else runs there. It goes on with new locks, loops and connections, made when they are needed.

What was inherited is kept as it is until the child ends. Closing an inherited asyncio connection, which Python does when it is forgotten, would take
its socket out of the parent's selector: parent and child share that (https://man7.org/linux/man-pages/man7/epoll.7.html).

`os.fork` calls what is registered by `os.register_at_fork`, and so do `multiprocessing`, gunicorn and Celery. A program that forks in C has to call
`PyOS_BeforeFork` and `PyOS_AfterFork_Child`, as uWSGI does with `py-call-uwsgi-fork-hooks` and `enable-threads`. Where it does not, calls that
would wait for an OS thread of the parent, or use its connections, raise `ForkMissed`.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol

from redis_saver.errors import ForkMissed

try:
    from ctypes import py_object, pythonapi
except ImportError:  # a Python without ctypes: inherited connections are closed, with a warning, when the child ends
    pythonapi = None  # type: ignore[assignment]


class Forkable(Protocol):
    """What has to be told of a fork."""

    def after_fork(self) -> None:
        """Be fit for use in the child. Called there first of all, with no other OS thread running: makes no connection and starts nothing."""


generation: int = 0
"""How many forks lie between this process and the one that imported this module."""
_process = os.getpid()
_watched: dict[int, weakref.ref[Forkable]] = {}
_guards: dict[int, weakref.ref[Any]] = {}
_held: list[Any] = []
_forking = threading.Lock()
"""One fork at a time: what is held is held for it."""
_kept: list[object] = []


def watch(thing: Forkable) -> None:
    """Call `after_fork` of a thing in each child, as long as there is the thing."""
    key = id(thing)
    _watched[key] = weakref.ref(thing, lambda _: _watched.pop(key, None))


def hold(lock: Any) -> None:
    """Hold a lock during each fork, as long as there is the lock: so what it guards is whole in the child, and nobody else has the lock there."""
    key = id(lock)
    _guards[key] = weakref.ref(lock, lambda _: _guards.pop(key, None))


def keep(thing: object) -> None:
    """Let a thing never be finalized, not even at the end of this process."""
    _kept.append(thing)
    if pythonapi is not None:
        pythonapi.Py_IncRef(py_object(thing))


def is_missed() -> bool:
    """Whether this process was forked from another in C, and `after_fork` was not called."""
    return os.getpid() != _process


def check() -> None:
    """See to it that what is watched here belongs to this process.

    Raises:
        ForkMissed: It belongs to the process that this one was forked from.
    """
    if is_missed():
        raise ForkMissed(
            f"process {os.getpid()} was forked from {_process} in C, and Python was not told: the saver would use connections and OS threads of the parent. Under "
            "uWSGI set py-call-uwsgi-fork-hooks and enable-threads, or lazy-apps; in C, call PyOS_BeforeFork and PyOS_AfterFork_Child"
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
    if _forking.locked():  # a fork in C may have called PyOS_AfterFork_Child alone
        _release()
    for reference in list(_watched.values()):
        if (thing := reference()) is not None:
            thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
