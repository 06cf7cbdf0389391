"""Long values are not copied needlessly, and only our own serializer gets anything but bytes."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from test_chunks import Bare, Wrapper

from redis_saver import DecodeError, Limits
from redis_saver._common.limits import Allowance
from redis_saver._serde import fallback
from redis_saver._serde.serializer import FastSerializer
from redis_saver._storage import chunks, codec
from redis_saver._storage.framing import pack

SIZE = 4_000_000
LONG = "x" * SIZE


def written(value: Any) -> bytes:
    """Return a value as it is stored whole, as older releases stored long texts."""
    kind, data = FastSerializer().dumps_typed(value)
    return b"%d:%b%b" % (len(kind), kind.encode(), data)


def read(serde: Any, stored: bytes) -> Any:
    return codec.decode_value(Bare(serde=serde), stored, {}, "value", "place", Allowance(Limits(), ""))


def taken(act: Callable[[], Any]) -> float:
    """Peak memory of a call, in sizes of the long value."""
    act()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        act()
        return (tracemalloc.get_traced_memory()[1] - before) / SIZE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("serde", [FastSerializer(), JsonPlusSerializer(), FastSerializer(pickle_fallback=True)])
def test_reading_a_long_value_makes_no_second_copy(serde: Any) -> None:
    stored = written(LONG)
    assert read(serde, stored) == LONG
    assert taken(lambda: read(serde, stored)) < 1.1


def test_reading_a_long_value_in_chunks_makes_one_copy_for_the_serializer() -> None:
    saver, texts = Bare(), [f"{number} " * 60 for number in range(20_000)]
    stored = codec.encode_value(saver, texts, "value")
    joined = chunks.join(stored.value, stored.chunks, Allowance(Limits(), ""))
    size = len(saver.serde.dumps_typed(texts)[1])
    assert taken(lambda: chunks.typed_bytes(joined)) * SIZE < 1.2 * size


def test_packing_a_record_makes_no_second_copy() -> None:
    data = LONG.encode()
    assert taken(lambda: pack([b"0", data, b"n"])) < 1.1


def test_bytes_json_and_pickle_come_back_with_their_types() -> None:
    serde = FastSerializer(pickle_fallback=True)
    data = LONG.encode()
    for value in (data, bytearray(data)):
        found = read(serde, written(value))
        assert (type(found), found) == (type(value), value)
    for stored in (b"4:json" + json.dumps(LONG).encode(), b"6:pickle" + pickle.dumps(LONG)):
        assert read(serde, stored) == LONG
    found = read(serde, written({"a": {1: data}}))
    assert type(found["a"][1]) is bytes


class Own(FastSerializer):
    """A serializer that returns the type of its input."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return type(data[1]), super().loads_typed(data)


def test_foreign_serializers_get_bytes() -> None:
    stored = written(LONG)
    patched = FastSerializer()
    patched.loads_typed = Own().loads_typed  # type: ignore[method-assign]
    for serde in (Own(), Wrapper(Own()), patched):
        assert read(serde, stored) == (bytes, LONG)


def test_an_unknown_langgraph_serializer_gets_bytes(monkeypatch: Any) -> None:
    monkeypatch.setattr(fallback, "KNOWN", False)
    stored = written(LONG)
    monkeypatch.setattr(JsonPlusSerializer, "loads_typed", lambda _, data: type(data[1]))
    assert read(FastSerializer(), stored) is bytes


def test_a_damaged_long_value_raises_decode_error() -> None:
    for damaged in (written(LONG)[:-1], b"7:msgpack" + b"\xc1" * SIZE):
        with pytest.raises(DecodeError, match="'value'"):
            read(FastSerializer(), damaged)
