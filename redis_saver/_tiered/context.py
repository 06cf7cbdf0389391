"""Shared by operations over two tiers: the saver's state, and the calls that store checkpoints in cold."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias, cast
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.base.id import uuid6

from redis_saver._checkpoint import checking
from redis_saver._checkpoint.saver import Saver, with_context
from redis_saver._common import config as configs, names, postgres
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.config import Address
from redis_saver._common.logs import log_text
from redis_saver._engine.requests import Call, Command, Operation
from redis_saver._storage import codec
from redis_saver._storage.chunk_cache import ChunkCache
from redis_saver._storage.context import Context
from redis_saver._storage.framing import unpack
from redis_saver._storage.keyed import keyed
from redis_saver._tiered import scripts
from redis_saver._tiered.backlog import BacklogCount
from redis_saver._tiered.carrying import Carrier
from redis_saver._tiered.counts import LiveTiers
from redis_saver._tiered.flush_queue import FlushQueue
from redis_saver._tiered.in_cold import InCold
from redis_saver._tiered.requests import ColdCall, Tiered, attempt
from redis_saver.errors import EncodeError, LimitExceeded, decoding, encoding

WRITER_GONE = checking.WRITER_GONE
FILL_LEASE = 60_000
"""Length of a fill lease in milliseconds: the time for a reader to fill hot."""
HOT_CANNOT_HAVE = (EncodeError, LimitExceeded)
"""Errors for data that only cold can store: it exceeds hot's limits, or hot's serializer does not know it."""
WHOLE = b"@complete"
"""Field that marks a thread as complete in hot."""
_MAX_ITEMS, _MAX_NAME_BYTES = 10_000, 4 * 2**20
"""Bounds of each cache of threads. A forgotten entry is read again."""
_FLUSHER_CACHE_BYTES = 16_000_000
"""Size of the flusher's own chunk cache in bytes."""
_MAX_NAMESPACES = 50
"""Maximum number of remembered fills per thread."""
_LISTS_BY_ID = ("langgraph.checkpoint.postgres", "langgraph.checkpoint.sqlite")

_NO_METADATA = (
    "Nothing was written. With write-behind, metadata must be what cold can store later: change the value, such as a "
    "date to its isoformat()."
)

Mode: TypeAlias = Literal["write-through", "write-behind"]
OnHotError: TypeAlias = Literal["raise", "bypass"]
Verify: TypeAlias = Literal["never", "on_open"]
TaskPaths: TypeAlias = Mapping[tuple[str, str, str], str]
"""Task paths by namespace, checkpoint id and task id. They order pending writes. LangGraph's `get_tuple` lacks them."""


class Fill(NamedTuple):
    """A fill that this process knows. It gave hot the newest checkpoint of cold, or the fact that there is none."""

    token: bytes
    since: str
    """Time part of a uuid6 that this process made when it learned of the fill."""
    field: bytes = b""
    """Field that the first write sets if hot lacked the thread: `@complete`, or `@has_latest` and the namespace."""


class Fills:
    """The last known fill of each namespace of each thread.

    Without a known fill, the next put goes to cold first, because hot may lack pending writes of the checkpoint.
    """

    def __init__(self) -> None:
        self._threads: BoundedCache[str, Mapping[str, Fill]] = BoundedCache(_MAX_ITEMS)

    @staticmethod
    def now() -> str:
        return str(uuid6())[:18]

    def learn(self, thread: str, ns: str, fill: Fill) -> None:
        """Remember a fill. A fill of the root, or of an empty thread, replaces the fills of all namespaces."""
        if len(thread) + len(ns) > names.MAX_CACHED_NAME:
            return
        by_ns = self._threads.get(thread, {})
        if not ns or fill.field == WHOLE:
            by_ns, ns = {}, ""
        elif len(by_ns) >= _MAX_NAMESPACES:
            by_ns = {"": by_ns[""]} if "" in by_ns else {}
        self._threads.store(thread, {**by_ns, ns: fill})

    def hear(self, thread: str, ns: str, token: bytes) -> None:
        """Remember a fill whose token hot returned, unless it is already known."""
        fill = self.of(thread, ns)
        if fill is None or fill.token != token:
            self.learn(thread, ns, Fill(token, self.now()))

    def of(self, thread: str, ns: str, checkpoint_id: str | None = None) -> Fill | None:
        """Return the last known fill of a namespace, else that of the root, which may cover the whole thread.

        With the id of a checkpoint to put, return it only if the put may rely on it: the id was certainly made after
        this process learned of the fill. LangGraph makes ids by `uuid6`, which never decreases in one process. Any
        other kind of id proves nothing.
        """
        by_ns = self._threads.get(thread, {})
        fill = by_ns.get(ns) or by_ns.get("")
        if fill is None or checkpoint_id is None:
            return fill
        is_uuid6 = len(checkpoint_id) == 36 and checkpoint_id[14] == "6"
        return fill if is_uuid6 and checkpoint_id[: len(fill.since)] > fill.since else None


