"""What our savers do beyond LangGraph's interface: telling of threads, and when they expire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

from redis_saver import config as configs
from redis_saver.checkpoint import checking, listing, threads
from redis_saver.checkpoint.base import Base
from redis_saver.checkpoint.checking import CheckReport
from redis_saver.checkpoint.threads import ThreadInfo
from redis_saver.engine.requests import Operation
from redis_saver.expiry import TTL, parse


class ThreadMethods(Base):
    """Methods about whole threads. Every one has a twin with an `a` in front, for asyncio."""

    def threads(self, prefix: str = "") -> Iterator[ThreadInfo]:
        """The threads there are, in no order, found with SCAN while the iterator is drawn from.

        Holds one page of SCAN in memory. As SCAN may, it can name a thread twice while the server resizes its tables.

        Args:
            prefix: Only threads whose name begins so.

        Raises:
            ThreadDamaged, KeyConflict: A thread cannot be read, while iterating; the message names it.
        """
        return self._stream(threads.describe(self, listing.scan_threads(self), prefix))

    def athreads(self, prefix: str = "") -> AsyncIterator[ThreadInfo]:
        """`threads` for asyncio."""
        return self._astream(threads.describe(self, listing.scan_threads(self), prefix))

    def get_thread(self, thread_id: str) -> ThreadInfo | None:
        """One thread, as `threads()` tells of it, in one round trip; None where there is no such thread."""
        return self._run(threads.get_thread(self, configs.name(thread_id, "thread_id")))

    async def aget_thread(self, thread_id: str) -> ThreadInfo | None:
        """`get_thread` for asyncio."""
        return await self._arun(threads.get_thread(self, configs.name(thread_id, "thread_id")))

    def check(self, thread_id: str, *, values: bool = True) -> CheckReport:
        """Look whether a thread is whole: headers, digests, references, deadlines and counters. Nothing is written.

        Cost: all of the thread is read once, in pages of about half a megabyte (a longer value is a page by itself), and once more what is in parts.
        Names and links are held in memory, and one value at a time.

        Args:
            thread_id: The thread.
            values: Whether values, writes and metadata are decoded, too, as a reader does. False: no serializer is needed, and
                what is stored in parts is read once.

        Returns:
            What was seen; `findings` names what is wrong, where, and how it is repaired.

        Raises:
            ThreadNotFound: There is no such thread.
            ThreadBusy: Something seemed to be wrong in each of some attempts, and the thread was written to during each.
        """
        return self._run(checking.check(self, configs.name(thread_id, "thread_id"), values=values))

    async def acheck(self, thread_id: str, *, values: bool = True) -> CheckReport:
        """`check` for asyncio."""
        return await self._arun(checking.check(self, configs.name(thread_id, "thread_id"), values=values))

    # -- when a thread expires

    def get_thread_ttl(self, thread_id: str) -> timedelta | None:
        """The time a thread has left; None where it does not expire.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        return self._run(threads.expire(self, configs.name(thread_id, "thread_id"), "get"))

    async def aget_thread_ttl(self, thread_id: str) -> timedelta | None:
        """`get_thread_ttl` for asyncio."""
        return await self._arun(threads.expire(self, configs.name(thread_id, "thread_id"), "get"))

    def set_thread_ttl(self, thread_id: str, ttl: TTL) -> None:
        """Give a thread a TTL of its own: it expires so long after now, and after each write from now on. Ends a pin.

        Args:
            thread_id: The thread.
            ttl: A `timedelta` or `{"default_ttl": minutes}`; None goes back to the saver's TTL.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        return self._run(self._set_thread_ttl(thread_id, ttl))

    async def aset_thread_ttl(self, thread_id: str, ttl: TTL) -> None:
        """`set_thread_ttl` for asyncio."""
        return await self._arun(self._set_thread_ttl(thread_id, ttl))

    def _set_thread_ttl(self, thread_id: str, ttl: TTL) -> Operation[None]:
        own = parse(ttl, refresh_allowed=False).milliseconds
        yield from threads.expire(self, configs.name(thread_id, "thread_id"), "clear" if own is None else "set", own)

    def pin(self, thread_id: str) -> None:
        """Keep a thread until `unpin`, whatever TTL its saver, or a later `configurable["thread_ttl"]`, has.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        self._run(threads.expire(self, configs.name(thread_id, "thread_id"), "pin"))

    async def apin(self, thread_id: str) -> None:
        """`pin` for asyncio."""
        await self._arun(threads.expire(self, configs.name(thread_id, "thread_id"), "pin"))

    def unpin(self, thread_id: str) -> None:
        """End a pin: the saver's TTL counts from now; without one the thread stays. Not pinned: nothing happens.

        Raises:
            ThreadNotFound: There is no such thread.
        """
        self._run(threads.expire(self, configs.name(thread_id, "thread_id"), "unpin"))

    async def aunpin(self, thread_id: str) -> None:
        """`unpin` for asyncio."""
        await self._arun(threads.expire(self, configs.name(thread_id, "thread_id"), "unpin"))
