"""Encryption of threads and stores with keys of yours (extra `encryption`).

    from redis_saver import RedisSaver
    from redis_saver.encryption import Encryption, Keyset

    saver = RedisSaver(client, encryption=Encryption(Keyset.from_env("REDIS_SAVER_KEYS")))

Each thread, and each partition of a store, has a random data key. A key of the provider wraps it, and the wrapped key
is stored with the thread. So it expires, is copied and is deleted with the thread. `docs/encryption.md` shows how to
rotate and to destroy keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from typing_extensions import Self

from redis_saver._common import names
from redis_saver._common.display import shown
from redis_saver._serde.serializer import chosen
from redis_saver._storage.envelopes import HEAD, EnvelopeSerializer, envelope, head_of, is_snapshot
from redis_saver._storage.framing import unpack
from redis_saver._storage.keys import (
    CACHE_SECONDS,
    DataKeys,
    Encryption,
    KeyContext,
    KeyProvider,
    WrappedKey,
    run_asking,
)
from redis_saver._storage.keysets import KeyFile, Keys, id_for, parsed
from redis_saver._storage.rewrapping import KeyStatus, Rotated
from redis_saver.errors import KeyUnavailable, decoding

__all__ = [
    "ColdSerializer", "Encryption", "KeyContext", "KeyProvider", "KeyStatus", "Keyset", "Rotated", "WrappedKey",
]  # fmt: skip


class Keyset(KeyProvider):
    """Keys in memory. It wraps with AES-SIV.

    A key id is a name, or a name and a version: `2026-11`, `tenant-7`, `tenant-7/2`. The first key of a name wraps new
    data keys of that name. The first key of all is the primary key.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Take keys of at least 16 bytes by id, the primary key first.

        Raises:
            ImportError: The extra `encryption` is not installed.
            TypeError, ValueError: There is no key, or one is too short. The message does not contain it.
        """
        self._keys = Keys(keys)
        self._file: KeyFile | None = None

    @property
    def primary(self) -> str:
        """The id of the primary key."""
        return self.ids[0]

    @property
    def ids(self) -> list[str]:
        """The ids of all keys, the primary key first."""
        return [*self._held.secrets]

    @property
    def _held(self) -> Keys:
        return self._keys if self._file is None else self._file.keys

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Read `id=base64` entries, separated by commas, blanks or line ends.

        Raises:
            ValueError: The text is not in this form, or has an id twice. The message names it by `name`.
        """
        keys = parsed(text, name)
        try:
            return cls(keys)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    @classmethod
    def from_env(cls, name: str = "REDIS_SAVER_KEYS") -> Self:
        """Read the keys from an environment variable: `2026-11=BASE64,2026-05=BASE64`, the primary key first.

        Raises:
            ValueError: The variable is not set, or is not in this form. The message contains no key.
        """
        if name not in os.environ:
            raise ValueError(f"the environment variable {name} is not set; write {name}=2026-11=BASE64")
        return cls.parse(os.environ[name], name)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read the keys from a file with the form of `from_env`, such as one key in each line.

        The file may change while the process runs. The keyset looks at it when it is asked for a key: once a second at
        most, and at once if it does not know the key. It uses a changed file when that has not changed for a second.
        Keys that are gone stay in use until it has not changed for ten seconds. If the file cannot be read, all keys
        stay. Both log a warning. To be safe, write another file and rename it.

        Cost: each look reads the file. The asyncio methods of savers do so in a worker thread. After ten seconds
        without a look, all callers wait up to a second for the next one, as a key may have been gone for long.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not in this form, or has an id twice. The message contains no key.
        """
        file = KeyFile(Path(path))
        keyset = cls(file.keys.secrets)
        keyset._file = file
        return keyset

    def wrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
        """Wrap a data key with the first key of a name, or with the primary key."""
        keys = self._current(lambda ids: id_for(ids, name) is not None)
        if (key_id := id_for(keys.secrets, name)) is None:
            raise KeyUnavailable(f"the keyset has no key of the name {shown(name)}. Nothing was written")
        return WrappedKey(key_id, keys.ciphers[key_id].encrypt(data_key, [context.as_bytes()]))

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        """Return the data key."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        keys = self._current(lambda ids: wrapped.key_id in ids)
        if (cipher := keys.ciphers.get(wrapped.key_id)) is None:
            raise KeyUnavailable(
                f"the data key of {context.kind} {shown(context.name)} was wrapped by the key {shown(wrapped.key_id)}, "
                "which the keyset does not have. Add that key. If it was destroyed, the data cannot be read any more"
            )
        try:
            return cipher.decrypt(wrapped.data, [context.as_bytes()])  # type: ignore[no-any-return]
        except InvalidTag:
            raise ValueError(
                f"the key {shown(wrapped.key_id)} did not wrap this data key for {context.kind} {shown(context.name)}: "
                "it was changed or moved, or another key has this id"
            ) from None

    def _current(self, knows: Callable[[Collection[str]], bool]) -> Keys:
        """Return the keys, after a look at the file if there is one."""
        return self._keys if self._file is None else self._file.current(knows)


