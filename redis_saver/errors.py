"""The errors of this package. Errors of the Redis client (connection, timeout, OOM, ...) pass through unchanged.

    RedisSaverError
    ├── ThreadDamaged            a part of the thread is gone, or its bytes cannot be read
    │   └── DecodeError          the serializer refused stored bytes                              (also a ValueError)
    │       └── PlainValueRefused  a saver that encrypts met a value that is not encrypted; it was not decoded
    ├── UnsupportedFormat        a newer release stored the thread; nothing was changed
    ├── KeyConflict              a key of ours holds something that is not ours
    ├── EncodeError              the serializer refused a value; nothing was written              (also a TypeError)
    ├── LimitExceeded            more than `Limits` allow: to be written, or unfolded              (also a ValueError)
    ├── ThreadNotFound           the thread that was named is not there                           (also a LookupError)
    ├── ThreadBusy               others were at the thread all the time
    ├── BacklogFull              too much was written that cold does not have yet; nothing was written
    ├── ReplicationTimeout       a write is there, but on fewer replicas than it was to be
    ├── ClusterMoving            a slot of a cluster was not served for `cluster_timeout` seconds  (also redis-py's ConnectionError)
    ├── UnsupportedServer        the server lacks what the scripts need
    ├── EndpointError            what threads are migrated from or to is not there, fails, or is not what it was taken for
    │   └── FileDamaged          a file of threads was cut off, or its bytes were changed         (also a ValueError)
    ├── ThreadMigrationError     a thread cannot be read or stored as it is, or did not arrive so
    ├── CalledOnEventLoop        a synchronous call that would block its own event loop           (also a RuntimeError)
    ├── LoopEnded                the event loop that was to answer ended before it did            (also a RuntimeError)
    └── ForkMissed               this process was forked in C, and Python was not told            (also a RuntimeError)

    BacklogWarning               a `with` over a write-behind saver ended before cold had everything (a RuntimeWarning, not raised)

Arguments that make no sense raise the built-in `ValueError` or `TypeError`, before anything is sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import redis

from redis_saver._common.display import error_text, printable, sentence, shown


class RedisSaverError(Exception):
    """Base of every error this package raises about a store, a thread or a value."""


class ThreadDamaged(RedisSaverError):
    """A part of a thread is missing or unreadable: evicted, deleted by hand, overwritten.

    What is left of the thread is not touched, and no answer is made up from it.
    """


class DecodeError(ThreadDamaged, ValueError):
    """Stored bytes that the serializer cannot turn back into a value."""


class PlainValueRefused(DecodeError):
    """A stored value that is not encrypted, read by a saver that requires encryption. It was not decoded.

    It was written before encryption was turned on, or by somebody without the key.
    """


class NotEncrypted(ValueError):
    """Why a value was refused that is not encrypted. `decoding` adds where it was, and makes it a `PlainValueRefused`."""


class UnsupportedFormat(RedisSaverError):
    """A newer release of this package stored the thread, in a format that this one does not know. Nothing was changed. Upgrade this process."""


class KeyConflict(RedisSaverError):
    """A key with the name of one of ours holds data of another program."""


class EncodeError(RedisSaverError, TypeError):
    """A value the serializer cannot turn into bytes. Nothing was written."""


class LimitExceeded(RedisSaverError, ValueError):
    """A name, a value or a number of things is larger than the saver's `Limits`. A write sent nothing; a read left all as it is.

    It says nothing about damage: what was written with larger limits is read with larger limits.
    """


class ThreadNotFound(RedisSaverError, LookupError):
    """The named thread does not exist (never did, was deleted, or expired)."""


class ThreadBusy(RedisSaverError):
    """Others were at a thread all the time, changing it, or bringing it to cold. Trying again later is safe."""


class BacklogFull(RedisSaverError):
    """A write-behind `TieredSaver` has written as much as it may before cold gets it. Nothing was written."""


class BacklogWarning(RuntimeWarning):
    """A `with` over a write-behind `TieredSaver` ended before cold had everything. What it lacks is kept in Redis, for any other flusher."""


class ReplicationTimeout(RedisSaverError):
    """Something was written, but too few replicas had it in time. It is there, unless the primary is lost first. To write it again is safe."""


class ClusterMoving(RedisSaverError, redis.ConnectionError):
    """A slot of a cluster was not served for as long as the saver tries: it is being moved, or its primary is lost. Calling again is safe."""


class UnsupportedServer(RedisSaverError):
    """The server is older than Redis 6.2, or Valkey 7.2."""


class EndpointError(RedisSaverError):
    """What threads are moved from or to cannot be opened or fails; moving ends. Running it again goes on where it ended."""


class FileDamaged(EndpointError, ValueError):
    """A file of threads that was cut off, or the bytes of which were changed. Nothing was read from it."""


class ThreadMigrationError(RedisSaverError):
    """A thread that the source cannot give or the target cannot take, or that is not the same there. Others are moved."""


class CalledOnEventLoop(RedisSaverError, RuntimeError):
    """A synchronous method was called on an OS thread whose event loop it would block."""


class LoopEnded(RedisSaverError, RuntimeError):
    """The event loop that a call needs has ended: nothing else can use what is bound to it. Calling again is safe."""


class ForkMissed(RedisSaverError, RuntimeError):
    """The process was forked by a program that does not call Python's hooks, and uses a saver of the parent. Nothing was sent."""


