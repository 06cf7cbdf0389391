"""LangGraph checkpoints on plain Redis or Valkey."""

from redis_saver.aio import AsyncRedisSaver
from redis_saver.checking import CheckReport
from redis_saver.errors import (
    BacklogFull,
    BacklogWarning,
    ClusterMoving,
    ForeignKey,
    ForkMissed,
    LimitExceeded,
    NotReplicated,
    PlainValueRefused,
    RedisSaverError,
    ServerTooOld,
    ThreadBusy,
    ThreadDamaged,
    ThreadNotFound,
    UndecodableValue,
    UnserializableValue,
    WrongThread,
)
from redis_saver.inventory import Finding
from redis_saver.limits import Limits
from redis_saver.pruning import Pruned
from redis_saver.sync import RedisSaver
from redis_saver.threads import ThreadInfo
from redis_saver.tiers.aio import AsyncTieredSaver
from redis_saver.tiers.sync import TieredSaver

__all__ = [
    "AsyncRedisSaver",
    "AsyncTieredSaver",
    "BacklogFull",
    "BacklogWarning",
    "CheckReport",
    "ClusterMoving",
    "Finding",
    "ForeignKey",
    "ForkMissed",
    "LimitExceeded",
    "Limits",
    "NotReplicated",
    "PlainValueRefused",
    "Pruned",
    "RedisSaver",
    "RedisSaverError",
    "ServerTooOld",
    "ThreadBusy",
    "ThreadDamaged",
    "ThreadInfo",
    "ThreadNotFound",
    "TieredSaver",
    "UndecodableValue",
    "UnserializableValue",
    "WrongThread",
]
