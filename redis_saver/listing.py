"""Listing checkpoints: of a namespace, of a thread, of all threads."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver import codec, config, names, scripts
from redis_saver.config import Address
from redis_saver.context import Context, refresh_arguments
from redis_saver.filters import compile_filter
from redis_saver.reading import BYTES_A_PAGE
from redis_saver.requests import Argument, Batch, Call, Command, Operation, Page, Scan, Stream, T

CHECKPOINTS_A_PAGE = 50
HEADERS_A_PAGE = 200
THREADS_A_BATCH = 500

Predicate = Callable[[Mapping[str, Any]], bool]


class Query(NamedTuple):
    """What a `list` call asks for, checked."""

    config: RunnableConfig | None
    matches: Predicate | None
    before: str | None
    limit: int | None


def query(
    given: RunnableConfig | None,
    filter: Mapping[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
) -> Query:
    """Check the arguments of a `list` call.

    Raises:
        TypeError, ValueError: an argument makes no sense; the message says which and why.
    """
    if given is not None:
        config.thread_id(given)
        config.namespace(given)
    before_id = config.checkpoint_id(before) if before is not None else None
    return Query(given, compile_filter(filter), before_id, config.limit(limit))


def list_checkpoints(context: Context, asked: Query) -> Stream[CheckpointTuple]:
    """The checkpoints of a query, newest first, page after page."""
    if asked.limit == 0:
        return
    if asked.config is None:
        yield from _all_threads(context, asked)
    else:
        yield from _one_thread(context, asked, asked.config)


def bounds(asked: Query, ns: str | None, checkpoint_id: str | None) -> tuple[bytes, bytes]:
    """The range of the index, as ZREVRANGEBYLEX takes it, in which a thread's matching checkpoints lie."""
    order = b"i" if ns is None else b"c" + names.component(ns)
    lower, upper = order, (b"j" if ns is None else names.after(order))
    if checkpoint_id is not None:
        lower = order + names.component(checkpoint_id)
        upper = names.after(lower)
    if asked.before is not None:
        upper = min(upper, order + names.component(asked.before))
    return b"(" + upper, b"[" + lower


def _one_thread(context: Context, asked: Query, given: RunnableConfig) -> Stream[CheckpointTuple]:
    thread, left = config.thread_id(given), asked.limit
    upper, lower = bounds(asked, config.namespace(given), config.checkpoint_id(given))
    keys = context.keyspace.keys(thread)
    size, full = (HEADERS_A_PAGE, b"0") if asked.matches else (CHECKPOINTS_A_PAGE, b"1")
    while upper > b"(":
        if left is not None and not asked.matches:
            size = min(left, size)
        arguments = (upper, lower, size, BYTES_A_PAGE, full, *refresh_arguments(context))
        following, *stored = yield Call(scripts.LIST, keys, arguments)
        if asked.matches:
            passing = [one for one in stored if asked.matches(codec.header_metadata(context.serde, one[2]))]
            chosen = [Address(thread, *_place(one)) for one in passing]
            yield from _load(context, chosen[:left])
            found = len(chosen)
        else:
            yield Page([codec.decode_tuple(context.serde, thread, one) for one in stored])
            found = len(stored)
        if left is not None and (left := left - found) <= 0:
            return
        upper = b"(" + following


def _place(stored: Sequence[Any]) -> tuple[str, str]:
    return names.components(stored[1])[0], names.components(stored[0])[0]


def _load(context: Context, wanted: Sequence[Address]) -> Stream[CheckpointTuple]:
    """The checkpoints with these addresses, which are of one thread, in this order; those that are gone by now are left out."""
    while wanted:
        arguments: list[Argument] = [BYTES_A_PAGE]
        for _, ns, checkpoint_id in wanted:
            arguments += (names.component(ns), names.component(checkpoint_id or ""))
        thread = wanted[0].thread_id
        stored = yield Call(scripts.LOAD, context.keyspace.keys(thread), arguments)
        yield Page([codec.decode_tuple(context.serde, thread, one) for one in stored if one is not None])
        wanted = wanted[len(stored) :]


