"""A serializer that leaves objects closed: their classes are not imported, and their bytes stay what they are.

Whoever moves threads may not have the code that wrote them. `JsonPlusSerializer` would then answer the fields of an object in its place,
or refuse it, and what is written again would not be what was read. Here an object stays the msgpack extension it is
stored as; lists, dicts and scalars around it are read, and written again as the same bytes.
"""

from __future__ import annotations

import json
from typing import Any

import ormsgpack

from redis_saver._common.display import shown
from redis_saver._serde import elements, fallback
from redis_saver._serde.elements import EncodedElements
from redis_saver._serde.serializer import FastSerializer
from redis_saver._storage.chunks import digest

_SNAPSHOT = 7


class Opaque:
    """A value of a type that is not looked into, such as `json` or `pickle`.

    Nothing that a serializer knows, so that none stores it within another value.
    """

    def __init__(self, kind: str, data: bytes) -> None:
        self.typed: tuple[str, bytes] = (kind, data)

    def as_checkpoint(self) -> Any:
        """A checkpoint that LangGraph wrote as JSON, before September 2024, into one value: its channels' values are closed.

        Raises:
            ValueError: It is something else.
        """
        kind, data = self.typed
        if kind != "json":
            raise ValueError(f"a checkpoint of type {shown(kind)}, which is not known")
        found = json.loads(data)
        if found.get("pending_sends"):
            raise ValueError(
                "a checkpoint of 2024 with pending sends: let the graph go on where it is before you move it"
            )
        values = {
            channel: Opaque(kind, json.dumps(value).encode()) for channel, value in found["channel_values"].items()
        }
        return {**found, "channel_values": values}


class OpaqueSerializer(FastSerializer):
    """Reads and writes what `FastSerializer` does, and no object in it."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value, with `ormsgpack.Ext` in place of objects; a `Opaque` where it is not msgpack.

        Raises:
            ValueError: It is encrypted, or no msgpack.
        """
        kind, stored = data
        if kind == "msgpack":
            return _unpack(stored)
        if kind in ("null", "bytes", "bytearray"):
            return super().loads_typed(data)
        if "+" in kind:
            raise ValueError(f"it is encrypted ({kind}): set LANGGRAPH_AES_KEY to the key it was written with")
        return Opaque(kind, stored)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The inverse of `loads_typed`."""
        return obj.typed if isinstance(obj, Opaque) else super().dumps_typed(obj)

    def dumps_elements(self, obj: Any, last: EncodedElements | None = None) -> EncodedElements:
        """As `FastSerializer.dumps_elements`."""
        if not fallback.KNOWN or obj is None or isinstance(obj, (bytes, bytearray, Opaque)):
            kind, data = self.dumps_typed(obj)
            return EncodedElements(kind, [data])
        return elements.cut(obj, last)


def _unpack(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=_closed, option=ormsgpack.OPT_NON_STR_KEYS)


def _closed(code: int, data: bytes) -> Any:
    """An extension as it is, but for snapshots of a `DeltaChannel`, which savers look for."""
    if code == _SNAPSHOT and fallback.delta_snapshot is not None:
        # No snapshot is within another, however many somebody may have put around each other.
        return fallback.delta_snapshot(
            ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)
        )
    return ormsgpack.Ext(code, data)


_PLAIN = OpaqueSerializer()


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same: their bytes, or else (sets, or what JSON takes for the same number) they themselves."""
    try:
        if _PLAIN.dumps_typed(one) == _PLAIN.dumps_typed(other):
            return True
        return bool(one == other)
    except ormsgpack.MsgpackEncodeError:  # of a serializer of the user's own
        return bool(one == other)
    except ValueError:  # arrays that differ
        return False


def fingerprint(value: Any) -> bytes:
    """A digest of a value's bytes; nothing where they are not known."""
    try:
        kind, data = _PLAIN.dumps_typed(value)
    except ormsgpack.MsgpackEncodeError:
        return b""
    return digest(kind.encode() + b":" + data)
