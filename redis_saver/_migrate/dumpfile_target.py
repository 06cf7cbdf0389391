"""Writes a file of threads. Its form is in `dumpfile.py`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from langgraph.checkpoint.base import ChannelVersions
from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._common.display import error_text
from redis_saver._migrate.dumpfile import FIRST_LINE, Values
from redis_saver._migrate.framed_file import FramedFile
from redis_saver._migrate.records import Entry, Key, Record, Task, ThreadOutline
from redis_saver._storage.chunks import digest
from redis_saver.errors import ThreadMigrationError


class FileTarget(Values, FramedFile):
    """A file that gets its name when it is complete. The checkpoints of a thread are written one after the other, without others between."""

    def __init__(self, path: Path, serde: SerializerProtocol) -> None:
        """Begin a file.

        Raises:
            EndpointError: A file, or a link, of that name exists already.
            OSError: It cannot be written.
        """
        Values.__init__(self, path, serde)
        FramedFile.__init__(self, path, FIRST_LINE)
        self._places: dict[str, int] = {}
        self._checkpoints = 0
        self._began: tuple[str | None, int, int] = (None, 0, 0)
        """The last thread, where it begins, and how many checkpoints come before."""
        self._shared: dict[bytes, int] = {}
        """The numbers of byte strings in the thread that is being written, by their digest."""

    def threads(self) -> Iterable[str]:
        """The threads that were written."""
        return list(self._places)

    def outline(self, thread: str) -> ThreadOutline:
        """What was written of a thread."""
        if thread not in self._places:
            return {}
        with self._reading(thread) as file:
            return self._outline(file, thread)

    def records(self, thread: str, wanted: Mapping[Key, Entry]) -> Iterator[Record]:
        """Checkpoints that were written."""
        with self._reading(thread) as file:
            yield from self._records(file, thread, wanted)

    @contextmanager
    def _reading(self, thread: str) -> Iterator[BinaryIO]:
        self._file.seek(self._places[thread])
        try:
            yield self._file
        finally:
            self._file.seek(0, os.SEEK_END)

    def write(self, thread: str, one: Record, new: ChannelVersions | None, tasks: Collection[Task]) -> None:  # noqa: ARG002
        """Add a checkpoint with all its values and writes.

        Raises:
            ThreadMigrationError: It cannot be written, or got writes after it was.
        """
        if new is None:
            raise ThreadMigrationError(f"{one} was written to while it was exported; export it again")
        try:
            if thread not in self._places:
                self._shared.clear()
                self._began = thread, self._file.seek(0, os.SEEK_END), self._checkpoints
                self._add("thread", thread)
                self._places[thread] = self._file.tell()
            self._add_checkpoint(one)
        except (TypeError, ValueError) as error:
            raise ThreadMigrationError(f"{one} cannot be written to {self.name}: {error_text(error)}") from error
        self._checkpoints += 1

    def abandon(self, thread: str) -> None:
        """Take the thread out of the file, if it is the last in it."""
        last, start, checkpoints = self._began
        if thread == last:
            self._file.seek(start)
            self._file.truncate()
            self._places.pop(thread, None)
            self._began, self._checkpoints = (None, start, checkpoints), checkpoints

    def _add_checkpoint(self, one: Record) -> None:
        rest = {key: value for key, value in one.checkpoint.items() if key not in ("id", "channel_values")}
        said = {
            "ns": one.key[0],
            "id": one.key[1],
            "parent": one.parent,
            "checkpoint": self._value(rest),
            "metadata": self._value(one.metadata),
            "values": {channel: self._value(value) for channel, value in one.checkpoint["channel_values"].items()},
            "writes": [
                [*writes.task, writes.path, [[channel, self._value(value)] for channel, value in writes.writes]]
                for writes in one.writes
            ],
        }
        self._add("checkpoint", said)

    def _value(self, value: Any) -> list[Any]:
        """A value as the numbers of its byte strings. New byte strings are written first."""
        if (dumps_elements := getattr(self._serde, "dumps_elements", None)) is not None:
            encoded = dumps_elements(value)
            kind, pieces = encoded.type, encoded.elements
        else:
            kind, data = self._serde.dumps_typed(value)
            pieces = [data]
        numbers = []
        for piece in pieces:
            named = digest(piece)
            if (number := self._shared.get(named)) is None:
                number = self._shared[named] = len(self._shared)
                self._add("bytes", piece)
            numbers.append(number)
        return [kind, numbers]

    def _end(self) -> tuple[int, int]:
        return len(self._places), self._checkpoints
