"""The errors of this package. Errors of the Redis client (connection, timeout, OOM, ...) pass through unchanged.

    RedisSaverError
    ├── ThreadDamaged            a part of the thread is gone, or its bytes cannot be read
    │   └── DecodeError          the serializer refused stored bytes                              (also a ValueError)
    │       └── PlainValueRefused  a saver that encrypts met a value that is not encrypted; it was not decoded
    ├── StoreDamaged             a part of a partition of the store, or of its directory, is gone or cannot be read
    ├── Conflict                 an item of the store has another version than `if_version`
    ├── UnsupportedFormat        a newer release stored the thread or the items; nothing was changed
    ├── KeyConflict              another program wrote to a key with the name of one of ours
    ├── EncodeError              the serializer refused a value; nothing was written              (also a TypeError)
    ├── LimitExceeded            a write, or what a read would become, is larger than `Limits`    (also a ValueError)
    ├── ThreadNotFound           the named thread does not exist                                  (also a LookupError)
    ├── ThreadBusy               others wrote or flushed the thread all the time
    ├── NotOwner                 somebody else owns the thread; nothing was written
    ├── StaleParent              a checkpoint's parent is not the newest, and forks are refused; nothing was written
    ├── StoreBusy                others emptied a namespace again and again meanwhile; nothing was written
    ├── BacklogFull              the backlog of write-behind is at its limit; nothing was written
    ├── ReplicationTimeout       the primary has a write, but too few replicas have it
    ├── ClusterMoving            a slot was not served for `cluster_timeout` seconds   (also redis-py's ConnectionError)
    ├── UnsupportedServer        the server is too old, or lacks the module that an option needs
    ├── IndexNotBuilt            the server's index of vectors is not there, or some items are not in it
    ├── EndpointError            the source or target of a migration cannot be opened, or fails
    │   └── FileDamaged          a file that export wrote was cut off, or its bytes were changed  (also a ValueError)
    ├── ThreadMigrationError     a thread cannot be read or stored as it is, or did not arrive as it was
    ├── ItemMigrationError       an item of a store cannot be stored as it is
    ├── Closed                   the saver, store or cache was closed in this process              (also a RuntimeError)
    ├── CalledOnEventLoop        a synchronous call would block its own event loop   (also an asyncio.InvalidStateError)
    ├── LoopEnded                an event loop ended before it answered a call                    (also a RuntimeError)
    └── ForkMissed               this process was forked in C, without Python's fork hooks        (also a RuntimeError)

    BacklogWarning               a `with` over a write-behind saver ended before cold had everything (a RuntimeWarning)

Arguments that make no sense raise the built-in `ValueError` or `TypeError`, before anything is sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import Any

import redis

from redis_saver._common.display import error_text, printable, sentence, shown

__all__ = [
    "BacklogFull", "BacklogWarning", "CalledOnEventLoop", "Closed", "ClusterMoving", "Conflict", "DecodeError",
    "EncodeError", "EndpointError", "FileDamaged", "ForkMissed", "IndexNotBuilt", "ItemMigrationError",
    "KeyConflict", "LimitExceeded", "LoopEnded", "NotOwner", "PlainValueRefused", "RedisSaverError",
    "ReplicationTimeout", "StaleParent", "StoreBusy", "StoreDamaged", "ThreadBusy", "ThreadDamaged",
    "ThreadMigrationError", "ThreadNotFound", "UnsupportedFormat", "UnsupportedServer",
]  # fmt: skip


class RedisSaverError(Exception):
    """Base of every error this package raises about a store, a thread or a value."""


class ThreadDamaged(RedisSaverError):
    """A part of a thread is missing or unreadable: it was evicted, deleted by hand, or overwritten.

    What is left of the thread is not changed, and no answer is made up from it.
    """


class DecodeError(ThreadDamaged, ValueError):
    """The serializer cannot turn stored bytes back into a value, of a thread or of an item of a store."""


class PlainValueRefused(DecodeError):
    """A saver that requires encryption read a stored value that is not encrypted. The value was not decoded.

    It was written before encryption was turned on, or by somebody without the key.
    """


class NotEncrypted(ValueError):
    """The reason why a plain value was refused.

    `decoding` adds where the value is, and makes it a `PlainValueRefused`.
    """


class StoreDamaged(RedisSaverError):
    """A key of a store is missing or unreadable: it was evicted, deleted by hand, or overwritten.

    The message names it: a key of a partition (its items are not answered in part), or of the directory of all
    partitions. What is left is not changed.
    """


class Conflict(RedisSaverError):
    """An item has another version than the caller of `put(..., if_version=...)` expects. Nothing was written.

    One exception: the client sent the put twice after a lost reply, and the server has forgotten the first one
    (`docs/store.md`).
    """

    def __init__(self, message: str, version: int) -> None:
        """Say what was found."""
        super().__init__(message)
        self.version: int = version
        """The version that the item has; 0: there is no such item."""

    def __reduce__(self) -> tuple[type[Conflict], tuple[str, int]]:
        return type(self), (str(self), self.version)


class UnsupportedFormat(RedisSaverError):
    """A newer release of this package stored the thread, in a format that this one does not know.

    Nothing was changed. Upgrade this process.
    """


class KeyConflict(RedisSaverError):
    """A key with the name of one of ours holds data of another program."""


class EncodeError(RedisSaverError, TypeError):
    """The serializer cannot turn a value into bytes. Nothing was written."""


class LimitExceeded(RedisSaverError, ValueError):
    """A name, a value or a number of things is larger than the saver's `Limits`. Nothing was written or changed.

    On a read it does not mean damage: what was written with larger limits has to be read with larger limits.
    """


class NotOwner(RedisSaverError):
    """Somebody else owns the thread (`own`), or nobody does any more by the token that was given.

    Nothing was written.
    """

    def __init__(self, message: str, by: str = "", since: datetime | None = None) -> None:
        """Say who owns it."""
        super().__init__(message)
        self.by: str = by
        """Who owns it, as the owner described itself; nothing where nobody does."""
        self.since: datetime | None = since
        """Since when."""

    def __reduce__(self) -> tuple[type[NotOwner], tuple[str, str, datetime | None]]:
        return type(self), (str(self), self.by, self.since)


class StaleParent(RedisSaverError):
    """Another run has written a newer checkpoint than the parent of this one, and `on_fork="raise"`.

    Nothing was written.
    """


class ThreadNotFound(RedisSaverError, LookupError):
    """The named thread does not exist: it was never written, was deleted, or has expired."""


class ThreadBusy(RedisSaverError):
    """Others changed a thread, or flushed it to cold, during every attempt. Trying again later is safe."""


class StoreBusy(RedisSaverError):
    """The items of a namespace could not be announced in the store's directory, or read, in many attempts.

    Others emptied it each time. Nothing was written.
    """


class BacklogFull(RedisSaverError):
    """The backlog of a write-behind `TieredSaver` is at `max_backlog`, and stayed there for `backlog_timeout` seconds.

    Nothing was written.
    """


class BacklogWarning(RuntimeWarning):
    """A `with` over a write-behind `TieredSaver` ended before cold had everything.

    What it lacks stays in Redis until another flusher brings it to cold.
    """


class ReplicationTimeout(RedisSaverError):
    """Something was written, but too few replicas had it in time.

    The primary has it; it is lost if the primary is lost first. Writing it again is safe.
    """


class ClusterMoving(RedisSaverError, redis.ConnectionError):
    """A slot of a cluster was not served for as long as the saver tries: it is being moved, or its primary is lost.

    Calling again is safe.
    """


class UnsupportedServer(RedisSaverError):
    """The server is older than Redis 6.2, or Valkey 7.2.

    Or it lacks the module that `search="server"` of a store needs.
    """


class IndexNotBuilt(RedisSaverError):
    """A search by the server's own index of vectors, which is not there, or in which some items are not.

    `setup()` or `build_index()` changes that.
    """


class EndpointError(RedisSaverError):
    """The source or target of a migration cannot be opened, or fails.

    The migration ends. If it is run again it goes on from there.
    """


class FileDamaged(EndpointError, ValueError):
    """A file of threads, or of items, was cut off, or its bytes were changed. Nothing was read from it."""


class ThreadMigrationError(RedisSaverError):
    """The source cannot read a thread, or the target cannot store it, or it is not the same there.

    Other threads are moved all the same.
    """


class ItemMigrationError(RedisSaverError):
    """The target of a migration cannot store an item of a store as it is. Other items are moved all the same."""


class Closed(RedisSaverError, RuntimeError):
    """The saver, store or cache was closed in this process: its `with` has ended, or it was closed.

    Nothing was sent.
    """


class CalledOnEventLoop(RedisSaverError, asyncio.InvalidStateError, RuntimeError):
    """A synchronous method was called on an OS thread whose event loop it would block."""


class LoopEnded(RedisSaverError, RuntimeError):
    """The event loop that a call needs has ended, and what is bound to that loop cannot be used on another one.

    Calling again is safe.
    """


class ForkMissed(RedisSaverError, RuntimeError):
    """The process was forked by a program that does not call Python's fork hooks, and used a saver of the parent.

    Nothing was sent.
    """


def closed(what: str) -> Closed:
    """The error of a saver, store or cache that was closed.

    Args:
        what: Its kind and its server.
    """
    return Closed(
        f"{what} was closed in this process: its `with` has ended, or close() was called. Nothing was sent. "
        "Keep the block open for as long as it is used"
    )


_RESTORE = "Nothing was changed. Restore it from a backup, or give"
_NOEVICTION = "to prevent eviction, run the server with maxmemory-policy noeviction"
_REMEDIES: dict[str, tuple[type[RedisSaverError], str]] = {
    "DAMAGED": (
        ThreadDamaged,
        f"it was evicted, or another program removed or overwrote it. {_RESTORE} the thread up with delete_thread(); "
        f"{_NOEVICTION}",
    ),
    "PARTITION": (
        StoreDamaged,
        f"it was evicted, or another program removed or overwrote it. {_RESTORE} all items of the partition up with "
        f"delete_namespace(), of its first two labels; {_NOEVICTION}",
    ),
    "DIRECTORY": (
        StoreDamaged,
        "they were evicted, or another program removed them. Nothing was changed. The items are still there: "
        f"rebuild_directory() finds them again; {_NOEVICTION}",
    ),
    "KEYCONFLICT": (
        KeyConflict,
        "another program uses the same key names. Nothing was changed. Choose another prefix=, or remove that key",
    ),
    "NOTOWNER": (
        NotOwner,
        "Nothing was written. End this run, as the other one goes on; or take the thread with own(), on_busy='take'",
    ),
    "STALEPARENT": (
        StaleParent,
        "Nothing was written. Another run wrote the thread meanwhile: read the thread again, and run on what it has "
        "now. own() keeps two runs apart",
    ),
    "UNSUPPORTED": (
        UnsupportedFormat,
        "a newer redis-saver stored it. Nothing was changed. Upgrade redis-saver where this was raised",
    ),
}
_STOPPED_REMEDY = (
    "another program overwrote it, or redis_saver has a bug. Restore the thread from a backup, or give it up with "
    "delete_thread(). If no other program writes there, please report this"
)
_IN_SCRIPT = re.compile(r"@user_script: ?\d+: -(READONLY|OOM) (.*)$", re.DOTALL)
_STOPPED = re.compile(
    r"""(?:user_script|\[string "[^"\n]*"\]):\d+: """
    r"""(attempt to [^\n]*|bad argument [^\n]*|table index is [^\n]*|'for' [^\n]*)"""
)
"""What Lua says, on any of the servers, if a script meets something that no saver stores."""
_CODE = re.compile(rf"\b({'|'.join(_REMEDIES)}) (.*?)(?: script: [0-9a-f]{{40}}.*)?$", re.DOTALL)


