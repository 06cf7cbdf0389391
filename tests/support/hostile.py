"""Hostile bytes: replies of a server, stored fields and files, changed at random and by design.

`Recorder` is a client that records the replies of a real server. `Replay` returns them without a server, except one
reply, which is changed. So a case takes a fraction of a millisecond, and goes through the saver's public methods.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha1
from typing import Any

import redis
from tests.support.factories import checkpoint, config
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from redis_saver import KeyConflict, KeyUnavailable, LimitExceeded, RedisSaver, ThreadBusy, FlushPaused, ThreadDamaged
from redis_saver import ThreadNotFound, UnsupportedFormat
from redis_saver._storage.chunks import DIGEST, digest
from redis_saver._storage.framing import pack

ALLOWED = (
    FlushPaused, ThreadDamaged, LimitExceeded, KeyConflict, KeyUnavailable, ThreadBusy, ThreadNotFound, UnsupportedFormat,
)  # fmt: skip
"""Errors that a call may raise; any other error fails the test."""
MAX_REQUESTS = 400
"""Limit of requests per call. A call with more of them never ends, as its data has fewer pages."""

SECONDS = 10
"""Limit of seconds per call; a call that takes longer hangs."""
PREFIX = "hostile"
WHERE = config("thread")
OF_STORED_BYTES = ("EVALSHA", "ZRANGEBYLEX", "HMGET", "HGET", "HSCAN", "GET")
"""Commands that return stored bytes. The server itself makes the replies of others, such as SCAN."""

LENGTHS = (
    b"-3:", b"+3:", b"1_0:", b" 3:", b"0x3:", b"\xd9\xa3:", b":", b"99999999999999999999:", b"9" * 5000 + b":",
    b"4294967296:", b"00000003:",
)  # fmt: skip


class Recorder(redis.Redis):
    """A client that records requests and replies."""

    notes: list[tuple[tuple[Any, ...], Any]]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = super().execute_command(*args, **options)
        if args[0] == "EVAL":  # the request if the server knows the script
            args = ("EVALSHA", sha1(args[1].encode()).hexdigest(), *args[2:])
        self.notes.append((args, reply))
        return reply

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        return OneByOne(self)


class OneByOne:
    """A pipeline that sends its commands one by one."""

    def __init__(self, client: Any) -> None:
        self._client, self._commands = client, []

    def __enter__(self) -> OneByOne:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute_command(self, *args: Any, **options: Any) -> None:
        self._commands.append((args, options))

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        replies: list[Any] = []
        for args, options in self._commands:
            try:
                replies.append(self._client.execute_command(*args, **options))
            except redis.ResponseError as error:
                replies.append(error)
        return replies


class Endless(Exception):
    """A call never stops sending requests."""


class Replay(redis.Redis):
    """A client that returns recorded replies: that of the same request, else those of the same script in turn."""

    def __init__(self, notes: list[tuple[tuple[Any, ...], Any]]) -> None:
        super().__init__()
        self.notes, self.changed, self.asked = notes, (-1, None), 0
        self._exact = {self._known(args): number for number, (args, _) in reversed([*enumerate(notes)])}
        self._of_script: dict[Any, list[int]] = {}
        for number, (args, _) in enumerate(notes):
            self._of_script.setdefault(args[:2] if args[0] == "EVALSHA" else args[0], []).append(number)

    @staticmethod
    def _known(args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(args)

    def begin(self, number: int, reply: Any) -> None:
        """Change one of the replies, and reset the count of requests."""
        self.changed, self.asked = (number, reply), 0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        if self.asked > MAX_REQUESTS:
            raise Endless
        number = self._exact.get(self._known(args))
        if number is None:
            same = self._of_script.get(args[:2] if args[0] == "EVALSHA" else args[0])
            if not same:
                raise redis.ResponseError("not noted")
            number = same[self.asked % len(same)]
        which, reply = self.changed
        reply = reply if number == which else self.notes[number][1]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        return OneByOne(self)


# -- changing what was answered


def leaves(reply: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield all parts of a reply, each with its path."""
    yield path, reply
    if isinstance(reply, list):
        for position, each in enumerate(reply):
            yield from leaves(each, (*path, position))


def replaced(reply: Any, path: tuple[int, ...], new: Any) -> Any:
    """Return a copy with another part at a path."""
    if not path:
        return new
    copy = list(reply)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


def at_path(reply: Any, path: tuple[int, ...]) -> Any:
    for position in path:
        reply = reply[position]
    return reply


def changed_bytes(chance: random.Random, data: bytes) -> bytes:
    """Flip a bit; cut, insert or repeat bytes; or break a length."""
    which, where = chance.randrange(9), chance.randrange(len(data)) if data else 0
    if which <= 2 and data:
        mask = 1 << chance.randrange(8)
        return data[:where] + bytes([data[where] ^ mask]) + data[where + 1 :]
    if which == 3:
        return data[:where]
    if which == 4:
        return data[:where] + data[where + chance.randint(1, 8) :]
    if which == 5:
        return data[:where] + chance.randbytes(chance.randint(1, 6)) + data[where:]
    if which == 6:
        return data[:where] + data[max(0, where - 20) : where] * chance.choice([1, 2, 40]) + data[where:]
    if which == 7 and b":" in data:
        colon = chance.choice([at for at in range(len(data)) if data[at : at + 1] == b":"])
        start = colon
        while start and data[start - 1 : start].isdigit():
            start -= 1
        return data[:start] + chance.choice(LENGTHS) + data[colon + 1 :]
    return resealed(chance, data)


