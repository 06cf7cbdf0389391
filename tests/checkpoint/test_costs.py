"""Countable costs of each operation: round trips, keys, bytes, commands."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.counting import Counted, Traffic, load_scripts
from tests.support.factories import chain, checkpoint, config, put
from langgraph.checkpoint.base import INTERRUPT
from tests.support.uniform import Target, Uniform


@pytest.fixture
def target_name() -> str:
    return "redis"


@pytest.fixture
async def counted(target: Target) -> tuple[Uniform, Counted]:
    """A saver whose scripts the server has loaded, and its counter."""
    client = target.client()
    uniform = target.uniform(client=client)
    configs = await chain(uniform, "warm", 2)
    await uniform.put_writes(configs[-1], [("n", 1)], "task")
    await uniform.get_tuple(config("warm"))
    await uniform.list(config("warm"))
    await uniform.list(config("warm"), filter={"step": 1})
    await uniform.get_delta_channel_history(config=config("warm"), channels=["n"])
    await uniform.delete_thread("another")
    return uniform, Counted(client)


async def test_calls_on_one_thread_take_one_round_trip(counted: tuple[Uniform, Counted], is_encrypted: bool) -> None:
    """With encryption, a process also asks once for the data key of a thread."""
    uniform, counter = counted
    once = ["HGET"] if is_encrypted else []
    where = await put(uniform, config("t"), {"messages": ["a"] * 100, "n": 1, "m": None})
    assert counter.take() == [*once, "EVALSHA"]
    await uniform.put_writes(where, [("n", 1), ("m", 2), (INTERRUPT, 3)], "task", "path")
    assert counter.take() == ["EVALSHA"]
    await uniform.get_tuple(config("t"))
    assert counter.take() == ["EVALSHA"]
    await uniform.get_tuple(where)
    assert counter.take() == ["EVALSHA"]
    await uniform.get_tuple(config("absent"))
    assert counter.take() == [*once, "EVALSHA"]
    await uniform.get_delta_channel_history(config=where, channels=["n", "x"])
    assert counter.take() == ["EVALSHA"]
    await uniform.delete_thread("t")
    assert counter.take() == ["EVALSHA"]
    await uniform.put_writes(where, [], "task")
    assert counter.take() == []


async def test_delta_history_of_a_long_chain_comes_in_pages(counted: tuple[Uniform, Counted]) -> None:
    uniform, counter = counted
    configs = await chain(uniform, "long", 450)
    counter.take()
    history = await uniform.get_delta_channel_history(config=configs[-1], channels=["absent"])
    assert history == {"absent": {"writes": []}}
    assert counter.take() == ["EVALSHA"] * 3  # 200 ancestors each


async def test_list_takes_one_round_trip_per_page_and_two_with_a_filter(counted: tuple[Uniform, Counted]) -> None:
    uniform, counter = counted
    await chain(uniform, "listed", 120)
    counter.take()
    assert len(await uniform.list(config("listed"))) == 120
    assert counter.take() == ["EVALSHA"] * 3  # 50 + 50 + 20
    assert len(await uniform.list(config("listed"), limit=10)) == 10
    assert counter.take() == ["EVALSHA"]
    assert len(await uniform.list(config("listed"), filter={"step": {"$lt": 3}})) == 3
    assert counter.take() == ["EVALSHA"] * 2
    assert await uniform.list(config("listed"), limit=0) == []
    assert counter.take() == []


async def test_a_filtered_list_loads_no_values_of_skipped_checkpoints(
    counted: tuple[Uniform, Counted], target: Target
) -> None:
    uniform, _ = counted
    for step in range(20):
        await put(uniform, config("big"), {"big": b"x" * 100_000}, versions={"big": f"{step}"}, metadata={"step": step})
    traffic = Traffic(target)
    assert len(await uniform.list(config("big"), filter={"step": 7})) == 1
    assert traffic.take()[1] < 140_000


async def test_threads_takes_at_most_two_pipelines_per_scan(counted: tuple[Uniform, Counted]) -> None:
    uniform, counter = counted
    for number in range(20):
        await put(uniform, config(f"t{number}"), {"n": number})
    await uniform.threads()  # the server loads the script
    counter.take()
    assert len(await uniform.threads()) == 21
    sent = counter.take()
    assert sent.count("PIPELINE") <= 2 * sent.count("SCAN")  # first whether the indexes exist, then their contents
    await uniform.delete_for_runs(["nobody"])
    sent = counter.take()
    assert sent.count("PIPELINE") <= sent.count("SCAN") + 1


async def test_a_thread_of_any_size_has_two_keys(target: Target, saver: Uniform) -> None:
    configs = await chain(saver, "t", 10)
    await saver.put_writes(configs[-1], [("n", 1), (INTERRUPT, 2)], "task")
    keys = target.keys()
    assert keys == sorted(saver.saver._context.keyspace.keys("t"))
    await chain(saver, "t", 190, ns="sub|graph:1")
    assert target.keys() == keys


async def test_each_channel_version_is_stored_once(target: Target, saver: Uniform) -> None:
    data = saver.saver._context.keyspace.keys("t").data_key
    where = await put(saver, config("t"), {"big": "x" * 100_000, "n": 1})
    traffic = Traffic(target)
    for step in range(2, 12):
        made = checkpoint({"big": "x" * 100_000, "n": step}, {"big": "1", "n": f"{step}"})
        where = await saver.put(where, made, {}, {"n": f"{step}"})
    assert traffic.take()[0] < 20_000
    assert sum(map(len, target.raw.hvals(data))) < 110_000
    assert (await saver.get_tuple(where)).checkpoint["channel_values"] == {"big": "x" * 100_000, "n": 11}


@pytest.mark.by_turns
@pytest.mark.parametrize("checkpoints", [10, 300])
async def test_refreshing_a_deadline_costs_the_same_for_any_size(target: Target, checkpoints: int) -> None:
    saver = target.uniform(ttl=timedelta(hours=1))
    configs = await chain(saver, "t", checkpoints)
    target.raw.config_resetstat()
    await saver.put_writes(configs[-1], [("n", 1)], "task")
    stats = target.raw.info("commandstats")
    assert stats["cmdstat_pexpireat"]["calls"] == 2
    assert sum(entry["calls"] for entry in stats.values()) < 20


# -- commands that the scripts of a call run on the server


KINDS = ("ai", "human")
MESSAGES = [{"type": KINDS[n % 2], "id": f"{n:032}", "text": f"{n} words " * 30} for n in range(1001)]


def chat(saver: Any, thread: str, checkpoints: int) -> dict[str, Any]:
    """Make a chat that ends with 1,000 messages.

    Each checkpoint has a pending write, and a `DeltaChannel` has its snapshot ten checkpoints before the last.
    """
    where = config(thread)
    for step in range(checkpoints):
        length = 1000 - checkpoints + step + 1
        versions = {"messages": f"{step + 1:032}.x", "n": f"{step + 1:032}.x", "delta": f"{max(1, step):032}.x"}
        values: dict[str, Any] = {"messages": MESSAGES[:length], "n": step}
        if step == checkpoints - 10:
            values["delta"] = ["a snapshot"]
        made = checkpoint(values, versions)
        new = {channel: versions[channel] for channel in values}
        where = saver.put(where, made, {"source": "loop", "step": step, "parents": {}}, new)
        saver.put_writes(where, [("messages", [MESSAGES[length]]), ("delta", step)], f"task {step}")
    return where


def commands(raw: Any, call: Callable[[], object]) -> tuple[int, int]:
    """Return how many scripts a call runs, and how many commands they call."""
    raw.config_resetstat()
    call()
    stats = {name[8:]: entry["calls"] for name, entry in raw.info("commandstats").items()}
    others = ("info", "config", "hello", "client")
    return stats.pop("evalsha"), sum(calls for name, calls in stats.items() if not name.startswith(others))


A_CALL = {
    "put": 6, "put_writes": 6, "get_tuple, nothing known": 200, "get_tuple": 10, "get_tuple by id": 15, "a page of 10 of list": 300,
    "a DeltaChannel since its snapshot": 60, "get_thread": 15, "set_thread_ttl": 10, "delete_thread": 6,
}  # fmt: skip
"""Maximum number of commands that the scripts of a call may call, on a chat of 1,000 messages."""
A_STEP = {"list": 500, "history": 700, "copy_thread": 600, "prune": 600}
"""Maximum per script, for calls that read the history in steps."""


@pytest.mark.parametrize("flavour", ["sync"])
def test_server_work_does_not_grow_with_the_history(target: Target) -> None:
    """The times in docs/limits.md grow with a checkpoint's size, never with the number of earlier ones."""
    saver, raw, took = target.uniform().saver, target.raw, dict[str, list[int]]()
    load_scripts(raw)
    for length in (50, 200):
        thread, where = f"chat {length}", chat(saver, f"chat {length}", length)
        values = {"messages": MESSAGES, "n": length}
        with_one_more = checkpoint(values, dict.fromkeys(values, f"{length + 1:032}.x"))
        fresh, here, history = target.uniform().saver, config(thread), saver.get_delta_channel_history
        calls: dict[str, Callable[[], object]] = {
            "put_writes": lambda: saver.put_writes(where, [("n", 1), ("delta", 2), (INTERRUPT, 3)], "another task"),
            "put": lambda: saver.put(where, with_one_more, {"step": length}, with_one_more["channel_versions"]),
            "get_tuple": lambda: saver.get_tuple(here),
            "get_tuple, nothing known": lambda: fresh.get_tuple(here),
            "get_tuple by id": lambda: fresh.get_tuple(where),
            "a page of 10 of list": lambda: list(saver.list(here, limit=10)),
            "a DeltaChannel since its snapshot": lambda: history(config=where, channels=["delta"]),
            "get_thread": lambda: saver.get_thread(thread),
            "set_thread_ttl": lambda: saver.set_thread_ttl(thread, timedelta(hours=1)),
            "list": lambda: list(saver.list(here)),
            "history": lambda: history(config=where, channels=["absent"]),
            "copy_thread": lambda: saver.copy_thread(thread, "copy"),
            "prune": lambda: saver.prune(["copy"], keep_last=5),
            "delete_thread": lambda: saver.delete_thread(thread),
        }
        for what, call in calls.items():
            scripts, called = commands(raw, call)
            if what in A_STEP:
                assert called / scripts <= A_STEP[what], (what, length, scripts, called)
            else:
                assert called <= A_CALL[what], (what, length, scripts, called)
                took.setdefault(what, []).append(called)
    # With encryption the digests by which lists of chunks are cut differ between threads, and so do their numbers.
    most = 1.5 if target.is_encrypted else 1
    grown = {what: counts for what, counts in took.items() if max(counts) > most * min(counts)}
    assert not grown