def from_environment() -> Encryption | None:
    """Return encryption with the keys of the environment, as commands and the Agent Server use it. None: without keys.

    Raises:
        ImportError: The extra `encryption` is not installed.
        ValueError: A variable is invalid. The message contains no key.
    """
    if "REDIS_SAVER_KEYS" in os.environ:
        return Encryption(Keyset.from_env())
    if (switch := os.environ.get("REDIS_SAVER_ENCRYPTION")) is None:
        return None
    name = "LANGGRAPH_AES_KEY"
    if switch != name or name not in os.environ:
        raise ValueError(f"REDIS_SAVER_ENCRYPTION={shown(switch)}: write {name}, and set that variable, too")
    return Encryption(Keyset({name: os.environ[name].encode()}))


class ColdSerializer(SerializerProtocol):
    """Reads what a saver over two tiers with `encryption=` stored in cold, without Redis. It cannot write.

        saver = PostgresSaver(conn, serde=ColdSerializer(Keyset.from_env("REDIS_SAVER_KEYS")))

    Use it in an emergency. It decodes a value only after it has opened the value's envelope, and refuses anything else.
    A serializer does not see the row of a value. So unlike `TieredSaver`, it does not notice a value that was moved to
    another row, a thread without some of its rows, or a text or number in the JSON of a checkpoint, which Postgres
    savers do not pass to it. Metadata that Postgres stores as JSON stay sealed: call `open(saved.metadata)`.
    """

    def __init__(
        self,
        keys: KeyProvider,
        serde: SerializerProtocol | None = None,
        *,
        prefix: str = "langgraph",
        cache_seconds: float = CACHE_SECONDS,
    ) -> None:
        """Use the provider that sealed the values.

        Args:
            keys: The provider.
            serde: The serializer that cold had. Default: as for `RedisSaver`.
            prefix: The prefix of the hot saver.
            cache_seconds: Time for which this process keeps an unwrapped data key, as for `Encryption`.
        """
        self._data_keys = DataKeys(Encryption(keys, cache_seconds=cache_seconds), prefix, "thread")
        self._serde: SerializerProtocol = chosen(serde, strict=False) or JsonPlusSerializer()
        self._envelopes = EnvelopeSerializer(self._serde)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Raise `NotImplementedError`, because a plain value must not be written."""
        raise NotImplementedError("ColdSerializer only reads. To write, use TieredSaver with encryption=")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Open a value that cold stored, and decode it.

        Raises:
            DecodeError: It was changed, or is a plain value, which was not decoded (`PlainValueRefused`).
            KeyUnavailable: The key was destroyed, or is not there.
        """
        with decoding("a value of cold"):
            return self.open(self._envelopes.loads_typed(data))

    def open(self, stored: Any) -> Any:
        """Open an envelope, metadata, or a checkpoint with envelopes as its values.

        Raises:
            KeyUnavailable: The key was destroyed, or is not there.
            ValueError: It is a plain value, or was changed, or the provider returned another data key.
        """
        if is_snapshot(stored):
            return type(stored)(self.open(stored.value))
        if isinstance(stored, Mapping) and HEAD in stored:
            return self.open(head_of(stored))[0]
        if isinstance(stored, Mapping) and "channel_versions" in stored:  # of savers that do not split a checkpoint
            values = dict(stored).get("channel_values", {})
            return {**stored, "channel_values": {channel: self.open(value) for channel, value in values.items()}}
        sealed = envelope(stored)
        _, thread, *_ = unpack(sealed.place)
        cipher = run_asking(self._data_keys.unwrap(names.decode(thread), sealed.key))
        return sealed.open(cipher, self._serde)
