"""Base classes of sources and targets, for threads and for items of a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, TypeAlias

from langgraph.checkpoint.base import ChannelVersions
from pydantic import Field, StrictFloat, StrictInt, StrictStr, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from redis_saver._checkpoint.comparing import Record, Task
from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._common.display import error_text, printable, shown
from redis_saver._storage.envelopes import HEAD
from redis_saver._storage.opaque import fingerprint
from redis_saver._store.writing import StoredItem
from redis_saver.errors import EndpointError, ItemMigrationError, RedisSaverError, ThreadMigrationError

BOTH_TIERS = (
    "To move both tiers, make Redis the source and add --postgres URL, "
    "in Python migrate(TieredSaver(hot, cold), target)"
)
"""Remedy if one of two tiers is the source."""


class TaskInfo(NamedTuple):
    """The writes of a task in an outline."""

    path: str | None = None
    """Path of the task, or None if the saver does not return it."""
    digest: bytes = b""
    """Digest of a write to a special channel, whose value may change. It is empty for regular writes."""


class Entry(NamedTuple):
    """A checkpoint in an outline."""

    parent: Any
    """Parent id, or None."""
    tasks: Mapping[Task, TaskInfo]
    keys: tuple[bytes, ...] = ()
    """For another package's saver: the keys of the checkpoint and its pending writes."""


class Tier(NamedTuple):
    """The cold tier of a thread, as far as the saver of the endpoint knows it."""

    in_cold: bool = False
    """True if the thread is also in a cold tier, which this endpoint does not use."""
    is_whole: bool = True
    """False if the cold tier may have more of the thread."""


ThreadOutline: TypeAlias = dict[CheckpointKey, Entry]
"""The checkpoints of a thread, their parents and their tasks, without values."""


class Endpoint(ABC):
    """Base of sources and targets, which names itself in errors."""

    name: str
    """Name in messages, without a password."""
    failures: tuple[type[Exception], ...] = ()
    """Errors of a server that fails or cannot be reached."""
    encrypts: bool = False
    """True if it stores values encrypted."""
    has_keys: bool = False
    """True if it opens what is encrypted with keys of ours."""
    refusals: tuple[type[Exception], ...] = (TypeError, ValueError, OverflowError, NotImplementedError, LookupError)
    """Errors of a single value or name that cannot be stored or read."""

    @contextmanager
    def doing(self, what: str = "") -> Iterator[None]:
        """Turn errors of the block into ours, which name the endpoint. `what` is the object that the block handles."""
        try:
            yield
        except RedisSaverError:
            raise
        except self.refusals as error:
            raise ThreadMigrationError(f"{self.name} cannot store or read {what}: {error_text(error)}") from error
        except self.failures as error:
            raise EndpointError(f"{self.name}: {printable(str(error))}") from error


class Source(Endpoint):
    """Source of threads."""

    def threads(self) -> Iterable[str]:
        """Iterate over the names of all threads. A name may occur twice."""
        with self.doing("the threads"):
            yield from self._threads()

    @abstractmethod
    def _threads(self) -> Iterable[str]: ...

    def outline(self, thread: str) -> ThreadOutline:
        """Return the outline of a thread. It is empty if there is no such thread."""
        with self.doing("it"):
            return self._outline(thread)

    @abstractmethod
    def _outline(self, thread: str) -> ThreadOutline: ...

    def first_encrypted(self, threads: Sequence[str]) -> str | None:  # noqa: ARG002
        """Return one of these threads that is encrypted with keys of ours, or None."""
        return None

    def tier(self, thread: str) -> Tier:  # noqa: ARG002
        """Return what is known of the cold tier of a thread."""
        return Tier()

    def in_cold(self) -> int:
        """Count the threads that are also in a cold tier, which this endpoint does not use."""
        return 0

    def records(self, thread: str, wanted: Mapping[CheckpointKey, Entry]) -> Iterator[Record]:
        """Iterate over these checkpoints of an outline, in this order. Deleted ones are skipped.

        Raises:
            ThreadMigrationError: A checkpoint cannot be read, or a saver over two tiers encrypted it for its cold tier.
        """
        for key, entry in wanted.items():
            with self.doing(f"checkpoint {shown(key[1])} of namespace {shown(key[0])}"):
                saved = self._record(thread, key, entry)
            if saved is None:
                continue
            if HEAD in saved.metadata:
                raise ThreadMigrationError(
                    f"{self.name} has it as the cold tier of a saver with encryption=, so only that saver can open it. "
                    f"{BOTH_TIERS}, with its keys"
                )
            yield saved

    def _record(self, thread: str, key: CheckpointKey, entry: Entry) -> Record | None:
        """Return a checkpoint, or None if it was deleted."""
        raise NotImplementedError