_REMEDIES: dict[str, tuple[type[RedisSaverError], str]] = {
    "DAMAGED": (
        ThreadDamaged,
        "it was evicted, removed or overwritten from outside. Nothing was changed. Restore it from a backup, or give the "
        "thread up with delete_thread(); to prevent eviction, run the server with maxmemory-policy noeviction",
    ),
    "KEYCONFLICT": (
        KeyConflict,
        "another program uses the same key names. Nothing was changed. Choose another prefix=, or remove that key",
    ),
    "UNSUPPORTED": (
        UnsupportedFormat,
        "a newer redis-saver stored it. Nothing was changed. Upgrade redis-saver where this was raised",
    ),
}
_STOPPED_REMEDY = (
    "it was overwritten from outside, or by a program that is not sound. Restore the thread from a backup, or give it up with "
    "delete_thread(). If nobody else writes there, please report this"
)
_IN_SCRIPT = re.compile(r"@user_script: ?\d+: -(READONLY|OOM) (.*)$", re.DOTALL)
_STOPPED = re.compile(
    r"""(?:user_script|\[string "[^"\n]*"\]):\d+: (attempt to [^\n]*|bad argument [^\n]*|table index is [^\n]*|'for' [^\n]*)"""
)
"""What Lua says, on any of the servers, where a script meets something that no saver stores."""
_CODE = re.compile(rf"\b({'|'.join(_REMEDIES)}) (.*?)(?: script: [0-9a-f]{{40}}.*)?$", re.DOTALL)


def from_reply(reply: Exception, keys: Sequence[bytes], exceptions: Any) -> Exception | None:
    """The error that is meant by the error reply of a script; None where it is the reply itself.

    Args:
        reply: The error the client raised.
        keys: The keys the script was called with.
        exceptions: The client's own exceptions. Redis 6.2 wraps an error of the server inside a script in another one; here
            it becomes what a newer server answers at once.
    """
    if (match := _IN_SCRIPT.search(str(reply))) is not None:
        kind = {"READONLY": exceptions.ReadOnlyError, "OOM": exceptions.OutOfMemoryError}[match[1]]
        return kind(match[2])  # type: ignore[no-any-return]
    return from_text(str(reply), keys)


def from_text(text: str, keys: Sequence[bytes]) -> RedisSaverError | None:
    """The error that is meant by the text of an error reply of a script of ours; None where it is not ours."""
    if (match := _CODE.search(text)) is not None:
        kind, remedy = _REMEDIES[match[1]]
        said = match[2]
    elif "WRONGTYPE" in text:
        kind, remedy = _REMEDIES["KEYCONFLICT"]
        said = "a key is of another type than those of redis_saver"
    elif (match := _STOPPED.search(text)) is not None:
        kind, remedy = ThreadDamaged, _STOPPED_REMEDY
        said = f"the script met something that redis_saver does not store: {match[1]}"
    else:
        return None
    where = " and ".join(shown(key.decode("utf-8", "backslashreplace")) for key in keys)
    return kind(f"{printable(said)} (in {where}): {remedy}.")


class _Wrapping:
    """Turns whatever a serializer raises into one of our errors, with the place; the cause stays attached.

    A serializer may be anybody's and raise anything, so the kind of its error cannot be listed here.
    """

    __slots__ = ("_error", "_named", "_remedy", "_said")

    def __init__(self, error: type[RedisSaverError], said: str, named: tuple[object, ...], remedy: str) -> None:
        self._error, self._said, self._named, self._remedy = error, said, named, remedy

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, NotEncrypted):
            raise PlainValueRefused(f"{self._said.format(*self._named)}: {error}") from None
        if isinstance(error, Exception) and not isinstance(error, RedisSaverError):
            what = sentence(self._said, *self._named)
            raise self._error(f"{what}: {error_text(error)}. {self._remedy}") from error


def decoding(what: str, *named: object) -> _Wrapping:
    """A context in which an error means: the stored bytes of `what` cannot be decoded.

    `what` is a template, as `str.format` takes it, for what is named; most of the time nobody reads it.
    """
    remedy = (
        "The stored bytes are kept as they are. Read them with the serializer (and key) that wrote them, or give the "
        "thread up with delete_thread()."
    )
    return _Wrapping(DecodeError, "cannot decode " + what, named, remedy)


def moving(what: str, *named: object) -> _Wrapping:
    """A context in which an error means: `what`, as in `decoding`, cannot be moved as it is."""
    return _Wrapping(ThreadMigrationError, what, named, "Others are moved.")


def encoding(what: str, *named: object) -> _Wrapping:
    """A context in which an error means: the value of `what`, as in `decoding`, cannot be encoded."""
    remedy = (
        "Nothing was written. Store a value the serializer knows, or pass a serde= that knows this one; or a copy, if another "
        "OS thread was changing it."
    )
    return _Wrapping(EncodeError, "cannot encode " + what, named, remedy)
