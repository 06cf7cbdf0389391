r"""Threads in a file: all of them one after the other, each with its checkpoints from the oldest to the newest.

The first line is `redis-saver threads 1`; `framed_file.py` has the form of the rest. The records:

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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._common.limits import Allowance, Limits
from redis_saver._migrate import framed_file
from redis_saver._migrate.records import Entry, Key, Record, TaskInfo, ThreadOutline, Writes, is_sound
from redis_saver._storage.opaque import fingerprint
from redis_saver.errors import moving

FIRST_LINE = b"redis-saver threads 1\n"
_FORMS = {"thread": (str,), "bytes": (bytes,), "checkpoint": (dict,), "end": (int, int)}
_UNREADABLE = "a checkpoint of thread {!r} in {} cannot be read"


class Values:
    """What reading and writing files of threads have in common: how values are read and compared."""

    text_versions = False

    def __init__(self, path: Path, serde: SerializerProtocol) -> None:
        self.name: str = framed_file.name_of(path)
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
                if not is_sound(checkpoint, metadata):
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

        for kind, *rest in framed_file.records(file, self.name, _is_record):
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
        framed_file.check_first_line(self._file, FIRST_LINE, self.name)
        checkpoints, end = 0, list[Any]()
        for kind, *rest in framed_file.records_to_end(self._file, self.name, _is_record):
            if kind == "thread":
                self._places[rest[0]] = self._file.tell()
            checkpoints += kind == "checkpoint"
            end = rest
        if end != [len(self._places), checkpoints]:
            found = f"it has {len(self._places)} threads and {checkpoints} checkpoints"
            raise framed_file.not_whole(self.name, f"{found}, and its end says {end}")

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


def _is_record(found: list[Any]) -> bool:
    """Whether this has the form of a record."""
    form = _FORMS.get(found[0])
    return (
        form is not None
        and tuple(map(type, found[1:])) == form
        and (found[0] != "checkpoint" or _is_checkpoint(found[1]))
    )


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
