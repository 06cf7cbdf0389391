"""Listing checkpoints: of a namespace, of a thread, of all threads."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_saver._checkpoint.reading import BYTES_PER_PAGE
from redis_saver._common import config, names
from redis_saver._common.config import Address
from redis_saver._common.display import shown
from redis_saver._engine import scripts
from redis_saver._engine.requests import Argument, Batch, Call, Command, Operation, Page, Scan, Stream, T
from redis_saver._engine.runner import Pump
from redis_saver._storage import codec
from redis_saver._storage import header as headers
from redis_saver._storage.context import Context, refresh_arguments
from redis_saver.errors import decoding

CHECKPOINTS_PER_PAGE = 50
HEADERS_PER_PAGE = 200
THREADS_PER_BATCH = 500

Predicate = Callable[[Mapping[str, Any]], bool]


class Query(NamedTuple):
    """The arguments of a `list` call, checked."""

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
    """The range of the index in which a thread's matching checkpoints lie, as ZREVRANGEBYLEX takes it."""
    order = b"i" if ns is None else b"c" + names.component(ns)
    lower, upper = order, (b"i\xff" if ns is None else names.after(order))
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
    size, what = (HEADERS_PER_PAGE, b"headers") if asked.matches else (CHECKPOINTS_PER_PAGE, b"whole")
    while upper > b"(":
        if left is not None and not asked.matches:
            size = min(left, size)
        arguments = (upper, lower, size, BYTES_PER_PAGE, what, *refresh_arguments(context))
        following, chunks, stored = _page((yield Call(scripts.LIST, keys, arguments)), thread, upper)
        if asked.matches:
            chosen = [where for one in stored if (where := _passes(context, asked.matches, thread, one))]
            yield from load(context, chosen[:left])
            found = len(chosen)
        else:
            yield Page(_tuples(context, thread, stored, chunks))
            found = len(stored)
        if left is not None and (left := left - found) <= 0:
            return
        upper = b"(" + following


def _page(answer: Sequence[Any], thread: str, upper: bytes) -> tuple[bytes, Sequence[bytes], list[Any]]:
    """A page as `lua/checkpoint/list.lua` answers it: the bound of the next page (empty at the end), the chunks, the checkpoints.

    Raises:
        DecodeError: It is no such page, or the next page would not go on below `upper`, where this one began.
    """
    with decoding("a page of the checkpoints of thread {!r}", thread):
        following, chunks, *stored = answer
        if not isinstance(following, bytes) or (following and b"(" + following >= upper):
            raise ValueError(
                f"the page after the one below {shown(upper)} begins at {shown(following)}, which is not below it"
            )
        if following and not stored:
            raise ValueError("the server answered an empty page, and that another one follows")
        return following, chunks, stored


def _passes(context: Context, matches: Predicate | None, thread: str, stored: Sequence[Any]) -> Address | None:
    """The address of a checkpoint that `list` answered, if its metadata match."""
    with decoding("a checkpoint of thread {!r}", thread):
        where = Address(thread, names.name_of(stored[1]), names.name_of(stored[0]))
        metadata = None if matches is None else headers.metadata(context, stored[2], where)
    return where if matches is None or metadata is None or matches(metadata) else None


def _tuples(context: Context, thread: str, stored: Sequence[Any], flat: Sequence[bytes]) -> list[CheckpointTuple]:
    chunks = codec.as_chunks(context, flat, thread)
    return [codec.decode_tuple(context, thread, one, chunks) for one in stored if one is not None]


def load(context: Context, wanted: Sequence[Address]) -> Stream[CheckpointTuple]:
    """The checkpoints at these addresses, all of one thread, in this order. Those that are gone by now are left out."""
    while wanted:
        arguments: list[Argument] = [BYTES_PER_PAGE]
        for _, ns, checkpoint_id in wanted:
            arguments += (names.component(ns), names.component(checkpoint_id or ""))
        thread = wanted[0].thread_id
        answer = yield Call(scripts.GET_MANY, context.keyspace.keys(thread), arguments)
        with decoding("checkpoints of thread {!r}", thread):
            chunks, first, *others = answer
            stored = [first, *others]
        yield Page(_tuples(context, thread, stored, chunks))
        wanted = wanted[len(stored) :]


