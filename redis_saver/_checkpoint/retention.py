"""Which checkpoints `prune` keeps. It is decided from names and times alone, so that the same rule holds for Redis and for Postgres."""

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
"""Stands in front of the task's id in the namespace of a subgraph call. The namespace of a subgraph with `checkpointer=True` has none."""


class Retention(NamedTuple):
    """What prune keeps: the newest `keep_last` of each namespace, and all younger than `older_than`."""

    keep_last: int = 1
    older_than: timedelta | None = None

    def kept(self, written: Mapping[CheckpointKey, str]) -> set[CheckpointKey]:
        """The checkpoints of a thread that are kept, given their `ts`. Finished subgraph calls are removed afterwards (`finished_calls`)."""
        by_namespace: dict[str, list[str]] = defaultdict(list)
        for ns, checkpoint_id in written:
            by_namespace[ns].append(checkpoint_id)
        keep = {(ns, one) for ns, ids in by_namespace.items() for one in sorted(ids)[-self.keep_last :]}
        if self.older_than is not None:
            try:
                horizon = datetime.now(timezone.utc) - self.older_than
            except OverflowError:  # before the year 1, of which there is nothing
                return set(written)
            for key, time in written.items():
                moment = times.moment(time)
                if moment is None or moment >= horizon:  # a checkpoint without a time is kept
                    keep.add(key)
        return keep


def retention(strategy: str, keep_last: int | None, older_than: timedelta | str | None) -> Retention | None:
    """Understand prune's arguments; None means that the whole thread goes.

    Raises:
        ValueError, TypeError: They make no sense.
    """
    if strategy in {"delete", "delete_all"}:
        if keep_last is not None or older_than is not None:
            raise ValueError(
                f"strategy={shown(strategy)} removes whole threads: leave out keep_last and older_than, or write strategy='keep_latest'"
            )
        return None
    if strategy != "keep_latest":
        raise ValueError(f"strategy={shown(strategy)} is unknown; write 'keep_latest' or 'delete'")
    if keep_last is not None and (isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1):
        raise ValueError(
            f"keep_last={shown(keep_last)}: write a number of checkpoints, 1 or more; to remove all, write strategy='delete'"
        )
    config.number("keep_last", keep_last or 1, 1, whole=True)
    return Retention(keep_last or 1, None if older_than is None else times.of(older_than, name="older_than"))


def is_call(ns: str) -> bool:
    """Whether a namespace is that of one subgraph call. Nobody reads its state once the call is finished."""
    return _CALL in ns


def root_of(metadata: Mapping[str, object]) -> str | None:
    """The id of the root graph's checkpoint from which a subgraph call started, from the metadata of one of the call's checkpoints."""
    parents = metadata.get("parents")
    root = parents.get("") if isinstance(parents, Mapping) else None
    return root if isinstance(root, str) else None


def finished_calls(
    roots: Mapping[str, str | None], saved: Collection[CheckpointKey], keep: Collection[CheckpointKey]
) -> set[str]:
    """The namespaces of subgraph calls to remove, because the root checkpoint they started from is removed.

    Args:
        roots: The root checkpoint of each call, by the call's namespace.
        saved: All checkpoints of the thread. LangGraph saves in the background, so a call may be stored before its root checkpoint. Such a call stays.
        keep: The checkpoints that are kept.
    """
    return {ns for ns, root in roots.items() if root and ("", root) in saved and ("", root) not in keep}
