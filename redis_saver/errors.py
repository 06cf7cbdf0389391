"""The errors of this package. Errors of the Redis client (connection, timeout, OOM, ...) pass through unchanged.

    RedisSaverError
    ├── ThreadDamaged            a part of the thread is missing or unreadable
    │   └── DecodeError          the serializer cannot decode stored bytes                        (also a ValueError)
    │       └── PlainValueRefused  a saver that requires encryption read a plain value; it was not decoded
    ├── StoreDamaged             a part of the store is missing or unreadable
    ├── Conflict                 an item of the store has another version than `if_version`
    ├── UnsupportedFormat        a newer release stored the thread or the items; nothing was changed
    ├── KeyConflict              another program uses a key with the name of one of ours
    ├── EncodeError              the serializer cannot encode a value; nothing was written        (also a TypeError)
    │   └── ValueChanged         a value would not come back equal, with check_values="raise"; nothing was written
    ├── LimitExceeded            a write or a stored value is larger than `Limits` allows         (also a ValueError)
    ├── ThreadNotFound           the named thread does not exist                                  (also a LookupError)
    ├── ThreadBusy               others changed or flushed the thread during every attempt
    ├── KeyMismatch              the thread has another data key, or only it or the saver is encrypted
    ├── KeyUnavailable           a key of the provider was destroyed, or is not there             (also a LookupError)
    ├── NotOwner                 the caller does not own the thread; nothing was written
    ├── StillNeeded              later checkpoints are rebuilt from the run to delete; nothing was removed
    ├── StaleParent              a newer checkpoint exists, and forks are refused; nothing was written
    ├── StoreBusy                others emptied a namespace during every attempt; nothing was written
    ├── BacklogFull              the backlog of write-behind is at its limit; nothing was written
    ├── ColdTimeout              cold did not answer within `cold_timeout` seconds           (also a TimeoutError)
    ├── FlushPaused              a call needs a flush, and flushing is paused; nothing was changed
    ├── ReplicationTimeout       the primary has a write, but too few replicas have it
    ├── ClusterMoving            a slot was not served for `cluster_timeout` seconds   (also redis-py's ConnectionError)
    ├── UnsupportedServer        the server is too old, lacks a module, or runs scripts otherwise than Redis
    ├── IndexNotBuilt            the server's vector index is missing or incomplete
    ├── EndpointError            the source or target of a migration cannot be opened, or fails
    │   └── FileDamaged          an exported file is incomplete or damaged                        (also a ValueError)
    ├── ThreadMigrationError     a thread cannot be migrated unchanged
    ├── ItemMigrationError       an item of a store cannot be migrated unchanged
    ├── Closed                   the saver, store or cache was closed in this process              (also a RuntimeError)
    ├── CalledOnEventLoop        a synchronous call would block its own event loop   (also an asyncio.InvalidStateError)
    ├── LoopEnded                an event loop ended before it answered a call                    (also a RuntimeError)
    ├── ThreadsPatched           gevent or eventlet patched threads; asyncio cannot work there    (also a RuntimeError)
    └── ForkMissed               this process was forked in C, without Python's fork hooks        (also a RuntimeError)

    BacklogWarning               a `with` block over a write-behind saver ended with a backlog    (a RuntimeWarning)

Invalid arguments raise the built-in `ValueError` or `TypeError` before anything is sent.
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
    "BacklogFull", "BacklogWarning", "CalledOnEventLoop", "Closed", "ClusterMoving", "ColdTimeout", "Conflict",
    "DecodeError", "EncodeError", "EndpointError", "FileDamaged", "FlushPaused", "ForkMissed", "IndexNotBuilt",
    "ItemMigrationError", "KeyConflict", "KeyMismatch", "KeyUnavailable", "LimitExceeded", "LoopEnded", "NotOwner",
    "PlainValueRefused", "RedisSaverError", "ReplicationTimeout", "StaleParent", "StillNeeded", "StoreBusy",
    "StoreDamaged", "ThreadBusy", "ThreadDamaged", "ThreadMigrationError", "ThreadNotFound", "ThreadsPatched",
    "UnsupportedFormat", "UnsupportedServer", "ValueChanged",
]  # fmt: skip


class RedisSaverError(Exception):
    """Base of the errors of this package."""

    def __repr__(self) -> str:
        """Return the class and the message. That of redis-py's errors lacks it, and LangGraph stores `repr(error)`."""
        return Exception.__repr__(self)


