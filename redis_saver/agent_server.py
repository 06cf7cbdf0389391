"""A checkpointer and a store for LangGraph's Agent Server (`langgraph dev`, `langgraph up`, self-hosted).

Install the package in the server's environment, and name both in `langgraph.json` by their dotted paths:

    {
      "dependencies": [".", "redis-saver"],
      "checkpointer": {"path": "redis_saver.agent_server.checkpointer"},
      "store": {"path": "redis_saver.agent_server.store"}
    }

The server also reads `./file.py:name` for a file, but not `module:name`. Environment variables have the settings:

    REDIS_URL                          URL of the server for both, as for `RedisSaver.from_conn_string`; required
    REDIS_SAVER_PREFIX                 beginning of all keys; by default the saver's
    REDIS_SAVER_TTL                    time from a thread's last write until it expires, such as 7d or 90m; by default
                                       never
    REDIS_SAVER_REFRESH_ON_READ        true: reads renew the TTL of a thread, too; by default false
    REDIS_SAVER_KEEP_LAST              number of newest checkpoints to keep per namespace, such as 100; by default all
    REDIS_SAVER_OWNERSHIP              run: a run owns its thread from its first read, so later writes of an older run
                                       are refused; by default nobody owns threads
    REDIS_SAVER_STORE_TTL              time from an item's last put or read until it expires; by default never
    REDIS_SAVER_STORE_REFRESH_ON_READ  false: reads do not renew the TTL of an item; by default true, as in LangGraph's
                                       stores
    REDIS_SAVER_STORE_EMBED            model that embeds items, such as openai:text-embedding-3-small (extra `vectors`,
                                       and LangChain with the model's package); by default none, and then searches have
                                       no `query`
    REDIS_SAVER_STORE_DIMS             number of dimensions of the vectors, such as 1536; required with a model
    REDIS_SAVER_STORE_FIELDS           fields of items to embed, such as text,meta.title; by default the whole item
    LANGGRAPH_AES_KEY                  16, 24 or 32 bytes, to encrypt values and metadata (needs pycryptodome)
    REDIS_SAVER_KEYS                   keys to encrypt threads with (`redis_saver.encryption`), such as 2026-11=BASE64;
                                       the checkpointer then does not use LANGGRAPH_AES_KEY
    REDIS_SAVER_ENCRYPTION             LANGGRAPH_AES_KEY: without REDIS_SAVER_KEYS, encrypt threads in the same way,
                                       with LANGGRAPH_AES_KEY as the key of that id; by default it encrypts each value

An empty variable is an error. `REDIS_URI` is not used here: it names the server's own queue. `checkpointer.ttl` and
`store.ttl` in `langgraph.json` are not used here either: the server reads them for its own savers and stores.
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
from redis_saver._store.index_config import RedisIndexConfig
from redis_saver._store.store import AsyncRedisStore
from redis_saver.encryption import from_environment

__all__ = ["checkpointer", "store"]


@asynccontextmanager
async def checkpointer() -> AsyncIterator[AsyncRedisSaver]:
    """Open an `AsyncRedisSaver` with the environment's settings, for one event loop. The end of the block closes it.

    Raises:
        ValueError: A variable is missing or invalid. The message names it, and says what to write.
        ImportError: LANGGRAPH_AES_KEY needs pycryptodome, or encryption with keys needs cryptography, which is not
            installed.
        UnsupportedServer: The server lacks what the saver needs.
    """
    settings: dict[str, Any] = {"ttl": _ttl("REDIS_SAVER", refreshes=False), "history": _history(), **_shared()}
    if encryption := from_environment():
        settings |= {"encryption": encryption, "serde": None}
    async with _kind().from_conn_string(_url(), **settings) as saver:
        await saver.asetup()
        _pass_histories_on()
        yield saver


@asynccontextmanager
async def store() -> AsyncIterator[AsyncRedisStore]:
    """Open an `AsyncRedisStore` with the environment's settings, for one event loop. The end of the block closes it.

    Raises:
        ValueError: A variable is missing or invalid. The message names it, and says what to write.
        ImportError: LANGGRAPH_AES_KEY needs pycryptodome, or REDIS_SAVER_STORE_EMBED needs packages, which are not
            installed.
        UnsupportedServer: The server lacks what the store needs.
    """
    settings: dict[str, Any] = {"ttl": _ttl("REDIS_SAVER_STORE", refreshes=True), "index": _index(), **_shared()}
    async with AsyncRedisStore.from_conn_string(_url(), **settings) as opened:
        await opened.asetup()
        yield opened


class SaverOfRuns(AsyncRedisSaver):
    """An `AsyncRedisSaver` whose runs own their threads, from a run's first read until the next run begins.

    The server names a run by `run_id`. If a run continues after the next one has begun, its writes are refused
    (`NotOwner`). Calls without a `run_id`, such as an update of the state over HTTP, are not checked. The first read of
    a run takes one more round trip.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """Take the arguments of `AsyncRedisSaver`."""
        super().__init__(*arguments, **settings)
        self._nonce = os.urandom(8)
        self._tokens: BoundedCache[tuple[str, str, str], str] = BoundedCache(_MAX_RUNS)
        """Owner tokens by thread, run and attempt."""

    def _get_tuple_gen(self, config: RunnableConfig) -> Generator[Any, Any, CheckpointTuple | None]:
        run = _run_of(config)
        if run and (key := (configs.thread_id(config), *run)) not in self._tokens:
            name = " ".join(run).encode("utf-8", "surrogatepass")
            nonce = sha256(self._nonce + name).hexdigest()[:16]  # so that two parallel reads take the thread once
            # Nothing renews or releases a lease here, so the owner has none.
            terms = Terms.of(key[0], "1s", "take", None, f"run {run[0]}", run[0])._replace(lease=0)
            record = yield from taken(self._rules, terms, nonce)
            self._tokens.store(key, record.token)
        return (yield from super()._get_tuple_gen(config))

    def _put_gen(self, config: RunnableConfig, *arguments: Any) -> Generator[Any, Any, RunnableConfig]:
        return super()._put_gen(self._as_owner(config), *arguments)

    def _put_writes_gen(self, config: RunnableConfig, *arguments: Any) -> Generator[Any, Any, None]:
        return super()._put_writes_gen(self._as_owner(config), *arguments)

    def _as_owner(self, config: RunnableConfig) -> RunnableConfig:
        if (run := _run_of(config)) is None or not (token := self._tokens.get((configs.thread_id(config), *run))):
            return config
        return {**config, "configurable": {**configs.configurable(config), configs.OWNER_KEY: token}}


