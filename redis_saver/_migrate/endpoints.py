"""Endpoints: where threads are moved from and to. Any saver is one; `adapters.py` has what is known of some savers beyond LangGraph's interface."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, get_checkpoint_metadata

from redis_saver._common import config
from redis_saver._common.display import error_text, printable, shown
from redis_saver._migrate.records import Entry, Key, Record, Task, TaskInfo, ThreadOutline, record
from redis_saver._storage.opaque import fingerprint
from redis_saver.errors import EndpointError, RedisSaverError, ThreadMigrationError


class Source(Protocol):
    """Where threads are read from."""

    name: str
    """Its name in messages, without a password."""

    def threads(self) -> Iterable[str]:
        """The names of all threads; some may come twice."""

    def outline(self, thread: str) -> ThreadOutline:
        """The outline of a thread; empty if there is no such thread."""

    def records(self, thread: str, wanted: Mapping[Key, Entry]) -> Iterator[Record]:
        """The wanted checkpoints, in that order. Those that are gone meanwhile are left out."""


class Target(Source, Protocol):
    """Where threads are written to. They are read again, too."""

    text_versions: bool
    """Whether it continues channel versions as texts, so that ints have to become texts."""

    def write(self, thread: str, one: Record, new: ChannelVersions | None, tasks: Collection[Task]) -> None:
        """Store a checkpoint with the values of some versions, and the pending writes of some tasks. `new` None: store only these writes."""

    def abandon(self, thread: str) -> None:
        """Do what is right with what was written of a thread that failed."""

    def as_stored(self, metadata: Mapping[str, Any]) -> Any:
        """What it answers of metadata, or something that is equal where that is."""


class Endpoint:
    """What has a name, and may fail."""

    name: str
    failures: tuple[type[Exception], ...] = ()
    """What it raises when its server cannot be reached, or does not work."""
    refusals: tuple[type[Exception], ...] = (TypeError, ValueError, OverflowError, NotImplementedError, LookupError)
    """What it raises when it cannot store or read one value or name."""

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """A context in which errors name the endpoint."""
        try:
            yield
        except RedisSaverError:
            raise
        except self.refusals as error:
            raise ThreadMigrationError(f"{self.name} cannot store or read {what}: {error_text(error)}") from error
        except self.failures as error:
            raise EndpointError(f"{self.name}: {printable(str(error))}") from error


class SaverEndpoint(Endpoint):
    """Any saver, by LangGraph's interface. Its pending writes get task paths that are made up, so that they keep their order."""

    def __init__(self, saver: BaseCheckpointSaver[Any], name: str = "") -> None:
        """Use a saver. The caller closes it."""
        self.saver = saver
        self.name: str = name or type(saver).__name__
        self.text_versions: bool = isinstance(saver.get_next_version(None, None), str)

    def threads(self) -> Iterable[str]:
        """The threads there are."""
        with self.doing("the threads"):
            yield from self._threads()

    def _threads(self) -> Iterable[str]:
        return (config.thread_id(found.config) for found in self.saver.list(None))

    def outline(self, thread: str) -> ThreadOutline:
        """What there is of a thread."""
        with self.doing("it"):
            return self._outline(thread)

    def _outline(self, thread: str) -> ThreadOutline:
        outline: ThreadOutline = {}
        for found in self.saver.list({"configurable": {"thread_id": thread}}):
            one = record(found, {})
            tasks = {writes.task: TaskInfo(None, special(writes.task, writes.writes[-1][1])) for writes in one.writes}
            outline[one.key] = Entry(one.parent, tasks)
        return outline

    def records(self, thread: str, wanted: Mapping[Key, Entry]) -> Iterator[Record]:
        """The checkpoints that are wanted."""
        for key, entry in wanted.items():
            with self.doing(f"checkpoint {shown(key[1])} of namespace {shown(key[0])}"):
                found = self.saver.get_tuple(config.to_config(thread, *key))
                if found is None:
                    continue
                one = record(found, self._paths(thread, key, entry.tasks) if found.pending_writes else {})
            yield one

    def _paths(self, thread: str, key: Key, tasks: Mapping[Task, TaskInfo]) -> Mapping[Task, TaskInfo]:  # noqa: ARG002
        """The paths of a checkpoint's tasks, if the outline has none."""
        return tasks

    def write(self, thread: str, one: Record, new: ChannelVersions | None, tasks: Collection[Task]) -> None:
        """Store a checkpoint and its pending writes."""
        where = config.to_config(thread, *one.key)
        with self.doing(str(one)):
            if new is not None:
                self.saver.put(_put_under(thread, one), one.checkpoint, one.metadata, new)
            for writes in one.writes:
                if writes.task in tasks:
                    self.saver.put_writes(where, writes.writes, writes.task[0], writes.path)

    def abandon(self, thread: str) -> None:
        """Keep what was written: another attempt goes on from there."""

    def as_stored(self, metadata: Mapping[str, Any]) -> Any:
        """Metadata as the saver gives them back."""
        return get_checkpoint_metadata({}, metadata)  # type: ignore[arg-type]


def special(named: Task, value: Any) -> bytes:
    """What an outline says of a write's value: a digest, if it is to a special channel; empty for a regular write."""
    return fingerprint(value) if named[1] else b""


def _put_under(thread: str, one: Record) -> RunnableConfig:
    under = config.to_config(thread, one.key[0], one.parent or "")
    if not one.parent:
        del under["configurable"]["checkpoint_id"]
    return under
