"""Each public method of other async savers: ours accepts the same call, or refuses it clearly."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
import redis.asyncio
import valkey.asyncio
from tests.support.factories import checkpoint, config
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from redis_saver import AsyncRedisCache, AsyncRedisSaver, AsyncRedisStore, AsyncTieredSaver, AsyncTieredStore
from redis_saver import CalledOnEventLoop, RedisSaver


class BlockingCold(InMemoryStore):
    """A store whose `setup` blocks, like `PostgresStore`."""

    made = 0

    def setup(self) -> None:
        assert threading.current_thread() is not threading.main_thread()
        BlockingCold.made += 1


OTHERS = [
    ("langgraph.checkpoint.postgres.aio", "AsyncPostgresSaver"),
    ("langgraph.checkpoint.sqlite.aio", "AsyncSqliteSaver"),
    ("langgraph.checkpoint.redis.aio", "AsyncRedisSaver"),
    ("langgraph_checkpoint_aws", "AsyncValkeySaver"),
]
SAME = "the same call"
IN_A_THREAD = "a blocking call: refused on the event loop"
NOT_OURS = "no such method: docs/coming-from.md has what to write"
GIVEN = checkpoint({"n": 1}, {"n": f"{1:032}.1"})
AT = config("t", "", GIVEN["id"])

CALLS: dict[str, tuple[Any, str]] = {
    "aget": (lambda saver: saver.aget(config("t")), SAME),
    "aget_tuple": (lambda saver: saver.aget_tuple(config("t")), SAME),
    "alist": (lambda saver: drained(saver.alist(config("t"), filter={"step": 1}, before=AT, limit=1)), SAME),
    "aput": (lambda saver: saver.aput(config("t"), GIVEN, {"step": 1}, GIVEN["channel_versions"]), SAME),
    "aput_writes": (lambda saver: saver.aput_writes(AT, [("n", 2)], "task", "path"), SAME),
    "adelete_thread": (lambda saver: saver.adelete_thread("u"), SAME),
    "adelete_for_runs": (lambda saver: saver.adelete_for_runs(["run"]), SAME),
    "acopy_thread": (lambda saver: saver.acopy_thread("t", "u"), SAME),
    "aprune": (lambda saver: saver.aprune(["t"], strategy="keep_latest"), SAME),
    "aget_delta_channel_history": (
        lambda saver: saver.aget_delta_channel_history(config=config("t"), channels=["n"]),
        SAME,
    ),
    "setup": (lambda saver: saver.setup(), SAME),
    "asetup": (lambda saver: saver.asetup(), SAME),
    "get_next_version": (lambda saver: at_once(saver.get_next_version(None, None)), SAME),
    "with_allowlist": (lambda saver: at_once(saver.with_allowlist([("os", "path")])), SAME),
    "get": (lambda saver: saver.get(config("t")), IN_A_THREAD),
    "get_tuple": (lambda saver: saver.get_tuple(config("t")), IN_A_THREAD),
    "list": (lambda saver: list(saver.list(config("t"))), IN_A_THREAD),
    "put": (lambda saver: saver.put(config("t"), GIVEN, {}, {}), IN_A_THREAD),
    "put_writes": (lambda saver: saver.put_writes(AT, [("n", 2)], "task"), IN_A_THREAD),
    "delete_thread": (lambda saver: saver.delete_thread("u"), IN_A_THREAD),
    "delete_for_runs": (lambda saver: saver.delete_for_runs(["run"]), IN_A_THREAD),
    "copy_thread": (lambda saver: saver.copy_thread("t", "u"), IN_A_THREAD),
    "prune": (lambda saver: saver.prune(["t"]), IN_A_THREAD),
    "get_delta_channel_history": (
        lambda saver: saver.get_delta_channel_history(config=config("t"), channels=["n"]),
        IN_A_THREAD,
    ),
    "aget_channel_values": (lambda saver: saver.aget_channel_values("t"), NOT_OURS),
    "get_channel_values": (lambda saver: saver.get_channel_values("t"), NOT_OURS),
    "aset_client_info": (lambda saver: saver.aset_client_info(), NOT_OURS),
    "set_client_info": (lambda saver: saver.set_client_info(), NOT_OURS),
    "configure_client": (lambda saver: saver.configure_client(), NOT_OURS),
    "create_indexes": (lambda saver: saver.create_indexes(), NOT_OURS),
    "from_pool": (lambda saver: type(saver).from_pool(None), NOT_OURS),
    "from_conn_string": (lambda saver: at_once(type(saver).from_conn_string("redis://localhost")), SAME),
}  # fmt: skip
"""Calls as users of other savers write them, and their outcome here."""


async def drained(stream: Any) -> list[Any]:
    return [one async for one in stream]


async def at_once(answer: Any) -> Any:
    return answer


def public(kind: type[Any]) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}


@pytest.mark.parametrize(("module", "name"), OTHERS)
def test_the_table_covers_each_method_of_other_savers(module: str, name: str) -> None:
    kind = getattr(pytest.importorskip(module), name)
    assert public(kind) <= set(CALLS)
    for method in public(kind) & public(AsyncRedisSaver):
        theirs, ours = getattr(kind, method), getattr(AsyncRedisSaver, method)
        assert inspect.iscoroutinefunction(theirs) <= inspect.iscoroutinefunction(ours), method


@pytest.mark.parametrize("method", CALLS)
async def test_a_call_for_another_saver_works_or_is_refused(method: str) -> None:
    call, expected = CALLS[method]
    async with AsyncRedisSaver.from_conn_string("memory://") as saver:
        await saver.aput(config("t"), GIVEN, {"step": 1}, GIVEN["channel_versions"])
        if expected == SAME:
            await call(saver)
        elif expected == IN_A_THREAD:
            with pytest.raises(CalledOnEventLoop):
                call(saver)
        else:
            with pytest.raises(AttributeError, match=f"'AsyncRedisSaver' (object )?has no attribute '{method}'"):
                call(saver)


SETTINGS: dict[str, tuple[Any, str]] = {
    "Postgres": (
        lambda: AsyncRedisSaver.from_conn_string("redis://h", pipeline=True),
        "unexpected keyword argument 'pipeline'",
    ),
    "Postgres, pipe": (lambda: AsyncRedisSaver(redis.asyncio.Redis(), pipe=None), "unexpected keyword argument 'pipe'"),
    "Postgres, conn": (lambda: AsyncRedisSaver(conn=1), "unexpected keyword argument 'conn'"),
    "Redis": (
        lambda: AsyncRedisSaver.from_conn_string("redis://h", checkpoint_prefix="a"),
        "unexpected keyword argument 'checkpoint_prefix'",
    ),
    "Redis, client": (lambda: AsyncRedisSaver.from_conn_string(redis_client=1), "positional argument: 'url'"),
    "Valkey": (
        lambda: AsyncRedisSaver.from_conn_string("valkey://h", ttl_seconds=60),
        "unexpected keyword argument 'ttl_seconds'",
    ),
    "Valkey, ttl": (lambda: AsyncRedisSaver(valkey.asyncio.Valkey(), ttl=60.0), "ttl=60.0: a bare float"),
    "Redis, max_results": (
        lambda: AsyncRedisSaver(redis.asyncio.Redis()).aprune(["t"], keep_last=2, max_results=10),
        "unexpected keyword argument 'max_results'",
    ),
}


@pytest.mark.parametrize("call", SETTINGS)
async def test_an_argument_of_another_saver_is_named_in_the_error(call: str) -> None:
    make, expected = SETTINGS[call]
    with pytest.raises(TypeError) as caught:
        await make()
    assert expected in str(caught.value)


async def test_common_settings_of_another_saver_work() -> None:
    async with AsyncRedisSaver.from_conn_string("memory://", ttl={"default_ttl": 60, "refresh_on_read": True}) as saver:
        assert repr(saver).endswith("ttl=1h)")
        async with saver as entered:  # like `AsyncRedisSaver` of langgraph-checkpoint-redis
            assert entered is saver


async def test_setup_is_awaitable_and_sets_up_cold() -> None:
    class Cold(InMemorySaver):
        made = 0

        async def setup(self) -> None:
            Cold.made += 1

    async with (
        AsyncRedisSaver.from_conn_string("memory://") as saver,
        AsyncRedisStore.from_conn_string("memory://") as store,
        AsyncRedisCache.from_conn_string("memory://") as cache,
    ):
        tiers: list[Any] = [AsyncTieredSaver(saver, Cold()), AsyncTieredStore(store, BlockingCold())]
        for each in (saver, store, cache, *tiers):
            assert await each.setup() is None and await each.asetup() is None
    assert Cold.made == BlockingCold.made == 2
    with RedisSaver.from_conn_string("memory://") as blocking:
        assert blocking.setup() is None  # type: ignore[func-returns-value]
