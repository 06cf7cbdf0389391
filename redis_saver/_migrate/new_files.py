"""New files with conversations in them. Only their owner can read them, from the first byte on.

A file is written in its folder under a random name. It gets its own name when it is complete and on disk. No existing
file is opened, no link is followed, and no permissions are inherited. A killed process leaves `.redis-saver-*.part`.
The next new file in that folder removes it, but not the file of a living process, which holds a lock on it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp
from types import TracebackType
from typing import BinaryIO

from typing_extensions import Self

try:
    import fcntl
except ImportError:  # on Windows the file of a killed process stays
    fcntl = None  # type: ignore[assignment]

_PREFIX, _SUFFIX = ".redis-saver-", ".part"
_WITHOUT = (errno.EINVAL, errno.ENOTSUP)
"""Errors of file systems that cannot sync a folder."""


class NewFile:
    """A file that replaces the file or link of its name at the end of a `with` block, or by `finish`."""

    def __init__(self, path: Path) -> None:
        """Begin the file.

        Raises:
            OSError: The folder is missing, or must not be written to.
        """
        self._path = path
        with _locked(path.parent) as can_lock:
            if can_lock:
                _remove_abandoned(path.parent)
            descriptor, name = mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=path.parent)
            if can_lock:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._part = Path(name)
        self.file: BinaryIO = os.fdopen(descriptor, "w+b")

    def finish(self) -> None:
        """Sync the file to disk, and give it its name.

        Raises:
            OSError: The disk is full, or fails.
        """
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self._part.replace(self._path)
        if not hasattr(os, "O_DIRECTORY"):
            return
        with _opened_folder(self._path.parent) as folder:
            try:
                os.fsync(folder)
            except OSError as error:
                if error.errno not in _WITHOUT:
                    raise

    def discard(self) -> None:
        """Remove the file, unless it is complete."""
        try:
            self.file.close()  # writes the rest of its buffer, which may fail
        finally:
            self._part.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """Return the new file."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Finish the file, or remove it after an error or an interruption."""
        try:
            if kind is None:
                self.finish()
        finally:
            self.discard()


@contextmanager
def _opened_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder against other new files. Yield False if the system or the file system has no locks."""
    if fcntl is None:
        yield False
        return
    with _opened_folder(folder) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            can_lock = True
        except OSError as error:
            if error.errno not in (*_WITHOUT, errno.EBADF, errno.ENOLCK):
                raise
            can_lock = False
        yield can_lock


def _remove_abandoned(folder: Path) -> None:
    """Remove the unfinished files of processes that are gone. The caller has locked the folder."""
    for part in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(BlockingIOError, FileNotFoundError, PermissionError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def make_empty(path: Path) -> None:
    """Make an empty file for a library that opens it by its name. An existing file stays.

    Raises:
        OSError: The file cannot be made, or its name is that of a broken link.
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
