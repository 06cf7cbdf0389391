"""This process's memory of the threads it works on: values in chunks, newest checkpoints, histories of `DeltaChannel`s.

It saves bytes and time, and all of it may be forgotten at any time:

- `put` leaves out the chunks that it expects on the server.
- `get_tuple` names the checkpoint and the chunks that it already has.
- A history is asked for once per run, and grows a little each time. The request names a known point, and the script
  (`lua/checkpoint/history.lua`) answers what lies above it, if nothing below it has changed.

All of it is stored bytes: each answer is decoded anew.

A thread has a tag. Each put sets a new random one, and whatever removes or replaces something drops it. While the
server
has the tag that this process put or read last, all is stored that it knows from there: `lua/lib/put_known.lua` has the
proof. Own puts, each on the tag of the one before, form a chain, so what is known from before them stays true. A put of
another process breaks the chain. What is known from before a break is only expected: a script looks for it, and `put`
sends it if it is gone.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias

from redis_saver._common import config, forks
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._serde.elements import snapshot_start
from redis_saver._storage.chunks import Stored, Write, head_of, right_edge

CACHE_BYTES = 64 * 2**20
"""Default limit of the memory of all threads of a saver together, in bytes."""

_CHUNK = 150
"""Python's overhead for a chunk, in bytes."""
_STRING = 40
"""Python's overhead for a byte string, in bytes."""
_HISTORY = 600
"""Python's overhead for a history, and for each of its writes, in bytes."""


class Version:
    """A version of a value that is in chunks."""

    __slots__ = ("chain", "field", "size", "stored")

    def __init__(self, field: bytes, stored: Stored) -> None:
        """Take the value's field, and the value as it is stored."""
        self.chain: int = 0
        """The chain of puts under which it is known to be stored."""
        self.field: bytes = field
        self.stored: Stored = stored
        # The namespace and the channel, which are its key, are about as long as the field.
        self.size: int = stored.size + (len(stored.chunks) + 2) * _CHUNK + 2 * len(field)
        """About how many bytes of memory it takes."""
        if stored.elements and stored.elements.fingerprint:
            self.size += stored.elements.fingerprint.size

    def right_edge(self) -> list[bytes]:
        """Return the chunks to name to the server.

        They stand for all chunks except those that a growing value is likely to change.
        """
        if self.stored.levels:
            return right_edge(self.stored.levels)
        return [self.field] if self.field else []

    def is_snapshot(self) -> bool:
        """True for a `_DeltaSnapshot`. Few checkpoints of such a channel have a value, and later ones rely on it."""
        return bool(self.stored.levels and snapshot_start(head_of(self.stored)))


def names_version(field: bytes, chunk: bytes) -> Version:
    """The chunk with the names of a checkpoint, as a version of the channel None."""
    return Version(field, Stored(b"", {field: chunk}, size=len(chunk)))


WRITTEN = "__pregel_tasks, written"
"""A stand-in for a channel. Its version holds the chunks of the pending writes since the namespace was last read."""
MAX_WRITTEN = 2000
"""Maximum number of those chunks. The oldest are forgotten first."""


def written_version(chunks: Mapping[bytes, bytes], last: Version | None) -> Version:
    """The version of `WRITTEN` with these chunks, after the version `last`."""
    known = {**last.stored.chunks, **chunks} if last else chunks
    kept = dict(list(known.items())[-MAX_WRITTEN:])
    return Version(b"", Stored(b"", kept, size=sum(map(len, kept.values()))))


ChannelKey: TypeAlias = "tuple[str, str | None]"
"""A namespace and a channel. The channel None stands for the names of the last checkpoint; it also says that no other
channel of that namespace was in chunks."""
Cached: TypeAlias = Mapping[ChannelKey, Version]
Update: TypeAlias = "Mapping[ChannelKey, Version | None]"
"""New versions. None: the channel's value is not in chunks any more."""

POINTS_PER_NAMESPACE = 3
"""Maximum number of known points per namespace, for branches that take turns."""
NAMESPACES_PER_THREAD = 16
"""Maximum number of cached namespaces per thread. Each call of a subgraph has its own, and most are never read
again."""


