"""Envelopes: the form in which a saver over two tiers with `encryption=` stores values in cold.

An envelope is `bytes`, so any serializer and any saver stores it: `MAGIC`, then frames of the wrapped data key
(`Cipher.argument`), the place, the serializer's type, and its sealed bytes. It carries the wrapped key because hot may
have lost the thread, and its data key with it. The place is that of the row. It is sealed with the bytes, so an
envelope opens nowhere else. A snapshot of a `DeltaChannel` keeps its class, which savers look at, around an envelope.

Cold may keep metadata, and the rest of a checkpoint, as JSON that anybody reads. So both are in an envelope, the
*head*, which is stored in base64 among the metadata. Next to it are only the metadata that SQL needs.

Cold stores envelopes by an `EnvelopeSerializer`, which makes no objects. Cold's own serializer encodes what is within
an envelope, and decodes it after it was opened at its place.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from redis_saver._common import names
from redis_saver._common.display import shown
from redis_saver._serde import fallback
from redis_saver._storage.framing import pack, unpack
from redis_saver._storage.opaque import Opaque, OpaqueSerializer
from redis_saver._storage.sealing import PLAIN, Cipher
from redis_saver.errors import NotEncrypted, decoding

MAGIC = b"redis_saver envelope 1\n"
HEAD = "redis_saver_sealed"
"""Key of the metadata that holds the head: metadata, the checkpoint without values, its parent, and its channels with a
value."""


class Envelope(NamedTuple):
    """An envelope, not yet opened."""

    key: bytes
    """The wrapped data key, with its id."""
    place: bytes
    kind: bytes
    sealed: bytes

    def open(self, cipher: Cipher, serde: SerializerProtocol) -> Any:
        """Return the value. Raises ValueError if the envelope was changed."""
        data = cipher.open(self.sealed, b"cold", self.place, self.kind)
        return serde.loads_typed((names.decode(self.kind), data))

    def place_after(self, *place: str) -> list[str]:
        """Return the parts of the place after these.

        Raises:
            ValueError: It is another place.
        """
        parts = [names.decode(part) for part in unpack(self.place)]
        if parts[: len(place)] != [*place]:
            raise ValueError(f"it was moved here from {shown(parts)}, or was put in its place")
        return parts[len(place) :]


def seal(cipher: Cipher, serde: SerializerProtocol, value: Any, *place: str) -> Any:
    """Return an envelope of a value, or a snapshot of a `DeltaChannel` with one in it."""
    if is_snapshot(value):
        return type(value)(seal(cipher, serde, value.value, *place))
    kind, data = serde.dumps_typed(value)
    where, encoded = pack([names.encode(part) for part in place]), names.encode(kind)
    return MAGIC + pack([cipher.argument, where, encoded, cipher.seal(data, b"cold", where, encoded)])


def is_snapshot(value: Any) -> bool:
    """True for a snapshot of a `DeltaChannel`."""
    return fallback.delta_snapshot is not None and isinstance(value, fallback.delta_snapshot)


def envelope(stored: Any) -> Envelope:
    """Return the envelope that an `EnvelopeSerializer` decoded.

    Raises:
        NotEncrypted: It is a plain value.
        ValueError: It was changed.
    """
    if isinstance(stored, Opaque) and MAGIC in begin(stored.typed[1]):
        raise ValueError(f"its type was changed to {shown(stored.typed[0])}")
    if not isinstance(stored, bytes) or not stored.startswith(MAGIC):
        raise NotEncrypted(PLAIN)
    return Envelope._make(unpack(stored[len(MAGIC) :]))


def head_of(metadata: Any) -> bytes:
    """Return the head among the metadata of a checkpoint.

    Raises:
        NotEncrypted: There is none.
        ValueError: It is not base64.
    """
    text = metadata.get(HEAD) if isinstance(metadata, Mapping) else None
    if not isinstance(text, str):
        raise NotEncrypted(PLAIN)
    return base64.b64decode(text)


def begin(data: Any) -> bytes:
    """Return the beginning of stored bytes, in which an envelope, or a snapshot of one, has `MAGIC`."""
    return bytes(data[: len(MAGIC) + 16]) if isinstance(data, (bytes, bytearray, memoryview)) else b""


_PACKED = OpaqueSerializer()


class EnvelopeSerializer(SerializerProtocol):
    """The serializer of cold with `encryption=`. It stores envelopes, and decodes nothing else.

    Some savers store a whole checkpoint, or its metadata, by their serializer. These are plain data around envelopes,
    so decoding gives lists, dicts and scalars. An object in them stays an `ormsgpack.Ext`. A value that is neither
    bytes nor msgpack stays as it is, an `Opaque`, because only the caller can name its place in an error.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        """Take the serializer that cold had. If it is an `EncryptedSerializer`, its cipher encrypts envelopes again."""
        self._cipher: CipherProtocol | None = serde.cipher if isinstance(serde, EncryptedSerializer) else None
        self.is_used: bool = False
        """True if it has encoded or decoded something."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Encode an envelope, a snapshot of one, or a checkpoint or metadata with envelopes in them.

        Raises:
            NotEncrypted: It is something else, which must not be stored.
        """
        self.is_used = True
        if not _has_only_envelopes(obj):
            raise NotEncrypted(f"{type(obj).__name__} is to be stored in cold without encryption")
        kind, data = _PACKED.dumps_typed(obj)
        if self._cipher is not None:
            name, data = self._cipher.encrypt(data)
            kind = f"{kind}+{name}"
        return kind, data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Decode what `dumps_typed` encoded. Anything else stays an `Opaque`.

        Raises:
            DecodeError: The cipher refused it.
        """
        self.is_used = True
        kind, stored = data
        if self._cipher is not None and isinstance(kind, str) and "+" in kind:
            kind, name = kind.split("+", 1)
            with decoding("a value of the type {!r}", data[0]):
                stored = self._cipher.decrypt(name, stored)
        if kind == "bytes" and isinstance(stored, bytes):
            return stored
        if kind == "msgpack" and isinstance(stored, bytes) and not stored.startswith(MAGIC):
            try:
                return _PACKED.loads_typed((kind, stored))
            except ValueError:  # `envelope` refuses it, by an error that names its place
                pass
        return Opaque(kind, stored)


def _has_only_envelopes(value: Any) -> bool:
    """True if each value in it is an envelope: of a channel, of a write, or of a checkpoint or metadata."""
    if isinstance(value, bytes):
        return value.startswith(MAGIC)
    if is_snapshot(value):
        return _has_only_envelopes(value.value)
    if isinstance(value, Mapping):
        of_channels = value.get("channel_values", {}) if "channel_versions" in value else {}
        return (HEAD in value or "channel_versions" in value) and all(map(_has_only_envelopes, of_channels.values()))
    return isinstance(value, list) and all(map(_has_only_envelopes, value))  # LangGraph's pending sends, before 2025
