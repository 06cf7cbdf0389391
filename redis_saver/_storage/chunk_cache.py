"""The chunk cache: this process's memory of threads, with chunks, newest checkpoints and histories of `DeltaChannel`s.

It saves bytes and time. Any entry may be evicted at any time.

- `put` leaves out the chunks that it expects on the server.
- `get_tuple` names the checkpoint and the chunks that this process has.
- Each run reads a history once, and between two runs the history grows a little. So the request names a known point. If
  nothing older has changed, the script (`lua/checkpoint/history.lua`) returns only the newer part.

The cache holds stored bytes. Each read decodes them again.

Each put gives its thread a new random tag, and any script that removes or replaces data deletes it. While the server
has the tag that this process put or read last, everything that the process knows is stored (`lua/lib/put_known.lua` has
the proof). Puts of this process, each on the tag of the one before, form a chain. A put of another process breaks the
chain. Then the process is no longer sure of what it learned before: the script checks it, and `put` sends what is
missing.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

from redis_saver._common import config, forks
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._serde.msgpack import SNAPSHOT, ext_start
from redis_saver._storage.chunks import Stored, Write, head_of, right_edge

CACHE_BYTES = 64 * 2**20
"""Default limit of a saver's chunk cache in bytes."""

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
        self.chain: int = 0
        """The chain of puts that proves that it is stored."""
        self.field: bytes = field
        self.stored: Stored = stored
        # Its key, the namespace and the channel, is about as long as the field.
        self.size: int = stored.size + (len(stored.chunks) + 2) * _CHUNK + 2 * len(field)
        """Estimated memory in bytes."""
        if stored.fingerprint:
            self.size += stored.fingerprint.size

    @classmethod
    def of_names(cls, field: bytes, chunk: bytes) -> Version:
        """Return a version of the channel None that has the names chunk of a checkpoint."""
        return cls(field, Stored(b"", {field: chunk}, size=len(chunk)))

    @classmethod
    def of_writes(cls, chunks: Mapping[bytes, bytes], last: Version | None) -> Version:
        """Return the version of `WRITTEN` with the chunks of `last` and these."""
        known = {**last.stored.chunks, **chunks} if last else chunks
        kept = dict(list(known.items())[-MAX_WRITTEN:])
        return cls(b"", Stored(b"", kept, size=sum(map(len, kept.values()))))

    def right_edge(self) -> list[bytes]:
        """Return the chunks that a request names as known. A list also stands for the chunks below it."""
        if self.stored.levels:
            return right_edge(self.stored.levels)
        return [self.field] if self.field else []

    def is_snapshot(self) -> bool:
        """True for a `_DeltaSnapshot`. Later checkpoints have no value of their own and rely on it."""
        return bool(self.stored.levels and ext_start(SNAPSHOT, head_of(self.stored)))


WRITTEN = "pending writes"
"""A pseudo channel. Its version has the chunks of the pending writes since the namespace was last read."""
MAX_WRITTEN = 2000
"""Maximum number of these chunks. The oldest are forgotten first."""


ChannelKey: TypeAlias = "tuple[str, str | None]"
"""A namespace and a channel. The channel None stands for the names of the last checkpoint. If the names are cached, a
channel that is not cached has no chunks."""
Cached: TypeAlias = Mapping[ChannelKey, Version]
Update: TypeAlias = "Mapping[ChannelKey, Version | None]"
"""New versions. None means that the channel's value is no longer in chunks."""

POINTS_PER_NAMESPACE = 3
"""Maximum number of known points per namespace. Several branches may take turns."""
NAMESPACES_PER_THREAD = 16
"""Maximum number of cached namespaces per thread. Each call of a subgraph has its own, and few are read again."""


class KnownCheckpoint:
    """The header and the values of a checkpoint that was put or read, as they are stored."""

    __slots__ = ("chain", "field", "header", "names_chunk", "size", "values")

    def __init__(self, field: bytes, header: bytes, names_chunk: bytes, values: Mapping[bytes, bytes | None]) -> None:
        """Remember a checkpoint.

        Args:
            field: The checkpoint's field.
            header: Its header.
            names_chunk: The field of the chunk with its names.
            values: The contents of its values' fields, in the order of its channels. None means that there is no value.
                Empty means that the contents are not known.
        """
        its_bytes = sum(map(len, filter(None, values.values())))
        if its_bytes + len(header) > MAX_KNOWN_BYTES:
            its_bytes, values = 0, {field: value and b"" for field, value in values.items()}
        self.chain: int = 0
        """The chain of puts that proves that all of it is stored."""
        self.field: bytes = field
        self.header: bytes = b"" if b"" in values.values() else header
        """Empty if not all values are known."""
        self.names_chunk: bytes = names_chunk
        self.values: Mapping[bytes, bytes | None] = values
        self.size: int = len(self.header) + its_bytes + sum(map(len, values)) + _STRING * (2 + 2 * len(values))
        """Estimated memory in bytes."""


