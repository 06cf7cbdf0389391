"""A checkpointer and a store for LangGraph's Agent Server (`langgraph dev`, `langgraph up`, self-hosted).

The environment has their settings.

Name them in `langgraph.json` by their dotted paths, and have the package in the server's environment:

    {
      "dependencies": [".", "redis-saver"],
      "checkpointer": {"path": "redis_saver.agent_server.checkpointer"},
      "store": {"path": "redis_saver.agent_server.store"}
    }

The server reads `module.name` for what is installed and `./file.py:name` for a file; it does not find `module:name`.

    REDIS_URL                          the server to keep both on, in any form of `RedisSaver.from_conn_string`;
                                       required
    REDIS_SAVER_PREFIX                 the beginning of all keys; by default the saver's
    REDIS_SAVER_TTL                    how long after its last write a thread expires, such as 7d or 90m; by default
                                       never
    REDIS_SAVER_REFRESH_ON_READ        true: reading a thread moves its deadline too; by default false
    REDIS_SAVER_KEEP_LAST              number of newest checkpoints to keep of each namespace, such as 100; by default
                                       all
    REDIS_SAVER_OWNERSHIP              run: a run owns its thread from when it first reads it, so what an older run
                                       still writes is refused; by default nobody owns threads
    REDIS_SAVER_STORE_TTL              how long after its last put or read an item of the store expires; by default
                                       never
    REDIS_SAVER_STORE_REFRESH_ON_READ  false: reading an item does not move its deadline; by default true, as in
                                       LangGraph's stores
    REDIS_SAVER_STORE_EMBED            the model that embeds items, such as openai:text-embedding-3-small (extra
                                       `vectors`, and LangChain with the model's package); by default none, so
                                       searches have no `query`
    REDIS_SAVER_STORE_DIMS             the number of dimensions of its vectors, such as 1536; required with it
    REDIS_SAVER_STORE_FIELDS           the fields of items to embed, such as text,meta.title; by default all of an item
    LANGGRAPH_AES_KEY                  16, 24 or 32 bytes: values and metadata are stored encrypted (needs
                                       pycryptodome)

A variable that is set to nothing is an error, not a default. (`REDIS_URI` is another thing: the server's own queue. So
are `checkpointer.ttl` and `store.ttl` in `langgraph.json`, which the server reads for savers and stores of its own.)
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from redis_saver._checkpoint.ownership import Terms, taken
from redis_saver._checkpoint.saver import AsyncRedisSaver
from redis_saver._common import config as configs, ttl as ttls
from redis_saver._common.bounded_cache import BoundedCache
from redis_saver._common.display import shown
from redis_saver._engine.requests import T
from redis_saver._store.index_config import RedisIndexConfig
from redis_saver._store.store import AsyncRedisStore

__all__ = ["checkpointer", "store"]


@asynccontextmanager
async def checkpointer() -> AsyncIterator[AsyncRedisSaver]:
    """Open an `AsyncRedisSaver` as the environment describes it, for one event loop. It closes at the end.

    Raises:
        ValueError: A variable is missing or makes no sense; the message says which and why.
        ImportError: LANGGRAPH_AES_KEY is set, and pycryptodome is not installed.
        UnsupportedServer: The server lacks what the saver needs.
    """
    settings: dict[str, Any] = {"ttl": _ttl("REDIS_SAVER", refreshes=False), "history": _history(), **_shared()}
    async with _kind().from_conn_string(_url(), **settings) as saver:
        await saver.asetup()
        _pass_histories_on()
        yield saver


@asynccontextmanager
async def store() -> AsyncIterator[AsyncRedisStore]:
    """Open an `AsyncRedisStore` as the environment describes it, for one event loop. It closes at the end.

    Raises:
        ValueError: A variable is missing or makes no sense; the message says which and why.
        ImportError: LANGGRAPH_AES_KEY is set, and pycryptodome is not installed; or REDIS_SAVER_STORE_EMBED, and what
            it needs is not.
        UnsupportedServer: The server lacks what the store needs.
    """
    settings: dict[str, Any] = {"ttl": _ttl("REDIS_SAVER_STORE", refreshes=True), "index": _index(), **_shared()}
    async with AsyncRedisStore.from_conn_string(_url(), **settings) as found:
        await found.asetup()
        yield found


class SaverOfRuns(AsyncRedisSaver):
    """An `AsyncRedisSaver` whose runs own their threads: each from its first read on, until the next run begins.

    A run is what the server names by `run_id`. One that was thought dead, and goes on after the next has begun, is
    refused (`NotOwner`). A call without a `run_id`, such as an update of the state over HTTP, is let through. Cost: one
    round trip more at the first read of a run.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """Take the arguments of `AsyncRedisSaver`."""
        super().__init__(*arguments, **settings)
        self._nonce = os.urandom(8)
        self._tokens: BoundedCache[tuple[str, str, str], str] = BoundedCache(_MAX_RUNS)
        """Owner tokens by thread, run and attempt. A run whose token was forgotten takes its thread again."""

    def _get_tuple_gen(self, config: RunnableConfig) -> Generator[Any, Any, CheckpointTuple | None]:
        found, run = super()._get_tuple_gen(config), _run_of(config)
        if run is None or (configs.thread_id(config), *run) in self._tokens:
            return found
        return self._begun(configs.thread_id(config), *run, found)

    def _begun(self, thread: str, run: str, attempt: str, found: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        named = f"{run} {attempt}".encode("utf-8", "surrogatepass")
        nonce = sha256(self._nonce + named).hexdigest()[:16]  # two reads at once take the thread once
        terms = Terms.of(thread, "1s", "take", None, f"run {run}", run)
        record = yield from taken(self._rules, terms, nonce)
        self._tokens.store((thread, run, attempt), record.token)
        return (yield from found)

    def _put_gen(self, config: RunnableConfig, *arguments: Any) -> Generator[Any, Any, RunnableConfig]:
        return super()._put_gen(self._as_owner(config), *arguments)

    def _put_writes_gen(self, config: RunnableConfig, *arguments: Any) -> Generator[Any, Any, None]:
        return super()._put_writes_gen(self._as_owner(config), *arguments)

    def _as_owner(self, config: RunnableConfig) -> RunnableConfig:
        if (run := _run_of(config)) is None or not (token := self._tokens.get((configs.thread_id(config), *run))):
            return config
        return {**config, "configurable": {**configs.configurable(config), configs.OWNER_KEY: token}}


_MAX_RUNS = 10_000
"""Maximum number of remembered runs. A forgotten run takes its thread again when it reads it."""


def _run_of(config: RunnableConfig) -> tuple[str, str] | None:
    """Return the run and the attempt that a call belongs to; None if it belongs to none.

    The server names the run in one of these places, by release and attempt. A later attempt may come back to a process
    that knows an earlier one.
    """
    metadata = config.get("metadata") or {}
    places = (config, metadata, configs.configurable(config))
    found = next((place["run_id"] for place in places if place.get("run_id")), None)
    return None if found is None else (str(found), str(metadata.get("run_attempt")))


def _kind() -> type[AsyncRedisSaver]:
    ownership = os.environ.get("REDIS_SAVER_OWNERSHIP")
    if ownership not in (None, "run"):
        raise _wrong("REDIS_SAVER_OWNERSHIP", "write run, or leave it out")
    return SaverOfRuns if ownership else AsyncRedisSaver


def _wrong(name: str, remedy: str) -> ValueError:
    return ValueError(f"{name}={shown(os.environ.get(name))}: {remedy}")


def _url() -> str:
    if not (url := os.environ.get("REDIS_URL")):
        raise ValueError(
            "REDIS_URL is not set: set it to redis://[user:password@]host:port/0, in the server's environment or by "
            '"env" in langgraph.json'
        )
    return url


def _shared() -> dict[str, Any]:
    """Return the settings of both."""
    serde = EncryptedSerializer.from_pycryptodome_aes() if "LANGGRAPH_AES_KEY" in os.environ else None
    prefix = {"prefix": os.environ["REDIS_SAVER_PREFIX"]} if "REDIS_SAVER_PREFIX" in os.environ else {}
    return {"serde": serde, **prefix}


def _pass_histories_on() -> None:
    """Have Agent Server's adapter ask the saver for the histories of `DeltaChannel`s, where it does not by itself.

    The adapter of langgraph-api 0.16 inherits LangGraph's default, which reads one ancestor a round trip, back to the
    last snapshot: in a long thread hundreds at the start of each run. All other calls it passes on. An adapter that has
    its own method, or is not what is known here, is left alone.
    """
    adapter: Any = getattr(sys.modules.get("langgraph_api._checkpointer._adapter"), "_CustomCheckpointerAdapter", None)
    default = BaseCheckpointSaver.aget_delta_channel_history
    is_known = getattr(adapter, "aget_delta_channel_history", None) is default
    if not is_known or "_inner" not in adapter.__init__.__code__.co_names:
        return

    async def aget_delta_channel_history(
        self: Any, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        found: Mapping[str, DeltaChannelHistory] = await self._inner.aget_delta_channel_history(
            config=config, channels=channels
        )
        return found

    adapter.aget_delta_channel_history = aget_delta_channel_history


def _ttl(prefix: str, *, refreshes: bool) -> ttls.TTL:
    """Return the TTL that two variables set. `refreshes` is the default of the second."""
    name = f"{prefix}_REFRESH_ON_READ"
    refresh = os.environ.get(name, str(refreshes)).lower()
    if refresh not in ("true", "false"):
        raise _wrong(name, "write true or false")
    ttl: dict[str, float | bool | None] = {"default_ttl": None, "refresh_on_read": refresh == "true"}
    if (text := os.environ.get(f"{prefix}_TTL")) is not None:
        parsed = ttls.parse(text, name=f"{prefix}_TTL")
        ttl["default_ttl"] = (parsed.milliseconds or 0) / 60_000
    return ttl


def _index() -> RedisIndexConfig | None:
    """Return how items are embedded; None if they are not."""
    embed, dims, fields = (os.environ.get(f"REDIS_SAVER_STORE_{name}") for name in ("EMBED", "DIMS", "FIELDS"))
    if embed is dims is fields is None:
        return None
    if embed is None or ":" not in embed:
        raise _wrong("REDIS_SAVER_STORE_EMBED", "write a provider and a model, such as openai:text-embedding-3-small")
    if dims is None or not re.fullmatch("[0-9]+", dims):
        raise _wrong("REDIS_SAVER_STORE_DIMS", "write the number of dimensions of the model's vectors, such as 1536")
    index: RedisIndexConfig = {"embed": embed, "dims": int(dims)}
    if fields is not None:
        index["fields"] = paths = [field.strip() for field in fields.split(",")]
        if "" in paths:
            raise _wrong("REDIS_SAVER_STORE_FIELDS", "write paths with commas between them, such as text,meta.title")
    return index


def _history() -> configs.History:
    if (text := os.environ.get("REDIS_SAVER_KEEP_LAST")) is None:
        return "all"
    if not re.fullmatch("[0-9]+", text):
        raise _wrong("REDIS_SAVER_KEEP_LAST", "write a number of checkpoints, such as 100; leave it out to keep all")
    return {"keep_last": configs.keep_last(int(text), f"REDIS_SAVER_KEEP_LAST={shown(text)}")}
