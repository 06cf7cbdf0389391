"""One interface to both flavours of savers and stores, so that each test of behaviour is written once.

All its methods are awaited.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from redis_saver import AsyncRedisSaver, AsyncRedisStore, AsyncTieredSaver, AsyncTieredStore, RedisSaver, RedisStore
from redis_saver import TieredSaver, TieredStore
from redis_saver._client.clients import connect
from redis_saver.encryption import Encryption, Keyset
from tests.support.methods import STREAMS

KEYS = {"2026-11": bytes(range(32)), "tenant": bytes(range(32, 64))}
"""Keys of encrypted savers, the primary key first."""


def encryption(**options: Any) -> Encryption:
    """Return the setting of another process with the same keys."""
    return Encryption(Keyset(KEYS), **options)


class Uniform:
    """Adapter that calls a saver in its flavour.

    `await uniform.put(...)` calls `put` of a RedisSaver, or `aput` of an AsyncRedisSaver. Streams are returned as
    lists.
    """

    def __init__(
        self,
        saver: RedisSaver
        | AsyncRedisSaver
        | TieredSaver
        | AsyncTieredSaver
        | RedisStore
        | AsyncRedisStore
        | TieredStore
        | AsyncTieredStore,
    ) -> None:
        self.saver = saver
        self.native_async = isinstance(saver, (AsyncRedisSaver, AsyncTieredSaver, AsyncRedisStore, AsyncTieredStore))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in STREAMS:
            return lambda *args, **kwargs: self._drain(name, args, kwargs)
        if self.native_async:
            return getattr(self.saver, "a" + name)
        return lambda *args, **kwargs: self._plain(name, args, kwargs)

    def own(self, thread: str = "thread", **options: Any) -> Block:
        return Block(self.saver.own(thread, **options), self.native_async)

    async def _plain(self, name: str, args: Any, kwargs: Any) -> Any:
        return getattr(self.saver, name)(*args, **kwargs)

    async def _drain(self, name: str, args: Any, kwargs: Any) -> list[Any]:
        if self.native_async:
            return [item async for item in getattr(self.saver, "a" + name)(*args, **kwargs)]
        return list(getattr(self.saver, name)(*args, **kwargs))


def over(hot: Uniform, cold: Any, **options: Any) -> Uniform:
    """Make a saver over two tiers in the flavour of the hot one."""
    kind: Any = AsyncTieredSaver if hot.native_async else TieredSaver
    return Uniform(kind(hot.saver, cold, **options))


async def called(uniform: Any, graph: Any, method: str, *args: Any, **options: Any) -> Any:
    """Call a method of a graph in the saver's flavour, such as `invoke` or `get_state`."""
    if uniform.native_async:
        return await getattr(graph, "a" + method)(*args, **options)
    return getattr(graph, method)(*args, **options)


class Block:
    """A block of a saver, such as `own`, in its flavour. A blocking one may wait, so it is entered on an OS thread."""

    def __init__(self, block: Any, native_async: bool) -> None:
        self.block, self.is_async = block, native_async

    async def __aenter__(self) -> Any:
        return await (self.block.__aenter__() if self.is_async else asyncio.to_thread(self.block.__enter__))

    async def __aexit__(self, *error: Any) -> None:
        await (self.block.__aexit__(*error) if self.is_async else asyncio.to_thread(self.block.__exit__, *error))


_shared: dict[tuple[int, str], Any] = {}


def shared(url: str) -> Any:
    """Return a blocking client of this process, as making one takes longer than most tests, above all in a cluster."""
    if (os.getpid(), url) not in _shared:
        _shared[os.getpid(), url] = connect(url, asynchronous=False)
    return _shared[os.getpid(), url]


class Target:
    """A server and a flavour. It makes savers with a prefix of the test's own, and reads raw keys."""

    def __init__(self, name: str, flavour: str, url: str, prefix: str, *, is_encrypted: bool = False) -> None:
        self.name, self.flavour, self.url, self.prefix, self.is_encrypted = name, flavour, url, prefix, is_encrypted
        self.raw = shared(url)
        self._clients: list[Any] = []
        self._of_cluster: Any = None

    def client(self, *, url: str | None = None, **options: Any) -> Any:
        """Make a client of the target, or of a URL that leads there. It is closed with the target."""
        client = connect(url or self.url, asynchronous=self.flavour == "async", **options)
        self._clients.append(client)
        return client

    def elsewhere(self, url: str | None = None, flavour: str | None = None) -> Target:
        """Return a target with the same settings that has another URL, or another flavour."""
        return Target(self.name, flavour or self.flavour, url or self.url, self.prefix, is_encrypted=self.is_encrypted)

    def uniform(self, *, client: Any = None, **options: Any) -> Uniform:
        """Make a saver as in another process."""
        kind = AsyncRedisSaver if self.flavour == "async" else RedisSaver
        return Uniform(kind(client or self._client(), **self.settings(options)))

    def _client(self) -> Any:
        """Return a new client. In a cluster savers share one, as each new one asks all nodes first (20 ms)."""
        if self.name != "cluster":
            return self.client()
        if self._of_cluster is None:
            self._of_cluster = self.client() if self.flavour == "async" else self.raw
        return self._of_cluster

    def blocking(self, **options: Any) -> RedisSaver:
        """Make a saver of another process, which blocks in each flavour."""
        return RedisSaver(self.raw, **self.settings(options))

    def store(self, *, client: Any = None, **options: Any) -> Uniform:
        """Make a store with its own mirror, as in another process."""
        kind = AsyncRedisStore if self.flavour == "async" else RedisStore
        return Uniform(kind(client or self._client(), **self.settings(options)))

    def settings(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a saver, a store or a cache of this test, with these options."""
        encrypting = {"encryption": encryption()} if self.is_encrypted else {}
        return {"prefix": self.prefix, **encrypting, **options}

    def keys(self) -> list[bytes]:
        """Return all keys with the test's prefix, on all nodes."""
        return sorted(self.raw.scan_iter(match=f"{self.prefix}*", count=1000))

    async def close(self) -> None:
        for client in self._clients:
            if hasattr(client, "aclose"):
                await client.aclose()
            else:
                client.close()
