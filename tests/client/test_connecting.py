"""Connections: clients, URLs, event loops, OS threads, server versions."""

from __future__ import annotations

import asyncio
import copy
import random
from datetime import timedelta
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.cache
import redis.sentinel
import valkey
import valkey.asyncio
import valkey.asyncio.retry
import valkey.asyncio.sentinel
import valkey.backoff
import valkey.retry
import valkey.sentinel
from tests.support.factories import checkpoint, config, put
from redis.exceptions import RedisClusterException
from sentinels import roundtrip, sentinel  # noqa: F401
from tests.support.proxy import Proxy
from tests.support.servers import Server, url_of
from tests.support.uniform import Uniform, encryption

from redis_saver import AsyncRedisSaver, CalledOnEventLoop, RedisCache, RedisSaver, RedisStore, UnsupportedServer
from redis_saver._client import base, clients
from redis_saver._common.logs import ThrottledLog
from redis_saver.sentinels import SSLPrimaryConnection


def port(target: str = "redis") -> int:
    return int(url_of(target).rsplit(":", 1)[1])


@pytest.fixture
def prefix() -> str:
    return f"w{random.getrandbits(64):x}"


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("package", [redis, valkey])
async def test_clients_of_redis_py_and_valkey_py_work(package: Any, protocol: int, decode: bool, prefix: str) -> None:
    options = {"port": port(), "decode_responses": decode, "protocol": protocol}
    name = "Redis" if package is redis else "Valkey"
    with getattr(package, name)(**options) as client:
        await roundtrip(RedisSaver(client, prefix=prefix))
    async with getattr(package.asyncio, name)(**options) as aclient:
        await roundtrip(AsyncRedisSaver(aclient, prefix=prefix + "a", encryption=encryption(key_for="tenant")))


@pytest.mark.parametrize("decode", [False, True])
async def test_cluster_clients_work(decode: bool, prefix: str) -> None:
    where: Any = {"host": "127.0.0.1", "port": port("cluster"), "decode_responses": decode}
    for package in (redis, valkey):
        name = "RedisCluster" if package is redis else "ValkeyCluster"
        with getattr(package, name)(**where) as client:
            await roundtrip(RedisSaver(client, prefix=prefix + name, encryption=encryption(key_for="tenant")))
        async with getattr(package.asyncio, name)(**where) as aclient:
            await roundtrip(AsyncRedisSaver(aclient, prefix=prefix + name + "a"))


def made_by(package: Any, module: Any, how: str, proxy: Proxy, given: dict[str, Any]) -> Any:
    """Make a client in one of the ways of the table of `docs/failure-modes.md`, with these arguments."""
    kind = getattr(module, "Redis" if package is redis else "Valkey")
    where = {"host": "127.0.0.1", "port": proxy.port}
    if how == "host=":
        return kind(**where, **given)
    if how == "from_url":
        return kind.from_url(proxy.url, **given)
    if how == "connection_pool=":
        return kind(connection_pool=module.ConnectionPool(**where, **given))

    class Known(module.sentinel.Sentinel):  # type: ignore[misc]
        """Sentinels that need not be asked."""

        def discover_master(self, _: str) -> Any:
            address = "127.0.0.1", proxy.port
            return address if module is package else asyncio.sleep(0, address)

    return Known([("127.0.0.1", 1)]).master_for("service", **given)


