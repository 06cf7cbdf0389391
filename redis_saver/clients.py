"""Redis and Valkey clients: made from a URL, or given by the user and looked at here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.cluster
import redis.retry
import redis.sentinel
from redis.backoff import ExponentialBackoff
from redis.connection import parse_url

from redis_saver import forks
from redis_saver.errors import ServerTooOld

OLDEST: Mapping[str, tuple[int, int]] = {"redis": (6, 2), "valkey": (7, 2)}
"""The oldest version of each server that has what the scripts use."""

_FORMS = "redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster://, rediss+cluster:// or memory://"
UNLIMITED = 2**31
_memory: dict[str, Any] = {}


def connect(url: str, *, asynchronous: bool, **options: Any) -> Any:
    """Make a client from a URL. Nothing is sent yet, save by a `RedisCluster`, which looks for its nodes.

    Args:
        url: `redis://[user:password@]host[:port][/db]`, `rediss://...`, `unix://[user:password@]/path[?db=n]`,
            `redis+sentinel://[user:password@]host:port[,host:port...]/service[/db]` (options `sentinel_username` and
            `sentinel_password` log in to the sentinels), `redis+cluster://[user:password@]host:port[,host:port...]`,
            `memory://[name]`: an embedded server (fakeredis) of this process, a new one where no name is given.
            Options of the client follow behind `?`, as redis-py reads them.
        asynchronous: Whether to make an asyncio client.
        options: Options of the client that a URL cannot say.

    Raises:
        ValueError: the URL is none of these.
        ImportError: `memory://` without fakeredis.
    """
    scheme, separator, _ = url.partition("://")
    if separator and scheme == "memory":
        return _connect_memory(url, asynchronous, options)
    if separator and scheme in ("redis", "rediss", "unix"):
        return _connect_one(url, asynchronous, options)
    transport, _, kind = scheme.partition("+")
    if not separator or transport not in ("redis", "rediss") or kind not in ("sentinel", "cluster"):
        raise ValueError(f"url={without_login(url)!r}: not understood; write {_FORMS}")
    return _connect_many(url, kind, asynchronous, {**({"ssl": True} if transport == "rediss" else {}), **options})


def _retry(asynchronous: bool) -> Any:
    """Three more tries, within some 0.15 seconds, as any call may be repeated; redis-py's `from_url` makes none."""
    kind: Any = redis.asyncio.retry.Retry if asynchronous else redis.retry.Retry
    return kind(ExponentialBackoff(cap=1, base=0.01), 3)


def _connect_one(url: str, asynchronous: bool, options: dict[str, Any]) -> Any:
    module: Any = redis.asyncio if asynchronous else redis
    try:
        client = module.Redis.from_url(url, **{"retry": _retry(asynchronous), **options})
        client.connection_pool.connection_class(
            **client.connection_pool.connection_kwargs
        )  # refuses unknown options now
    except (ValueError, TypeError) as error:
        raise ValueError(f"url={without_login(url)!r}: {error}") from error
    return client


def _connect_memory(url: str, asynchronous: bool, options: dict[str, Any]) -> Any:
    try:
        fakeredis: Any = import_module("fakeredis")
        import_module("lupa")
    except ImportError as error:
        raise ImportError("memory:// needs the embedded server: pip install 'redis-saver[memory]'") from error
    name = url.partition("://")[2]
    server = _memory.setdefault(name, fakeredis.FakeServer()) if name else fakeredis.FakeServer()
    forks.hold(server.lock)
    return (fakeredis.FakeAsyncRedis if asynchronous else fakeredis.FakeRedis)(server=server, **options)


