"""Requests about a partition: send a script, check its reply, and repeat it until the directory lists the partition."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from redis_saver._common.display import shown
from redis_saver._common.store_names import Partition, document_keys
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.requests import Argument, Batch, Call, Operation, T
from redis_saver._engine.scripts import Script
from redis_saver._store import scripts
from redis_saver._store.context import StoreContext, document_tags
from redis_saver._store.scripts import Reply, checked
from redis_saver.errors import StoreBusy, reading_store

NO_ANNOUNCEMENT: tuple[bytes, bytes] = (b"", b"0")
LATE = 30.0
"""Seconds after which a token may be stale: half the time for which an emptied partition refuses old tokens."""
MAX_ANNOUNCED = 20
"""Maximum number of announcements per call."""
MAX_TOGETHER = 256
"""Maximum number of operations whose requests travel together."""
_TAKES_TAGS = frozenset((scripts.PUT_ITEMS, scripts.DOCUMENT_ITEMS))
"""Scripts that write documents: their last arguments are the tags of each."""


def item_at(position: int, count: int) -> int:
    """Convert the position of an item from Lua, which counts from 1.

    Raises:
        ValueError: There are fewer items.
    """
    if not 1 <= position <= count:
        raise ValueError(f"it names item {position} of {count}")
    return position - 1


def ask(
    context: StoreContext,
    partition: Partition,
    script: Script,
    arguments: Sequence[Argument],
    fields: Sequence[bytes] = (),
) -> Operation[Reply]:
    """Run a script on a partition.

    One round trip. Two more if the directory has to list the partition first, or for longer; one more if its items
    have documents and this store makes none; one more per thousand items that have expired since the last call.

    Args:
        context: The store.
        partition: The partition.
        script: The script.
        arguments: Its arguments without an announcement.
        fields: Items whose documents it changes.

    Raises:
        StoreBusy: The partition could not be announced.
    """
    announcement: Sequence[Argument] = NO_ANNOUNCEMENT if scripts.is_announced(script) else ()
    ttl: Argument = 0
    above: Argument = 0
    asked_at, times = 0.0, 0
    keys = partition.keys
    if fields and context.has_documents:
        keys, arguments = _with_documents(partition, script, arguments, fields)
    while True:
        reply = checked(script, partition.keys[0], (yield Call(script, keys, (*announcement, *arguments))))
        if reply.code == StoreReply.MORE:
            continue
        if reply.code == StoreReply.DOCUMENTED and fields and keys == partition.keys:
            keys, arguments = _with_documents(partition, script, arguments, fields)
            continue
        if reply.code != StoreReply.NOT_ANNOUNCED:
            if times and time.monotonic() - asked_at > LATE:
                # The token may have been given back meanwhile, so the directory may have dropped the partition.
                yield from announce(context, partition.member, ttl, above)
            return reply
        if (times := times + 1) > MAX_ANNOUNCED:
            raise StoreBusy(
                f"the items of {shown(partition.labels)} could not be announced in {MAX_ANNOUNCED} attempts. Nothing "
                "was written. Either others emptied them each time, and trying again later helps; or the clocks of "
                "the cluster's nodes differ by more than five minutes: set them"
            )
        asked_at = time.monotonic()
        above, ttl = reply.values
        announcement = yield from announce(context, partition.member, ttl, above)


def announce(context: StoreContext, member: bytes, ttl: Argument = 0, above: Argument = 0) -> Operation[list[Any]]:
    """Announce a partition in the directory; return its token and the deadline of its entry. One round trip.

    Args:
        context: The store.
        member: The partition, as the directory names it.
        ttl: Milliseconds that its items are to live; 0 for ever.
        above: A number that the token has to exceed.
    """
    keys = context.keyspace.directory
    return checked(scripts.ANNOUNCE, keys[2], (yield Call(scripts.ANNOUNCE, keys, (member, ttl, above)))).values


def _with_documents(
    partition: Partition, script: Script, arguments: Sequence[Argument], fields: Sequence[bytes]
) -> tuple[tuple[bytes, ...], Sequence[Argument]]:
    """Add the keys of documents, and their tags if the script writes them."""
    with reading_store(partition.keys[0]):
        tags = [document_tags(partition, field) for field in fields] if script in _TAKES_TAGS else []
    return (*partition.keys, *document_keys(partition, fields)), (*arguments, *tags)


def refresh(context: StoreContext, fields: Mapping[Partition, Sequence[bytes]]) -> Operation[None]:
    """Restart the TTLs of items. One round trip, none without fields."""
    asked = [
        ask(context, partition, scripts.GET_ITEMS, (2, *some), some)
        for partition, names in fields.items()
        for some in [names[start : start + 1000] for start in range(0, len(names), 1000)]
    ]
    yield from together(context, asked)


def together(context: StoreContext, operations: Sequence[Operation[T]]) -> Operation[list[T]]:
    """Run operations in lockstep, so that requests of the same moment travel as one batch. Return their results."""
    if len(operations) == 1:
        return [(yield from operations[0])]
    results: list[Any] = [None] * len(operations)
    for start in range(0, len(operations), MAX_TOGETHER):
        running = dict(enumerate(operations[start : start + MAX_TOGETHER], start))
        replies: dict[int, Any] = dict.fromkeys(running)
        while running:
            requests = {}
            for position, operation in list(running.items()):
                try:
                    requests[position] = operation.send(replies[position])
                except StopIteration as end:  # noqa: PERF203
                    results[position] = end.value
                    del running[position]
            replies = yield from _answers(context, requests)
    return results


def _answers(context: StoreContext, requests: Mapping[int, Any]) -> Operation[dict[int, Any]]:
    replies: dict[int, Any] = {}
    if context.is_replicated or len(requests) <= 1:  # WAIT travels with a single script
        for position, request in requests.items():
            replies[position] = yield request
        return replies
    parts = [request.requests if isinstance(request, Batch) else (request,) for request in requests.values()]
    answers = iter((yield Batch([request for part in parts for request in part])))
    for (position, request), part in zip(requests.items(), parts, strict=True):
        own = [next(answers) for _ in part]
        replies[position] = own if isinstance(request, Batch) else own[0]
    return replies
