from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from bench.contestants import OURS, Contestant
from bench.history import text
from bench.measuring import RAW, Run, WrongResult, settled
from bench.meters import RedisMeter

CALLS = 20
OPERATIONS = ("put", "put_writes", "get_tuple")
WRITES = [("count", 7), ("answer", text("answer"))]
PROTOCOL = 45
"""Bytes of a SET, or of the reply to a GET, besides the value. With it a raw call never gets more bytes than ours."""


def run(run: Run) -> None:
    """put, put_writes and get_tuple of a small checkpoint, against raw SET and GET of the same bytes; microseconds."""
    rounds = run.size(30, 8, 1)
    for flavour in ("sync", "async"):
        sizes = {operation: 0 for operation in OPERATIONS}

        def act(contestant: Contestant, repetition: int, flavour: str = flavour, sizes: dict[str, int] = sizes) -> None:
            if not repetition:  # warm up, then learn how many bytes each call sends or receives
                act_once(run, contestant, flavour, None)
                act_once(run, contestant, flavour, sizes if contestant.name == OURS else None)
                return
            raw = contestant.raw if contestant.name == OURS else None
            case = {"flavour": flavour}
            if raw and repetition % 2:
                measure_raw(run, raw, case, sizes)
            for operation, seconds in act_once(run, contestant, flavour, None).items():
                for each in seconds:
                    run.sample(contestant, case, operation, "us", each * 1e6)
            if raw and not repetition % 2:
                measure_raw(run, raw, case, sizes)

        run.rotate(f"operations: {flavour}", rounds + 1, act)


def small(contestant: Contestant, before: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a checkpoint of three short values, one of them changed since `before`, and the new versions."""
    count = before["channel_values"]["count"] + 1 if before else 0
    values = {"question": text("question"), "count": count, "plan": {"steps": ["look up", "answer"], "done": False}}
    versions = dict(before["channel_versions"]) if before else {}
    new = {
        channel: contestant.saver.get_next_version(versions.get(channel), None)
        for channel in (["count"] if before else values)
    }
    versions |= new
    seen = {"__input__": {}, "agent": dict(versions)}
    made = {"channel_values": values, "channel_versions": versions, "versions_seen": seen}
    return {**empty_checkpoint(), **made}, new


def small_thread(contestant: Contestant) -> dict[str, Any]:
    """Make a thread with a small checkpoint and two pending writes; return its config."""
    where: Any = {"configurable": {"thread_id": contestant.thread(), "checkpoint_ns": ""}}
    checkpoint, new = small(contestant, None)
    written = contestant.saver.put(where, checkpoint, {"source": "loop", "step": 0, "parents": {}}, new)
    contestant.saver.put_writes(written, WRITES, "task")
    return where


def act_once(run: Run, contestant: Contestant, flavour: str, sizes: dict[str, int] | None) -> dict[str, list[float]]:
    """Make some calls of each operation in a new thread; return the seconds of each call."""
    where: dict[str, Any] = {"configurable": {"thread_id": contestant.thread(), "checkpoint_ns": ""}}
    first, new = small(contestant, None)
    checkpoints = [(first, new)]
    count = run.size(CALLS, CALLS, 2)
    for _ in range(count):
        checkpoints.append(small(contestant, checkpoints[-1][0]))
    latest = {"configurable": dict(where["configurable"])}
    metadata = [{"source": "loop", "step": step, "parents": {}} for step in range(count + 1)]
    where = contestant.saver.put(where, first, metadata[0], new)
    configs = [where]
    for checkpoint, _ in checkpoints[1:]:
        named = {"configurable": {**where["configurable"], "checkpoint_id": checkpoint["id"]}}
        configs.append(named)
    calls: dict[str, list[tuple[Any, ...]]] = {
        "put": [(configs[n - 1], checkpoints[n][0], metadata[n], checkpoints[n][1]) for n in range(1, count + 1)],
        "put_writes": [(configs[n], WRITES, f"task-{n:031}") for n in range(1, count + 1)],
        "get_tuple": [(latest,)] * count,
    }
    taken = {}
    meter = contestant.meter if sizes is not None and isinstance(contestant.meter, RedisMeter) else None
    for operation, arguments in calls.items():
        before = meter.traffic() if meter else None
        if flavour == "async":
            taken[operation], result = run.wait(times_async(getattr(contestant.asaver, f"a{operation}"), arguments))
        else:
            taken[operation], result = times(getattr(contestant.saver, operation), arguments)
        if meter and before and sizes is not None:
            traffic = meter.between(before, meter.traffic())
            sizes[operation] = (traffic.received if operation == "get_tuple" else traffic.sent) // count
    if result is None or result.checkpoint["channel_values"] != checkpoints[-1][0]["channel_values"]:
        raise WrongResult("get_tuple did not give back the last checkpoint")
    if [write[1:] for write in result.pending_writes] != WRITES:
        raise WrongResult("get_tuple did not give back the pending writes")
    return taken


def times(call: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> tuple[list[float], Any]:
    """Return the seconds of each call, and the last result."""
    taken, result = [], None
    with settled():
        for each in arguments:
            start = time.perf_counter()
            result = call(*each)
            taken.append(time.perf_counter() - start)
    return taken, result


async def times_async(call: Callable[..., Awaitable[Any]], arguments: list[tuple[Any, ...]]) -> tuple[list[float], Any]:
    """Async `times`."""
    taken, result = [], None
    with settled():
        for each in arguments:
            start = time.perf_counter()
            result = await call(*each)
            taken.append(time.perf_counter() - start)
    return taken, result


def measure_raw(run: Run, clients: tuple[Any, Any], case: dict[str, Any], sizes: dict[str, int]) -> None:
    """Measure SET and GET of as many bytes, through the same client."""
    client, aclient = clients
    count = run.size(CALLS, CALLS, 2)
    for operation, size in sizes.items():
        key, value = "bench-raw", b"x" * max(1, size - PROTOCOL)
        client.set(key, value)
        arguments: list[tuple[Any, ...]] = [(key,)] * count if operation == "get_tuple" else [(key, value)] * count
        name = "get" if operation == "get_tuple" else "set"
        if case["flavour"] == "async":
            taken, _ = run.wait(times_async(getattr(aclient, name), arguments))
        else:
            taken, _ = times(getattr(client, name), arguments)
        client.delete(key)
        for each in taken:
            run.sample(RAW, case, operation, "us", each * 1e6)