class Leases:
    """Tokens of unused leases that this process may still hold in hot: claims, the scan lease, write intents.

    With the token of its lease or intent, the process continues at once. With a new token it must wait until the lease
    ends. So it only loses time if it forgets a token.
    """

    def __init__(self) -> None:
        self._tokens: BoundedCache[bytes, str] = BoundedCache(_MAX_ITEMS, _MAX_NAME_BYTES)

    def token(self, key: bytes) -> str:
        """Return a token for the next attempt on this key: the kept one, or a new one."""
        return self._tokens.take(key) or uuid4().hex

    def keep(self, key: bytes, token: str) -> None:
        """Keep a token for the next attempt, which continues the lease if the token holds it."""
        self._tokens.store(key, token, len(key))


def release(keys: names.TierKeys, token: str) -> Tiered[Any]:
    """Release the claim or intent of a token. If hot does not answer, the lease expires."""
    return attempt(Call(scripts.RELEASE, (keys.flush, keys.intents), (token,)))


class Tiers:
    """The state of a saver over two tiers."""

    flush_queue: FlushQueue | None = None
    """None: write-through."""
    carries: bool = False
    """True for an operation that carries what it reads."""
    cold_timeout: float | None = None
    """Seconds for which a reader waits for cold. None: no limit."""

    def __init__(
        self, hot: Saver[Any], cold: BaseCheckpointSaver[Any], carrier: Carrier, in_cold: InCold, verify: Verify
    ) -> None:
        """Start with empty caches.

        Args:
            hot: The hot saver.
            cold: The cold saver.
            carrier: How values are carried between them.
            in_cold: This process's memory of encrypted checkpoints in cold.
            verify: As for `saver.TwoTiers`.
        """
        self._hot, self.carrier, self.in_cold, self.verify = hot, carrier, in_cold, verify
        self.flusher_hot: Context = self.packed_hot._replace(chunk_cache=ChunkCache(_FLUSHER_CACHE_BYTES))
        """Hot for flushers, with a chunk cache of their own."""
        self.cold_is_postgres: bool = postgres.has_history(cold)
        """True if cold is LangGraph's Postgres saver with known tables (`postgres.py`)."""
        self.cold_is_redis: bool = isinstance(cold, Saver)
        """True if cold is a saver of this package on Redis."""
        self.lists_by_id: bool = any(kind.__module__.startswith(_LISTS_BY_ID) for kind in type(cold).__mro__)
        """True if cold is known to list checkpoints by descending id."""
        self.stores_json: bool = self.lists_by_id
        """True if cold is known to store metadata as JSON."""
        self.counts: LiveTiers = LiveTiers()
        self.backlog_count: BacklogCount = BacklogCount(self.hot_context.keyspace, self.counts)
        self.fills: Fills = Fills()
        self.leases: Leases = Leases()
        self.verified: BoundedCache[tuple[str, str], bool] = BoundedCache(_MAX_ITEMS, _MAX_NAME_BYTES)
        """Namespaces of threads whose newest checkpoint was compared with cold's."""

    @property
    def hot_context(self) -> Context:
        """The hot saver's context, with its current serializer."""
        return self._hot._context  # noqa: SLF001 - it is of ours

    def saw(self, thread: str, ns: str, checkpoint_id: str) -> None:
        """Remember that a checkpoint exists in one of the tiers. An empty id: the namespace is empty."""
        if self.hot_context.data_keys is not None:  # else nothing depends on it
            self.in_cold.saw(thread, ns, checkpoint_id)

    def log_text(self, error: Exception) -> str:
        """Return the text of an error for logs, stats and refused records. It quotes no value if hot encrypts."""
        return log_text(error, is_encrypted=self.hot_context.data_keys is not None)

    @property
    def reads_by_ids(self) -> bool:
        """True if cold compares ids to read a history. With encryption, parents are followed (`sealing.py`)."""
        return self.cold_is_postgres and self.hot_context.data_keys is None and self.carrier.has_twins

    @property
    def packed_hot(self) -> Context:
        """The hot saver's context with the serializer that carries."""
        return self.hot_context._replace(serde=self.carrier.hot_serde)

    def for_cold(self, saved: CheckpointTuple) -> CheckpointTuple:
        """Decode a carried checkpoint of hot except its values, if cold stores the other parts as JSON."""
        if not self.stores_json:
            return saved
        with decoding("{}", configs.address(saved.config)):
            return self.carrier.with_open_parts(saved, self.hot_context.serde)

    def over(self, hot: Saver[Any], carrier: Carrier) -> Tiers:
        """Return the same tiers over a clone of hot. Both share all caches."""
        clone = copy.copy(self)
        clone._hot, clone.carrier = hot, carrier  # noqa: SLF001 - it is of this class
        return clone

    def packed(self) -> Tiers:
        """Return the same tiers for an operation that carries what it reads."""
        clone = self.over(with_context(self._hot, self.packed_hot), self.carrier)
        clone.carries = True
        return clone


