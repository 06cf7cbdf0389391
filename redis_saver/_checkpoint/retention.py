"""Retention rule of `prune`. It needs only names and times, so the same rule holds for Redis and for Postgres."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from redis_saver._common import config, times
from redis_saver._common.display import shown

CheckpointKey = tuple[str, str]
"""A checkpoint in its thread: namespace and id."""

_CALL = ":"
"""Precedes the task's id in the namespace of a subgraph call. With `checkpointer=True` a namespace has no task id."""


class Retention(NamedTuple):
    """Rule for checkpoints to keep: the newest `keep_last` of each namespace, and all younger than `older_than`."""

    keep_last: int = 1
    older_than: timedelta | None = None

    def kept(self, written: Mapping[CheckpointKey, str]) -> set[CheckpointKey]:
        """Return the checkpoints to keep, given their `ts`. Finished calls are removed later (`finished_calls`)."""
        by_namespace: dict[str, list[str]] = defaultdict(list)
        for ns, checkpoint_id in written:
            by_namespace[ns].append(checkpoint_id)
        keep = {(ns, newest) for ns, ids in by_namespace.items() for newest in sorted(ids)[-self.keep_last :]}
        if self.older_than is not None:
            try:
                horizon = datetime.now(timezone.utc) - self.older_than
            except OverflowError:  # before the year 1, so nothing is older
                return set(written)
            for key, time in written.items():
                moment = times.moment(time)
                if moment is None or moment >= horizon:  # a checkpoint without a time is kept
                    keep.add(key)
        return keep


def retention(strategy: str, keep_last: int | None, older_than: timedelta | str | None) -> Retention | None:
    """Check prune's arguments. Returns None if they ask to delete the whole thread.

    Raises:
        ValueError, TypeError: An argument makes no sense.
    """
    if strategy in {"delete", "delete_all"}:
        if keep_last is not None or older_than is not None:
            raise ValueError(
                f"strategy={shown(strategy)} removes whole threads: leave out keep_last and older_than, "
                "or write strategy='keep_latest'"
            )
        return None
    if strategy != "keep_latest":
        raise ValueError(f"strategy={shown(strategy)} is unknown; write 'keep_latest' or 'delete'")
    if keep_last is not None and (isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1):
        raise ValueError(
            f"keep_last={shown(keep_last)}: write a number of checkpoints, 1 or more; "
            "to remove all, write strategy='delete'"
        )
    config.number("keep_last", keep_last or 1, 1, whole=True)
    return Retention(keep_last or 1, None if older_than is None else times.of(older_than, name="older_than"))


def is_call(ns: str) -> bool:
    """True if a namespace belongs to one subgraph call. Nobody reads its state once the call is finished."""
    return _CALL in ns


def root_of(metadata: Mapping[str, object]) -> str | None:
    """Return the id of the root checkpoint that a subgraph call started from. The call's metadata name it."""
    parents = metadata.get("parents")
    root = parents.get("") if isinstance(parents, Mapping) else None
    return root if isinstance(root, str) else None


def finished_calls(
    roots: Mapping[str, str | None], saved: Collection[CheckpointKey], keep: Collection[CheckpointKey]
) -> set[str]:
    """Return the namespaces of subgraph calls to remove, because the root checkpoint that they started from is removed.

    Args:
        roots: The root checkpoint of each call, by the call's namespace.
        saved: All checkpoints of the thread. LangGraph saves in the background, so a call may be stored before its root
            checkpoint. Such a call stays.
        keep: The checkpoints to keep.
    """
    return {ns for ns, root in roots.items() if root and ("", root) in saved and ("", root) not in keep}
