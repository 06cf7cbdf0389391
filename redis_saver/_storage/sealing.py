"""Sealing of stored records: what a thread keeps with `encryption=`, and how each record is bound to its place.

A data key of 32 bytes gives two keys (HKDF): one names chunks (keyed BLAKE2b), one encrypts (AES-SIV, RFC 5297).
AES-SIV is deterministic: the same record at the same place has the same bytes. So a put that is sent again changes
nothing, and no nonce can repeat. It shows which records of one place are equal, as the names of chunks do anyway.

Each record is sealed with its place as associated data, so it opens nowhere else. The type of a sealed record ends with
`+siv`. What scripts read stays open: names, versions, flags, and the lists of chunks, whose names are keyed digests.
Two things in a header change on the server: prune clears a parent, and a put that comes again adds flags. So the header
has both sealed within, and `open_header` compares.

**The second rule.** Records whose type ends with `+siv2` hold more (format 5 of threads):

- A header names the tasks with pending writes at its parent that the process knew which sealed it (`KnownWrites`).
- An `INTERRUPT` or `RESUME` names its call (`SpecialCall`), so an older one does not pass beside a newer one. If it is
  put again, it has other bytes.

The rule is part of the associated data, so nobody can pass a record of one rule off as one of the other. Records of the
first rule are read as before: their parents' writes are not known, and their calls are older than all others.

Not detected:

- Whoever can write to Redis can hide things: the newest checkpoints, a whole checkpoint, or all of a task's writes with
  their member of the index, and can clear a parent as prune does. A history of a `DeltaChannel` does not end there: the
  metadata count its updates, so `_checkpoint/delta.py` notices. It also notices hidden writes that a header names.
- What a place had earlier opens there again: a checkpoint that was put again, or all special writes of a call. With the
  whole thread, or with its `@state` and index alone, that is a rollback. The short answer of `lua/checkpoint/get.lua`
  depends only on these, and the values come from this process's memory, so it hides newer checkpoints and shows nothing
  else.
- Limits, TTLs, counters, times in `threads()` and the members of the index are in the open.

A checkpoint whose value another checkpoint has emptied in the same version cannot be told from damage, so it raises.
LangGraph gives each change a new version.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME

from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.display import shown
from redis_saver._serde.cutter import Gear, gear_of
from redis_saver._storage.chunks import DIGEST, IN_CHUNKS, KINDS
from redis_saver._storage.framing import pack, take, unpack
from redis_saver.errors import NotEncrypted

SEALED = b"+siv"
"""Ends the type of a sealed record."""
SEALED_2 = b"+siv2"
"""Ends the type of a record that is sealed by the second rule."""
ID = 16
"""Size in bytes of the id of a data key, and of a call."""
TIME = 6
"""Size in bytes of the time at which such an id begins, in milliseconds since 1970."""
_END = b"\0"
"""Ends what is encrypted, because older releases of `cryptography` refuse to encrypt nothing."""
PLAIN = (
    "it is not encrypted, and encryption= is set. It was not decoded. Encrypt it with redis-saver migrate. If you did "
    "not write it, somebody without the key did: see redis-saver docs security"
)
ENCRYPTED = "it is encrypted, and encryption= is not set (commands: --keys-file)"
_PARENT, _FLAGS, _RETAINED, _KIND = 0, 4, 7, 9
_ROOT = 1 + DIGEST
_TAG = 16
"""Size of what AES-SIV puts before the encrypted bytes. It depends on all of them, and on the place."""


def aead(key: bytes) -> Any:
    """Return AES-SIV with a key of 64 bytes.

    Raises:
        ImportError: The extra is not installed.
    """
    with needing_extra():
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # noqa: PLC0415 - an extra
    return AESSIV(key)


@contextmanager
def needing_extra() -> Iterator[None]:
    """Add the remedy to an `ImportError` of the block."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"encryption needs more packages: pip install 'redis-saver[encryption]' ({error})") from error


