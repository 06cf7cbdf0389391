"""The two savers as a flusher uses them: it carries values from hot to cold as the bytes they are.

It does not build the objects in them. That would take most of its time, their classes may not be installed (`redis-saver flush`), and a strict
serializer would not build them. This works if both sides write LangGraph's own format, and cold is one of LangGraph's own savers. These look
into values only to find scalars and snapshots of a `DeltaChannel`.
"""

from __future__ import annotations

import copy
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver._common.display import shown
from redis_saver._serde.serializer import FastSerializer, SafeSerializer, StrictSerializer
from redis_saver._storage.chunk_cache import ChunkCache
from redis_saver._storage.context import Context
from redis_saver._storage.opaque import OpaqueSerializer

CACHE_BYTES = 16_000_000
"""Bytes of the flusher's own chunk cache."""
_PLAIN = (JsonPlusSerializer, SafeSerializer, FastSerializer, StrictSerializer)
_KINDS = ("null", "bytes", "bytearray", "msgpack", "json", "pickle")
"""The types that LangGraph's serializer writes, or wrote once."""


class _CarryingSerializer(OpaqueSerializer):
    """An `OpaqueSerializer` that takes no type that cold's serializer does not know: cold would keep what it cannot read."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, _ = data
        if "+" not in kind and kind not in _KINDS:
            raise ValueError(f"it has the type {shown(kind)}, which LangGraph's serializer does not know")
        return super().loads_typed(data)


def opaque_pair(hot: Context, cold: BaseCheckpointSaver[Any]) -> tuple[Context, BaseCheckpointSaver[Any]]:
    """Both savers with serializers that leave objects packed, if that is possible. Hot gets a chunk cache of its own."""
    hot = hot._replace(chunk_cache=ChunkCache(CACHE_BYTES))
    own = type(cold).__module__.startswith("langgraph.checkpoint.")
    if own and type(hot.serde) in _PLAIN and type(cold.serde) in _PLAIN:
        cold = copy.copy(cold)
        cold.serde = OpaqueSerializer()
        hot = hot._replace(serde=_CarryingSerializer())
    return hot, cold


def opened(found: CheckpointTuple, serde: SerializerProtocol) -> CheckpointTuple:
    """A checkpoint that was read with packed objects. All but its values are decoded here, because cold may store that as JSON."""
    closed = OpaqueSerializer()

    def open_up(value: Any) -> Any:
        return serde.loads_typed(closed.dumps_typed(value))

    checkpoint = open_up({**found.checkpoint, "channel_values": {}})
    checkpoint["channel_values"] = found.checkpoint["channel_values"]
    return found._replace(checkpoint=checkpoint, metadata=open_up(found.metadata))
