"""`compression="zstd"` makes values smaller, and savers with and without compression read them all."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.factories import config
from tests.support.raw import check_chunks, check_counters, check_sound, size, stored_chunks
from tests.support.sharing import BASE, FILES, TaskInfo, fields_of, key_of, name, said, text
from tests.support.uniform import Target

from redis_saver import AsyncRedisSaver, DecodeError, RedisSaver, ThreadDamaged
from redis_saver._storage import compression

WORDS = "the account is open and the balance is what it was before "
REPETITIVE = [f"{n}: {WORDS * 6}" for n in range(300)]
VALUES: dict[str, Any] = {
    "repetitive": REPETITIVE,
    "a long text": WORDS * 5000,
    "hex": BASE,
    "files": FILES,
    "random": random.Random(1).randbytes(100_000),
    "random elements": [random.Random(n).randbytes(1500) for n in range(50)],
    "tiny": "x",
    "empty": [],
    "none": None,
    "a number": 7,
    "bytes": b"y" * 10_000,
    "huge": [WORDS * 4_000, "z" * 400_000],
    "ints": list(range(5_000)),
}


@pytest.fixture(params=["redis"])
def target_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


ORDERS: list[Any] = [(None, None, "zstd"), ("zstd", None, "zstd"), (None, "zstd", None), ("zstd", "zstd", None)]
SLOW = [(None,) * 3, (None, "zstd", "zstd"), ("zstd", None, None), ("zstd",) * 3]


@pytest.mark.by_turns
@pytest.mark.parametrize("order", [*ORDERS, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
async def test_savers_with_and_without_compression_share_a_thread(target: Target, order: Any) -> None:
    told = TaskInfo(target)
    uniforms = {setting: target.uniform(compression=setting) for setting in (None, "zstd")}
    values = dict(VALUES)
    for number, setting in enumerate(order, 1):
        uniform = uniforms[setting]
        await uniform.get_tuple(config())
        await told.put(uniform, number, number - 1 or None, **values)
        await uniform.put_writes(config(checkpoint_id=name(number)), list(values.items()), f"task {number}")
        values = {**values, "repetitive": [*values["repetitive"], f"more {number} {WORDS}"], "hex": values["hex"][1:]}
        values["files"] = {**values["files"], "/new.md": WORDS * number * 40}
    for reader in (*uniforms.values(), target.uniform(), target.uniform(compression="zstd")):
        for number in told.values:
            found = await reader.get_tuple(config(checkpoint_id=name(number)))
            told.same(found)
            writes = {channel: said(value) for _, channel, value in found.pending_writes}
            assert writes == told.values[number]
        for one in await reader.list(config()):
            told.same(one)
        seeds = await reader.get_delta_channel_history(config=config(checkpoint_id=name(3)), channels=list(VALUES))
        assert {channel: said(one["seed"]) for channel, one in seeds.items()} == told.values[2]
    check_sound(target)
    await uniforms[order[0]].copy_thread("thread", "copy")
    told.same(await target.uniform().get_tuple(config("copy")))
    check_sound(target, "copy")
    check_counters(fields_of(target, "copy"))
    await uniforms[order[1]].prune(["thread"])
    told.same(await target.uniform().get_tuple(config()))
    check_chunks(target, swept=True)
    check_sound(target)


MIXED = "".join(text(n, 40) + WORDS for n in range(400))


@pytest.mark.by_turns
@pytest.mark.parametrize("value", ["repetitive", "a long text", "bytes", "huge", "mixed"])
async def test_repetitive_values_take_less_than_half(target: Target, value: str) -> None:
    """As a value, and as a pending write."""
    long = {**VALUES, "mixed": MIXED}[value]
    raw, uniform = len(said(long)[1]), target.uniform(compression="zstd")
    await TaskInfo(target).put(uniform, 1, v=long)
    await TaskInfo(target, "writes").put(uniform, 1, v=1)
    await uniform.put_writes(config("writes", checkpoint_id=name(1)), [("v", long)], "task")
    assert max(size(fields_of(target)), size(fields_of(target, "writes"))) * 2 < raw


async def test_incompressible_values_and_chunks_grow_little(target: Target) -> None:
    whole = {"random": VALUES["random"], "tiny": "x" * 500, "n": 7, "none": None}
    for values, chunks in ((whole, 0), ({"v": VALUES["random elements"]}, 40)):
        stored = []
        for setting in (None, "zstd"):
            uniform, thread = target.uniform(compression=setting), f"{chunks} {setting}"
            await TaskInfo(target, thread).put(uniform, 1, **values)
            await uniform.put_writes(config(thread, checkpoint_id=name(1)), list(values.items()), "task")
            assert len(stored_chunks(fields_of(target, thread))) > chunks
            stored.append(size(fields_of(target, thread)))
        assert stored[1] < stored[0] * 1.02


async def test_processes_without_memory_store_an_appended_list_once(target: Target) -> None:
    """Savers that both compress share equal bytes."""
    told, value = TaskInfo(target), list(REPETITIVE)
    await told.put(target.uniform(compression="zstd"), 1, v=value)
    before = size(fields_of(target))
    for number in range(2, 12):
        value = [*value, f"{number} {WORDS}"]
        await told.put(target.uniform(compression="zstd"), number, number - 1, v=value)
    assert size(fields_of(target)) - before < 25_000
    await told.check(target.uniform(compression="zstd"), swept=True)


@pytest.mark.parametrize("wrong", ["gzip", "", "ZSTD", "zstandard"])
def test_an_unknown_compression_is_refused(target: Target, wrong: str) -> None:
    with pytest.raises(ValueError, match="zstd"):
        target.uniform(compression=wrong)


@pytest.fixture
def no_zstandard(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Remove the module and all that was made of it, as if it were not installed."""

    def take() -> None:
        monkeypatch.setitem(sys.modules, "zstandard", None)
        for made in ("compressor", "decompressor"):
            if hasattr(compression._of_thread, made):
                monkeypatch.delattr(compression._of_thread, made)

    return take


