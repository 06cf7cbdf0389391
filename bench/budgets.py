"""Budgets for speed and cost, and whether a run meets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.contestants import (
    BEHIND,
    LATEST,
    MEMORY,
    NOTHING,
    OURS,
    POSTGRES,
    RAW_CALLS,
    THROUGH,
)
from bench.options import COUNTING
from bench.workloads import inspector
from bench.workloads.capacity import CALLERS, PROCESSES
from bench.workloads.delta import DELTA, LENGTHS, PLAIN
from bench.workloads.reads import THREADS
from bench.workloads.waiting import BEHIND_ONE, WAITERS

Rows = list[dict[str, Any]]
Budget = dict[str, Any]


def ours(rows: Rows, field: str, **wanted: Any) -> float | None:
    """Return a field of our saver's matching row; None if not measured."""
    return of(rows, OURS, field, **wanted)


def of(rows: Rows, saver: str, field: str, **wanted: Any) -> float | None:
    """Return a field of a saver's matching row; None if not measured."""
    for row in rows:
        if row["saver"] == saver and all(row.get(key) == value for key, value in wanted.items()):
            return None if row[field] is None else float(row[field])
    return None


def judge(rows: Rows) -> list[Budget]:
    """Return each budget with its measured value and verdict (None if not measured)."""
    budgets: list[Budget] = []

    def budget(what: str, measured: float | None, limit: float, *, most: bool = True) -> None:
        met = None if measured is None else (measured <= limit if most else measured >= limit)
        said = f"{'<=' if most else '>='} {limit:g}"
        shown = None if measured is None else round(measured, 3)
        budgets.append({"budget": what, "limit": said, "measured": shown, "met": met})

    def against_memory(**wanted: Any) -> float | None:
        return ours(rows, "of_memory", **wanted)

    def cost(metric: str) -> float | None:
        return ours(rows, "median", workload="cost", metric=metric, turns=100)

    for messages in (100, 400):
        wanted = {"workload": "chat", "metric": "turn", "messages": messages, "flavour": "sync", "start": "warm"}
        for durability in ("sync", "async"):
            measured = against_memory(**wanted, durability=durability)
            budget(f"chat turn, {messages} messages, sync, durability {durability}: x {MEMORY}", measured, 0.65)
    judge_calls(rows, budget)
    budget(
        f"turns a second, 100 callers: x {MEMORY}", against_memory(workload="throughput", callers=100), 1.3, most=False
    )
    for flavour in ("sync", "async"):
        for operation, raw in (("put", "SET"), ("get_tuple", "GET")):
            wanted = {"workload": "operations", "flavour": flavour, "metric": operation}
            measured = ours(rows, "of_raw", **wanted)
            budget(f"{operation}, small, {flavour}, p50: x raw {raw}", measured, 2)
    budget("server memory grown over 100 turns, MB", cost("memory grown"), 1.5)
    budget("sent a turn on average of 100, kB", cost("sent on average"), 15)
    budget("server time a call on average of 100 turns, us", cost("server time a call"), 40)
    few, many = (
        ours(rows, "median", workload="growth", metric="sent by put", messages=messages) for messages in (100, 1000)
    )
    measured = many / few if few and many else None
    budget("bytes of a put, 1,000 messages: x 100 messages", measured, 2)
    judge_delta(rows, budget)
    judge_tiers(rows, budget)
    judge_waiting(rows, budget)
    for page in inspector.PAGES:
        measured = ours(rows, "median", workload="inspector", metric=inspector.METRIC, page=page, checkpoints=10_000)
        budget(f"inspector, 10,000 checkpoints: {page}, ms of processor time", measured, 100)
    for page in ("a large checkpoint", "a large value"):
        measured = ours(rows, "median", workload="inspector", page=page)
        budget(f"inspector, {page} of 50 MB: memory grown, MB", measured, 64)
    measured = ours(rows, "median", workload="overheads", option=COUNTING, metric="turn: work, x without")
    budget("counting, work of a turn: x without", measured, 1.01)
    return budgets