def new_id() -> bytes:
    """Return a new id of a data key or a call: the time, and random bytes."""
    return (time.time_ns() // 10**6).to_bytes(TIME, "big") + os.urandom(ID - TIME)


def derived(key: bytes, purpose: bytes, size: int) -> bytes:
    """Return a key that is derived from another one, by HKDF."""
    with needing_extra():
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    return HKDF(hashes.SHA256(), size, None, purpose).derive(key)


class Cipher:
    """Seals and opens the records of one thread."""

    def __init__(self, argument: bytes, data_key: bytes, thread: bytes, until: float) -> None:
        """Derive the keys.

        Args:
            argument: The data key's id, and the wrapped key, as `lua/checkpoint/put.lua` takes it.
            data_key: The data key.
            thread: The thread.
            until: Time (`time.monotonic`) until which the data key may be used.
        """
        self.argument: bytes = argument
        self.thread: bytes = thread
        self.until: float = until
        self.data_key: bytes = data_key
        self._names = derived(data_key, b"redis_saver names of chunks", 32)
        self.gear: Gear = gear_of(self._names)
        """Says where values are cut. So the sizes of chunks tell less about them."""
        self._aead = aead(derived(data_key, b"redis_saver records", 64))

    @property
    def id(self) -> bytes:
        """The data key's id."""
        return self.argument[:ID]

    @property
    def is_current(self) -> bool:
        """True until the data key must be unwrapped again."""
        return time.monotonic() < self.until

    def digest(self, chunk: bytes) -> bytes:
        """Return the digest that names a chunk."""
        return hashlib.blake2b(chunk, digest_size=DIGEST, key=self._names).digest()

    def seal(self, data: bytes, *place: bytes) -> bytes:
        """Encrypt bytes, bound to a place. Each part of the place has its length before it."""
        return self._aead.encrypt(data + _END, [pack(place)])  # type: ignore[no-any-return]

    def open(self, data: bytes, *place: bytes) -> bytes:
        """Decrypt bytes.

        Raises:
            ValueError: They were not sealed at this place with this data key.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        try:
            return self._aead.decrypt(bytes(data), [pack(place)])[:-1]  # type: ignore[no-any-return]
        except InvalidTag:
            raise ValueError("it was not sealed here with this data key: it was changed, moved or replaced") from None

    # -- values and chunks

    def seal_chunk(self, field: bytes, chunk: bytes) -> bytes:
        """Seal a chunk. A list of chunks stays open; its name proves what it holds."""
        return chunk if field[:1] == b"n" else self.seal(chunk, b"chunk", field)

    def open_chunk(self, field: bytes, stored: bytes) -> bytes:
        """Open a chunk that `seal_chunk` sealed."""
        return stored if field[:1] == b"n" else self.open(stored, b"chunk", field)

    def seal_value(self, field: bytes, stored: bytes) -> bytes:
        """Seal the contents of a value's field: a value, or the root of its chunks. Empty contents stay empty."""
        return self._seal_typed(stored, b"", b"value", field) if stored else stored

    def open_value(self, field: bytes, stored: bytes) -> bytes:
        """Open what `seal_value` sealed."""
        return self._open_typed(stored, b"value", field)

    def _seal_typed(self, stored: bytes, front: bytes, *place: bytes) -> bytes:
        """Seal a type with its bytes, or a root. `front` is sealed before the bytes."""
        start = _ROOT if stored[:1] in KINDS else 0
        (kind, *head), end = take(stored, start, 2 if start else 1)
        place = (*place, kind, stored[:start], stored[end:] if start else b"")
        sealed = self.seal(front + (head[0] if start else stored[end:]), *place)
        return stored[:start] + pack([kind + SEALED]) + (pack([sealed]) + stored[end:] if start else sealed)

    def _open_typed(self, stored: bytes, *place: bytes) -> bytes:
        start = _ROOT if stored[:1] in KINDS else 0
        (kind, *head), end = take(stored, start, 2 if start else 1)
        kind = unsealed(kind)
        data = self.open(
            head[0] if start else stored[end:], *place, kind, stored[:start], stored[end:] if start else b""
        )
        return stored[:start] + pack([kind]) + (pack([data]) + stored[end:] if start else data)

    # -- headers

    def seal_header(
        self, member: bytes, header: bytes, known_writes: bytes = b"", before: OpenedHeader | None = None
    ) -> bytes:
        """Seal the rest of the checkpoint and the metadata in a header.

        Args:
            member: The checkpoint's member of the index.
            header: The header.
            known_writes: The known tasks with writes at its parent.
            before: The same header from another seal. What that had within stays, also if it was changed in the open.
        """
        frames = unpack(header)
        kind, body, about_kind, about = frames[_KIND:]
        within = pack(
            [before.parent, before.flags, known_writes] if before else [frames[_PARENT], frames[_FLAGS], known_writes]
        )
        place = self._place_of(member, frames)
        frames[_KIND:] = [
            kind + SEALED_2, sealed := self.seal(within + body, b"body 2", kind, *place),
            about_kind + SEALED, self.seal(about, b"about", about_kind, sealed[:_TAG]),
        ]  # fmt: skip
        return pack(frames)

    def open_header(self, member: bytes, header: bytes) -> OpenedHeader:
        """Open what `seal_header` sealed.

        Raises:
            ValueError: It is another checkpoint's, or something in the open was changed.
        """
        frames = unpack(header)
        kind, body, about_kind, about = frames[_KIND:]
        is_second, place = kind.endswith(SEALED_2), self._place_of(member, frames)
        kind, about_kind = unsealed(kind), unsealed(about_kind)
        opened = self.open(body, b"body 2" if is_second else b"body", kind, *place)
        (parent, flags, *writes), start = take(opened, 0, 3 if is_second else 2)
        added = [flag for flag, before in zip(frames[_FLAGS], flags, strict=True) if flag != before]
        if frames[_PARENT] not in (parent, b"") or {*added} - {ord("1")}:
            raise ValueError("its parent or its flags were changed")
        frames[_KIND:] = [kind, opened[start:], about_kind, self.open(about, b"about", about_kind, body[:_TAG])]
        return OpenedHeader(pack(frames), parent, flags, b"".join(writes))

    def _place_of(self, member: bytes, frames: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return what binds a header: its checkpoint, and the frames that only the saver writes."""
        return self.thread, member, *frames[1:_FLAGS], *frames[_FLAGS + 1 : _RETAINED], frames[_RETAINED + 1]

    # -- pending writes

    def seal_writes(self, task: bytes, records: Sequence[bytes]) -> list[bytes]:
        """Seal the records of a task's regular writes. Each knows how many there are, so none can be cut off.

        Args:
            task: The task's member of the index.
            records: For each write: frames of index, task path, channel, type and bytes.
        """
        return self._seal_writes(task, records, pack([b"%d" % len(records)]))

    def seal_special(self, task: bytes, special: Mapping[int, bytes], call: SpecialCall) -> dict[int, bytes]:
        """Seal the records of a task's special writes, by index, that one call stores."""
        sealed, front = dict[int, bytes](), pack([b"1", call.sealed])
        for index, record in special.items():
            named = (front, b"2") if index in PAIR else (pack([b"1"]),)
            (sealed[index],) = self._seal_writes(task, [record], *named)
        return sealed

    def _seal_writes(self, task: bytes, records: Sequence[bytes], front: bytes, rule: bytes = b"") -> list[bytes]:
        sealed = list[bytes]()
        for record in records:
            *place, kind, data = unpack(record)
            if kind == IN_CHUNKS:
                data = self._seal_typed(data, front, b"write", self.thread, task, *place)
            else:
                bound = self.seal(front + data, b"write" + rule, self.thread, task, *place, kind)
                kind, data = kind + SEALED + rule, bound
            sealed.append(pack([*place, kind, data]))
        return sealed

    def open_writes(
        self, task: bytes, special: bytes, frames: Sequence[bytes]
    ) -> tuple[list[bytes], SpecialCall | None]:
        """Open the frames of a record of writes: five for each write. Also return the call of a special write.

        Args:
            task: The task's member of the index.
            special: The index of the special write that the record's field names; empty for regular writes.
            frames: The frames.

        Raises:
            ValueError: A write was changed, moved, repeated, or cut off.
        """
        opened, count, indexes, call = list[bytes](), 1, set(frames[::5]), b""
        if (special and indexes != {special}) or (not special and any(index[:1] == b"-" for index in indexes)):
            raise ValueError("it has writes of another record")
        for begin in range(0, len(frames), 5):
            *place, kind, data = frames[begin : begin + 5]
            if kind == IN_CHUNKS:
                data = self._open_typed(data, b"write", self.thread, task, *place)
                (inner, head), end = take(data, _ROOT, 2)
                (number,), start = take(head, 0, 1)
                data = data[:_ROOT] + pack([inner, head[start:]]) + data[end:]
            else:
                rule = b"2" if kind.endswith(SEALED_2) else b""
                kind = unsealed(kind)
                data = self.open(data, b"write" + rule, self.thread, task, *place, kind)
                (number, *calls), start = take(data, 0, 2 if rule else 1)
                call, data = b"".join(calls), data[start:]
            count = max(count, int(number))
            opened += (*place, kind, data)
        if len(frames) != 5 * len(indexes) or len(indexes) < count:
            raise ValueError(f"of {count} writes {len(indexes)} are there, in {len(frames) // 5} places")
        return opened, SpecialCall.of(call) if special else None


class OpenedHeader(NamedTuple):
    """A header as it was before it was sealed, and what was sealed within."""

    header: bytes
    parent: bytes
    """The parent's id, escaped, also if prune has removed it."""
    flags: bytes
    """The flags of its channels."""
    known_writes: bytes
    """The tasks with pending writes at its parent that its writer knew (`split`)."""


# -- special writes


PAIR = (WRITES_IDX_MAP[INTERRUPT], WRITES_IDX_MAP[RESUME])


class SpecialCall(NamedTuple):
    """The call of `put_writes` that stored an `INTERRUPT` or a `RESUME`. Other special writes name none.

    LangGraph stores the `INTERRUPT` of a task together with its earlier answers (`RESUME`). When the task has ended, it
    stores the answers alone (`langgraph/pregel/_runner.py`, `commit`).
    """

    id: bytes
    """Begins with the time (`TIME`). Zero bytes for a record of the first rule."""
    together: tuple[int, ...]
    """The indexes of `INTERRUPT` and `RESUME`, if the call had one or both of them and no regular write. Postgres
    replaces special writes only in such a call."""

    @classmethod
    def new(cls, special: Iterable[int], regular: Collection[Any]) -> SpecialCall:
        """Return the call with these special writes, and these regular ones."""
        return cls(new_id(), () if regular else tuple([index for index in special if index in PAIR]))

    @property
    def sealed(self) -> bytes:
        """The bytes that are sealed with `INTERRUPT` and `RESUME`."""
        return self.id + b"".join([b"%d" % index for index in self.together])

    @classmethod
    def of(cls, sealed: bytes) -> SpecialCall:
        """Return the call that is sealed with a special write. Empty: by the first rule."""
        return cls(sealed[:ID] or bytes(ID), tuple(map(int, sealed[ID:].replace(b"-", b" -").split())))


def check_special(task: str, calls: Mapping[int, SpecialCall]) -> None:
    """Check that no special write of a task is older than another one that came with a newer one of its kind.

    Args:
        task: The task, for the error.
        calls: The calls of all of its special writes, by index.

    Raises:
        ValueError: An earlier record was put back, or one was removed.
    """
    for index, call in calls.items():
        for other in call.together:
            if other != index and not _fits(index, call, other, calls.get(other)):
                raise ValueError(
                    f"a special write of task {shown(task)} was removed, or an earlier one was put in its place"
                )


def _fits(index: int, call: SpecialCall, other: int, partner: SpecialCall | None) -> bool:
    """True if the special write `other` came in the same call, or may have replaced that of the call later."""
    if partner is None or partner.id == call.id:
        return partner is not None
    if index in partner.together or partner.id == bytes(ID):  # of another pair, or by the first rule
        return False
    # Answers alone come when the task ends. A question alone is later only if a run that was overtaken asked it again.
    return other != PAIR[0] or partner.id[:TIME] >= call.id[:TIME]


# -- writes of a parent


class KnownWrites:
    """The tasks with pending writes that this process put or read. A header names those of its parent.

    Each is a digest of the task. In a header it is encrypted, so the digest needs no key. Tasks are known by data key,
    so those of an earlier thread with the same ids do not count.
    """

    def __init__(self) -> None:
        """Know none."""
        self._known: BoundedCache[tuple[bytes, str, str], set[bytes]] = BoundedCache(_CHECKPOINTS, _KNOWN_BYTES)

    def note(self, key: bytes, ns: str, checkpoint_id: str, tasks: set[bytes]) -> None:
        """Note tasks whose writes are surely stored (`digests_of`). `key` is the id of the data key."""
        place = key, ns, checkpoint_id
        known = self._known.get(place, set())
        if not known.issuperset(tasks):
            known.update(tasks)
            self._known.store(place, known, len(ns) + 100 * (1 + len(known)))

    def of(self, key: bytes, ns: str, checkpoint_id: str) -> set[bytes]:
        """Return the known tasks of a checkpoint."""
        return self._known.get((key, ns, checkpoint_id), set()).copy()  # others may add to it


_CHECKPOINTS, _KNOWN_BYTES = 20_000, 16 * 2**20
_TASK = 8
"""Size of a digest of a task, in bytes."""


def digests_of(writes: Iterable[Sequence[Any]]) -> set[bytes]:
    """Return the digests of the tasks with regular writes. A write begins with its task and its channel."""
    tasks = {write[0] for write in writes if write[1] not in WRITES_IDX_MAP}
    return {hashlib.blake2b(task.encode("utf-8", "surrogatepass"), digest_size=_TASK).digest() for task in tasks}


def split(known: bytes) -> set[bytes]:
    """Return the digests of tasks that a header names."""
    return {known[at : at + _TASK] for at in range(0, len(known), _TASK)}


def check_writes(known: bytes, writes: Iterable[Sequence[Any]], checkpoint_id: str) -> None:
    """Check that a checkpoint has the pending writes of all tasks that the header of its child names.

    Args:
        known: Those tasks.
        writes: Its writes, as `digests_of` takes them.
        checkpoint_id: Its id, for the error.

    Raises:
        ValueError: Some were removed.
    """
    if known and (gone := split(known) - digests_of(writes)):
        raise ValueError(
            f"the pending writes of {len(gone)} tasks of its ancestor {shown(checkpoint_id)} are gone, which the "
            "writer of that one's child had seen"
        )


def unsealed(kind: bytes) -> bytes:
    """Return the type of a sealed record as the serializer gave it.

    Raises:
        NotEncrypted: The record is plain.
    """
    for end in (SEALED, SEALED_2):
        if kind.endswith(end):
            return kind[: -len(end)]
    raise NotEncrypted(PLAIN)
