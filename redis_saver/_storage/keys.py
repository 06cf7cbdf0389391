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
ATTEMPTS = 3
"""Maximum number of attempts. Several callers of this process may make a data key for a thread at the same time."""
FIELD = b"@key"
"""The field with a data key: its id, then frames of the wrapping key's id, the wrapped key, the name that the provider
was asked for, and a seal of that name. The id begins with the time in milliseconds when the data key was made."""
_TIME = 6
"""Size of that time in bytes."""


class DataKeys:
    """The data keys of a saver's threads, or of a store's partitions."""

    def __init__(self, encryption: Encryption, prefix: str, kind: str) -> None:
        """Start without keys. The kind is that of `KeyContext`."""
        self._encryption, self._prefix = encryption, prefix
        self.kind: str = kind
        self._ciphers: BoundedCache[str, Cipher] = BoundedCache(MAX_KEYS)
        self._of_envelopes: BoundedCache[tuple[str, bytes], Cipher] = BoundedCache(MAX_KEYS)
        """Ciphers of envelopes, by thread and stored data key."""
        self._in_cold: BoundedCache[str, Cipher] = BoundedCache(MAX_KEYS)
        """The cipher of each thread's last envelope. A new data key of the thread is wrapped by the same name."""

    def load(self, name: str, key: bytes, failed: Cipher | None = None) -> Operation[Cipher | None]:
        """Return the cipher of a thread or partition, or None if it has no data key.

        Costs a round trip and a question to the provider, unless this process has the data key.

        Args:
            name: Its name.
            key: The hash with its `@key`.
            failed: The cipher that did not open or seal its data. The data key is read again.
        """
        held = self._ciphers.get(name)
        if held is not None and failed is None and held.is_current:
            return held
        stored = yield Command(("HGET", key, FIELD), (key,))
        if stored is None:
            if self._ciphers.get(name) is held:  # else another caller has loaded or made one meanwhile
                self._ciphers.forget(name)
            return None
        if held is not None and held.is_current and held.id == stored[:ID]:
            return held
        return self.keep(name, (yield from self.unwrap(name, stored)))

    def unwrap(self, name: str, stored: bytes) -> Operation[Cipher]:
        """Return the cipher of a stored data key."""
        keys, reading = self._encryption.keys, decoding(f"the data key of {self.kind} {{!r}}", name)
        with reading:
            key_id, wrapped, *_ = unpack(stored[ID:])
            arguments = WrappedKey(names.decode(key_id), wrapped), KeyContext(self._prefix, self.kind, name)
        try:
            data_key = yield Ask(keys.unwrap, keys.aunwrap, arguments)
        except ValueError as error:  # another error of the provider passes unchanged
            raise reading.of(error) from error
        return self._cipher(name, stored, data_key)

    def of_envelope(self, name: str, stored: bytes) -> Operation[Cipher]:
        """Return the cipher of a data key that came with a value of cold. Hot may have another one, or none."""
        held = self._ciphers.get(name)
        if held is None or held.argument != stored or not held.is_current:
            held = self._of_envelopes.get((name, stored))
        if held is None or not held.is_current:
            held = yield from self.unwrap(name, stored)
            self._of_envelopes.store((name, stored), held)
        if self._in_cold.get(name) is not held:
            self._in_cold.store(name, held)
        return held

    def copy(self, source: str, key: bytes, target: str) -> Operation[None]:
        """Make a data key for a copy whose records are sealed anew. The provider wraps it by the source's name."""
        cipher = (yield from self.load(source, key)) or self._in_cold.get(source)
        if cipher is not None:
            self.keep(target, (yield from self.wrap_anew(target, cipher, replaces=True)))

    def make(self, name: str, config: RunnableConfig | None) -> Operation[Cipher]:
        """Make and wrap a data key for a new thread or partition.

        If cold has the thread, the name that the provider was asked for stays, unless `key_for` chooses another one.
        """
        if (in_cold := self._in_cold.get(name)) is not None:
            made = yield from self.wrap_anew(name, in_cold, config, replaces=True)
        else:
            made = yield from self._wrap(name, os.urandom(32), _new_id(), self._asked(name, config))
        held = self._ciphers.get(name)  # another caller may have loaded or made it meanwhile
        return held if held is not None and held.is_current else self.keep(name, made)

    def wrap_anew(
        self,
        name: str,
        cipher: Cipher,
        config: RunnableConfig | None = None,
        *,
        replaces: bool = False,
    ) -> Operation[Cipher]:
        """Wrap the data key of a thread or partition as the provider would wrap it now.

        `key_for` chooses the name to ask for. If it chooses none, or there is no `key_for`, the name stays. The result
        is not kept.

        Args:
            name: Its name.
            cipher: Its cipher, or that of the thread that it is a copy of.
            config: LangGraph's config, for `key_for`.
            replaces: True to make a new data key.
        """
        with decoding(f"the data key of {self.kind} {{!r}}", name):
            *_, asked, seal = unpack(cipher.argument[ID:])
            cipher.open(seal, *_place_of(cipher, asked))
            key_name = self.name_for(name, cipher.argument, config)
        if replaces:
            return (yield from self._wrap(name, os.urandom(32), _new_id(), key_name))
        return (yield from self._wrap(name, cipher.data_key, cipher.id, key_name))

    def name_for(self, name: str, stored: bytes, config: RunnableConfig | None = None) -> str | None:
        """Return the name to ask the provider for when a stored data key is wrapped anew (`wrap_anew`)."""
        return self._asked(name, config) or names.decode(unpack(stored[ID:])[2]) or None

    def _asked(self, name: str, config: RunnableConfig | None) -> str | None:
        key_for = None if self.kind == "cache" else self._encryption.key_for
        return key_for(name, config) if key_for else None

    def _wrap(self, name: str, data_key: bytes, own_id: bytes, key_name: str | None) -> Operation[Cipher]:
        keys, asked = self._encryption.keys, names.encode(key_name or "")
        wrapped = yield Ask(keys.wrap, keys.awrap, (data_key, KeyContext(self._prefix, self.kind, name), key_name))
        cipher = self._cipher(name, own_id, data_key)
        seal = cipher.seal(b"key", *_place_of(cipher, asked))
        cipher.argument += pack([names.encode(wrapped.key_id), wrapped.data, asked, seal])
        return cipher

    def _cipher(self, name: str, stored: bytes, data_key: bytes) -> Cipher:
        return Cipher(stored, data_key, names.encode(name), time.monotonic() + self._encryption.cache_seconds)

    def keep(self, name: str, cipher: Cipher) -> Cipher:
        """Remember the cipher of a thread or partition."""
        self._ciphers.store(name, cipher)
        return cipher


def _new_id() -> bytes:
    return (time.time_ns() // 10**6).to_bytes(_TIME, "big") + os.urandom(ID - _TIME)


def _place_of(cipher: Cipher, asked: bytes) -> tuple[bytes, ...]:
    return b"name of the key", cipher.thread, asked


def wrapped_by(stored: bytes) -> str:
    """Return the id of the key that wrapped a stored data key."""
    return names.decode(unpack(stored[ID:])[0])


def made_at(stored: bytes) -> float:
    """Return the time when a stored data key was made, in seconds since 1970."""
    return int.from_bytes(stored[:_TIME], "big") / 1000


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
    key, attempts = key or context.keyspace.keys(thread).data_key, ATTEMPTS
    cipher = yield from data_keys.load(thread, key)
    while True:
        if cipher is None and creates:
            cipher = yield from data_keys.make(thread, config)
        try:
            result = yield from make(context.with_cipher(cipher))
        except (KeyMismatch, DecodeError):
            attempts -= 1
            failed, cipher = cipher, (yield from data_keys.load(thread, key, cipher))
            if not attempts or cipher is failed:
                raise
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
