"""LangGraph checkpoints on plain Redis or Valkey."""

from redis_saver.checkpoint.aio import AsyncRedisSaver
from redis_saver.checkpoint.checking import CheckReport
from redis_saver.checkpoint.inventory import Finding
from redis_saver.checkpoint.pruning import Pruned
from redis_saver.checkpoint.sync import RedisSaver
from redis_saver.checkpoint.threads import ThreadInfo
from redis_saver.errors import (
    BacklogFull,
    BacklogWarning,
    CalledOnEventLoop,
    ClusterMoving,
    DecodeError,
    EncodeError,
    ForkMissed,
    KeyConflict,
    LimitExceeded,
    PlainValueRefused,
    RedisSaverError,
    ReplicationTimeout,
    ThreadBusy,
    ThreadDamaged,
    ThreadNotFound,
    UnsupportedFormat,
    UnsupportedServer,
)
from redis_saver.limits import Limits
from redis_saver.tiered.aio import AsyncTieredSaver
from redis_saver.tiered.sync import TieredSaver

__all__ = [
    "AsyncRedisSaver",
    "AsyncTieredSaver",
    "BacklogFull",
    "BacklogWarning",
    "CalledOnEventLoop",
    "CheckReport",
    "ClusterMoving",
    "DecodeError",
    "EncodeError",
    "Finding",
    "ForkMissed",
    "KeyConflict",
    "LimitExceeded",
    "Limits",
    "PlainValueRefused",
    "Pruned",
    "RedisSaver",
    "RedisSaverError",
    "ReplicationTimeout",
    "ThreadBusy",
    "ThreadDamaged",
    "ThreadInfo",
    "ThreadNotFound",
    "TieredSaver",
    "UnsupportedFormat",
    "UnsupportedServer",
]
