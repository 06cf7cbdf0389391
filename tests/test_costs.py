"""What each operation costs, where that can be counted: round trips, keys, bytes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from faces import Face, Target
from langgraph.checkpoint.base import INTERRUPT
from make import chain, checkpoint, config, put


class Counted:
    """A client that counts what is sent: a command, or a whole pipeline, is one round trip."""

    def __init__(self, client: Any) -> None:
        self.client, self.sent = client, list[Any]()
        self.send, self.make_pipeline = client.execute_command, client.pipeline
        if self.is_async:
            client.execute_command = self.asend
        else:
            client.execute_command = lambda *args, **kwargs: (self.sent.append(args), self.send(*args, **kwargs))[1]
        client.pipeline = lambda *args, **kwargs: (
            self.sent.append(("PIPELINE",)),
            self.make_pipeline(*args, **kwargs),
        )[1]

    @property
    def is_async(self) -> bool:
        return hasattr(self.client, "aclose") and "asyncio" in type(self.client).__mro__[0].__module__

    async def asend(self, *args: Any, **kwargs: Any) -> Any:
        self.sent.append(args)
        return await self.send(*args, **kwargs)

    def take(self) -> list[str]:
        names = [str(args[0]) for args in self.sent]
        self.sent.clear()
        return names


@pytest.fixture
def target_name(request: pytest.FixtureRequest) -> str:
    return "redis"


@pytest.fixture
async def counted(target: Target) -> tuple[Face, Counted]:
    """A saver whose scripts the server knows, and its counter."""
    client = target.client()
    face = target.face(client=client)
    configs = await chain(face, "warm", 2)
    await face.put_writes(configs[-1], [("n", 1)], "task")
    await face.get_tuple(config("warm"))
    await face.list(config("warm"))
    await face.list(config("warm"), filter={"step": 1})
    await face.get_delta_channel_history(config=config("warm"), channels=["n"])
    await face.delete_thread("another")
    return face, Counted(client)


async def test_one_round_trip(counted: tuple[Face, Counted]) -> None:
    face, counter = counted
    where = await put(face, config("t"), {"messages": ["a"] * 100, "n": 1, "m": None})
    assert counter.take() == ["EVALSHA"]
    await face.put_writes(where, [("n", 1), ("m", 2), (INTERRUPT, 3)], "task", "path")
    assert counter.take() == ["EVALSHA"]
    await face.get_tuple(config("t"))
    assert counter.take() == ["EVALSHA"]
    await face.get_tuple(where)
    assert counter.take() == ["EVALSHA"]
    await face.get_tuple(config("absent"))
    assert counter.take() == ["EVALSHA"]
    await face.get_delta_channel_history(config=where, channels=["n", "x"])
    assert counter.take() == ["EVALSHA"]
    await face.delete_thread("t")
    assert counter.take() == ["EVALSHA"]
    await face.put_writes(where, [], "task")
    assert counter.take() == []


async def test_history_of_a_long_chain_goes_in_pages(counted: tuple[Face, Counted]) -> None:
    face, counter = counted
    configs = await chain(face, "long", 450)
    counter.take()
    history = await face.get_delta_channel_history(config=configs[-1], channels=["absent"])
    assert history == {"absent": {"writes": []}}
    assert counter.take() == ["EVALSHA"] * 3  # 200 ancestors each


async def test_list_takes_one_round_trip_a_page_and_two_with_a_filter(counted: tuple[Face, Counted]) -> None:
    face, counter = counted
    await chain(face, "listed", 120)
    counter.take()
    assert len(await face.list(config("listed"))) == 120
    assert counter.take() == ["EVALSHA"] * 3  # 50 + 50 + 20
    assert len(await face.list(config("listed"), limit=10)) == 10
    assert counter.take() == ["EVALSHA"]
    assert len(await face.list(config("listed"), filter={"step": {"$lt": 3}})) == 3
    assert counter.take() == ["EVALSHA"] * 2
    assert await face.list(config("listed"), limit=0) == []
    assert counter.take() == []


async def test_a_filtered_list_loads_no_values_of_what_it_passes_over(
    counted: tuple[Face, Counted], target: Target
) -> None:
    face, _ = counted
    for step in range(20):
        await put(face, config("big"), {"big": b"x" * 100_000}, versions={"big": f"{step}"}, metadata={"step": step})
    before = target.raw.info("stats")["total_net_output_bytes"]
    assert len(await face.list(config("big"), filter={"step": 7})) == 1
    assert target.raw.info("stats")["total_net_output_bytes"] - before < 150_000


async def test_all_threads_in_a_pipeline_each_batch(counted: tuple[Face, Counted]) -> None:
    face, counter = counted
    for number in range(20):
        await put(face, config(f"t{number}"), {"n": number})
    await face.threads()  # the server learns the script
    counter.take()
    assert len(await face.threads()) == 21
    sent = counter.take()
    assert sent.count("PIPELINE") <= 2 * sent.count("SCAN")  # are the indexes there? then what is in them
    await face.delete_for_runs(["nobody"])
    sent = counter.take()
    assert sent.count("PIPELINE") <= sent.count("SCAN") + 1


async def test_a_thread_is_two_keys_whatever_it_holds(target: Target, saver: Face) -> None:
    configs = await chain(saver, "t", 10)
    await saver.put_writes(configs[-1], [("n", 1), (INTERRUPT, 2)], "task")
    keys = target.keys()
    assert keys == sorted(saver.saver.keyspace.keys("t"))
    await chain(saver, "t", 990, ns="sub|graph:1")
    assert target.keys() == keys


async def test_each_channel_version_is_stored_once(target: Target, saver: Face) -> None:
    data = saver.saver.keyspace.keys("t").data_key
    made = checkpoint({"big": "x" * 100_000, "n": 1})
    where = await saver.put(config("t"), made, {}, made["channel_versions"])
    size = target.raw.info("stats")["total_net_input_bytes"]
    for step in range(2, 12):
        made = checkpoint({"big": "x" * 100_000, "n": step}, {"big": "1", "n": f"{step}"})
        where = await saver.put(where, made, {}, {"n": f"{step}"})
    assert target.raw.info("stats")["total_net_input_bytes"] - size < 20_000
    assert sum(map(len, target.raw.hvals(data))) < 110_000
    assert (await saver.get_tuple(where)).checkpoint["channel_values"] == {"big": "x" * 100_000, "n": 11}


async def test_a_small_checkpoint_costs_few_bytes(target: Target, saver: Face) -> None:
    """The header of a checkpoint as LangGraph writes it, with three channels."""
    versions = {name: saver.saver.get_next_version(None, None) for name in ("messages", "branch:to:agent", "__start__")}
    made = checkpoint({"messages": [], "branch:to:agent": None}, versions)
    made["versions_seen"] = {"__input__": {}, "__start__": {"__start__": versions["__start__"]}}
    await saver.put(config("t"), made, {"source": "loop", "step": 1, "parents": {}}, versions)
    data = target.raw.hgetall(saver.saver.keyspace.keys("t").data_key)
    (header,) = [value for field, value in data.items() if field[:1] == b"c"]
    assert len(header) < 600


@pytest.mark.parametrize("checkpoints", [10, 1000])
async def test_refreshing_a_deadline_costs_the_same_for_any_size(target: Target, checkpoints: int) -> None:
    saver = target.face(ttl=timedelta(hours=1))
    configs = await chain(saver, "t", checkpoints)
    target.raw.config_resetstat()
    await saver.put_writes(configs[-1], [("n", 1)], "task")
    stats = target.raw.info("commandstats")
    assert stats["cmdstat_pexpireat"]["calls"] == 2
    assert sum(entry["calls"] for entry in stats.values()) < 20
