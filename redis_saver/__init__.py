"""LangGraph checkpoints and memory on plain Redis or Valkey."""

import logging as _logging
from importlib.metadata import version as _version

from redis_saver import errors
from redis_saver._cache.cache import AsyncRedisCache, RedisCache
from redis_saver._cache.cache_key import cache_key
from redis_saver._cache.llm import RedisLLMCache
from redis_saver._checkpoint.auditing import ChannelValue, VersionInfo, WriteInfo
from redis_saver._checkpoint.checking import CheckReport, Finding
from redis_saver._checkpoint.comparing import Change, ChannelDiff, CheckpointDiff
from redis_saver._checkpoint.ownership import Owner, Ownership
from redis_saver._checkpoint.pruning import Pruned
from redis_saver._checkpoint.saver import AsyncRedisSaver, RedisSaver
from redis_saver._checkpoint.threads import ThreadInfo
from redis_saver._common.config import History
from redis_saver._common.limits import Limits
from redis_saver._common.ttl import TTL
from redis_saver._engine.stats import CacheStats, CopyStats, OperationStats, Stats, TierStats
from redis_saver._serde.serializer import FastSerializer, StrictSerializer
from redis_saver._store.index_config import RedisIndexConfig
from redis_saver._store.items import VersionedItem, VersionedSearchItem
from redis_saver._store.store import AsyncRedisStore, RedisStore
from redis_saver._tiered.saver import AsyncTieredSaver, TieredSaver
from redis_saver._tiered.thread_info import TieredThreadInfo
from redis_saver._tiered_store.store import AsyncTieredStore, TieredStore
from redis_saver.errors import *  # noqa: F403 - all of its __all__

__version__ = _version("redis-saver")
_logging.getLogger("redis_saver").addHandler(_logging.NullHandler())  # silent, until the program sets up logging

__all__ = [
    "TTL", "AsyncRedisCache", "AsyncRedisSaver", "AsyncRedisStore", "AsyncTieredSaver", "AsyncTieredStore",
    "CacheStats", "Change", "ChannelDiff", "ChannelValue", "CheckReport", "CheckpointDiff", "CopyStats",
    "FastSerializer", "Finding", "History", "Limits", "OperationStats", "Owner", "Ownership", "Pruned", "RedisCache",
    "RedisIndexConfig", "RedisLLMCache", "RedisSaver", "RedisStore", "Stats", "StrictSerializer", "ThreadInfo",
    "TierStats", "TieredSaver", "TieredStore", "TieredThreadInfo", "VersionInfo", "VersionedItem",
    "VersionedSearchItem", "WriteInfo", "__version__", "cache_key",
]  # fmt: skip
__all__ += errors.__all__
