"""Tiered stores over Postgres, or over a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from langgraph.store.base import BaseStore, Op, Result
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import AsyncPostgresStore, PostgresStore
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from tests.support.uniform import Target, Uniform

from redis_saver import AsyncTieredStore, FastSerializer, TieredStore
from redis_saver._common.store_names import Partition, StoreKeyspace, with_notes
from redis_saver._storage import framing
from redis_saver._common.store_names import namespace_and_key


class Recording(BaseStore):
    """A store that records the calls to another store. A test may let a call fail, or act before or after it."""

    def __init__(self, store: BaseStore | None = None) -> None:
        self.store: BaseStore = store or InMemoryStore()
        self.supports_ttl, self.ttl_config = self.store.supports_ttl, getattr(self.store, "ttl_config", None)
        self.calls: list[list[str]] = []
        self.fails: Any = lambda _: None
        """Called with the operations; an error that it returns is raised."""
        self.then: Any = lambda _: None
        """Called with the operations after they are done; an error that it returns is raised."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        ops = self._note(ops)
        results = self.store.batch(ops)
        return self._done(ops, results)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        ops = self._note(ops)
        results = await self.store.abatch(ops)
        return self._done(ops, results)

    def _note(self, ops: Iterable[Op]) -> list[Op]:
        ops = list(ops)
        self.calls.append([type(op).__name__ for op in ops])
        if error := self.fails(ops):
            raise error
        return ops

    def _done(self, ops: list[Op], results: list[Result]) -> list[Result]:
        if error := self.then(ops):
            raise error
        return results


class StoreTiers:
    """A Redis and a Postgres database of one test, and tiered stores over both, each as in its own process."""

    def __init__(self, target: Target, url: str) -> None:
        self.target, self.url = target, url
        self.pools: list[Any] = []
        self.native_async = target.flavour == "async"

    async def postgres(self, **settings: Any) -> Any:
        options: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        if self.native_async:
            pool: Any = AsyncConnectionPool(self.url, min_size=1, max_size=5, open=False, kwargs=options)
            await pool.open()
            self.pools.append(pool)
            return AsyncPostgresStore(pool, **settings)
        pool = ConnectionPool(self.url, min_size=1, max_size=5, open=True, kwargs=options)
        self.pools.append(pool)
        return PostgresStore(pool, **settings)

    def over(self, cold: BaseStore, hot: dict[str, Any] | None = None, **settings: Any) -> Uniform:
        """Make a store over a given cold store."""
        kind: Any = AsyncTieredStore if self.native_async else TieredStore
        return Uniform(kind(self.target.store(**(hot or {})).saver, cold, **settings))

    async def store(self, hot: dict[str, Any] | None = None, **settings: Any) -> Uniform:
        """Make a store over Postgres."""
        return self.over(Recording(await self.postgres()), hot, **settings)

    async def close(self) -> None:
        for pool in self.pools:
            await asyncio.sleep(0)
            if isinstance(pool, AsyncConnectionPool):
                await pool.close()
            else:
                pool.close()


def plain(item: Any) -> Any:
    """Return what callers see of an item."""
    return item and (item.namespace, item.key, item.value, item.created_at, item.updated_at)


def later(target: Target, milliseconds: int) -> None:
    """Let time pass for write intents, as `stores.later` does for items."""
    for key in target.keys():
        if key.endswith(b"}:noted"):
            for field, deadline in target.raw.zrange(key, 0, -1, withscores=True):
                target.raw.zadd(key, {field: max(1, deadline - milliseconds)})
        elif key.endswith(b"}:notes"):
            for field, note in target.raw.hgetall(key).items():
                if field.endswith(b"\0"):
                    change, *writers = note.split()
                    writers[1::2] = [b"%d" % max(1, int(deadline) - milliseconds) for deadline in writers[1::2]]
                    target.raw.hset(key, field, b" ".join([change, *writers]))


def check_copies(target: Target, cold: InMemoryStore, *labels: str) -> None:
    """Check that each copy in a partition equals cold's item, and that none is missing if hot is complete."""
    partition = partition_of(target, *labels)
    stored = target.raw.hgetall(partition.keys[0]), target.raw.hget(partition.keys[6], "@complete")
    compare_copies(partition, *stored, all_of(cold, *labels))


def compare_copies(
    partition: Partition, copies: dict[bytes, bytes], complete: bytes | None, in_cold: dict[Any, Any]
) -> None:
    """Compare a partition's raw copies, and its note that they are complete, with cold's items."""
    serde, found = FastSerializer(), {}
    for field, record in copies.items():
        if field == b"@state":
            continue
        created, _, _, updated, data = record.split(b" ", 4)
        kind, start = framing.first(data)
        value = serde.loads_typed((kind.decode(), data[start:]))
        found[namespace_and_key(partition, field)] = (value, int(created), int(updated, 16))
    there = {name: (item.value, micros(item.created_at), micros(item.updated_at)) for name, item in in_cold.items()}
    assert found.items() <= there.items(), "hot has a copy that cold does not have"
    if complete is not None and int(complete) == len(found):
        assert found == there, "hot claims to have all items of cold"


def micros(moment: Any) -> int:
    return round(moment.timestamp() * 1_000_000)


def partition_of(target: Target, *labels: str) -> Partition:
    """Return a partition with all its keys."""
    member = b"".join(one.encode() + b"\0" for one in labels)
    return with_notes(StoreKeyspace(target.prefix).partition(member), writing=True)


def all_of(cold: InMemoryStore, *labels: str) -> dict[tuple[tuple[str, ...], str], Any]:
    return {(item.namespace, item.key): item for item in cold.search(labels, limit=10_000)}
