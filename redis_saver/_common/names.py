"""Make and parse all names in Redis: keys, members of the index, fields of the data.

Names that users choose (threads, namespaces, channels, tasks, ids) may hold any character. In fields and members each
name is an escaped component with a terminator. Escaping keeps the order of bytes, which is the order of code points. So
a sorted set has the same order as Python. `docs/storage-format.md` lists all keys, members and fields.
"""

from __future__ import annotations

import os
import re
import struct
from functools import lru_cache
from typing import NamedTuple

from langgraph.checkpoint.base.id import uuid6

from redis_saver._common.display import shown

INDEX, DATA, DIRTY, INTENTS, REPLICATED = b"index", b"data", b"dirty", b"intents", b"replicated"
OWNER, WAITERS = b"owner", b"waiters"

_OURS = re.compile(r"[0-9]{32}\.[0-9]{20}")
"""A version of `Saver.get_next_version`. It fits into twelve bytes."""
_PACKED = struct.Struct(">IQ")

MAX_CACHED_NAME = 256
"""Maximum length of a cached name, in characters or bytes. Longer names are rare."""


def encode(name: str) -> bytes:
    """Encode a name as UTF-8. A lone surrogate, which JSON can carry, becomes three bytes."""
    return name.encode("utf-8", "surrogatepass")


def decode(raw: bytes) -> str:
    """Decode a name that `encode` encoded."""
    return raw.decode("utf-8", "surrogatepass")


def component(name: str) -> bytes:
    """Return a name as a part of a field or member: escaped so that it has no NUL, then a NUL."""
    raw = name.encode("utf-8", "surrogatepass")
    if b"\0" in raw or b"\1" in raw:
        raw = raw.replace(b"\1", b"\1\2").replace(b"\0", b"\1\1")
    return raw + b"\0"


def name_of(component: bytes) -> str:
    """Return the name in a `component`."""
    raw = component[:-1]
    if b"\1" in raw:
        raw = raw.replace(b"\1\1", b"\0").replace(b"\1\2", b"\1")
    return raw.decode("utf-8", "surrogatepass")


def components(raw: bytes) -> list[str]:
    """Return the names in a sequence of `component`s."""
    return [name_of(part + b"\0") for part in raw.split(b"\0")[:-1]]


def glob(raw: bytes) -> bytes:
    """Return a SCAN pattern that matches exactly these bytes."""
    return re.sub(rb"([*?\[\]\\^])", rb"\\\1", raw)


def after(prefix: bytes) -> bytes:
    """Return the smallest byte string that sorts after all with this prefix. The prefix ends with a terminator."""
    return prefix[:-1] + b"\1"


def version_text(channel: str, version: object) -> bytes:
    """Return a channel version as the end of a value's field. It keeps the version's type.

    Raises:
        TypeError: The version is not a str, int or float (`langgraph.checkpoint.base.ChannelVersions`).
    """
    if isinstance(version, str):
        return _text_of(version) if len(version) <= MAX_CACHED_NAME else _text_of.__wrapped__(version)
    if isinstance(version, int):
        return b"i%d" % version
    if isinstance(version, float):
        return b"f" + repr(version).encode()
    raise TypeError(f"channel {shown(channel)}: its version {shown(version)} is neither a str nor an int nor a float")


def entry(channel: str, version: object) -> bytes:
    """Return a channel and its version, as fields and headers name them."""
    return component(channel) + version_text(channel, version)


@lru_cache(4096)
def _text_of(version: str) -> bytes:
    if _OURS.fullmatch(version) and (packed := int(version[:32])) < 2**32 and (rest := int(version[33:])) < 2**64:
        return b"v" + _PACKED.pack(packed, rest)
    return b"s" + encode(version)


def version_from(text: bytes) -> str | int | float:
    """Return the version in a `version_text`."""
    kind, rest = text[:1], text[1:]
    if kind == b"v":
        counter, random = _PACKED.unpack(rest)
        return f"{counter:032}.{random:020}"
    if kind == b"s":
        return decode(rest)
    if kind == b"i":
        return int(rest)
    if kind == b"f":
        return float(rest)
    raise ValueError(f"{shown(text)} is not the stored form of a channel version")


_RANDOM = struct.Struct("256Q")
_drawn: list[int] = []
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_drawn.clear)


def next_version(current: str | None) -> str:
    """Return the version after `current`. It sorts above `current` and is unique among the branches of the thread.

    The counter has 32 digits, as in LangGraph's other savers, so threads can move between savers.
    """
    counter = 0 if current is None else int(str(current).partition(".")[0])
    return f"{counter + 1:032}.{random():020}"


def random() -> int:
    """Return 64 bits from the operating system.

    They are drawn in batches, because each call to the system lets another OS thread take the interpreter.
    """
    try:
        return _drawn.pop()
    except IndexError:
        first, *others = _RANDOM.unpack(os.urandom(_RANDOM.size))
        _drawn.extend(others)
        return int(first)


def new_thread() -> str:
    """Return a thread's name that nobody has used. Names sort by time, as LangGraph's checkpoint ids do (`uuid6`)."""
    chance = random()
    return str(uuid6(node=chance % 2**48, clock_seq=chance >> 50))


class Keys(NamedTuple):
    """The two keys of a thread, both in the cluster slot of `{thread}`."""

    index_key: bytes
    data_key: bytes


class TierKeys(NamedTuple):
    """The keys of a thread in hot, over two tiers (`redis_saver/_tiered/`)."""

    index_key: bytes
    data_key: bytes
    intents: bytes
    """Write intents of the writers that write the thread to cold."""
    lease: bytes
    """Fill lease of the process that may copy missing checkpoints from cold. Or the mark of a new thread."""
    dirty: bytes
    """Records that cold lacks."""
    flush: bytes
    """Claim of the flusher that writes these records to cold, and the records that cold refused."""

    @property
    def writing(self) -> tuple[bytes, ...]:
        """Return the keys that the scripts of writers take."""
        return self[:5]


