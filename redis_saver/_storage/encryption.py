"""What a saver that encrypts refuses: values that are not encrypted.

A serializer that encrypts names its cipher behind the type (`msgpack+aes`), as LangGraph's `EncryptedSerializer` does. That serializer also
decodes values without a cipher, as they are. So whoever can write to Redis could have a value decoded without knowing the key, and decoding
can run code (`docs/security.md`).
"""

from __future__ import annotations

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from redis_saver._storage.context import Context
from redis_saver.errors import NotEncrypted


def check(required: bool | None, serde: SerializerProtocol) -> bool:
    """Check a saver's setting. None stands for: yes if the serializer is an `EncryptedSerializer`.

    Raises:
        TypeError: It is no bool.
        ValueError: Encryption is required, and the serializer does not encrypt.
    """
    if required is None:
        return isinstance(serde, EncryptedSerializer)
    if not isinstance(required, bool):
        raise TypeError(
            f"require_encryption={required!r}: write True, False, or None (True if serde is an EncryptedSerializer)"
        )
    if required and not names_cipher(kind := serde.dumps_typed(None)[0]):
        raise ValueError(
            f"require_encryption=True: {type(serde).__name__} does not encrypt: it gives the type {kind!r}, which names no cipher. "
            "Pass serde=EncryptedSerializer.from_pycryptodome_aes(), or another one whose types end in '+' and the cipher's name"
        )
    return required


def names_cipher(kind: str | bytes) -> bool:
    """Whether the type of a value says that it is encrypted."""
    return b"+" in kind if isinstance(kind, bytes) else "+" in kind


def check_read(context: Context, kind: str | bytes) -> None:
    """Look at a stored value's type before the value is decoded.

    Raises:
        NotEncrypted: It is not encrypted, and the saver reads only what is.
    """
    if context.require_encryption and not names_cipher(kind):
        raise NotEncrypted(
            f"it is not encrypted (its type is {kind!r}), and this saver reads only what is. It was not decoded. If you wrote it before "
            "you turned encryption on, encrypt the thread with redis-saver migrate, or read it with require_encryption=False "
            "until it is written again. If you did not write it, somebody without the key did: see docs/security.md"
        )


def check_written(context: Context, kind: str) -> None:
    """Look at the type a serializer gave before the value is sent.

    Raises:
        ValueError: It is not encrypted, and the saver writes only what is.
    """
    if context.require_encryption and not names_cipher(kind):
        raise ValueError(
            f"the serializer did not encrypt it (its type is {kind!r}), and require_encryption is on. Pass a serde= that encrypts every value"
        )
