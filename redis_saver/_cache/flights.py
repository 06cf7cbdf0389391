"""Single flight within a process: one caller computes a missing entry, and other callers of the same cache wait for it.

A caller that misses several entries gets the flights of all of them, or of none. So a waiting caller holds none of
them, and callers cannot deadlock. `set` ends the flight of an entry. If the caller never stores the entry, the flight
expires, and a waiting caller takes over.

A run must not wait for itself. While a node computes, LangGraph asks again for all tasks of the step that have not
written. A context variable names the caller, and nodes and tasks inherit it from their run. If a node calls first,
LangGraph's config names its superstep.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from langchain_core.runnables.config import var_child_runnable_config

from redis_saver._cache.entries import Address, ReadResult
from redis_saver._common import forks
from redis_saver._engine.requests import Operation, Sleep

FIRST_PAUSE, MAX_PAUSE = 0.01, 0.25
"""First and longest pause of a waiting caller, in seconds. Each pause is 1.5 times the one before."""


class _Caller:
    """A run with its nodes and tasks, or another caller of `get`."""

    def __init__(self) -> None:
        self.flights = 0
        """Number of entries that it computes."""


_current: ContextVar[_Caller | None] = ContextVar("redis_saver_cache_caller", default=None)
_supersteps: WeakValueDictionary[object, _Caller] = WeakValueDictionary()
"""Caller of each superstep of the outermost graph, by process and by the id of the checkpoint that it runs from."""
_lock = threading.Lock()
"""Shared by all caches, because a caller may use several. Held for a few dictionary operations at a time."""
forks.hold(_lock)


class Flights:
    """Entries of a cache that callers in this process are computing."""

    def __init__(self, seconds: float) -> None:
        """Let each flight expire after these seconds."""
        self._seconds = seconds
        self._ended = 0
        """Number of calls of `end`. While it stays, no caller has stored anything."""
        self._computing: OrderedDict[bytes, tuple[_Caller, float]] = OrderedDict()
        forks.watch(self)

    def after_fork(self) -> None:
        """Forget the flights in the child, because the parent computes them."""
        for caller, _ in self._computing.values():
            caller.flights = 0
        self._computing.clear()

    def get(
        self, addresses: Sequence[Address], read: Callable[[Sequence[Address]], Operation[ReadResult | None]]
    ) -> Operation[ReadResult | None]:
        """Read entries. Take the missing ones for this caller, or wait until other callers have stored them.

        Run it with `arun_sleeping`, because it waits and sets a context variable of the caller.

        Args:
            addresses: The entries.
            read: Reads entries from the server, or returns None if it fails. Then nobody waits.
        """
        caller, ended = self._caller(), self._ended
        if (result := (yield from read(addresses))) is None:
            return None
        missing, at_once, taken = result.missing(addresses), len(result.values), False
        give_up, pause = time.monotonic() + 2 * self._seconds, FIRST_PAUSE
        while missing and not taken:
            if not (taken := self._take(caller, missing)):
                if (left := give_up - time.monotonic()) <= 0:
                    break
                yield Sleep(min(left, pause))
                pause = min(1.5 * pause, MAX_PAUSE)
            if ended != self._ended:  # something was stored since the last look at the server
                ended = self._ended
                if (more := (yield from read(missing))) is None:
                    break
                result.add(more)
                if taken:
                    self.end(address for address in missing if address.name in more.values)
                missing = result.missing(missing)
        result.waits = len(result.values) - at_once
        return result

    def end(self, addresses: Iterable[Address]) -> None:
        """End the flights of entries that were stored, or could not be stored."""
        with _lock:
            for address in addresses:
                if (flight := self._computing.pop(address.entry, None)) is not None:
                    flight[0].flights -= 1
            self._ended += 1

    def _caller(self) -> _Caller:
        """Return the caller. One without flights is replaced, so that parallel runs that it started are separate."""
        with _lock:
            self._expire(time.monotonic())
        caller = _current.get()
        if caller is None or not caller.flights:
            superstep = _superstep()
            caller = (
                _Caller() if superstep is None else _supersteps.setdefault((forks.generation, superstep), _Caller())
            )
            _current.set(caller)
        return caller

    def _take(self, caller: _Caller, addresses: Sequence[Address]) -> bool:
        """Let the caller compute these entries. Take none and return False if another caller computes any of them."""
        now = time.monotonic()
        with _lock:
            self._expire(now)
            held = [self._computing.get(address.entry) for address in addresses]
            if any(flight is not None and flight[0] is not caller for flight in held):
                return False
            for address, flight in zip(addresses, held, strict=True):
                if flight is None:
                    self._computing[address.entry] = caller, now + self._seconds
                    caller.flights += 1
            return True

    def _expire(self, now: float) -> None:
        """Forget expired flights. All have the same duration, so the oldest come first."""
        while self._computing:
            caller, until = next(iter(self._computing.values()))
            if until > now:
                return
            self._computing.popitem(last=False)
            caller.flights -= 1


def _superstep() -> object:
    """Return the id of the checkpoint that the outermost graph's superstep runs from. None outside of nodes."""
    config: Any = var_child_runnable_config.get() or {}
    return ((config.get("configurable") or {}).get("checkpoint_map") or {}).get("")
