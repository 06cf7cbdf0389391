"""New files with conversations in them. Only their owner may read them, from the first byte on.

A file is written in its folder under a random name, and gets its own name when it is complete and on disk. No file that exists is
opened, no link is followed, and no permissions are inherited. A process that is killed leaves `.redis-saver-*.part`, which the
next new file in that folder removes: a process that lives holds a lock on its own.
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
except ImportError:  # Windows: what a killed process leaves stays
    fcntl = None  # type: ignore[assignment]

_PREFIX, _SUFFIX = ".redis-saver-", ".part"
_WITHOUT = (errno.EINVAL, errno.ENOTSUP)
"""The errors of file systems that cannot sync a folder."""


class NewFile:
    """A file that replaces what has its name (also a link) when it is complete. As a context manager, it does so at the end of the `with`."""

    def __init__(self, path: Path) -> None:
        """Begin the file.

        Raises:
            OSError: The folder is not there, or must not be written to.
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
        _to_disk(self._path.parent)

    def discard(self) -> None:
        """Remove the file, if it is not complete."""
        try:
            self.file.close()  # it writes what it still buffers, and that may fail
        finally:
            self._part.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """The file, to be written."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Finish it; after an error, also an interruption, remove it."""
        try:
            if kind is None:
                self.finish()
        finally:
            self.discard()


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder against other new files. False if the system or the file system has no locks."""
    if fcntl is None:
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        can_lock = True
    except OSError as error:
        if error.errno not in (*_WITHOUT, errno.EBADF, errno.ENOLCK):
            raise
        can_lock = False
    try:
        yield can_lock
    finally:
        os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    """Remove unfinished files whose processes are gone. The caller has locked the folder."""
    for part in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(BlockingIOError, FileNotFoundError, PermissionError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def make_empty(path: Path) -> None:
    """Make an empty file, unless there is one. For libraries that open a file by its name.

    Raises:
        OSError: It cannot be made, or the name is that of a broken link.
    """
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))


def make_folder(path: Path) -> None:
    """Make a folder and its parents, unless they exist.

    Raises:
        OSError: It cannot be made.
    """
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def _to_disk(folder: Path) -> None:
    """Sync a folder's names to disk, if the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _WITHOUT:
            raise
    finally:
        os.close(descriptor)
