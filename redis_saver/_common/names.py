"""Every name in Redis is made here, and taken apart here: keys, members of the index, fields of the data.

Names that users choose (threads, namespaces, channels, tasks, ids) may hold any character. In fields and members each
one is an escaped component with a terminator. Escaping keeps the order of bytes, which is the order of code points. So
a sorted set orders them as Python does. `docs/storage-format.md` shows all keys, members and fields.
"""

from __future__ import annotations

import os
import re
import struct
from functools import lru_cache
from typing import NamedTuple

from redis_saver._common.display import shown

INDEX, DATA, DIRTY, INTENTS, REPLICATED = b"index", b"data", b"dirty", b"intents", b"replicated"
OWNER, WAITERS = b"owner", b"waiters"

_OURS = re.compile(r"[0-9]{32}\.[0-9]{20}")
"""A version as `Saver.get_next_version` makes it; twelve bytes hold it."""
_PACKED = struct.Struct(">IQ")

MAX_CACHED_NAME = 256
"""Maximum length of a name about which something is remembered, in characters or bytes. Longer names are rare."""


def encode(name: str) -> bytes:
    """UTF-8; a lone surrogate (JSON can carry one) becomes the three bytes that UTF-8 would give it."""
    return name.encode("utf-8", "surrogatepass")


def decode(raw: bytes) -> str:
    """The inverse of `encode`."""
    return raw.decode("utf-8", "surrogatepass")


def component(name: str) -> bytes:
    """Return a name as a part of a field or member: escaped, so that it has no NUL in it, with a NUL behind it."""
    raw = name.encode("utf-8", "surrogatepass")
    if b"\0" in raw or b"\1" in raw:
        raw = raw.replace(b"\1", b"\1\2").replace(b"\0", b"\1\1")
    return raw + b"\0"


def name_of(component: bytes) -> str:
    """The inverse of `component`."""
    raw = component[:-1]
    if b"\1" in raw:
        raw = raw.replace(b"\1\1", b"\0").replace(b"\1\2", b"\1")
    return raw.decode("utf-8", "surrogatepass")


def components(raw: bytes) -> list[str]:
    """The names in `raw`, which is one `component` after the other."""
    return [name_of(part + b"\0") for part in raw.split(b"\0")[:-1]]


def after(prefix: bytes) -> bytes:
    """The smallest byte string above all that begin with `prefix`, which ends with a terminator."""
    return prefix[:-1] + b"\1"


def version_text(channel: str, version: object) -> bytes:
    """A channel version as the end of a value's field; its type is kept.

    Raises:
        TypeError: the version is not a str, int or float (`langgraph.checkpoint.base.ChannelVersions`).
    """
    if isinstance(version, str):
        return _text_of(version) if len(version) <= MAX_CACHED_NAME else _text_of.__wrapped__(version)
    if isinstance(version, int):
        return b"i%d" % version
    if isinstance(version, float):
        return b"f" + repr(version).encode()
    raise TypeError(
        f"channel {shown(channel)} has the version {shown(version)} of type {type(version).__name__}; "
        "a version is a str, int or float, as get_next_version() makes it"
    )


def entry(channel: str, version: object) -> bytes:
    """A channel and its version, as fields and headers name them."""
    return component(channel) + version_text(channel, version)


@lru_cache(4096)
def _text_of(version: str) -> bytes:
    if _OURS.fullmatch(version) and (packed := int(version[:32])) < 2**32 and (rest := int(version[33:])) < 2**64:
        return b"v" + _PACKED.pack(packed, rest)
    return b"s" + encode(version)


def version_from(text: bytes) -> str | int | float:
    """Return the version. The inverse of `version_text`."""
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
    """Return the version after `current`.

    It sorts above `current`, and no other branch of the thread makes the same one.

    The counter has 32 digits, as LangGraph's other savers write it, so that threads can move between savers.
    """
    counter = 0 if current is None else int(str(current).partition(".")[0])
    return f"{counter + 1:032}.{random():020}"


def random() -> int:
    """Return 64 bits from the operating system.

    Many are drawn at a time, because each call to the system lets another OS thread take the interpreter.
    """
    try:
        return _drawn.pop()
    except IndexError:
        first, *others = _RANDOM.unpack(os.urandom(_RANDOM.size))
        _drawn.extend(others)
        return int(first)


class Keys(NamedTuple):
    """The two keys of a thread; both are in the cluster slot of `{thread}`."""

    index_key: bytes
    data_key: bytes


class TierKeys(NamedTuple):
    """The keys of a thread in front of a cold saver; see `redis_saver/_tiered/`."""

    index_key: bytes
    data_key: bytes
    intents: bytes
    """The write intents: who is writing the thread to cold."""
    lease: bytes
    """The fill lease: who may bring back from cold what hot lacks."""
    dirty: bytes
    """The records that cold lacks."""
    flush: bytes
    """The flusher's claim: who brings that to cold; and the records that cold refused."""

    @property
    def writing(self) -> tuple[bytes, ...]:
        """The keys that the scripts of writers take."""
        return self[:5]


