"""A checkpointer for LangGraph's Agent Server (`langgraph dev`, `langgraph up`, self-hosted), set by the environment.

Name it in `langgraph.json` by its dotted path, and have the package in the server's environment:

    {"dependencies": [".", "redis-saver"], "checkpointer": {"path": "redis_saver.agent_server.checkpointer"}}

The server reads `module.name` for what is installed and `./file.py:name` for a file; it does not find `module:name`.

    REDIS_URL                    the server to keep checkpoints on, in any form of `RedisSaver.from_conn_string`; required
    REDIS_SAVER_PREFIX           the beginning of all keys; by default the saver's
    REDIS_SAVER_TTL              how long after its last write a thread expires, such as 7d or 90m; by default never
    REDIS_SAVER_REFRESH_ON_READ  true: reading a thread moves its deadline too; by default false
    REDIS_SAVER_KEEP_LAST        keep the newest so many checkpoints of each namespace, such as 100; by default all
    LANGGRAPH_AES_KEY            16, 24 or 32 bytes: values and metadata are stored encrypted (needs pycryptodome)

A variable that is set to nothing is an error, not a default. (`REDIS_URI` is another thing: the server's own queue. So is
`checkpointer.ttl` in `langgraph.json`: after it the server's own sweep removes threads, where it has one.)
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, DeltaChannelHistory
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from redis_saver._checkpoint.aio import AsyncRedisSaver
from redis_saver._common import history as histories
from redis_saver._common import ttl as ttls
from redis_saver._common.display import shown

__all__ = ["checkpointer"]


@asynccontextmanager
async def checkpointer() -> AsyncIterator[AsyncRedisSaver]:
    """An `AsyncRedisSaver` as the environment describes it, for one event loop; its connections close at the end.

    Raises:
        ValueError: A variable is missing or makes no sense; the message says which and why.
        ImportError: LANGGRAPH_AES_KEY is set, and pycryptodome is not installed.
        UnsupportedServer: The server lacks what the saver needs.
    """
    if not (url := os.environ.get("REDIS_URL")):
        raise ValueError(
            "REDIS_URL is not set; it says where checkpoints are kept: set it to redis://[user:password@]host:port/0, in "
            'the server\'s environment, or by "env" in langgraph.json'
        )
    serde = EncryptedSerializer.from_pycryptodome_aes() if "LANGGRAPH_AES_KEY" in os.environ else None
    prefix: dict[str, Any] = {"prefix": os.environ["REDIS_SAVER_PREFIX"]} if "REDIS_SAVER_PREFIX" in os.environ else {}
    settings: dict[str, Any] = {"ttl": _ttl(), "history": _history(), **prefix}
    async with AsyncRedisSaver.from_conn_string(url, serde=serde, **settings) as saver:
        await saver.asetup()
        _pass_histories_on()
        yield saver


def _pass_histories_on() -> None:
    """Have Agent Server's adapter ask the saver for the histories of `DeltaChannel`s, where it does not by itself.

    The adapter of langgraph-api 0.16 inherits LangGraph's default, which reads one ancestor a round trip, back to the last snapshot: in a long
    thread hundreds at the start of each run. All other calls it passes on. An adapter that has its own method, or is not what is known here, is left alone.
    """
    adapter: Any = getattr(sys.modules.get("langgraph_api._checkpointer._adapter"), "_CustomCheckpointerAdapter", None)
    default = BaseCheckpointSaver.aget_delta_channel_history
    if (
        getattr(adapter, "aget_delta_channel_history", None) is not default
        or "_inner" not in adapter.__init__.__code__.co_names
    ):
        return

    async def aget_delta_channel_history(
        self: Any, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        found: Mapping[str, DeltaChannelHistory] = await self._inner.aget_delta_channel_history(
            config=config, channels=channels
        )
        return found

    adapter.aget_delta_channel_history = aget_delta_channel_history


def _ttl() -> ttls.TTL:
    refresh = os.environ.get("REDIS_SAVER_REFRESH_ON_READ", "false")
    if refresh.lower() not in ("true", "false"):
        raise ValueError(f"REDIS_SAVER_REFRESH_ON_READ={shown(refresh)}: true or false")
    ttl: dict[str, float | bool | None] = {"default_ttl": None, "refresh_on_read": refresh.lower() == "true"}
    if (text := os.environ.get("REDIS_SAVER_TTL")) is not None:
        parsed = ttls.parse(text, name="REDIS_SAVER_TTL")
        ttl["default_ttl"] = (parsed.milliseconds or 0) / 60_000
    return ttl


def _history() -> histories.History:
    if (text := os.environ.get("REDIS_SAVER_KEEP_LAST")) is None:
        return histories.ALL
    said = f"REDIS_SAVER_KEEP_LAST={shown(text)}"
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{said}: a number of checkpoints, such as 100; leave it out to keep all")
    return {"keep_last": histories.keep_last(int(text), said)}
