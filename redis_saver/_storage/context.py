"""What every operation needs to know of the saver it works for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias

from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._common.limits import Limits
from redis_saver._common.names import Keyspace
from redis_saver._common.ttl import Expiry
from redis_saver._storage.chunk_cache import ChunkCache
from redis_saver._storage.compression import Compression

Counted: TypeAlias = "Callable[[Generator[Any, Any, Any], str], Generator[Any, Any, Any]]"
"""Returns an operation that is counted under a name (`Counting.call`)."""


class Context(NamedTuple):
    """A saver on one server, as its operations see it."""

    serde: SerializerProtocol
    keyspace: Keyspace
    expiry: Expiry
    compression: Compression | None
    require_encryption: bool
    """Whether plain values are refused (`encryption.py`)."""
    chunk_cache: ChunkCache
    limits: Limits
    keep_last: int | None = None
    """How many checkpoints of a namespace are kept; None: all."""
    counted: Counted = lambda operation, _: operation
    requires_owner: bool = False
    """Whether a thread that somebody owns takes no writes without a token."""
    refuses_forks: bool = False
    """Whether a loop's checkpoint is refused if its parent is not the newest any more."""


def default_ttl(context: Context) -> int | bytes:
    """The saver's TTL as scripts take it: milliseconds, or nothing."""
    return context.expiry.milliseconds or b""


def refresh_arguments(context: Context) -> tuple[bytes, int | bytes]:
    """Whether reading moves the deadline, and the saver's TTL, as reading scripts take them."""
    return (b"1" if context.expiry.refresh_on_read else b"0"), default_ttl(context)