class ThreadDamaged(RedisSaverError):
    """A part of a thread is missing or unreadable: it was evicted, deleted by hand, or overwritten.

    The rest of the thread is not changed, and no incomplete answer is returned.
    """


class DecodeError(ThreadDamaged, ValueError):
    """The serializer cannot decode the stored bytes of a thread or an item."""


class PlainValueRefused(DecodeError):
    """A saver that requires encryption read a plain value. The value was not decoded.

    It was written before encryption was turned on, or by somebody without the key.
    """


class NotEncrypted(ValueError):
    """A value is not encrypted, but must be. `decoding` turns this into a `PlainValueRefused` that names the value."""


class IsEncrypted(ValueError):
    """A value is encrypted, and there is no key. `decoding` turns this into a `DecodeError` that names the value."""


class StoreDamaged(RedisSaverError):
    """A key of a store is missing or unreadable: it was evicted, deleted by hand, or overwritten.

    The message names the key. It belongs to a partition, or to the directory of all partitions. The rest is not
    changed, and no incomplete answer is returned.
    """


class Conflict(RedisSaverError):
    """An item has another version than the caller of `put(..., if_version=...)` expects. Nothing was written.

    There is one exception: after a lost reply the client sent the put again, and the server has forgotten the first one
    (`docs/store.md`).
    """

    def __init__(self, message: str, version: int) -> None:
        """Take the message and the item's version."""
        super().__init__(message)
        self.version: int = version
        """Version of the stored item, or 0 if there is no such item."""

    def __reduce__(self) -> tuple[type[Conflict], tuple[str, int]]:
        return type(self), (str(self), self.version)


class UnsupportedFormat(RedisSaverError):
    """A newer release of this package stored the thread, in a format that this release does not know.

    Nothing was changed. Upgrade this process.
    """


class KeyConflict(RedisSaverError):
    """Another program uses a key with the name of one of ours."""


class EncodeError(RedisSaverError, TypeError):
    """The serializer cannot encode a value. Nothing was written."""


class ValueChanged(EncodeError):
    """A value would not come back equal, and the saver has `check_values="raise"`. Nothing was written."""


class LimitExceeded(RedisSaverError, ValueError):
    """A name, a value or a count exceeds a limit of the saver. Nothing was written or changed.

    A value that was written with larger limits has to be read with them. So this error of a read does not prove damage.
    """


class NotOwner(RedisSaverError):
    """The caller does not own the thread: somebody else does (`own`), or the caller's token is no longer valid.

    Nothing was written.
    """

    def __init__(self, message: str, by: str = "", since: datetime | None = None) -> None:
        """Take the message, the owner, and the time when the owner took the thread."""
        super().__init__(message)
        self.by: str = by
        """The owner's description of itself. Empty if nobody owns the thread."""
        self.since: datetime | None = since
        """Time when the owner took the thread, or None if nobody owns it."""

    def __reduce__(self) -> tuple[type[NotOwner], tuple[str, str, datetime | None]]:
        return type(self), (str(self), self.by, self.since)


class StaleParent(RedisSaverError):
    """The parent is not the newest checkpoint, because another run wrote one, and `on_fork="raise"` refuses forks.

    Nothing was written.
    """


class StillNeeded(RedisSaverError):
    """Later checkpoints are rebuilt from the checkpoints of a run to delete or roll back (`DeltaChannel`).

    Nothing was removed.
    """


class KeyMismatch(RedisSaverError):
    """A saver with `encryption=` wrote to a plain thread, or one without it to an encrypted thread.

    The same goes for a store and a partition of it. Nothing was written.
    """


class KeyUnavailable(RedisSaverError, LookupError):
    """The key that wrapped a data key is not there. If it was destroyed, the data cannot be read any more."""


class ThreadNotFound(RedisSaverError, LookupError):
    """The named thread does not exist: it was never written, was deleted, or has expired."""


class ThreadBusy(RedisSaverError):
    """Others changed a thread, or flushed it to cold, during every attempt. It is safe to try again later."""


class StoreBusy(RedisSaverError):
    """Others emptied a namespace during every attempt to read it or to add it to the store's directory.

    Nothing was written.
    """


class BacklogFull(RedisSaverError):
    """The backlog of a write-behind `TieredSaver` stayed at `max_backlog` for `backlog_timeout` seconds.

    Nothing was written.
    """