async def test_a_missing_zstandard_names_the_extra(target: Target, no_zstandard: Any) -> None:
    told = TaskInfo(target)
    await told.put(target.uniform(compression="zstd"), 1, chunks=REPETITIVE)
    await told.put(target.uniform(compression="zstd"), 2, whole=VALUES["a long text"])
    where = config(checkpoint_id=name(3))
    await told.put(target.uniform(), 3, plain=BASE)
    await target.uniform(compression="zstd").put_writes(where, [("v", VALUES["a long text"])], "task")
    await told.put(target.uniform(), 4, plain=BASE)
    no_zstandard()
    with pytest.raises(ImportError, match=r"redis-saver\[zstd\]"):
        target.uniform(compression="zstd")
    uniform = target.uniform()
    for number in (1, 2, 3):
        with pytest.raises((ThreadDamaged, ImportError), match=r"redis-saver\[zstd\]"):
            await uniform.get_tuple(config(checkpoint_id=name(number)))
    with pytest.raises((ThreadDamaged, ImportError), match=r"redis-saver\[zstd\]"):
        await uniform.list(config())
    told.same(await uniform.get_tuple(config(checkpoint_id=name(4))))


GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "garbage": lambda was: was[:20] + b"garbage" * 3,
    "cut": lambda was: was[:-5],
    "empty": lambda was: was[:20],
    "bit": lambda was: was[: len(was) // 2] + bytes([was[len(was) // 2] ^ 0x55]) + was[len(was) // 2 + 1 :],
}


@pytest.mark.by_turns
@pytest.mark.parametrize("garbage", GARBAGE)
async def test_damaged_compressed_bytes_raise(target: Target, garbage: str) -> None:
    told, uniform = TaskInfo(target), target.uniform(compression="zstd")
    await told.put(uniform, 1, whole=MIXED[:1900])
    await told.put(uniform, 2, 1, chunks=REPETITIVE)
    fields = fields_of(target)
    whole = [field for field in fields if field[:1] == b"b" and b"zstd" in fields[field][:20]]
    chunks = sorted(field for field in fields if field[:1] == b"z")
    assert len(whole) == 1 and len(chunks) > 5
    for number, field in ((1, whole[0]), (2, chunks[0]), (2, chunks[-1])):
        target.raw.hset(key_of(target), field, GARBAGE[garbage](fields[field]))
        reader = target.uniform()
        for call in (reader.get_tuple(config(checkpoint_id=name(number))), reader.list(config())):
            try:
                answer = await call
            except (DecodeError, ThreadDamaged):
                continue
            for one in answer if isinstance(answer, list) else [answer]:
                told.same(one)  # never another value
            assert garbage == "bit"
        target.raw.hset(key_of(target), field, fields[field])
    told.same(await target.uniform().get_tuple(config()))
