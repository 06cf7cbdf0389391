"""Counting and rotating the keys that wrap data keys: of threads, of a store's partitions, and of caches.

All of them have the wrapped data key in the field `@key` of a hash, so one walk and one script serve them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, cast

from redis_saver._common.display import shown
from redis_saver._engine.requests import Batch, Call, Operation
from redis_saver._engine.scripts import load
from redis_saver._storage.keys import DataKeys, wrapped_by
from redis_saver.errors import DecodeError, RedisSaverError, decoding_key, from_text

DATA_KEY = load("checkpoint/data_key")
HOLDERS_PER_BATCH = 500
PLAIN, GONE = "", " gone"
"""Results for an holder that is not encrypted, or that was deleted meanwhile. No key has such an id."""
ROTATED, UNCHANGED = "rotated", "unchanged"
_FIELDS = {"thread": "threads", "store": "partitions", "cache": "caches"}
"""Fields of `KeyStatus`, by the kind of holder (`KeyContext`)."""


class KeyStatus(NamedTuple):
    """The keys that protect a saver, a store or a cache, as `key_status` returns them."""

    threads: dict[str, int]
    """Number of threads by the id of the key that wrapped their data key."""
    plain: int
    """Number of threads, partitions and rows that are not encrypted."""
    failed: dict[str, str]
    """Errors of what cannot be read: by thread, or by `store` or `cold` and a name."""
    partitions: dict[str, int] = {}  # noqa: RUF012 - nobody changes it
    """Number of a store's partitions by the id of the key."""
    caches: dict[str, int] = {}  # noqa: RUF012 - nobody changes it
    """1 by the id of the key of a cache."""
    rows: dict[str, int] = {}  # noqa: RUF012 - nobody changes it
    """Number of rows in Postgres by the id of the key. Only of a saver over two tiers."""
    cold_backed: int = 0
    """Number of threads that are also in a cold tier, whose rows were not counted. Then a saver over both tiers has to
    say whether a key may go. 0 of such a saver."""


class Rotated(NamedTuple):
    """The result of `rotate_keys`."""

    rotated: int
    """Number of threads, partitions, caches and rows whose data key was wrapped anew, or replaced."""
    unchanged: int
    """Number of those that needed no rotation."""
    plain: int
    """Number of those that are not encrypted."""
    failed: dict[str, str]
    """Errors of all others, named as in `KeyStatus`. They are as before."""
    cold_backed: int = 0
    """Number of threads that are also in a cold tier, whose rows are as before. 0 of a saver over both tiers."""


class Holder(NamedTuple):
    """A holder of a data key: a thread, a partition or a cache."""

    name: str
    keys: Sequence[bytes]
    """The hash with its data key. For a thread, then its index."""


def each(
    kind: str, holders: Sequence[Holder], act: Callable[[Holder, bytes], Operation[str]]
) -> Operation[tuple[Counter[str], dict[str, str]]]:
    """Act on each encrypted holder with its stored data key. Return counts of the results, and the errors by holder."""
    counts, failed = Counter[str](), dict[str, str]()
    for start in range(0, len(holders), HOLDERS_PER_BATCH):
        batch = holders[start : start + HOLDERS_PER_BATCH]
        replies = yield Batch([_exchange(holder) for holder in batch])
        for holder, reply in zip(batch, replies, strict=True):
            try:
                stored = _checked(holder, reply)
                if stored:
                    counts[(yield from act(holder, stored))] += 1
                else:
                    counts[PLAIN] += stored is not None
            except RedisSaverError as error:  # noqa: PERF203 - the others go on
                failed[holder.name if kind == "thread" else f"{kind} {holder.name}".rstrip()] = str(error)
    del counts[GONE]  # deleted meanwhile
    return counts, failed


def status(kind: str, holders: Sequence[Holder]) -> Operation[KeyStatus]:
    """Count the holders that each key protects."""

    def look(holder: Holder, stored: bytes) -> Operation[str]:
        with decoding_key(kind, holder.name):
            return wrapped_by(stored)
        yield  # makes it an operation

    counts, failed = yield from each(kind, holders, look)
    plain = counts.pop(PLAIN, 0)
    fields: Any = {"threads": {}, _FIELDS[kind]: dict(sorted(counts.items()))}
    return KeyStatus(plain=plain, failed=failed, **fields)


def rotate(data_keys: DataKeys | None, holders: Sequence[Holder]) -> Operation[Rotated]:
    """Wrap the data keys of holders anew.

    Raises:
        ValueError: There is no `encryption`.
    """
    rewrapping = Rewrapping(data_keys)
    counts, failed = yield from each(rewrapping.data_keys.kind, holders, rewrapping)
    return result(counts, failed)