class KnownCheckpoint:
    """A checkpoint that was put or read: its header and its values as they are stored."""

    __slots__ = ("chain", "field", "header", "names_chunk", "size", "values")

    def __init__(self, field: bytes, header: bytes, names_chunk: bytes, values: Mapping[bytes, bytes | None]) -> None:
        """Take what is stored.

        Args:
            field: The checkpoint's field.
            header: Its header.
            names_chunk: The field of the chunk with its names.
            values: The contents of its values' fields, in the order of its channels. None: there is no value. Empty:
                the contents are not known.
        """
        its_bytes = sum(map(len, filter(None, values.values())))
        if its_bytes + len(header) > MAX_KNOWN_BYTES:
            its_bytes, values = 0, {field: value and b"" for field, value in values.items()}
        self.chain: int = 0
        """The chain of puts under which all of it is known to be stored."""
        self.field: bytes = field
        self.header: bytes = b"" if b"" in values.values() else header
        """Empty if not all values are known."""
        self.names_chunk: bytes = names_chunk
        self.values: Mapping[bytes, bytes | None] = values
        self.size: int = len(self.header) + its_bytes + sum(map(len, values)) + _STRING * (2 + 2 * len(values))
        """About how many bytes of memory it takes."""


MAX_KNOWN_BYTES = 100_000
"""Of a larger checkpoint, without its chunks, only the names of its values are remembered."""
_chains = itertools.count(1)
_SIZE = operator.attrgetter("size")


class History(NamedTuple):
    """A channel's nearest stored value below a checkpoint, and the writes since."""

    seed: bytes | None
    """Contents of the value's field. None if no ancestor has a value."""
    version: Version | None
    """That value, if it is in chunks."""
    writes: tuple[Write, ...]
    """Oldest first."""


class KnownPoint(NamedTuple):
    """A checkpoint below which histories are known, and what they depend on, as the script answered it."""

    checkpoint_id: bytes
    """The checkpoint's id, escaped."""
    rewritten: bytes
    lowest: bytes
    """The lowest id that matters, escaped."""
    checkpoints: int
    """Number of checkpoints with ids from `lowest` to this one."""
    tasks: int
    """Number of tasks with writes on those checkpoints."""
    histories: Mapping[str, History]
    """By channel."""
    size: int
    """About how many bytes of memory it takes, without versions (`size_of`)."""


def size_of(histories: Mapping[str, History]) -> int:
    """About how many bytes of memory histories take, without versions. O(n), so it is computed once."""
    return _HISTORY + sum(
        len(history.seed or b"") + sum([len(write.data) + _HISTORY for write in history.writes])
        for history in histories.values()
    )


class KnownThread(NamedTuple):
    """The memory of one thread. It never changes: `ChunkCache` replaces it."""

    versions: Cached = {}  # noqa: RUF012 - never changed
    points: Mapping[str, tuple[KnownPoint, ...]] = {}
    """By namespace, the last used one last."""
    checkpoints: Mapping[str, KnownCheckpoint] = {}
    """By namespace, the checkpoint that was put or read last."""
    tag: bytes = b""
    """The thread's tag when it was put to or read last, or nothing."""
    chain: int = 0
    """The chain of puts that ends with this tag."""

    def size_of_points(self) -> int:
        """About how many bytes of memory histories take, without versions that the thread has anyway."""
        points = [point for points in self.points.values() for point in points]
        seeds = [history.version for point in points for history in point.histories.values() if history.version]
        versions = {id(version): 0 for version in self.versions.values()}
        for version in seeds:
            versions.setdefault(id(version), version.size)
        return sum(point.size for point in points) + sum(versions.values())

    def follows_history(self, key: ChannelKey) -> bool:
        """True if a history of the channel is known. Then few of the checkpoints have a stored value of it."""
        return any(key[1] in point.histories for point in self.points.get(key[0], ()))

    def updated(self, seen: Update) -> Cached:
        """Return the versions with new ones.

        A snapshot, or a channel with a history, keeps its version until the next.
        """
        versions = dict(self.versions)
        for key, version in seen.items():
            if version is not None:
                versions[key] = version
            elif key in versions and not (self.follows_history(key) or versions[key].is_snapshot()):
                del versions[key]
        return versions


NOTHING = KnownThread()


def fields_in(cached: Cached) -> frozenset[bytes]:
    """The fields of all chunks of a thread that the server should have."""
    return frozenset().union(*[version.stored.chunks for version in cached.values()])


