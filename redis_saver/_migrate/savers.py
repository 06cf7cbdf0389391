"""Savers as sources and targets of threads.

All savers are used through LangGraph's interface. For known savers, outlines are read without values, which is cheap.
These outlines also have the tasks' paths.
"""

from __future__ import annotations

import json
import math
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import takewhile
from typing import Any

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    get_checkpoint_metadata,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver._checkpoint import listing
from redis_saver._checkpoint.comparing import Record, Task, record
from redis_saver._checkpoint.retention import CheckpointKey, read_references
from redis_saver._checkpoint.rotating import key_holder, key_status
from redis_saver._checkpoint.saver import Saver, context_of, driver_of
from redis_saver._client.base import RedisDriver
from redis_saver._client.sync import SyncDriver
from redis_saver._common import config, names, postgres
from redis_saver._common.config import Address
from redis_saver._common.display import kind_of, shown
from redis_saver._common.limits import Allowance
from redis_saver._engine.requests import Batch, Command, Operation
from redis_saver._migrate.endpoints import Entry, Source, Target, TaskInfo, ThreadOutline, Tier, special, tasks_of
from redis_saver._migrate.foreign import ForeignSource, RedisDocuments, ValkeyStrings
from redis_saver._storage import codec
from redis_saver._storage.chunks import Write
from redis_saver._storage.context import Context
from redis_saver._storage.keyed import keyed
from redis_saver._storage.rewrapping import first_encrypted
from redis_saver._tiered.requests import with_own_errors
from redis_saver._tiered.saver import TwoTiers, driver_over, tiers_of
from redis_saver._tiered.thread_info import thread_names
from redis_saver.encryption import ColdSerializer
from redis_saver.errors import EndpointError, ThreadDamaged, ThreadMigrationError

_OUR_DATA = re.compile(rb"([^{}]+):\{[^{}]*\}:data", re.DOTALL)
_MAX_PATTERNS = 3


def as_endpoint(role: str, value: Any) -> Any:
    """Turn an argument of `migrate` into an endpoint, unless it is one already.

    Raises:
        TypeError: The argument is neither a saver nor an endpoint.
    """
    if isinstance(value, BaseCheckpointSaver):
        return (_foreign_source(value) if role == "source" else None) or endpoint_of(value)
    if isinstance(value, Source):
        return value
    hint = "enter its `with` first"
    if isinstance(value, str):
        hint = "open a URL by `with opened(url, target=...) as ...`"
    raise TypeError(f"{role}: {kind_of(value)}; migrate takes a checkpoint saver or the value of opened(): {hint}")


def endpoint_of(saver: BaseCheckpointSaver[Any], name: str = "") -> SaverEndpoint:
    """Return an endpoint for a saver's class."""
    if isinstance(saver, Saver):
        return OurEndpoint(saver, name)
    if isinstance(saver, TwoTiers):
        return TieredEndpoint(saver, name)
    if isinstance(saver, InMemorySaver):
        return MemoryEndpoint(saver, name)
    classes = _classes(saver)
    if ("langgraph.checkpoint.postgres", "PostgresSaver") in classes:
        return PostgresEndpoint(saver, name)
    if ("langgraph.checkpoint.sqlite", "SqliteSaver") in classes:
        return SqliteEndpoint(saver, name)
    return SaverEndpoint(saver, name)


def _classes(saver: Any) -> set[tuple[str, str]]:
    return {(base.__module__, base.__name__) for base in type(saver).__mro__}


def _foreign_source(saver: Any) -> ForeignSource | None:
    """Return a source that reads the keys of another package's saver by its client, or None for any other saver.

    Raises:
        TypeError: The saver is for asyncio, or of an unknown release, whose client was not found.
    """
    classes = _classes(saver)
    is_redis = ("langgraph.checkpoint.redis.base", "BaseRedisSaver") in classes
    if not is_redis and ("langgraph_checkpoint_aws.checkpoint.valkey.base", "BaseValkeySaver") not in classes:
        return None
    client = getattr(saver, "_redis" if is_redis else "client", None)
    is_async = any(name.startswith("Async") for _, name in classes)
    if client is None or is_async:
        why = "whose client works on its event loop only" if is_async else "of an unknown release"
        remedy = "Pass a saver with a blocking client, or open the server's URL by opened()"
        raise TypeError(f"source: {kind_of(saver)}, {why}. {remedy}")
    if is_redis:
        prefix = getattr(saver, "_checkpoint_prefix", None)
        return RedisDocuments(SyncDriver(client), JsonPlusSerializer(), type(saver).__name__, prefix)
    return ValkeyStrings(SyncDriver(client), saver.serde, type(saver).__name__, None)


