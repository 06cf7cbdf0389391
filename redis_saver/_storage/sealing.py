"""Sealing of stored records: what a thread keeps with `encryption=`, and how each record is bound to its place.

A data key of 32 bytes gives two keys (HKDF): one names chunks (keyed BLAKE2b), one encrypts (AES-SIV, RFC 5297).
AES-SIV is deterministic: the same record at the same place has the same bytes. So a put that is sent again changes
nothing, and no nonce can repeat. It shows which records of one place are equal, as the names of chunks do anyway.

Each record is sealed with its place as associated data, so it opens nowhere else. The type of a sealed record ends with
`+siv`. What scripts read stays open: names, versions, flags, and the lists of chunks, whose names are keyed digests.
Two things in a header change on the server: prune clears a parent, and a put that comes again adds flags. So the header
has both sealed within, and `open_header` compares.

Not detected:

- Whoever can write to Redis can hide things: the newest checkpoints, a whole checkpoint, or all of a task's writes with
  their member of the index, and can clear a parent as prune does. A history of a `DeltaChannel` does not end there: the
  metadata count its updates, so `_checkpoint/delta.py` notices.
- What a place had earlier opens there again: a checkpoint that was put again, a special write. With the whole thread,
  or with its `@state` and index alone, that is a rollback. The short answer of `lua/checkpoint/get.lua` depends only on
  these, and the values come from this process's memory, so it hides newer checkpoints and shows nothing else.
- Limits, TTLs, counters, times in `threads()` and the members of the index are in the open.

A checkpoint whose value another checkpoint has emptied in the same version cannot be told from damage, so it raises.
LangGraph gives each change a new version.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

from redis_saver._storage.chunks import DIGEST, IN_CHUNKS, KINDS
from redis_saver._storage.framing import pack, take, unpack
from redis_saver.errors import NotEncrypted

SEALED = b"+siv"
"""Ends the type of a sealed record."""
ID = 16
"""Size of a data key's id in bytes."""
_END = b"\0"
"""Ends what is encrypted, because older releases of `cryptography` refuse to encrypt nothing."""
PLAIN = (
    "it is not encrypted, and encryption= is set. It was not decoded. Encrypt it with redis-saver migrate. If you did "
    "not write it, somebody without the key did: see docs/security.md"
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
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError(f"encryption needs more packages: pip install 'redis-saver[encryption]' ({error})") from error
    return AESSIV(key)


def derived(key: bytes, purpose: bytes, size: int) -> bytes:
    """Return a key that is derived from another one, by HKDF."""
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

    def seal_header(self, member: bytes, header: bytes) -> bytes:
        """Seal the rest of the checkpoint and the metadata in a header. `member` is the checkpoint's."""
        frames = unpack(header)
        kind, body, about_kind, about = frames[_KIND:]
        within = pack([frames[_PARENT], frames[_FLAGS]])
        place = self._place_of(member, frames)
        frames[_KIND:] = [
            kind + SEALED, sealed := self.seal(within + body, b"body", kind, *place),
            about_kind + SEALED, self.seal(about, b"about", about_kind, sealed[:_TAG]),
        ]  # fmt: skip
        return pack(frames)

    def open_header(self, member: bytes, header: bytes) -> tuple[bytes, bytes, bytes]:
        """Open what `seal_header` sealed. Also return the parent and the flags that were sealed.

        Raises:
            ValueError: It is another checkpoint's, or something in the open was changed.
        """
        frames = unpack(header)
        kind, body, about_kind, about = frames[_KIND:]
        kind, about_kind, place = unsealed(kind), unsealed(about_kind), self._place_of(member, frames)
        opened = self.open(body, b"body", kind, *place)
        (parent, flags), start = take(opened, 0, 2)
        added = [flag for flag, before in zip(frames[_FLAGS], flags, strict=True) if flag != before]
        if frames[_PARENT] not in (parent, b"") or {*added} - {ord("1")}:
            raise ValueError("its parent or its flags were changed")
        frames[_KIND:] = [kind, opened[start:], about_kind, self.open(about, b"about", about_kind, body[:_TAG])]
        return pack(frames), parent, flags

    def _place_of(self, member: bytes, frames: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return what binds a header: its checkpoint, and the frames that only the saver writes."""
        return self.thread, member, *frames[1:_FLAGS], *frames[_FLAGS + 1 : _RETAINED], frames[_RETAINED + 1]

    # -- pending writes

    def seal_writes(self, task: bytes, records: Sequence[bytes]) -> list[bytes]:
        """Seal the records of a task's writes. Each knows how many there are, so none can be cut off.

        Args:
            task: The task's member of the index.
            records: For each write: frames of index, task path, channel, type and bytes.
        """
        front, sealed = pack([b"%d" % len(records)]), list[bytes]()
        for record in records:
            *place, kind, data = unpack(record)
            if kind == IN_CHUNKS:
                data = self._seal_typed(data, front, b"write", self.thread, task, *place)
            else:
                kind, data = kind + SEALED, self.seal(front + data, b"write", self.thread, task, *place, kind)
            sealed.append(pack([*place, kind, data]))
        return sealed

    def open_writes(self, task: bytes, special: bytes, frames: Sequence[bytes]) -> list[bytes]:
        """Open the frames of a record of writes: five for each write.

        Args:
            task: The task's member of the index.
            special: The index of the special write that the record's field names; empty for regular writes.
            frames: The frames.

        Raises:
            ValueError: A write was changed, moved, repeated, or cut off.
        """
        opened, count, indexes = list[bytes](), 1, set(frames[::5])
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
                kind = unsealed(kind)
                data = self.open(data, b"write", self.thread, task, *place, kind)
                (number,), start = take(data, 0, 1)
                data = data[start:]
            count = max(count, int(number))
            opened += (*place, kind, data)
        if len(frames) != 5 * len(indexes) or len(indexes) < count:
            raise ValueError(f"of {count} writes {len(indexes)} are there, in {len(frames) // 5} places")
        return opened


def unsealed(kind: bytes) -> bytes:
    """Return the type of a sealed record as the serializer gave it.

    Raises:
        NotEncrypted: The record is plain.
    """
    if not kind.endswith(SEALED):
        raise NotEncrypted(PLAIN)
    return kind[: -len(SEALED)]
