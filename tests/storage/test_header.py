"""Version tables and frames come back as they were packed, and damaged frames are refused.

A version table has each channel's field, flags and version, and the versions that each node has seen.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_saver._common import names
from redis_saver._storage import framing, header

OURS = st.builds(lambda counter, random: f"{counter:032}.{random:020}", st.integers(0, 2**32), st.integers(0, 2**64))
VERSIONS = st.one_of(OURS, st.text(max_size=3), st.integers(), st.floats(allow_nan=False))
SOME = ["messages", "__start__", "branch:to:agent", "é", "\0", "\1", "", "\ud800"]
NAMES = st.one_of(st.sampled_from(SOME), st.text(max_size=4))
CHANNELS = st.dictionaries(NAMES, VERSIONS, max_size=8)


def table_of(versions: Any, seen: Any, values: Any = (), new: Any = None, prefix: bytes = b"") -> Any:
    checkpoint: Any = {"id": "1", "channel_values": dict.fromkeys(values), "channel_versions": versions}
    return header.version_table({**checkpoint, "versions_seen": seen}, new or {}, prefix)


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(), versions=CHANNELS, seen=st.dictionaries(NAMES, CHANNELS, max_size=5), prefix=st.binary(max_size=5)
)
def test_a_table_can_be_read_back(data: Any, versions: Any, seen: Any, prefix: bytes) -> None:
    values = [name for name in versions if data.draw(st.booleans())]
    new = {name: version if data.draw(st.booleans()) else "other" for name, version in versions.items()}
    table = table_of(versions, seen, values, new, prefix)
    listed, tokens = header.names_in(table.names), framing.unpack(table.tokens)
    slots = [int.from_bytes(table.slots[at : at + 2], "big") for at in range(0, len(table.slots), 2)]
    found = {name: names.version_from(tokens[slot]) for name, slot in zip(listed, slots, strict=False)}
    assert list(found.items()) == list(versions.items())
    assert list(map(type, found.values())) == list(map(type, versions.values()))
    assert table.fields == tuple(prefix + names.entry(name, version) for name, version in versions.items())
    for name, present, flag in zip(versions, table.present.decode(), table.flags.decode(), strict=True):
        is_new = new[name] == versions[name]
        assert (present, flag) == (("1", "v" if is_new else "u") if name in values else ("0", "e" if is_new else "x"))
    assert table.written == sum(new[name] == versions[name] for name in versions)
    assert header.versions_seen(table.seen, listed, list(map(names.version_from, tokens))) == seen


def test_more_than_255_names_take_two_bytes_each() -> None:
    versions = {f"channel{n}": f"{n:032}.{n:020}" for n in range(300)}
    table = table_of(versions, {"node": versions})
    tokens = list(map(names.version_from, framing.unpack(table.tokens)))
    assert len(table.seen) > 2 * 2 * 300
    assert header.versions_seen(table.seen, header.names_in(table.names), tokens) == {"node": versions}


def test_an_ordered_dict_keeps_its_order() -> None:
    moved = OrderedDict((f"channel{n}", f"{n:032}.{n:020}") for n in range(3))
    moved.move_to_end("channel0")
    table = table_of(moved, {"node": {"channel0": moved["channel0"]}})
    assert header.names_in(table.names) == ("channel1", "channel2", "channel0", "node")
    assert table.fields == tuple(names.entry(name, version) for name, version in moved.items())


def test_unusual_versions_seen_are_left_to_the_body() -> None:
    for seen in (None, {"node": 1}, {"node": {"a": None}}, {1: {}}, OrderedDict(node={})):
        assert table_of({}, seen).seen == b""


# -- frames


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
