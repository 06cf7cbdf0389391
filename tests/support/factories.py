"""Checkpoints for tests."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.base.id import uuid6


def config(
    thread: str = "thread", ns: str | None = "", checkpoint_id: str | None = None, **more: Any
) -> dict[str, Any]:
    """Make a config; `ns=None` leaves the namespace out."""
    found: dict[str, Any] = {"thread_id": thread, **more}
    if ns is not None:
        found["checkpoint_ns"] = ns
    if checkpoint_id is not None:
        found["checkpoint_id"] = checkpoint_id
    return {"configurable": found}


def checkpoint(
    values: dict[str, Any] | None = None, versions: dict[str, Any] | None = None, checkpoint_id: str | None = None
) -> Checkpoint:
    """Make a checkpoint; values have version 1 by default."""
    values = {} if values is None else values
    return {
        "v": 4,
        "id": checkpoint_id or str(uuid6(clock_seq=-1)),
        "ts": "2026-11-21T10:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, "1") if versions is None else versions,
        "versions_seen": {"node": dict.fromkeys(values, "1")},
        "updated_channels": None,
    }


def late_id(number: int) -> str:
    """Return an id in LangGraph's form that is later than any made now. `number` orders these ids."""
    return f"ffff{number:04}-0000-6000-8000-000000000000"


async def put(
    uniform: Any, where: dict[str, Any], values: dict[str, Any] | None = None, **kwargs: Any
) -> dict[str, Any]:
    """Put a checkpoint whose values are all new; return its config. Keywords: checkpoint_id, versions, metadata."""
    metadata = kwargs.pop("metadata", {"source": "loop", "step": 1, "parents": {}})
    made = checkpoint(values, **kwargs)
    return await uniform.put(where, made, metadata, made["channel_versions"])


async def chain(uniform: Any, thread: str, length: int, ns: str = "", **kwargs: Any) -> list[dict[str, Any]]:
    """Put a chain of checkpoints, each with its position in the channel `n`; return their configs, oldest first."""
    found: list[dict[str, Any]] = []
    for position in range(length):
        parent = found[-1]["configurable"]["checkpoint_id"] if found else None
        versions = {"n": f"{position + 1:032}.x"}
        metadata = {"source": "loop", "step": position, "parents": {}, **kwargs}
        found.append(
            await put(uniform, config(thread, ns, parent), {"n": position}, versions=versions, metadata=metadata)
        )
    return found


def ids(tuples: list[Any]) -> list[str]:
    return [one.config["configurable"]["checkpoint_id"] for one in tuples]