class Keyspace:
    """The keys of one prefix."""

    def __init__(self, prefix: str) -> None:
        """Check the prefix.

        Raises:
            TypeError: the prefix is no str.
            ValueError: the prefix is empty, or has a brace, which would move every thread into one cluster slot.
        """
        if not isinstance(prefix, str):
            raise TypeError(f"prefix={shown(prefix)}: a prefix is a str")
        if not prefix or "{" in prefix or "}" in prefix:
            raise ValueError(f"prefix={shown(prefix)}: a prefix has at least one character, and no '{{' or '}}'")
        self.prefix = prefix
        self._stem = encode(prefix) + b":{"
        self.pattern: bytes = re.sub(rb"([*?\[\]\\^])", rb"\\\1", self._stem) + b"*}:*"
        """The pattern of SCAN for the threads' keys."""
        self.dirty_pattern: bytes = self.pattern[:-1] + DIRTY
        """The pattern of SCAN for dirty threads, of which cold lacks something."""
        self.intents_pattern: bytes = self.pattern[:-1] + INTENTS
        """The pattern of SCAN for threads with write intents: they are being written to cold, or their writer is
        gone."""
        self.unflushed: bytes = encode(prefix) + b":unflushed"
        """The key with the count of records that cold lacks."""
        self.scanning: bytes = encode(prefix) + b":scanning"
        """The key that says that a process scans for dirty threads, or has just done so."""

    def _tag(self, thread_id: str) -> bytes:
        """The beginning of all keys of a thread."""
        raw = thread_id.encode("utf-8", "surrogatepass")
        if b"{" in raw or b"}" in raw or b"%" in raw:
            raw = raw.replace(b"%", b"%25").replace(b"{", b"%7B").replace(b"}", b"%7D")
        return self._stem + (raw or b"%") + b"}:"  # an empty {} is no hash tag, so '' needs a spelling of its own

    def keys(self, thread_id: str, token: str = "") -> Keys:
        """The keys of a thread. With a token: the keys of an unfinished copy onto it."""
        tag, ending = self._tag(thread_id), b"." + token.encode() if token else b""
        return Keys(tag + INDEX + ending, tag + DATA + ending)

    def owner_key(self, thread_id: str) -> bytes:
        """The key that says who owns a thread."""
        return self._tag(thread_id) + OWNER

    def owner_keys(self, thread_id: str) -> tuple[bytes, bytes]:
        """The owner key, and the key of the queue of those who wait for the thread."""
        tag = self._tag(thread_id)
        return tag + OWNER, tag + WAITERS

    def tier_keys(self, thread_id: str) -> TierKeys:
        """The keys of a thread in front of a cold saver."""
        index, data, intents, dirty = self.reading_keys(thread_id)
        tag = self._tag(thread_id)
        return TierKeys(index, data, intents, tag + b"lease", dirty, tag + b"flush")

    def reading_keys(self, thread_id: str) -> tuple[bytes, bytes, bytes, bytes]:
        """Return the keys that a read takes.

        These are the thread's two, the write intents (may hot be believed?), and the dirty records (may cold?).
        """
        tag = self._tag(thread_id)
        return tag + INDEX, tag + DATA, tag + INTENTS, tag + DIRTY

    def thread_of(self, key: bytes, ending: bytes) -> str | None:
        """Return the thread that has this key with this ending (INDEX or DATA).

        Return None if the key is no such key of this prefix.
        """
        tag, found = key[len(self._stem) :].rpartition(b"}:")[::2]
        if not key.startswith(self._stem) or found != ending or b"}" in tag or b"{" in tag:
            return None
        raw = b"" if tag == b"%" else tag
        try:
            name = decode(raw.replace(b"%7D", b"}").replace(b"%7B", b"{").replace(b"%25", b"%"))
        except UnicodeDecodeError:
            return None  # another program's key
        return name

    def thread_of_key(self, key: bytes) -> str | None:
        """The thread that has a key, whatever its ending is; None where it is no key of a thread of this prefix."""
        return self.thread_of(key, key.rpartition(b"}:")[2])


def owner_beside(index_key: bytes) -> bytes:
    """The key that says who owns a thread, beside the thread's index."""
    return index_key[: -len(INDEX)] + OWNER


def checkpoint(ns: str, checkpoint_id: str) -> bytes:
    """The field of a checkpoint's header, and its member in the order (namespace, id)."""
    return b"c" + component(ns) + component(checkpoint_id)


def removal(ns: str, checkpoint_id: str) -> bytes:
    """The note that cold has to remove a checkpoint."""
    return b"r" + component(ns) + component(checkpoint_id)


def by_age(ns: str, checkpoint_id: str) -> bytes:
    """A checkpoint's member in the order (id, namespace); those of the root have none, see `docs/storage-format.md`."""
    return b"i" + component(checkpoint_id) + component(ns)


def task(ns: str, checkpoint_id: str, task_id: str) -> bytes:
    """The field and member of a task's regular writes; a special write's has its index behind it."""
    return b"w" + component(ns) + component(checkpoint_id) + component(task_id)


def blob(ns: str, entry: bytes = b"") -> bytes:
    """The field of a channel's value: its namespace, and its `entry` (channel and version)."""
    return b"b" + component(ns) + entry


def run(run_id: str) -> bytes:
    """The member that says: this thread has checkpoints of that run.

    NUL is left out of the id, as LangGraph leaves it out of metadata.
    """
    return b"r" + encode(run_id.replace("\0", ""))
