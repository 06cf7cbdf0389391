"""Savers of other packages on Redis and Valkey, as sources. Their keys are read directly.

Their own classes leave out the pending writes of a named checkpoint, and some threads of a server. `RedisDocuments` and
`ValkeyStrings` each know one package: how to find its keys, and how to read its threads and checkpoints. Names may
contain colons and braces, so keys are ambiguous, but their values repeat the names.

In the documents of langgraph-checkpoint-redis an object is a dict with a mark:

    {"lc": 1, "type": "constructor", "id": [...], "kwargs": {...}}    an object of langchain_core, such as a message
    {"lc": 2, "type": "constructor", "id": [module, ..., name], ...}  any other object, with "kwargs" or "args"; a set
                                                                      with "args", or kwargs.__set_items__ (before 0.5);
                                                                      "method" (0.1) makes an object of one argument
    {"__interrupt__": true, "value": ..., "id": ...}                  an Interrupt; without the mark in 0.1
    {"__send__": true, "node": ..., "arg": ...}                       a Send
    {"__delta_snapshot__": true, "value": ...}                        a snapshot of a DeltaChannel (from 0.5 on)
    {"__bytes__": base64}                                             bytes, in documents of checkpoints

They become the msgpack extensions that LangGraph's serializer writes for the same objects, so no class is imported.
The exception is objects of langchain_core, which LangChain's own loader makes. It allows no others.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import ormsgpack
from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import LC_REVIVER, JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT

from redis_saver._checkpoint.comparing import Record, Task, record, task_of
from redis_saver._checkpoint.listing import mapped, scan_keys
from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._client.base import RedisDriver
from redis_saver._common import config, names
from redis_saver._common.display import shown
from redis_saver._engine.requests import Batch, Command, Operation, Stream, T
from redis_saver._migrate.endpoints import Entry, Source, TaskInfo, ThreadOutline, is_sound, special
from redis_saver._storage.opaque import OpaqueSerializer
from redis_saver.errors import EndpointError

COMMANDS_PER_BATCH, VALUES_PER_BATCH = 500, 20
"""Maximum commands per batch, and maximum commands per batch with long replies."""


class Head(NamedTuple):
    """Names in the value of another saver's key."""

    thread: str
    key: bytes
    prefix: str | None
    """Beginning of a checkpoint's key, without the separator. It is None for other keys."""
    at: CheckpointKey = ("", "")
    """The checkpoint, or the checkpoint of a write."""
    parent: Any = None
    task: str = ""
    number: int = 0
    """Index among the task's writes, negative for special channels."""
    path: str | None = None
    channel: str = ""


ThreadKeys: TypeAlias = dict[str, dict[bytes, str | None]]
"""The keys of each thread, with the prefixes of those that are checkpoints."""


def by_thread(heads: Iterable[Head]) -> ThreadKeys:
    """Group keys by thread. Threads without a checkpoint are left out."""
    keys: ThreadKeys = {}
    for head in heads:
        keys.setdefault(head.thread, {})[head.key] = head.prefix
    return {thread: prefixes for thread, prefixes in keys.items() if set(prefixes.values()) != {None}}


