"""A serializer that leaves objects packed, so that it needs no classes and their bytes stay the same.

A process that moves threads may lack the code that wrote them. Then `JsonPlusSerializer` decodes an object to its
fields, or refuses it, and so would write other bytes than it read. This serializer keeps an object as its msgpack
extension. It decodes the lists, dicts and scalars around it, and encodes them to the same bytes.
"""

from __future__ import annotations

import json
from typing import Any

import ormsgpack

from redis_saver._common.display import shown
from redis_saver._serde import fallback
from redis_saver._serde.msgpack import SNAPSHOT
from redis_saver._serde.serializer import FastSerializer
from redis_saver._storage.chunks import digest
from redis_saver.errors import IsEncrypted


class Opaque:
    """A value of a type that is not decoded, such as `json` or `pickle`.

    No serializer knows this class, so none stores such a value within another one.
    """

    def __init__(self, kind: str, data: bytes) -> None:
        self.typed: tuple[str, bytes] = (kind, data)

    def as_checkpoint(self) -> Any:
        """Decode a checkpoint that LangGraph wrote as JSON, before September 2024. Its values stay opaque.

        Raises:
            ValueError: It is something else, or has pending sends.
        """
        kind, data = self.typed
        if kind != "json":
            raise ValueError(
                f"the checkpoint has the type {shown(kind)}, which redis_saver cannot read without the serializer that "
                "wrote it"
            )
        checkpoint = json.loads(data)
        if checkpoint.get("pending_sends"):
            raise ValueError(
                "the checkpoint is from 2024 and has pending sends, which cannot be moved. Let the graph finish its "
                "run where it is, then move the thread"
            )
        values = {
            channel: Opaque(kind, json.dumps(value).encode()) for channel, value in checkpoint["channel_values"].items()
        }
        return {**checkpoint, "channel_values": values}


class OpaqueSerializer(FastSerializer):
    """A `FastSerializer` that leaves objects packed."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Decode a value with `ormsgpack.Ext` in place of objects. A type other than msgpack becomes an `Opaque`.

        Raises:
            ValueError: It is encrypted, is not valid msgpack, or could not be packed again.
        """
        kind, stored = data
        if kind == "msgpack":
            return ormsgpack.unpackb(stored, ext_hook=_closed, option=ormsgpack.OPT_NON_STR_KEYS)
        if kind in ("null", "bytes", "bytearray"):
            return super().loads_typed(data)
        if "+" in kind:
            variable = "REDIS_SAVER_KEYS" if kind.endswith(("+siv", "+siv2")) else "LANGGRAPH_AES_KEY"
            raise IsEncrypted(f"it is encrypted ({kind}): set {variable} to the key it was written with")
        return Opaque(kind, stored)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Encode a value that `loads_typed` returned."""
        return obj.typed if isinstance(obj, Opaque) else super().dumps_typed(obj)


def _closed(code: int, data: bytes) -> Any:
    """Return an extension as it is. Only snapshots of a `DeltaChannel` are decoded, as savers look for them."""
    if code == SNAPSHOT and fallback.delta_snapshot is not None:
        # A snapshot within another one is not decoded: forged bytes may nest any number of them.
        return fallback.delta_snapshot(ormsgpack.unpackb(data, ext_hook=_packed, option=ormsgpack.OPT_NON_STR_KEYS))
    return _packed(code, data)


def _packed(code: int, data: bytes) -> Any:
    """Return an extension as it is. Negative codes are msgpack's own, and ormsgpack packs none."""
    if code < 0:
        raise ValueError(f"it has a msgpack extension with the code {code}, which no serializer writes")
    return ormsgpack.Ext(code, data)


_PLAIN = OpaqueSerializer()


def same(value: Any, other: Any) -> bool:
    """True if two values have the same bytes except for the order of sets, or compare as equal (1 and 1.0)."""
    try:
        mine, its = _PLAIN.dumps_typed(value), _PLAIN.dumps_typed(other)
        return mine == its or _in_order(mine) == _in_order(its) or bool(value == other)
    except ormsgpack.MsgpackEncodeError:  # only the user's own serializer encodes it
        return bool(value == other)
    except ValueError:  # arrays that differ
        return False


def _in_order(typed: tuple[str, bytes]) -> tuple[str, bytes]:
    """Return a value's type and bytes with the items of all sets in one order. A set that is read may have another."""
    kind, data = typed
    return (kind, _sorted(data, _DEEPEST)) if kind == "msgpack" else typed


def _sorted(data: bytes, depth: int) -> bytes:
    """Pack msgpack again, with the items of sets in order. Below `depth` extensions it stays as it is."""

    def inside(code: int, packed: bytes) -> Any:
        try:
            packed = _sorted(packed, depth - 1) if depth else packed
            of_class = ormsgpack.unpackb(packed, ext_hook=ormsgpack.Ext, option=ormsgpack.OPT_NON_STR_KEYS)
        except ValueError:  # it is no msgpack
            return ormsgpack.Ext(code, packed)
        if isinstance(of_class, list) and of_class[:2] in _SETS and len(of_class) == _OF_SET:
            *named, items = of_class
            packed = ormsgpack.packb([*named, sorted(map(_repacked, items))])
        return ormsgpack.Ext(code, packed)

    return _repacked(ormsgpack.unpackb(data, ext_hook=inside, option=ormsgpack.OPT_NON_STR_KEYS))


def _repacked(value: Any) -> bytes:
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


_SETS, _OF_SET = (["builtins", "set"], ["builtins", "frozenset"]), 3
_DEEPEST = 50


def fingerprint(value: Any) -> bytes:
    """Return a digest of a value's bytes. It is empty if the value cannot be encoded."""
    try:
        kind, data = _PLAIN.dumps_typed(value)
    except ormsgpack.MsgpackEncodeError:
        return b""
    return digest(kind.encode() + b":" + data)