def mapped(
    found: Generator[Any, Any, None], each: Callable[[Sequence[Any]], Generator[Any, Any, list[T]]]
) -> Generator[Any, Any, None]:
    """A stream of the results of an operation that runs on each page of another stream."""
    pump = Pump(found)
    for step in pump:
        if not isinstance(step, Page):
            with pump:
                pump.reply = yield step
        elif made := (yield from each(step.items)):
            yield Page(made)


def scan_keys(pattern: bytes) -> Stream[bytes]:
    """Find the keys that match a pattern, by SCAN. A key may come twice."""
    position: Any = None
    while True:
        position, keys = yield Scan(pattern, position)
        yield Page(keys)
        if position is None:
            return


def scan_threads(context: Context) -> Stream[str]:
    """The names of all threads, by SCAN: each at least once, some twice.

    A thread is found by its index. If that was evicted it is found by its data, and reading it then raises `ThreadDamaged`.
    """
    position: Any = None
    keyspace = context.keyspace
    while True:
        position, keys = yield Scan(keyspace.pattern, position)
        found = {thread for key in keys if (thread := keyspace.thread_of(key, names.INDEX)) is not None}
        halves = {thread for key in keys if (thread := keyspace.thread_of(key, names.DATA)) is not None} - found
        if halves:
            there = yield Batch([Command(("EXISTS", keyspace.keys(thread).index_key)) for thread in halves])
            found |= {thread for thread, exists in zip(halves, there, strict=True) if not exists}
        yield Page(sorted(found))
        if position is None:
            return


def collect(stream: Stream[T]) -> Operation[list[T]]:
    """All results of a stream."""
    items, pump = list[T](), Pump(stream)
    for asked in pump:
        if isinstance(asked, Page):
            items += asked.items
            continue
        with pump:
            pump.reply = yield asked
    return items


class _Newest:
    """One thread in the merge of all threads: its checkpoints, newest first, fetched in growing pages."""

    def __init__(self, thread: str, upper: bytes) -> None:
        self.thread, self.upper = thread, upper
        self.stored: list[Any] = []
        self.size = 1

    def request(self, context: Context, lower: bytes, what: bytes) -> Call:
        arguments = (self.upper, lower, self.size, BYTES_PER_PAGE, what, b"0", b"")
        return Call(scripts.LIST, context.keyspace.keys(self.thread), arguments)

    def fill(self, page: list[Any]) -> None:
        following, _, stored = _page(page, self.thread, self.upper)
        with decoding("a page of the checkpoints of thread {!r}", self.thread):
            if not all(isinstance(name, bytes) for one in stored for name in one[:2]):
                raise TypeError("the server answered a checkpoint without an id")
            self.stored = stored[::-1]
        self.upper = b"(" + following
        self.size = CHECKPOINTS_PER_PAGE

    def __lt__(self, other: _Newest) -> bool:
        return bool(self.stored[-1][:2] > other.stored[-1][:2])


