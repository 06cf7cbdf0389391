"""What this process knows of the threads it works on: values in chunks, newest checkpoints, and histories of `DeltaChannel`s.

It saves bytes and time. `put` leaves out the chunks that the server has, and `get_tuple` names what it need not be told again.

A thread has a tag, which each put sets anew at random, and which goes when something is removed or replaced. So what was put or
read under a tag is stored as long as the server has this tag (`lua/lib/common_case.lua` has the proof), or one that own puts set,
each on the one before: a chain. What is known from before the chain was broken, by a put of another process, is only believed. A
script looks for it, and `put` sends it if it is gone. All of it may be forgotten at any time.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from redis_saver._common import config, forks
from redis_saver._serde.elements import snapshot_start
from redis_saver._storage.chunks import Stored, head_of, right_edge

if TYPE_CHECKING:
    from redis_saver._storage.histories import KnownPoint

CACHE_BYTES = 64 * 2**20
"""Bytes that are remembered at the most, of all threads of a saver together."""

_OVERHEAD = 150
"""Bytes that Python takes for a chunk beside its own."""


class Version:
    """A version of a value that is in chunks."""

    __slots__ = ("chain", "field", "size", "stored")

    def __init__(self, field: bytes, stored: Stored) -> None:
        """Note where it is stored, and how."""
        self.chain: int = 0
        """The chain of puts under which it is known to be stored."""
        self.field: bytes = field
        self.stored: Stored = stored
        # The field is made of the namespace and the channel, by which it is found.
        self.size: int = stored.size + (len(stored.chunks) + 2) * _OVERHEAD + 2 * len(field)
        """The memory it takes, about."""
        if stored.elements:
            self.size += stored.elements.size

    def right_edge(self) -> list[bytes]:
        """The chunks to name to the server: with what is below them, all but what a growing value is likely to change."""
        if self.stored.levels:
            return right_edge(self.stored.levels)
        return [self.field] if self.field else []

    def is_snapshot(self) -> bool:
        """Whether it is a `_DeltaSnapshot`: of such a channel few checkpoints have a value, and the ones behind them rely on it."""
        return bool(self.stored.levels and snapshot_start(head_of(self.stored)))


def names_version(field: bytes, chunk: bytes) -> Version:
    """The chunk with the names of a checkpoint, as a version of None."""
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
"""A namespace and a channel. The channel None stands for the names of the last checkpoint, and says that no other channel
of that namespace was in chunks."""
Cached: TypeAlias = Mapping[ChannelKey, Version]
Update: TypeAlias = "Mapping[ChannelKey, Version | None]"
"""The same, as it is learned; None: it is not in chunks any more."""

POINTS_PER_NAMESPACE = 3
"""Below so many checkpoints of a namespace histories are remembered: branches that are used in turns."""
NAMESPACES_PER_THREAD = 16
"""In so many namespaces of a thread. Each call of a subgraph has one of its own, and most are never asked for again."""


class KnownCheckpoint:
    """A checkpoint that was put or read: its header and its values as they are stored."""

    __slots__ = ("chain", "field", "header", "names_chunk", "size", "values")

    def __init__(self, field: bytes, header: bytes, names_chunk: bytes, values: Mapping[bytes, bytes | None]) -> None:
        """Note what is stored.

        Args:
            field: The checkpoint's field.
            header: Its header.
            names_chunk: The field of the chunk with its names.
            values: What is stored in the fields of its values, in the order of its channels. None: nothing is. Empty: what it is is not known.
        """
        self.chain: int = 0
        """The chain of puts under which all of it is known to be stored."""
        self.field: bytes = field
        self.header: bytes = header
        """Nothing if not all values are known."""
        self.names_chunk: bytes = names_chunk
        self.values: Mapping[bytes, bytes | None] = values
        its_bytes = sum([len(value) for value in values.values() if value])
        if its_bytes + len(header) > MAX_KNOWN_BYTES:
            its_bytes, self.values = 0, {name: value and b"" for name, value in values.items()}
        if b"" in self.values.values():
            self.header = b""
        self.size: int = len(self.header) + its_bytes + sum(map(len, values)) + _STRING * (2 + 2 * len(values))
        """Bytes of memory, about."""


MAX_KNOWN_BYTES = 100_000
"""Of a checkpoint with more bytes beside its chunks the header and the values are not remembered, but where there are some."""
_STRING = 40
"""Bytes that Python takes for a byte string beside its own."""
_chains = itertools.count(1)


class KnownThread(NamedTuple):
    """What is known of a thread."""

    versions: Cached = {}  # noqa: RUF012 - never changed
    points: Mapping[str, tuple[KnownPoint, ...]] = {}
    """By namespace, that which was used last behind the others."""
    checkpoints: Mapping[str, KnownCheckpoint] = {}
    """By namespace, that which was put or read last."""
    tag: bytes = b""
    """The thread's tag when it was put to or read last, or nothing."""
    chain: int = 0
    """The chain of puts that this tag belongs to."""

    @property
    def size(self) -> int:
        """Bytes of memory, about. What versions and histories both have is counted once."""
        whole = sum([checkpoint.size for checkpoint in self.checkpoints.values()])
        if not self.points:
            return whole + sum([version.size for version in self.versions.values()])
        seeds = {
            id(history.version): history.version
            for points in self.points.values()
            for point in points
            for history in point.histories.values()
            if history.version is not None
        }
        seeds.update((id(version), version) for version in self.versions.values())
        own = sum(point.size for points in self.points.values() for point in points)
        return whole + own + sum(version.size for version in seeds.values())

    def follows_history(self, place: ChannelKey) -> bool:
        """Whether a history of the channel is known: then its stored value is in few of the checkpoints."""
        return any(place[1] in point.histories for point in self.points.get(place[0], ()))