def resealed(chance: random.Random, data: bytes) -> bytes:
    """Return a changed root of a chunked value with the right digest, or a forged root."""
    if data[:1] in (b"p", b"n", b"z") and len(data) > 1 + DIGEST and chance.random() < 0.7:
        rest = changed_bytes(chance, data[1 + DIGEST :])
        kind = chance.choice([data[:1], b"n", b"p", b"z"])
        return kind + digest(kind + rest) + rest
    return chance.choice(
        [b"", b"0:", b"\xff" * 20, b"\0", sealed(b"p", [digest(b"x")]), sealed(b"n", []), b"-3:" + data, data + data]
    )


def sealed(kind: bytes, digests: list[bytes], head: bytes = b"\x92") -> bytes:
    """Return a root with the right digest."""
    rest = pack([b"msgpack", head]) + b"".join(digests)
    return kind + digest(kind + rest) + rest


def renamed(chance: random.Random, reply: Any) -> Any:
    """Change a chunk and rename it, so that its digest matches, but its content is wrong."""
    places = [
        (path, position)
        for path, each in leaves(reply)
        if isinstance(each, list)
        for position in range(0, len(each) - 1, 2)
        if isinstance(each[position], bytes)
        and len(each[position]) == 1 + DIGEST
        and isinstance(each[position + 1], bytes)
    ]
    if not places:
        return reply
    path, position = chance.choice(places)
    flat = list(at_path(reply, path))
    before, chunk = flat[position], changed_bytes(chance, flat[position + 1])
    flat[position], flat[position + 1] = before[:1] + digest(chunk), chunk
    made = replaced(reply, path, flat)
    for where, each in [*leaves(made)]:
        if isinstance(each, bytes) and before[1:] in each and len(each) > 1 + DIGEST:
            new = each.replace(before[1:], flat[position][1:])
            if new[:1] in (b"p", b"n", b"z"):
                new = new[:1] + digest(new[:1] + new[1 + DIGEST :]) + new[1 + DIGEST :]
            made = replaced(made, where, new)
        elif each == before:
            made = replaced(made, where, flat[position])
    return made


def changed_reply(chance: random.Random, reply: Any) -> Any:
    """Change parts of a reply: mostly bytes, but also types and the order of lists."""
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        reply = _changed_once(chance, reply)
    return reply


def _changed_once(chance: random.Random, reply: Any) -> Any:
    if chance.random() < 0.15:
        return renamed(chance, reply)
    path, found = chance.choice([*leaves(reply)])
    if isinstance(found, bytes) and chance.random() < 0.85:
        return replaced(reply, path, changed_bytes(chance, found))
    if isinstance(found, list) and found and chance.random() < 0.7:
        new = list(found)
        one, other = chance.randrange(len(new)), chance.randrange(len(new))
        which = chance.randrange(4)
        if which == 0:
            new[one], new[other] = new[other], new[one]
        elif which == 1:
            del new[one]
        elif which == 2:
            new.insert(one, new[other])
        else:
            new = new[:one]
        return replaced(reply, path, new)
    return replaced(
        reply, path, chance.choice([None, 0, 1, 2, -1, 10**18, [], [[]], [b"", b""], b"", b"\0", "text", 1.5])
    )


def attempt(call: Callable[[], Any]) -> str:
    """Call it; return `value`, or the name of an allowed error."""
    try:
        call()
    except ALLOWED as error:
        return type(error).__name__
    return "value"


def noted(
    url: str, saver_options: dict[str, Any], call: Callable[[RedisSaver], Any]
) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the requests and replies of a call on a real server."""
    with Recorder.from_url(url) as client:
        client.notes = []
        call(RedisSaver(client, **saver_options))
        return client.notes


def furnish(saver: Any, thread: str = "thread", length: int = 3) -> list[dict[str, Any]]:
    """Make a thread with chunks of several levels, dicts, snapshots, subgraphs, a fork and all kinds of writes."""
    found: list[dict[str, Any]] = []
    chat: list[Any] = []
    for step in range(length):
        chat += [
            HumanMessage(f"question {step} " + "x" * 700, id=f"h{step}"),
            AIMessage(f"answer {step}", id=f"a{step}"),
        ]
        values: dict[str, Any] = {
            "messages": chat * 3,
            "texts": [f"{number:0100}" for number in range(60 + step)],
            "table": {f"key {number}": "v" * 100 for number in range(40)},
            "long": "words and more words " * 120,
            "n": step,
        }
        if step % 2 == 0:
            values["delta"] = _DeltaSnapshot([f"item {number}" * 30 for number in range(20)])
        versions = {
            **{name: f"{step + 1:032}.0123456789" for name in values},
            "delta": f"{step + 1:032}.0123456789",
            "f": 1.5,
            "i": 7,
        }
        made = checkpoint(values, versions, f"c{step:06}")
        where = config(thread, "", f"c{step - 1:06}" if step else None)
        metadata = {"source": "loop", "step": step, "parents": {}, "run_id": f"run {step}"}
        found.append(saver.put(where, made, metadata, versions))
        saver.put_writes(found[-1], [("delta", ["written"]), ("n", step), ("n", "x" * 2000)], f"task {step}", "path")
        saver.put_writes(found[-1], [("__interrupt__", "why"), ("__error__", "no")], f"task {step}")
    inner = checkpoint({"n": 1, "texts": values["texts"]}, {"n": "1", "texts": "1"}, "c000007")
    saver.put(
        config(thread, "inner:1"),
        inner,
        {"source": "loop", "step": 0, "parents": {"": "c000001"}},
        {"n": "1", "texts": "1"},
    )
    return found


@contextmanager
def watched(seconds: int) -> Iterator[None]:
    """Raise `Endless` if the block takes longer."""

    def ring(*_: object) -> None:
        raise Endless

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