class SaverEndpoint(Target):
    """Any saver, by LangGraph's interface. Its tasks get new paths, which keep the order of their writes."""

    def __init__(self, saver: BaseCheckpointSaver[Any], name: str = "") -> None:
        """Use a saver. The caller closes it."""
        self.saver = saver
        self.name: str = name or type(saver).__name__
        self.text_versions: bool = isinstance(saver.get_next_version(None, None), str)
        hot = getattr(saver, "hot", saver)  # of a saver over two tiers
        self.has_keys: bool = isinstance(hot, Saver) and context_of(hot).data_keys is not None
        self.encrypts: bool = self.has_keys or isinstance(saver.serde, EncryptedSerializer)

    def first_encrypted(self, threads: Sequence[str]) -> str | None:
        """Return one of these threads that is encrypted: over two tiers, and of a `ColdSerializer`, all are."""
        return next(iter(threads), None) if self.has_keys or isinstance(self.saver.serde, ColdSerializer) else None

    def _threads(self) -> Iterable[str]:
        return (config.thread_id(saved.config) for saved in self.saver.list(None))

    def _outline(self, thread: str) -> ThreadOutline:
        outline: ThreadOutline = {}
        for checkpoint_tuple in self.saver.list({"configurable": {"thread_id": thread}}):
            saved = record(checkpoint_tuple, {})
            outline[saved.key] = Entry(saved.parent, tasks_of(saved))
        return outline

    def _record(self, thread: str, key: CheckpointKey, entry: Entry) -> Record | None:
        checkpoint_tuple = self.saver.get_tuple(config.to_config(thread, *key))
        return checkpoint_tuple and record(checkpoint_tuple, {task: info.path for task, info in entry.tasks.items()})

    def write(self, thread: str, saved: Record, new: ChannelVersions | None, tasks: Collection[Task]) -> None:
        """Store a checkpoint and its pending writes."""
        with self.doing(str(saved)):
            if new is not None:
                under = config.to_config(thread, saved.key[0], saved.parent or "")
                if not saved.parent:
                    del under["configurable"]["checkpoint_id"]
                self.saver.put(under, saved.checkpoint, saved.metadata, new)
            for writes in saved.writes:
                if writes.task in tasks:
                    at = config.to_config(thread, *saved.key)
                    self.saver.put_writes(at, writes.writes, writes.task[0], writes.path)

    def as_stored(self, metadata: Mapping[str, Any]) -> Any:
        """Return metadata as the saver returns them."""
        return get_checkpoint_metadata({}, metadata)  # type: ignore[arg-type]


class OurEndpoint(SaverEndpoint):
    """A `RedisSaver` or `AsyncRedisSaver`."""

    saver: Saver[Any]

    def __init__(self, saver: Saver[Any], name: str = "") -> None:
        """Use a saver. The caller closes it."""
        super().__init__(saver, name)
        self.driver: RedisDriver = driver_of(saver)
        self.failures = self.driver.failures
        self._context = context_of(saver)
        self.prefix: str = self._context.keyspace.prefix

    def first_encrypted(self, threads: Sequence[str]) -> str | None:
        """Return one of these threads that has a data key. One round trip for 500 threads."""
        holders = [key_holder(self._context, thread) for thread in threads]
        with self.doing("the threads"):
            return driver_of(self.saver).run(first_encrypted("thread", holders))

    def _threads(self) -> Iterable[str]:
        return driver_of(self.saver).stream(listing.scan_threads(self._context))

    def _outline(self, thread: str) -> ThreadOutline:
        return driver_of(self.saver).run(_survey(self._context, thread))

    def tier(self, thread: str) -> Tier:
        """Return what Redis notes of a cold tier. Cost: one round trip."""
        with self.doing("it"):
            return driver_of(self.saver).run(_tier(self._context, thread))

    def in_cold(self) -> int:
        """Count the threads that are also in a cold tier. Cost: a scan of all keys, and two round trips per 500."""
        with self.doing("the threads"):
            return driver_of(self.saver).run(key_status(self._context)).cold_backed

    def _record(self, thread: str, key: CheckpointKey, entry: Entry) -> Record | None:
        read = _read_writes(self._context, thread, key, list(entry.tasks))
        writes = driver_of(self.saver).run(read) if entry.tasks else {}
        tasks = {task: TaskInfo(write.task_path) for task, write in writes.items()}
        return super()._record(thread, key, Entry(entry.parent, tasks))