class Keyspace:
    """The keys of one prefix."""

    def __init__(self, prefix: str) -> None:
        """Make the keyspace of a prefix.

        Raises:
            TypeError: The prefix is not a str.
            ValueError: The prefix is empty, or has a brace, which would put every thread into one cluster slot.
        """
        if not isinstance(prefix, str):
            raise TypeError(f"prefix={shown(prefix)}: a prefix is a str")
        if not prefix or "{" in prefix or "}" in prefix:
            raise ValueError(f"prefix={shown(prefix)}: a prefix has at least one character, and no '{{' or '}}'")
        self.prefix = prefix
        self._stem = encode(prefix) + b":{"
        self.pattern: bytes = glob(self._stem) + b"*}:*"
        """SCAN pattern of the threads' keys."""
        self.dirty_pattern: bytes = self.pattern[:-1] + DIRTY
        """SCAN pattern of dirty threads: cold lacks records of them."""
        self.intents_pattern: bytes = self.pattern[:-1] + INTENTS
        """SCAN pattern of threads with write intents: they are being written to cold, or their writer is gone."""
        self.unflushed: bytes = encode(prefix) + b":unflushed"
        """Key with the number of records that cold lacks."""
        self.scanning: bytes = encode(prefix) + b":scanning"
        """Key of the process that scans for dirty threads, or has just done so."""

    def _tag(self, thread_id: str) -> bytes:
        """Return the prefix of all keys of a thread."""
        raw = thread_id.encode("utf-8", "surrogatepass")
        if b"{" in raw or b"}" in raw or b"%" in raw:
            raw = raw.replace(b"%", b"%25").replace(b"{", b"%7B").replace(b"}", b"%7D")
        return self._stem + (raw or b"%") + b"}:"  # an empty {} is no hash tag, so '' needs another spelling

    def keys(self, thread_id: str, token: str = "") -> Keys:
        """Return the keys of a thread, or with a token the keys of an unfinished copy onto the thread."""
        tag, ending = self._tag(thread_id), b"." + token.encode() if token else b""
        return Keys(tag + INDEX + ending, tag + DATA + ending)

    def owner_key(self, thread_id: str) -> bytes:
        """Return the key of a thread's owner."""
        return self._tag(thread_id) + OWNER

    def owner_keys(self, thread_id: str) -> tuple[bytes, bytes]:
        """Return the owner key, and the key of the queue of waiters."""
        tag = self._tag(thread_id)
        return tag + OWNER, tag + WAITERS

    def tier_keys(self, thread_id: str) -> TierKeys:
        """Return the keys of a thread over two tiers."""
        tag = self._tag(thread_id)
        return TierKeys(tag + INDEX, tag + DATA, tag + INTENTS, tag + b"lease", tag + DIRTY, tag + b"flush")

    def reading_keys(self, thread_id: str) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """Return the keys of a read over two tiers.

        With write intents, hot may lack checkpoints. With dirty records, cold does. The lease says if a thread is new.
        """
        tag = self._tag(thread_id)
        return tag + INDEX, tag + DATA, tag + INTENTS, tag + DIRTY, tag + b"lease"

    def thread_of(self, key: bytes, ending: bytes) -> str | None:
        """Return the thread of a key with this ending, such as INDEX, or None if it is another key."""
        tag, its_ending = key[len(self._stem) :].rpartition(b"}:")[::2]
        if not key.startswith(self._stem) or its_ending != ending or b"}" in tag or b"{" in tag:
            return None
        raw = b"" if tag == b"%" else tag
        try:
            return decode(raw.replace(b"%7D", b"}").replace(b"%7B", b"{").replace(b"%25", b"%"))
        except UnicodeDecodeError:
            return None  # another program's key

    def thread_of_key(self, key: bytes) -> str | None:
        """Return the thread of a key with any ending, or None if it is another key."""
        return self.thread_of(key, key.rpartition(b"}:")[2])


def ownership_beside(index_key: bytes) -> tuple[bytes, bytes]:
    """Return the keys of the owner and of the waiters of the thread with this index."""
    tag = index_key[: -len(INDEX)]
    return tag + OWNER, tag + WAITERS


def checkpoint(ns: str, checkpoint_id: str) -> bytes:
    """Return the field of a checkpoint's header. It is also its member in the order (namespace, id)."""
    return b"c" + component(ns) + component(checkpoint_id)


def removal(ns: str, checkpoint_id: str) -> bytes:
    """Return the name of the record that stands for removing a checkpoint from cold."""
    return b"r" + component(ns) + component(checkpoint_id)


def by_age(ns: str, checkpoint_id: str) -> bytes:
    """Return a checkpoint's member in the order (id, namespace). Checkpoints of the root have none."""
    return b"i" + component(checkpoint_id) + component(ns)


def task(ns: str, checkpoint_id: str, task_id: str) -> bytes:
    """Return the field and member of a task's regular writes. Those of a special write end with its index."""
    return b"w" + component(ns) + component(checkpoint_id) + component(task_id)


def blob(ns: str, entry: bytes = b"") -> bytes:
    """Return the field of a channel's value: its namespace, then its `entry` (channel and version)."""
    return b"b" + component(ns) + entry


def run(run_id: str) -> bytes:
    """Return the member of a run that made checkpoints of the thread. It lacks NULs, as LangGraph's metadata do."""
    return b"r" + encode(run_id.replace("\0", ""))
