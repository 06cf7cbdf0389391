"""A serializer that leaves objects packed: it does not import their classes, and their bytes stay the same.

A process that moves threads may lack the code that wrote them. Then `JsonPlusSerializer` would decode an object to its
fields, or refuse it, and would write something else than it read. This serializer keeps an object as the msgpack
extension that is stored. It reads the lists, dicts and scalars around it, and writes them again as the same bytes.
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
    """A value of a type that is not decoded, such as `json` or `pickle`.

    No serializer knows this class, so none stores such a value within another one.
    """

    def __init__(self, kind: str, data: bytes) -> None:
        self.typed: tuple[str, bytes] = (kind, data)

    def as_checkpoint(self) -> Any:
        """Read a checkpoint that LangGraph wrote as JSON, before September 2024.

        The values of its channels stay opaque.

        Raises:
            ValueError: It is something else.
        """
        kind, data = self.typed
        if kind != "json":
            raise ValueError(
                f"the checkpoint has the type {shown(kind)}, which redis_saver cannot read without the serializer that "
                "wrote it"
            )
        found = json.loads(data)
        if found.get("pending_sends"):
            raise ValueError(
                "the checkpoint is from 2024 and has pending sends, which cannot be moved: let the graph run on where "
                "it is, then move the thread"
            )
        values = {
            channel: Opaque(kind, json.dumps(value).encode()) for channel, value in found["channel_values"].items()
        }
        return {**found, "channel_values": values}


class OpaqueSerializer(FastSerializer):
    """A `FastSerializer` that leaves objects packed."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value, with `ormsgpack.Ext` in place of objects; an `Opaque` if it is of another type than msgpack.

        Raises:
            ValueError: It is encrypted, is not valid msgpack, or holds what could not be packed again.
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
        """Encode a value as `FastSerializer.dumps_elements` does."""
        if not fallback.KNOWN or obj is None or isinstance(obj, (bytes, bytearray, Opaque)):
            kind, data = self.dumps_typed(obj)
            return EncodedElements(kind, [data])
        return elements.cut(obj, last)


def _unpack(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=_closed, option=ormsgpack.OPT_NON_STR_KEYS)


def _closed(code: int, data: bytes) -> Any:
    """An extension as it is. Only snapshots of a `DeltaChannel` are decoded, because savers look for them."""
    if code == _SNAPSHOT and fallback.delta_snapshot is not None:
        # A snapshot within another one is not decoded: forged bytes may nest any number of them.
        return fallback.delta_snapshot(ormsgpack.unpackb(data, ext_hook=_packed, option=ormsgpack.OPT_NON_STR_KEYS))
    return _packed(code, data)


def _packed(code: int, data: bytes) -> Any:
    """An extension as it is. Negative codes are msgpack's own, and ormsgpack packs none."""
    if code < 0:
        raise ValueError(f"it has a msgpack extension with the code {code}, which no serializer writes")
    return ormsgpack.Ext(code, data)


_PLAIN = OpaqueSerializer()


def same(one: Any, other: Any) -> bool:
    """True if two values are the same: their bytes are, or they compare as equal (sets, or 1 and 1.0)."""
    try:
        if _PLAIN.dumps_typed(one) == _PLAIN.dumps_typed(other):
            return True
        return bool(one == other)
    except ormsgpack.MsgpackEncodeError:  # of a serializer of the user's own
        return bool(one == other)
    except ValueError:  # arrays that differ
        return False


def fingerprint(value: Any) -> bytes:
    """A digest of a value's bytes; empty if it cannot be encoded."""
    try:
        kind, data = _PLAIN.dumps_typed(value)
    except ormsgpack.MsgpackEncodeError:
        return b""
    return digest(kind.encode() + b":" + data)