def from_reply(reply: Exception, keys: Sequence[bytes], exceptions: Any) -> Exception | None:
    """The error to raise for the error reply of a script; None if that is the reply itself.

    Args:
        reply: The error that the client raised.
        keys: The keys that the script was called with.
        exceptions: The module of the client's own exceptions. Redis 6.2 wraps an error that the server raises inside a
            script in another error; here it becomes the one that newer servers answer. (What an owner calls itself may
            look like one.)
    """
    if not str(reply).startswith("NOTOWNER ") and (match := _IN_SCRIPT.search(str(reply))) is not None:
        kind = {"READONLY": exceptions.ReadOnlyError, "OOM": exceptions.OutOfMemoryError}[match[1]]
        return kind(match[2])  # type: ignore[no-any-return]
    return from_text(str(reply), keys)


def from_text(text: str, keys: Sequence[bytes]) -> RedisSaverError | None:
    """The error to raise for the text of an error reply; None if it is not an error of one of our scripts."""
    if (match := _CODE.search(text)) is not None:
        kind, remedy = _REMEDIES[match[1]]
        said = match[2]
        if kind is NotOwner:
            since, _, by = said.partition(" ")
            return not_owner(since, by, keys[-1])
        if kind is StaleParent:
            said = f"the parent is not the newest checkpoint of its namespace any more, which is {said}"
    elif "WRONGTYPE" in text:
        kind, remedy = _REMEDIES["KEYCONFLICT"]
        said = "a key has another type than the keys of redis_saver"
    elif (match := _STOPPED.search(text)) is not None:
        kind, remedy = ThreadDamaged, _STOPPED_REMEDY
        said = f"the script met something that redis_saver does not store: {match[1]}"
    else:
        return None
    return kind(f"{printable(said)} (in {_named(keys)}): {remedy}.")


