"""A serializer that refuses plain values.

A serializer that encrypts adds its cipher to the type (`msgpack+aes`), as LangGraph's `EncryptedSerializer` does. That
serializer decodes plain values, too. So an attacker who can write to Redis but has no key could make the process decode
a value, and decoding can run code (`docs/security.md`).
"""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from redis_saver.errors import NotEncrypted


class EncryptedOnly(SerializerProtocol):
    """Wraps a serializer that encrypts."""

    def __init__(self, serde: SerializerProtocol) -> None:
        """Wrap this serializer."""
        self.serde: SerializerProtocol = serde

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Encode a value.

        Raises:
            ValueError: The serializer did not encrypt it.
        """
        kind, data = self.serde.dumps_typed(obj)
        if "+" not in kind:
            raise ValueError(
                f"the serializer did not encrypt it (its type is {kind!r}), and require_encryption is on. Pass a "
                "serde= that encrypts every value"
            )
        return kind, data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Decode a value.

        Raises:
            NotEncrypted: It is plain. It is not decoded.
        """
        if "+" not in data[0]:
            raise NotEncrypted(
                f"it is not encrypted (its type is {data[0]!r}), and only encrypted values are read here. It was not "
                "decoded. If you wrote it before you turned encryption on, encrypt the thread with redis-saver "
                "migrate, or read it with require_encryption=False until it is written again. If you did not write "
                "it, somebody without the key did: see redis-saver docs security"
            )
        return self.serde.loads_typed(data)


def guarded(serde: SerializerProtocol, required: bool | None) -> SerializerProtocol:
    """Return a serializer by the setting `require_encryption`. None: required of an `EncryptedSerializer`.

    Raises:
        TypeError: The setting is not a bool.
        ValueError: Encryption is required, but the serializer does not encrypt.
    """
    if required is None:
        required = isinstance(serde, EncryptedSerializer)
    if not isinstance(required, bool):
        raise TypeError(
            f"require_encryption={required!r}: write True, False, or None (True if serde is an EncryptedSerializer)"
        )
    if required and "+" not in (kind := serde.dumps_typed(None)[0]):
        raise ValueError(
            f"require_encryption=True: {type(serde).__name__} does not encrypt: it gives the type {kind!r}, which "
            "names no cipher. Pass serde=EncryptedSerializer.from_pycryptodome_aes(), or another serializer whose "
            "types end in '+' and the cipher's name"
        )
    return EncryptedOnly(serde) if required else serde


def replaced(guard: SerializerProtocol, serde: SerializerProtocol) -> SerializerProtocol:
    """Return another serializer, which refuses plain values if the one before did."""
    return EncryptedOnly(serde) if isinstance(guard, EncryptedOnly) else serde


def unguarded(serde: SerializerProtocol) -> SerializerProtocol:
    """Return the serializer that `guarded` was given."""
    return serde.serde if isinstance(serde, EncryptedOnly) else serde
