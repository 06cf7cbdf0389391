"""`delete_for_runs` for LangGraph's Postgres savers, which do not have it (langgraph-checkpoint-postgres 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

_STATEMENTS = (
    "DELETE FROM checkpoint_writes AS w USING checkpoints AS c WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns "
    "AND w.checkpoint_id = c.checkpoint_id AND c.metadata ->> 'run_id' = ANY(%s)",
    "DELETE FROM checkpoints WHERE metadata ->> 'run_id' = ANY(%s)",
)


def _has_own(cold: BaseCheckpointSaver[Any], method: str) -> bool:
    return getattr(type(cold), method) is not getattr(BaseCheckpointSaver, method)


def deleting(cold: BaseCheckpointSaver[Any]) -> Callable[[Sequence[str]], None] | None:
    """What deletes runs from a `PostgresSaver`; None for any other saver, which has to do that itself."""
    if _has_own(cold, "delete_for_runs") or not hasattr(cold, "UPSERT_CHECKPOINTS_SQL"):
        return None

    def delete(run_ids: Sequence[str]) -> None:
        with cold._cursor() as cursor, cursor.connection.transaction():  # type: ignore[attr-defined]  # noqa: SLF001
            for statement in _STATEMENTS:
                cursor.execute(statement, (list(run_ids),))

    return delete


def adeleting(cold: BaseCheckpointSaver[Any]) -> Callable[[Sequence[str]], Coroutine[Any, Any, None]] | None:
    """`deleting` for an `AsyncPostgresSaver`."""
    if _has_own(cold, "adelete_for_runs") or not hasattr(cold, "UPSERT_CHECKPOINTS_SQL"):
        return None

    async def delete(run_ids: Sequence[str]) -> None:
        async with cold._cursor() as cursor, cursor.connection.transaction():  # type: ignore[attr-defined]  # noqa: SLF001
            for statement in _STATEMENTS:
                await cursor.execute(statement, (list(run_ids),))

    return delete