def _all_threads(context: Context, asked: Query) -> Stream[CheckpointTuple]:
    """Merge the checkpoints of all threads by id. Holds in memory one id for each thread, and a page of ids for each thread that it has drawn from."""
    upper, lower = bounds(asked, None, None)
    what = b"headers" if asked.matches else b"names"
    heap: list[_Newest] = []
    threads = iter(dict.fromkeys((yield from collect(scan_threads(context)))))
    while batch := [_Newest(thread, upper) for thread in islice(threads, THREADS_PER_BATCH)]:
        replies = yield Batch([one.request(context, lower, what) for one in batch])
        for one, page in zip(batch, replies, strict=True):
            one.fill(page)
        heap += [one for one in batch if one.stored]
    heapq.heapify(heap)

    left = asked.limit
    while heap and (left is None or left > 0):
        drawn: list[Address] = []
        for _ in range(CHECKPOINTS_PER_PAGE):
            if not heap or len(drawn) == left:
                break
            one = heap[0]
            if where := _passes(context, asked.matches, one.thread, one.stored.pop()):
                drawn.append(where)
            if not one.stored and one.upper > b"(":
                one.fill((yield one.request(context, lower, what)))
            if one.stored:
                heapq.heapreplace(heap, one)
            else:
                heapq.heappop(heap)
        by_address: dict[Address, CheckpointTuple] = {}
        for thread in dict.fromkeys(address.thread_id for address in drawn):
            wanted = [address for address in drawn if address.thread_id == thread]
            for found in (yield from collect(load(context, wanted))):
                by_address[config.address(found.config)] = found
        yield Page([by_address[address] for address in drawn if address in by_address])
        if left is not None:
            left -= len(drawn)


# -- filters on metadata: equality on any key, and a few operators. The process that lists compares the decoded metadata. So
# values may have any type, and may be encrypted in Redis.


_ABSENT = object()


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def matches(stored: Any, wanted: Any) -> bool:
        if stored is _ABSENT:
            return False
        try:
            return bool(compare(stored, wanted))
        except TypeError:  # these two types cannot be ordered, so neither is below the other
            return False

    return matches


def _or_none(stored: Any) -> Any:
    return None if stored is _ABSENT else stored


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda stored, wanted: bool(_or_none(stored) == wanted),
    "$ne": lambda stored, wanted: bool(_or_none(stored) != wanted),
    "$gt": _ordered(operator.gt),
    "$gte": _ordered(operator.ge),
    "$lt": _ordered(operator.lt),
    "$lte": _ordered(operator.le),
    "$in": lambda stored, wanted: any(_or_none(stored) == one for one in wanted),
    "$nin": lambda stored, wanted: all(_or_none(stored) != one for one in wanted),
    "$exists": lambda stored, wanted: (stored is not _ABSENT) == wanted,
}


def _operators(key: str, wanted: Any) -> dict[str, Any]:
    """The operators in `wanted`, with their operands. A plain value means `$eq`."""
    if not isinstance(wanted, Mapping) or not any(isinstance(name, str) and name.startswith("$") for name in wanted):
        return {"$eq": wanted}
    for name, operand in wanted.items():
        if name not in _OPERATORS:
            raise ValueError(f"filter[{shown(key)}]: unknown operator {shown(name)}; known are {' '.join(_OPERATORS)}")
        if name in ("$in", "$nin") and (isinstance(operand, (str, bytes)) or not isinstance(operand, Collection)):
            raise ValueError(f"filter[{shown(key)}]: {name} takes a list of values, not {shown(operand)}")
        if name == "$exists" and not isinstance(operand, bool):
            raise ValueError(f"filter[{shown(key)}]: $exists takes True or False, not {shown(operand)}")
    return dict(wanted)


def compile_filter(filter: Mapping[str, Any] | None) -> Predicate | None:
    """Make a predicate on metadata from a filter of `list`; None if the filter is empty.

    A missing key equals None, as in `InMemorySaver`; `$exists` tells the two apart. Values that cannot be ordered
    against each other match none of `$gt $gte $lt $lte`.

    Raises:
        TypeError: The filter is no mapping.
        ValueError: An unknown operator, or an operand it cannot take, or the filter is nested too deep.
    """
    if filter is not None and not isinstance(filter, Mapping):
        raise TypeError(f"filter={shown(filter)}: a filter is a dict of metadata keys")
    if not filter:
        return None
    config.check_nesting("filter", filter)
    tests = [
        (key, _OPERATORS[name], operand)
        for key, wanted in filter.items()
        for name, operand in _operators(key, wanted).items()
    ]

    def matches(metadata: Mapping[str, Any]) -> bool:
        return all(test(metadata.get(key, _ABSENT), operand) for key, test, operand in tests)

    return matches
