"""The settings of a saver or store, as its operations see them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._common.limits import Limits
from redis_saver._common.names import Keyspace
from redis_saver._common.ttl import Expiry
from redis_saver._serde.comparing import ValueCheck
from redis_saver._serde.cutter import PUBLIC, Gear
from redis_saver._storage.chunk_cache import ChunkCache
from redis_saver._storage.chunks import Digests, digest
from redis_saver._storage.compression import Compression
from redis_saver._storage.keys import DataKeys
from redis_saver._storage.sealing import PLAIN, Cipher, digests_of
from redis_saver.errors import NotEncrypted

Counted: TypeAlias = "Callable[[Generator[Any, Any, Any], str], Generator[Any, Any, Any]]"
"""Returns an operation that is counted under a name (`Counting.call`)."""


class Context(NamedTuple):
    """A saver on one server, or the part of a store that packs values, as operations see it."""

    serde: SerializerProtocol
    keyspace: Keyspace
    expiry: Expiry
    compression: Compression | None
    chunk_cache: ChunkCache
    limits: Limits
    keep_last: int | None = None
    """Number of checkpoints that a namespace keeps. None: all."""
    counted: Counted = lambda operation, _: operation
    """Counts an operation within another one, such as a trim, under its own name in `stats()`."""
    requires_owner: bool = False
    """True if a write without a token to an owned thread is refused."""
    refuses_forks: bool = False
    """True if a loop's checkpoint is refused when its parent is no longer the newest."""
    check_values: ValueCheck | None = None
    """Checks if new values come back equal."""
    data_keys: DataKeys | None = None
    """The data keys of threads, with `encryption=`."""
    cipher: Cipher | None = None
    """The cipher of the operation's thread. None: the saver does not encrypt, or there is no such thread."""
    reads_plain_threads: bool = False
    """True for commands and migrations: they also read threads that are not encrypted, in spite of `encryption=`."""
    digest: Digests = digest
    """Names chunks: with a cipher, by its keyed digest."""
    gear: Gear = PUBLIC
    """Says where values are cut: with a cipher, by its own numbers."""

    def with_cipher(self, cipher: Cipher | None) -> Context:
        """Return the context of an operation on the thread with this cipher."""
        if cipher is None:
            return self._replace(cipher=None, digest=digest, gear=PUBLIC)
        return self._replace(cipher=cipher, digest=cipher.digest, gear=cipher.gear)

    def note_writes(self, ns: str, checkpoint_id: str, writes: Iterable[Sequence[Any]]) -> None:
        """Note which tasks have pending writes on a checkpoint, for the header of its child, if the saver encrypts."""
        if self.cipher is not None and self.data_keys is not None:
            self.data_keys.note_writes(self.cipher, ns, checkpoint_id, digests_of(writes))

    def opener(self) -> Cipher | None:
        """Return the cipher that opens stored records, or None if they are plain.

        Raises:
            NotEncrypted: The saver encrypts, but the thread is plain.
        """
        if self.data_keys is not None and self.cipher is None and not self.reads_plain_threads:
            raise NotEncrypted(PLAIN)
        return self.cipher


def default_ttl(context: Context) -> int | bytes:
    """Return the saver's TTL as scripts take it, in milliseconds or empty."""
    return context.expiry.milliseconds or b""


def refresh_arguments(context: Context) -> tuple[bytes, int | bytes]:
    """Return the arguments of reading scripts that move the deadline: a flag, and the saver's TTL."""
    return (b"1" if context.expiry.refresh_on_read else b"0"), default_ttl(context)