MAX_KNOWN_BYTES = 100_000
"""Size in bytes, without chunks, from which only the fields of a checkpoint's values are cached."""
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
    """A checkpoint whose histories are known, with the facts on which they depend. The script returned these facts."""

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
    """Estimated memory in bytes, without versions (`size_of`)."""


def size_of(histories: Mapping[str, History]) -> int:
    """Return the estimated memory of histories in bytes, without versions. O(n), so computed once."""
    return _HISTORY + sum(
        len(history.seed or b"") + sum([len(write.data) + _HISTORY for write in history.writes])
        for history in histories.values()
    )


class KnownThread(NamedTuple):
    """The cached data of one thread. `ChunkCache` replaces it instead of changing it."""

    versions: Cached = {}  # noqa: RUF012 - never changed
    points: Mapping[str, tuple[KnownPoint, ...]] = {}
    """Known points by namespace, the most recently used one last."""
    checkpoints: Mapping[str, KnownCheckpoint] = {}
    """By namespace, the checkpoint that was put or read last."""
    tag: bytes = b""
    """The thread's tag after the last put or read of this process, or empty."""
    chain: int = 0
    """The chain of puts that ends with this tag."""
    sent: bytes = b""
    """The random end of the tag that pending writes on their way to the server set, if there are some."""

    @property
    def newest_tag(self) -> bytes:
        """The tag that a put or pending writes name: that of the writes on their way, or the last one."""
        return self.sent or self.tag

    def of_namespace(self, ns: str) -> tuple[dict[ChannelKey, Version], dict[bytes, bytes]]:
        """Return the versions of a namespace, and their chunks."""
        versions, chunks = dict[ChannelKey, Version](), dict[bytes, bytes]()
        for key, version in self.versions.items():
            if key[0] == ns:
                versions[key] = version
                chunks.update(version.stored.chunks)
        return versions, chunks

    def holder(self, chunk: bytes) -> Version | None:
        """Return a version that has a chunk."""
        return next((version for version in self.versions.values() if chunk in version.stored.chunks), None)

    def wrote(self, fields: Sequence[Any]) -> bool:
        """True if pending writes have all chunks with these fields."""
        written = [version.stored.chunks for key, version in self.versions.items() if key[1] == WRITTEN]
        return all(any(field in chunks for chunks in written) for field in fields)

    def without_writes(self) -> KnownThread:
        """Return what is known without the chunks of pending writes."""
        return self._replace(versions={key: each for key, each in self.versions.items() if key[1] != WRITTEN})

    def size_of_points(self) -> int:
        """Return the estimated memory of histories in bytes, without versions that the thread has anyway."""
        points = [point for points in self.points.values() for point in points]
        seeds = [history.version for point in points for history in point.histories.values() if history.version]
        versions = {id(version): 0 for version in self.versions.values()}
        for version in seeds:
            versions.setdefault(id(version), version.size)
        return sum(point.size for point in points) + sum(versions.values())

    def follows_history(self, key: ChannelKey) -> bool:
        """True if a history of the channel is known. Then few checkpoints have a stored value of the channel."""
        return any(key[1] in point.histories for point in self.points.get(key[0], ()))

    def updated(self, seen: Update) -> Cached:
        """Return updated versions. Snapshots, and channels with a history, keep theirs until there is a new one."""
        versions = dict(self.versions)
        for key, version in seen.items():
            if version is not None:
                versions[key] = version
            elif key in versions and not (self.follows_history(key) or versions[key].is_snapshot()):
                del versions[key]
        return versions


NOTHING = KnownThread()


