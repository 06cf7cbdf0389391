"""LangGraph checkpoints and memory on plain Redis or Valkey."""

import logging as _logging
from importlib.metadata import version as _version

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

from redis_saver.errors import (  # isort: skip
    BacklogFull, BacklogWarning, CalledOnEventLoop, Closed, ClusterMoving, ColdTimeout, Conflict, DecodeError,
    EncodeError, EndpointError, FileDamaged, FlushPaused, ForkMissed, IndexNotBuilt, ItemMigrationError, KeyConflict,
    KeyMismatch, KeyUnavailable, LimitExceeded, LoopEnded, NotOwner, PlainValueRefused, RedisSaverError,
    ReplicationTimeout, StaleParent, StillNeeded, StoreBusy, StoreDamaged, ThreadBusy, ThreadDamaged,
    ThreadMigrationError, ThreadNotFound, ThreadsPatched, UnsupportedFormat, UnsupportedServer,
    ValueChanged,
)  # fmt: skip

__version__ = _version("redis-saver")
_logging.getLogger("redis_saver").addHandler(_logging.NullHandler())  # silent, until the program sets up logging

__all__ = [
    "TTL", "AsyncRedisCache", "AsyncRedisSaver", "AsyncRedisStore", "AsyncTieredSaver", "AsyncTieredStore",
    "BacklogFull", "BacklogWarning", "CacheStats", "CalledOnEventLoop", "Change", "ChannelDiff", "ChannelValue",
    "CheckReport", "CheckpointDiff", "Closed", "ClusterMoving", "ColdTimeout", "Conflict", "CopyStats", "DecodeError",
    "EncodeError", "EndpointError", "FastSerializer", "FileDamaged", "Finding", "FlushPaused", "ForkMissed", "History",
    "IndexNotBuilt", "ItemMigrationError", "KeyConflict", "KeyMismatch", "KeyUnavailable", "LimitExceeded", "Limits",
    "LoopEnded", "NotOwner", "OperationStats", "Owner", "Ownership", "PlainValueRefused", "Pruned", "RedisCache",
    "RedisIndexConfig", "RedisLLMCache", "RedisSaver", "RedisSaverError", "RedisStore", "ReplicationTimeout",
    "StaleParent", "Stats", "StillNeeded", "StoreBusy", "StoreDamaged", "StrictSerializer", "ThreadBusy",
    "ThreadDamaged", "ThreadInfo", "ThreadMigrationError", "ThreadNotFound", "ThreadsPatched", "TierStats",
    "TieredSaver", "TieredStore", "TieredThreadInfo", "UnsupportedFormat", "UnsupportedServer", "ValueChanged",
    "VersionInfo", "VersionedItem", "VersionedSearchItem", "WriteInfo", "__version__", "cache_key",
]  # fmt: skip
