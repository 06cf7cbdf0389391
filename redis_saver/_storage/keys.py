"""Providers of keys, and data keys.

An operation loads or makes the data key of its thread, and the process keeps it for a while. A partition of a store,
and a cache, have data keys in the same form.
"""

from __future__ import annotations

import asyncio
import copy
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_core.runnables import RunnableConfig
from typing_extensions import Self

from redis_saver._common import config as configs, names
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.display import error_text, kind_of
from redis_saver._engine.requests import Ask, Command, Operation, T
from redis_saver._engine.runner import run
from redis_saver._engine.stats import Live, Stats
from redis_saver._storage.asking import Questions
from redis_saver._storage.framing import pack, unpack
from redis_saver._storage.sealing import ID, TIME, Cipher, KnownWrites, new_id
from redis_saver.errors import KeyUnavailable, RedisSaverError, decoding_key

OnUnavailable: TypeAlias = Literal["raise", "skip"]
KeyFor: TypeAlias = Callable[[str, RunnableConfig | None], str | None] | str
CACHE_SECONDS = 300.0
MAX_KEYS = 10_000
"""Maximum number of data keys that a process keeps."""
FIELD = b"@key"
"""The field with a data key: its id, then frames of the wrapping key's id, the wrapped key, the name that the provider
was asked for, and a seal of that name. The id begins with the time in milliseconds when the data key was made.

The seal is made with the data key. So it also shows whether the provider has returned the right one. Data keys of
before November 2026 have neither name nor seal."""


class KeyContext(NamedTuple):
    """The owner of a data key. A provider binds the wrapped key to it."""

    prefix: str
    """The prefix of all keys in Redis."""
    kind: str
    """`thread`, `store` or `cache`."""
    name: str
    """The thread, the partition of the store, or empty for a cache."""

    def as_dict(self) -> dict[str, str]:
        """Return it as the encryption context of AWS KMS and others."""
        return {f"redis_saver.{field}": part for field, part in zip(self._fields, self, strict=True)}

    def as_bytes(self) -> bytes:
        """Return it as associated data. Each part has its length before it, so no two contexts are the same bytes."""
        return pack([part.encode("utf-8", "surrogatepass") for part in self])


class WrappedKey(NamedTuple):
    """A data key as it is stored."""

    key_id: str
    """The key that wrapped it."""
    data: bytes
    """The provider's answer."""


class KeyProvider(ABC):
    """Wraps and unwraps data keys: `Keyset`, or a class of yours over a KMS or Vault.

    A saver asks once for each thread and process, and again after `cache_seconds`. It never asks for each value.
    Callers that need the same data key at the same time share one `unwrap`, and its error. The asyncio forms run `wrap`
    and `unwrap` in worker threads, unless a subclass overrides them.

    A provider must not answer by the context alone, such as from a cache: the context of a thread that was deleted and
    made again is the same, but its data key is another one. A wrong answer of `unwrap` is noticed before it is used. A
    wrong answer of `wrap` is noticed only by the next process, which cannot read the data.
    """

    @abstractmethod
    def wrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
        """Wrap a new data key of 32 bytes.

        Args:
            data_key: The data key.
            context: The thread. `unwrap` gets the same.
            name: The name that `key_for` returned, such as a tenant's. None: the primary key.

        Returns:
            This data key, wrapped. `unwrap` must return exactly this data key.

        Raises:
            KeyUnavailable: There is no such key.
        """

    @abstractmethod
    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        """Return the data key.

        Raises:
            KeyUnavailable: The key that wrapped it was destroyed, or is not there.
            ValueError: The wrapped key was changed, or belongs to another thread.
        """

    async def awrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
        """`wrap` for asyncio."""
        return await asyncio.to_thread(self.wrap, data_key, context, name)

    async def aunwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        """`unwrap` for asyncio."""
        return await asyncio.to_thread(self.unwrap, wrapped, context)


class Encryption:
    """The setting `encryption` of a saver or store."""

    def __init__(
        self,
        keys: KeyProvider,
        *,
        key_for: KeyFor | None = None,
        cache_seconds: float = CACHE_SECONDS,
        on_unavailable: OnUnavailable = "raise",
    ) -> None:
        """Use a provider of keys.

        Args:
            keys: A `Keyset`, or a `KeyProvider` of yours.
            key_for: The name of the key, such as a tenant's, or a function that returns it for a new thread from the
                thread's id and LangGraph's config. The config is None in `copy_thread` and `rotate_keys`. If the
                function then returns None, the key keeps its name. A store passes the name of a new partition, and
                None. That name is the first two labels of its namespaces, joined by `/`, such as `memories/user-1`. In
                a label, `%`, `{`, `}` and `/` are percent-encoded. A cache calls no function: it uses the key of the
                name that you write here, or else the primary key.
            cache_seconds: Time for which a process keeps an unwrapped data key. After it, a destroyed key is noticed.
            on_unavailable: What calls over several threads or partitions do if the key of one is unavailable. `"raise"`
                raises `KeyUnavailable`. `"skip"` leaves it out, logs its name, and counts it in `stats()`. A call about
                one thread or partition always raises. So do damaged data, and a provider that fails.

        Raises:
            TypeError, ValueError: An argument is invalid.
        """
        if not isinstance(keys, KeyProvider):
            raise TypeError(f"Encryption: keys is {kind_of(keys)}; write a Keyset or another KeyProvider")
        if key_for is not None and not callable(key_for) and not (isinstance(key_for, str) and key_for):
            raise TypeError(f"Encryption: key_for is {kind_of(key_for)}; write a name, or a function that returns one")
        configs.number("cache_seconds", cache_seconds, 0)
        configs.one_of(Encryption, "on_unavailable", on_unavailable, "raise", "skip")
        self.keys: KeyProvider = keys
        self.key_for: KeyFor | None = key_for
        self.cache_seconds: float = cache_seconds
        self.on_unavailable: OnUnavailable = on_unavailable