class ChunkCache:
    """Cached data of the most recently used threads.

    If two OS threads change a thread's data at the same time, one change may be lost. That does no harm.
    """

    kind: ClassVar[str] = "local_cache"

    def __init__(self, limit: int) -> None:
        """Make a cache of at most `limit` bytes.

        Raises:
            TypeError, ValueError: The limit is not a number of bytes.
        """
        config.number("cache_bytes", limit, 0, whole=True)
        self.is_on: bool = limit > 0
        self._threads: BoundedCache[bytes, KnownThread] = BoundedCache(max_bytes=limit)
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, count from zero."""
        self._hits = self._misses = 0

    def numbers(self) -> dict[str, Any]:
        """Return its fields of `Stats`. A lookup is a hit if it has anything of the thread."""
        return {"cache_bytes": self._threads.bytes, "cache_hits": self._hits, "cache_misses": self._misses}

    def of(self, thread: bytes) -> KnownThread:
        """Return the cached data of a thread. `thread` is the key of its data."""
        known = self._threads.get(thread)
        if known is None:
            self._misses += 1
            return NOTHING
        self._hits += 1
        return known

    def remember(
        self, thread: bytes, seen: Update, ns: str, checkpoint: KnownCheckpoint, before: bytes, tag: bytes
    ) -> None:
        """Remember what a put or a read has seen of a thread.

        OS threads need no lock: the last one sets the tag, and marks only what is stored under that tag.

        Args:
            thread: The key of the thread's data.
            seen: Versions of its values.
            ns: The namespace of the checkpoint that has them.
            checkpoint: That checkpoint.
            before: The thread's tag when the put or the read began.
            tag: The thread's tag after it.
        """
        known = self._threads.get(thread, NOTHING)
        chain, checkpoints = known.chain, known.checkpoints
        expected = before.endswith(known.sent) if known.sent else before == known.tag
        if not before or not (expected or before == tag == known.tag):
            chain = next(_chains)
        for version in seen.values():
            if version is not None:
                version.chain = chain
        if checkpoints.get(ns) is not checkpoint:
            checkpoints = dict(checkpoints)
            checkpoints.pop(ns, None)
            checkpoints[ns] = checkpoint
            if len(checkpoints) > NAMESPACES_PER_THREAD:
                del checkpoints[next(iter(checkpoints))]
        if checkpoint.chain != chain:
            checkpoint.chain = chain
            for key, version in known.versions.items():
                if key[0] == ns and checkpoint.values.get(version.field) is not None:
                    version.chain = chain
        sent = known.sent if tag == known.tag else b""
        self._store(thread, KnownThread(known.updated(seen), known.points, checkpoints, tag, chain, sent))

    def remember_versions(self, thread: bytes, seen: Update) -> None:
        """Remember versions that were read without their checkpoint. No tag proves that they are still stored."""
        known = self._threads.get(thread, NOTHING)
        self._store(thread, known._replace(versions=known.updated(seen)))

    def note_sent(self, thread: bytes, ns: str, chunks: Mapping[bytes, bytes], before: bytes, end: bytes) -> None:
        """Remember the chunks of pending writes that are about to be sent, so that a put need not send them, too.

        Args:
            thread: The key of the thread's data.
            ns: Their namespace.
            chunks: The chunks by field.
            before: The tag that proves those that are not sent. Empty: there is none.
            end: The end of the tag that the writes set. If a put comes first, the server has another tag, and the
                script checks everything.
        """
        known, key = self._threads.get(thread, NOTHING), (ns, WRITTEN)
        last = known.versions.get(key)
        version = Version.of_writes(chunks, last)
        version.chain = known.chain if before and (last is None or last.chain == known.chain) else 0
        known = known._replace(versions={**known.versions, key: version})
        self._store(thread, known._replace(sent=end) if before else known)

    def note_stored(self, thread: bytes, ns: str, before: bytes, end: bytes, tag: bytes) -> None:
        """Note that the call that sent pending writes has ended, so that no put waits for them any more.

        Args:
            thread: The key of the thread's data.
            ns: Their namespace.
            before: As `note_sent` took it.
            end: As `note_sent` took it.
            tag: The tag that proves their chunks. Empty: the thread had another one than `before`, or the call failed.
        """
        if (known := self._threads.get(thread)) is None:
            return
        if not tag and (version := known.versions.get((ns, WRITTEN))):
            version.chain = 0
        is_proven = tag and before and known.tag.endswith(before)
        sent = b"" if known.sent == end else known.sent
        self._store(thread, known._replace(tag=tag if is_proven else known.tag, sent=sent))

    def remember_history(
        self, thread: bytes, ns: str, point: KnownPoint, used: Collection[bytes], seen: Update
    ) -> None:
        """Remember histories of a namespace, and the versions that were read with them.

        Args:
            thread: The key of the thread's data.
            ns: The namespace.
            point: The histories.
            used: Ids of the known points that it continues and replaces.
            seen: As in `remember_versions`.
        """
        known = self._threads.get(thread, NOTHING)
        replaced = {point.checkpoint_id, *used}
        others = [other for other in known.points.get(ns, ()) if other.checkpoint_id not in replaced]
        points = {name: other for name, other in known.points.items() if name != ns}
        points[ns] = (*others, point)[-POINTS_PER_NAMESPACE:]
        if len(points) > NAMESPACES_PER_THREAD:
            del points[next(name for name in points if name)]  # not the root, which each run reads
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
