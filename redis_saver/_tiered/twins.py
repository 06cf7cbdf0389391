"""Twins of cold savers: objects that share all state of a saver, except some attributes of their own."""

from __future__ import annotations

import asyncio
import copy
import threading
from functools import cache
from typing import Any, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from redis_saver._common import postgres

C = TypeVar("C")
BY_PARENTS = "get_history_by_parents"
"""A method of twins: the `get_delta_channel_history` that follows parents, whatever their ids are."""


def twin(cold: C, **own: Any) -> C:
    """Return a twin with these attributes of its own. It shares all else, such as the connection, also later."""
    kind: Any
    kind, names = getattr(type(cold), "_twin_of", (type(cold), ()))
    own = {name: getattr(cold, name) for name in names} | own
    made: Any = object.__new__(_twin_class(kind, tuple(own)))
    made.__dict__ = cold.__dict__
    for name, value in own.items():
        setattr(made, name, value)
    return made  # type: ignore[no-any-return]


def can_have_twin(cold: object) -> bool:
    """True if all attributes of a saver are in its `__dict__`."""
    return not any(vars(base).get("__slots__") for base in type(cold).__mro__)


@cache
def _twin_class(kind: Any, names: tuple[str, ...]) -> Any:
    """Return a subclass with attributes of its own, wherever its other attributes are."""
    about = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        BY_PARENTS: BaseCheckpointSaver.get_delta_channel_history,
        f"a{BY_PARENTS}": BaseCheckpointSaver.aget_delta_channel_history,
    }
    return type(kind)(kind.__name__, (kind,), {**about, "__slots__": names, "_twin_of": (kind, names)})


def with_own_lock(cold: C) -> C:
    """Return a twin with a lock of its own if cold is a Postgres saver or store of LangGraph over a pool.

    It holds one lock during each call, so a call that hangs would stop all others. The pool gives each call a
    connection of its own, so these need no lock.
    """
    lock = getattr(cold, "lock", None)
    if lock is None or not postgres.is_pool(getattr(cold, "conn", None)):
        return cold
    own: Any = asyncio.Lock() if isinstance(lock, asyncio.Lock) else threading.Lock()
    if postgres.is_known_store(cold):
        return copy_with(cold, lock=own)
    return twin(cold, lock=own) if postgres.is_known(cold) else cold


def copy_with(cold: C, **own: Any) -> C:
    """Return a copy with other attributes, as far as cold has them."""
    made = copy.copy(cold)
    if postgres.is_known_store(cold):  # else garbage collection of the copy would stop the store's tasks
        own.update(_task=None, _ttl_sweeper_thread=None)
    for name, value in own.items():
        if hasattr(made, name):
            setattr(made, name, value)
    return made