_MAX_RUNS = 10_000
"""Maximum number of remembered runs. A forgotten run takes its thread again at its next read."""


def _run_of(config: RunnableConfig) -> tuple[str, str] | None:
    """Return the run and the attempt of a call, or None.

    Depending on its release the server names the run in one of three places. A process may handle several attempts of
    one run.
    """
    metadata = config.get("metadata") or {}
    places = (config, metadata, configs.configurable(config))
    run = next((place["run_id"] for place in places if place.get("run_id")), None)
    return None if run is None else (str(run), str(metadata.get("run_attempt")))


def _kind() -> type[AsyncRedisSaver]:
    ownership = os.environ.get("REDIS_SAVER_OWNERSHIP")
    if ownership not in (None, "run"):
        raise _wrong("REDIS_SAVER_OWNERSHIP", "write run, or leave it out")
    return SaverOfRuns if ownership else AsyncRedisSaver


def _wrong(name: str, remedy: str) -> ValueError:
    return ValueError(f"{name}={shown(os.environ.get(name))}: {remedy}")


def _url() -> str:
    if not (url := os.environ.get("REDIS_URL")):
        raise ValueError("REDIS_URL is not set: set it to redis://host:port/0, in the environment or in langgraph.json")
    return url


def _shared() -> dict[str, Any]:
    """Return the common settings of saver and store."""
    serde = EncryptedSerializer.from_pycryptodome_aes() if "LANGGRAPH_AES_KEY" in os.environ else None
    prefix = {"prefix": os.environ["REDIS_SAVER_PREFIX"]} if "REDIS_SAVER_PREFIX" in os.environ else {}
    return {"serde": serde, **prefix}


def _pass_histories_on() -> None:
    """Make Agent Server's adapter ask the saver for the histories of `DeltaChannel`s.

    The adapter of langgraph-api 0.16 forwards all other calls, but inherits LangGraph's default for this one. The
    default reads one ancestor per round trip, back to the last snapshot. In a long thread, that takes hundreds of round
    trips at the start of each run. Other adapters, and those that override the method, are not changed.
    """
    adapter: Any = getattr(sys.modules.get("langgraph_api._checkpointer._adapter"), "_CustomCheckpointerAdapter", None)
    default = BaseCheckpointSaver.aget_delta_channel_history
    is_known = getattr(adapter, "aget_delta_channel_history", None) is default
    if not is_known or "_inner" not in adapter.__init__.__code__.co_names:
        return

    async def aget_delta_channel_history(
        self: Any, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        histories: Mapping[str, DeltaChannelHistory] = await self._inner.aget_delta_channel_history(
            config=config, channels=channels
        )
        return histories

    adapter.aget_delta_channel_history = aget_delta_channel_history


def _ttl(prefix: str, *, refreshes: bool) -> ttls.TTL:
    """Return the TTL of two variables. `refreshes` is the default of the second."""
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
    """Return how to embed items, or None for no embedding."""
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
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= configs.MAX_KEEP_LAST:
        raise _wrong("REDIS_SAVER_KEEP_LAST", "write a number from 1 to 1000, such as 100; leave it out to keep all")
    return {"keep_last": int(text)}
