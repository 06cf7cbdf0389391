"""Files with conversations in them, which are nobody else's business: made so that only their owner may read them, from the first byte on.

A file is written under a name that nobody can foresee, in the folder it is for, and gets its own name when it is complete and on disk. Nothing that is
there already is opened: no link is followed, and no permissions are inherited. A process that is killed leaves `.redis-saver-*.part`.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import mkstemp
from types import TracebackType
from typing import BinaryIO

from typing_extensions import Self

_WITHOUT = (errno.EINVAL, errno.ENOTSUP)
"""What file systems answer that bring no folder to disk by itself."""


class NewFile:
    """A file that takes the place of what has its name, a link too, when it is complete; as a context, at the end of the `with`."""

    def __init__(self, path: Path) -> None:
        """Begin it.

        Raises:
            OSError: The folder is not there, or must not be written to.
        """
        self._path = path
        descriptor, name = mkstemp(prefix=".redis-saver-", suffix=".part", dir=path.parent)
        self._part = Path(name)
        self.file: BinaryIO = os.fdopen(descriptor, "w+b")

    def finish(self) -> None:
        """Bring it to disk, and give it its name.

        Raises:
            OSError: The disk is full, or fails.
        """
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self._part.replace(self._path)
        _to_disk(self._path.parent)

    def discard(self) -> None:
        """Remove it, if it is not complete."""
        try:
            self.file.close()  # which writes what it still holds, and may fail in that
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


def make_empty(path: Path) -> None:
    """Make an empty file, unless there is a file; for what another library opens by its name.

    Raises:
        OSError: It cannot be made, or a link is there that leads nowhere.
    """
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600))


def make_folder(path: Path) -> None:
    """Make a folder, unless there is one, and those it is in.

    Raises:
        OSError: It cannot be made.
    """
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def _to_disk(folder: Path) -> None:
    """Bring the names in a folder to disk, where the system can."""
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
