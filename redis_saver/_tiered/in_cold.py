"""This process's memory of encrypted checkpoints in cold: their parents, and which values cold has.

A sealed head names its parent and the values that cold has, so that a changed parent and a removed value are noticed.
It must not say more than is known. Cold's rows show what is known only to this process, or by one more call.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from langgraph.checkpoint.base.id import UUID

from redis_saver._common import names, times
from redis_saver._common.bounded_cache import BoundedCache

_MAX_THREADS, _MAX_BYTES = 10_000, 16 * 2**20
_MAX_NAMESPACES, _MAX_PARENTS = 50, 20
"""Maximum numbers of remembered namespaces per thread, and of parents per namespace."""
_YOUNG = timedelta(minutes=1)
"""Age up to which a checkpoint with a parent counts as new in a namespace that this process never read."""


class _Namespace(NamedTuple):
    newest: str = ""
    """The greatest id that this process has read or put, in either tier. Empty if it found none."""
    key: bytes = b""
    """Id of the data key of `parents` and `versions`. A thread that was deleted and made again has another one."""
    parents: Mapping[str, str] = {}
    """The sealed parents of the last checkpoints that this process put or read, by id. Empty: it has none."""
    versions: Mapping[str, Any] = {}
    """The channels whose values cold had at the last put or read, with their versions."""


class InCold:
    """The memory of all threads of a saver and its clones."""

    def __init__(self) -> None:
        self._threads: BoundedCache[str, Mapping[str, _Namespace]] = BoundedCache(_MAX_THREADS, _MAX_BYTES)

    def saw(self, thread: str, ns: str, checkpoint_id: str) -> None:
        """Remember that a checkpoint exists in one of the tiers. An empty id: the namespace is empty."""
        known = self._of(thread, ns) or _Namespace()
        if not checkpoint_id:
            self._store(thread, ns, _Namespace())
        elif checkpoint_id > known.newest:
            self._store(thread, ns, known._replace(newest=checkpoint_id))

    def learn(
        self, thread: str, ns: str, key: bytes, checkpoint_id: str, parent: str, versions: Mapping[str, Any]
    ) -> None:
        """Remember a checkpoint that cold has: its parent, and the versions of the values that cold has of it."""
        known = self._of(thread, ns) or _Namespace()
        parents = {**known.parents} if known.key == key else {}
        parents.pop(checkpoint_id, None)
        parents[checkpoint_id] = parent
        if len(parents) > _MAX_PARENTS:
            del parents[next(iter(parents))]
        self._store(thread, ns, _Namespace(max(known.newest, checkpoint_id), key, parents, versions))

    def filled(self, thread: str, ns: str, key: bytes) -> None:
        """Remember that hot was filled from cold. If hot had lost the thread, it has a new data key, of this id."""
        if (known := self._of(thread, ns)) is not None and known.key:
            self._store(thread, ns, known._replace(key=key))

    def forget(self, thread: str) -> None:
        """Forget a thread that was deleted."""
        self._threads.forget(thread)

    def parent(self, thread: str, ns: str, key: bytes, checkpoint_id: str) -> str | None:
        """Return the sealed parent of a checkpoint in cold, empty if it has none. None: it is not known."""
        known = self._of(thread, ns)
        return known.parents.get(checkpoint_id) if known and known.key == key else None

    def versions(self, thread: str, ns: str, key: bytes) -> Mapping[str, Any]:
        """Return the versions of the values that cold had at the last put or read."""
        known = self._of(thread, ns)
        return known.versions if known and known.key == key else {}

    def may_have(self, thread: str, ns: str, checkpoint_id: str, parent: str) -> bool:
        """True unless a checkpoint to put is new.

        LangGraph reads a namespace before it writes there, and each new id is the greatest. An id from elsewhere was
        read before, so it is not above the greatest one. In a namespace that this process does not know, a checkpoint
        with a parent is new if it was made just now.
        """
        if (known := self._of(thread, ns)) is not None:
            return checkpoint_id <= known.newest
        return not (parent and _is_young(checkpoint_id))

    def _of(self, thread: str, ns: str) -> _Namespace | None:
        return self._threads.get(thread, {}).get(ns)

    def _store(self, thread: str, ns: str, known: _Namespace) -> None:
        if len(thread) + len(ns) > names.MAX_CACHED_NAME:
            return
        by_ns = {name: one for name, one in self._threads.get(thread, {}).items() if name != ns}
        if len(by_ns) >= _MAX_NAMESPACES:
            del by_ns[next(iter(by_ns))]
        by_ns[ns] = known
        size = sum(len(name) + 150 * (1 + len(one.parents) + len(one.versions)) for name, one in by_ns.items())
        self._threads.store(thread, by_ns, len(thread) + size)


def _is_young(checkpoint_id: str) -> bool:
    """True if an id is a UUIDv6, as LangGraph's are, of the last minute."""
    try:
        made = UUID(checkpoint_id)
    except ValueError:
        return False
    return made.version == 6 and str(made) > times.id_at(datetime.now(timezone.utc) - _YOUNG)
