"""Other packages' savers on Redis and Valkey, as sources: their keys are read as they are.

Their own classes are not asked, because these lose things: pending writes of a checkpoint that is named, all threads of a server. What each of them
stores is in the module about it (`redis_documents`, `valkey_saver`): how its keys are found, what they say of a thread, and how a checkpoint is read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver._client.base import RedisDriver
from redis_saver._common import config
from redis_saver._common.display import shown
from redis_saver._engine.requests import Batch, Command, Operation, Stream, T
from redis_saver._migrate.endpoints import Endpoint
from redis_saver._migrate.records import Entry, Key, Record, Task, TaskInfo, ThreadOutline, is_sound, record
from redis_saver._migrate.thread_keys import ThreadKey, ThreadKeys
from redis_saver._storage.opaque import OpaqueSerializer
from redis_saver.errors import EndpointError

COMMANDS_PER_BATCH, VALUES_PER_BATCH = 500, 20
"""How many commands are sent at once, and how many of those whose replies may be long."""


class Place(NamedTuple):
    """What a thread has of a checkpoint, and where."""

    parent: str | None
    keys: tuple[bytes, ...]
    """Of the checkpoint, and then of its pending writes."""
    tasks: Mapping[Task, TaskInfo]


class ForeignSource(Endpoint):
    """A saver of another package. All its keys are found when it is first asked for something; what is new after that is not seen."""

    kind: ClassVar[str]
    """The package, as URLs name it."""
    refusals: tuple[type[Exception], ...] = (*Endpoint.refusals, AttributeError, RecursionError)
    """What a document that is none of the saver's may lead to: it may have any form, and any depth."""

    def __init__(self, driver: RedisDriver, serde: SerializerProtocol, name: str, prefix: str | None) -> None:
        """Use a driver. The caller closes its client.

        Args:
            driver: Of the server. It is only read.
            serde: What values are decoded with. See `decode`.
            name: The server's name in messages, without a password.
            prefix: The beginning of the keys; None: whatever it is.
        """
        self.failures: tuple[type[Exception], ...] = driver.failures
        self.name: str = name
        self.driver, self.prefix = driver, prefix
        self._serde = self._given_serde = serde
        self._keys: ThreadKeys | None = None
        self._places: tuple[str, Mapping[Key, Place]] = ("", {})
        """Of the thread that was asked for last."""

    def decode(self, *, objects: bool) -> None:
        """Have values decoded to objects, for a saver of the user's, which takes and answers these; or left packed, as `opened` leaves them."""
        self._serde = _with_objects(self._given_serde) if objects else self._given_serde

    def threads(self) -> Iterable[str]:
        """The threads there are."""
        with self.doing("the threads"):
            yield from self._known().threads()

    def _known(self) -> ThreadKeys:
        if self._keys is None:
            keys = self.driver.stream(self.scan())
            found = ThreadKeys(key for key in keys if None in (self.prefix, key.prefix) or key.prefix == self.prefix)
            self._check_prefixes(found.prefixes)
            self._keys = found
        return self._keys

    def _check_prefixes(self, prefixes: Mapping[str, int]) -> None:
        """Refuse checkpoints of several savers, if no prefix was named."""
        if len(prefixes) > 1:
            said = ", ".join(f"{shown(prefix)} ({count:,})" for prefix, count in sorted(prefixes.items()))
            raise EndpointError(
                f"{self.name} has checkpoints with several prefixes: {said}. Say which to move: --source-prefix, or prefix= of opened()"
            )

    def outline(self, thread: str) -> ThreadOutline:
        """What there is of a thread."""
        with self.doing("it"):
            places = self.driver.run(self.survey(thread, self._known().of(thread)))
            for key, place in places.items():
                if not isinstance(place.parent, str | None):
                    raise TypeError(f"the parent of checkpoint {shown(key[1])} is {shown(place.parent)}")
        self._places = thread, places
        return {key: Entry(place.parent, place.tasks) for key, place in places.items()}

    def records(self, thread: str, wanted: Mapping[Key, Entry]) -> Iterator[Record]:
        """The checkpoints that are wanted."""
        if self._places[0] != thread:
            self.outline(thread)
        places = self._places[1]
        for key in wanted:
            if (place := places.get(key)) is None:
                continue
            with self.doing(f"checkpoint {shown(key[1])} of namespace {shown(key[0])}"):
                found = self.driver.run(self.read(thread, key, place))
                if found is None:
                    continue
                one = record(found, place.tasks)
                if not is_sound(one.checkpoint, one.metadata):
                    raise ValueError("it has not the form of a checkpoint with its metadata")
            yield one

    @staticmethod
    @abstractmethod
    def scan() -> Stream[ThreadKey]:
        """The keys of a server that are the saver's, as far as SCAN has to find them."""

    @abstractmethod
    def survey(self, thread: str, keys: Sequence[bytes]) -> Operation[Mapping[Key, Place]]:
        """What a thread has. What is gone meanwhile is left out."""

    @abstractmethod
    def read(self, thread: str, key: Key, place: Place) -> Operation[CheckpointTuple | None]:
        """A checkpoint with its pending writes; None if it is gone."""


def _with_objects(serde: SerializerProtocol) -> SerializerProtocol:
    """A serializer that makes objects, in place of one that leaves them packed."""
    if isinstance(serde, OpaqueSerializer):
        return JsonPlusSerializer()
    if isinstance(serde, EncryptedSerializer):
        return EncryptedSerializer(serde.cipher, _with_objects(serde.serde))
    return serde


def of_type(keys: Sequence[bytes], kind: bytes) -> Operation[list[bytes]]:
    """Those keys that have a type."""
    types = yield from batched([Command(("TYPE", key)) for key in keys])
    return [key for key, found in zip(keys, types, strict=True) if _raw(found) == kind]


def _raw(found: bytes | str) -> bytes:
    return found.encode() if isinstance(found, str) else found


def batched(commands: Sequence[Command]) -> Operation[list[Any]]:
    """The replies to any number of commands."""
    replies = list[Any]()
    for start in range(0, len(commands), COMMANDS_PER_BATCH):
        replies += yield Batch(commands[start : start + COMMANDS_PER_BATCH])
    return replies


def told_by_each(command: str, keys: Sequence[bytes], tell: Callable[[Any], T]) -> Operation[list[T]]:
    """What long values say. A few are read at once, and none is kept."""
    told = list[T]()
    for start in range(0, len(keys), VALUES_PER_BATCH):
        told += map(tell, (yield Batch([Command((command, key)) for key in keys[start : start + VALUES_PER_BATCH]])))
    return told


def found_tuple(
    thread: str, key: Key, parent: str | None, checkpoint: Any, metadata: Any, writes: list[tuple[Any, Any, Any]]
) -> CheckpointTuple:
    """A checkpoint as savers answer it.

    Raises:
        ValueError: A task or a channel has no name.
    """
    if not all(isinstance(task, str) and isinstance(channel, str) for task, channel, _ in writes):
        raise ValueError("a pending write has no task, or no channel")
    under = config.to_config(thread, key[0], parent) if parent else None
    return CheckpointTuple(config.to_config(thread, *key), checkpoint, metadata, under, writes)