def result(counts: Counter[str], failed: dict[str, str]) -> Rotated:
    """Return the results of a rotation."""
    return Rotated(counts[ROTATED], counts[UNCHANGED], counts[PLAIN], failed)


class Rewrapping:
    """Wraps data keys as the provider would wrap them now."""

    def __init__(self, data_keys: DataKeys | None) -> None:
        """Use the data keys of a saver, a store or a cache.

        Raises:
            ValueError: There is no `encryption`.
        """
        if data_keys is None:
            raise ValueError("rotate_keys: there is no encryption=, so there are no keys")
        self.data_keys: DataKeys = data_keys.reporting()
        self._newest: dict[str | None, str] = {}
        """The key that the provider chose for each name."""
        self._proven = set[str]()
        """Keys that have unwrapped what they wrapped."""

    def __call__(self, holder: Holder, stored: bytes | None) -> Operation[str]:
        """Wrap the data key of a holder anew, as `each` asks for."""
        while stored:
            if (wrapped := (yield from self.wrapped(holder.name, stored))) is None:
                return UNCHANGED
            before = _checked(holder, (yield _exchange(holder, stored, wrapped)))
            if before == stored:
                return ROTATED
            stored = before  # of another rotation, or of this one if the reply was lost
        return GONE

    def wrapped(self, name: str, stored: bytes) -> Operation[bytes | None]:
        """Return a stored data key, wrapped anew. None if the provider would choose the same key again."""
        with decoding_key(self.data_keys.kind, name):
            key_id = wrapped_by(stored)
        asked = self.data_keys.name_for(name, stored)
        if self._newest.get(asked) == key_id:
            return None
        cipher = yield from self.data_keys.unwrap(name, stored)
        wrapped = yield from self.data_keys.wrap_anew(name, cipher)
        newest = wrapped_by(wrapped.argument)
        if newest not in (key_id, *self._proven):  # nothing is replaced by what nobody can unwrap
            yield from self.data_keys.unwrap(name, wrapped.argument)
            self._proven.add(newest)
        self._newest[asked] = newest
        return None if newest == key_id else wrapped.argument


def _exchange(holder: Holder, before: bytes = b"", after: bytes = b"") -> Call:
    return Call(DATA_KEY, holder.keys, (before, after))


def _checked(holder: Holder, reply: bytes | list[bytes] | None) -> bytes | None:
    """Return a stored data key, empty for a plain holder, or None if there is no such holder."""
    if isinstance(reply, list):
        text = reply[0].decode("utf-8", "backslashreplace") if reply and isinstance(reply[0], bytes) else ""
        raise from_text(text, holder.keys) or DecodeError(f"{shown(holder.name)} cannot be read")
    return reply


def first_encrypted(kind: str, holders: Sequence[Holder]) -> Operation[str | None]:
    """Return the name of one of these holders that has a data key, or None. One round trip for 500 holders."""
    found = list[str]()

    def note(holder: Holder, _: bytes) -> Operation[str]:
        found.append(holder.name)
        return UNCHANGED
        yield  # makes it an operation

    for start in range(0, len(holders), HOLDERS_PER_BATCH):
        yield from each(kind, holders[start : start + HOLDERS_PER_BATCH], note)
        if found:
            return found[0]
    return None


class Rotates:
    """The methods `key_status` and `rotate_keys` of a store, a cache, and a saver over two tiers."""

    _run: Callable[..., Any]
    _arun: Callable[..., Awaitable[Any]]
    _key_status_gen: Callable[[], Any]
    _rotate_keys_gen: Callable[[], Any]

    def key_status(self) -> KeyStatus:
        """Count what each key of `encryption` still protects: a store's partitions, a cache's one key, or cold's rows.

        Of a saver over two tiers it counts the threads in Redis, too. No key is needed. `RedisSaver.key_status` says
        when a key may be destroyed.
        """
        return cast("KeyStatus", self._run(self._key_status_gen(), name="key_status"))

    async def akey_status(self) -> KeyStatus:
        """`key_status` for asyncio."""
        return cast("KeyStatus", await self._arun(self._key_status_gen(), name="key_status"))

    def rotate_keys(self) -> Rotated:
        """Wrap the data keys anew, as `RedisSaver.rotate_keys` does, while others use the data, which stay as they are.

        It goes on after an error of the provider, and returns it in `Rotated.failed`.

        Raises:
            NotImplementedError: The cold tier is not LangGraph's Postgres saver.
            ValueError: There is no `encryption`.
        """
        return cast("Rotated", self._run(self._rotate_keys_gen(), name="rotate_keys"))

    async def arotate_keys(self) -> Rotated:
        """`rotate_keys` for asyncio."""
        return cast("Rotated", await self._arun(self._rotate_keys_gen(), name="rotate_keys"))
