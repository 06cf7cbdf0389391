"""Cutting values into chunks, without a server. Remembering an earlier version saves work and changes nothing."""

from __future__ import annotations

import copy
import gc
import json
import operator
import pickle
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from tests.support.compiled import compiled_left_out, needs_compiled
from tests.support.seeds import seeds_and_slow

from bench.history import history, message
from redis_saver import DecodeError, Limits
from redis_saver._common.limits import Allowance
from redis_saver._serde import fallback
from redis_saver._serde.cutter import PUBLIC
from redis_saver._serde.messages import CLASSES, state
from redis_saver._serde.serializer import FastSerializer
from redis_saver._storage import chunks, codec
from redis_saver._storage.chunk_cache import ChunkCache, Version
from redis_saver._storage.chunks import Stored, digest
from redis_saver._storage.framing import pack


class Bare:
    """The parts of a saver that encoding a value needs."""

    serde = FastSerializer()
    limits = Limits()
    data_keys = None
    digest = staticmethod(digest)
    gear = PUBLIC

    def __init__(self, compression: str | None = None, serde: Any = serde) -> None:
        self.compression, self.serde = compression, serde


@pytest.fixture(params=[pytest.param("with", marks=needs_compiled), "without"])
def compiled_part(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with the compiled part, and without."""
    with compiled_left_out(Bare.serde) if request.param == "without" else nullcontext():
        yield


def joined_of(value: bytes, found: dict[bytes, bytes], last: Stored | None = None) -> Stored:
    return chunks.join(value, found, Allowance(Limits(), "a thread"), last)


def read_back(saver: Any, value: bytes, found: Any, last: Stored | None = None) -> tuple[Any, Stored | None]:
    allowance = Allowance(Limits(), "a thread")
    return codec.Decoder(saver, found, allowance).value(value, "value", last, remembers=True)


def edited(value: list[Any], chance: random.Random) -> list[Any]:
    """Return the next version of a list: grown, trimmed, edited in the middle, or with elements changed in place."""
    others = ["equal", "trim front", "trim end", "replace", "in place", "insert", "nothing"]
    which = chance.choice(["grow"] * 4 + others)
    where = chance.randrange(len(value))
    if which == "grow":
        size = chance.choice([1, 10, 400, 3000])
        return [*value, *(HumanMessage("x" * size, id=str(chance.random())) for _ in range(chance.randint(1, 4)))]
    if which == "equal":
        return [*value, *[HumanMessage("y" * 3000, id="y"), HumanMessage("z", id="z")] * chance.randint(1, 3)]
    if which == "trim front" and len(value) > 1:
        return value[chance.randint(1, min(5, len(value) - 1)) :]
    if which == "trim end":
        return value[: where + 1]
    if which == "replace":
        return [*value[:where], message(chance.randrange(10**6)), *value[where + 1 :]]
    if which == "in place":
        value[where].additional_kwargs["k"] = chance.choice([1, True, 1.0, "1", {"a": 1, "b": 2}, {"b": 2, "a": 1}])
    if which == "insert":
        return [*value[:where], message(chance.randrange(10**6)), *value[where:]]
    return value


KINDS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "lists": (list,), "snapshots": (_DeltaSnapshot,), "both": (list, _DeltaSnapshot),
}  # fmt: skip


def inner(value: Any) -> Any:
    return value.value if isinstance(value, _DeltaSnapshot) else value


@pytest.mark.random
@pytest.mark.usefixtures("compiled_part")
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("seed", seeds_and_slow(range(6), range(6, 20)))
def test_a_remembered_version_changes_nothing(seed: int, kinds: str) -> None:
    chance, luck, saver = random.Random(seed), random.Random(seed + 1000), Bare()
    value: list[Any] = history(chance.choice([4, 12, 40, 100]))
    before: Stored | None = None
    seen: list[Stored] = []
    cuts: list[Stored] = []
    grown = longest = 0
    for _ in range(25):
        value, kind = edited(value, chance), luck.choice(KINDS[kinds])
        longest = max(longest, len(value))
        stored = codec.encode_value(saver, kind(value), "value", before)
        fresh = codec.encode_value(saver, kind(value), "value")
        assert (stored.value, stored.chunks, list(stored.levels)) == (fresh.value, fresh.chunks, list(fresh.levels))
        if stored.chunks:
            again = joined_of(stored.value, stored.chunks)
            assert chunks.typed_bytes(again) == saver.serde.dumps_typed(kind(value))
            assert again.chunks == stored.chunks
            assert again.size == stored.size == sum(map(len, stored.chunks.values()))
            assert all(joined_of(stored.value, stored.chunks, other) == again for other in cuts[-4:])
            cuts += [stored, again]
            assert chunks.reachable([stored.value], stored.chunks) == stored.chunks.keys()
            assert set(stored.new) <= stored.chunks.keys() <= {*stored.new, *(before.chunks if before else ())}
        before = stored if stored.chunks else None
        grown += bool(stored.chunks.keys() - stored.new)
        if before and chance.random() < 0.3:
            before = again  # as another process reads it, with another serializer
        elif before and chance.random() < 0.5:
            last, written = luck.choice([None, stored, *seen]), value
            expected = JsonPlusSerializer().loads_typed(JsonPlusSerializer().dumps_typed(value))
            read, before = read_back(saver, stored.value, stored.chunks, last=last)
            assert type(read) is kind
            value = inner(read)
            assert list(map(state, value)) == list(map(state, expected))
            assert saver.serde.dumps_typed(value) == saver.serde.dumps_typed(written)
            assert not any(map(operator.is_, value, written))
            assert before and before.levels[0].fields == stored.levels[0].fields
            assert before.levels[0] == stored.levels[0]
            if stored.fingerprint is not None:
                assert before.fingerprint == stored.fingerprint._replace(read=len(value))
            seen.append(before)
    assert grown or longest < 10 or not CLASSES, "a value that grows is remembered"


PLAIN_ELEMENTS: tuple[Callable[[random.Random], Any], ...] = (
    lambda chance: chance.randrange(10**6),
    lambda chance: chance.choice("abc") * chance.choice([1, 5, 40, 700]),
    lambda chance: chance.choice([None, True, 1.5, b"bytes", [], [1, [2]], {"a": chance.randrange(3)}]),
)


def edited_plainly(value: Any, chance: random.Random) -> Any:
    """Return the next version of a list or dict of plain values, mostly with more elements of one kind."""
    element = chance.choice(PLAIN_ELEMENTS)
    more = [element(chance) for _ in range(chance.choice([0, 1, 2, 3, 17, 130, 1500]))]
    at = chance.choice([len(value)] * 4 + [chance.randrange(len(value) + 1)])
    if isinstance(value, dict):
        names = [f"k{chance.randrange(10**6)}" for _ in more]
        kept = list(value.items())[: at if chance.random() < 0.2 else None]
        return {**dict(kept), **dict(zip(names, more, strict=True))}
    return [*value[:at], *more, *value[at + chance.choice([0, 0, 0, 1, 5]) :]]


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds_and_slow(range(15), range(15, 60)))
def test_a_remembered_version_of_plain_values_changes_nothing(seed: int) -> None:
    chance, saver = random.Random(seed), Bare()
    value: Any = chance.choice([list(range(3000)), {}, [], {f"k{n}": n for n in range(500)}, ["text"] * 900])
    before: Stored | None = None
    for _ in range(12):
        value = edited_plainly(value, chance)
        stored = codec.encode_value(saver, value, "value", before)
        fresh = codec.encode_value(saver, value, "value")
        assert (stored.value, stored.chunks, list(stored.levels)) == (fresh.value, fresh.chunks, list(fresh.levels))
        if not stored.chunks:
            before = None
            continue
        again = joined_of(stored.value, stored.chunks)
        assert chunks.typed_bytes(again) == saver.serde.dumps_typed(value)
        before = chance.choice([stored, again, read_back(saver, stored.value, stored.chunks)[1]])


@needs_compiled
@pytest.mark.parametrize("kinds", [(list, list), (_DeltaSnapshot,) * 2, (list, _DeltaSnapshot), (_DeltaSnapshot, list)])
@pytest.mark.parametrize("change", ["none", "grown", "shorter", "edited", "forked"])
def test_only_unknown_elements_are_decoded(change: str, kinds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, long = Bare(), history(300)
    value = {
        "none": long,
        "grown": [*long, message(10**6)],
        "shorter": long[:290],
        "edited": [*long[:250], message(10**6), *long[251:]],
        "forked": [*long[:280], *(message(10**6 + n) for n in range(40))],
    }[change]
    decoded, given, known = list[int](), chunks.typed_bytes, None

    def typed_bytes(*args: Any) -> Any:
        said = given(*args)
        decoded.append(len(said[1]))
        return said

    monkeypatch.setattr(chunks, "typed_bytes", typed_bytes)
    for kind, each in zip(kinds, (long, value), strict=True):
        stored = codec.encode_value(saver, kind(each), "value")
        read, known = read_back(saver, stored.value, stored.chunks, last=known)
        assert read == kind(each)
        assert type(read) is kind
        assert known and known.fingerprint.read == len(each)
        assert not any(map(operator.is_, inner(read), each))
    whole, again = decoded
    nothing = 15 if change == "none" and kinds[0] is kinds[1] else whole / 20
    assert again < (whole / 4 if change in ("edited", "forked") else nothing)


@needs_compiled
def test_lists_with_an_unusual_message_are_decoded_each_time() -> None:
    saver, messages = Bare(), history(100)
    odd = AIMessage("x", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3})
    odd.usage_metadata = {"total_tokens": 3, "input_tokens": 1, "output_tokens": 2}  # validation sorts the keys
    messages[60] = odd
    known = codec.encode_value(saver, messages, "value")
    for _ in range(3):
        read, known = read_back(saver, known.value, known.chunks, last=known)
        theirs = JsonPlusSerializer().loads_typed(saver.serde.dumps_typed(messages))
        assert saver.serde.dumps_typed(read) == JsonPlusSerializer().dumps_typed(theirs)
        assert known.fingerprint.read == 0
    grown = codec.encode_value(saver, [*read[:60], *read[61:]], "value", known)
    assert grown == codec.encode_value(saver, [*read[:60], *read[61:]], "value")._replace(new=grown.new)


def test_an_edit_leaves_most_chunks() -> None:
    saver, value = Bare(), history(300)
    whole = codec.encode_value(saver, value, "value").chunks
    middle = codec.encode_value(saver, [*value[:150], message(10**6), *value[151:]], "value").chunks
    trimmed = codec.encode_value(saver, value[20:], "value").chunks
    grown = codec.encode_value(saver, [*value, message(10**6)], "value").chunks
    for other in (middle, trimmed, grown):
        new = sum(len(other[field]) for field in other.keys() - whole.keys())
        assert new < 0.1 * sum(map(len, other.values()))


@cache
def encoded(length: int, equal: int) -> Stored:
    """Return a chat with some equal messages at its end."""
    return codec.encode_value(Bare(), [*history(length), *[HumanMessage("y" * 3000, id="y")] * equal], "value")


@pytest.mark.parametrize("length", [20, 100, 400, 1500])
@pytest.mark.parametrize("other", [20, 100, 396, 400, 1500])
def test_one_versions_chunks_help_to_find_those_of_another(length: int, other: int) -> None:
    """This holds for trees of any height, and with equal elements."""
    for count in (0, 1):
        stored, last = encoded(length, 20 * count), encoded(other, 9 * count)
        plain = joined_of(stored.value, stored.chunks)
        for known in (last, joined_of(last.value, last.chunks), plain):
            assert joined_of(stored.value, {**last.chunks, **stored.chunks}, known) == plain
        lacking = {field: chunk for field, chunk in stored.chunks.items() if field in last.chunks}
        if len(lacking) < len(stored.chunks):
            with pytest.raises(chunks.ChunkMissing):
                joined_of(stored.value, lacking, last)


@pytest.mark.parametrize("damage", ["head", "digests", "order", "kind"])
def test_a_damaged_root_raises(damage: str) -> None:
    stored = codec.encode_value(Bare(), history(20), "value")
    root = stored.value
    spoilt = {
        "head": root.replace(b"msgpack", b"pickle!"),
        "digests": root[: -chunks.DIGEST],
        "order": root[: -2 * chunks.DIGEST] + root[-chunks.DIGEST :] + root[-2 * chunks.DIGEST : -chunks.DIGEST],
        "kind": b"z" + root[1:],
    }[damage]
    with pytest.raises((ValueError, chunks.ChunkMissing)):
        joined_of(spoilt, stored.chunks)


def test_the_cache_evicts_the_least_recently_used_version() -> None:
    stored = codec.encode_value(Bare(), history(100), "value")
    version = Version(b"b", stored)
    known = ChunkCache(3 * version.size + 10)
    for thread in (b"1", b"2", b"3"):
        known.remember_versions(thread, {("", "messages"): version})
    known.remember_versions(b"1", {("", "messages"): version})
    known.remember_versions(b"4", {("", "messages"): version})
    assert [bool(known.of(thread).versions) for thread in (b"1", b"2", b"3", b"4")] == [True, False, True, True]
    known.forget(b"1")
    known.remember_versions(b"5", {("", "messages"): version})
    assert [bool(known.of(thread).versions) for thread in (b"1", b"3", b"4", b"5")] == [False, True, True, True]
    nothing = ChunkCache(0)
    nothing.remember_versions(b"1", {("", "messages"): version})
    assert not nothing.of(b"1").versions


ROWS = [{"name": f"row {n}", "value": n * 1000, "share": n / 3, "of": [n, [n]]} for n in range(20)]
REMEMBERED = {
    "chat": lambda n: message(n),
    "cyrillic": lambda n: HumanMessage(f"{n} " + "\u0441\u043b\u043e\u0432\u043e " * 80, id=str(n)),
    "latin": lambda n: HumanMessage(f"{n} " + "caf\u00e9 " * 80, id=str(n)),
    "emoji": lambda n: HumanMessage(f"{n} " + "word " * 200 + "\U0001f600", id=str(n)),
    "rows": lambda n: ToolMessage("found", tool_call_id=str(n), id=str(n), artifact=copy.deepcopy(ROWS)),
    "numbers": lambda n: ToolMessage("found", tool_call_id=str(n), artifact=[n + i / 3 for i in range(100)]),
    "bytes": lambda n: ToolMessage("found", tool_call_id=str(n), artifact=[bytes([n % 256]) * 500]),
}


def reader(value: list[Any]) -> Callable[[], Version]:
    """Return a function that reads the value anew and returns the version to remember."""
    stored = codec.encode_value(Bare(), value, "value")
    data = Bare.serde.dumps_typed(value)

    def seen() -> Version:
        joined = joined_of(stored.value, {field: bytes(bytearray(chunk)) for field, chunk in stored.chunks.items()})
        found = Bare.serde.loads_rest(*data)
        assert found
        assert found[1]
        return Version(b"f", joined._replace(fingerprint=found[1]))

    return seen


@needs_compiled
@pytest.mark.parametrize("what", REMEMBERED)
def test_the_counted_memory_is_about_what_is_taken(what: str) -> None:
    seen = reader(list(map(REMEMBERED[what], range(100))))
    count = 4
    seen()
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        versions = [seen() for _ in range(count)]
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.6 < taken / sum(version.size for version in versions) < 1.2


@needs_compiled
@pytest.mark.parametrize("what", REMEMBERED)
def test_the_garbage_collector_skips_most_of_a_remembered_value(what: str) -> None:
    """It visits some objects of a value, and not their contents, for values of any length."""
    seen = reader(list(map(REMEMBERED[what], range(400))))
    gc.freeze()  # earlier objects are not to be visited either
    version = seen()
    for _ in range(5):
        gc.collect()  # each collection goes one level deeper
    gc.unfreeze()
    open_, looked_at = [version], dict[int, Any]()
    while open_:
        one = open_.pop()
        if gc.is_tracked(one) and not isinstance(one, type) and id(one) not in looked_at:
            looked_at[id(one)] = one
            open_ += gc.get_referents(one)
    assert len(looked_at) < 20


@pytest.mark.parametrize("limit", [-1, True, "64", 1.5])
def test_cache_bytes_is_a_non_negative_int(limit: Any) -> None:
    with pytest.raises(ValueError, match="cache_bytes"):
        ChunkCache(limit)


def test_changing_the_compression_keeps_sharing() -> None:
    plain, zstd, value = Bare(), Bare("zstd"), history(100)
    for first, then in ((plain, zstd), (zstd, plain)):
        cut = codec.encode_value(first, value, "value")
        read = joined_of(cut.value, cut.chunks)
        for before in (cut, read):
            grown = codec.encode_value(then, [*value, message(1)], "value", before)
            fresh = codec.encode_value(then, [*value, message(1)], "value")
            assert grown == fresh
            assert grown.chunks


def test_a_long_value_of_equal_elements_is_cut() -> None:
    for number in range(20):
        value = [{f"k{number}": "x" * 150}] * 3000
        assert codec.encode_value(Bare(), value, "value").chunks, number


class Secretive(FastSerializer):
    """A serializer that hides what it writes."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = super().dumps_typed(obj)
        return kind, bytes(byte ^ 0x55 for byte in data)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return super().loads_typed((data[0], bytes(byte ^ 0x55 for byte in data[1])))


class Wrapper:
    """A serializer that delegates everything to another one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("serde", [Secretive(), Wrapper(Secretive())])
def test_output_of_foreign_serializers_is_stored_unchanged(serde: Any) -> None:
    saver, value = Bare(serde=serde), [f"secret {number} " * 20 for number in range(100)]
    stored = codec.encode_value(saver, value, "value")
    assert b"secret" not in b"".join([stored.value, *stored.chunks.values()])
    assert codec.Decoder(saver, stored.chunks, Allowance(Limits(), "")).value(stored.value, "value")[0] == value


def test_empty_entries_take_no_memory() -> None:
    known = ChunkCache(0)
    for number in range(50):
        known.remember_versions(b"%d" % number, {})
        known.remember_versions(b"%d" % number, {("", "messages"): None})
    assert known.numbers()["cache_bytes"] == 0
    stored = codec.encode_value(Bare(), history(100), "value")
    known = ChunkCache(10**6)
    known.remember_versions(b"1", {("", "messages"): Version(b"b", stored)})
    known.remember_versions(b"1", {("", "messages"): None})
    assert not known.of(b"1").versions
    assert known.numbers()["cache_bytes"] == 0


# -- long values are not copied needlessly, and only our own serializer gets anything but bytes


SIZE = 4_000_000
LONG = "x" * SIZE


def written(value: Any) -> bytes:
    """Return a value as it is stored whole, as older releases stored long texts."""
    kind, data = FastSerializer().dumps_typed(value)
    return b"%d:%b%b" % (len(kind), kind.encode(), data)


def read(serde: Any, stored: bytes) -> Any:
    return codec.Decoder(Bare(serde=serde), {}, Allowance(Limits(), "")).value(stored, "value")[0]


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