class Unavailable(Live, Stats):
    """Count of the threads or partitions that calls skipped."""

    kind = "keys"


def skip_counts(data_keys: DataKeys | None) -> tuple[Unavailable, ...]:
    """Return the count of a saver or store that encrypts, for its stats and telemetry."""
    return () if data_keys is None else (data_keys.skipped,)


class DataKeys:
    """The data keys of a saver's threads, or of a store's partitions."""

    def __init__(self, encryption: Encryption, prefix: str, kind: str) -> None:
        """Start without keys. The kind is that of `KeyContext`.

        Raises:
            TypeError: It is no `Encryption`.
        """
        if not isinstance(encryption, Encryption):
            raise TypeError(f"encryption={kind_of(encryption)}: write encryption=Encryption(keys)")
        self.encryption: Encryption = encryption
        self._prefix: str = prefix
        self.kind: str = kind
        self._reports = kind == "cache"
        """True if errors of the program's own code become ours, for callers that go on without this data key."""
        self.on_unavailable: OnUnavailable = encryption.on_unavailable
        self.keeps: bool = encryption.cache_seconds > 0
        """True if a data key is kept for later operations."""
        self.skipped: Unavailable = Unavailable()
        self._ciphers: BoundedCache[str, Cipher] = BoundedCache(MAX_KEYS)
        self._unwrapped: BoundedCache[tuple[str, bytes], Cipher] = BoundedCache(MAX_KEYS)
        """Ciphers by thread or partition and stored data key, also those of envelopes."""
        self._questions = Questions[Cipher]()
        self._in_cold: BoundedCache[str, Cipher] = BoundedCache(MAX_KEYS)
        """The cipher of each thread's last envelope. A new data key of the thread is wrapped by the same name."""
        self._writes = KnownWrites()

    def reporting(self) -> Self:
        """Return the same data keys for a caller that goes on with others, and reports which ones failed.

        Then each error of the provider, and of `key_for`, is raised as `KeyUnavailable`.
        """
        clone = copy.copy(self)
        clone._reports = True  # noqa: SLF001 - a copy of itself
        return clone

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
        with decoding_key(self.kind, name):
            is_held = held is not None and held.is_current and held.id == stored[:ID]
        return held if is_held else self.keep(name, (yield from self.unwrap(name, stored)))

    def unwrap(self, name: str, stored: bytes) -> Operation[Cipher]:
        """Return the cipher of a stored data key. Asks the provider, unless this process has it.

        Raises:
            KeyUnavailable: The key that wrapped it is not there.
            DecodeError: It was changed, or the provider returned another data key. Nothing was sealed with that.
        """
        keys, reading = self.encryption.keys, decoding_key(self.kind, name)
        with reading:
            key_id, wrapped, *rest = unpack(stored[ID:])
            arguments = WrappedKey(names.decode(key_id), wrapped), KeyContext(self._prefix, self.kind, name)

        def known() -> Cipher | None:
            held = self._unwrapped.get((name, stored))
            return held if held is not None and held.is_current else None

        def learn(data_key: bytes) -> Cipher:
            cipher = self._cipher(name, stored, data_key)
            if rest:
                asked, seal = rest
                _check(cipher, asked, seal)
            self._unwrapped.store((name, stored), cipher)
            return cipher

        if (held := known()) is not None:
            return held
        question = Ask(keys.unwrap, keys.aunwrap, arguments)
        try:
            with self._foreign("the provider of keys", ValueError):
                cipher: Cipher = yield self._questions.request((name, stored), question, known, learn)
        except ValueError as error:
            raise reading.of(error) from error
        return cipher

    def of_envelope(self, name: str, stored: bytes) -> Operation[Cipher]:
        """Return the cipher of a data key that came with a value of cold. Hot may have another one, or none."""
        held = self._ciphers.get(name)
        if held is None or held.argument != stored or not held.is_current:
            held = yield from self.unwrap(name, stored)
        if self._in_cold.get(name) is not held:
            self._in_cold.store(name, held)
        return held

    def note_writes(self, cipher: Cipher, ns: str, checkpoint_id: str, tasks: set[bytes]) -> None:
        """Note tasks of a checkpoint whose pending writes are surely stored (`digests_of`)."""
        self._writes.note(cipher.id, ns, checkpoint_id, tasks)

    def writes_of(self, cipher: Cipher, ns: str, checkpoint_id: str) -> bytes:
        """Return the known tasks with writes at a checkpoint. After a fill, hot has another data key than cold."""
        known = self._writes.of(cipher.id, ns, checkpoint_id)
        in_cold = self._in_cold.get(names.decode(cipher.thread))
        if in_cold is not None and in_cold.id != cipher.id:
            known |= self._writes.of(in_cold.id, ns, checkpoint_id)
        return b"".join(sorted(known))

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
            made = yield from self._wrap(name, os.urandom(32), new_id(), self._asked(name, config))
        held = self._ciphers.get(name)  # another caller may have loaded or made it meanwhile
        return held if held is not None and held.is_current else self.keep(name, made)

    def wrap_anew(
        self, name: str, cipher: Cipher, config: RunnableConfig | None = None, *, replaces: bool = False
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
        with decoding_key(self.kind, name):
            *_, asked, seal = unpack(cipher.argument[ID:])
            _check(cipher, asked, seal)
        key_name = self.name_for(name, cipher.argument, config)
        if replaces:
            return (yield from self._wrap(name, os.urandom(32), new_id(), key_name))
        return (yield from self._wrap(name, cipher.data_key, cipher.id, key_name))

    def name_for(self, name: str, stored: bytes, config: RunnableConfig | None = None) -> str | None:
        """Return the name to ask the provider for when a stored data key is wrapped anew (`wrap_anew`)."""
        with decoding_key(self.kind, name):
            kept = names.decode(unpack(stored[ID:])[2]) or None
        return self._asked(name, config) or kept

    def _asked(self, name: str, config: RunnableConfig | None) -> str | None:
        key_for = self.encryption.key_for
        if key_for is None or isinstance(key_for, str):
            return key_for
        if self.kind == "cache":  # it holds entries of many threads, so no function of one thread can choose its key
            return None
        with self._foreign("key_for"):
            return key_for(name, config)

    def _wrap(self, name: str, data_key: bytes, own_id: bytes, key_name: str | None) -> Operation[Cipher]:
        keys, cipher = self.encryption.keys, self._cipher(name, own_id, data_key)
        arguments = data_key, KeyContext(self._prefix, self.kind, name), key_name
        with self._foreign("the provider of keys"):
            wrapped = yield Ask(keys.wrap, keys.awrap, arguments)
            if not isinstance(wrapped, WrappedKey):
                raise TypeError(f"wrap of {kind_of(keys)} returned {kind_of(wrapped)}; return a WrappedKey")
            asked = names.encode(key_name or "")
            seal = cipher.seal(b"key", *_place_of(cipher, asked))
            cipher.argument += pack([names.encode(wrapped.key_id), wrapped.data, asked, seal])
        return cipher

    @contextmanager
    def _foreign(self, what: str, *passing: type[Exception]) -> Iterator[None]:
        """Run code of the program, whose errors pass unchanged unless this reports them (`reporting`).

        A cache always reports them, because it may do without its entries.
        """
        try:
            yield
        except Exception as error:
            if not self._reports or isinstance(error, (RedisSaverError, *passing)):
                raise
            raise KeyUnavailable(f"{what} failed: {error_text(error)}") from error

    def _cipher(self, name: str, stored: bytes, data_key: bytes) -> Cipher:
        return Cipher(stored, data_key, names.encode(name), time.monotonic() + self.encryption.cache_seconds)

    def keep(self, name: str, cipher: Cipher) -> Cipher:
        """Remember the cipher of a thread or partition."""
        self._ciphers.store(name, cipher)
        return cipher


def run_asking(operation: Operation[T]) -> T:
    """Run an operation that only asks the provider, without a driver."""

    def answer(question: Any) -> Any:
        return question.ask(*question.arguments)

    return run(operation, answer)


def _place_of(cipher: Cipher, asked: bytes) -> tuple[bytes, ...]:
    return b"name of the key", cipher.thread, asked


def _check(cipher: Cipher, asked: bytes, seal: bytes) -> None:
    """Check that a cipher has the data key that was wrapped, and the name of its key.

    Raises:
        ValueError: It has another one.
    """
    try:
        cipher.open(seal, *_place_of(cipher, asked))
    except ValueError:
        raise ValueError(
            "the provider returned another data key than the one that it wrapped, or the stored key was changed. The "
            "data key was not used. If the provider has a cache, it must go by the wrapped key, not by the context"
        ) from None


def wrapped_by(stored: bytes) -> str:
    """Return the id of the key that wrapped a stored data key."""
    return names.decode(unpack(stored[ID:])[0])


def made_at(stored: bytes) -> float:
    """Return the time when a stored data key was made, in seconds since 1970."""
    return int.from_bytes(stored[:TIME], "big") / 1000
