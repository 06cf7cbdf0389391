r"""Threads in a file: all of them one after the other, each with its checkpoints from the oldest to the newest.

    redis-saver threads 1\n           the file's first line
    <length><check><record> ...      two big-endian 32-bit numbers, then so many bytes of msgpack; the check is `checksum`

A record is an array. Its first element says what it is:

    ["thread", name]                 what follows, up to the next, is of this thread
    ["bytes", bytes]                 numbered from 0 in each thread
    ["checkpoint", {ns, id, parent,  parent: an id, or nil
        checkpoint: value,           the checkpoint without its id and its channel_values
        metadata: value,
        values: {channel: value},
        writes: [[task id, index, path, [[channel, value], ...]], ...]}]
                                     index: 0 for the regular writes of a task, that of WRITES_IDX_MAP for one to a special channel
    ["end", threads, checkpoints]    how many there were; the last record

A value is an array [type, [number, ...]]: the type that LangGraph's serializer gave, and the bytes it gave: those with these
numbers, joined. So what versions of a value share is in the file once for each thread.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._common.display import printable, shown
from redis_saver._common.limits import Allowance, Limits
from redis_saver._migrate.records import Entry, Key, Record, TaskInfo, ThreadOutline, Writes
from redis_saver._storage.opaque import fingerprint
from redis_saver.errors import FileDamaged, moving

FIRST_LINE = b"redis-saver threads 1\n"
_FORMS = {"thread": (str,), "bytes": (bytes,), "checkpoint": (dict,), "end": (int, int)}
FRAME = struct.Struct(">II")
_UNREADABLE = "a checkpoint of thread {!r} in {} cannot be read"


def checksum(data: bytes, at: int) -> int:
    """The check in front of a record: a CRC-32 of its bytes that begins with its position, so that it also shows that a record was added or removed."""
    return crc32(data, at & 0xFFFFFFFF)


class Values:
    """What reading and writing files of threads have in common: how values are read and compared."""

    text_versions = False

    def __init__(self, path: Path, serde: SerializerProtocol) -> None:
        self.name: str = f"file {shown(str(path))}"
        self._path, self._serde = path, serde

    def as_stored(self, metadata: Mapping[str, Any]) -> Any:
        """Metadata as the file gives them back: unchanged."""
        return metadata

    def _outline(self, file: BinaryIO, thread: str) -> ThreadOutline:
        outline: ThreadOutline = {}
        for raw, load in self._walk(file):
            with moving(_UNREADABLE, thread, self.name):
                tasks = {}
                for task_id, index, path, writes in raw["writes"]:
                    value = fingerprint(load(writes[-1][1])) if index else b""
                    tasks[task_id, index] = TaskInfo(path, value)
                outline[raw["ns"], raw["id"]] = Entry(raw["parent"], tasks)
        return outline

    def _records(self, file: BinaryIO, thread: str, wanted: Collection[Key]) -> Iterator[Record]:
        for raw, load in self._walk(file):
            with moving(_UNREADABLE, thread, self.name):
                if (key := (raw["ns"], raw["id"])) not in wanted:
                    continue
                values = {channel: load(value) for channel, value in raw["values"].items()}
                checkpoint: Any = {**load(raw["checkpoint"]), "id": raw["id"], "channel_values": values}
                writes = [
                    Writes((task, index), path, [(channel, load(value)) for channel, value in some])
                    for task, index, path, some in raw["writes"]
                ]
                metadata: Any = load(raw["metadata"])
                if not _is_sound(checkpoint, metadata):
                    raise ValueError("the record is not a checkpoint with its metadata")
                one = Record(key, raw["parent"], checkpoint, metadata, writes)
            yield one

    def _walk(self, file: BinaryIO) -> Iterator[tuple[dict[str, Any], Callable[[Any], Any]]]:
        """The checkpoints of the thread at the file's position, each with a function that loads its values."""
        shared: list[bytes] = []

        def load(value: Any) -> Any:
            kind, numbers = value
            if min(numbers, default=0) < 0:
                raise ValueError("the record refers to a negative number of bytes")
            found = [shared[number] for number in numbers]
            if len(set(numbers)) < len(numbers):  # a few bytes that are named many times may become any number
                Allowance(Limits(), self.name).unfold("value_bytes", sum(map(len, found)))
            return self._serde.loads_typed((kind, b"".join(found)))

        for kind, *rest in _frames(file, self.name):
            if kind == "bytes":
                shared.append(rest[0])
            elif kind == "checkpoint":
                yield rest[0], load
            else:
                return