@keyed
def _survey(context: Context, thread: str) -> Operation[ThreadOutline]:
    """Read the outline of a thread. Of its pending writes, only the special ones are read."""
    references = yield from read_references(context, thread)
    if references is None:
        return {}
    tasks: dict[CheckpointKey, dict[Task, TaskInfo]] = {}
    specials: dict[CheckpointKey, list[Task]] = {}
    for member in references.writes:
        head, _, index = member[1:].rpartition(b"\0")
        ns, checkpoint_id, task_id = names.components(head + b"\0")
        task = task_id, int(index or 0)
        tasks.setdefault((ns, checkpoint_id), {})[task] = TaskInfo()
        if index:
            specials.setdefault((ns, checkpoint_id), []).append(task)
    decoder = codec.Decoder(context, {}, Allowance(context.limits, f"thread {shown(thread)}"))
    for key, some in specials.items():
        for task, write in (yield from _read_writes(context, thread, key, some)).items():
            value = decoder.write(write)[2]
            tasks[key][task] = TaskInfo(write.task_path, special(task, value))
    return {key: Entry(links.parent or None, tasks.get(key, {})) for key, links in references.checkpoints.items()}


@keyed
def _read_writes(
    context: Context, thread: str, key: CheckpointKey, tasks: Sequence[Task]
) -> Operation[dict[Task, Write]]:
    """Read the first write of each task."""
    ends = [b"%d" % index if index else b"" for _, index in tasks]
    members = [names.task(*key, task_id) + end for (task_id, _), end in zip(tasks, ends, strict=True)]
    values = yield Command(("HMGET", context.keyspace.keys(thread).data_key, *members))
    flat: list[bytes] = []
    for (task_id, _), end, stored in zip(tasks, ends, values, strict=True):
        flat += (names.component(task_id) + end, stored) if stored is not None else ()
    writes: dict[Task, Write] = {}
    for write in codec.decode_writes(context, flat, Address(thread, *key), is_whole=False):
        writes.setdefault((write.task_id, min(write.idx, 0)), write)
    return writes


def _tier(context: Context, thread: str) -> Operation[Tier]:
    keys = context.keyspace.tier_keys(thread)
    marks = Command(("HMGET", keys.data_key, "@cold_backed", "@complete"))
    (in_cold, has_all), intents = yield Batch([marks, Command(("EXISTS", keys.intents))])
    return Tier(in_cold is not None, not intents and (in_cold is None or has_all is not None))


