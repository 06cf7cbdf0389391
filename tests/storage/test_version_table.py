"""Version tables and frames: the compiled part makes what Python makes, of anything, and leaves alone what it does not know."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_saver._storage import framing, native_bridge, version_table

native = native_bridge.native
pytestmark = pytest.mark.skipif(native is None, reason="redis_saver._storage.native was not built: no C compiler")

OURS = st.builds(lambda counter, random: f"{counter:032}.{random:020}", st.integers(0, 2**32), st.integers(0, 2**64))
VERSIONS = st.one_of(
    OURS,
    st.sampled_from([f"{n:032}.{n:020}" for n in range(4)]),
    st.text(max_size=3),
    st.integers(),
    st.floats(allow_nan=False),
)
NAMES = st.one_of(
    st.sampled_from(["messages", "__start__", "branch:to:agent", "é", "\0", "\1", "", "\ud800"]), st.text(max_size=4)
)
CHANNELS = st.dictionaries(NAMES, VERSIONS, max_size=8)


def in_python(call: Callable[[], Any]) -> Any:
    """What a call returns without the compiled part, or the class of what it raises."""
    native_bridge.native = None
    try:
        return outcome(call)
    finally:
        native_bridge.native = native


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (ValueError, TypeError) as error:
        return type(error), str(error)


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(), versions=CHANNELS, seen=st.dictionaries(NAMES, CHANNELS, max_size=5), prefix=st.binary(max_size=5)
)
def test_a_table_is_what_python_makes(data: Any, versions: Any, seen: Any, prefix: bytes) -> None:
    present = data.draw(st.lists(st.sampled_from(sorted(versions) or [""]), max_size=8))
    new = {
        name: data.draw(VERSIONS) if data.draw(st.booleans()) else versions.get(name, "1")
        for name in data.draw(st.lists(NAMES, max_size=4))
    }
    new |= {name: version for name, version in versions.items() if data.draw(st.booleans())}
    checkpoint: Any = {
        "id": "1",
        "channel_values": dict.fromkeys(present),
        "channel_versions": versions,
        "versions_seen": seen,
    }

    def make() -> Any:
        return version_table.version_table(checkpoint, new, prefix)

    assert outcome(make) == in_python(make)


@pytest.mark.parametrize("name", ["channel_versions", "versions_seen"])
def test_a_dict_with_an_order_of_its_own_is_left_to_python(name: str) -> None:
    """Of such a one C sees another order, in which the values of channels would change places."""
    versions = {f"channel{n}": f"{n:032}.{n:020}" for n in range(3)}
    checkpoint: Any = {"id": "1", "channel_values": dict.fromkeys(versions), "channel_versions": versions}
    checkpoint["versions_seen"] = {"node": versions, "other": versions, "third": versions}
    checkpoint[name] = moved = OrderedDict(checkpoint[name])
    moved.move_to_end(next(iter(moved)))

    def make() -> Any:
        return version_table.version_table(checkpoint, versions, b"b")

    assert make() == in_python(make)


def test_the_compiled_part_knows_the_tables_of_graphs() -> None:
    versions = {f"channel{n}": f"{n:032}.{2**64 - 1 - n:020}" for n in range(60)}
    assert native.table(versions, {"node": dict(versions), "b": {}}, {}, versions, b"b") is not None
    assert (
        native.table({**versions, **{f"more{n}": versions["channel1"] for n in range(5)}}, {}, {}, {}, b"b") is None
    )  # too many
    assert native.table({"a": f"{2**32:032}.{0:020}"}, {}, {}, {}, b"") is None  # does not fit into twelve bytes
    assert native.table({"a": f"{0:032}.{2**64:020}"}, {}, {}, {}, b"") is None
    assert native.table({"a": 1}, {}, {}, {}, b"") is None
    assert native.table({}, {"node": 1}, {}, {}, b"") is None
    assert native.table({}, None, {}, {}, b"") is None
    assert native.table({"a": f"{0:032}-{0:020}"}, {}, {}, {}, b"") is None
    assert native.table({"a": f"{0:031}x.{0:020}"}, {}, {}, {}, b"") is None


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=20))
def test_frames_are_what_python_makes(parts: list[bytes]) -> None:
    packed = framing.pack(parts)
    assert packed == in_python(lambda: framing.pack(parts))
    assert framing.unpack(packed) == parts
    assert framing.take(packed, 0, len(parts)) == (parts, len(packed))


@settings(max_examples=500, deadline=None)
@given(
    packed=st.one_of(st.binary(max_size=40), st.text("0123:a", max_size=30).map(str.encode)),
    position=st.integers(-5, 45),
    count=st.integers(0, 6),
)
def test_damaged_frames_are_refused_as_python_refuses_them(packed: bytes, position: int, count: int) -> None:
    for call in (lambda: framing.unpack(packed), lambda: framing.take(packed, max(position, 0), count)):
        assert outcome(call) == in_python(call)


@pytest.mark.parametrize(
    "packed",
    [
        b":",
        b"1:",
        b"9" * 25 + b":a",
        b"00000000000000000001:a",
        b"0000000000000000001:a",
        b"18446744073709551617:a",
        b"-1:a",
        b"+1:a",
        b" 1:a",
    ],
)
def test_lengths_that_are_none(packed: bytes) -> None:
    assert outcome(lambda: framing.unpack(packed)) == in_python(lambda: framing.unpack(packed))


def test_what_is_no_bytes_is_left_to_python() -> None:
    assert framing.pack([memoryview(b"ab"), b"c"]) == b"2:ab1:c"  # type: ignore[list-item]
    assert framing.pack(iter([b"a"])) == b"1:a"
    assert native.pack((1,)) is None
    assert native.take(memoryview(b"1:a"), 0, 1) is None
