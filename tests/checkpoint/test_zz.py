from __future__ import annotations
from typing import Any
import pytest, raw
from factories import chain, checkpoint, config, ids, put
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from uniform import Target, Uniform
from redis_saver._common import names


@pytest.mark.parametrize("target_name", ["redis"])
async def test_savers_with_different_compression(target: Target) -> None:
    plain, packed = (
        target.uniform(history={"keep_last": 2}),
        target.uniform(history={"keep_last": 2}, compression="zstd"),
    )
    where: Any = config("t")
    said = []
    for number in range(200):
        said.append({"id": number, "text": f"message {number} " * 30})
        where = await put(
            (plain, packed)[number % 2], where, {"said": said[-60:]}, versions={"said": f"{number:032}.{number:020}"}
        )
    await plain.prune(["t"])
    raw.check_chunks(target, "t", swept=True)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_check_version_again(target: Target) -> None:
    saver = target.uniform()
    first = await put(saver, config("t"), {"n": 1}, versions={"n": 1}, checkpoint_id="1")
    await saver.put(first, checkpoint({"n": 2, "b": "x"}, {"n": 2, "b": 2}, "2"), {}, {"n": 2, "b": 2})
    await saver.put(first, checkpoint({"n": 3}, {"n": 3, "b": 2}, "3"), {}, {"n": 3, "b": 2})
    print((await saver.check("t")).findings)
    assert (await saver.check("t")).findings == ()
    print(await saver.get_tuple(config("t", "", "2")), await saver.get_tuple(config("t", "", "3")))


@pytest.mark.parametrize("target_name", ["redis"])
async def test_check_version_again2(target: Target) -> None:
    saver = target.uniform()
    first = await put(saver, config("t"), {"n": 1}, versions={"n": 1}, checkpoint_id="1")
    await saver.put(first, checkpoint({"n": 3}, {"n": 3, "b": 2}, "3"), {}, {"n": 3, "b": 2})
    await saver.put(first, checkpoint({"n": 2, "b": "x"}, {"n": 2, "b": 2}, "2"), {}, {"n": 2, "b": 2})
    assert (await saver.check("t")).findings == ()


@pytest.mark.parametrize("target_name", ["redis"])
async def test_delta(target: Target) -> None:
    saver = target.uniform()
    where = config("t")
    for step in range(5):
        # the channel has no version until the last
        versions: Any = {"n": f"{step:03}", **({"d": f"{step:03}"} if step in (0, 4) else {})}
        values: Any = {"n": step, **({"d": _DeltaSnapshot([1])} if step == 0 else {})}
        where = await put(saver, where, values, versions=versions, checkpoint_id=f"{step:03}")
        await saver.put_writes(where, [("d", step), ("n", step)], f"task{step}", "path")
    before = await saver.get_delta_channel_history(config=where, channels=["d"])
    await saver.prune(["t"], keep_last=2)
    assert before == await saver.get_delta_channel_history(config=where, channels=["d"])
