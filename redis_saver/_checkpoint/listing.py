"""Listing checkpoints of a namespace, of a thread, or of all threads."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint import reading, scripts
from redis_saver._common import config, filters, names
from redis_saver._common.display import shown
from redis_saver._common.filters import Predicate
from redis_saver._engine.requests import Argument, Batch, Call, Command, Operation, Page, Scan, Stream, T
from redis_saver._engine.runner import Pump
from redis_saver._storage import codec, header
from redis_saver._storage.context import Context, refresh_arguments
from redis_saver._storage.keyed import keyed
from redis_saver._storage.skipping import Skipping
from redis_saver.errors import decoding

CHECKPOINTS_PER_PAGE = 50
HEADERS_PER_PAGE = 200
THREADS_PER_BATCH = 500
K = TypeVar("K")


class Query(NamedTuple):
    """The checked arguments of a `list` call."""

    config: RunnableConfig | None
    matches: Predicate | None
    before: str | None
    limit: int | None


def query(
    requested: RunnableConfig | None, filter: Mapping[str, Any] | None, before: RunnableConfig | None, limit: int | None
) -> Query:
    """Check the arguments of a `list` call.

    Raises:
        TypeError, ValueError: An argument is invalid. The message says which one and why.
    """
    if requested is not None:
        config.thread_id(requested)
        config.namespace(requested)
    before_id = config.checkpoint_id(before) if before is not None else None
    return Query(requested, filters.of_metadata(filter), before_id, config.limit(limit))


def list_checkpoints(context: Context, asked: Query) -> Stream[CheckpointTuple]:
    """Stream the checkpoints of a query, newest first, page by page."""
    if asked.limit == 0:
        return
    if asked.config is None:
        yield from _all_threads(context, asked)
    else:
        yield from _one_thread(context, config.thread_id(asked.config), asked.config, asked)


def bounds(ns: str | None, checkpoint_id: str | None, before: str | None) -> tuple[bytes, bytes]:
    """Return the bounds (upper, lower) of checkpoints in a thread's index, for ZREVRANGEBYLEX.

    Args:
        ns: Their namespace; None: all.
        checkpoint_id: The only checkpoint; None: all.
        before: An exclusive upper bound of their ids, if any.
    """
    order = b"i" if ns is None else b"c" + names.component(ns)
    lower, upper = order, (b"i\xff" if ns is None else names.after(order))
    if checkpoint_id is not None:
        lower = order + names.component(checkpoint_id)
        upper = names.after(lower)
    if before is not None:
        upper = min(upper, order + names.component(before))
    return b"(" + upper, b"[" + lower


@keyed
def _one_thread(context: Context, thread: str, requested: RunnableConfig, asked: Query) -> Stream[CheckpointTuple]:
    left = asked.limit
    upper, lower = bounds(config.namespace(requested), config.checkpoint_id(requested), asked.before)
    keys = context.keyspace.keys(thread)
    size, what = (HEADERS_PER_PAGE, b"headers") if asked.matches else (CHECKPOINTS_PER_PAGE, b"whole")
    while upper > b"(":
        if left is not None and not asked.matches:
            size = min(left, size)
        refresh, ttl = refresh_arguments(context)
        arguments = scripts.ListArguments(
            upper=upper, lower=lower, limit=size, budget=reading.BYTES_PER_PAGE, what=what, refresh=refresh, default=ttl
        )
        following, chunks, stored = _page((yield Call(scripts.LIST, keys, arguments)), thread, upper)
        if asked.matches:
            chosen = [address for saved in stored if (address := _passes(context, asked.matches, thread, saved))]
            yield from load(context, thread, chosen[:left])
            count = len(chosen)
        else:
            yield Page(_tuples(context, thread, stored, chunks))
            count = len(stored)
        if left is not None and (left := left - count) <= 0:
            return
        upper = b"(" + following


def _page(answer: Sequence[Any], thread: str, upper: bytes) -> tuple[bytes, Sequence[bytes], list[Any]]:
    """Decode a page of `lua/checkpoint/list.lua`: the next page's bound (empty at the end), chunks, checkpoints.

    Raises:
        DecodeError: It is no such page, or paging would not end.
    """
    with decoding("a page of the checkpoints of thread {!r}", thread):
        following, chunks, *stored = answer
        check_next(following, upper, stored)
        return following, chunks, stored


def check_next(following: Any, upper: bytes, page: Sequence[Any]) -> None:
    """Check that the upper bound decreases from page to page, so that paging ends.

    Raises:
        ValueError: The next bound is not below `upper`, the bound of this page, or this page is empty.
    """
    if not isinstance(following, bytes) or (following and (b"(" + following >= upper or not page)):
        raise ValueError(f"the page after the one below {shown(upper)} begins at {shown(following)}")


def _passes(context: Context, matches: Predicate | None, thread: str, stored: Sequence[Any]) -> config.Address | None:
    """Return the address of a checkpoint if its metadata match, else None."""
    with decoding("a checkpoint of thread {!r}", thread):
        address = config.Address(thread, names.name_of(stored[1]), names.name_of(stored[0]))
        metadata = None if matches is None else header.metadata(context, stored[2], address)
    return address if matches is None or metadata is None or matches(metadata) else None


def _tuples(context: Context, thread: str, stored: Sequence[Any], flat: Sequence[bytes]) -> list[CheckpointTuple]:
    chunks = codec.as_chunks(context, flat, thread)
    wanted = [codec.opened(context, thread, saved, chunks) for saved in stored if saved is not None]
    return [codec.decode_tuple(context, thread, saved, chunks) for saved in wanted]


def load(context: Context, thread: str, wanted: Sequence[config.Address]) -> Stream[CheckpointTuple]:
    """Stream the checkpoints at these addresses of a thread, in this order, except missing ones."""
    while wanted:
        arguments: list[Argument] = [reading.BYTES_PER_PAGE]
        for _, ns, checkpoint_id in wanted:
            arguments += (names.component(ns), names.component(checkpoint_id or ""))
        answer = yield Call(scripts.GET_MANY, context.keyspace.keys(thread), arguments)
        with decoding("checkpoints of thread {!r}", thread):
            chunks, first, *others = answer
            stored = [first, *others]
        yield Page(_tuples(context, thread, stored, chunks))
        wanted = wanted[len(stored) :]


def mapped(
    stream: Generator[Any, Any, None], each: Callable[[Sequence[Any]], Generator[Any, Any, list[T]]]
) -> Generator[Any, Any, None]:
    """Run an operation on each page of a stream, and stream its results."""
    pump = Pump(stream)
    while (page := (yield from pump.next_page())) is not None:
        if results := (yield from each(page)):
            yield Page(results)


def scan_keys(pattern: bytes) -> Stream[bytes]:
    """Stream the keys that match a pattern, by SCAN. A key may come twice."""
    position: Any = None
    while True:
        position, keys = yield Scan(pattern, position)
        yield Page(keys)
        if position is None:
            return


def scan_threads(context: Context) -> Stream[str]:
    """Stream the names of all threads, by SCAN. A name may come twice.

    A thread is found by its index, or by its data if the index was evicted. In that case reading it raises
    `ThreadDamaged`.
    """
    keyspace = context.keyspace

    def named(keys: Sequence[bytes]) -> Operation[list[str]]:
        threads = {thread for key in keys if (thread := keyspace.thread_of(key, names.INDEX)) is not None}
        halves = {thread for key in keys if (thread := keyspace.thread_of(key, names.DATA)) is not None} - threads
        if halves:
            replies = yield Batch([Command(("EXISTS", keyspace.keys(thread).index_key)) for thread in halves])
            threads |= {thread for thread, exists in zip(halves, replies, strict=True) if not exists}
        return sorted(threads)

    return mapped(scan_keys(keyspace.pattern), named)


def collect(stream: Stream[T]) -> Operation[list[T]]:
    """Return all items of a stream."""
    items, pump = list[T](), Pump(stream)
    while (page := (yield from pump.next_page())) is not None:
        items += page
    return items


def ask_each(items: Sequence[K], request: Callable[[K], Call | Command]) -> Operation[list[Any]]:
    """Return the replies to a request about each item, in their order. Cost: one round trip for 500 items."""
    replies = list[Any]()
    for start in range(0, len(items), THREADS_PER_BATCH):
        replies += yield Batch([request(item) for item in items[start : start + THREADS_PER_BATCH]])
    return replies


def all_threads(context: Context) -> Operation[list[str]]:
    """Return the names of all threads, each once. Cost: a SCAN over the server's keys."""
    return list(dict.fromkeys((yield from collect(scan_threads(context)))))


