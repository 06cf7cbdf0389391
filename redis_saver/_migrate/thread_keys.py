"""The keys of a server by the threads they belong to: found by one SCAN, and kept outside of memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import NamedTuple

from redis_saver._common import names


class ThreadKey(NamedTuple):
    """A key that belongs to a thread."""

    thread: str
    key: bytes
    prefix: str | None
    """What the keys of checkpoints begin with, without the separator; None: the key is not that of a checkpoint, but of something that belongs to one."""


class ThreadKeys:
    """Keys by thread, in a temporary file of SQLite, which is gone when this is. So there may be any number of them."""

    def __init__(self, found: Iterable[ThreadKey]) -> None:
        """Keep keys. One that comes twice is kept once."""
        sqlite3 = import_module("sqlite3")  # some Pythons are built without it
        self._rows = sqlite3.connect("", check_same_thread=False)
        weakref.finalize(self, self._rows.close)
        self._rows.execute(
            "CREATE TABLE keys (thread BLOB, name BLOB, is_own INT, PRIMARY KEY (thread, name)) WITHOUT ROWID"
        )
        self.prefixes: dict[str, int] = {}
        """How many checkpoints have keys with each prefix."""
        for each in found:
            row = names.encode(each.thread), each.key, each.prefix is not None
            new = self._rows.execute("INSERT OR IGNORE INTO keys VALUES (?, ?, ?)", row).rowcount
            if each.prefix is not None:
                self.prefixes[each.prefix] = self.prefixes.get(each.prefix, 0) + new

    def threads(self) -> Iterator[str]:
        """The names of the threads that have a checkpoint."""
        for (thread,) in self._rows.execute("SELECT DISTINCT thread FROM keys WHERE is_own"):
            yield names.decode(thread)

    def of(self, thread: str) -> list[bytes]:
        """The keys of a thread."""
        found = self._rows.execute("SELECT name FROM keys WHERE thread = ?", (names.encode(thread),))
        return [key for (key,) in found]
