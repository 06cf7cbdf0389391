"""Moving items from a source to a target. What the target has of each is looked up first, and is part of the request that writes.

So an item that was moved before is left, whoever writes to the target meanwhile is not overwritten unseen, and no state of a migration is kept anywhere. In
memory are some hundred items, or some megabytes of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from redis_saver._common.display import shown
from redis_saver._migrate.item_endpoints import ItemSource, ItemTarget, named, same_value
from redis_saver._storage.opaque import Opaque
from redis_saver._store.transfer import StoredItem
from redis_saver.errors import RedisSaverError

Replace = Literal["older", "all"]
ITEMS_PER_BATCH, BYTES_PER_BATCH = 200, 4_000_000
ROUNDS = 4
"""How often an item is looked at that somebody writes in the target at the same time."""
MAX_PROBLEMS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass
class ItemsReport:
    """What `migrate_items` has moved so far."""

    items: int = 0
    """Items that were looked at."""
    written: int = 0
    """Items of which the target had nothing; with `dry_run` these and the next ones would be written."""
    replaced: int = 0
    """Items that took the place of others in the target, as `replace` allows."""
    unchanged: int = 0
    """Items that the target had with the same value."""
    expired: int = 0
    """Items whose deadline has passed. They were left."""
    conflicts: int = 0
    """Items of which the target has another value. They were left."""
    failed: int = 0
    """Items that cannot be read or stored."""
    problems: list[str] = field(default_factory=list)
    """The first 1,000 conflicts, and the first 1,000 failures, each with the reason."""
    seconds: float = 0.0


def migrate_items(
    source: ItemSource,
    target: ItemTarget,
    *,
    namespace: tuple[str, ...] = (),
    replace: Replace | None = None,
    ttl: timedelta | None = None,
    dry_run: bool = False,
    progress: Callable[[ItemsReport], None] | None = None,
) -> ItemsReport:
    """Copy the items of a store, all or those of a namespace and of the ones below it. The source is not changed.

    `created_at`, `updated_at`, and what is left of the TTLs, go with them. An item that the target has with the same value is left. Vectors are not copied.

    Args:
        source: What `opened_store` gives.
        target: The same.
        namespace: What the namespaces begin with, label by label.
        replace: What happens with an item of which the target has another value. None: it is left, and named as a conflict. `"older"`: it is replaced if
            it was put earlier than the source's. `"all"`: it is replaced.
        ttl: Give each item this TTL from now on, in place of what is left of its own.
        dry_run: Write nothing, and count what would be written.
        progress: Called with the report as it grows.

    Returns:
        What was moved, and what was not: conflicts, and items that failed.

    Raises:
        ValueError: `replace` is none of these. Nothing was read.
        EndpointError: Source or target failed. What was moved so far stays; run it again.
    """
    if replace not in (None, "older", "all"):
        raise ValueError(f"replace={shown(replace)}: write 'older', 'all', or None")
    report, started = ItemsReport(), time.monotonic()
    move = _Move(target, replace, dry_run, report)
    for batch in _batches(move.failures_left_out(source.items(namespace))):
        move.run([item if ttl is None else _with_ttl(item, ttl) for item in batch])
        report.seconds = time.monotonic() - started
        if progress is not None:
            progress(report)
    return report


def _batches(items: Iterator[StoredItem]) -> Iterator[list[StoredItem]]:
    """Some items at a time, each once: a file that somebody made may have one twice."""
    batch: dict[tuple[tuple[str, ...], str], StoredItem] = {}
    size = 0
    for item in items:
        name = item.namespace, item.key
        if name in batch or len(batch) >= ITEMS_PER_BATCH or size > BYTES_PER_BATCH:
            yield list(batch.values())
            batch, size = {}, 0
        batch[name] = item
        size += item.size
    if batch:
        yield list(batch.values())


def _with_ttl(item: StoredItem, ttl: timedelta) -> StoredItem:
    milliseconds = ttl // timedelta(milliseconds=1)
    return item._replace(ttl=milliseconds, expires_at=_now() + milliseconds)


def _now() -> int:
    return int(time.time() * 1000)


class _Move:
    """The move of items to a target."""

    def __init__(self, target: ItemTarget, replace: Replace | None, dry_run: bool, report: ItemsReport) -> None:
        self._target, self._replace, self._dry_run, self._report = target, replace, dry_run, report

    def failures_left_out(self, items: Iterable[StoredItem | RedisSaverError]) -> Iterator[StoredItem]:
        """The items that could be read. The report names the others."""
        for item in items:
            self._report.items += 1
            if isinstance(item, RedisSaverError):
                self._fail(str(item))
            elif _may_be_value(item.value):
                yield item
            else:
                self._fail(
                    f"{named(item)}: its value is no dict whose keys are str, so no store can read it. Other items are moved all the same"
                )

    def run(self, batch: Sequence[StoredItem]) -> None:
        """Move some items."""
        now = _now()
        left = [item for item in batch if not item.expires_at or item.expires_at > now]
        self._report.expired += len(batch) - len(left)
        for _ in range(ROUNDS):
            found = self._target.look_up(left)
            wanted = [
                (item, has.updated_at if isinstance(has, StoredItem) else 0)
                for item, has in zip(left, found, strict=True)
                if self._is_wanted(item, has)
            ]
            left = self._write(wanted)
            if not left:
                return
        for item in left:
            self._fail(f"{named(item)}: somebody writes it in {self._target.name} all the time; run it again later")

    def _write(self, wanted: Sequence[tuple[StoredItem, int]]) -> list[StoredItem]:
        """Write items, and count them. Returns those to look up again."""
        changed, failed = ([], []) if self._dry_run or not wanted else self._target.write(wanted)
        for _, error in failed:
            self._fail(str(error))
        lost = {(item.namespace, item.key) for item in (*changed, *(item for item, _ in failed))}
        for item, expected in wanted:
            if (item.namespace, item.key) not in lost:
                self._report.written += not expected
                self._report.replaced += bool(expected)
        return changed

    def _is_wanted(self, item: StoredItem, has: StoredItem | RedisSaverError | None) -> bool:
        """Whether to write an item. If not, the report says why."""
        if has is None:
            return True
        if isinstance(has, RedisSaverError):
            self._fail(str(has))
        elif same_value(item.value, has.value):
            self._report.unchanged += 1
        elif self._replace == "all" or (self._replace == "older" and has.updated_at < item.updated_at):
            return True
        else:
            self._report.conflicts += 1
            times = f"put at {_time(has.updated_at)}, and this one at {_time(item.updated_at)}"
            self._problem(
                "conflict", self._report.conflicts, f"{named(item)}: {self._target.name} has another value, {times}"
            )
        return False

    def _fail(self, said: str) -> None:
        self._report.failed += 1
        self._problem("failed", self._report.failed, said)

    def _problem(self, kind: str, count: int, said: str) -> None:
        if count <= MAX_PROBLEMS:
            self._report.problems.append(f"{kind}: {said}")


def _may_be_value(value: Any) -> bool:
    """Whether this is a value of an item, as far as can be seen."""
    return isinstance(value, Opaque) or (isinstance(value, dict) and all(isinstance(name, str) for name in value))


def _time(microseconds: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat()
    except OverflowError:
        return f"{microseconds} microseconds since 1970"
