r"""Files of records: a first line that names what they hold, then records with their lengths and checks, then an end that counts them.

    <first line>\n
    <length><check><record> ...      two big-endian 32-bit numbers, then so many bytes of msgpack; the check is `checksum`

A record is an array. Its first element says what it is; `["end", ...]` is the last one. `dumpfile.py` has the records of threads, `itemfile.py` those of items.
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO
from zlib import crc32

import ormsgpack
from typing_extensions import Self

from redis_saver._common.display import printable, shown
from redis_saver._migrate.new_files import NewFile
from redis_saver.errors import EndpointError, FileDamaged

FRAME = struct.Struct(">II")
AGAIN = "Export it again, or copy the file again. Nothing was read from it"
"""What to do about a file that is not whole."""


def name_of(path: Path) -> str:
    """A file, as messages name it."""
    return f"file {shown(str(path))}"


def checksum(data: bytes, at: int) -> int:
    """The check in front of a record: a CRC-32 of its bytes that begins with its position, so that it also shows that a record was added or removed."""
    return crc32(data, at & 0xFFFFFFFF)


def check_first_line(file: BinaryIO, line: bytes, name: str) -> None:
    """Read the first line.

    Raises:
        FileDamaged: It is another one.
    """
    if file.readline(len(line)) != line:
        said = line.decode().strip()
        raise FileDamaged(
            f"{name} is not a file that this version of redis-saver export wrote: it does not begin with {said!r}. Nothing was read from it"
        )


def records(file: BinaryIO, name: str, is_known: Callable[[Any], bool]) -> Iterator[list[Any]]:
    """The records from where the file stands. `is_known` says whether something has the form of one.

    Raises:
        FileDamaged: A record is cut off, or changed, or has another form.
    """
    at = file.tell()
    while head := file.read(FRAME.size):
        if len(head) == FRAME.size:
            length, check = FRAME.unpack(head)
            # Reading more than the file has would first allocate the memory for it.
            data = file.read(length) if length <= os.fstat(file.fileno()).st_size - file.tell() else b""
            if len(data) == length and checksum(data, at) == check:
                yield _record(data, name, is_known)
                at += FRAME.size + length
                continue
        raise FileDamaged(f"{name} is damaged, or cut off, at byte {file.tell()}. {AGAIN}")


def records_to_end(file: BinaryIO, name: str, is_known: Callable[[Any], bool]) -> Iterator[list[Any]]:
    """The records up to the end, which is the last one.

    Raises:
        FileDamaged: As `records`; or there is no end, or something behind it.
    """
    for record in records(file, name, is_known):
        if record[0] == "end" and file.read(1):
            raise not_whole(name, "there is something behind its end")
        yield record
        if record[0] == "end":
            return
    raise not_whole(name, "it has no end")


def not_whole(name: str, said: str) -> FileDamaged:
    """The error of a file that does not have what it says."""
    return FileDamaged(f"{name} is not whole: {said}. It was cut off, or something was added. {AGAIN}")


def _record(data: bytes, name: str, is_known: Callable[[Any], bool]) -> list[Any]:
    try:
        found: Any = ormsgpack.unpackb(data)
    except ormsgpack.MsgpackDecodeError as error:
        raise FileDamaged(f"{name} has a record that is not msgpack: {printable(str(error))}. {AGAIN}") from error
    if not (isinstance(found, list) and found and isinstance(found[0], str) and is_known(found)):
        raise FileDamaged(
            f"{name} has a record that this version does not know: {shown(found)}. Nothing was read from it. Import it with the release that exported it"
        )
    return found


class FramedFile(ABC):
    """A new file of records. As a context manager it gets its end and its name when the `with` ends, and is removed after an error."""

    name: str

    def __init__(self, path: Path, line: bytes) -> None:
        """Begin a file.

        Raises:
            EndpointError: A file, or a link, of that name exists already.
            OSError: It cannot be written.
        """
        if path.exists() or path.is_symlink():
            raise EndpointError(f"{name_of(path)} exists already; give another name, or remove it. Nothing was written")
        self._new = NewFile(path)
        self._file = self._new.file
        self._file.write(line)

    @abstractmethod
    def _end(self) -> tuple[Any, ...]:
        """What the last record counts."""

    def _add(self, *record: Any) -> None:
        data = ormsgpack.packb(record)
        try:
            self._file.write(FRAME.pack(len(data), checksum(data, self._file.tell())))
            self._file.write(data)
        except OSError as error:
            raise EndpointError(f"{self.name}: {printable(str(error))}") from error

    def finish(self) -> None:
        """Give the file its end and its name."""
        self._add("end", *self._end())
        self._new.finish()

    def __enter__(self) -> Self:
        """The file, to be written."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Finish it; or, after an error, remove what was written."""
        try:
            if kind is None:
                self.finish()
        except OSError as failure:
            raise EndpointError(f"{self.name}: {printable(str(failure))}") from failure
        finally:
            self._new.discard()