def _connect_many(url: str, kind: str, asynchronous: bool, options: dict[str, Any]) -> Any:
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    addresses = []
    for host in hosts.split(","):
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
        default = 26379 if kind == "sentinel" else 6379
        if not name or (port and not port.isdigit()):
            raise ValueError(f"url={without_login(url)!r}: {host!r} is no host:port")
        addresses.append((name.strip("[]"), int(port or default)))
    settings: dict[str, Any] = dict(parse_url(f"redis://?{parts.query}"))  # type: ignore[no-untyped-call]
    settings.update(options)
    if login:
        user, _, password = login.partition(":")
        settings.update({key: unquote(said) for key, said in (("username", user), ("password", password)) if said})
    if kind == "cluster":
        cluster: Any = redis.asyncio.cluster if asynchronous else redis.cluster
        return cluster.RedisCluster(startup_nodes=[cluster.ClusterNode(*address) for address in addresses], **settings)
    service, *rest = [unquote(part) for part in parts.path.removeprefix("/").split("/")]
    if not service or len(rest) > 1 or (rest and not rest[0].isdigit()):
        raise ValueError(f"url={without_login(url)!r}: the path is /service or /service/db")
    if rest:
        settings["db"] = int(rest[0])
    keeper = {key.removeprefix("sentinel_"): settings.pop(key) for key in list(settings) if key.startswith("sentinel_")}
    settings.setdefault("retry", _retry(asynchronous))
    keeper = {**{key: value for key, value in settings.items() if key.startswith("socket_")}, **keeper}
    sentinel: Any = redis.asyncio.sentinel if asynchronous else redis.sentinel
    if settings.get("ssl"):
        keeper.setdefault("ssl", True)
    return sentinel.Sentinel(addresses, sentinel_kwargs=keeper, **settings).master_for(service)


def without_login(url: str) -> str:
    """A URL without user, password and options, for messages."""
    scheme, separator, rest = url.partition("?")[0].partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def without_password(text: str, url: str) -> str:
    """A message about a URL without the password that is in it."""
    text = text.replace(url, without_login(url) if "://" in url else url)
    login = url.partition("://")[2].partition("/")[0].rpartition("@")[0].partition(":")[2]
    options = re.findall(r"[?&]\w*password=([^&]*)", url)
    for password in {spelled for said in (login, *options) for spelled in (said, unquote(said))} - {""}:
        text = text.replace(password, "***")
    return text


def check(client: Any, *, asynchronous: bool) -> None:
    """Refuse what is no client of the right flavour.

    Raises:
        TypeError: and what to pass instead.
    """
    wanted, other = ("AsyncRedisSaver", "RedisSaver") if asynchronous else ("RedisSaver", "AsyncRedisSaver")
    package = "redis.asyncio" if asynchronous else "redis"
    if isinstance(client, str):
        raise TypeError(f"{wanted} takes a client; for a URL there is {wanted}.from_conn_string()")
    if not callable(getattr(client, "execute_command", None)) or not hasattr(client, "get_encoder"):
        raise TypeError(f"client={client!r}: {wanted} takes a client of {package}, such as {package}.Redis")
    if inspect.iscoroutinefunction(client.execute_command) != asynchronous:
        raise TypeError(f"client={client!r}: {wanted} takes a client of {package}; for this one there is {other}")


def is_cluster(client: Any) -> bool:
    """Whether a client is one of a Redis Cluster."""
    return hasattr(client, "get_primaries")


def exceptions_of(client: Any) -> ModuleType:
    """The module with the exceptions that a client raises: redis-py's or valkey-py's."""
    packages = {cls.__module__.partition(".")[0] for cls in type(client).__mro__}
    return import_module("valkey.exceptions" if "valkey" in packages else "redis.exceptions")


def failures_of(client: Any) -> tuple[type[Exception], ...]:
    """What a client raises when it fails, apart from what is wrong in this program."""
    module = exceptions_of(client)
    names = ("RedisError", "RedisClusterException", "ValkeyError", "ValkeyClusterException")
    return (OSError, *(getattr(module, name) for name in names if hasattr(module, name)))


def raw_options(client: Any) -> dict[str, Any]:
    """What to pass with each command so that replies come as bytes, also from a client with decode_responses=True."""
    return {"NEVER_DECODE": True} if client.get_encoder().decode_responses else {}


