"""Savers of other packages on Redis and Valkey, as sources. Their keys are read directly.

Their own classes lose things: the pending writes of a named checkpoint, and some threads of a server. `redis_documents`
and `valkey_saver` know what each of them stores: how its keys are found, what they hold of a thread, and how a
checkpoint is read.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver._checkpoint.comparing import Record, Task, record
from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._client.base import RedisDriver
from redis_saver._common import config, names
from redis_saver._common.display import shown
from redis_saver._engine.requests import Batch, Command, Operation, Stream, T
from redis_saver._migrate.endpoints import Entry, Source, TaskInfo, ThreadOutline, is_sound
from redis_saver._storage.opaque import OpaqueSerializer
from redis_saver.errors import EndpointError

COMMANDS_PER_BATCH, VALUES_PER_BATCH = 500, 20
"""Maximum number of commands per batch, and of commands whose replies may be long."""


class ThreadKey(NamedTuple):
    """A key that belongs to a thread."""

    thread: str
    key: bytes
    prefix: str | None
    """Beginning of the key of a checkpoint, without the separator. It is None for a key of something else."""


class ThreadKeys:
    """Any number of keys by thread, in a temporary SQLite file, which is removed with this object."""

    def __init__(self, keys: Iterable[ThreadKey]) -> None:
        """Keep keys. A repeated key is kept once."""
        sqlite3 = import_module("sqlite3")  # some Pythons are built without it
        self._rows = sqlite3.connect("", check_same_thread=False)
        weakref.finalize(self, self._rows.close)
        self._rows.execute(
            "CREATE TABLE keys (thread BLOB, name BLOB, is_own INT, PRIMARY KEY (thread, name)) WITHOUT ROWID"
        )
        self.prefixes: dict[str, int] = {}
        """Number of checkpoints by prefix."""
        for key in keys:
            row = names.encode(key.thread), key.key, key.prefix is not None
            new = self._rows.execute("INSERT OR IGNORE INTO keys VALUES (?, ?, ?)", row).rowcount
            if key.prefix is not None:
                self.prefixes[key.prefix] = self.prefixes.get(key.prefix, 0) + new

    def threads(self) -> Iterator[str]:
        """Iterate over the names of the threads that have a checkpoint."""
        for (thread,) in self._rows.execute("SELECT DISTINCT thread FROM keys WHERE is_own"):
            yield names.decode(thread)

    def of(self, thread: str) -> list[bytes]:
        """Return the keys of a thread."""
        rows = self._rows.execute("SELECT name FROM keys WHERE thread = ?", (names.encode(thread),))
        return [key for (key,) in rows]


class Place(NamedTuple):
    """A checkpoint's parent, keys and tasks."""

    parent: str | None
    keys: tuple[bytes, ...]
    """Key of the checkpoint, then those of its pending writes."""
    tasks: Mapping[Task, TaskInfo]


