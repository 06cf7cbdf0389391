"""Threads and partitions whose keys are unavailable, in calls over many."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from typing_extensions import Self

from redis_saver._common.display import counted, shown
from redis_saver._common.logs import ThrottledLog
from redis_saver._engine.lockstep import together
from redis_saver._engine.requests import Operation, R, T
from redis_saver._storage.keys import DataKeys
from redis_saver.errors import KeyUnavailable

_MAX_NAMED = 10
"""Maximum number of names in a log line."""
_LOG = ThrottledLog("redis_saver.storage")


class Skipping:
    """The threads or partitions that a call over many leaves out, because their keys are unavailable.

    Use it in a `with` block, whose end logs their names. Without `encryption=` it only runs operations.
    """

    def __init__(self, data_keys: DataKeys | None, *, names_one: bool = False) -> None:
        """Begin a call.

        Args:
            data_keys: The data keys of the saver or the store.
            names_one: True if the caller named a single thread or partition. Then `KeyUnavailable` is raised.
        """
        self._data_keys, self._names = data_keys, dict[str, None]()
        self._skips = data_keys is not None and data_keys.on_unavailable == "skip" and not names_one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._data_keys is not None and self._names:
            self._data_keys.skipped.unavailable += len(self._names)
            more = f" and {len(self._names) - _MAX_NAMED:,} more" if len(self._names) > _MAX_NAMED else ""
            listed = ", ".join(map(shown, list(self._names)[:_MAX_NAMED])) + more
            what = counted(len(self._names), "thread" if self._data_keys.kind == "thread" else "partition")
            _LOG.warning("a call skipped %s, because the keys are unavailable: %s", what, listed)

    def __contains__(self, name: str) -> bool:
        """True if the thread or partition was skipped."""
        return name in self._names

    def each(self, name: str, operation: Generator[R, Any, T]) -> Generator[R, Any, T | None]:
        """Run an operation on one thread or partition. Returns None if it is skipped."""
        if name in self._names:
            operation.close()
            return None
        try:
            return (yield from operation)
        except KeyUnavailable:
            if not self._skips:
                raise
            self._names[name] = None
            return None

    def load(self, wanted: Mapping[str, bytes]) -> Operation[None]:
        """Load the data keys of many threads at once: their names, with the hashes that have the keys.

        Costs a round trip for 256 threads, and asks the provider several questions at a time.
        """
        if (data_keys := self._data_keys) is not None and data_keys.keeps:
            yield from together(
                [self.each(name, data_keys.load(name, key)) for name, key in wanted.items() if name not in self]
            )
