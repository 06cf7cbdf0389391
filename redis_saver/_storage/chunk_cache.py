"""This process's memory of the threads it works on: values in chunks, version tables, and histories of `DeltaChannel`s.

It saves bytes and time, is never an answer by itself, and may be forgotten at any time:

- `put` leaves out the chunks that it expects on the server. If the thread expired, or was pruned, deleted or restored, the
  script refuses, and `put` sends them.
- `get_tuple` names the chunks that it already has. A chunk is named by its bytes, so a remembered one is never outdated.
- A history is asked for once per run, and grows a little each time. The request names a known point, and the script
  (`lua/checkpoint/history.lua`) answers what lies above it, if nothing below it has changed.

All of it is stored bytes: each answer is decoded anew.
"""

from __future__ import annotations

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

    __slots__ = ("field", "size", "stored")

    def __init__(self, field: bytes, stored: Stored) -> None:
        """Take the value's field, and the value as it is stored."""
        self.field: bytes = field
        self.stored: Stored = stored
        # The namespace and the channel, which are its key, are about as long as the field.
        self.size: int = stored.size + (len(stored.chunks) + 2) * _CHUNK + 2 * len(field)
        """About how many bytes of memory it takes."""
        if stored.elements:
            self.size += stored.elements.size

    def right_edge(self) -> list[bytes]:
        """The chunks to name to the server: they stand for all chunks except those that a growing value is likely to change."""
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
"""Maximum number of cached namespaces per thread. Each call of a subgraph has its own, and most are never read again."""
MAX_KNOWN_FIELDS = 64
"""Maximum number of channels of a known table. Naming more to the server takes longer than reading them from the header."""


class KnownTable(NamedTuple):
    """The version table of a checkpoint that was put or read: where its values are stored."""

    checkpoint: bytes
    """The checkpoint's field."""
    links: tuple[bytes, bytes, bytes]
    """Names, slots and tokens of its header. The same bytes stand for the same table."""
    fields: tuple[bytes, ...]
    """The fields of its values, in the order of the entries."""

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        strings = (self.checkpoint, *self.links, *self.fields)
        return len(b"".join(strings)) + _STRING * len(strings)


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


class _Thread(NamedTuple):
    versions: Cached = {}  # noqa: RUF012 - never changed
    points: Mapping[str, tuple[KnownPoint, ...]] = {}
    """By namespace, the last used one last."""
    tables: Mapping[str, KnownTable] = {}
    """By namespace, that of the checkpoint that was put or read last."""

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes. What versions and histories share counts once."""
        tables = sum([table.size for table in self.tables.values()])
        if not self.points:
            return tables + sum([version.size for version in self.versions.values()])
        points = [point for points in self.points.values() for point in points]
        seeds = [history.version for point in points for history in point.histories.values() if history.version]
        versions = {id(version): version.size for version in (*seeds, *self.versions.values())}
        return tables + sum(point.size for point in points) + sum(versions.values())

    def follows_history(self, key: ChannelKey) -> bool:
        """True if a history of the channel is known. Then few of the checkpoints have a stored value of it."""
        return any(key[1] in point.histories for point in self.points.get(key[0], ()))

    def updated(self, seen: Update) -> _Thread:
        """This thread with new versions. A snapshot, or a channel with a history, keeps its version until there is another."""
        versions = dict(self.versions)
        for key, version in seen.items():
            if version is not None:
                versions[key] = version
            elif key in versions and not (self.follows_history(key) or versions[key].is_snapshot()):
                del versions[key]
        return self._replace(versions=versions)


_NOTHING = _Thread()


def fields_in(cached: Cached) -> frozenset[bytes]:
    """The fields of all chunks of a thread that the server should have."""
    return frozenset().union(*[version.stored.chunks for version in cached.values()])


class ChunkCache:
    """The last versions, tables and histories of the threads used last.

    If two OS threads change the same thread at once, one change may be lost, as if it had been forgotten.
    """

    kind: ClassVar[str] = "remembered"

    def __init__(self, limit: int) -> None:
        """Remember at most `limit` bytes.

        Raises:
            ValueError: The limit is not a number of bytes.
        """
        config.number("cache_bytes", limit, 0, whole=True)
        self._threads: BoundedCache[bytes, _Thread] = BoundedCache(max_bytes=limit)
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Count from zero in the child."""
        self._hits = self._misses = 0

    def numbers(self) -> dict[str, Any]:
        """Its fields of `RedisStats`. A lookup of a thread (`of`) is a hit if anything of the thread is remembered."""
        return {"cache_bytes": self._threads.bytes, "cache_hits": self._hits, "cache_misses": self._misses}

    def of(self, thread: bytes) -> Cached:
        """The versions of a thread, by the key of its data. The mapping never changes: `remember` replaces it."""
        known = self._threads.get(thread)
        if known is None:
            self._misses += 1
            return _NOTHING.versions
        self._hits += 1
        return known.versions

    def table_of(self, thread: bytes, ns: str) -> KnownTable | None:
        """The version table of the checkpoint that was put or read last in a namespace."""
        return self._threads.get(thread, _NOTHING).tables.get(ns)

    def points_of(self, thread: bytes, ns: str) -> tuple[KnownPoint, ...]:
        """The checkpoints of a namespace below which histories are known."""
        return self._threads.get(thread, _NOTHING).points.get(ns, ())

    def remember(self, thread: bytes, seen: Update, ns: str = "", table: KnownTable | None = None) -> None:
        """Add what was just seen of a thread.

        Args:
            thread: The thread, by the key of its data.
            seen: Versions of its values.
            ns: The namespace of the checkpoint that they belong to.
            table: That checkpoint's version table.
        """
        known = self._threads.get(thread, _NOTHING)
        tables = known.tables
        if table is not None and tables.get(ns) is not table:
            tables = {name: other for name, other in tables.items() if name != ns}
            tables[ns] = table
            if len(tables) > NAMESPACES_PER_THREAD:
                del tables[next(iter(tables))]
        if tables is known.tables and known.versions and seen.items() <= known.versions.items():
            self._threads.renew(thread)
        else:
            self._store(thread, known.updated(seen)._replace(tables=tables))

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
        known = self._threads.get(thread, _NOTHING)
        replaced = {point.checkpoint_id, *used}
        others = [other for other in known.points.get(ns, ()) if other.checkpoint_id not in replaced]
        points = {name: other for name, other in known.points.items() if name != ns}
        points[ns] = (*others, point)[-POINTS_PER_NAMESPACE:]
        if len(points) > NAMESPACES_PER_THREAD:
            del points[next(name for name in points if name)]  # the root stays, because each run reads it
        self._store(thread, known._replace(points=points).updated(seen))

    def _store(self, thread: bytes, known: _Thread) -> None:
        if known.versions or known.points or known.tables:
            self._threads.store(thread, known, len(thread) + known.size)
        else:
            self._threads.forget(thread)

    def forget(self, thread: bytes) -> None:
        """Forget a thread."""
        self._threads.forget(thread)
