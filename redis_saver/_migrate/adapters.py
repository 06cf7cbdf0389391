"""Savers that can give the outline of a thread without its values: ours, and LangGraph's for memory, SQLite and Postgres.

So finding what a target has already costs only the reading of names. And pending writes keep their task paths.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, get_checkpoint_metadata, get_serializable_checkpoint_metadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver._checkpoint import listing
from redis_saver._checkpoint.references import read_references
from redis_saver._checkpoint.saver import Saver, context_of, driver_of
from redis_saver._client.base import RedisDriver
from redis_saver._client.sync import SyncDriver
from redis_saver._common import names, postgres
from redis_saver._common.config import Address
from redis_saver._common.display import kind_of, shown
from redis_saver._common.limits import Allowance
from redis_saver._engine.requests import Command, Operation, Request
from redis_saver._engine.runner import DriverWrapper
from redis_saver._migrate.endpoints import SaverEndpoint, special
from redis_saver._migrate.foreign import ForeignSource
from redis_saver._migrate.records import Entry, Key, Task, TaskInfo, ThreadOutline
from redis_saver._migrate.redis_documents import RedisDocuments
from redis_saver._migrate.valkey_saver import ValkeyStrings
from redis_saver._storage import codec
from redis_saver._storage.chunks import Write
from redis_saver._storage.context import Context
from redis_saver.errors import ThreadMigrationError


def endpoint_of(saver: BaseCheckpointSaver[Any], name: str = "") -> SaverEndpoint:
    """A saver as a source or target."""
    if isinstance(saver, Saver):
        return OurEndpoint(saver, name)
    if isinstance(saver, InMemorySaver):
        return MemoryEndpoint(saver, name)
    classes = {(cls.__module__, cls.__name__) for cls in type(saver).__mro__}
    if ("langgraph.checkpoint.postgres", "PostgresSaver") in classes:
        return PostgresEndpoint(saver, name)
    if ("langgraph.checkpoint.sqlite", "SqliteSaver") in classes:
        return SqliteEndpoint(saver, name)
    return SaverEndpoint(saver, name)


def as_endpoint(name: str, given: Any) -> Any:
    """The endpoint of what `migrate` was given.

    Raises:
        TypeError: It is neither a saver nor an endpoint.
    """
    if isinstance(given, BaseCheckpointSaver):
        return (_foreign_source(given) if name == "source" else None) or endpoint_of(given)
    if callable(getattr(given, "threads", None)) and callable(getattr(given, "outline", None)):
        return given
    hint = (
        "a URL is opened by `with opened(url, target=...) as ...`"
        if isinstance(given, str)
        else "enter its `with` first"
    )
    raise TypeError(f"{name}: {kind_of(given)}; migrate takes a checkpoint saver, or what opened() gives: {hint}")


_ASYNCHRONOUS = {
    ("langgraph.checkpoint.redis.aio", "AsyncRedisSaver"),
    ("langgraph.checkpoint.redis.ashallow", "AsyncShallowRedisSaver"),
    ("langgraph_checkpoint_aws.checkpoint.valkey.async_saver", "AsyncValkeySaver"),
}
"""Savers whose connections work on their event loop only."""


def _foreign_source(saver: Any) -> ForeignSource | None:
    """The keys of another package's saver on Redis or Valkey, read over its client; None if it is no such saver.

    Raises:
        TypeError: It is one for asyncio, or has no client where it is known to have it.
    """
    classes = {(cls.__module__, cls.__name__) for cls in type(saver).__mro__}
    is_redis = ("langgraph.checkpoint.redis.base", "BaseRedisSaver") in classes
    if not is_redis and ("langgraph_checkpoint_aws.checkpoint.valkey.base", "BaseValkeySaver") not in classes:
        return None
    client = getattr(saver, "_redis" if is_redis else "client", None)
    if client is None or classes & _ASYNCHRONOUS:
        why = (
            "whose client works on its event loop only" if classes & _ASYNCHRONOUS else "of a release that is not known"
        )
        raise TypeError(
            f"source: {kind_of(saver)}, {why}. Pass a saver with a blocking client, or what opened() gives for the server's URL"
        )
    if is_redis:
        prefix = getattr(saver, "_checkpoint_prefix", None)
        return RedisDocuments(SyncDriver(client), JsonPlusSerializer(), type(saver).__name__, prefix)
    return ValkeyStrings(SyncDriver(client), saver.serde, type(saver).__name__, None)


class OurEndpoint(SaverEndpoint):
    """A saver of ours."""

    saver: Saver[Any]

    def __init__(self, saver: Saver[Any], name: str = "") -> None:
        """Use a saver."""
        super().__init__(saver, name)
        self.failures: tuple[type[Exception], ...] = driver_of(saver).failures

    @property
    def driver(self) -> RedisDriver | DriverWrapper[Request]:
        """What runs operations on its server."""
        return driver_of(self.saver)

    @property
    def prefix(self) -> str:
        """The beginning of its keys."""
        return self._context.keyspace.prefix

    @property
    def _context(self) -> Context:
        return context_of(self.saver)

    def _threads(self) -> Iterable[str]:
        return self.driver.stream(listing.scan_threads(self._context))

    def _outline(self, thread: str) -> ThreadOutline:
        return self.driver.run(self._survey(thread))

    def _survey(self, thread: str) -> Operation[ThreadOutline]:
        seen = yield from read_references(self._context, thread)
        if seen is None:
            return {}
        tasks: dict[Key, dict[Task, TaskInfo]] = {}
        to_read: dict[Key, list[Task]] = {}
        for member in seen.writes:
            head, _, index = member[1:].rpartition(b"\0")
            ns, checkpoint_id, task_id = names.components(head + b"\0")
            named = task_id, int(index or 0)
            tasks.setdefault((ns, checkpoint_id), {})[named] = TaskInfo()
            if index:
                to_read.setdefault((ns, checkpoint_id), []).append(named)
        allowance = Allowance(self._context.limits, f"thread {shown(thread)}")
        for key, some in to_read.items():
            for named, write in (yield from self._read_writes(thread, key, some)).items():
                value = codec.load_write(self._context, write, Address(thread, *key), allowance)[2]
                tasks[key][named] = TaskInfo(write.task_path, special(named, value))
        return {key: Entry(links.parent or None, tasks.get(key, {})) for key, links in seen.links.items()}

    def _paths(self, thread: str, key: Key, tasks: Mapping[Task, TaskInfo]) -> Mapping[Task, TaskInfo]:
        found = self.driver.run(self._read_writes(thread, key, list(tasks)))
        return {named: TaskInfo(write.task_path) for named, write in found.items()}

    def _read_writes(self, thread: str, key: Key, tasks: Sequence[Task]) -> Operation[dict[Task, Write]]:
        """The first write of each task."""
        if not tasks:
            return {}
        suffixes = [b"%d" % index if index else b"" for _, index in tasks]
        members = [names.task(*key, task_id) + end for (task_id, _), end in zip(tasks, suffixes, strict=True)]
        records = yield Command(("HMGET", self._context.keyspace.keys(thread).data_key, *members))
        flat: list[bytes] = []
        for (task_id, _), end, stored in zip(tasks, suffixes, records, strict=True):
            flat += (names.component(task_id) + end, stored) if stored is not None else ()
        found: dict[Task, Write] = {}
        for write in codec.decode_writes(flat, Address(thread, *key)):
            found.setdefault((write.task_id, min(write.idx, 0)), write)
        return found


class MemoryEndpoint(SaverEndpoint):
    """An `InMemorySaver`."""

    saver: InMemorySaver

    def _threads(self) -> Iterable[str]:
        threads = [thread for thread, stored in self.saver.storage.items() if any(stored.values())]
        if others := [thread for thread in threads if not isinstance(thread, str)]:
            raise ThreadMigrationError(
                f"{self.name} has a thread whose id {shown(others[0])} is of type {type(others[0]).__name__}. Other savers take only str: copy it to a "
                "thread with a str for its id first"
            )
        return threads

    def _outline(self, thread: str) -> ThreadOutline:
        outline: ThreadOutline = {}
        for ns, stored in self.saver.storage.get(thread, {}).items():
            for checkpoint_id, (_, _, parent) in stored.items():
                tasks: dict[Task, TaskInfo] = {}
                for (task_id, index), write in self.saver.writes.get((thread, ns, checkpoint_id), {}).items():
                    named = task_id, min(index, 0)
                    value = self.saver.serde.loads_typed(write[2]) if index < 0 else None
                    tasks.setdefault(named, TaskInfo(write[3], special(named, value)))
                outline[ns, checkpoint_id] = Entry(parent or None, tasks)
        return outline


class _SqlEndpoint(SaverEndpoint, ABC):
    """A saver on a database with LangGraph's tables. It stores metadata as JSON."""

    _LEAST: str
    """The SQL function for the smaller of two numbers."""
    _PARAMETER: str
    """The SQL placeholder for a parameter."""
    _WRITES: str
    """The table of pending writes."""
    _VALUE: str
    """Its column with the value."""

    @abstractmethod
    def _select(self, query: str, *arguments: str) -> list[Any]: ...

    def _path(self) -> str:
        """The column with a task's path."""
        return "task_path"

    def _threads(self) -> Iterable[str]:
        return (thread for (thread,) in self._select("SELECT DISTINCT thread_id FROM checkpoints"))

    def _outline(self, thread: str) -> ThreadOutline:
        of_thread = f"WHERE thread_id = {self._PARAMETER}"
        tasks: dict[Key, dict[Task, TaskInfo]] = {}
        path, table = self._path(), self._WRITES
        columns = f"checkpoint_ns, checkpoint_id, task_id, {self._LEAST}(idx, 0)"
        groups = f"SELECT {columns}, MIN({path}) FROM {table} {of_thread} GROUP BY {columns}"  # noqa: S608
        for ns, checkpoint_id, task_id, index, said in self._select(groups, thread):
            tasks.setdefault((ns, checkpoint_id), {})[task_id, index] = TaskInfo(said)
        specials = f"SELECT {columns}, type, {self._VALUE} FROM {table} {of_thread} AND idx < 0"  # noqa: S608
        for ns, checkpoint_id, task_id, index, kind, data in self._select(specials, thread):
            named, found = (task_id, index), tasks[ns, checkpoint_id]
            value = self.saver.serde.loads_typed((kind, data))
            found[named] = TaskInfo(found[named].path, special(named, value))
        checkpoints = f"SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints {of_thread}"  # noqa: S608
        return {
            (ns, checkpoint_id): Entry(parent or None, tasks.get((ns, checkpoint_id), {}))
            for ns, checkpoint_id, parent in self._select(checkpoints, thread)
        }

    def as_stored(self, metadata: Mapping[str, Any]) -> Any:
        """Metadata as the saver gives them back: JSON, in any order."""
        return json.dumps(json.loads(json.dumps(get_checkpoint_metadata({}, metadata))), sort_keys=True)  # type: ignore[arg-type]


