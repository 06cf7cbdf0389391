"""What `RedisSaver` and `AsyncRedisSaver` share: the interface over operations of one server, and pruning as only we do it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar

from redis_saver import config as configs
from redis_saver.checkpoint import operations, pruning
from redis_saver.checkpoint.interface import Operations
from redis_saver.checkpoint.pruning import Pruned
from redis_saver.checkpoint.thread_methods import ThreadMethods


class Saver(ThreadMethods):
    """A saver on one Redis or Valkey."""

    _operations: ClassVar[Operations] = operations

    def prune(  # type: ignore[override]  # the base class returns nothing, which is all its callers rely on
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Remove old checkpoints of some threads, with their writes and with the values nothing refers to any more.

        What is kept stays whole: its values, its pending writes, and the ancestors a `DeltaChannel` is rebuilt from (with
        what those need in turn, as they stay in the lists).

        Args:
            thread_ids: The threads. Those that do not exist, and an empty list, change nothing.
            strategy: `"keep_latest"` keeps the newest checkpoint of each namespace; `"delete"` removes the threads
                (`"delete_all"` too, which is what LangGraph's Agent Server says).
            keep_last: Keep this many of each namespace instead of one.
            older_than: Remove only what is older (by the checkpoint's `ts`); the newest of a namespace stays in any case.
            dry_run: Remove nothing, and return what would be removed.

        Returns:
            How many checkpoints, writes, values (blobs) and bytes were removed, over all threads. Too low where the client
            had to send a step again after a lost reply.

        Raises:
            ValueError: An unknown strategy, or arguments that contradict each other. Nothing was removed.
            ThreadBusy: A thread was written to during each of many attempts; what was removed so far is whole checkpoints.
        """
        kept = pruning.retention(strategy, keep_last, older_than)
        return self._run(pruning.prune(self, configs.names(thread_ids, "thread_id"), kept, dry_run))

    async def aprune(  # type: ignore[override]  # as prune
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """`prune` for asyncio."""
        kept = pruning.retention(strategy, keep_last, older_than)
        return await self._arun(pruning.prune(self, configs.names(thread_ids, "thread_id"), kept, dry_run))