class BacklogWarning(RuntimeWarning):
    """A `with` block over a write-behind `TieredSaver` ended with a backlog.

    The backlog stays in Redis until another flusher writes it to cold.
    """


class ColdTimeout(RedisSaverError, TimeoutError):
    """The cold saver of a `TieredSaver`, or the cold store, did not answer within `cold_timeout` seconds.

    The caller's read was abandoned, and nothing was changed. A flush that it needed goes on. It is safe to call again.
    """


class FlushPaused(RedisSaverError):
    """A call needs a flush to cold first, and flushing is paused (`pause_flushing`). Nothing was changed."""


class ReplicationTimeout(RedisSaverError):
    """The primary has a write, but too few replicas confirmed it in time.

    If the primary is lost before they have it, the write is lost. It is safe to write it again.
    """


class ClusterMoving(RedisSaverError, redis.ConnectionError):
    """A cluster did not serve a slot for `cluster_timeout` seconds: the slot is moving, or its primary is lost.

    It is safe to call again.
    """


class UnsupportedServer(RedisSaverError):
    """The server is older than Redis 6.2 or Valkey 7.2, or fails a trial of what the scripts rely on.

    The user's rights may be the reason. With `search="server"` it may lack the module.
    """


class IndexNotBuilt(RedisSaverError):
    """The server's vector index is missing, or lacks some items. Call `setup()` or `build_index()`."""


class EndpointError(RedisSaverError):
    """The source or target of a migration cannot be opened, or fails.

    The migration stops. Run it again to continue.
    """


class FileDamaged(EndpointError, ValueError):
    """An exported file is incomplete or damaged. Nothing was read from it."""


class ThreadMigrationError(RedisSaverError):
    """The source cannot read a thread, the target cannot store it, or the copy differs.

    Other threads are still moved.
    """


class ItemMigrationError(RedisSaverError):
    """The target of a migration cannot store an item unchanged. Other items are still moved."""


class Closed(RedisSaverError, RuntimeError):
    """The saver, store or cache was closed in this process, by `close()` or the end of its `with` block.

    Nothing was sent.
    """


class CalledOnEventLoop(RedisSaverError, asyncio.InvalidStateError, RuntimeError):
    """A synchronous method was called on an OS thread whose event loop it would block."""


class LoopEnded(RedisSaverError, RuntimeError):
    """An event loop ended before it answered a call. Objects bound to that loop cannot be used on another one.

    It is safe to call again.
    """


class ThreadsPatched(RedisSaverError, RuntimeError):
    """gevent or eventlet patched Python's threads, and an asyncio saver, store or cache was called. Nothing was sent.

    `RedisSaver` and the other blocking classes work there.
    """


class ForkMissed(RedisSaverError, RuntimeError):
    """The process was forked without Python's fork hooks, and used a saver of the parent. Nothing was sent."""


def closed(what: str) -> Closed:
    """Return the error for the use of a closed object. `what` names its kind and its server."""
    return Closed(f"{what} was closed in this process: use it before close() or the end of its block. Nothing was sent")


_EVICTED = "it was evicted, or another program removed or overwrote it. Nothing was changed. Restore a backup, or"
_NOEVICTION = "to prevent eviction, run the server with maxmemory-policy noeviction"
_REMEDIES: dict[str, tuple[type[RedisSaverError], str]] = {
    "DAMAGED": (ThreadDamaged, f"{_EVICTED} delete the thread with delete_thread(); {_NOEVICTION}"),
    "PARTITION": (
        StoreDamaged,
        f"{_EVICTED} delete the partition: call delete_namespace() with its first two labels; {_NOEVICTION}",
    ),
    "DIRECTORY": (
        StoreDamaged,
        "they were evicted, or another program removed them. Nothing was changed. The items are still there: call "
        f"rebuild_directory(); {_NOEVICTION}",
    ),
    "KEYCONFLICT": (
        KeyConflict,
        "another program uses the same key names. Nothing was changed. Choose another prefix=, or remove that key",
    ),
    "OTHERKEY": (
        KeyMismatch,
        "Nothing was written. With encryption= only encrypted threads and partitions are written, and without it only "
        "plain ones. Use the setting that they were written with, or encrypt them with redis-saver migrate",
    ),
    "NOTOWNER": (
        NotOwner,
        "Nothing was written. End this run, because the other one goes on; or take the thread with own(), "
        "on_busy='take'",
    ),
    "STALEPARENT": (
        StaleParent,
        "Nothing was written. Another run wrote the thread meanwhile: read the thread again, and continue from its "
        "newest checkpoint. own() keeps two runs apart",
    ),
    "UNSUPPORTED": (
        UnsupportedFormat,
        "a newer redis-saver stored it. Nothing was changed. Upgrade redis-saver in this process",
    ),
}
_STOPPED_REMEDY = (
    "another program overwrote it, or redis_saver has a bug. Restore the thread from a backup, or delete it with "
    "delete_thread(). If no other program writes there, please report this"
)
_PLACE = r'@?(?:user_script|\[string "[^"\n]*"\]): ?[\d?]+: '
_TEXT = re.compile(
    rf"(?:ERR )?(?:Error running script \(call to f_[0-9a-f]{{40}}\): )?({_PLACE})*-?('?\w+'?) (.*?)"
    r"(?: script: (?:[0-9a-f]{40}, )?on @user_script:\d+\.|\nstack traceback:\n.*)?",
    re.DOTALL,
)
"""Error reply of a script: a place if the script raised it, a code, a reason.

Servers say before the code and after the reason which script it was. A reason may end with any name.
"""
_STOPPED = re.compile(r"(?:attempt to |bad argument |table index is |'for' )[^\n]*")
"""Error messages of Lua, on all servers. They come from data that no saver stores."""


