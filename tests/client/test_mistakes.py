"""Mistakes of users, like misspelled arguments or those of other savers: the error names the argument and the class."""

from __future__ import annotations

import copy
import inspect
import io
import pydoc
from contextlib import redirect_stderr
from datetime import timedelta
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
import redis.sentinel
import valkey
import valkey.asyncio.sentinel
import valkey.sentinel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph

import redis_saver
from redis_saver import AsyncRedisCache, AsyncRedisSaver, AsyncRedisStore, AsyncTieredSaver, RedisCache, RedisSaver
from redis_saver import RedisSaverError, RedisStore, TieredSaver, TieredStore, errors
from redis_saver._cache.cache import Cache, CacheSettings
from redis_saver._checkpoint.saver import Saver, SaverSettings
from redis_saver._common import times
from redis_saver._client.clients import described
from redis_saver._cli.main import main
from redis_saver._store.store import Store, StoreSettings
from redis_saver.encryption import Keyset
from redis_saver.migrate import migrate

MISTAKES: dict[type[Exception], dict[str, list[Any]]] = {
    TypeError: {
        "RedisSaver.from_conn_string(url)": [lambda: RedisSaver("redis://:secret@host")],
        "AsyncRedisSaver.from_conn_string(url)": [lambda: AsyncRedisSaver("redis://:secret@host")],
        "Use AsyncRedisStore for this one": [lambda: RedisStore(redis.asyncio.Redis())],
        "RedisStore.from_conn_string": [lambda: RedisStore("redis://h")],
        "Use AsyncRedisSaver for this one": [lambda: RedisSaver(redis.asyncio.Redis())],
        "Use RedisSaver for this one": [lambda: AsyncRedisSaver(redis.Redis())],
        "takes a client": [lambda: RedisSaver(object())],
        "write encryption=Encryption(keys)": [lambda: RedisStore(redis.Redis(), encryption=Keyset({"a": bytes(32)}))],
        "Pass RedisSaver the client that you called pipeline() on": [lambda: RedisSaver(redis.Redis().pipeline())],
        "Pass AsyncRedisStore the client that you called pipeline() on": [
            lambda: AsyncRedisStore(redis.asyncio.Redis().pipeline())
        ],
        "Pass AsyncRedisCache the client that you called pipeline() on": [
            lambda: AsyncRedisCache(redis.asyncio.RedisCluster("h").pipeline())
        ],
        "unexpected keyword argument 'redis_url'": [lambda: RedisSaver(redis_url="redis://:secret@h")],
        "unexpected keyword argument 'redis_client'": [lambda: AsyncRedisSaver(redis_client=1)],
        "unexpected keyword argument 'connection_args'": [
            lambda: RedisSaver(redis.Redis(), connection_args={"password": "secret"}),
            lambda: AsyncRedisSaver.from_conn_string("redis://h", connection_args={}),
        ],
        "unexpected keyword argument 'compresion'": [lambda: RedisSaver(redis.Redis(), compresion="zstd")],
        "unexpected keyword argument 'prefix'": [lambda: RedisSaver(redis.Redis()).threads(prefix="user-")],
        "unexpected keyword argument 'keep_lasst'": [lambda: RedisSaver(redis.Redis()).prune(["a"], keep_lasst=3)],
        "source: a str; migrate takes a checkpoint saver": [lambda: migrate("redis://:secret@h", InMemorySaver())],
        "enter its `with` first": [lambda: migrate(InMemorySaver(), RedisSaver.from_conn_string("memory://"))],
        "missing 1 required positional argument: 'client'": [lambda: RedisSaver(), lambda: AsyncRedisCache(ttl="1h")],
        "missing 1 required positional argument: 'cold'": [lambda: TieredStore(RedisStore(redis.Redis()))],
        "takes 2 positional arguments but 4 were given": [lambda: AsyncRedisSaver(redis.asyncio.Redis(), None, None)],
        "missing 1 required positional argument: 'url'": [
            lambda: RedisStore.from_conn_string(prefix="a"),
            lambda: RedisSaver.from_conn_string(redis_url="redis://:secret@h"),
        ],
        "write RedisSaver.from_conn_string('redis://host') or RedisSaver(client)": [
            lambda: RedisSaver.from_conn_string(redis.Redis(password="secret"))
        ],
        "unexpected keyword argument 'on_eror'": [lambda: RedisCache.from_conn_string("memory://", on_eror="raise")],
        "ttl=60: a bare int has no unit": [lambda: RedisSaver(redis.Redis(), ttl=60)],
        "unexpected keyword argument 'flush_intervall'": [
            lambda: TieredSaver(RedisSaver(redis.Redis()), InMemorySaver(), flush_intervall=1)
        ],
        "AsyncTieredSaver: hot is a redis_saver.RedisSaver; it has to be of AsyncRedisSaver": [
            lambda: AsyncTieredSaver(RedisSaver(redis.Redis()), InMemorySaver())
        ],
        "TieredSaver: cold is a str; it has to be another checkpoint saver": [
            lambda: TieredSaver(RedisSaver(redis.Redis()), "postgresql://:secret@h")
        ],
    },
    AttributeError: {
        "RedisSaver.from_conn_string(url) has no 'setup': write `with RedisSaver.from_conn_string(url) as x:`, and use x.setup": [
            lambda: RedisSaver.from_conn_string("redis://:secret@h").setup()
        ],
        "write `async with AsyncRedisStore.from_conn_string(url) as x:`": [
            lambda: AsyncRedisStore.from_conn_string("redis://:secret@h").aget
        ],
    },
    ValueError: {
        "no option 'socket_timout'": [
            lambda: RedisSaver.from_conn_string("redis://:secret@h?socket_timout=2").__enter__(),
            lambda: RedisSaver.from_conn_string("redis+cluster://:secret@h?socket_timout=2").__enter__(),
            lambda: RedisSaver.from_conn_string("redis+sentinel://:secret@h/s?socket_timout=2").__enter__(),
        ],
        "no option 'max_conections'": [
            lambda: RedisSaver.from_conn_string("redis://h", client_options={"max_conections": 2}).__enter__()
        ],
        "cluster_timeout=-1: write a number of at least 0": [lambda: RedisSaver(redis.Redis(), cluster_timeout=-1)],
        "cluster_timeout=inf": [lambda: RedisSaver(redis.Redis(), cluster_timeout=float("inf"))],
        "min_replicas=1.0: write an int of at least 0": [lambda: RedisSaver(redis.Redis(), min_replicas=1.0)],
        "replica_timeout=0": [lambda: RedisSaver(redis.Redis(), replica_timeout=0)],
        "RedisSaver: compression='gzip' is unknown; write 'zstd'": [
            lambda: RedisSaver(redis.Redis(), compression="gzip")
        ],
        "TieredSaver: mode='write-behnd': write 'write-through' or 'write-behind'": [
            lambda: TieredSaver(RedisSaver(redis.Redis()), InMemorySaver(), mode="write-behnd")
        ],
    },
}
"""Wrong calls by their error, and by a part of its text."""


