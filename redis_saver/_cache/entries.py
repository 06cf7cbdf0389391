"""Entries: values as they are stored, with the stamp in front that says whether they still count."""

from __future__ import annotations

from typing import Any

from redis_saver import errors
from redis_saver._cache.context import Context
from redis_saver._cache.keys import FullKey
from redis_saver._common import limits as limiting
from redis_saver._common.display import shown
from redis_saver._storage import framing
from redis_saver._storage.encryption import names_cipher
from redis_saver.errors import NotEncrypted, UnsupportedFormat

FORMAT = b"\1"
"""The first byte of each entry. Then come its namespace's and its shard's generation, a frame with the value's type, and the serializer's bytes."""
GENERATION = 8
"""Bytes of a generation, which are random."""

_MSGPACK = framing.pack([b"msgpack"])


class _Named:
    """An entry's name as messages show it, made only if there is a message."""

    __slots__ = ("_name",)

    def __init__(self, name: FullKey) -> None:
        self._name = name

    def __str__(self) -> str:
        return f"the cache's entry {shown(self._name[1])} of namespace {shown(self._name[0])}"


def encode(context: Context, name: FullKey, value: Any) -> bytes:
    """A value as it is stored behind its stamp.

    Raises:
        EncodeError: The serializer cannot encode it.
        LimitExceeded: It is too large.
        ValueError: Encryption is required, and the serializer did not encrypt it.
    """
    with errors.encoding("{}", _Named(name)):
        kind, data = context.serde.dumps_typed(value)
        packed = framing.pack([kind.encode()])
    if context.require_encryption and not names_cipher(kind):
        raise ValueError(
            f"the serializer did not encrypt an entry (its type is {kind!r}), and require_encryption is on. Pass a serde= that encrypts every value"
        )
    limiting.check(context.limits, "value_bytes", len(data), "{} has {} bytes", _Named(name))
    return packed + data


def is_valid(raw: bytes, stamp: bytes) -> bool:
    """Whether an entry was written under the generations that the stamp is made of.

    Raises:
        UnsupportedFormat: Its format is not known here.
    """
    if raw[:1] != FORMAT:
        raise UnsupportedFormat(
            "an entry of a cache begins with a byte that this release does not know: a newer release, or another program, stored it. It "
            "was not decoded, and a set() replaces it"
        )
    return raw.startswith(stamp, 1)


def decode(context: Context, name: FullKey, raw: bytes, stamp: bytes) -> Any:
    """The value of a valid entry.

    Raises:
        DecodeError: The serializer cannot decode it.
        PlainValueRefused: It is not encrypted, and the cache reads only what is.
    """
    with errors.decoding("{}", _Named(name), remedy="It counts as a miss, and a set() replaces it."):
        kind, start = b"msgpack", 1 + len(stamp) + len(_MSGPACK)
        if not raw.startswith(_MSGPACK, 1 + len(stamp)):  # which all have that the default serializer wrote
            (kind,), start = framing.take(raw, 1 + len(stamp), 1)
        if context.require_encryption and not names_cipher(kind):
            raise NotEncrypted(
                f"it is not encrypted (its type is {kind!r}), and this cache reads only what is. It was not decoded. A set() replaces it"
            )
        return context.serde.loads_typed((kind.decode(), raw[start:]))