def check_version(hello: Any) -> None:
    """Check the answer to HELLO, which every user may ask.

    Raises:
        ServerTooOld: the server is older than `OLDEST`.
    """
    flat = hello if isinstance(hello, Mapping) else dict(zip(hello[::2], hello[1::2], strict=True))
    said = {_text(key): value for key, value in flat.items()}
    server, version = _text(said["server"]), _text(said["version"])
    oldest = OLDEST.get(server)
    if oldest and tuple(int(part) for part in version.split(".")[:2]) < oldest:
        raise ServerTooOld(
            f"the server is {server} {version}; redis_saver needs {server} {oldest[0]}.{oldest[1]} or newer"
        )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def close(client: Any) -> None:
    """Close a blocking client and all its connections."""
    client.close()
    if not is_cluster(client):
        for pool in _pools(client):
            pool.disconnect()


async def aclose(client: Any) -> None:
    """Close an asyncio client and all its connections, on their loop."""
    await client.aclose()
    if not is_cluster(client):
        for pool in _pools(client):
            await pool.disconnect()


async def aclose_idle(client: Any) -> None:
    """Close the connections of an asyncio client that nobody uses now, on their loop; of a cluster's client, none."""
    if not is_cluster(client):
        for pool in _pools(client):
            await pool.disconnect(inuse_connections=False)


def _pools(client: Any) -> list[Any]:
    """The pools of connections to the server, and to the sentinels that know it."""
    pool = client.connection_pool
    manager = getattr(pool, "sentinel_manager", None)
    return [pool, *(sentinel.connection_pool for sentinel in (manager.sentinels if manager else ()))]


def of_node(cluster: Any, node: Any) -> Any:
    """The blocking client of one node of a cluster, by redis-py's name for it or valkey-py's."""
    method = getattr(cluster, "get_redis_connection", None) or cluster.get_valkey_connection
    return method(node)


def most_connections(client: Any, node: Any) -> int:
    """How many connections to a node an asyncio client opens before it refuses calls; one that has them wait has no limit."""
    pool = client.connection_pool if node is None and not is_cluster(client) else node
    return UNLIMITED if hasattr(pool, "timeout") else getattr(pool, "max_connections", UNLIMITED)


def target(node: Any) -> dict[str, Any]:
    """The option that sends a command to one node of a cluster; none where there is but one server."""
    return {} if node is None else {"target_nodes": node}


async def asking(cluster: Any, node: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Send a command to a node of a cluster, by an asyncio client, and to the node that its slot is moving to where that has the key.

    A node answers ASK where it has given away a key of a slot that it still has; the next is to be told ASKING, which holds
    for the command behind it on the same connection (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/).
    redis-py (8.1) sends each of the two on whatever connection is free, and with an even number of these goes round between
    the nodes until it gives up with a ClusterError. (A node without any slot yet it does not know at all.)
    """
    try:
        return await node.execute_command(*arguments, **options)
    except exceptions_of(cluster).MovedError:  # all of the slot has moved meanwhile
        return await cluster.execute_command(*arguments, **options)
    except exceptions_of(cluster).AskError as ask:
        if (to := cluster.get_node(ask.host, ask.port)) is None:
            raise
        options = {**options, **target(to)}
        async with cluster.pipeline(transaction=False) as pipeline:
            pipeline.execute_command("ASKING", **options).execute_command(*arguments, **options)
            _, reply = await pipeline.execute(raise_on_error=False)
        if isinstance(reply, Exception):
            raise reply from ask
        return reply


def nodes(client: Any) -> list[str | None]:
    """The names of a cluster's primaries; of a single server, one node without a name."""
    return [node.name for node in client.get_primaries()] if is_cluster(client) else [None]


def node_named(client: Any, name: str | None) -> Any:
    """The node that has a name, of this client.

    Raises:
        ConnectionError: The client's own; the node has left the cluster.
    """
    if name is None:
        return None
    if (node := client.get_node(node_name=name)) is None:
        raise exceptions_of(client).ConnectionError(
            f"node {name} has left the cluster while its keys were looked at; call again"
        )
    return node


def next_position(nodes: list[str | None], reply: Any) -> tuple[Any, list[bytes]]:
    """Where a SCAN over several nodes goes on after a reply of the first, and the keys it found.

    A cluster client answers with the cursor of each node asked, in a dict; here one is asked at a time.
    """
    cursor, keys = reply
    if isinstance(cursor, Mapping):
        (cursor,) = cursor.values()
    nodes = nodes if int(cursor) else nodes[1:]
    return ((nodes, int(cursor)) if nodes else None), keys