def test_the_repr_of_each_error_has_its_message() -> None:
    """LangGraph stores `repr(error)` of a failed task."""
    ours = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RedisSaverError)]
    assert len(ours) > 30
    for kind in ours:
        assert repr(kind.__new__(kind, "why it failed")) == f"{kind.__name__}('why it failed')"


@pytest.mark.parametrize(("kind", "said"), [(kind, said) for kind, texts in MISTAKES.items() for said in texts])
def test_an_error_says_how_to_correct_a_mistake(kind: type[Exception], said: str) -> None:
    for make in MISTAKES[kind][said]:
        with pytest.raises(kind) as caught:
            make()
        assert said in str(caught.value) and "secret" not in str(caught.value)


async def test_an_unknown_option_of_an_async_url_is_named() -> None:
    for kind in ("redis", "redis+cluster", "redis+sentinel"):
        url = f"{kind}://:secret@h/{'s' if kind == 'redis+sentinel' else ''}?socket_timout=2"
        with pytest.raises(ValueError, match="no option 'socket_timout'") as caught:
            await AsyncRedisSaver.from_conn_string(url).__aenter__()
        assert "secret" not in str(caught.value)


def test_an_unentered_block_is_sync_or_async_only() -> None:
    """Frameworks check which protocol it has, and prefer `async with`. Its class name shows in their errors."""
    unopened, aunopened = RedisSaver.from_conn_string("redis://h"), AsyncRedisSaver.from_conn_string("redis://h")
    assert hasattr(unopened, "__enter__") and not hasattr(unopened, "__aenter__")
    assert hasattr(aunopened, "__aenter__") and not hasattr(aunopened, "__enter__")
    for checkpointer, name in ((unopened, "NeedsWith"), (aunopened, "NeedsAsyncWith")):
        with pytest.raises(TypeError, match=f"Received {name}"):
            StateGraph(dict).add_node("a", lambda state: state).set_entry_point("a").compile(checkpointer=checkpointer)
        assert isinstance(copy.copy(checkpointer), type(checkpointer))


async def test_an_async_method_names_an_unknown_argument() -> None:
    assert inspect.iscoroutinefunction(RedisSaver.aprune) and inspect.iscoroutinefunction(AsyncTieredSaver.aprune)
    with pytest.raises(TypeError, match="unexpected keyword argument 'keep'"):
        await AsyncRedisSaver(redis.asyncio.Redis()).aprune(["a"], keep=3)


def test_a_subclass_may_have_its_own_settings() -> None:
    class Mine(RedisSaver):
        def __init__(self, *, host: str) -> None:
            super().__init__(redis.Redis(host=host))

    assert "redis://mine:6379/0" in repr(Mine(host="mine"))


@pytest.mark.parametrize(("kind", "settings"), [(Saver, SaverSettings), (Store, StoreSettings), (Cache, CacheSettings)])
def test_from_conn_string_has_the_settings_of_the_constructor(kind: Any, settings: Any) -> None:
    of_constructor = {
        name: one.annotation
        for name, one in inspect.signature(kind.__init__).parameters.items()
        if name not in ("self", "client")
    }
    assert {name: one.__forward_arg__ for name, one in settings.__annotations__.items()} == of_constructor
    assert len(of_constructor) > 8


