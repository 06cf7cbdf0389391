r"""Files of threads and of items, as sources and targets.

    redis-saver threads 1\n          or: redis-saver items 1\n
    <length><check><record> ...      two big-endian 32-bit numbers (see `checksum`), then `length` bytes of msgpack

A record is an array that begins with its kind. A file of threads has one thread after the other, each with its oldest
checkpoint first. Its kinds:

    ["thread", name]                 begins a thread
    ["bytes", bytes]                 numbered from 0 in each thread
    ["checkpoint", {ns, id, parent,  parent: an id, or nil
        checkpoint: value,           the checkpoint without its id and its channel_values
        metadata: value,
        values: {channel: value},
        writes: [[task id, index, path, [[channel, value], ...]], ...]}]
                                     index: 0 for the regular writes of a task, or that of WRITES_IDX_MAP for a write
                                     to a special channel
    ["end", threads, checkpoints]    the counts; the last record

A value is an array [type, [number, ...]]: the type from LangGraph's serializer, and the numbers of the byte strings
that, joined, are its bytes. So the common parts of several versions are stored once. Kinds in a file of items:

    ["item", [label, ...], key,      its namespace and key
        type, bytes,                 its value, as LangGraph's serializer encodes it
        created_at, updated_at,      microseconds since 1970
        ttl, expires_at]             milliseconds; milliseconds since 1970; 0 means none
    ["end", items]                   the count; the last record
"""

from __future__ import annotations

import errno
import os
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Annotated, Any, BinaryIO, ClassVar, TypeAlias
from zlib import crc32

import ormsgpack
from langgraph.checkpoint.base import ChannelVersions
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from pydantic import Field, StrictBytes, StrictInt, StrictStr, TypeAdapter
from typing_extensions import Self, TypedDict

from redis_saver._checkpoint.comparing import Record, Task, Writes
from redis_saver._checkpoint.retention import CheckpointKey
from redis_saver._common.display import error_text, printable, shown
from redis_saver._common.limits import Allowance, Limits
from redis_saver._migrate.endpoints import Entry, Items, NotStored, Target, TaskInfo, ThreadOutline, is_sound, special
from redis_saver._storage.chunks import digest, in_pieces
from redis_saver._store.writing import StoredItem
from redis_saver.errors import EndpointError, FileDamaged, RedisSaverError, ThreadMigrationError, decoding_item, moving

try:
    import fcntl
except ImportError:  # on Windows nobody removes the file of a killed process
    fcntl = None  # type: ignore[assignment]

FRAME = struct.Struct(">II")
_AGAIN = "Export it again, or copy the file again. Nothing was read from it"


_Natural: TypeAlias = Annotated[int, Field(strict=True, ge=0)]
_Labels: TypeAlias = Annotated[list[StrictStr], Field(min_length=1)]
_Value: TypeAlias = tuple[StrictStr, list[_Natural]]
_Task: TypeAlias = tuple[
    StrictStr, StrictInt, StrictStr, Annotated[list[tuple[StrictStr, _Value]], Field(min_length=1)]
]


class _Checkpoint(TypedDict):
    ns: StrictStr
    id: StrictStr
    parent: StrictStr | None
    checkpoint: _Value
    metadata: _Value
    values: dict[StrictStr, _Value]
    writes: list[_Task]


def _forms(**forms: Any) -> Mapping[str, TypeAdapter[Any]]:
    return {kind: TypeAdapter(form) for kind, form in forms.items()}


def checksum(data: bytes, at: int) -> int:
    """Return a CRC-32 of a record. It depends on the position, so that it detects added and removed records."""
    return crc32(data, at & 0xFFFFFFFF)


