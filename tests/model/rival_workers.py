"""The workers of `rivals.py`: each runs a graph on a shared thread, with or without ownership, and reports its acts."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import wraps
from operator import add
from typing import Annotated, Any

import psycopg
import redis
from crash_workers import be_quick, pool
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.errors import EmptyInputError
from langgraph.graph import START, StateGraph
from nursery import Say
from typing_extensions import TypedDict

from redis_saver import AsyncRedisSaver, AsyncTieredSaver, RedisSaver, TieredSaver
from redis_saver._checkpoint import ownership
from redis_saver._client.clients import connect
from redis_saver.errors import NotOwner, StaleParent, ThreadBusy
from tests.support.factories import config as config_of
from tests.support.talking import call_graph
from tests.support.uniform import Block, Uniform

FAILURES = (redis.ConnectionError, redis.TimeoutError, OSError, psycopg.OperationalError, ThreadBusy)
"""Errors that a run may raise while connections break. Any other error is a bug."""
LEASE = "1s"
PROBES, PROBE_PAUSE = 300, 0.01
NODES = ("a", "c", "x", "y", "b")
"""The nodes, in the order of a turn's log."""


Log = Annotated[list[str], add]
State = TypedDict("State", {"turn": int, "log": Log, "found": list[str]})
"""`log` has the committed entries: `<turn> <node> <task> <epoch>`."""
Inner = TypedDict("Inner", {"turn": int, "found": Log})
Given = TypedDict("Given", {"turn": int})
Answered = TypedDict("Answered", {"found": list[str]})


def epoch_of(config: Any) -> int:
    """Epoch of the run, or 0 without ownership."""
    return int(str(config["configurable"].get("thread_owner") or "0").split("-")[0])


def graph(saver: Any, say: Say, pause: Any) -> Any:
    """Build a graph with parallel nodes, one of them a subgraph, between two others. Each node reports its effect."""

    def node(name: str, channel: str) -> Any:
        def run(state: Any, config: RunnableConfig) -> Any:
            where = config["configurable"]
            task, epoch = where["__pregel_task_id"], epoch_of(config)
            at = where.get("checkpoint_map", {})
            say(effect=name, task=task, epoch=epoch, checkpoints=list(at.values()), at=time.monotonic())
            time.sleep(pause())
            entry = f"{state['turn']} {name} {task} {epoch}"
            return {channel: [*state["found"], entry] if name == "b" else [entry]}

        return run

    inner = StateGraph(Inner, input_schema=Given, output_schema=Answered)
    inner.add_node("x", node("x", "found")).add_node("y", node("y", "found"))
    inner.add_edge(START, "x").add_edge("x", "y")
    outer = StateGraph(State)
    for name in ("a", "c", "b"):
        outer.add_node(name, node(name, "log"))
    outer.add_node("sub", inner.compile())
    outer.add_edge(START, "a").add_edge("a", "sub").add_edge("a", "c").add_edge(["sub", "c"], "b")
    return outer.compile(checkpointer=saver)


def telling(saver: Any, say: Say) -> Any:
    """Wrap a saver so that it reports which writes were acknowledged."""

    @contextmanager
    def reported(method: str, config: Any, checkpoint: Any) -> Iterator[None]:
        where, run, outcome = config["configurable"], config["metadata"]["run_id"], "ok"
        made = checkpoint["id"] if method == "put" else where["checkpoint_id"]
        place = {"ns": where.get("checkpoint_ns", ""), "id": made, "parent": where.get("checkpoint_id")}
        told = {method: made, "epoch": epoch_of(config), **place, "run": run, "begin": time.monotonic()}
        try:
            yield
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            say(**told, end=time.monotonic(), outcome=outcome)

    class Telling(type(saver)):  # type: ignore[misc]
        def __init__(self) -> None:
            self.__dict__.update(saver.__dict__)

        def put(self, config: Any, given: Any, *more: Any) -> Any:
            with reported("put", config, given):
                return super().put(config, given, *more)

        def put_writes(self, config: Any, given: Any, *more: Any) -> Any:
            with reported("put_writes", config, given):
                return super().put_writes(config, given, *more)

        async def aput(self, config: Any, given: Any, *more: Any) -> Any:
            with reported("put", config, given):
                return await super().aput(config, given, *more)

        async def aput_writes(self, config: Any, given: Any, *more: Any) -> Any:
            with reported("put_writes", config, given):
                return await super().aput_writes(config, given, *more)

    return Telling()


class SlowPostgres(PostgresSaver):
    """A PostgresSaver with slow puts, so that other processes act between the two tiers."""

    pause = 0.0

    def put(self, *arguments: Any) -> Any:
        time.sleep(random.random() * self.pause)
        return super().put(*arguments)


class SlowAsyncPostgres(AsyncPostgresSaver):
    pause = 0.0

    async def aput(self, *arguments: Any) -> Any:
        await asyncio.sleep(random.random() * self.pause)
        return await super().aput(*arguments)