class Target(Source):
    """Target of threads. The engine reads it, too, to compare."""

    text_versions: bool = False
    """True if the saver uses str as channel versions, so that numbers must become str."""

    @abstractmethod
    def write(self, thread: str, saved: Record, new: ChannelVersions | None, tasks: Collection[Task]) -> None:
        """Store a checkpoint with the values of the `new` versions, and the writes of `tasks`.

        If `new` is None, the target has the checkpoint already, and stores only the writes.
        """

    def abandon(self, thread: str) -> None:
        """Handle the written part of a thread that failed. By default it stays, and another run continues there."""

    def as_stored(self, metadata: Mapping[str, Any]) -> Any:
        """Return metadata as this saver would return them, or in another form that can be compared."""
        return metadata


def special(task: Task, value: Any) -> bytes:
    """Return the digest of a task's value for an outline. It is empty for a regular write."""
    return fingerprint(value) if task[1] else b""


def tasks_of(saved: Record) -> dict[Task, TaskInfo]:
    """Return the tasks of a checkpoint for an outline."""
    return {each.task: TaskInfo(each.path, special(each.task, each.writes[-1][1])) for each in saved.writes}


_Versions: TypeAlias = dict[StrictStr, StrictStr | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)]]


class _Sound(TypedDict):
    """The form of LangGraph's checkpoints."""

    channel_values: dict[StrictStr, Any]
    channel_versions: _Versions
    versions_seen: NotRequired[dict[Any, _Versions] | None]


_SOUND = TypeAdapter(_Sound)


def is_sound(checkpoint: Any, metadata: object) -> bool:
    """True if values, versions and metadata have LangGraph's form."""
    try:
        _SOUND.validate_python(checkpoint)
    except ValidationError:
        return False
    return isinstance(metadata, dict)


ItemOrError: TypeAlias = StoredItem | RedisSaverError
"""An item, or the error of an unreadable item."""


NotStored: TypeAlias = list[tuple[StoredItem, RedisSaverError | None]]
"""Items that were not stored, each with its error. None: someone else wrote the item in the target since `look_up`."""


class Items(Endpoint):
    """Source or target of items."""

    refusals: tuple[type[Exception], ...] = ()

    @abstractmethod
    def items(self, labels: tuple[str, ...]) -> Iterator[ItemOrError]:
        """Iterate over the items of a namespace and its children. An error takes the place of an unreadable item."""

    def first_encrypted(self, labels: tuple[str, ...]) -> str | None:  # noqa: ARG002
        """Return a partition with such namespaces that is encrypted with keys of ours, or None."""
        return None

    def refuse_copies(self, labels: tuple[str, ...]) -> None:
        """Refuse a store that has copies of a cold store's items.

        Raises:
            EndpointError: It is the hot part of a `TieredStore`.
        """

    @abstractmethod
    def look_up(self, items: Sequence[StoredItem]) -> list[ItemOrError | None]:
        """Return the target's version of each item, or None. An error takes the place of an unreadable item."""

    @abstractmethod
    def write(self, wanted: Sequence[tuple[StoredItem, int]]) -> NotStored:
        """Store different items. The number is the `updated_at` of the item to replace, or 0 to replace none."""

    def not_stored(self, item: StoredItem, error: Exception, text: object = None) -> ItemMigrationError:
        """Return the error of an item that the target refuses."""
        return not_moved(f"{self.name} cannot store {item_name(item)}: {text or error}", error)


def item_name(item: StoredItem) -> str:
    """Return an item's name for messages."""
    return f"item {shown(item.key)} of namespace {shown(item.namespace)}"


def not_moved(text: str, cause: BaseException) -> ItemMigrationError:
    """Return the error for an item that cannot be moved."""
    error = ItemMigrationError(f"{text}. Other items are still moved")
    error.__cause__ = cause
    return error