class _Newest:
    """A thread in the merge of all threads, with a page of its checkpoints. The first page has a single one."""

    def __init__(self, thread: str, upper: bytes, lower: bytes, what: bytes) -> None:
        self.thread, self.upper, self.lower, self.what = thread, upper, lower, what
        self.stored: list[Any] = []
        self.size = 1

    def request(self, context: Context) -> Call:
        arguments = scripts.ListArguments(
            upper=self.upper, lower=self.lower, limit=self.size, budget=reading.BYTES_PER_PAGE, what=self.what,
            refresh=b"0", default=b"",
        )  # fmt: skip
        return Call(scripts.LIST, context.keyspace.keys(self.thread), arguments)

    def fill(self, page: list[Any]) -> None:
        following, _, stored = _page(page, self.thread, self.upper)
        with decoding("a page of the checkpoints of thread {!r}", self.thread):
            if not all(isinstance(name, bytes) for saved in stored for name in saved[:2]):
                raise TypeError("the server answered a checkpoint without an id")
            self.stored = stored[::-1]
        self.upper = b"(" + following
        self.size = CHECKPOINTS_PER_PAGE

    def __lt__(self, other: _Newest) -> bool:
        return bool(self.stored[-1][:2] > other.stored[-1][:2])


@keyed
def _passing(
    context: Context, thread: str, matches: Predicate | None, stored: Sequence[Any]
) -> Operation[config.Address | None]:
    return _passes(context, matches, thread, stored)
    yield  # makes it an operation