async def a_saver(spec: dict[str, Any], stack: AsyncExitStack) -> Any:
    """The saver that a spec describes: over one server or two tiers, blocking or async."""
    is_async, options = spec["flavour"] == "async", {"prefix": spec["prefix"], **spec.get("options", {})}
    client = connect(spec["redis"], asynchronous=is_async)
    stack.push_async_callback(client.aclose) if is_async else stack.callback(client.close)
    hot: Any = (AsyncRedisSaver if is_async else RedisSaver)(client, **options)
    if not spec.get("mode"):
        return hot
    connections = pool(spec["postgres"], f"rival {os.getpid()}", asynchronous=is_async, size=2)
    await stack.enter_async_context(Block(connections, is_async))
    cold: Any = (SlowAsyncPostgres if is_async else SlowPostgres)(connections)
    cold.pause = spec["pause"]
    saver: Any = (AsyncTieredSaver if is_async else TieredSaver)(hot, cold, mode=spec["mode"])
    return await stack.enter_async_context(Block(saver, is_async))


async def turn(compiled: Any, config: Any, **options: Any) -> None:
    """Continue the interrupted turn, or begin one."""
    state = await call_graph(compiled, "get_state", config)
    given = None if state.tasks else {"turn": 1 + state.values.get("turn", 0)}  # `next` leaves out finished tasks
    await call_graph(compiled, "invoke", given, config, **options)


async def block(saver: Any, compiled: Any, spec: dict[str, Any], run: str, say: Say) -> None:
    """Run one turn, as owner of the thread if the spec says so."""
    thread, options = spec["thread"], {"durability": spec["durability"]}
    if not spec["on_busy"]:
        await turn(compiled, {"configurable": {"thread_id": thread}, "metadata": {"run_id": run}}, **options)
        return
    more = {"wait": "60s"} if spec["on_busy"] == "wait" else {}
    owned = saver.own(thread, lease=LEASE, on_busy=spec["on_busy"], run_id=run, **more)
    async with Block(owned, spec["flavour"] == "async") as given:
        epoch = epoch_of(given)
        say(took=epoch, run=run, at=time.monotonic())
        config = {**given, "metadata": {**given["metadata"], "epoch": epoch}}
        try:
            await turn(compiled, config, **options)
        except EmptyInputError:  # the thread that `get_state` showed is gone
            await asyncio.sleep(2)  # by then a renewal has noticed the rollback by another run, if that was it
            if not owned.is_lost:
                raise
            raise NotOwner("a rollback by another run left nothing") from None


def telling_of_rollbacks(say: Say) -> None:
    """Report each run that this process will roll back, before it does."""
    to_roll_back = getattr(ownership.to_roll_back, "__wrapped__", ownership.to_roll_back)

    @wraps(to_roll_back)
    def told(terms: Any, record: Any) -> Any:
        if run := to_roll_back(terms, record):
            say(rolls_back=run, by=terms.run_id)
        return run

    ownership.to_roll_back = told


async def probe(spec: dict[str, Any], say: Say) -> str:
    """Store pending writes without a token, for a task that no graph has."""
    where = config_of(spec["thread"])
    async with AsyncExitStack() as stack:
        uniform = Uniform(await a_saver(spec, stack))
        for number in range(PROBES):
            await asyncio.sleep(PROBE_PAUSE)
            begin, outcome = time.monotonic(), "ok"
            try:
                if (newest := await uniform.get_tuple(where)) is None:
                    continue
                begin = time.monotonic()
                await uniform.put_writes(newest.config, [("probe", number)], f"probe {os.getpid()} {number}")
            except (NotOwner, *FAILURES) as error:
                outcome = type(error).__name__
            say(probe=number, begin=begin, end=time.monotonic(), outcome=outcome)
    return "ok"


async def work(spec: dict[str, Any], say: Say) -> str:
    """Run the turns of the spec, whether they succeed or not."""
    if spec["on_busy"] == "probe":
        return await probe(spec, say)
    telling_of_rollbacks(say)
    chance = random.Random(f"{spec['seed']} {os.getpid()}")
    async with AsyncExitStack() as stack:
        saver = telling(await a_saver(spec, stack), say)
        compiled = graph(saver, say, lambda: chance.random() * spec["pause"])
        for number in range(spec["blocks"]):
            try:
                await block(saver, compiled, spec, f"run-{os.getpid()}-{number}", say)
                say(done=number)
            except (NotOwner, StaleParent) as error:
                say(refused=str(error))
                await asyncio.sleep(0.01 * chance.random())
            except FAILURES as error:
                say(failed=f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.02)
    return "ok"


def serve(spec: dict[str, Any], say: Say) -> str:
    """Run in a worker process. Return a traceback instead of raising an error."""
    be_quick()
    try:
        return asyncio.run(work(spec, say))
    except Exception:
        import traceback

        return traceback.format_exc()
