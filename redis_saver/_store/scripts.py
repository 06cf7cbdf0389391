"""The scripts of the store (`lua/store/`), the types of their replies, and requests about a partition.

A request sends a script, checks its reply, and repeats it until the directory lists the partition.
"""

# ruff: noqa: PYI024 - all arguments have one type, `Argument`, so their names are enough
from __future__ import annotations

import re
import time
from collections import defaultdict, namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec

from redis_saver._common.display import shown
from redis_saver._common.store_names import Partition, document_keys
from redis_saver._engine import lockstep
from redis_saver._engine.replies import StoreReply
from redis_saver._engine.requests import Argument, Call, Operation, T
from redis_saver._engine.scripts import Script, load
from redis_saver._storage.keyed import with_key
from redis_saver._store.context import StoreContext, document_tags
from redis_saver._store.items import Hit
from redis_saver.errors import StoreBusy, other_key, reading_store

NO_ANNOUNCEMENT: tuple[bytes, bytes] = (b"", b"0")
LATE = 30.0
"""Seconds after which a token may be stale: half the time for which an emptied partition refuses old tokens."""
MAX_ANNOUNCED = 20
"""Maximum number of announcements per call."""
P = ParamSpec("P")
_LETTERS: Mapping[type, str] = defaultdict(lambda: "?", {bytes: "b", int: "i", type(None): "n"})
"""Letters of types. The letters of a reply's values have to match its pattern."""
_REPLIES: dict[Script, tuple[str, Mapping[int, str]]] = {}
"""Pattern of each script's plain reply, and of the values after each code."""


def _load(name: str, values: str, codes: Mapping[int, str] | None = None) -> Script:
    """Load a script, and note the types of its replies.

    Args:
        name: Its name.
        values: Pattern of a plain reply: `b` is bytes, `i` an int, `n` None. If there are codes, it cannot begin with
            an int, which would be read as a code.
        codes: Pattern of the values after each code.
    """
    script = load(f"store/{name}")
    _REPLIES[script] = values, codes or {}
    return script


_MORE: Mapping[int, str] = {StoreReply.MORE: ""}
_TOKEN: Mapping[int, str] = {**_MORE, StoreReply.NOT_ANNOUNCED: "bb"}
_DOCUMENTS: Mapping[int, str] = {**_TOKEN, StoreReply.DOCUMENTED: ""}
_EMPTIED: Mapping[int, str] = {StoreReply.EMPTIED: "b"}

ANNOUNCE = _load("announce", "bb")
WITHDRAW = _load("withdraw", "i")
LIST_PARTITIONS = _load("list_partitions", "(bb)*")
GET_ITEMS = _load("get_items", "[bn]*", _DOCUMENTS)
SEARCH_ITEMS = _load("search_items", "bbi(bb)*", _DOCUMENTS)
SearchItemsArguments = namedtuple("SearchItemsArguments", "refresh prefix below offset limit")
LIST_ITEMS = _load("list_items", "(bibib*)?", _MORE)
COUNT_NAMESPACES = _load("count_namespaces", "(bi(bb)*)?", _MORE)
READ_ITEMS = _load("read_items", "(bi(bb)*)?", _MORE)
DOCUMENT_ITEMS = _load("document_items", "bbb*", _MORE)
SWEEP_ITEMS = _load("sweep_items", "iiib")
PUT_ITEMS = _load(
    "put_items", "", {**_DOCUMENTS, **_EMPTIED, 0: "", StoreReply.CONFLICT: "ib", StoreReply.OTHER_KEY: ""}
)
PutItemsArguments = namedtuple("PutItemsArguments", "field expected ttl put value vectors")
"""The arguments of an item."""
IMPORT_ITEMS = _load("import_items", "", {**_DOCUMENTS, 0: "", StoreReply.CONFLICT: "i*", StoreReply.OTHER_KEY: ""})
ImportItemsArguments = namedtuple("ImportItemsArguments", "field expected created updated ttl deadline put value")
"""The arguments of an item."""
GET_COPIES = _load("get_copies", "b[bn]*", _MORE)
FILL_COPIES = _load("fill_copies", "b", _TOKEN)
MARK_COMPLETE = _load("mark_complete", "b", _MORE)
BEGIN_WRITES = _load("begin_writes", "bb", _MORE)
END_WRITES = _load("end_writes", "b", {**_TOKEN, **_EMPTIED})
_TAKES_TAGS = frozenset((PUT_ITEMS, DOCUMENT_ITEMS))
"""Scripts that write documents: their last arguments are the tags of each."""


def is_announced(script: Script) -> bool:
    """True if a script takes an announcement as its first two arguments."""
    return StoreReply.NOT_ANNOUNCED in _REPLIES[script][1]


class Reply(NamedTuple):
    """Reply of a script. Its values have the types that its script was loaded with."""

    code: int
    """A `StoreReply`, or 0 for a plain reply."""
    values: list[Any]


def checked(script: Script, key: bytes, reply: Any) -> Reply:
    """Check the types of a script's reply, so that no operation mistakes a number for bytes.

    Raises:
        StoreDamaged: The script cannot have sent this reply.
    """
    pattern, codes = _REPLIES[script]
    values = [reply] if isinstance(reply, int) else reply
    if isinstance(values, list):
        if codes and values and type(values[0]) is int:
            if (of_code := codes.get(values[0])) is not None and _fits(values[1:], of_code):
                return Reply(values[0], values[1:])
        elif _fits(values, pattern):
            return Reply(0, values)
    with reading_store(key):
        raise ValueError(f"the script about it answered {shown(reply)}")