RETRY, LIST = "retry=Retry", "retry_on_error=["


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize(
    ("package", "how", "given", "missing"),
    [
        (redis, "host=", "", ""),
        (redis, "host=", "none", RETRY),
        *((redis, how, "", RETRY) for how in ("from_url", "connection_pool=", "master_for")),
        *((redis, how, "retry", "") for how in ("from_url", "connection_pool=", "master_for")),
        *((valkey, how, "", LIST) for how in ("host=", "from_url", "connection_pool=", "master_for")),
        *((valkey, how, "retry", LIST) for how in ("host=", "from_url")),
        *((valkey, how, "both", "") for how in ("host=", "from_url", "connection_pool=", "master_for")),
    ],
)
async def test_a_client_retries_a_lost_reply_or_a_warning_names_what_to_give(
    package: Any,
    how: str,
    given: str,
    missing: str,
    flavour: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(base, "_ONCE", ThrottledLog("redis_saver.client", only_once=True))
    module, proxy = (package.asyncio if flavour == "async" else package), Proxy(port())
    errors = [package.ConnectionError, package.TimeoutError]
    options = {
        "": {},
        "none": {"retry": None},
        "retry": {"retry": module.retry.Retry(package.backoff.NoBackoff(), 1)},
        "both": {"retry": module.retry.Retry(package.backoff.NoBackoff(), 1), "retry_on_error": errors},
    }
    client = made_by(package, module, how, proxy, options[given])
    RedisCache(redis.Redis(retry=None))  # a cache needs no retry
    kind: Any = AsyncRedisSaver if flavour == "async" else RedisSaver
    saver = Uniform([kind(client, prefix="lost") for _ in range(2)][-1])
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert ([missing in text for text in said] == [True]) if missing else not said, said
    await put(saver, config("t"), {"n": 1})
    proxy.lose_reply(b"EVALSHA")
    if missing:
        with pytest.raises(package.ConnectionError):
            await saver.get_tuple(config("t"))
    else:
        assert (await saver.get_tuple(config("t"))).checkpoint["channel_values"] == {"n": 1}
    assert proxy.lost == 1
    await (client.aclose() if flavour == "async" else asyncio.to_thread(client.close))
    proxy.close()


@pytest.mark.parametrize("package", [redis, valkey])
async def test_a_saver_repeats_calls_to_a_cluster_whose_reply_is_lost(
    package: Any, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = url_of("cluster").partition("://")[2].split(",")
    proxies = {int(each.rpartition(":")[2]): Proxy(int(each.rpartition(":")[2])) for each in cluster}
    start = {"host": "127.0.0.1", "port": next(iter(proxies)), "address_remap": lambda at: (at[0], proxies[at[1]].port)}
    name = "RedisCluster" if package is redis else "ValkeyCluster"
    client, aclient = (getattr(module, name)(**start) for module in (package, package.asyncio))
    for saver in (Uniform(RedisSaver(client, prefix=prefix)), Uniform(AsyncRedisSaver(aclient, prefix=prefix))):
        await put(saver, config("t"), {"n": 1})
        for proxy in proxies.values():
            proxy.lose_reply(b"EVALSHA")
        assert (await saver.get_tuple(config("t"))).checkpoint["channel_values"] == {"n": 1}
        assert sum(proxy.lost for proxy in proxies.values()) == 1
    assert not [record for record in caplog.records if "retries nothing" in record.getMessage()]
    client.close()
    await aclient.aclose()
    for proxy in proxies.values():
        proxy.close()


@pytest.mark.skipif(not hasattr(redis.connection, "CacheProxyConnection"), reason="redis-py has no client-side cache")
@pytest.mark.parametrize("target", ["redis", "cluster"])
def test_a_client_with_a_cache_of_its_own_works(target: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py refuses raw commands that it could cache (`Cannot create cache key`). Ours bypass its cache."""
    monkeypatch.setattr(redis.connection.CacheProxyConnection, "MIN_ALLOWED_VERSION", "6.2.0")
    of_client: Any = redis.RedisCluster if target == "cluster" else redis.Redis
    where: Any = {"host": "127.0.0.1", "port": port(target)}
    with of_client(**where, protocol=3, cache_config=redis.cache.CacheConfig()) as client, of_client(**where) as other:
        for keys in (None, encryption()):
            settings: Any = {"prefix": f"{prefix}{bool(keys)}", "encryption": keys}
            saver, store, cache = (kind(client, **settings) for kind in (RedisSaver, RedisStore, RedisCache))
            saver.put(config("t"), checkpoint({"n": 1}), {}, {"n": "1"})
            assert not saver.check("t").findings
            assert saver.get_tuple(config("t")) is not None
            for value in (1, 2):
                RedisStore(other, **settings).put(("a",), "key", {"n": value})
                RedisCache(other, **settings).set({(("a",), "key"): (value, None)})
                item = store.get(("a",), "key")
                assert item is not None
                assert item.value == {"n": value}, "nothing outdated"
                assert cache.get([(("a",), "key")]) == {(("a",), "key"): value}, "nothing outdated"
            saver.delete_thread("t")


async def test_fakeredis_clients_work(prefix: str) -> None:
    await roundtrip(RedisSaver(fakeredis.FakeRedis(decode_responses=True), prefix=prefix))
    await roundtrip(AsyncRedisSaver(fakeredis.FakeAsyncRedis(), prefix=prefix))


async def roundtrips(url: str, prefix: str, **options: Any) -> None:
    """Make a round trip in each flavour."""
    with RedisSaver.from_conn_string(url, prefix=prefix, **options) as saver:
        await roundtrip(saver)
    async with AsyncRedisSaver.from_conn_string(url, prefix=prefix + "a", **options) as asaver:
        await roundtrip(asaver)


async def test_each_kind_of_url_works(prefix: str) -> None:
    server = Server()
    cluster = url_of("cluster")
    for url in (
        f"{server.url}/3?socket_timeout=5",
        f"unix://{server.folder}/socket?db=2",
        cluster,
        f"{cluster}/0",
        f"{cluster}?db=0",
        f"memory://{prefix}",
    ):
        await roundtrips(url, prefix, ttl=timedelta(hours=1))
    for url, number in ((f"{server.url}/3", 3), (f"unix://{server.folder}/socket?db=2", 2)):
        with RedisSaver.from_conn_string(url) as saver:
            await put(Uniform(saver), config("t"), {"n": 1})
        assert server.client(db=number).dbsize() == 2
    server.stop()


async def test_sentinel_urls_and_clients_work(sentinel: Server, prefix: str) -> None:
    url = f"redis+sentinel://:secret@127.0.0.1:1,127.0.0.1:{sentinel.port}/our%3Aservice/1"
    await roundtrips(url, prefix)
    for module, kind in ((redis, RedisSaver), (redis.asyncio, AsyncRedisSaver)):
        sentinels = module.sentinel.Sentinel([("127.0.0.1", sentinel.port)], password="secret")
        await roundtrip(kind(sentinels.master_for("our:service"), prefix=prefix + "b"))


@pytest.mark.parametrize(
    "url",
    [
        "localhost", "http://x", "redis+sentinel://h:1", "redis+sentinel://h:1/s/db", "redis+cluster://h:x",
        "postgres+cluster://h:1", "redis+sentinel:///s", "", "redis://h:x", "redis://h?db=x", "redis://h?nothing=1",
        "unix:///s?nothing=1",
    ],
)  # fmt: skip
async def test_an_invalid_url_is_quoted_in_the_error(url: str) -> None:
    with pytest.raises(ValueError, match="url=") as caught, RedisSaver.from_conn_string(url):
        pass
    if not url.endswith("h:x"):  # may be a user and a password without a host
        assert url.partition("?")[0] in str(caught.value)


def test_tls_urls_create_tls_clients() -> None:
    client = clients.connect("rediss://host", asynchronous=False)
    assert issubclass(client.connection_pool.connection_class, redis.SSLConnection)
    client = clients.connect("rediss+sentinel://host/s", asynchronous=False)
    assert client.connection_pool.connection_class is SSLPrimaryConnection


@pytest.mark.skipif(not hasattr(redis, "DriverInfo"), reason="this redis-py looks its version up once, at import")
async def test_new_connections_do_not_look_up_package_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        (url, is_async, clients.connect(url, asynchronous=is_async))
        for url in ("redis://h", "rediss://h", "redis+sentinel://h/s", url_of("cluster"))
        for is_async in (False, True)
    ]

    def looks_up() -> str:
        raise AssertionError("a connection looks up the version of redis-py")

    monkeypatch.setattr("redis.utils.get_lib_version", looks_up)
    for url, is_async, client in made:
        if "cluster" not in url:
            connections = [pool.make_connection() for pool in clients._pools(client)]
        elif is_async:
            await client.initialize()
            node = client.get_default_node()
            connections = [node.connection_class(**node.connection_kwargs)]
            await client.aclose()
        else:
            pool = client.get_redis_connection(client.get_default_node()).connection_pool
            connections = [pool.make_connection()]
            client.close()
        assert {one.driver_info.lib_version for one in connections} == {redis.__version__}
    given = clients.connect("redis://h", asynchronous=False, driver_info=None)
    assert given.connection_pool.connection_kwargs["driver_info"] is None


def test_memory_urls_share_data_by_name() -> None:
    with RedisSaver.from_conn_string("memory://") as one, RedisSaver.from_conn_string("memory://") as two:
        asyncio.run(put(Uniform(one), config("t"), {"n": 1}))
        assert two.get_tuple(config("t")) is None
    with RedisSaver.from_conn_string("memory://name") as one:
        asyncio.run(put(Uniform(one), config("t"), {"n": 1}))
    with RedisSaver.from_conn_string("memory://name") as two:
        assert two.get_tuple(config("t")) is not None


# -- event loops and OS threads


async def test_sync_methods_of_the_async_saver_work_from_another_thread(prefix: str) -> None:
    async with AsyncRedisSaver.from_conn_string(url_of("redis"), prefix=prefix) as saver:
        await asyncio.to_thread(sync_calls, saver)


EMPTY: Any = {"v": 1, "id": "1", "ts": "", "channel_values": {}, "channel_versions": {}, "versions_seen": {}}


def sync_calls(saver: Any) -> None:
    saver.put(config("t"), EMPTY, {}, {})
    assert saver.get_tuple(config("t")).checkpoint["id"] == "1"
    assert [one.checkpoint["id"] for one in saver.list(None)] == ["1"]
    assert saver.get_delta_channel_history(config=config("t"), channels=["n"]) == {"n": {"writes": []}}
    saver.pin("t")
    saver.delete_thread("t")


async def test_sync_methods_of_the_async_saver_fail_on_the_loop(prefix: str) -> None:
    async with AsyncRedisSaver.from_conn_string(url_of("redis"), prefix=prefix) as saver:
        for call in (
            lambda: saver.get_tuple(config("t")),
            lambda: list(saver.list(None)),
            lambda: saver.delete_thread("t"),
        ):
            with pytest.raises(CalledOnEventLoop, match="ainvoke"):
                call()
    assert issubclass(CalledOnEventLoop, asyncio.InvalidStateError), "the error that LangGraph's async savers raise"


def test_the_async_saver_works_without_a_running_loop(prefix: str) -> None:
    sync_calls(AsyncRedisSaver(redis.asyncio.Redis(port=port()), prefix=prefix))


async def test_async_methods_of_the_sync_saver_never_block_the_loop(prefix: str) -> None:
    """The loop keeps running while the server is paused."""
    blocker = redis.Redis(port=port())
    with RedisSaver.from_conn_string(url_of("redis"), prefix=prefix) as saver:
        await roundtrip_async(saver)
        for pause in (300, 3000):
            blocker.client_pause(pause, all=True)
            waiting = asyncio.create_task(saver.aget_tuple(config("t")))
            turns = 0
            while not waiting.done():
                await asyncio.sleep(0.005)
                turns += 1
            if turns > 10:  # a blocked loop turns once; a stalled machine gets a longer pause
                break
        assert turns > 10
    blocker.close()


async def roundtrip_async(saver: Any) -> None:
    await saver.asetup()
    await saver.asetup()  # it can be repeated
    await saver.aput(config("t"), EMPTY, {}, {})
    await saver.aput_writes(config("t", "", "1"), [("n", 1)], "task")
    assert (await saver.aget(config("t")))["id"] == "1"
    assert [one.checkpoint["id"] async for one in saver.alist(None)] == ["1"]
    assert [one.checkpoint["id"] async for one in await saver.aget_iter(config("t"))] == ["1"]
    assert [one.thread_id async for one in saver.athreads()] == ["t"]
    await saver.acopy_thread("t", "u")
    assert (await saver.aprune(["u"])).checkpoints == 0
    await saver.adelete_for_runs(["r"])
    await saver.aget_delta_channel_history(config=config("t"), channels=["n"])
    await saver.aset_thread_ttl("t", timedelta(hours=1))
    assert await saver.aget_thread_ttl("t") is not None
    await saver.apin("t")
    await saver.aunpin("t")
    await saver.adelete_thread("t")


def test_a_clone_shares_its_client(prefix: str) -> None:
    saver = RedisSaver(redis.Redis(port=port()), prefix=prefix)
    assert copy.copy(saver)._driver.client is saver._driver.client


# -- server versions


@pytest.mark.parametrize(
    ("server", "version", "fits"),
    [
        *(("redis", version, False) for version in ("6.0.16", "5.0.1")),
        *(("redis", version, True) for version in ("6.2.0", "7.4.1", "8.0")),
        *(("valkey", version, True) for version in ("7.2.5", "8.1.0")),
        ("somebody", "0.1", True),
    ],
)
def test_old_server_versions_are_refused(server: str, version: str, fits: bool) -> None:
    flat = [b"server", server.encode(), b"version", version.encode(), b"proto", 2]
    for hello in (flat, dict(zip(flat[::2], flat[1::2], strict=True)), {"server": server, "version": version}):
        if fits:
            clients.check_version(hello)
        else:
            with pytest.raises(UnsupportedServer, match=f"{version}.*6.2"):
                clients.check_version(hello)


@pytest.mark.parametrize(
    ("cause", "is_tried_again"),
    [
        (redis.ConnectionError("refused"), True),
        (redis.TimeoutError("slow"), True),
        (redis.AuthenticationError("wrong password"), False),
        (RedisClusterException("Cluster mode is not enabled on this node"), False),
        (None, False),
    ],
)
async def test_an_unreachable_cluster_is_retried(
    monkeypatch: pytest.MonkeyPatch, cause: Exception | None, is_tried_again: bool
) -> None:
    """redis-py raises the same error for a server without cluster mode. Only the cause tells."""
    kind = redis.asyncio.RedisCluster
    ordinary, tries = kind.initialize, 0

    async def initialize(client: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RedisClusterException("Redis Cluster cannot be connected") from cause
        return await ordinary(client)

    monkeypatch.setattr(kind, "initialize", initialize)
    async with AsyncRedisSaver.from_conn_string(url_of("cluster"), prefix="first-try") as saver:
        if is_tried_again:
            assert await saver.aget_tuple(config()) is None
            assert tries == 2
        else:
            with pytest.raises((RedisClusterException, redis.AuthenticationError)):
                await saver.aget_tuple(config())
            assert tries == 1