class _File:
    """A file of records: a source or a new target."""

    name: str
    FIRST_LINE: ClassVar[bytes]
    FORMS: ClassVar[Mapping[str, TypeAdapter[Any]]]
    """Forms of records, without the kind, by kind."""
    COUNTED: ClassVar[tuple[str, ...]]
    """Kinds that the last record counts."""

    def __init__(self, name: str, file: BinaryIO, serde: SerializerProtocol) -> None:
        self.name, self._file, self._serde = name, file, serde
        self._counts: Counter[str] = Counter()
        self.encrypts: bool = isinstance(serde, EncryptedSerializer)

    @classmethod
    @contextmanager
    def opened(cls, path: Path, serde: SerializerProtocol, *, target: bool) -> Iterator[Self]:
        """Check a source, or begin a target. A target gets its last record and its name when the `with` block exits.

        Raises:
            FileDamaged: The source is damaged or incomplete, or is another file.
            EndpointError: The target, or a link of that name, exists, or cannot be finished.
            OSError: The source cannot be read, or the target cannot be begun.
        """
        name = f"file {shown(str(path))}"
        with ExitStack() as stack:
            if not target:
                source = cls(name, stack.enter_context(path.open("rb")), serde)
                source._check()
                yield source
                return
            if path.exists() or path.is_symlink():
                raise EndpointError(f"{name} exists already; write another name, or remove it. Nothing was written")
            new = cls(name, stack.enter_context(new_file(path)), serde)
            new._file.write(cls.FIRST_LINE)
            yield new
            try:
                new._file.seek(0, os.SEEK_END)
                new._add("end", *(new._counts[kind] for kind in cls.COUNTED))
                stack.close()
            except OSError as error:
                raise EndpointError(f"{name}: {printable(str(error))}") from error

    def _check(self) -> None:
        """Read all records once."""
        if self._file.readline(len(self.FIRST_LINE)) != self.FIRST_LINE:
            line = self.FIRST_LINE.decode().strip()
            raise FileDamaged(
                f"{self.name} does not begin with {line!r}, so this version does not know it. Nothing was read from it"
            )
        end: list[int] | None = None
        for kind, *rest in self._records():
            if end is not None:
                raise self._not_whole("there is something after its end")
            self._note(kind, rest)
            end = rest if kind == "end" else None
        if end is None:
            raise self._not_whole("it has no end")
        counts = [self._counts[kind] for kind in self.COUNTED]
        if end != counts:
            counted = " and ".join(f"{count} {kind}s" for count, kind in zip(counts, self.COUNTED, strict=True))
            raise self._not_whole(f"it has {counted}, and its end says {end}")

    def _note(self, kind: str, rest: list[Any]) -> None:  # noqa: ARG002
        """Count a record of a source that is being checked."""
        self._counts[kind] += 1

    def _not_whole(self, why: str) -> FileDamaged:
        return FileDamaged(f"{self.name} is damaged: {why}. {_AGAIN}")

    def _records(self) -> Iterator[list[Any]]:
        """Iterate over the records from the file's position on.

        Raises:
            FileDamaged: A record is damaged or has another form.
        """
        at = self._file.tell()
        while head := self._file.read(FRAME.size):
            if len(head) == FRAME.size:
                length, check = FRAME.unpack(head)
                # A read beyond the end of the file would first allocate the memory for it.
                is_there = length <= os.fstat(self._file.fileno()).st_size - self._file.tell()
                data = self._file.read(length) if is_there else b""
                if len(data) == length and checksum(data, at) == check:
                    yield self._parsed(data)
                    at += FRAME.size + length
                    continue
            raise FileDamaged(f"{self.name} is damaged at byte {self._file.tell()}. {_AGAIN}")

    def _parsed(self, data: bytes) -> list[Any]:
        try:
            record: Any = ormsgpack.unpackb(data)
        except ormsgpack.MsgpackDecodeError as error:
            raise self._not_whole(f"a record is not msgpack: {printable(str(error))}") from error
        with suppress(LookupError, TypeError, ValueError):
            kind, *rest = record
            self.FORMS[kind].validate_python(rest)
            return record  # type: ignore[no-any-return]
        raise FileDamaged(
            f"{self.name} has a record that this version does not know: {shown(record)}. Nothing was read from it. "
            "Import it with the release that exported it"
        )

    def _add(self, kind: str, *rest: Any) -> None:
        data = ormsgpack.packb((kind, *rest))
        try:
            self._file.write(FRAME.pack(len(data), checksum(data, self._file.tell())))
            self._file.write(data)
        except OSError as error:
            raise EndpointError(f"{self.name}: {printable(str(error))}") from error
        self._counts[kind] += 1