class TieredEndpoint(SaverEndpoint):
    """A `TieredSaver` or `AsyncTieredSaver`. Reads copy nothing to Redis, and threads that it has whole not to cold."""

    saver: Any

    def __init__(self, saver: Any, name: str = "") -> None:
        """Use a saver. The caller closes it."""
        super().__init__(saver, name)
        self._hot = OurEndpoint(saver.hot)
        self._in_hot: ThreadOutline = {}
        """The last outline, if Redis has the whole thread."""

    def _threads(self) -> Iterable[str]:
        return driver_over(self.saver).stream(with_own_errors(thread_names(tiers_of(self.saver))))

    def first_encrypted(self, threads: Sequence[str]) -> str | None:
        """Return one of these threads that is encrypted: with keys all are, without keys Redis says so."""
        return super().first_encrypted(threads) or self._hot.first_encrypted(threads)

    def _outline(self, thread: str) -> ThreadOutline:
        self._in_hot = {}
        with suppress(ThreadDamaged):  # then `list` repairs it
            self._in_hot = self._hot.outline(thread)
        if not self._hot.tier(thread).is_whole:
            self._in_hot = {}
        return self._in_hot or super()._outline(thread)

    def _record(self, thread: str, key: CheckpointKey, entry: Entry) -> Record | None:
        if self._in_hot:
            with suppress(ThreadDamaged):
                if (saved := self._hot._record(thread, key, entry)) is not None:  # noqa: SLF001
                    return saved
        found = list(self.saver.list(config.to_config(thread, *key)))  # get_tuple would fill Redis
        return record(found[0], {task: info.path for task, info in entry.tasks.items()}) if found else None


class MemoryEndpoint(SaverEndpoint):
    """An `InMemorySaver`."""

    saver: InMemorySaver

    def _threads(self) -> Iterable[str]:
        threads = [thread for thread, stored in self.saver.storage.items() if any(stored.values())]
        if others := [thread for thread in threads if not isinstance(thread, str)]:
            raise ThreadMigrationError(f"{self.name}: thread id {shown(others[0])} is no str: copy that thread first")
        return threads

    def _outline(self, thread: str) -> ThreadOutline:
        outline: ThreadOutline = {}
        for ns, stored in self.saver.storage.get(thread, {}).items():
            for checkpoint_id, (_, _, parent) in stored.items():
                tasks: dict[Task, TaskInfo] = {}
                for (task_id, index), write in self.saver.writes.get((thread, ns, checkpoint_id), {}).items():
                    task = task_id, min(index, 0)
                    value = self.saver.serde.loads_typed(write[2]) if index < 0 else None
                    tasks.setdefault(task, TaskInfo(write[3], special(task, value)))
                outline[ns, checkpoint_id] = Entry(parent or None, tasks)
        return outline


class _SqlEndpoint(SaverEndpoint, ABC):
    """A saver with LangGraph's tables in a database, which stores metadata as JSON."""

    saver: Any
    _WRITES: str
    """Table of pending writes."""
    _VALUE: str
    """Column of values in that table."""

    def __init__(self, saver: Any, name: str, failure: type[Exception], *refusals: type[Exception]) -> None:
        super().__init__(saver, name)
        self.failures, self.refusals = (failure,), (*self.refusals, *refusals)

    @abstractmethod
    def _select(self, query: str, *arguments: str) -> list[Any]:
        """Return the rows of a query. `?` stands for an argument."""

    def _path(self) -> str:
        """Return the column of a task's path."""
        return "task_path"

    def _threads(self) -> Iterable[str]:
        return (thread for (thread,) in self._select("SELECT DISTINCT thread_id FROM checkpoints"))

    def _outline(self, thread: str) -> ThreadOutline:
        tasks: dict[CheckpointKey, dict[Task, TaskInfo]] = {}
        columns = f"task_id, idx, {self._path()}, type, CASE WHEN idx < 0 THEN {self._VALUE} END"
        writes = f"SELECT checkpoint_ns, checkpoint_id, {columns} FROM {self._WRITES} WHERE thread_id = ?"  # noqa: S608
        for ns, checkpoint_id, task_id, index, path, kind, data in self._select(writes, thread):
            task = task_id, min(index, 0)
            digest = special(task, self.saver.serde.loads_typed((kind, data))) if index < 0 else b""
            tasks.setdefault((ns, checkpoint_id), {})[task] = TaskInfo(path, digest)
        columns = "checkpoint_ns, checkpoint_id, parent_checkpoint_id"
        checkpoints = self._select(f"SELECT {columns} FROM checkpoints WHERE thread_id = ?", thread)  # noqa: S608
        return {
            (ns, checkpoint_id): Entry(parent or None, tasks.get((ns, checkpoint_id), {}))
            for ns, checkpoint_id, parent in checkpoints
        }

    def as_stored(self, metadata: Mapping[str, Any]) -> Any:
        """Return metadata as the saver returns them: as JSON. The order of names does not matter."""
        stored = get_checkpoint_metadata({}, metadata)  # type: ignore[arg-type]
        return json.dumps(json.loads(json.dumps(stored)), sort_keys=True)