def scan_threads(context: Context) -> Stream[str]:
    """The threads there are, found by SCAN: each at least once, and twice at times."""
    position: Any = None
    while True:
        position, keys = yield Scan(context.keyspace.pattern, position)
        found = (context.keyspace.thread_of(key) for key in keys)
        yield Page([thread for thread in dict.fromkeys(found) if thread is not None])
        if position is None:
            return


def collect(stream: Stream[T]) -> Operation[list[T]]:
    """All results of a stream."""
    items: list[T] = []
    reply = None
    while True:
        try:
            step = stream.send(reply)
        except StopIteration:
            return items
        if isinstance(step, Page):
            items += step.items
            reply = None
        else:
            reply = yield step


class _Newest:
    """A thread in the merge of all threads: its checkpoint ids, newest first, fetched in growing pages."""

    def __init__(self, thread: str, upper: bytes) -> None:
        self.thread, self.upper = thread, upper
        self.members: list[bytes] = []
        self.size = 1

    def request(self, context: Context, lower: bytes) -> Command:
        key = context.keyspace.keys(self.thread).index_key
        return Command(("ZREVRANGEBYLEX", key, self.upper, lower, "LIMIT", 0, self.size))

    def fill(self, members: list[bytes]) -> None:
        self.members = members[::-1]
        self.upper = b"(" + members[-1] if len(members) == self.size else b""
        self.size = CHECKPOINTS_A_PAGE

    def pop(self) -> Address:
        checkpoint_id, ns = names.components(self.members.pop()[1:])
        return Address(self.thread, ns, checkpoint_id)

    def __lt__(self, other: _Newest) -> bool:
        return self.members[-1] > other.members[-1]


def _all_threads(context: Context, asked: Query) -> Stream[CheckpointTuple]:
    """Merge all threads by id. Holds one id a thread in memory, and a page of ids of those it has drawn from."""
    upper, lower = bounds(asked, None, None)
    heap: list[_Newest] = []
    threads = iter(dict.fromkeys((yield from collect(scan_threads(context)))))
    while batch := [_Newest(thread, upper) for thread in islice(threads, THREADS_A_BATCH)]:
        replies = yield Batch([one.request(context, lower) for one in batch])
        for one, members in zip(batch, replies, strict=True):
            if members:
                one.fill(members)
                heap.append(one)
    heapq.heapify(heap)

    left = asked.limit
    while heap and (left is None or left > 0):
        size = CHECKPOINTS_A_PAGE if left is None or asked.matches else min(left, CHECKPOINTS_A_PAGE)
        page = yield from _draw(context, heap, lower, size)
        if asked.matches:
            page = (yield from _matching(context, asked.matches, page))[:left]
        by_address: dict[Address, CheckpointTuple] = {}
        for thread in dict.fromkeys(address.thread_id for address in page):
            wanted = [address for address in page if address.thread_id == thread]
            for found in (yield from collect(_load(context, wanted))):
                by_address[config.address(found.config)] = found
        yield Page([by_address[address] for address in page if address in by_address])
        if left is not None:
            left -= len(page)


def _draw(context: Context, heap: list[_Newest], lower: bytes, size: int) -> Operation[list[Address]]:
    """Take the newest `size` checkpoints out of the merge."""
    drawn: list[Address] = []
    while heap and len(drawn) < size:
        one = heap[0]
        drawn.append(one.pop())
        if not one.members and one.upper:
            one.fill((yield one.request(context, lower)))
        if one.members:
            heapq.heapreplace(heap, one)
        else:
            heapq.heappop(heap)
    return drawn


def _matching(context: Context, matches: Predicate, page: Sequence[Address]) -> Operation[list[Address]]:
    """Those of a page whose metadata match; reads headers alone."""
    requests = [
        Command(("HGET", context.keyspace.keys(thread).data_key, names.checkpoint(ns, checkpoint_id or "")))
        for thread, ns, checkpoint_id in page
    ]
    headers = yield Batch(requests)
    return [
        address
        for address, header in zip(page, headers, strict=True)
        if header is not None and matches(codec.header_metadata(context.serde, header))
    ]