def from_reply(reply: Exception, keys: Sequence[bytes], exceptions: Any) -> Exception | None:
    """Return the error to raise for an error reply of a script; None to raise the reply itself.

    Redis 6.2 wraps an error that the server raises inside a script in another error. It becomes the error that newer
    servers reply with.

    Args:
        reply: The error that the client raised.
        keys: The keys that the script was called with.
        exceptions: The module of the client's own exceptions.
    """
    match = _TEXT.fullmatch(str(reply))
    if match and match[1] and match[2] in ("READONLY", "OOM"):
        kind = {"READONLY": exceptions.ReadOnlyError, "OOM": exceptions.OutOfMemoryError}[match[2]]
        return kind(match[3])  # type: ignore[no-any-return]
    return from_text(str(reply), keys)


def other_key(keys: Sequence[bytes]) -> KeyMismatch:
    """Return the error for a write to a partition with another data key."""
    reason = "the items are not encrypted with the data key of the store, or only one of them is encrypted"
    return KeyMismatch(f"{reason} (in {_names_of(keys)}): {_REMEDIES['OTHERKEY'][1]}.")


def from_text(text: str, keys: Sequence[bytes]) -> RedisSaverError | None:
    """Return the error for the text of an error reply, or None if it is not an error of one of our scripts."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    code, reason = match[2], match[3]
    if code in _REMEDIES:
        kind, remedy = _REMEDIES[code]
        if kind is NotOwner:
            since, _, by = reason.partition(" ")
            return not_owner(since, by, keys[-1])
        if kind is StaleParent:
            reason = f"the newest checkpoint of the namespace is not the parent, but {reason}"
    elif code == "WRONGTYPE":
        kind, remedy = _REMEDIES["KEYCONFLICT"]
        reason = "a key has another type than the keys of redis_saver"
    elif match[1] and (stopped := _STOPPED.match(f"{code} {reason}")) is not None:
        kind, remedy = ThreadDamaged, _STOPPED_REMEDY
        reason = f"the script found data that redis_saver does not store: {stopped[0]}"
    else:
        return None
    named = keys[: 6 if code == "WRONGTYPE" else 2]  # the server does not say which key it is; documents may follow
    return kind(f"{printable(reason)} (in {_names_of(named)}): {remedy}.")


def _names_of(keys: Sequence[bytes]) -> str:
    return " and ".join(shown(key.decode("utf-8", "backslashreplace")) for key in keys)


def not_owner(since: str, by: str, key: bytes) -> NotOwner:
    """Return the error for a caller that does not own a thread.

    Args:
        since: Time when somebody else took the thread, in microseconds since 1970; `0` if no owner is known.
        by: The owner's description of itself.
        key: The owner key of the thread.
    """
    remedy, owner_key = _REMEDIES["NOTOWNER"][1], _names_of([key])
    if not (since.isdecimal() and 0 < int(since) < 10**16):
        what = (
            "it was given back or deleted, its key was lost, or the token is another thread's. Nothing was written. "
            "Take the thread with own(), and copy no `thread_owner` from the config of another thread"
        )
        return NotOwner(f"nobody owns the thread by this token any more (in {owner_key}): {what}")
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=int(since))
    text = f"{printable(by)} has owned the thread since {moment.isoformat()} (in {owner_key}). {remedy}"
    return NotOwner(text, printable(by), moment)


def others_wait(key: bytes) -> NotOwner:
    """Return the error for a run that waited in vain, because other runs are before it in the queue of this key."""
    names = _names_of([key])
    return NotOwner(f"other runs wait for the thread and come first (in {names}). Wait longer, or use on_busy='take'")


def value_changed(channel: str, changes: Sequence[object]) -> ValueChanged:
    """Return the error for a value whose parts would not come back equal."""
    return ValueChanged(
        f"the value of channel {shown(channel)} would not come back equal: {'; '.join(map(str, changes))}. Nothing was "
        "written. Store a type that comes back, such as a list instead of a tuple or the value of an enum "
        "(redis-saver docs changing-state), or pass a serde= that keeps the type"
    )


class _Wrapping:
    """Context that turns any error of a serializer into one of ours, which names the value. The cause stays attached.

    Users bring serializers of any kind, so their errors cannot be listed here.
    """

    __slots__ = ("_error", "_named", "_remedy", "_template")

    def __init__(self, error: type[RedisSaverError], template: str, named: tuple[object, ...], remedy: str) -> None:
        self._error, self._template, self._named, self._remedy = error, template, named, remedy

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, RedisSaverError):
            raise self.of(error) from error

    def of(self, error: Exception) -> RedisSaverError:
        """Return our error for one that was raised."""
        text = sentence(self._template, *self._named)
        if isinstance(error, NotEncrypted):
            return PlainValueRefused(f"{text}: {error}")
        why = error_text(error)
        if why.endswith(("+siv", "+siv2")):  # a serializer that does not know the type of a sealed record
            error = IsEncrypted("it is encrypted, and this saver has no encryption=")
        if isinstance(error, IsEncrypted):  # its message has the remedy
            return self._error(f"{text}: {error}. The stored bytes were not changed")
        return self._error(f"{text}: {why}. {self._remedy}")


_UNDECODED = "The stored bytes were not changed. Read them with the serializer (and key) that wrote them, "
_OF_THREAD = _UNDECODED + "restore the thread from a backup, or delete it with delete_thread()."


def decoding(what: str, *named: object, remedy: str = _OF_THREAD) -> _Wrapping:
    """Return a context that raises `DecodeError` for an error: the stored bytes of `what` cannot be decoded.

    `what` is a template as `str.format` takes it. `named` fills it, but only if there is an error.
    """
    return _Wrapping(DecodeError, "cannot decode " + what, named, remedy)


def decoding_item(what: str, *named: object) -> _Wrapping:
    """Like `decoding`, for the value of a store's item."""
    return decoding(what, *named, remedy=_UNDECODED + "or delete() the item.")


