"""The operations of a saver on one server, as `interface.Interface` calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint import listing
from redis_saver._checkpoint.copying import copy_thread
from redis_saver._checkpoint.delta import get_delta_channel_history
from redis_saver._checkpoint.pruning import delete_for_runs, prune
from redis_saver._checkpoint.reading import get_tuple
from redis_saver._checkpoint.threads import delete_thread, expire, get_thread, get_ttl, stream_threads
from redis_saver._checkpoint.writing import put, put_writes
from redis_saver._engine.requests import Stream
from redis_saver._storage.context import Context

__all__ = [
    "copy_thread",
    "delete_for_runs",
    "delete_thread",
    "expire",
    "get_delta_channel_history",
    "get_thread",
    "get_ttl",
    "get_tuple",
    "list_checkpoints",
    "prune",
    "put",
    "put_writes",
    "stream_threads",
]


def list_checkpoints(
    context: Context,
    given: RunnableConfig | None,
    filter: Mapping[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
) -> Stream[CheckpointTuple]:
    """Check the arguments of `list`, then list as `listing.list_checkpoints`."""
    return listing.list_checkpoints(context, listing.query(given, filter, before, limit))