def test_help_shows_the_parameters_of_the_constructor() -> None:
    shown = inspect.signature(RedisSaver).parameters
    assert ["self", *shown] == list(inspect.signature(RedisSaver.__init__).parameters) and "history" in shown
    assert inspect.signature(AsyncTieredSaver.__init__) == inspect.signature(TieredSaver.__init__)
    assert not any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in inspect.signature(TieredSaver).parameters.values()
    )
    for kind in (RedisSaver, RedisStore, RedisCache):
        said = pydoc.render_doc(kind.from_conn_string, renderer=pydoc.plaintext)
        assert f"with {kind.__name__}.from_conn_string(" in said and "closes both" in said


def test_repr_shows_server_prefix_and_ttl_but_no_secret() -> None:
    shown = {
        RedisSaver(
            redis.Redis(host="h", port=7, db=2, username="user", password="secret")
        ): "redis://h:7/2, prefix='langgraph', ttl=none",
        RedisSaver(
            redis.Redis.from_url("rediss://:secret@h"), prefix="a\nb", ttl="7d"
        ): "rediss://h:6379/0, prefix='a\\nb', ttl=7d",
        RedisSaver(
            redis.Redis(unix_socket_path="/run/redis.sock"), ttl=timedelta(minutes=90)
        ): "unix:///run/redis.sock?db=0, prefix='langgraph', ttl=90m",
        RedisSaver(valkey.Valkey(host="v", password="secret")): "redis://v:6379/0, prefix='langgraph', ttl=none",
        RedisSaver(fakeredis.FakeRedis()): "memory://, prefix='langgraph', ttl=none",
    }
    for saver, said in shown.items():
        assert repr(saver) == f"RedisSaver({said})"
    sentinel = redis.sentinel.Sentinel([("b", 1), ("a", 2)], password="secret")
    assert described(sentinel.master_for("mine")) == "redis+sentinel://a:2,b:1/mine/0"
    assert described(redis.asyncio.RedisCluster(host="h", password="secret")) == "redis+cluster://h:6379"
    tiered = TieredSaver(RedisSaver(redis.Redis(), ttl="1h"), InMemorySaver(), mode="write-behind", flusher=False)
    assert (
        repr(tiered)
        == "TieredSaver(hot=RedisSaver(redis://localhost:6379/0, prefix='langgraph', ttl=1h), cold=InMemorySaver, mode='write-behind')"
    )


def test_all_errors_are_public() -> None:
    public = {name for name in dir(redis_saver) if isinstance(getattr(redis_saver, name), type)}
    kinds = [RedisSaverError]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__ == errors.__name__:
            assert kind.__name__ in public, kind
    assert set(redis_saver.__all__) <= set(dir(redis_saver))


@pytest.mark.parametrize(
    ("text", "span", "shown"),
    [
        ("7d", timedelta(days=7), "7d"),
        ("90m", timedelta(minutes=90), "90m"),
        ("1h30m", timedelta(minutes=90), "90m"),
        ("2w", timedelta(weeks=2), "14d"),
        ("0.5s", timedelta(milliseconds=500), "500ms"),
        ("1d1s", timedelta(days=1, seconds=1), "1d"),
        ("167h59m", timedelta(hours=167, minutes=59), "6d23h"),
        ("0s", timedelta(0), "0s"),
    ],
)
def test_durations_are_parsed_and_shown(text: str, span: timedelta, shown: str) -> None:
    assert times.parse(text, name="ttl") == span
    assert times.shown(span) == shown


@pytest.mark.parametrize("text", ["", "7", "d", "7 d", "-7d", "7D", "1e3s", "7d!", "1.d", "\u0667d", "9" * 15 + "w"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="^older_than="):
        times.parse(text, name="older_than")


@pytest.mark.parametrize(
    ("scheme", "shown"),
    [
        ("valkey", "redis://h:7/1"),
        ("valkeys", "rediss://h:7/1"),
        ("redis", "redis://h:7/1"),
        ("rediss", "rediss://h:7/1"),
    ],
)
def test_valkey_schemes_work(scheme: str, shown: str) -> None:
    with RedisSaver.from_conn_string(f"{scheme}://user:secret@h:7/1") as saver:
        assert repr(saver) == f"RedisSaver({shown}, prefix='langgraph', ttl=none)"
    with RedisSaver.from_conn_string(f"{scheme}+sentinel://:secret@h:7/mine") as saver:
        assert "redis+sentinel://h:7/mine/0" in repr(saver)


def test_an_abbreviated_option_is_refused() -> None:
    """A later release might have another option with that prefix, which could move other threads."""
    with pytest.raises(SystemExit, match="2"), redirect_stderr(io.StringIO()) as said:
        main(["export", "redis://h", "f", "--thread-pre", "user-1"])
    assert "--thread-pre" in said.getvalue()
