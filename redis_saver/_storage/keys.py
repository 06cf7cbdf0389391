"""The data keys of threads. An operation loads or makes the key of its thread, and the process keeps it for a while."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from langchain_core.runnables import RunnableConfig

from redis_saver._common import names
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.names import Keyspace
from redis_saver._engine.requests import Ask, Command, Operation, Page, Stream, T
from redis_saver._engine.runner import Pump
from redis_saver._storage.framing import pack, unpack
from redis_saver._storage.sealing import ID, Cipher
from redis_saver.encryption import Encryption, KeyContext, WrappedKey
from redis_saver.errors import DecodeError, KeyMismatch, decoding

if TYPE_CHECKING:
    from redis_saver._storage.context import Context

MAX_KEYS = 10_000
"""Maximum number of threads whose data keys a process keeps."""
FIELD = b"@key"
"""The field with a thread's data key: its id of 16 bytes, then frames of the wrapping key's id and the wrapped key."""


class DataKeys:
    """The data keys of a saver's threads."""

    def __init__(self, encryption: Encryption, keyspace: Keyspace) -> None:
        """Start without keys."""
        self._encryption, self._keyspace = encryption, keyspace
        self._ciphers: BoundedCache[str, Cipher] = BoundedCache(MAX_KEYS)

    def load(self, thread: str, failed: Cipher | None = None) -> Operation[Cipher | None]:
        """Return the cipher of a stored thread, or None if the thread has no data key.

        Costs a round trip and a question to the provider, unless this process has the data key.

        Args:
            thread: The thread.
            failed: The cipher that did not open or seal the thread. The data key is read again.
        """
        held = self._ciphers.get(thread)
        if held is not None and held is not failed and held.is_current:
            return held
        key = self._keyspace.keys(thread).data_key
        stored = yield Command(("HGET", key, FIELD), (key,))
        if stored is None:
            self._ciphers.forget(thread)
            return None
        if held is not None and held.is_current and held.id == stored[:ID]:
            return held
        keys, reading = self._encryption.keys, decoding("the data key of thread {!r}", thread)
        with reading:
            key_id, wrapped = unpack(stored[ID:])
            arguments = WrappedKey(names.decode(key_id), wrapped), KeyContext(self._keyspace.prefix, thread)
        try:
            data_key = yield Ask(keys.unwrap, keys.aunwrap, arguments)
        except ValueError as error:  # another error of the provider passes unchanged
            raise reading.of(error) from error
        return self._kept(thread, stored, data_key)

    def make(self, thread: str, config: RunnableConfig | None, data_key: bytes = b"") -> Operation[Cipher]:
        """Make and wrap a data key for a new thread, or wrap the data key of the thread that it is a copy of."""
        keys, key_for = self._encryption.keys, self._encryption.key_for
        data_key = data_key or os.urandom(32)
        arguments = data_key, KeyContext(self._keyspace.prefix, thread), key_for(thread, config) if key_for else None
        wrapped = yield Ask(keys.wrap, keys.awrap, arguments)
        stored = os.urandom(ID) + pack([names.encode(wrapped.key_id), wrapped.data])
        return self._kept(thread, stored, data_key)

    def _kept(self, thread: str, stored: bytes, data_key: bytes) -> Cipher:
        until = time.monotonic() + self._encryption.cache_seconds
        cipher = Cipher(stored, data_key, names.encode(thread), until)
        self._ciphers.store(thread, cipher)
        return cipher


def with_key(
    context: Context,
    thread: str,
    make: Callable[[Context], Operation[T]],
    *,
    creates: bool = False,
    config: RunnableConfig | None = None,
) -> Operation[T]:
    """Run an operation on a thread with the thread's cipher in its context. Without `encryption=`, just run it.

    If another process has replaced the thread, this process finds that its data key is another one, and runs the
    operation again.

    Args:
        context: The saver.
        thread: The thread.
        make: Makes the operation.
        creates: True if the operation may create the thread, which then gets a data key.
        config: LangGraph's config, for `key_for`.
    """
    if (data_keys := context.data_keys) is None:
        return (yield from make(context))
    failed: Cipher | None = None
    while True:
        cipher = yield from data_keys.load(thread, failed)
        if cipher is None and creates:
            cipher = yield from data_keys.make(thread, config)
        try:
            result = yield from make(context._replace(cipher=cipher))
        except (KeyMismatch, DecodeError):
            if failed is not None or cipher is (yield from data_keys.load(thread, cipher)):
                raise
            failed = cipher
            context.chunk_cache.forget(context.keyspace.keys(thread).data_key)
        else:
            return result


def stream_with_key(context: Context, thread: str, make: Callable[[Context], Stream[T]]) -> Stream[T]:
    """Stream as `with_key` runs. After the first page nothing is streamed again."""
    if (data_keys := context.data_keys) is None:
        yield from make(context)
        return
    cipher, is_first = (yield from data_keys.load(thread)), True
    while True:
        pump = Pump(make(context._replace(cipher=cipher)))
        try:
            for request in pump:
                with pump:
                    is_first = is_first and not isinstance(request, Page)
                    pump.reply = yield request
        except DecodeError:
            replaced = yield from data_keys.load(thread, cipher)
            if not is_first or cipher is replaced:
                raise
            cipher = replaced
        else:
            return
        finally:
            pump.close()