class ChunkCache:
    """The memory of the threads that were used last.

    If two OS threads change the memory of a thread at once, one change may be lost, as if it had been forgotten.
    """

    kind: ClassVar[str] = "remembered"

    def __init__(self, limit: int) -> None:
        """Remember at most `limit` bytes.

        Raises:
            ValueError: The limit is not a number of bytes.
        """
        config.number("cache_bytes", limit, 0, whole=True)
        self._threads: BoundedCache[bytes, KnownThread] = BoundedCache(max_bytes=limit)
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Count from zero in the child."""
        self._hits = self._misses = 0

    def numbers(self) -> dict[str, Any]:
        """Its fields of `RedisStats`. A lookup of a thread (`of`) is a hit if anything of the thread is remembered."""
        return {"cache_bytes": self._threads.bytes, "cache_hits": self._hits, "cache_misses": self._misses}

    def of(self, thread: bytes) -> KnownThread:
        """The memory of a thread, by the key of its data."""
        known = self._threads.get(thread)
        if known is None:
            self._misses += 1
            return NOTHING
        self._hits += 1
        return known

    def remember(
        self,
        thread: bytes,
        seen: Update,
        ns: str = "",
        checkpoint: KnownCheckpoint | None = None,
        before: bytes = b"",
        tag: bytes | None = None,
    ) -> None:
        """Add what was just seen of a thread.

        Two OS threads need no lock. Whichever is last leaves a tag, and marks only what is stored under it.

        Args:
            thread: The thread, by the key of its data.
            seen: Versions of its values.
            ns: The namespace of the checkpoint that they belong to.
            checkpoint: That checkpoint. None: do not remember it.
            before: The thread's tag when the put or the read began.
            tag: The thread's tag after it. None: `seen` is not known to be stored.
        """
        known = self._threads.get(thread, NOTHING)
        chain, checkpoints = known.chain, known.checkpoints
        if tag is None:
            tag = known.tag
        else:
            if not before or before != known.tag:
                chain = next(_chains)
            for version in seen.values():
                if version is not None:
                    version.chain = chain
        if checkpoint is not None and checkpoints.get(ns) is not checkpoint:
            checkpoints = dict(checkpoints)
            checkpoints.pop(ns, None)
            checkpoints[ns] = checkpoint
            if len(checkpoints) > NAMESPACES_PER_THREAD:
                del checkpoints[next(iter(checkpoints))]
        if checkpoint is not None and checkpoint.chain != chain:
            checkpoint.chain = chain
            for key, version in known.versions.items():
                if key[0] == ns and checkpoint.values.get(version.field) is not None:
                    version.chain = chain
        self._store(thread, KnownThread(known.updated(seen), known.points, checkpoints, tag, chain))

    def remember_history(
        self, thread: bytes, ns: str, point: KnownPoint, used: Collection[bytes], seen: Update
    ) -> None:
        """Remember histories of a namespace of a thread, and what was seen on the way.

        Args:
            thread: The thread, by the key of its data.
            ns: The namespace.
            point: The histories.
            used: Ids of the known points that it continues, and so replaces.
            seen: As in `remember`.
        """
        known = self._threads.get(thread, NOTHING)
        replaced = {point.checkpoint_id, *used}
        others = [other for other in known.points.get(ns, ()) if other.checkpoint_id not in replaced]
        points = {name: other for name, other in known.points.items() if name != ns}
        points[ns] = (*others, point)[-POINTS_PER_NAMESPACE:]
        if len(points) > NAMESPACES_PER_THREAD:
            del points[next(name for name in points if name)]  # the root stays, because each run reads it
        known = known._replace(points=points)
        self._store(thread, known._replace(versions=known.updated(seen)))

    def _store(self, thread: bytes, known: KnownThread) -> None:
        if not (known.versions or known.points or known.checkpoints):
            self._threads.forget(thread)
            return
        size = len(thread) + sum(map(_SIZE, known.checkpoints.values())) + sum(map(_SIZE, known.versions.values()))
        self._threads.store(thread, known, size + (known.size_of_points() if known.points else 0))

    def forget(self, thread: bytes) -> None:
        """Forget a thread."""
        self._threads.forget(thread)