def _fits(values: list[Any], pattern: str) -> bool:
    return re.fullmatch(pattern, "".join(map(_LETTERS.__getitem__, map(type, values)))) is not None


# -- requests


def item_at(position: int, count: int) -> int:
    """Convert the position of an item from Lua, which counts from 1.

    Raises:
        ValueError: There are fewer items.
    """
    if not 1 <= position <= count:
        raise ValueError(f"it names item {position} of {count}")
    return position - 1


def with_partition_key(
    context: StoreContext, partition: Partition, make: Callable[[StoreContext], Operation[T]], *, creates: bool
) -> Operation[T]:
    """Run an operation on a partition with its cipher, as `with_key`. Without `encryption=`, just run it.

    Args:
        context: The store.
        partition: The partition.
        make: Makes the operation.
        creates: True if the operation may create the partition, which then gets a data key.
    """
    if context.values.data_keys is None:
        return make(context)
    name, key = partition.name, partition.keys[0]
    return with_key(
        context.values, name, lambda values: make(context._replace(values=values)), creates=creates, key=key
    )


def keyed(
    function: Callable[Concatenate[StoreContext, Partition, P], Operation[T]],
) -> Callable[Concatenate[StoreContext, Partition, P], Operation[T]]:
    """Do the same as a function that reads a partition, with the partition's cipher."""

    def read(context: StoreContext, partition: Partition, /, *args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        return with_partition_key(
            context, partition, lambda of: function(of, partition, *args, **kwargs), creates=False
        )

    return read


def ask(
    context: StoreContext,
    partition: Partition,
    script: Script,
    arguments: Sequence[Argument],
    fields: Sequence[bytes] = (),
) -> Operation[Reply]:
    """Run a script on a partition.

    One round trip. Two more if the directory must list the partition first, or extend its entry. One more if its items
    have documents and this store makes none. One more per thousand items that have expired since the last call.

    Args:
        context: The store.
        partition: The partition.
        script: The script.
        arguments: Its arguments without an announcement.
        fields: Items whose documents it changes.

    Raises:
        StoreBusy: The partition could not be announced.
    """
    announcement: Sequence[Argument] = NO_ANNOUNCEMENT if is_announced(script) else ()
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
        if reply.code == StoreReply.OTHER_KEY:
            raise other_key(keys)
        if reply.code != StoreReply.NOT_ANNOUNCED:
            if times and time.monotonic() - asked_at > LATE:
                # The token may have been given back meanwhile, so the directory may have dropped the partition.
                yield from announce(context, partition.member, ttl, above)
            return reply
        if (times := times + 1) > MAX_ANNOUNCED:
            raise StoreBusy(
                f"the items of {shown(partition.labels)} could not be announced in {MAX_ANNOUNCED} attempts. Nothing "
                "was written. Either others emptied them each time: try again later. Or the clocks of the cluster's "
                "nodes differ by more than five minutes: set them"
            )
        asked_at = time.monotonic()
        above, ttl = reply.values
        announcement = yield from announce(context, partition.member, ttl, above)


def announce(context: StoreContext, member: bytes, ttl: Argument = 0, above: Argument = 0) -> Operation[list[Any]]:
    """Announce a partition in the directory. Returns its token and the deadline of its entry. One round trip.

    Args:
        context: The store.
        member: The partition, as the directory names it.
        ttl: TTL of its items in milliseconds, or 0 for none.
        above: A number that the token has to exceed.
    """
    keys = context.keyspace.directory
    return checked(ANNOUNCE, keys[2], (yield Call(ANNOUNCE, keys, (member, ttl, above)))).values


def _with_documents(
    partition: Partition, script: Script, arguments: Sequence[Argument], fields: Sequence[bytes]
) -> tuple[tuple[bytes, ...], Sequence[Argument]]:
    """Add the keys of documents, and their tags if the script writes them."""
    with reading_store(partition.keys[0]):
        tags = [document_tags(partition, field) for field in fields] if script in _TAKES_TAGS else []
    return (*partition.keys, *document_keys(partition, fields)), (*arguments, *tags)


def windows(items: Sequence[T], size: int = lockstep.MAX_TOGETHER) -> list[Sequence[T]]:
    """Cut a sequence into parts of up to `size` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def refresh_ttls(context: StoreContext, hits: Iterable[Hit]) -> Operation[None]:
    """Restart the TTLs of items. One round trip, or none if no item has a TTL."""
    fields = defaultdict[Partition, list[bytes]](list)
    for partition, entry, _ in hits:
        if entry.has_ttl:
            fields[partition].append(entry.field)
    asked = [
        ask(context, partition, GET_ITEMS, (2, *window), window)
        for partition, names in fields.items()
        for window in windows(names, 1000)
    ]
    yield from together(context, asked)


def together(context: StoreContext, operations: Sequence[Operation[T]]) -> Operation[list[T]]:
    """Run operations in lockstep, and send their requests of the same step as one batch. Return their results."""
    return lockstep.together(operations, is_replicated=context.is_replicated)
