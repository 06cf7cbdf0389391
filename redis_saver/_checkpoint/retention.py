"""Which checkpoints `prune` keeps: decided from names and times alone, so that one rule holds for Redis and for Postgres."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from redis_saver._common import times
from redis_saver._common.display import shown

CheckpointKey = tuple[str, str]
"""A checkpoint in its thread: namespace and id."""

_CALL = ":"
"""In the namespace of a subgraph's call this stands in front of the task's id. A subgraph with `checkpointer=True` has a namespace without it."""


class Retention(NamedTuple):
    """What prune keeps: the newest `keep_last` of each namespace, and all younger than `older_than`."""

    keep_last: int = 1
    older_than: timedelta | None = None

    def kept(self, written: Mapping[CheckpointKey, str]) -> set[CheckpointKey]:
        """What is kept of the checkpoints of a thread, by their `ts`; subgraph calls that are finished go behind this (`finished_calls`)."""
        by_namespace: dict[str, list[str]] = defaultdict(list)
        for ns, checkpoint_id in written:
            by_namespace[ns].append(checkpoint_id)
        keep = {(ns, one) for ns, ids in by_namespace.items() for one in sorted(ids)[-self.keep_last :]}
        if self.older_than is not None:
            horizon = datetime.now(timezone.utc) - self.older_than
            for key, time in written.items():
                moment = times.moment(time)
                if moment is None or moment >= horizon:  # a checkpoint that does not tell its time is kept
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
                f"strategy={shown(strategy)} removes whole threads; keep_last and older_than go with 'keep_latest'"
            )
        return None
    if strategy != "keep_latest":
        raise ValueError(f"strategy={shown(strategy)} is unknown; known are 'keep_latest' and 'delete'")
    if keep_last is not None and (isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1):
        raise ValueError(
            f"keep_last={shown(keep_last)}: a number of checkpoints, 1 or more; strategy='delete' removes all"
        )
    return Retention(keep_last or 1, None if older_than is None else times.of(older_than, name="older_than"))


def is_call(ns: str) -> bool:
    """Whether a namespace is that of one call of a subgraph, whose state nobody reads once the call is finished."""
    return _CALL in ns


def root_of(metadata: Mapping[str, object]) -> str | None:
    """The checkpoint of the root graph that a subgraph's call started from, by the metadata of one of the call's checkpoints."""
    parents = metadata.get("parents")
    root = parents.get("") if isinstance(parents, Mapping) else None
    return root if isinstance(root, str) else None


def finished_calls(
    roots: Mapping[str, str | None], saved: Collection[CheckpointKey], keep: Collection[CheckpointKey]
) -> set[str]:
    """The namespaces of calls that go with the root checkpoint they started from.

    Args:
        roots: That checkpoint, by the call's namespace.
        saved: All checkpoints there are. LangGraph saves in the background, so a call may be there before its root checkpoint; it stays.
        keep: Those that are kept.
    """
    return {ns for ns, root in roots.items() if root and ("", root) in saved and ("", root) not in keep}