class ThreadFile(_File, Target):
    """A file of threads. A source is read again for each thread. A target is written one thread after the other."""

    FIRST_LINE = b"redis-saver threads 1\n"
    FORMS = _forms(
        thread=tuple[StrictStr], bytes=tuple[StrictBytes], checkpoint=tuple[_Checkpoint], end=tuple[_Natural, _Natural]
    )
    COUNTED = ("thread", "checkpoint")

    def __init__(self, name: str, file: BinaryIO, serde: SerializerProtocol) -> None:
        """Use an open file. See `opened`."""
        super().__init__(name, file, serde)
        self._positions: dict[str, int] = {}
        """Position of each thread's first record."""
        self._shared: dict[bytes, int] = {}
        """Numbers of the current thread's byte strings, by digest."""
        self._last: tuple[str | None, int, int] = (None, 0, 0)
        """The current thread, its position, and the number of checkpoints before it."""

    def _note(self, kind: str, rest: list[Any]) -> None:
        super()._note(kind, rest)
        if kind == "thread":
            self._positions[rest[0]] = self._file.tell()
            self._counts["thread"] = len(self._positions)

    def _threads(self) -> Iterable[str]:
        return list(self._positions)

    def _outline(self, thread: str) -> ThreadOutline:
        outline: ThreadOutline = {}
        for raw, load in self._walk(thread):
            with self._moving(thread):
                tasks = {
                    (task_id, index): TaskInfo(path, special((task_id, index), load(writes[-1][1]) if index else None))
                    for task_id, index, path, writes in raw["writes"]
                }
                outline[raw["ns"], raw["id"]] = Entry(raw["parent"], tasks)
        return outline

    def records(self, thread: str, wanted: Mapping[CheckpointKey, Entry]) -> Iterator[Record]:
        """Iterate over the wanted checkpoints, in the order of the file."""
        for raw, load in self._walk(thread):
            with self._moving(thread):
                if (key := (raw["ns"], raw["id"])) not in wanted:
                    continue
                values = {channel: load(value) for channel, value in raw["values"].items()}
                checkpoint: Any = {**load(raw["checkpoint"]), "id": raw["id"], "channel_values": values}
                writes = [
                    Writes((task, index), path, [(channel, load(value)) for channel, value in pairs])
                    for task, index, path, pairs in raw["writes"]
                ]
                metadata: Any = load(raw["metadata"])
                if not is_sound(checkpoint, metadata):
                    raise ValueError("the record is not a checkpoint with its metadata")
                saved = Record(key, raw["parent"], checkpoint, metadata, writes)
            yield saved

    def _moving(self, thread: str) -> Any:
        return moving("a checkpoint of thread {!r} in {} cannot be read", thread, self.name)

    def _walk(self, thread: str) -> Iterator[tuple[dict[str, Any], Callable[[Any], Any]]]:
        """Iterate over a thread's checkpoints, each with a function that decodes its values."""
        shared: list[bytes] = []

        def load(value: Any) -> Any:
            kind, numbers = value
            pieces = [shared[number] for number in numbers]
            if len(set(numbers)) < len(numbers):  # repeated numbers may make a few bytes huge
                Allowance(Limits(), self.name).unfold("value_bytes", sum(map(len, pieces)))
            return self._serde.loads_typed((kind, b"".join(pieces)))

        if thread not in self._positions:
            return
        self._file.seek(self._positions[thread])
        for kind, *rest in self._records():
            if kind == "bytes":
                shared.append(rest[0])
            elif kind == "checkpoint":
                yield rest[0], load
            else:
                return

    def write(self, thread: str, saved: Record, new: ChannelVersions | None, _: Collection[Task]) -> None:
        """Add a checkpoint with all its values and writes.

        Raises:
            ThreadMigrationError: The checkpoint cannot be written, or it got new writes during the export.
        """
        if new is None:
            raise ThreadMigrationError(f"{saved} was changed during the export; export it again")
        end = self._file.seek(0, os.SEEK_END)  # reads moved the position
        try:
            if thread not in self._positions:
                self._shared.clear()
                self._last = thread, end, self._counts["checkpoint"]
                self._add("thread", thread)
                self._positions[thread] = self._file.tell()
            self._add("checkpoint", self._raw(saved))
        except (TypeError, ValueError) as error:
            raise ThreadMigrationError(f"{saved} cannot be written to {self.name}: {error_text(error)}") from error

    def abandon(self, thread: str) -> None:
        """Remove the thread from the file, if it is the last one."""
        last, start, checkpoints = self._last
        if thread == last:
            self._file.seek(start)
            self._file.truncate()
            self._positions.pop(thread, None)
            self._last = None, start, checkpoints
            self._counts["thread"], self._counts["checkpoint"] = len(self._positions), checkpoints

    def _raw(self, saved: Record) -> dict[str, Any]:
        rest = {name: value for name, value in saved.checkpoint.items() if name not in ("id", "channel_values")}
        return {
            "ns": saved.key[0],
            "id": saved.key[1],
            "parent": saved.parent,
            "checkpoint": self._value(rest),
            "metadata": self._value(saved.metadata),
            "values": {channel: self._value(value) for channel, value in saved.checkpoint["channel_values"].items()},
            "writes": [
                [*writes.task, writes.path, [[channel, self._value(value)] for channel, value in writes.writes]]
                for writes in saved.writes
            ],
        }

    def _value(self, value: Any) -> list[Any]:
        """Return a value as the numbers of its byte strings. New byte strings are written first."""
        kind, data = self._serde.dumps_typed(value)
        numbers = []
        for piece in in_pieces(kind, data):
            key = digest(piece)
            if key not in self._shared:
                self._shared[key] = len(self._shared)
                self._add("bytes", piece)
            numbers.append(self._shared[key])
        return [kind, numbers]