class ForeignSource(Source):
    """A saver of another package. Its keys are listed once, at the first use."""

    kind: ClassVar[str]
    """Name of the package, also in URLs."""
    pattern: ClassVar[bytes]
    redis_type: ClassVar[bytes]
    """SCAN pattern and Redis type of the keys that `heads` reads."""
    get: ClassVar[str]
    """Command that returns a value as JSON."""
    refusals: tuple[type[Exception], ...] = (*Source.refusals, AttributeError, RecursionError)
    """Other programs' documents may have any form and depth, so their errors are included."""

    def __init__(self, driver: RedisDriver, serde: SerializerProtocol, name: str, prefix: str | None) -> None:
        """Use a driver. The caller closes its client.

        Args:
            driver: Driver of the server, which is only read.
            serde: Serializer of the values. See `decode`.
            name: Name of the server in messages, without a password.
            prefix: Beginning of the keys. None accepts any prefix that all checkpoints share.
        """
        self.failures, self.name = driver.failures, name
        self.driver, self.prefix = driver, prefix
        self._serde = self._given_serde = serde
        self._keys: ThreadKeys | None = None

    def decode(self, *, objects: bool) -> None:
        """Set whether values are decoded to objects (if the target is a saver) or stay packed."""
        self._serde = _with_objects(self._given_serde) if objects else self._given_serde

    def _threads(self) -> Iterable[str]:
        return self._known()

    def _known(self) -> ThreadKeys:
        if self._keys is None:
            heads = self.driver.stream(self.scan())
            keys = by_thread(head for head in heads if None in (self.prefix, head.prefix) or head.prefix == self.prefix)
            prefixes = Counter(prefix for found in keys.values() for prefix in found.values() if prefix is not None)
            if len(prefixes) > 1:
                counts = ", ".join(f"{shown(prefix)} ({count:,})" for prefix, count in sorted(prefixes.items()))
                raise EndpointError(f"{self.name}: several prefixes: {counts}. Choose one: --source-prefix, or prefix=")
            self._keys = keys
        return self._keys

    def _outline(self, thread: str) -> ThreadOutline:
        outline = self.driver.run(self._survey(thread))
        for key, entry in outline.items():
            if not isinstance(entry.parent, str | None):
                raise TypeError(f"the parent of checkpoint {shown(key[1])} is {shown(entry.parent)}")
        return outline

    def _survey(self, thread: str) -> Operation[ThreadOutline]:
        heads = yield from self.heads(list(self._known().get(thread, ())))
        return (yield from self.entries([head for head in heads if head.thread == thread]))

    def _record(self, thread: str, key: CheckpointKey, entry: Entry) -> Record | None:
        saved = self.driver.run(self._read(thread, key, entry))
        if saved is not None and not is_sound(saved.checkpoint, saved.metadata):
            raise ValueError("it does not have the form of a checkpoint with its metadata")
        return saved

    def _read(self, thread: str, key: CheckpointKey, entry: Entry) -> Operation[Record | None]:
        """Read a checkpoint with its pending writes. Return None if it was deleted."""
        document, *rest = map(_parsed, (yield from batched([Command((self.get, key)) for key in entry.keys])))
        if document is None:
            return None
        checkpoint, metadata = self.load(document)
        stored = [write for part in rest for write in (part if isinstance(part, list) else [part]) if write is not None]
        writes = [(write["task_id"], write["channel"], self.written(write)) for write in stored]
        if not all(isinstance(task, str) and isinstance(channel, str) for task, channel, _ in writes):
            raise ValueError("a pending write has no task or no channel")
        under = config.to_config(thread, key[0], entry.parent) if entry.parent else None
        saved = CheckpointTuple(config.to_config(thread, *key), checkpoint, metadata, under, writes)
        return record(saved, {task: info.path for task, info in entry.tasks.items()})

    @classmethod
    def scan(cls) -> Stream[Head]:
        """Find the saver's keys by SCAN."""
        return mapped(scan_keys(cls.pattern), cls._named)

    @classmethod
    def _named(cls, keys: Sequence[bytes]) -> Operation[list[Head]]:
        types = yield from batched([Command(("TYPE", key)) for key in keys])
        typed_keys = [key for key, kind in zip(keys, types, strict=True) if raw(kind) == cls.redis_type]
        return (yield from cls.heads(typed_keys))

    @classmethod
    @abstractmethod
    def heads(cls, keys: Sequence[bytes]) -> Operation[list[Head]]:
        """Read the names in values. Skip deleted keys and other programs' keys."""

    @abstractmethod
    def entries(self, heads: Sequence[Head]) -> Operation[ThreadOutline]:
        """Find the checkpoints of a thread, and their tasks."""

    @abstractmethod
    def load(self, document: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the checkpoint and the metadata in a value."""

    @abstractmethod
    def written(self, write: Mapping[str, Any]) -> Any:
        """Return the value of a pending write."""


def _with_objects(serde: SerializerProtocol) -> SerializerProtocol:
    """Return a serializer that decodes objects instead of leaving them packed."""
    if isinstance(serde, OpaqueSerializer):
        return JsonPlusSerializer()
    if isinstance(serde, EncryptedSerializer):
        return EncryptedSerializer(serde.cipher, _with_objects(serde.serde))
    return serde


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
    """Read long values, a few at a time, and return a summary of each."""
    summaries = list[T]()
    for start in range(0, len(keys), VALUES_PER_BATCH):
        some = keys[start : start + VALUES_PER_BATCH]
        # No variable keeps the replies alive.
        summaries += map(summary, (yield Batch([Command((command, key)) for key in some])))
    return summaries


def _parsed(reply: Any) -> Any:
    """Parse JSON, unless the client has parsed it, as it does after a call of redis-py's `json()`."""
    return json.loads(reply) if isinstance(reply, (bytes, str)) else reply


# -- langgraph-checkpoint-aws

_HEAD_BYTES = 1000
"""Number of bytes of a text that are read to find its names. If the names are longer, the whole text is read."""
_NAMES = ("thread_id", "checkpoint_id", "parent_checkpoint_id")
_TEXT = rb'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(rb'\{"thread_id":(T),"checkpoint_id":(T),"parent_checkpoint_id":(T|null),'.replace(b"T", _TEXT))


class ValkeyStrings(ForeignSource):
    """The JSON texts of ValkeySaver (langgraph-checkpoint-aws), in strings.

        checkpoint:{<thread>}:<namespace>:<checkpoint>   a checkpoint: its names, then LangGraph's format in base64
        writes:{<thread>}:<namespace>:<checkpoint>       list of its pending writes
        thread:{<thread>}:<namespace>                    list of checkpoint ids, which is not needed here

    Tasks have no paths.
    """

    kind = "langgraph-checkpoint-aws"
    pattern, redis_type, get = b"checkpoint:{*", b"string", "GET"

    @classmethod
    def heads(cls, keys: Sequence[bytes]) -> Operation[list[Head]]:
        """Read the names in checkpoints."""
        beginnings = yield from batched([Command(("GETRANGE", key, 0, _HEAD_BYTES - 1)) for key in keys])
        matches = [_HEAD.match(raw(beginning)) for beginning in beginnings]
        rows = [_parsed_or_none(b"[%s]" % b",".join(match.groups())) if match else None for match in matches]
        longer = [at for at, values in enumerate(rows) if values is None]
        for at, values in zip(longer, (yield from summarized("GET", [keys[at] for at in longer], _names)), strict=True):
            rows[at] = values
        heads = [_string_head(key, *values) for key, values in zip(keys, rows, strict=True) if values]
        return [head for head in heads if head is not None]

    def entries(self, heads: Sequence[Head]) -> Operation[ThreadOutline]:
        """Find the checkpoints of a thread, and their tasks."""
        writes = [b"writes" + head.key.removeprefix(b"checkpoint") for head in heads]
        tasks = yield from summarized("GET", writes, self._tasks)
        rows = zip(heads, writes, tasks, strict=True)
        return {head.at: Entry(head.parent, some, (head.key, key)) for head, key, some in rows}

    def _tasks(self, stored: Any) -> Mapping[Task, TaskInfo]:
        tasks: dict[Task, TaskInfo] = {}
        for write in json.loads(stored or "[]"):
            task = task_of(write["task_id"], write["channel"])
            tasks[task] = TaskInfo(None, special(task, self.written(write)) if task[1] else b"")
        return tasks

    def load(self, document: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the checkpoint and the metadata in a text."""
        checkpoint = self._serde.loads_typed((document["type"], base64.b64decode(document["checkpoint"])))
        return checkpoint, json.loads(base64.b64decode(document["metadata"]) or "{}")

    def written(self, write: Mapping[str, Any]) -> Any:
        """Return the value of a pending write."""
        return self._serde.loads_typed((write["type"], base64.b64decode(write["value"])))


def _names(text: Any) -> list[Any] | None:
    """Return the names in a checkpoint's text, or None for another text."""
    fields = _parsed_or_none(text or "null")
    return list(map(fields.get, _NAMES)) if isinstance(fields, dict) else None


def _parsed_or_none(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _string_head(key: bytes, thread: Any, checkpoint_id: Any, parent: Any) -> Head | None:
    if not isinstance(thread, str) or not isinstance(checkpoint_id, str):
        return None
    before, after = names.encode(f"checkpoint:{{{thread}}}:"), names.encode(f":{checkpoint_id}")
    if not (key.startswith(before) and key.endswith(after) and len(key) >= len(before) + len(after)):
        return None
    ns = names.decode(key[len(before) : -len(after)])
    return Head(thread, key, "checkpoint", (ns, checkpoint_id), parent or None)


# -- langgraph-checkpoint-redis

_CHECKPOINT = ("$.thread_id", "$.checkpoint_ns", "$.checkpoint_id", "$.parent_checkpoint_id")
_WRITE = ("$.task_id", "$.idx", "$.task_path", "$.channel")
_NO_NAMESPACE = "__empty__"
_NO_ID = "00000000-0000-0000-0000-000000000000"
_ONE_ARGUMENT, _ARGUMENTS, _KEYWORDS, _METHOD, _SNAPSHOT = 0, 1, 2, 3, 7
"""Codes of LangGraph's msgpack extensions."""
_SERIALIZER = OpaqueSerializer()
_NOT_REVIVED = (ValueError, TypeError, LookupError, AttributeError, ImportError, NotImplementedError)
"""Errors of LangChain's loader for unknown or forbidden objects."""


class RedisDocuments(ForeignSource):
    """The documents of langgraph-checkpoint-redis since 0.1: JSON for each checkpoint and each pending write.

        <prefix>:<thread>:<namespace>:<checkpoint>             a checkpoint of RedisSaver, with its channels' values
        <prefix>:<thread>:<namespace>                          the newest checkpoint of ShallowRedisSaver
        <writes>:<thread>:<namespace>:<checkpoint>:<task>:<n>  a pending write; n is its index

    An empty namespace is `__empty__` in keys and documents, but empty in the keys of ShallowRedisSaver and in the
    documents of AsyncShallowRedisSaver. Documents are found with any prefix, by their type and the names in them. All
    other keys (pointers to the newest checkpoint, lists of keys, search indexes) are not needed.

    Release 0.1 stored the plain JSON of a pending write; since 0.2 it is in base64. A thread may have both. Release 0.0
    named the parent instead of the checkpoint, so a thread with such documents is refused.
    """

    kind = "langgraph-checkpoint-redis"
    pattern, redis_type, get = b"*", b"ReJSON-RL", "JSON.GET"

    @classmethod
    def heads(cls, keys: Sequence[bytes]) -> Operation[list[Head]]:
        """Read the names in documents."""
        replies = yield from batched([Command(("JSON.GET", key, *_CHECKPOINT, *_WRITE)) for key in keys])
        heads = [_document_head(key, reply) for key, reply in zip(keys, map(_parsed, replies), strict=True)]
        return [head for head in heads if head is not None]

    def entries(self, heads: Sequence[Head]) -> Operation[ThreadOutline]:
        """Find the checkpoints of a thread, and their tasks.

        Raises:
            ValueError: The thread has documents of release 0.0, which have the parent's id or none, but not their own.
        """
        if any(head.prefix is not None and head.at[1] in ("", head.parent) for head in heads):
            raise ValueError("documents of langgraph-checkpoint-redis 0.0 lack ids: copy its state with that release")
        # If both savers stored a checkpoint, RedisSaver's document wins, because it names the parent.
        by_parent = sorted(heads, key=lambda head: head.parent is not None)
        checkpoints = {head.at: head for head in by_parent if head.prefix is not None}
        writes: dict[CheckpointKey, dict[tuple[str, int], Head]] = {}
        for head in heads:
            if head.prefix is None:
                writes.setdefault(head.at, {})[head.task, head.number] = head
        specials = [write.key for some in writes.values() for write in some.values() if write.channel in WRITES_IDX_MAP]
        digests = dict(zip(specials, (yield from summarized("JSON.GET", specials, self._digest)), strict=True))
        outline: ThreadOutline = {}
        for key, head in checkpoints.items():
            tasks, ordered = dict[Task, TaskInfo](), sorted(writes.get(key, {}).values(), key=_order)
            for write in ordered:
                info = TaskInfo(write.path, digests.get(write.key, b""))
                tasks.setdefault(task_of(write.task, write.channel), info)
            outline[key] = Entry(head.parent, tasks, (head.key, *(write.key for write in ordered)))
        return outline

    def _digest(self, stored: Any) -> bytes:
        """Return the digest of a value of a special channel. It is empty if the value was deleted."""
        if (document := _parsed(stored)) is None:
            return b""
        return special(task_of(document["task_id"], document["channel"]), self.written(document))

    def load(self, document: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the checkpoint and the metadata in a document."""
        stored, metadata = _parsed(document["checkpoint"]), _parsed(document["metadata"])
        checkpoint = {name: value for name, value in stored.items() if name not in ("type", "pending_sends")}
        checkpoint["channel_values"] = {
            channel: self._serde.loads_typed(typed(value, marked_bytes=True))
            for channel, value in (stored["channel_values"] or {}).items()
        }
        return checkpoint, metadata

    def written(self, write: Mapping[str, Any]) -> Any:
        """Return the value of a pending write."""
        kind, blob = write["type"], write["blob"]
        if kind != "json":
            data = base64.b64decode(blob, validate=True)
            return self._serde.loads_typed(("bytes" if kind == "base64" else kind, data))
        try:
            value = json.loads(blob)  # 0.1; base64 of JSON never parses as JSON
        except json.JSONDecodeError:
            value = json.loads(base64.b64decode(blob, validate=True))
        if write["channel"] == INTERRUPT and isinstance(value, list):  # 0.1 has no mark
            marked = {"__interrupt__": True}
            value = [{**each, **marked} if isinstance(each, dict) and "id" in each else each for each in value]
        return self._serde.loads_typed(typed(value, marked_bytes=False))


def _order(head: Head) -> tuple[str, str, int, bytes]:
    """Sort key of pending writes: by task as in LangGraph, then in the order of writing."""
    return head.path or "", head.task, head.number, head.key


def _document_head(key: bytes, reply: Any) -> Head | None:
    if not isinstance(reply, dict):
        return None
    fields = {path: values[0] for path, values in reply.items() if values}
    thread, ns, checkpoint_id, parent = map(fields.get, _CHECKPOINT)
    task, number, path, channel = map(fields.get, _WRITE)
    if not (isinstance(thread, str) and isinstance(ns, str) and isinstance(checkpoint_id, str)):
        return None
    thread_id, at = _without(thread, _NO_ID), (_without(ns, _NO_NAMESPACE), _without(checkpoint_id, _NO_ID))
    in_key = f":{thread}:{ns or _NO_NAMESPACE}:{checkpoint_id}"
    if isinstance(task, str) and isinstance(number, int) and isinstance(channel, str):
        if _prefix(key, f"{in_key}:{task}:{number}") is None:
            return None
        return Head(thread_id, key, None, at, None, task, number, path, channel)
    if (prefix := _prefix(key, in_key)) is None and (prefix := _prefix(key, f":{thread}:{at[0]}")) is None:
        return None
    return Head(thread_id, key, prefix, at, _without(parent or "", _NO_ID) or None)


def _without(name: str, stand_in: str) -> str:
    return "" if name == stand_in else name


def _prefix(key: bytes, rest: str) -> str | None:
    """Return the beginning of a key that ends with `rest`, or None for another key."""
    end = rest.encode("utf-8", "surrogatepass")
    return key.removesuffix(end).decode("utf-8", "backslashreplace") if key.endswith(end) else None


def typed(value: Any, *, marked_bytes: bool) -> tuple[str, bytes]:
    """Encode parsed JSON as LangGraph's serializer would, to a type and bytes.

    Args:
        value: The parsed value.
        marked_bytes: True if `{"__bytes__": ...}` means bytes.

    Raises:
        ValueError: Msgpack cannot represent the value, for example an integer of more than 64 bits.
    """
    try:
        return _SERIALIZER.dumps_typed(_value(value, marked_bytes))
    except ormsgpack.MsgpackEncodeError as error:
        raise ValueError(f"LangGraph's serializer cannot encode it: {error}") from error


def _value(value: Any, marked_bytes: bool) -> Any:
    if isinstance(value, list):
        return [_value(item, marked_bytes) for item in value]
    if not isinstance(value, dict):
        return value
    if marked_bytes and value.keys() == {"__bytes__"}:
        try:
            return base64.b64decode(value["__bytes__"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            pass
    return _revived({key: _value(item, marked_bytes) for key, item in value.items()})


def _revived(fields: dict[str, Any]) -> Any:
    """Return the object that a dict stands for, or the dict itself. Its values are already converted."""
    if fields.get("__interrupt__") is True and "value" in fields:
        rest = {name: value for name, value in fields.items() if name != "__interrupt__"}
        return _packed(_KEYWORDS, "langgraph.types", "Interrupt", rest)
    if fields.get("__send__") is True and fields.keys() == {"__send__", "node", "arg"}:
        return _packed(_ARGUMENTS, "langgraph.types", "Send", (fields["node"], fields["arg"]))
    if fields.get("__delta_snapshot__") is True and fields.keys() == {"__delta_snapshot__", "value"}:
        return ormsgpack.Ext(_SNAPSHOT, _pack(fields["value"]))
    return _constructed(fields) if fields.get("type") == "constructor" else fields


def _constructed(fields: dict[str, Any]) -> Any:
    name = fields.get("id")
    is_name = isinstance(name, list) and len(name) > 1 and all(isinstance(part, str) for part in name)
    if fields.get("lc") == 2 and is_name:
        return _of_class(fields)
    try:
        return LC_REVIVER(fields) if fields.get("lc") == 1 else fields
    except _NOT_REVIVED:
        return fields  # as their own saver returns it


def _of_class(fields: dict[str, Any]) -> Any:
    *parts, name = fields["id"]
    module, args, kwargs = ".".join(parts), fields.get("args"), fields.get("kwargs")
    if (module, name) == ("builtins", "set"):
        items = args[0] if args else (kwargs or {}).get("__set_items__", ())
        return _packed(_ONE_ARGUMENT, "builtins", "set", tuple(sorted(items, key=_pack)))  # equal sets, equal bytes
    if args and kwargs:
        return fields
    if isinstance(method := fields.get("method"), str):
        return _packed(_METHOD, module, name, args[0], method) if args and len(args) == 1 else fields
    if args:
        return _packed(_ARGUMENTS, module, name, tuple(args))
    return _packed(_KEYWORDS, module, name, kwargs or {})


def _packed(code: int, *parts: Any) -> ormsgpack.Ext:
    """Pack an object by the module and name of its class, its arguments, and its constructor method, if any."""
    return ormsgpack.Ext(code, _pack(parts))


def _pack(value: Any) -> bytes:
    kind, data = _SERIALIZER.dumps_typed(value)
    return data if kind == "msgpack" else ormsgpack.packb(value)
