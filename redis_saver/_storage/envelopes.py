"""Envelopes: the form in which a saver over two tiers with `encryption=` stores values in cold.

An envelope is `bytes`, so any serializer and any saver stores it: `MAGIC`, then frames of the wrapped data key
(`Cipher.argument`), the place, the serializer's type, and its sealed bytes. It carries the wrapped key because hot may
have lost the thread, and its data key with it. The place is that of the row. It is sealed with the bytes, so an
envelope opens nowhere else. A snapshot of a `DeltaChannel` keeps its class, which savers look at, around an envelope.

Cold may keep metadata, and the rest of a checkpoint, as JSON that anybody reads. So both are in an envelope, the
*head*, which is stored in base64 among the metadata. Next to it are only the metadata that SQL needs.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._common import names
from redis_saver._common.display import shown
from redis_saver._serde import fallback
from redis_saver._storage.framing import pack, unpack
from redis_saver._storage.sealing import PLAIN, Cipher
from redis_saver.errors import NotEncrypted

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
    """Return the envelope that cold stored as bytes, or as the text of a head.

    Raises:
        NotEncrypted: It is a plain value.
        ValueError: It was changed.
    """
    data = base64.b64decode(stored) if isinstance(stored, str) else stored
    if not isinstance(data, bytes) or not data.startswith(MAGIC):
        raise NotEncrypted(PLAIN)
    return Envelope._make(unpack(data[len(MAGIC) :]))