class ItemFile(_File, Items):
    """A file of items."""

    FIRST_LINE = b"redis-saver items 1\n"
    FORMS = _forms(
        item=tuple[_Labels, StrictStr, StrictStr, StrictBytes, _Natural, _Natural, _Natural, _Natural],
        end=tuple[_Natural],
    )
    COUNTED = ("item",)

    def items(self, labels: tuple[str, ...]) -> Iterator[StoredItem | RedisSaverError]:
        """Iterate over the items of a namespace and its children, in the order of the file."""
        self._file.seek(len(self.FIRST_LINE))
        for kind, *rest in self._records():
            if kind == "item" and tuple(rest[0][: len(labels)]) == labels:
                yield self._item(*rest)

    def _item(self, labels: list[str], key: str, kind: str, data: bytes, *times: Any) -> StoredItem | RedisSaverError:
        namespace = tuple(labels)
        try:
            with decoding_item("item {!r} of namespace {!r}", key, namespace):
                value = self._serde.loads_typed((kind, data))
        except RedisSaverError as error:
            return error
        created_at, updated_at, ttl, expires_at = times
        return StoredItem(namespace, key, value, created_at, updated_at, ttl, expires_at, len(data))

    def look_up(self, items: Sequence[StoredItem]) -> list[StoredItem | RedisSaverError | None]:
        """Return None for each item, because a target is empty."""
        return [None] * len(items)

    def write(self, wanted: Sequence[tuple[StoredItem, int]]) -> NotStored:
        """Add items."""
        not_stored: NotStored = []
        for item, _ in wanted:
            try:
                kind, data = self._serde.dumps_typed(item.value)
                self._add("item", item.namespace, item.key, kind, data, *item[3:7])
            except (TypeError, ValueError) as error:  # noqa: PERF203
                not_stored.append((item, self.not_stored(item, error, error_text(error))))
        return not_stored


# -- new files

_PREFIX, _SUFFIX = ".redis-saver-", ".part"


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file. If the block exits without an error, it replaces any file or link of that name.

    Only its owner can read it. It is written in its folder under a random name, and gets its own name when it is
    complete and on disk. It opens no existing file, follows no link, and inherits no permissions. A killed process
    leaves `.redis-saver-*.part`, which the next new file in that folder removes. A living process locks its file.

    Raises:
        OSError: The folder is missing or not writable, or the disk is full or fails.
    """
    descriptor, name = _new_part(path.parent)
    part = Path(name)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync a folder
                raise
        finally:
            os.close(folder)


def _new_part(folder: Path) -> tuple[int, str]:
    """Remove unfinished files of dead processes. Then make a file, and lock it until it is closed."""
    if fcntl is None:
        return mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder)
    for part in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        # OSError: its process is alive, or the file system has no locks.
        with suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()
    while True:
        descriptor, name = mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, name
        os.close(descriptor)  # another process removed it before it was locked


def make_empty(path: Path) -> None:
    """Make an empty file for a library that opens it by name. An existing file stays.

    Raises:
        OSError: The file cannot be made, or its name is a broken link.
    """
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))


def make_folder(path: Path) -> None:
    """Make a folder and its parents, unless they exist.

    Raises:
        OSError: A folder cannot be made.
    """
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
