"""How operations ask for a partition: until nothing that has expired is in the way, and the directory leads to it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from redis_saver._common.display import shown
from redis_saver._common.store_names import Partition, document_keys
from redis_saver._engine import scripts
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.requests import Argument, Batch, Call, Operation, T
from redis_saver._engine.scripts import Script
from redis_saver._store import documents
from redis_saver._store.answers import checked
from redis_saver._store.context import StoreContext
from redis_saver.errors import StoreBusy, reading_store

NO_ANNOUNCEMENT: tuple[bytes, bytes] = (b"", b"0")
LATE = 30.0
"""Seconds after which a token is not relied on: half the time for which a partition that became empty refuses those it gave back (`lib/partition.lua`)."""
MAX_ANNOUNCED = 20
"""How often a partition is announced for one call."""
_ANNOUNCED = frozenset(
    (
        scripts.PUT_ITEMS,
        scripts.IMPORT_ITEMS,
        scripts.GET_ITEMS,
        scripts.SEARCH_ITEMS,
        scripts.FILL_COPIES,
        scripts.END_WRITES,
    )
)
"""The scripts that take an announcement: their first two arguments."""
_MAKING = frozenset((scripts.PUT_ITEMS, scripts.DOCUMENT_ITEMS))
"""The scripts that make documents: their last arguments say what each is under."""
MAX_TOGETHER = 256
"""Requests that travel together."""


def ask(
    context: StoreContext,
    partition: Partition,
    script: Script,
    arguments: Sequence[Argument],
    fields: Sequence[bytes] = (),
) -> Operation[Any]:
    """What a script answers about a partition.

    One round trip; two more if the directory has to know the partition first, or for longer than it does; one more if its items have documents, and this
    store makes none itself; and one more for each thousand items that have expired since anybody asked.

    Args:
        context: The store.
        partition: The partition.
        script: The script.
        arguments: Its arguments, but for an announcement.
        fields: The items whose documents it changes.

    Raises:
        StoreBusy: The partition cannot be announced.
    """
    announcement: Sequence[bytes] = NO_ANNOUNCEMENT if script in _ANNOUNCED else ()
    begun, times = 0.0, 0
    keys = partition.keys
    if fields and context.has_documents:
        keys, arguments = _with_documents(partition, script, arguments, fields)
    wanted: tuple[Any, Any] = (0, 0)
    while True:
        reply = checked(script, partition.keys[0], (yield Call(script, keys, (*announcement, *arguments))))
        code = reply if isinstance(reply, int) else reply[0] if reply and isinstance(reply[0], int) else 0
        if code == StoreReply.MORE:
            continue
        if code == StoreReply.DOCUMENTED and fields and keys == partition.keys:
            keys, arguments = _with_documents(partition, script, arguments, fields)
            continue
        if code != StoreReply.NOT_ANNOUNCED:
            if times and time.monotonic() - begun > LATE:
                # The token may have been given back meanwhile, and the directory's entry be gone.
                yield from announce(context, partition.member, *wanted)
            return reply
        if (times := times + 1) > MAX_ANNOUNCED:
            raise StoreBusy(
                f"the items of {shown(partition.labels)} could not be announced in {MAX_ANNOUNCED} attempts. Nothing was written. Either others emptied them each time, "
                "and trying again later helps; or the clocks of the cluster's nodes differ by more than five minutes: set them"
            )
        begun = time.monotonic()
        _, above, ttl = reply
        wanted = (ttl, above)
        announcement = yield from announce(context, partition.member, *wanted)


def announce(
    context: StoreContext, member: bytes, ttl: Argument = 0, above: Argument = 0
) -> Operation[tuple[bytes, bytes]]:
    """Announce a partition in the directory. Returns its token, and until when it is there. One round trip.

    Args:
        context: The store.
        member: The partition, as the directory names it.
        ttl: How long its items are to live, in milliseconds; 0: for ever.
        above: What the token has to be greater than.
    """
    directory = context.keyspace.directory
    token, deadline = checked(
        scripts.ANNOUNCE, directory[2], (yield Call(scripts.ANNOUNCE, directory, (member, ttl, above)))
    )
    return token, deadline


def _with_documents(
    partition: Partition, script: Script, arguments: Sequence[Argument], fields: Sequence[bytes]
) -> tuple[tuple[bytes, ...], Sequence[Argument]]:
    """Keys and arguments of a script that changes documents, too."""
    with reading_store(partition.keys[0]):
        under = [documents.under(partition, field) for field in fields] if script in _MAKING else ()
    return (*partition.keys, *document_keys(partition, fields)), (*arguments, *under)


def refresh(context: StoreContext, fields: Mapping[Partition, Sequence[bytes]]) -> Operation[None]:
    """Begin the TTLs of items anew, by their fields. One round trip, if there is one."""
    asked = [
        ask(context, partition, scripts.GET_ITEMS, (2, *names[start : start + 1000]), names[start : start + 1000])
        for partition, names in fields.items()
        for start in range(0, len(names), 1000)
    ]
    if asked:
        yield from together(context, asked)


def together(context: StoreContext, operations: Sequence[Operation[T]]) -> Operation[list[T]]:
    """Run operations side by side: what they ask for at the same time travels together. Returns their results."""
    if len(operations) == 1:
        return [(yield from operations[0])]
    results: list[Any] = [None] * len(operations)
    for start in range(0, len(operations), MAX_TOGETHER):
        some = dict(enumerate(operations[start : start + MAX_TOGETHER], start))
        replies: dict[int, Any] = dict.fromkeys(some)
        while some:
            requests = []
            for position, operation in list(some.items()):
                if (request := _next(operation, replies[position], results, position)) is None:
                    del some[position]
                else:
                    requests.append((position, request))
            replies = yield from _answers(context, requests)
    return results


def _next(operation: Operation[Any], reply: Any, results: list[Any], position: int) -> Any:
    """What an operation asks for next; None if it has ended, and its result is in its place."""
    try:
        return operation.send(reply)
    except StopIteration as end:
        results[position] = end.value
        return None


def _answers(context: StoreContext, requests: Sequence[tuple[int, Any]]) -> Operation[dict[int, Any]]:
    """The replies to requests, by the positions of who asks. A request may be a batch itself."""
    replies: dict[int, Any] = {}
    if context.is_replicated or len(requests) == 1:  # WAIT travels with a single script
        for position, request in requests:
            replies[position] = yield request
        return replies
    if not requests:
        return replies
    flat = [one for _, request in requests for one in (request.requests if isinstance(request, Batch) else (request,))]
    answers = iter((yield Batch(flat)))
    for position, request in requests:
        is_batch = isinstance(request, Batch)
        replies[position] = [next(answers) for _ in request.requests] if is_batch else next(answers)
    return replies