class ForeignSource(Source):
    """A saver of another package. It finds all its keys on first use, and does not see later ones."""

    kind: ClassVar[str]
    """Name of the package, also in URLs."""
    refusals: tuple[type[Exception], ...] = (*Source.refusals, AttributeError, RecursionError)
    """Also errors of documents of other programs, which may have any form and any depth."""

    def __init__(self, driver: RedisDriver, serde: SerializerProtocol, name: str, prefix: str | None) -> None:
        """Use a driver. The caller closes its client.

        Args:
            driver: Driver of the server, which is only read.
            serde: Serializer that decodes values. See `decode`.
            name: Name of the server in messages, without a password.
            prefix: Beginning of the keys. None accepts any, if all checkpoints have the same.
        """
        self.failures, self.name = driver.failures, name
        self.driver, self.prefix = driver, prefix
        self._serde = self._given_serde = serde
        self._keys: ThreadKeys | None = None
        self._places: tuple[str, Mapping[CheckpointKey, Place]] = ("", {})
        """The last thread, and its checkpoints."""

    def decode(self, *, objects: bool) -> None:
        """Decode values to objects, for a saver that takes objects, or leave them packed."""
        self._serde = _with_objects(self._given_serde) if objects else self._given_serde

    def threads(self) -> Iterable[str]:
        """Iterate over the names of all threads."""
        with self.doing("the threads"):
            yield from self._known().threads()

    def _known(self) -> ThreadKeys:
        if self._keys is None:
            stream = self.driver.stream(self.scan())
            keys = ThreadKeys(key for key in stream if None in (self.prefix, key.prefix) or key.prefix == self.prefix)
            if len(keys.prefixes) > 1:
                counts = ", ".join(f"{shown(prefix)} ({count:,})" for prefix, count in sorted(keys.prefixes.items()))
                raise EndpointError(
                    f"{self.name} has checkpoints with several prefixes: {counts}. Say which to move: --source-prefix, "
                    "or prefix= of opened()"
                )
            self._keys = keys
        return self._keys

    def outline(self, thread: str) -> ThreadOutline:
        """Return the outline of a thread."""
        with self.doing("it"):
            places = self.driver.run(self.survey(thread, self._known().of(thread)))
            for key, place in places.items():
                if not isinstance(place.parent, str | None):
                    raise TypeError(f"the parent of checkpoint {shown(key[1])} is {shown(place.parent)}")
        self._places = thread, places
        return {key: Entry(place.parent, place.tasks) for key, place in places.items()}

    def records(self, thread: str, wanted: Mapping[CheckpointKey, Entry]) -> Iterator[Record]:
        """Iterate over the wanted checkpoints."""
        if self._places[0] != thread:
            self.outline(thread)
        places = self._places[1]
        for key in wanted:
            if (place := places.get(key)) is None:
                continue
            with self.doing(f"checkpoint {shown(key[1])} of namespace {shown(key[0])}"):
                checkpoint_tuple = self.driver.run(self.read(thread, key, place))
                if checkpoint_tuple is None:
                    continue
                saved = record(checkpoint_tuple, {task: info.path for task, info in place.tasks.items()})
                if not is_sound(saved.checkpoint, saved.metadata):
                    raise ValueError("it has not the form of a checkpoint with its metadata")
            yield saved

    @staticmethod
    @abstractmethod
    def scan() -> Stream[ThreadKey]:
        """Find the keys of the saver by SCAN."""

    @abstractmethod
    def survey(self, thread: str, keys: Sequence[bytes]) -> Operation[Mapping[CheckpointKey, Place]]:
        """Find the checkpoints of a thread, except those that are gone."""

    @abstractmethod
    def read(self, thread: str, key: CheckpointKey, place: Place) -> Operation[CheckpointTuple | None]:
        """Read a checkpoint with its pending writes. Return None if it is gone."""


def _with_objects(serde: SerializerProtocol) -> SerializerProtocol:
    """Return a serializer that makes objects instead of leaving them packed."""
    if isinstance(serde, OpaqueSerializer):
        return JsonPlusSerializer()
    if isinstance(serde, EncryptedSerializer):
        return EncryptedSerializer(serde.cipher, _with_objects(serde.serde))
    return serde


def of_type(keys: Sequence[bytes], kind: bytes) -> Operation[list[bytes]]:
    """Select the keys of a type."""
    types = yield from batched([Command(("TYPE", key)) for key in keys])
    return [key for key, reply in zip(keys, types, strict=True) if raw(reply) == kind]


def raw(reply: bytes | str) -> bytes:
    """Return a reply as bytes, even if the client decodes replies."""
    return reply.encode() if isinstance(reply, str) else reply


def batched(commands: Sequence[Command]) -> Operation[list[Any]]:
    """Send any number of commands, and return their replies."""
    replies = list[Any]()
    for start in range(0, len(commands), COMMANDS_PER_BATCH):
        replies += yield Batch(commands[start : start + COMMANDS_PER_BATCH])
    return replies


def summarized(command: str, keys: Sequence[bytes], summary: Callable[[Any], T]) -> Operation[list[T]]:
    """Read long values, a few at a time, and keep only a summary of each."""
    summaries = list[T]()
    for start in range(0, len(keys), VALUES_PER_BATCH):
        some = keys[start : start + VALUES_PER_BATCH]
        summaries += map(summary, (yield Batch([Command((command, key)) for key in some])))  # no name keeps the replies
    return summaries


def as_tuple(
    thread: str,
    key: CheckpointKey,
    parent: str | None,
    checkpoint: Any,
    metadata: Any,
    writes: list[tuple[Any, Any, Any]],
) -> CheckpointTuple:
    """Return a checkpoint as savers return it.

    Raises:
        ValueError: A task or a channel has no name.
    """
    if not all(isinstance(task, str) and isinstance(channel, str) for task, channel, _ in writes):
        raise ValueError("a pending write has no task, or no channel")
    under = config.to_config(thread, key[0], parent) if parent else None
    return CheckpointTuple(config.to_config(thread, *key), checkpoint, metadata, under, writes)
