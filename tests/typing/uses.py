"""Uses that type checkers must accept, and mistakes that they must find.

Nothing runs this file; `.ci/run` checks it with mypy and pyright. Each mistake has a comment that silences it. A
checker that misses the mistake complains of the unused comment.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnusedExpression=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any

import fakeredis
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore, SearchItem
from langgraph.types import CachePolicy

from redis_saver import (
    AsyncRedisCache,
    AsyncRedisSaver,
    AsyncRedisStore,
    AsyncTieredSaver,
    CacheStats,
    FastSerializer,
    History,
    Limits,
    OperationStats,
    Pruned,
    RedisCache,
    RedisLLMCache,
    RedisSaver,
    RedisSaverError,
    RedisIndexConfig,
    RedisStore,
    Stats,
    ThreadInfo,
    TieredSaver,
    VersionedItem,
    __version__,
    cache_key,
)
from redis_saver.telemetry import instrument, log_slow_calls

blocking, asyncio = redis.Redis(), redis.asyncio.Redis()

# -- a client of the right flavour

saver = RedisSaver(blocking)
RedisSaver(redis.RedisCluster(host="localhost"))
RedisSaver(valkey.Valkey())
RedisSaver(fakeredis.FakeRedis())
async_saver = AsyncRedisSaver(asyncio)
AsyncRedisSaver(redis.asyncio.RedisCluster(host="localhost"))
AsyncRedisSaver(valkey.asyncio.Valkey())
AsyncRedisSaver(fakeredis.FakeAsyncRedis())

RedisSaver("redis://localhost")  # type: ignore[arg-type]
RedisSaver(asyncio)  # type: ignore[arg-type]
RedisSaver(redis.asyncio.RedisCluster(host="localhost"))  # type: ignore[arg-type]
RedisSaver(valkey.asyncio.Valkey())  # type: ignore[arg-type]
RedisSaver()  # type: ignore[call-arg]
AsyncRedisSaver("redis://localhost")  # type: ignore[arg-type]
AsyncRedisSaver(blocking)  # type: ignore[arg-type]
AsyncRedisSaver(redis.RedisCluster(host="localhost"))  # type: ignore[arg-type]
AsyncRedisSaver(valkey.Valkey())  # type: ignore[arg-type]

# -- settings

RedisSaver(blocking, ttl="7d", compression="zstd", limits=Limits(value_bytes=3), serde=FastSerializer(), min_replicas=1)
RedisSaver(blocking, ttl={"default_ttl": 60, "refresh_on_read": True})
RedisSaver.from_conn_string("redis://localhost", ttl=timedelta(days=7), client_options={"socket_timeout": 2})
AsyncRedisSaver.from_conn_string("redis://localhost", prefix="mine", cache_bytes=0)

RedisSaver(blocking, compression="gzip")  # type: ignore[arg-type]
RedisSaver(blocking, compresion="zstd")  # type: ignore[call-arg]
RedisSaver(blocking, ttl=60)  # type: ignore[arg-type]
RedisSaver(redis_url="redis://localhost")  # type: ignore[call-arg]
RedisSaver(redis_client=blocking)  # type: ignore[call-arg]
RedisSaver(blocking, connection_args={})  # type: ignore[call-arg]
RedisSaver.from_conn_string("redis://localhost", compression="gzip")  # type: ignore[arg-type]
RedisSaver.from_conn_string("redis://localhost", socket_timeout=2)  # type: ignore[call-arg]
AsyncRedisSaver.from_conn_string("redis://localhost", perfix="mine")  # type: ignore[call-arg]

limit: History = {"keep_last": 10}
RedisSaver.from_conn_string("redis://localhost", history=limit)
RedisSaver.from_conn_string("redis://localhost", history="all")
RedisSaver.from_conn_string("redis://localhost", history={"keep": 10})  # type: ignore[arg-type]
RedisSaver.from_conn_string("redis://localhost", history=10)  # type: ignore[arg-type]

# -- blocks

with RedisSaver.from_conn_string("redis://localhost") as opened, RedisSaver(blocking) as entered:
    savers: list[RedisSaver] = [opened, entered]
setting_up: Coroutine[Any, Any, None] = async_saver.setup()
setting_up_tiers: Coroutine[Any, Any, None] = AsyncTieredSaver(async_saver, InMemorySaver()).setup()

RedisSaver.from_conn_string("redis://localhost").setup()  # type: ignore[attr-defined]
with AsyncRedisSaver(asyncio):  # type: ignore[attr-defined]
    pass
saver.get_channel_values("a")  # type: ignore[attr-defined]

# -- two tiers

cold = InMemorySaver()
tiered = TieredSaver(saver, cold, mode="write-behind", cold_history="latest", flush_interval=0.5)
AsyncTieredSaver(async_saver, cold, on_hot_error="bypass", verify="on_open")

TieredSaver(saver, cold, mode="write-behnd")  # type: ignore[arg-type]
TieredSaver(saver, cold, cold_history="newest")  # type: ignore[arg-type]
TieredSaver(saver, cold, verify="always")  # type: ignore[arg-type]
TieredSaver(saver, cold, on_hot_error="ignore")  # type: ignore[arg-type]
TieredSaver(saver, cold, flush_seconds=1.0)  # type: ignore[call-arg]
TieredSaver(async_saver, cold)  # type: ignore[arg-type]
TieredSaver(saver, "postgresql://localhost")  # type: ignore[arg-type]
AsyncTieredSaver(saver, cold)  # type: ignore[arg-type]

# -- a store

store = RedisStore(blocking, ttl={"default_ttl": 60, "refresh_on_read": True, "omit_expired": True})
indexed = RedisStore(blocking, index={"dims": 2, "embed": lambda texts: [[0.0, 1.0]], "distance_type": "l2"})
index: RedisIndexConfig = {"dims": 1536, "embed": "openai:text-embedding-3-small", "fields": ["text"]}
base: BaseStore = AsyncRedisStore(asyncio, ttl="30d", limits=Limits(value_bytes=1000))
store.put(("memories", "ada"), "k", {"n": 1}, ttl=5, if_version=0)
item: VersionedItem | None = store.get(("memories", "ada"), "k")
found: list[SearchItem] = store.search(("memories",), filter={"n": {"$gt": 1}})
count: int = store.count(("memories",)) + store.delete_namespace(("memories", "ada"))

RedisStore(asyncio)  # type: ignore[arg-type]
AsyncRedisStore(blocking)  # type: ignore[arg-type]
RedisStore(blocking, ttl=60)  # type: ignore[arg-type]
RedisStore(blocking, index={"dims": 2, "embed": "a:b", "distance_type": "l3"})  # type: ignore[arg-type]
RedisStore(blocking, history="all")  # type: ignore[call-arg]
store.put(("memories", "ada"), "k", {"n": 1}, if_version="1")  # type: ignore[arg-type]
store.get(("memories", "ada"), "k").version  # type: ignore[union-attr]

# -- results

version: str = __version__
pruned: Pruned = saver.prune(["a"], keep_last=3, older_than="30d", dry_run=True)
removed: int = pruned.checkpoints
infos: list[ThreadInfo] = list(saver.threads(thread_prefix="user-"))
updated: datetime | None = infos[0].updated_at
left: timedelta | None = saver.get_thread_ttl("a")
waiting: int = tiered.stats().tiers.backlog
where: str = next(tiered.threads()).tier
saver.set_thread_ttl("a", "90m")

saver.threads(prefix="user-")  # type: ignore[call-arg]
saver.get_thread("a").checkpoints  # type: ignore[union-attr]
saver.prune("a", keep_last="3")  # type: ignore[arg-type]
saver.set_thread_ttl("a", 90)  # type: ignore[arg-type]
text: str = infos[0].updated_at  # type: ignore[assignment]

try:
    saver.setup()
except RedisSaverError:
    pass

# -- caches

cache = RedisCache(blocking, ttl="1d", on_error="raise", single_flight=timedelta(seconds=30))
texts: RedisCache[str] = RedisCache(blocking)
entries: dict[tuple[tuple[str, ...], str], str] = texts.get([(("label",), "key")])
texts.set({(("label",), "key"): ("value", 60), (("label",), "other"): ("value", None)})
texts.set({(("label",), "key"): (1, 60)})  # type: ignore[dict-item]
cache_stats: CacheStats = cache.stats()
policy: CachePolicy[Any] = CachePolicy(key_func=cache_key)
cache_key({"a": 1}, closure="version 2").upper()
AsyncRedisCache(asyncio)
RedisLLMCache(cache, ttl="7d")
RedisLLMCache(AsyncRedisCache(asyncio))
RedisCache(asyncio)  # type: ignore[arg-type]
AsyncRedisCache(blocking)  # type: ignore[arg-type]
RedisCache(blocking, on_error="ignore")  # type: ignore[arg-type]
RedisCache(blocking, ttl=60)  # type: ignore[arg-type]
RedisLLMCache(blocking)  # type: ignore[arg-type]

# -- counters

counted: Stats = saver.stats()
of_reads: OperationStats = counted.operations["get_tuple"]
within: int = of_reads.histogram["0.005"]
for each in (saver, async_saver, tiered, cache, texts, RedisStore(blocking)):
    instrument(each, attributes={"service": "chats"})
log_slow_calls(saver, 0.5, thread_ids=True)
instrument(cold)  # type: ignore[arg-type]
log_slow_calls(saver, "1s")  # type: ignore[arg-type]
