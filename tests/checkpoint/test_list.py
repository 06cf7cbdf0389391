"""`list`, `get_tuple` and `threads()` beyond LangGraph's conformance suite."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.support.cases import case
from tests.support.factories import chain, config, ids, put
from langgraph.checkpoint.base import INTERRUPT, WRITES_IDX_MAP
from tests.support.uniform import Uniform

from redis_saver._checkpoint import delta

SERVERS = pytest.mark.also_on(cluster="sync", redis62="async", fakeredis="async", lua54="sync")
pytestmark = [pytest.mark.encrypted_too, SERVERS]


async def test_returned_configs_always_have_the_checkpoint_id(saver: Uniform) -> None:
    (where,) = await chain(saver, "t", 1)
    for asked in (config("t"), config("t", None), where, config("t", "", "")):
        found = await saver.get_tuple(asked)
        assert found.config == where
        assert found.parent_config is None


async def test_the_newest_checkpoint_has_the_greatest_id(saver: Uniform) -> None:
    for which in ("5", "9", "7", "9", "1"):
        await put(saver, config("t"), {"n": which}, checkpoint_id=which, versions={"n": which})
    assert (await saver.get_tuple(config("t"))).checkpoint["id"] == "9"
    assert ids(await saver.list(config("t"))) == ["9", "7", "5", "1"]


async def test_list_selects_by_namespace_and_id(saver: Uniform) -> None:
    for which, ns in enumerate(["", "a", "a|b:1", "", "a"]):
        await put(saver, config("t", ns), {"n": which}, checkpoint_id=str(which), versions={"n": str(which)})
    assert ids(await saver.list(config("t", None))) == ["4", "3", "2", "1", "0"]
    assert ids(await saver.list(config("t", ""))) == ["3", "0"]
    assert ids(await saver.list(config("t", "a"))) == ["4", "1"]
    assert await saver.list(config("t", "b")) == []
    assert ids(await saver.list(config("t", None, "2"))) == ["2"]
    assert ids(await saver.list(config("t", "a", "4"))) == ["4"]
    assert await saver.list(config("t", "a", "3")) == []


@pytest.mark.also_on(cluster="sync")
async def test_list_of_all_threads_is_newest_first(saver: Uniform) -> None:
    placed = [(f"t{number % 7}", f"{number:04}") for number in range(140)]
    for thread, which in placed:
        versions, metadata = {"n": which}, {"odd": int(which) % 2}
        await put(saver, config(thread), {"n": which}, checkpoint_id=which, versions=versions, metadata=metadata)
    newest_first = [which for _, which in reversed(placed)]
    assert ids(await saver.list(None)) == newest_first
    assert ids(await saver.list(None, limit=75)) == newest_first[:75]
    assert ids(await saver.list(None, before=config("x", "", "0100"))) == newest_first[40:]
    assert ids(await saver.list(None, filter={"odd": 1})) == newest_first[::2]
    assert ids(await saver.list(None, filter={"odd": 1}, limit=3)) == newest_first[:6:2]


async def test_before_compares_ids_of_any_form(saver: Uniform) -> None:
    placed = ["\0", "0", "3", "30", "\u00e9", "z"]
    for which in placed:
        await put(saver, config("t"), {"n": which}, checkpoint_id=which, versions={"n": which})
    for bound in ("0", "3", "35", "zz", "", "\0"):
        expected = sorted((which for which in placed if not bound or which < bound), reverse=True)
        with case(bound):
            assert ids(await saver.list(config("t"), before=config("t", "", bound))) == expected
            assert ids(await saver.list(config("t", None), before=config("t", "", bound))) == expected


FILTERS: list[tuple[Any, list[int]]] = [
    ({"n": 2}, [2]), ({"n": {"$eq": 2}}, [2]), ({"n": {"$ne": 2}}, [4, 3, 1, 0]), ({"n": {"$gt": 2}}, [4, 3]),
    ({"n": {"$gte": 2, "$lt": 4}}, [3, 2]), ({"n": {"$lte": 0}}, [0]), ({"n": {"$in": [1, 3, "x"]}}, [3, 1]),
    ({"n": {"$nin": [1, 3]}}, [4, 2, 0]), ({"n": {"$gt": "x"}}, []), ({"absent": {"$lt": 1}}, []),
    ({"even": {"$exists": True}}, [4, 2, 0]), ({"even": {"$exists": False}}, [3, 1]), ({"even": None}, [3, 1]),
    ({"even": True, "n": {"$gt": 0}}, [4, 2]), ({"even": {"$gt": 0}}, [4, 2, 0]),
    ({"dict": {"a": 1}}, [1]), ({"dict": {"$eq": {"a": 1}}}, [1]),
    ({"list": [1, 2]}, [4, 3, 2, 1, 0]), ({"text": "é*"}, [4, 3, 2, 1, 0]), ({}, [4, 3, 2, 1, 0]),
]  # fmt: skip


async def test_list_filters_by_metadata(saver: Uniform) -> None:
    for n in range(5):
        metadata = {"n": n, "dict": {"a": n}, "list": [1, 2], "text": "é*", **({"even": True} if n % 2 == 0 else {})}
        await put(saver, config("t"), {"n": n}, checkpoint_id=str(n), versions={"n": str(n)}, metadata=metadata)
    for filter, expected in FILTERS:
        with case(filter):
            assert list(map(int, ids(await saver.list(config("t"), filter=filter)))) == expected
            assert list(map(int, ids(await saver.list(None, filter=filter, limit=2)))) == expected[:2]


@pytest.mark.also_on()
async def test_wrong_arguments_are_refused(saver: Uniform) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"filter": {"n": {"$regex": "x"}}}, r"\$regex.*\$eq"),
        ({"filter": {"n": {"$gt": 1, "lt": 2}}}, "'lt'"),
        ({"filter": {"n": {"$in": "abc"}}}, "list of values"),
        ({"filter": {"n": {"$exists": 1}}}, "True or False"),
        ({"filter": [1]}, "dict"),
        ({"limit": -1}, "-1"),
        ({"limit": "5"}, "'5'"),
        ({"limit": 2.0}, "2.0"),
        ({"before": {"id": 1}}, "configurable"),
    ]
    for arguments, said in cases:
        with case(arguments):
            with pytest.raises((ValueError, TypeError), match=said):
                saver.saver.list(config("t"), **arguments)
            with pytest.raises((ValueError, TypeError), match=said):
                saver.saver.alist(config("t"), **arguments)


@pytest.mark.also_on()
async def test_wrong_configs_are_refused(saver: Uniform) -> None:
    for asked, said in (
        ({}, "configurable"),
        ({"configurable": {}}, "thread_id"),
        (config(None), "thread_id"),
        (config(b"t"), "bytes"),
        (config("t", 3), "checkpoint_ns"),
        (config("t", "", b"x"), "checkpoint_id"),
    ):
        for name, call in {
            "get_tuple": lambda asked=asked: saver.get_tuple(asked),
            "put": lambda asked=asked: put(saver, asked, {"n": 1}),
            "list": lambda asked=asked: saver.list(asked),
            "put_writes": lambda asked=asked: saver.put_writes(asked, [("n", 1)], "task"),
            "history": lambda asked=asked: saver.get_delta_channel_history(config=asked, channels=["n"]),
        }.items():
            with case(asked, name), pytest.raises((ValueError, TypeError), match=said):
                await call()


async def test_ids_and_threads_may_be_uuids_or_ints(saver: Uniform) -> None:
    thread = uuid4()
    where = await put(saver, config(thread), {"n": 1})
    assert where["configurable"]["thread_id"] == str(thread)
    found = await saver.get_tuple(config(thread, "", UUID(where["configurable"]["checkpoint_id"])))
    assert found.config == where
    await put(saver, config(7), {"n": 1})
    assert (await saver.get_tuple(config("7"))) is not None
    await saver.delete_thread(7)
    assert (await saver.get_tuple(config("7"))) is None


@pytest.mark.also_on(cluster="async")
@pytest.mark.encrypted_slow
async def test_list_returns_more_than_ten_thousand_checkpoints(saver: Uniform, target_name: str) -> None:
    length = 10_050 if target_name == "redis" else 450
    configs = await chain(saver, "t", length)
    everything = ids(await saver.list(config("t")))
    assert everything == [one["configurable"]["checkpoint_id"] for one in reversed(configs)]
    (info,) = await saver.threads()
    assert info.checkpoints == length
    assert len(await saver.list(config("t"), filter={"step": {"$gte": length - 5}})) == 5


@pytest.mark.also_on(cluster="sync", lua54="async")
async def test_a_checkpoint_can_have_a_thousand_writes(saver: Uniform) -> None:
    where = await put(saver, config("t"), {"n": 1})
    await saver.put_writes(where, [("n", position) for position in range(1000)], "one task")
    for task in range(200):
        await saver.put_writes(where, [("n", task)], f"task{task:03}", f"path{task:03}")
    found = (await saver.get_tuple(where)).pending_writes
    assert [value for _, _, value in found] == [*range(1000), *range(200)]
    (listed,) = await saver.list(config("t"))
    assert listed.pending_writes == found


async def test_writes_are_ordered_and_keep_their_first_value(saver: Uniform) -> None:
    where = await put(saver, config("t"), {"n": 1})
    await saver.put_writes(where, [("n", "b0"), ("n", "b1")], "b", "1")
    await saver.put_writes(where, [("n", "a0")], "a", "2")
    await saver.put_writes(where, [("n", "other"), ("n", "other"), ("n", "b2")], "b", "9")
    found = (await saver.get_tuple(where)).pending_writes
    assert found == [("b", "n", "b0"), ("b", "n", "b1"), ("a", "n", "a0"), ("b", "n", "b2")]


@pytest.mark.parametrize("channel", WRITES_IDX_MAP)
async def test_special_channels_keep_the_newest_write(saver: Uniform, channel: str) -> None:
    where = await put(saver, config("t"), {"n": 1})
    await saver.put_writes(where, [("n", 0), (channel, "first")], "task")
    await saver.put_writes(where, [(channel, "second")], "task", "path")
    found = (await saver.get_tuple(where)).pending_writes
    assert sorted(found) == sorted([("task", "n", 0), ("task", channel, "second")])


async def test_writes_before_their_checkpoint_are_kept(saver: Uniform, target: Any) -> None:
    where = config("t", "", "1")
    await saver.put_writes(where, [("n", 1), (INTERRUPT, "?")], "task")
    assert await saver.get_tuple(where) is None
    assert await saver.list(config("t")) == []
    again = target.uniform()
    await again.put_writes(where, [("n", 2), ("m", 3)], "task")
    await put(again, config("t"), {"n": 0}, checkpoint_id="1")
    found = (await saver.get_tuple(where)).pending_writes
    assert sorted(found) == [("task", INTERRUPT, "?"), ("task", "m", 3), ("task", "n", 1)]


async def test_threads_describes_each_thread(saver: Uniform) -> None:
    for number in range(30):
        await chain(saver, f"user:{number % 3}:{number}", 1 + number % 2)
    await saver.put_writes(config("user:9", "", "1"), [("n", 1)], "task")
    found = {info.thread_id: info for info in await saver.threads("user:1:")}
    assert len(found) == 10
    info = found["user:1:1"]
    newest = await saver.get_tuple(config("user:1:1"))
    assert info.checkpoint_id == newest.checkpoint["id"]
    assert info.updated_at == datetime.fromisoformat(newest.checkpoint["ts"])
    assert (info.checkpoints, info.ttl, info.pinned, info.interrupted) == (2, None, False, False)
    assert info.bytes > 200
    (lone,) = await saver.threads("user:9")
    assert (lone.checkpoint_id, lone.updated_at, lone.checkpoints) == (None, None, 0)
    assert len(await saver.threads()) == 31


async def test_threads_shows_pending_interrupts(saver: Uniform) -> None:
    (where,) = await chain(saver, "t", 1)
    await saver.put_writes(where, [(INTERRUPT, "approve?")], "task")
    assert [info.interrupted for info in await saver.threads()] == [True]
    await put(saver, where, {"n": 2})
    assert [info.interrupted for info in await saver.threads()] == [False]


async def test_foreign_keys_are_not_listed_as_threads(saver: Uniform, target: Any) -> None:
    await chain(saver, "t", 1)
    ends = b":{\xff}:index", b":{\xff}:data", b":{a}b}:index", b":{t}:index.x", b":{t}:other", b"2:{t}:index"
    others = [target.prefix.encode() + end for end in ends]
    for key in others:
        target.raw.set(key, "x")
    assert [info.thread_id for info in await saver.threads()] == ["t"]
    assert len(await saver.list(None)) == 1
    await saver.delete_for_runs(["r"])
    assert target.raw.exists(others[0]) == 1


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", 3])
async def test_wrong_prefixes_are_refused(target: Any, prefix: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="prefix="):
        target.uniform(prefix=prefix)


async def test_next_versions_are_unique_and_grow(saver: Uniform) -> None:
    first = saver.saver.get_next_version(None, None)
    later = [saver.saver.get_next_version(first, None) for _ in range(1000)]
    assert len(set(later)) == 1000
    assert all(version > first for version in later)
    assert saver.saver.get_next_version(3, None).startswith(f"{4:032}.")
    assert saver.saver.get_next_version(f"{9:032}.{0.25:016}", None) > f"{9:032}.{0.999:016}"


@pytest.mark.also_on(cluster="sync", redis62="async", lua54="sync")
@pytest.mark.parametrize("length", [2, 110])
async def test_a_cycle_of_parents_ends(saver: Uniform, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put of an ancestor below its own descendant makes the cycle.

    Each checkpoint counts once, except the one that was asked for.
    """
    monkeypatch.setattr(delta, "ANCESTORS_PER_PAGE", 50)
    names = [f"{number:03}" for number in range(length)]
    for number, one in enumerate(names):
        where = await put(saver, config("t", "", names[number - 1]), {"n": 1}, checkpoint_id=one)
        await saver.put_writes(where, [("d", number)], "task")
    for asked in (config("t"), config("t", "", names[-1])):
        history = await saver.get_delta_channel_history(config=asked, channels=["d"])
        assert [value for _, _, value in history["d"]["writes"]][-length + 1 :] == list(range(length - 1))
    assert (await saver.get_tuple(config("t"))).checkpoint["id"] == names[-1]
    assert len(await saver.list(config("t"))) == length
    assert (await saver.check("t")).sound
    await saver.copy_thread("t", "copy")
    assert len(await saver.list(config("copy"))) == length
    assert (await saver.prune(["t"], keep_last=1)).checkpoints <= length - 1
    assert (await saver.get_tuple(config("t"))).checkpoint["id"] == names[-1]
