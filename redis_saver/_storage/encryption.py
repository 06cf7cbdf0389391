"""Encoding and decoding for a saver that encrypts. It refuses plain values.

A serializer that encrypts adds its cipher to the type (`msgpack+aes`), as LangGraph's `EncryptedSerializer` does. That
serializer decodes plain values, too. So an attacker who can write to Redis but has no key could make the process decode
a value, and decoding can run code (`docs/security.md`).
"""

from __future__ import annotations

from typing import Any, Protocol

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from redis_saver._common import names
from redis_saver.errors import NotEncrypted


class Context(Protocol):
    """The settings of a saver, store or cache that concern encryption."""

    @property
    def serde(self) -> SerializerProtocol:
        """The serializer."""

    @property
    def require_encryption(self) -> bool:
        """True if plain values are refused."""


def check(required: bool | None, serde: SerializerProtocol) -> bool:
    """Return the setting `require_encryption`. None means True if the serializer is an `EncryptedSerializer`.

    Raises:
        TypeError: The setting is not a bool.
        ValueError: Encryption is required, but the serializer does not encrypt.
    """
    if required is None:
        return isinstance(serde, EncryptedSerializer)
    if not isinstance(required, bool):
        raise TypeError(
            f"require_encryption={required!r}: write True, False, or None (True if serde is an EncryptedSerializer)"
        )
    if required and not names_cipher(kind := serde.dumps_typed(None)[0]):
        raise ValueError(
            f"require_encryption=True: {type(serde).__name__} does not encrypt: it gives the type {kind!r}, which "
            "names no cipher. Pass serde=EncryptedSerializer.from_pycryptodome_aes(), or another serializer whose "
            "types end in '+' and the cipher's name"
        )
    return required


def names_cipher(kind: str | bytes) -> bool:
    """True if the type of a value says that it is encrypted."""
    return b"+" in kind if isinstance(kind, bytes) else "+" in kind


def dumps(context: Context, value: Any) -> tuple[str, bytes]:
    """Encode a value with the serializer. Return its type and its bytes.

    Raises:
        ValueError: The saver encrypts, but the serializer did not.
    """
    kind, data = context.serde.dumps_typed(value)
    if context.require_encryption:
        check_written(context, kind)
    return kind, data


def loads(context: Context, kind: bytes, data: bytes) -> Any:
    """Decode a value with the serializer.

    Raises:
        NotEncrypted: The saver encrypts, but the value is plain. It is not decoded.
    """
    if context.require_encryption:
        check_read(context, kind)
    return context.serde.loads_typed((names.decode(kind), data))


def check_read(context: Context, kind: str | bytes) -> None:
    """Check a stored value's type before the value is decoded.

    Raises:
        NotEncrypted: As `loads`.
    """
    if context.require_encryption and not names_cipher(kind):
        raise NotEncrypted(
            f"it is not encrypted (its type is {kind!r}), and only encrypted values are read here. It was not decoded. "
            "If you wrote it before you turned encryption on, encrypt the thread with redis-saver migrate, or read it "
            "with require_encryption=False until it is written again. If you did not write it, somebody without the "
            "key did: see docs/security.md"
        )


def check_written(context: Context, kind: str) -> None:
    """Check a value's type before the value is sent.

    Raises:
        ValueError: As `dumps`.
    """
    if context.require_encryption and not names_cipher(kind):
        raise ValueError(
            f"the serializer did not encrypt it (its type is {kind!r}), and require_encryption is on. Pass a serde= "
            "that encrypts every value"
        )