def newest_of(ns: str) -> bytes:
    """Return the field that says that hot has the newest checkpoint of a namespace."""
    return b"@has_latest" + names.component(ns)


# -- calls of cold


def for_cold(config: RunnableConfig, *, ns: bool = True) -> RunnableConfig:
    """Return a config for other savers: names are strings, and with `ns` it always has a namespace."""
    address, configurable = configs.address(config), dict(config["configurable"])
    configurable["thread_id"] = address.thread_id
    for key in configs.OURS:
        configurable.pop(key, None)  # settings of hot, which LangGraph would copy into the metadata
    if ns:
        configurable["checkpoint_ns"] = address.checkpoint_ns
    if address.checkpoint_id is None:
        configurable.pop("checkpoint_id", None)
    converted: RunnableConfig = {**config, "configurable": configurable}
    if "metadata" in config:  # LangChain copies texts of `configurable` there
        converted["metadata"] = {key: value for key, value in config["metadata"].items() if key not in configs.OURS}
    return converted


def metadata_of(tiers: Tiers, config: RunnableConfig, metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Return the metadata of a checkpoint to put, with those of its config, as both tiers will return them.

    LangGraph's savers for Postgres and SQLite store them as JSON, and for Postgres without the key `writes`. Other
    metadata stay as they are. With write-through, cold decides about them.

    Raises:
        EncodeError: With write-behind, cold would refuse one of them, or no flusher could read it.
    """
    merged = get_checkpoint_metadata(for_cold(config), metadata)
    if tiers.stores_json:
        with suppress(TypeError, ValueError, RecursionError):
            return cast("CheckpointMetadata", postgres.as_json({k: v for k, v in merged.items() if k != "writes"}))
    is_json = tiers.stores_json and tiers.hot_context.data_keys is None
    for key, value in merged.items() if tiers.flush_queue else ():
        with encoding("{!r} of the metadata of a checkpoint", key, remedy=_NO_METADATA):
            if is_json:
                postgres.as_json({key: value})
            elif tiers.hot_context.serde.dumps_typed(value)[0].startswith("pickle"):
                raise TypeError("it would be a pickle, which no flusher loads")
    return merged


@keyed
def task_paths_in_hot(hot: Context, thread: str, checkpoints: Iterable[CheckpointTuple]) -> Operation[TaskPaths]:
    """Read from hot the known paths of tasks with pending writes."""
    data, paths = hot.keyspace.keys(thread).data_key, dict[tuple[str, str, str], str]()
    filled = yield Command(("HGET", data, "@no_task_path"))
    with decoding("the task paths of thread {!r} in hot", thread):
        pathless = unpack(filled or b"")
    for checkpoint_tuple in checkpoints:
        address = configs.address(checkpoint_tuple.config)
        ns, checkpoint_id = address.checkpoint_ns, address.checkpoint_id or ""
        tasks = dict.fromkeys(task for task, _, _ in checkpoint_tuple.pending_writes or ())
        if not tasks or writes_of(address) in pathless:
            continue
        suffixes = [names.component(task) + b"%d" % index for task in tasks for index in WRITES_IDX_MAP.values()]
        suffixes += map(names.component, tasks)
        fields = [writes_of(address) + suffix for suffix in suffixes]
        records = yield Command(("HMGET", data, *fields))
        there = [part for pair in zip(suffixes, records, strict=True) if pair[1] is not None for part in pair]
        for write in codec.decode_writes(hot, there, address):
            paths[ns, checkpoint_id, write.task_id] = write.task_path
    return paths


def calls_for(checkpoint_tuple: CheckpointTuple, thread: str, paths: TaskPaths) -> Generator[ColdCall, Any, None]:
    """Yield the calls that store a checkpoint with its writes in a thread of cold.

    Args:
        checkpoint_tuple: The checkpoint.
        thread: The thread.
        paths: The paths of its tasks. If they do not give the order in which cold returned the writes, paths that sort
            so replace them.
    """
    _, ns, checkpoint_id = configs.address(checkpoint_tuple.config)
    stored = configs.to_config(thread, ns, checkpoint_id or "")
    yield to_put(checkpoint_tuple, thread, versions_of_values(checkpoint_tuple.checkpoint))
    groups = by_call(checkpoint_tuple.pending_writes or ())
    known = [(paths.get((ns, checkpoint_id or "", task)), task, is_regular) for task, is_regular in groups]
    is_ordered = all(path is not None for path, _, _ in known) and known == sorted(known)
    for order, ((task, _), writes) in enumerate(groups.items()):
        yield ColdCall("put_writes", (stored, writes, task, known[order][0] if is_ordered else f"{order:08}"))


def named(thread: str, ns: str, checkpoint_id: str | None) -> RunnableConfig:
    """Return a config that has nothing but an address."""
    config = configs.to_config(thread, ns, checkpoint_id or "")
    if not checkpoint_id:
        del config["configurable"]["checkpoint_id"]
    return config


def to_put(checkpoint_tuple: CheckpointTuple, thread: str, new_versions: ChannelVersions) -> ColdCall:
    """Return the call that stores a checkpoint in a thread of cold."""
    address, parent_config = configs.address(checkpoint_tuple.config), checkpoint_tuple.parent_config
    parent = configs.checkpoint_id(parent_config) if parent_config else None
    target = named(thread, address.checkpoint_ns, parent)
    metadata = dict(checkpoint_tuple.metadata)
    if metadata.get("thread_id") == address.thread_id:
        metadata["thread_id"] = thread
    return ColdCall("put", (target, checkpoint_tuple.checkpoint, metadata, new_versions))


def by_call(pending: Sequence[PendingWrite]) -> dict[tuple[str, bool], list[tuple[str, Any]]]:
    """Group writes by task and kind (True: regular), in their order. Each group was stored by calls of its own."""
    groups: dict[tuple[str, bool], list[tuple[str, Any]]] = {}
    for task, channel, value in pending:
        groups.setdefault((task, channel not in WRITES_IDX_MAP), []).append((channel, value))
    return groups


def versions_of_values(checkpoint: Checkpoint) -> ChannelVersions:
    """Return the versions of the channels that have a value."""
    versions = checkpoint["channel_versions"]
    return {channel: versions[channel] for channel in checkpoint["channel_values"] if channel in versions}


def writes_of(address: Address) -> bytes:
    """Return the common prefix of the index members of a checkpoint's pending writes."""
    return names.task(address.checkpoint_ns, address.checkpoint_id or "", "")[:-1]
