"""The count of records that cold lacks. Hot keeps it for all processes, and each process reports its part.

The records stand in keys of their threads, which a Cluster keeps on different nodes. So no script can count them all while it writes one. Each process
reports what it wrote and flushed instead, and a scan of all keys corrects the count every few seconds.
"""

from __future__ import annotations

import re
import threading
from operator import index

from redis_saver._common import forks
from redis_saver._common.names import Keyspace
from redis_saver._engine import scripts
from redis_saver._engine.requests import Call, Operation
from redis_saver._tiered.stats import Counts
from redis_saver.errors import decoding

KEPT_FOR = 3_600_000
"""Milliseconds for which hot keeps the count after the last report."""
_RESULT = re.compile(rb"[0-9a-f]{32}(?: [0-9]{1,15}){4}")
"""The form of a scan's result. Anything else was written by another program, and is ignored."""


class BacklogCount:
    """This process's part of the count."""

    def __init__(self, counts: Counts) -> None:
        """Start with nothing to report."""
        self._counts = counts
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Leave to the parent what it has to report."""
        self._lock = threading.Lock()
        self._written, self._reporting, self._flushed = 0, 0, 0
        self._scan = b""

    def wrote(self, records: int) -> None:
        """Count records that this process wrote."""
        with self._lock:
            self._written += records
            self._counts.set_backlog(self._counts.backlog + records)

    def flushed(self, records: int) -> None:
        """Count records that this process flushed, whoever wrote them."""
        with self._lock:
            self._flushed += records
            self._counts.set_backlog(self._counts.backlog - records)

    def admit(self, limit: int, share: int) -> bool:
        """Count a write without asking hot. False if hot has to be asked: the backlog is at its limit, or the share is used up."""
        with self._lock:
            if self._written + self._reporting >= share or self._counts.backlog >= limit:
                return False
            self._written += 1
            self._counts.set_backlog(self._counts.backlog + 1)
            return True

    def report(self, keyspace: Keyspace, limit: int = 0) -> Operation[tuple[bool, int]]:
        """Report to hot, and learn the count of all processes.

        Args:
            keyspace: The names of hot's keys.
            limit: Admit a write, and count it, if fewer records are left than this; 0 if there is no write.

        Returns:
            Whether the write is admitted, and how many records all processes have written so far.
        """
        with self._lock:
            written, flushed, scan = self._written, self._flushed, self._scan
            self._reporting += written
            self._written = self._flushed = 0
        is_reported = False
        try:
            reply = yield Call(
                scripts.REPORT_BACKLOG,
                (keyspace.unflushed,),
                (written, flushed, scan, limit, KEPT_FOR),
            )
            with decoding("the count of what cold lacks"):
                left, admitted, total = map(index, reply[:3])
                result = bytes(reply[3])
            is_reported = True
        finally:
            with self._lock:
                self._reporting -= written
                if not is_reported:
                    self._written += written  # twice, if only the reply was lost, until the next scan
        with self._lock:
            if _RESULT.fullmatch(result):
                self._counts.learn(result.decode())
            if (latest := result.partition(b" ")[0]) != self._scan:
                self._scan, self._flushed = latest, 0  # this scan may have seen what was flushed since the request
            self._counts.set_backlog(left + self._written + self._reporting - self._flushed)
        return bool(admitted), total


def publish(keyspace: Keyspace, result: str, records: int, written_before: int) -> Operation[None]:
    """Correct the count by what a scan found.

    Args:
        keyspace: The names of hot's keys.
        result: What the scan found, as `Counts.learn` takes it.
        records: How many records that are.
        written_before: The records that all processes had written when the scan began.
    """
    yield Call(scripts.PUBLISH_BACKLOG, (keyspace.unflushed,), (result, records, written_before, KEPT_FOR))