class SqliteEndpoint(_SqlEndpoint):
    """A `SqliteSaver`."""

    saver: Any
    _LEAST, _PARAMETER, _WRITES, _VALUE = "MIN", "?", "writes", "value"

    def __init__(self, saver: Any, name: str = "") -> None:
        """Use a saver."""
        super().__init__(saver, name)
        sqlite3 = import_module("sqlite3")
        self.failures: tuple[type[Exception], ...] = (sqlite3.Error,)
        self.refusals: tuple[type[Exception], ...] = (*self.refusals, sqlite3.DataError, sqlite3.InterfaceError)

    def _select(self, query: str, *arguments: str) -> list[Any]:
        with self.saver.cursor(transaction=False) as cursor:
            return cursor.execute(query, arguments).fetchall()  # type: ignore[no-any-return]

    def _path(self) -> str:
        """Databases from before langgraph-checkpoint-sqlite 3.1 have none."""
        columns = {column[1] for column in self._select("PRAGMA table_info(writes)")}
        return "task_path" if "task_path" in columns else "''"


class PostgresEndpoint(_SqlEndpoint):
    """A `PostgresSaver`."""

    saver: Any
    _LEAST, _PARAMETER, _WRITES, _VALUE = "LEAST", "%s", "checkpoint_writes", "blob"

    def __init__(self, saver: Any, name: str = "") -> None:
        """Use a saver."""
        super().__init__(saver, name)
        psycopg: Any = import_module("psycopg")
        self.failures: tuple[type[Exception], ...] = (psycopg.Error,)
        self.refusals: tuple[type[Exception], ...] = (*self.refusals, psycopg.DataError)

    def _select(self, query: str, *arguments: str) -> list[Any]:
        with postgres.cursor(self.saver) as cursor:
            return [tuple(row.values()) for row in cursor.execute(query, arguments)]

    def as_stored(self, metadata: Mapping[str, Any]) -> Any:
        """Metadata as the saver gives them back: `PostgresSaver` leaves out `writes`, which LangGraph kept there before 0.5."""
        return super().as_stored(get_serializable_checkpoint_metadata({}, metadata))  # type: ignore[arg-type]
