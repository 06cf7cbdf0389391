"""Data keys. An operation loads or makes the key of its thread, and the process keeps it for a while.

A partition of a store, and a cache, have data keys in the same form.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from langchain_core.runnables import RunnableConfig

from redis_saver._common import names
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._engine.requests import Ask, Command, Operation, Page, Stream, T
from redis_saver._engine.runner import Pump
from redis_saver._storage.framing import pack, unpack
from redis_saver._storage.sealing import ID, Cipher
from redis_saver.encryption import Encryption, KeyContext, WrappedKey
from redis_saver.errors import DecodeError, KeyMismatch, decoding

if TYPE_CHECKING:
    from redis_saver._storage.context import Context

MAX_KEYS = 10_000
"""Maximum number of data keys that a process keeps."""
FIELD = b"@key"
"""The field with a data key: its id of 16 bytes, then frames of the wrapping key's id and the wrapped key."""


class DataKeys:
    """The data keys of a saver's threads, or of a store's partitions."""

    def __init__(self, encryption: Encryption, prefix: str, kind: str) -> None:
        """Start without keys. The kind is that of `KeyContext`."""
        self._encryption, self._prefix, self._kind = encryption, prefix, kind
        self._ciphers: BoundedCache[str, Cipher] = BoundedCache(MAX_KEYS)

    def load(self, name: str, key: bytes, failed: Cipher | None = None) -> Operation[Cipher | None]:
        """Return the cipher of a thread or partition, or None if it has no data key.

        Costs a round trip and a question to the provider, unless this process has the data key.

        Args:
            name: Its name.
            key: The hash with its `@key`.
            failed: The cipher that did not open or seal its data. The data key is read again.
        """
        held = self._ciphers.get(name)
        if held is not None and held is not failed and held.is_current:
            return held
        stored = yield Command(("HGET", key, FIELD), (key,))
        if stored is None:
            if self._ciphers.get(name) is held:  # else another caller has loaded or made one meanwhile
                self._ciphers.forget(name)
            return None
        if held is not None and held.is_current and held.id == stored[:ID]:
            return held
        keys, reading = self._encryption.keys, decoding(f"the data key of {self._kind} {{!r}}", name)
        with reading:
            key_id, wrapped = unpack(stored[ID:])
            arguments = WrappedKey(names.decode(key_id), wrapped), KeyContext(self._prefix, self._kind, name)
        try:
            data_key = yield Ask(keys.unwrap, keys.aunwrap, arguments)
        except ValueError as error:  # another error of the provider passes unchanged
            raise reading.of(error) from error
        return self._kept(name, stored, data_key)

    def make(self, name: str, config: RunnableConfig | None, data_key: bytes = b"") -> Operation[Cipher]:
        """Make and wrap a data key for a new thread or partition, or wrap the data key of the thread that it is a copy of."""
        keys, key_for, is_copy = self._encryption.keys, self._encryption.key_for, bool(data_key)
        data_key = data_key or os.urandom(32)
        key_name = key_for(name, config) if key_for else None
        arguments = data_key, KeyContext(self._prefix, self._kind, name), key_name
        wrapped = yield Ask(keys.wrap, keys.awrap, arguments)
        if not is_copy and (held := self._ciphers.get(name)) is not None and held.is_current:
            return held  # another caller has loaded or made it meanwhile
        stored = os.urandom(ID) + pack([names.encode(wrapped.key_id), wrapped.data])
        return self._kept(name, stored, data_key)

    def _kept(self, name: str, stored: bytes, data_key: bytes) -> Cipher:
        until = time.monotonic() + self._encryption.cache_seconds
        cipher = Cipher(stored, data_key, names.encode(name), until)
        self._ciphers.store(name, cipher)
        return cipher


def with_key(
    context: Context,
    thread: str,
    make: Callable[[Context], Operation[T]],
    *,
    creates: bool = False,
    config: RunnableConfig | None = None,
    key: bytes = b"",
) -> Operation[T]:
    """Run an operation on a thread with the thread's cipher in its context. Without `encryption=`, just run it.

    If another process has replaced the thread, this process finds that its data key is another one, and runs the
    operation again.

    Args:
        context: The saver, or the settings of a store.
        thread: The thread, or the name of a partition.
        make: Makes the operation.
        creates: True if the operation may create the thread, which then gets a data key.
        config: LangGraph's config, for `key_for`.
        key: The hash of a partition.
    """
    if (data_keys := context.data_keys) is None:
        return (yield from make(context))
    failed, key = None, key or context.keyspace.keys(thread).data_key
    while True:
        cipher = yield from data_keys.load(thread, key, failed)
        if cipher is None and creates:
            cipher = yield from data_keys.make(thread, config)
        try:
            result = yield from make(context.with_cipher(cipher))
        except (KeyMismatch, DecodeError):
            if failed is not None or cipher is (yield from data_keys.load(thread, key, cipher)):
                raise
            failed = cipher
            context.chunk_cache.forget(key)
        else:
            return result


def stream_with_key(context: Context, thread: str, make: Callable[[Context], Stream[T]]) -> Stream[T]:
    """Stream as `with_key` runs. After the first page nothing is streamed again."""
    if (data_keys := context.data_keys) is None:
        yield from make(context)
        return
    key, is_first = context.keyspace.keys(thread).data_key, True
    cipher = yield from data_keys.load(thread, key)
    while True:
        pump = Pump(make(context.with_cipher(cipher)))
        try:
            for request in pump:
                with pump:
                    is_first = is_first and not isinstance(request, Page)
                    pump.reply = yield request
        except DecodeError:
            replaced = yield from data_keys.load(thread, key, cipher)
            if not is_first or cipher is replaced:
                raise
            cipher = replaced
        else:
            return
        finally:
            pump.close()