def decoding_key(kind: str, name: str) -> _Wrapping:
    """Like `decoding`, for the data key of a thread, of a partition of a store, or of a cache."""
    remedy = (
        "Nothing was changed. First check the keys of this process. If they are right, the stored key was changed: "
        "restore it from a backup."
    )
    return decoding(f"the data key of {kind} {{!r}}", name, remedy=remedy)


def reading_store(key: bytes) -> _Wrapping:
    """Return a context that raises `StoreDamaged` for an error: the data in a key of a store cannot be read."""
    remedy = (
        "Another program overwrote it. Nothing was changed. Delete the partition: call delete_namespace() with its "
        "first two labels. If the key belongs to the directory, call rebuild_directory()"
    )
    return _Wrapping(StoreDamaged, "{!r} holds data that redis_saver does not store", (key,), remedy)


def moving(what: str, *named: object) -> _Wrapping:
    """Return a context that raises `ThreadMigrationError` for an error: `what` cannot be moved unchanged."""
    return _Wrapping(ThreadMigrationError, what, named, "Other threads are still moved.")


_UNENCODED = (
    "Nothing was written. Store a value of a type that the serializer knows, or pass a serde= that knows this one. "
    "If another OS thread was changing the value, store a copy."
)


def encoding(what: str, *named: object, remedy: str = _UNENCODED) -> _Wrapping:
    """Return a context that raises `EncodeError` for an error: the value of `what` cannot be encoded."""
    return _Wrapping(EncodeError, "cannot encode " + what, named, remedy)