def _named(keys: Sequence[bytes]) -> str:
    return " and ".join(shown(key.decode("utf-8", "backslashreplace")) for key in keys)


def not_owner(since: str, by: str, key: bytes) -> NotOwner:
    """The error for who does not own a thread.

    Args:
        since: Since when somebody else does, in microseconds; `0`: nobody is known to.
        by: Who that is.
        key: The key that says who owns the thread.
    """
    remedy, where = _REMEDIES["NOTOWNER"][1], _named([key])
    if not (since.isdecimal() and 0 < int(since) < 10**16):
        return NotOwner(
            f"nobody owns the thread by this token any more (in {where}): it was given back, the thread was deleted, "
            "or the key was lost. Nothing was written. Take the thread again with own()"
        )
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=int(since))
    said = f"{printable(by)} owns the thread since {moment.isoformat()} (in {where}). {remedy}"
    return NotOwner(said, printable(by), moment)


def others_wait(key: bytes) -> NotOwner:
    """The error for a waiter whose time is over while the thread is left to another waiter.

    Args:
        key: The key of the queue.
    """
    return NotOwner(
        f"other runs wait for the thread and come first (in {_named([key])}). Nothing was written. "
        "Wait longer, or take the thread with on_busy='take'"
    )


class _Wrapping:
    """Turns whatever a serializer raises into one of our errors, which says where it happened.

    The cause stays attached.

    Users bring serializers of any kind, which may raise anything. So their errors cannot be listed here.
    """

    __slots__ = ("_error", "_named", "_remedy", "_said")

    def __init__(self, error: type[RedisSaverError], said: str, named: tuple[object, ...], remedy: str) -> None:
        self._error, self._said, self._named, self._remedy = error, said, named, remedy

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, RedisSaverError):
            raise self.of(error) from error

    def of(self, error: Exception) -> RedisSaverError:
        """Return our error for one that was raised."""
        if isinstance(error, NotEncrypted):
            return PlainValueRefused(f"{sentence(self._said, *self._named)}: {error}")
        return self._error(f"{sentence(self._said, *self._named)}: {error_text(error)}. {self._remedy}")