def judge_calls(rows: Rows, budget: Callable[..., None]) -> None:
    """Judge the cost above one round trip per call, and our saver against the others where that cost dominates."""
    turn = {"workload": "chat", "metric": "turn", "flavour": "sync", "durability": "sync", "start": "warm"}
    for messages, limit in ((10, 1.4), (100, 1.4), (400, 1.5)):
        measured = ours(rows, "of_raw_calls", **turn, messages=messages)
        budget(f"chat turn, {messages} messages, sync: x {RAW_CALLS}", measured, limit)
    few = [row for row in rows if row.items() >= (turn | {"messages": 10}).items()]
    others = [row["median"] for row in few if row["saver"] not in (OURS, MEMORY, NOTHING, RAW_CALLS)]
    mine = ours(rows, "median", **turn, messages=10)
    measured = mine / min(others) if mine and others else None
    budget("chat turn, 10 messages, sync: x the fastest other that stores", measured, 1)
    measured = ours(rows, "of_raw_calls", workload="throughput", callers=100)
    budget(f"turns a second, 100 callers: x {RAW_CALLS}", measured, 0.75, most=False)
    callers = PROCESSES * CALLERS
    measured = ours(rows, "of_raw_calls", workload="capacity", metric="server time a call", callers=callers)
    budget(f"server time a call, {callers} callers: x {RAW_CALLS}", measured, 2)


def judge_waiting(rows: Rows, budget: Callable[..., None]) -> None:
    """Judge how soon waiters get a thread, and what they cost the server."""
    for flavour in ("sync", "async"):
        for waiters, limit in zip(WAITERS, (0.8, 1.8), strict=True):
            wanted: dict[str, Any] = {"workload": "waiting", "waiters": waiters, "flavour": flavour}
            budget(
                f"{waiters} waiters, {flavour}, s", ours(rows, "median", **wanted, metric="all had the thread"), limit
            )
            budget(f"{waiters} waiters, {flavour}: handover, ms", ours(rows, "median", **wanted, metric="handover"), 20)
    measured = ours(rows, "median", workload="waiting", metric="server's share of a core")
    budget(f"{BEHIND_ONE} waiters: the server's share of a core, %", measured, 2)


def judge_delta(rows: Rows, budget: Callable[..., None]) -> None:
    """Judge turns with `DeltaChannel`s: their cost depends on new messages, not on the length of the chat."""

    def median(metric: str, messages: int) -> float | None:
        return ours(rows, "median", workload="delta", channel=DELTA, metric=metric, messages=messages)

    few, many = LENGTHS
    said = f"DeltaChannel, {many:,} messages"
    budget(f"{said}: received a turn, kB", median("received on average", many), 5)
    one, other = median("sent on average", many), median("sent on average", few)
    budget(f"{said}: sent a turn, x {few} messages", one / other if one and other else None, 1.3)
    budget(f"{said}: worst turn, both ways, kB", median("worst turn, both ways", many), 60)
    for messages in LENGTHS:
        measured = median(f"turns: x {PLAIN}", messages)
        budget(f"DeltaChannel, {messages:,} messages: turn, x {PLAIN}", measured, 1.1)
    metric = "bytes both ways, second half: x first half"
    measured = ours(rows, "median", workload="deep-agent", metric=metric, turns=100)
    budget("Deep Agent, second 50 turns: bytes, x first 50", measured, 1.15)


def judge_tiers(rows: Rows, budget: Callable[..., None]) -> None:
    """Judge the tiered savers."""

    def median(saver: str, **wanted: Any) -> float | None:
        return of(rows, saver, "median", **wanted)

    def times(one: float | None, other: float | None) -> float | None:
        return one / other if one and other else None

    for saver in (THROUGH, BEHIND):
        for checkpoint in THREADS:
            for flavour in ("sync", "async"):
                wanted = {"workload": "reads", "checkpoint": checkpoint, "flavour": flavour}
                measured = of(rows, saver, "of_ours", **wanted)
                budget(f"{saver}, get_tuple, {checkpoint}, {flavour}: x {OURS}", measured, 1.1)
    turn = {"workload": "tiers", "metric": "turn"}
    for saver in (BEHIND, LATEST):
        budget(f"{saver}, turn: x {OURS}", times(median(saver, **turn), median(OURS, **turn)), 1.25)
    sent = {"workload": "tiers", "metric": "statements to Postgres, a turn"}
    measured = times(median(POSTGRES, **sent), median(LATEST, **sent))
    budget(f"statements of {POSTGRES}: x those of {LATEST}", measured, 4, most=False)
