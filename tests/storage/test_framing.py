"""Frames come back as they were packed, and damaged ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_saver._storage import framing


@settings(deadline=None)
@given(st.lists(st.binary(max_size=600), max_size=20), st.data())
def test_packed_frames_unpack_to_the_same_parts(parts: list[bytes], data: st.DataObject) -> None:
    packed = framing.pack(parts)
    assert framing.unpack(packed) == parts
    split = data.draw(st.integers(0, len(parts)))
    some, position = framing.take(packed, 0, split)
    assert (some, packed[position:]) == (parts[:split], framing.pack(parts[split:]))
    assert framing.take(packed, position) == (parts[split:], len(packed))
    if parts:
        assert framing.first(packed) == (parts[0], len(framing.pack(parts[:1])))


@settings(max_examples=500, deadline=None)
@given(
    packed=st.one_of(st.binary(max_size=40), st.text("0123:a", max_size=30).map(str.encode)),
    position=st.integers(0, 45),
    count=st.one_of(st.none(), st.integers(0, 6)),
)
def test_parts_read_from_any_bytes_are_contained_in_them(packed: bytes, position: int, count: int | None) -> None:
    """Each call ends with consecutive parts of the bytes, or with a `ValueError`."""
    try:
        parts, end = framing.take(packed, position, count)
    except ValueError:
        return
    assert count is None or len(parts) == count
    assert end <= max(position, len(packed))
    if parts:
        assert packed[:end].endswith(b":" + parts[-1])


INVALID = [b":", b"1:", b"9" * 25 + b":a", b"00000000000000000001:a", b"18446744073709551617:a", b"-1:a", b"+1:a"]


@pytest.mark.parametrize("packed", [*INVALID, b" 1:a", b"1_0:" + b"a" * 10])
def test_invalid_lengths_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        framing.unpack(packed)