@keyed
def loaded(context: Context, thread: str, wanted: Sequence[config.Address]) -> Operation[list[CheckpointTuple]]:
    """Return the checkpoints at these addresses of a thread, except missing ones."""
    return (yield from collect(load(context, thread, wanted)))


def _all_threads(context: Context, asked: Query) -> Stream[CheckpointTuple]:
    """Merge the checkpoints of all threads by id.

    Memory holds an id for each thread, and a page of ids for each thread that was yielded from.
    """
    heap = yield from _newest_of_all(context, asked)
    left, size = asked.limit, min(CHECKPOINTS_PER_PAGE, asked.limit or CHECKPOINTS_PER_PAGE)
    with Skipping(context.data_keys) as skipping:
        while heap and (left is None or left > 0):
            drawn = yield from _drawn(context, heap, size, skipping)
            passing = (yield from _all_passing(context, asked.matches, drawn, skipping))[:left]
            yield Page((yield from _all_loaded(context, passing, skipping)))
            if left is not None:
                left -= len(passing)
                size = min(CHECKPOINTS_PER_PAGE, 2 * size if len(passing) < len(drawn) else left)


def _newest_of_all(context: Context, asked: Query) -> Operation[list[_Newest]]:
    """Return a heap of all threads that have checkpoints of a query, each with its newest one."""
    upper, lower = bounds(None, None, asked.before)
    what = b"headers" if asked.matches else b"names"
    every = [_Newest(thread, upper, lower, what) for thread in (yield from all_threads(context))]
    pages = yield from ask_each(every, lambda newest: newest.request(context))
    for newest, page in zip(every, pages, strict=True):
        newest.fill(page)
    heap = [newest for newest in every if newest.stored]
    heapq.heapify(heap)
    return heap


def _drawn(context: Context, heap: list[_Newest], size: int, skipping: Skipping) -> Operation[list[tuple[str, Any]]]:
    """Take up to `size` of the newest checkpoints from the merge, each with its thread."""
    drawn: list[tuple[str, Any]] = []
    while heap and len(drawn) < size:
        newest = heap[0]
        if newest.thread in skipping:
            heapq.heappop(heap)
            continue
        drawn.append((newest.thread, newest.stored.pop()))
        if not newest.stored and newest.upper > b"(":
            newest.fill((yield newest.request(context)))
        if newest.stored:
            heapq.heapreplace(heap, newest)
        else:
            heapq.heappop(heap)
    return drawn


def _all_passing(
    context: Context, matches: Predicate | None, drawn: Sequence[tuple[str, Any]], skipping: Skipping
) -> Operation[list[config.Address]]:
    """Return the addresses of those checkpoints whose metadata match, in this order."""
    keys, passing = context.keyspace.keys, list[config.Address]()
    yield from skipping.load({thread: keys(thread).data_key for thread, _ in drawn})
    for thread, stored in drawn:
        passed = yield from skipping.each(thread, _passing(context, thread, matches, stored))
        passing += [passed] if passed else []
    return passing


def _all_loaded(
    context: Context, wanted: Sequence[config.Address], skipping: Skipping
) -> Operation[list[CheckpointTuple]]:
    """Return the checkpoints at these addresses of any threads, in this order, except missing ones."""
    by_address: dict[config.Address, CheckpointTuple] = {}
    for thread in dict.fromkeys(address.thread_id for address in wanted):
        its = [address for address in wanted if address.thread_id == thread]
        for saved in (yield from skipping.each(thread, loaded(context, thread, its))) or ():
            by_address[config.address(saved.config)] = saved
    return [by_address[address] for address in wanted if address in by_address]