class FileSource(Values):
    """A file of threads. Opening it checks all of it; after that it is read again, thread by thread."""

    def __init__(self, path: Path, serde: SerializerProtocol) -> None:
        """Check a file.

        Raises:
            FileDamaged: It is no such file, or not all of it.
            OSError: It cannot be read.
        """
        super().__init__(path, serde)
        self._file = path.open("rb")
        self._places: dict[str, int] = {}
        with ExitStack() as unless_sound:
            unless_sound.callback(self._file.close)
            self._check()
            unless_sound.pop_all()

    def _check(self) -> None:
        """Read all records once, and note where threads begin."""
        if self._file.readline(len(FIRST_LINE)) != FIRST_LINE:
            said = FIRST_LINE.decode().strip()
            raise FileDamaged(
                f"{self.name} is not a file that this version of redis-saver export wrote: it does not begin with {said!r}. Nothing was read from it"
            )
        checkpoints, end = 0, None
        for kind, *rest in _frames(self._file, self.name):
            if end is not None:
                break
            if kind == "thread":
                self._places[rest[0]] = self._file.tell()
            checkpoints += kind == "checkpoint"
            end = rest if kind == "end" else None
        if end != [len(self._places), checkpoints] or self._file.read(1):
            raise FileDamaged(
                f"{self.name} is not whole: it has {len(self._places)} threads and {checkpoints} checkpoints, and its last record says {end}. It was cut "
                "off, or something was added. Export the threads again, or copy the file again. Nothing was read from it"
            )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def threads(self) -> Iterable[str]:
        """The threads in it."""
        return list(self._places)

    def outline(self, thread: str) -> ThreadOutline:
        """What there is of a thread."""
        if thread not in self._places:
            return {}
        self._file.seek(self._places[thread])
        return self._outline(self._file, thread)

    def records(self, thread: str, wanted: Mapping[Key, Entry]) -> Iterator[Record]:
        """The checkpoints that are wanted, as they stand in the file."""
        self._file.seek(self._places[thread])
        return self._records(self._file, thread, wanted)


def _frames(file: BinaryIO, name: str) -> Iterator[list[Any]]:
    """The records from where the file stands."""
    at = file.tell()
    while head := file.read(FRAME.size):
        if len(head) == FRAME.size:
            length, check = FRAME.unpack(head)
            # Reading more than the file has would first allocate the memory for it.
            data = file.read(length) if length <= os.fstat(file.fileno()).st_size - file.tell() else b""
            if len(data) == length and checksum(data, at) == check:
                yield _record(data, name)
                at += FRAME.size + length
                continue
        raise FileDamaged(
            f"{name} is damaged, or cut off, at byte {file.tell()}: export the threads again, or copy the file again. Nothing was read from it"
        )


def _record(data: bytes, name: str) -> list[Any]:
    """The record in these bytes, if they have the form of one."""
    try:
        found: Any = ormsgpack.unpackb(data)
    except ormsgpack.MsgpackDecodeError as error:
        raise FileDamaged(
            f"{name} has a record that is not msgpack: {printable(str(error))}. Nothing was read from it. Export the threads again"
        ) from error
    form = _FORMS.get(found[0]) if isinstance(found, list) and found and isinstance(found[0], str) else None
    is_known = form is not None and tuple(map(type, found[1:])) == form
    if not is_known or (found[0] == "checkpoint" and not _is_checkpoint(found[1])):
        raise FileDamaged(
            f"{name} has a record that this version does not know: {shown(found)}. Nothing was read from it. Import it with the release that exported it"
        )
    return list(found)


def _is_checkpoint(found: dict[Any, Any]) -> bool:
    """Whether this has the form of a checkpoint in a file. Whether its values can be decoded shows later."""
    parts = (found.get(name) for name in ("ns", "id", "parent", "checkpoint", "metadata", "values", "writes"))
    ns, checkpoint_id, parent, checkpoint, metadata, values, writes = parts
    return (
        type(ns) is type(checkpoint_id) is str
        and isinstance(parent, str | None)
        and _is_value(checkpoint)
        and _is_value(metadata)
        and isinstance(values, dict)
        and all(isinstance(channel, str) and _is_value(value) for channel, value in values.items())
        and isinstance(writes, list)
        and all(map(_is_of_task, writes))
    )


def _is_value(found: Any) -> bool:
    """Whether this has the form of a value: a type, and numbers of bytes."""
    return (
        isinstance(found, list)
        and len(found) == 2
        and isinstance(found[0], str)
        and isinstance(found[1], list)
        and all(type(number) is int for number in found[1])
    )


def _is_of_task(found: Any) -> bool:
    """Whether this has the form of a task with its writes."""
    if not isinstance(found, list) or tuple(map(type, found)) != (str, int, str, list):
        return False
    pairs = found[3]
    are_pairs = all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    return are_pairs and bool(pairs) and all(isinstance(channel, str) and _is_value(value) for channel, value in pairs)


def _is_sound(checkpoint: Mapping[str, Any], metadata: object) -> bool:
    """Whether the metadata are a dict, and `channel_versions` and `versions_seen` have the form that LangGraph gives them."""
    seen = checkpoint.get("versions_seen") or {}
    if not isinstance(seen, dict) or not isinstance(metadata, dict):
        return False
    return all(
        isinstance(versions, dict)
        and all(isinstance(channel, str) and _is_version(version) for channel, version in versions.items())
        for versions in (checkpoint.get("channel_versions"), *seen.values())
    )


def _is_version(found: Any) -> bool:
    return isinstance(found, str | int) or (isinstance(found, float) and math.isfinite(found))