NOTHING = KnownThread()


def fields_in(cached: Cached) -> frozenset[bytes]:
    """The fields of all chunks of a thread that the server is believed to have."""
    return frozenset().union(*[version.stored.chunks for version in cached.values()])


class ChunkCache:
    """The last versions of values in chunks, and histories, of the threads used last."""

    kind: ClassVar[str] = "remembered"

    def __init__(self, limit: int) -> None:
        """Remember so many bytes at the most.

        Raises:
            ValueError: The limit is no number of bytes.
        """
        config.number("cache_bytes", limit, 0, whole=True)
        self._limit = limit
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Begin with nothing: an OS thread that is not in the child may have been in the middle of a change."""
        self._hits = self._misses = 0
        self._threads: OrderedDict[bytes, KnownThread] = OrderedDict()
        self._sizes: dict[bytes, int] = {}
        self._size = 0
        self._lock = threading.Lock()

    def of(self, thread: bytes) -> KnownThread:
        """What is remembered of a thread, by the key of its data. It stays what it is: `remember` puts another in its place."""
        with self._lock:
            known = self._threads.get(thread)
            if known is None:
                self._misses += 1
                return NOTHING
            self._hits += 1
            return known

    def numbers(self) -> dict[str, Any]:
        """The fields of `RedisStats` about it. A look at a thread (`of`) is a hit where something of it is remembered."""
        return {"cache_bytes": self._size, "cache_hits": self._hits, "cache_misses": self._misses}

    def points_of(self, thread: bytes, ns: str) -> tuple[KnownPoint, ...]:
        """The checkpoints of a namespace below which histories are remembered."""
        with self._lock:
            return self._threads.get(thread, NOTHING).points.get(ns, ())

    def remember(
        self,
        thread: bytes,
        seen: Update,
        ns: str = "",
        checkpoint: KnownCheckpoint | None = None,
        before: bytes = b"",
        tag: bytes | None = None,
    ) -> None:
        """Add what was just seen of a thread; forgets the threads not used for longest where it becomes too much.

        A snapshot, or a version of a channel with a history, stays until there is another one, whether or not the last checkpoint has it.

        Args:
            thread: The thread, by the key of its data.
            seen: Versions of its values.
            ns: The namespace of the checkpoint that these are of.
            checkpoint: That checkpoint; None if it is not to be remembered.
            before: The tag that a put found, and a read.
            tag: The tag that it left; None if it says nothing of what is stored.
        """
        with self._lock:
            known = self._threads.get(thread, NOTHING)
            if tag is not None:
                known = known._replace(tag=tag, chain=known.chain if before and before == known.tag else next(_chains))
                for version in seen.values():
                    if version is not None:
                        version.chain = known.chain
            checkpoints = known.checkpoints
            if checkpoint is not None and checkpoints.get(ns) is not checkpoint:
                checkpoints = {name: of for name, of in checkpoints.items() if name != ns}
                checkpoints[ns] = checkpoint
                if len(checkpoints) > NAMESPACES_PER_THREAD:
                    del checkpoints[next(iter(checkpoints))]
            if checkpoint is not None and checkpoint.chain != known.chain:
                checkpoint.chain = known.chain
                for place, version in known.versions.items():
                    if place[0] == ns and checkpoint.values.get(version.field) is not None:
                        version.chain = known.chain
            self._store(thread, known._replace(versions=_updated(known, seen), checkpoints=checkpoints))

    def remember_history(
        self, thread: bytes, ns: str, point: KnownPoint, used: Collection[bytes], seen: Update
    ) -> None:
        """Remember histories of a namespace of a thread, and what was seen on the way.

        Args:
            thread: The thread, by the key of its data.
            ns: The namespace.
            point: The histories.
            used: The checkpoints that these go on from: what is known below them is forgotten, as this takes its place.
            seen: As `remember` takes it.
        """
        with self._lock:
            known = self._threads.get(thread, NOTHING)
            others = [
                one
                for one in known.points.get(ns, ())
                if one.checkpoint_id != point.checkpoint_id and one.checkpoint_id not in used
            ]
            points = {name: of for name, of in known.points.items() if name != ns}
            points[ns] = (*others, point)[-POINTS_PER_NAMESPACE:]
            if len(points) > NAMESPACES_PER_THREAD:
                del points[next(name for name in points if name)]  # the root stays, which is asked for each run
            known = known._replace(points=points)
            self._store(thread, known._replace(versions=_updated(known, seen)))

    def _store(self, thread: bytes, known: KnownThread) -> None:
        self._drop(thread)
        if not known.versions and not known.points and not known.checkpoints:
            return
        self._threads[thread] = known
        size = len(thread) + known.size
        self._size += size
        self._sizes[thread] = size
        while self._size > self._limit:
            self._drop(next(iter(self._threads)))

    def forget(self, thread: bytes) -> None:
        """Forget a thread."""
        with self._lock:
            self._drop(thread)

    def _drop(self, thread: bytes) -> None:
        self._threads.pop(thread, None)
        self._size -= self._sizes.pop(thread, 0)


def _updated(known: KnownThread, seen: Update) -> Cached:
    versions = dict(known.versions)
    for place, version in seen.items():
        if version is not None:
            versions[place] = version
        elif place in versions and not (known.follows_history(place) or versions[place].is_snapshot()):
            del versions[place]
    return versions