class SqliteEndpoint(_SqlEndpoint):
    """A `SqliteSaver`."""

    _WRITES, _VALUE = "writes", "value"

    def __init__(self, saver: Any, name: str = "") -> None:
        """Use a saver. The caller closes it."""
        sqlite3 = import_module("sqlite3")
        super().__init__(saver, name, sqlite3.Error, sqlite3.DataError, sqlite3.InterfaceError)

    def _select(self, query: str, *arguments: str) -> list[Any]:
        with self.saver.cursor(transaction=False) as cursor:
            return cursor.execute(query, arguments).fetchall()  # type: ignore[no-any-return]

    def _path(self) -> str:
        """Return an empty text for databases of langgraph-checkpoint-sqlite before 3.1, which have no paths."""
        columns = {column[1] for column in self._select("PRAGMA table_info(writes)")}
        return "task_path" if "task_path" in columns else "''"


class PostgresEndpoint(_SqlEndpoint):
    """A `PostgresSaver`."""

    _WRITES, _VALUE = "checkpoint_writes", "blob"

    def __init__(self, saver: Any, name: str = "") -> None:
        """Use a saver. The caller closes it."""
        psycopg: Any = import_module("psycopg")
        super().__init__(saver, name, psycopg.Error, psycopg.DataError)

    def _select(self, query: str, *arguments: str) -> list[Any]:
        with postgres.cursor(self.saver) as cursor:
            return [tuple(row.values()) for row in cursor.execute(query.replace("?", "%s"), arguments)]

    def as_stored(self, metadata: Mapping[str, Any]) -> Any:
        """Return metadata as the saver returns them: without `writes`, which LangGraph stored there before 0.5."""
        return super().as_stored(get_serializable_checkpoint_metadata({}, metadata))  # type: ignore[arg-type]


def check_empty(source: Any) -> None:
    """Look for other savers' keys on the server of a Redis source without threads.

    Raises:
        EndpointError: There are threads under another prefix, or of another saver. The message counts their keys, and
            says how to move them.
    """
    if not isinstance(source, (OurEndpoint, ForeignSource)):
        return
    with source.doing("the threads"):
        try:
            patterns = _patterns(source.driver)
        except source.failures as error:
            if type(error).__name__ != "NoPermissionError":
                raise
            return  # the user may read only their own keys
    if patterns:
        text = "; ".join(f"{count:,} keys {pattern} ({remedy})" for (pattern, remedy), count in patterns)
        under = f" with the prefix {shown(source.prefix)}" if source.prefix is not None else ""
        raise EndpointError(f"{source.name} has no threads{under} to move. It has {text}")


def our_prefixes(driver: Any, seconds: float = math.inf) -> Counter[str]:
    """Count the threads of each prefix on a server. Cost: a scan of all keys, for up to `seconds`."""
    end = time.monotonic() + seconds
    keys = takewhile(lambda _: time.monotonic() < end, driver.stream(listing.scan_keys(b"*}:data")))
    matches = map(_OUR_DATA.fullmatch, keys)
    return Counter(match[1].decode("utf-8", "backslashreplace") for match in matches if match)


def _patterns(driver: Any) -> list[tuple[tuple[str, str], int]]:
    """Count the keys of savers on a server, by pattern and remedy. Return the most frequent ones."""
    counts: Counter[tuple[str, str]] = Counter()
    for prefix, count in our_prefixes(driver).items():
        name = shown(prefix)
        counts[f"{name}:{{...}}:data", f"of redis_saver: the prefix is {name}"] = count
    for source in (RedisDocuments, ValkeyStrings):
        remedy = f"of {source.kind}: write {source.kind}:URL"
        keys = driver.stream(source.scan())
        counts.update((f"{shown(key.prefix)}:*", remedy) for key in keys if key.prefix is not None)
    return counts.most_common(_MAX_PATTERNS)