_UNDECODED = "The stored bytes were not changed. Read them with the serializer (and key) that wrote them, or "
_OF_THREAD = _UNDECODED + "give the thread up with delete_thread()."


def decoding(what: str, *named: object, remedy: str = _OF_THREAD) -> _Wrapping:
    """A context in which an error means: the stored bytes of `what` cannot be decoded.

    `what` is a template, as `str.format` takes it, which `named` fills. It is filled only if there is an error.
    """
    return _Wrapping(DecodeError, "cannot decode " + what, named, remedy)


def decoding_item(what: str, *named: object) -> _Wrapping:
    """`decoding` for the value of an item of a store."""
    return decoding(what, *named, remedy=_UNDECODED + "delete() the item.")


def reading_store(key: bytes) -> _Wrapping:
    """A context in which an error means: what a key of a store holds cannot be read."""
    remedy = (
        "Another program overwrote it. Nothing was changed. Give the partition up with delete_namespace(), of its "
        "first two labels; the directory is made anew by rebuild_directory()"
    )
    return _Wrapping(StoreDamaged, "what {!r} holds is not what redis_saver stores", (key,), remedy)


def moving(what: str, *named: object) -> _Wrapping:
    """A context in which an error means: `what`, as in `decoding`, cannot be moved as it is."""
    return _Wrapping(ThreadMigrationError, what, named, "Other threads are moved all the same.")


def encoding(what: str, *named: object) -> _Wrapping:
    """A context in which an error means: the value of `what`, as in `decoding`, cannot be encoded."""
    remedy = (
        "Nothing was written. Store a value of a type that the serializer knows, or pass a serde= that knows this one; "
        "or store a copy, if another OS thread was changing the value."
    )
    return _Wrapping(EncodeError, "cannot encode " + what, named, remedy)
