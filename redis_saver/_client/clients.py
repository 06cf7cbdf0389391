"""Redis and Valkey clients: made from URLs, checked, described, closed, and copied for other loops and processes."""

from __future__ import annotations

import copy
import inspect
import re
import ssl
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.connection
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.cluster
import redis.connection
import redis.retry
import redis.sentinel
from redis.backoff import ExponentialBackoff

from redis_saver import sentinels
from redis_saver._client import urls
from redis_saver._client.urls import Url
from redis_saver._common import forks
from redis_saver._common.display import MAX_NAME, kind_of, printable, shown
from redis_saver.errors import UnsupportedServer

OLDEST: Mapping[str, tuple[int, int]] = {"redis": (6, 2), "valkey": (7, 2)}
"""Oldest version of each server that the scripts can use."""

UNLIMITED = 2**31
SOCKET_TIMEOUT = 5
"""Default timeout of a client from a URL, for connecting and for replies, in seconds. (redis-py before 8 has none.)"""
_UNKNOWN = re.compile(r"(?:unexpected keyword argument|has no option) '(\w+)'")
_NO_HELLO = re.compile(r"(?:ERR )?(?:unknown|unsupported) command\W+hello\b", re.IGNORECASE)
_MAJOR = int(redis.__version__.partition(".")[0])
_memory: dict[str, Any] = {}


def connect(url: str, *, asynchronous: bool, **options: Any) -> Any:
    """Make a client from a URL. Only a blocking `RedisCluster` connects now, to find its nodes.

    Args:
        url: One of these forms (`valkey` may replace `redis`, and `valkeys` `rediss`):
            `redis://[user:password@]host[:port][/db]`;
            `rediss://...`, with TLS, which checks the host name (`docs/connections.md`);
            `unix://[user:password@]/path[?db=n]`;
            `redis+sentinel://[user:password@]host:port[,host:port...]/service[/db]`, where the options
            `sentinel_username` and `sentinel_password` log in to the sentinels;
            `redis+cluster://[user:password@]host:port[,host:port...]`;
            `memory://[name]`, an embedded server (fakeredis) in this process, which is new if it has no name.
            Options of the client follow after `?`, named as in redis-py.
        asynchronous: True to make an asyncio client.
        options: Options of the client. Those of the URL override them.

    Raises:
        ValueError: The URL or an option is invalid. The message contains no part of a password.
        ImportError: `memory://` needs fakeredis, which is not installed.
    """
    if url.startswith("memory://"):
        return _connect_memory(url, asynchronous, options)
    connections: Any = redis.asyncio.connection if asynchronous else redis.connection
    parsed = urls.parse(url, connections.URL_QUERY_ARGUMENT_PARSERS)
    settings = {**options, **parsed.options}
    _secure(url, parsed, settings)
    settings = {**_defaults(parsed, asynchronous, settings), **settings}
    connecting = {"sentinel": _connect_sentinel, "cluster": _connect_cluster}.get(parsed.kind, _connect_one)
    try:
        client = connecting(parsed, asynchronous, settings)
        if parsed.kind != "cluster":  # refuse unknown options now, not at the first call
            client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
    except redis.RedisClusterException as error:
        check_knows_hello(error)
        raise
    except (TypeError, ValueError) as error:  # redis-py does not know an option or its value
        why = str(error)
    else:
        return client
    if (unknown := _UNKNOWN.search(why)) is not None:
        why = f"the client has no option {unknown[1]!r}"
    raise urls.wrong(url, urls.without_password(why, url))


def _defaults(parsed: Url, asynchronous: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from redis-py's defaults.

    In a cluster redis-py makes up to ten attempts, and each may wait for a dead node. Two are enough here, because the
    link repeats requests (`link.Tries`). After every fifth MOVED redis-py's asyncio client closes all connections to
    read all slots again. With `reinitialize_steps=0` it updates only the slot that the MOVED names.
    """
    defaults: dict[str, Any] = {"socket_timeout": SOCKET_TIMEOUT}
    if parsed.kind != "unix":
        defaults["socket_connect_timeout"] = settings.get("socket_timeout", SOCKET_TIMEOUT)
    if hasattr(redis, "DriverInfo") and settings.keys().isdisjoint(("driver_info", "lib_name", "lib_version")):
        # Without it these releases look up the version for each new connection.
        defaults["driver_info"] = redis.DriverInfo(lib_version=redis.__version__)
    if parsed.kind != "cluster":
        defaults["retry"] = retry(asynchronous=asynchronous)
        if _MAJOR < 6 and settings.get("retry", ...) is not None:  # redis-py 5 retries only listed errors
            defaults["retry_on_error"] = [redis.ConnectionError, redis.TimeoutError]
    elif _MAJOR >= 6:
        defaults |= {"retry": retry(1, asynchronous=asynchronous), "reinitialize_steps": 0}
    else:
        more = {"connection_error_retry_attempts": 0} if asynchronous else {}
        defaults |= {"cluster_error_retry_attempts": 1, "reinitialize_steps": 0, **more}
    return defaults


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


def _secure(url: str, parsed: Url, settings: dict[str, Any]) -> None:
    """Turn on the check of host names, which is off by default before redis-py 6.0.

    Raises:
        ValueError: TLS options contradict each other, name a missing file, or come without TLS.
    """
    ssl_names = [name for name in settings if name.removeprefix("sentinel_").startswith("ssl")]
    if "ssl" in ssl_names or (ssl_names and not parsed.tls):
        scheme = "rediss://" + ("" if parsed.kind in ("", "unix") else f" (rediss+{parsed.kind}://)")
        raise urls.wrong(url, f"option {ssl_names[0]} needs TLS, which the scheme turns on: {scheme}")
    if not parsed.tls:
        return
    for name in ssl_names:
        is_path = name.removeprefix("sentinel_") in ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
        if is_path and settings[name] is not None and not Path(settings[name]).exists():
            raise urls.wrong(url, f"{name}={shown(settings[name])}: there is no such file")
    for prefix in ("", "sentinel_"):
        verifies = settings.get(prefix + "ssl_cert_reqs", "required") not in (None, "none", ssl.CERT_NONE)
        if not verifies and settings.get(prefix + "ssl_check_hostname"):
            why = "ssl_check_hostname works only if certificates are checked: leave out ssl_cert_reqs=none"
            raise urls.wrong(url, why)
        if settings.get(name := prefix + "ssl_check_hostname") is None and (not prefix or not verifies):
            settings[name] = verifies


def retry(times: int = 3, *, asynchronous: bool) -> Any:
    """Return the option `retry` of a client: by default three retries within about 0.15 seconds.

    Any call may be repeated. redis-py's `from_url` does not retry.
    """
    kind: Any = redis.asyncio.retry.Retry if asynchronous else redis.retry.Retry
    return kind(ExponentialBackoff(cap=1, base=0.01), times)


def _connect_one(parsed: Url, asynchronous: bool, settings: dict[str, Any]) -> Any:
    module: Any = redis.asyncio if asynchronous else redis
    if parsed.kind == "unix":
        base, settings["path"] = "unix://", parsed.path
    else:
        base = "redis://"
        (host, settings["port"]), *_ = parsed.hosts
        settings["host"] = host or "localhost"
        if parsed.tls:
            settings["connection_class"] = module.SSLConnection
    return module.Redis.from_url(base, **settings)


def _connect_cluster(parsed: Url, asynchronous: bool, settings: dict[str, Any]) -> Any:
    module: Any = redis.asyncio.cluster if asynchronous else redis.cluster
    if settings.pop("db", 0):
        raise ValueError("a cluster has only database 0: leave out db")
    if parsed.tls:
        settings["ssl"] = True
    if not asynchronous:
        _look_at_cluster_options(parsed, settings)
    return module.RedisCluster(startup_nodes=[module.ClusterNode(*address) for address in parsed.hosts], **settings)


def _look_at_cluster_options(parsed: Url, settings: dict[str, Any]) -> None:
    """Refuse options that a blocking `RedisCluster` would silently ignore."""
    module: Any = redis.cluster
    known = {*module.REDIS_ALLOWED_KEYS, *inspect.signature(module.RedisCluster.__init__).parameters}
    if parsed.tls and "ssl_check_hostname" not in known:  # redis-py before 6.2
        default = inspect.signature(redis.SSLConnection.__init__).parameters["ssl_check_hostname"].default
        if settings.pop("ssl_check_hostname") and not default:
            raise TypeError(
                "redis-py before 6.2 cannot check host names of a cluster: upgrade it, or add ssl_check_hostname=false"
            )
    if unknown := [name for name in settings if name not in known]:
        raise TypeError(f"RedisCluster has no option {shown(unknown[0])}")


def _connect_sentinel(parsed: Url, asynchronous: bool, settings: dict[str, Any]) -> Any:
    module: Any = redis.asyncio.sentinel if asynchronous else redis.sentinel
    of_sentinels = {
        name.removeprefix("sentinel_"): settings.pop(name) for name in list(settings) if name.startswith("sentinel_")
    }
    shared = {name: value for name, value in settings.items() if name.startswith(("socket_", "ssl_", "driver_"))}
    secured = {"ssl": True} if parsed.tls else {}
    sentinel = module.Sentinel(
        parsed.hosts,
        # No retry: if a sentinel does not answer, redis-py asks the next one.
        sentinel_kwargs={"retry": retry(0, asynchronous=asynchronous), **secured, **shared, **of_sentinels},
        **secured,
        **settings,
    )
    connection_class = sentinels.connection_class(asynchronous=asynchronous, tls=parsed.tls)
    return sentinel.master_for(parsed.path, connection_class=connection_class)


def check(client: Any, *, asynchronous: bool, taker: str = "Saver") -> None:
    """Refuse an object that is not a client, or is a client of the other kind (blocking, asyncio).

    `taker` is Saver, Store or Cache, for the message.

    Raises:
        TypeError: The message says what to pass instead.
    """
    flavours = (f"Redis{taker}", f"AsyncRedis{taker}")
    wanted, other = reversed(flavours) if asynchronous else flavours
    if hasattr(type(client), "execute_command") and hasattr(type(client), "execute"):
        raise TypeError(
            f"client: {kind_of(client)}, which queues commands instead of answering them. Pass {wanted} the client "
            "that you called pipeline() on; savers make pipelines of their own"
        )
    is_client = callable(getattr(client, "execute_command", None)) and hasattr(client, "get_encoder")
    if is_client and inspect.iscoroutinefunction(client.execute_command) == asynchronous:
        return
    package = "redis.asyncio" if asynchronous else "redis"
    hint = f"Use {other} for this one" if is_client else f"For a URL use {wanted}.from_conn_string(url)"
    raise TypeError(f"client: {kind_of(client)}; {wanted} takes a client of {package}, such as {package}.Redis. {hint}")


def missing_retry(client: Any) -> str:
    """Return the arguments that make a client send a call again after a lost reply. Empty if it already does.

    redis-py has a default of `retry=` for `Redis(...)` only, since 6.0. valkey-py, and redis-py before 6.0, retry only
    the errors in `retry_on_error=`. Calls to a cluster are repeated by the link.
    """
    pool = getattr(client, "connection_pool", None)
    if pool is None or type(client).__module__.startswith("fakeredis"):
        return ""
    options, is_redis = pool.connection_kwargs, exceptions_of(client) is redis.exceptions
    if options.get("retry_on_error") or options.get("retry_on_timeout"):
        return ""
    if not is_redis or _MAJOR < 6:
        return "retry=Retry(ExponentialBackoff(cap=1, base=0.01), 3) and retry_on_error=[ConnectionError, TimeoutError]"
    return "" if options.get("retry") is not None else "retry=Retry(ExponentialBackoff(cap=1, base=0.01), 3)"


def replies_are_cached(client: Any) -> bool:
    """True if a client has redis-py's client-side cache (`cache_config=`)."""
    nodes = getattr(client, "nodes_manager", None)
    return getattr(getattr(client, "connection_pool", None), "cache", getattr(nodes, "_cache", None)) is not None


def is_cluster(client: Any) -> bool:
    """True if a client is one of a Redis Cluster."""
    return hasattr(client, "get_primaries")


def exceptions_of(client: Any) -> ModuleType:
    """Return the module of a client's exceptions: redis-py's or valkey-py's."""
    packages = {cls.__module__.partition(".")[0] for cls in type(client).__mro__}
    return import_module("valkey.exceptions" if "valkey" in packages else "redis.exceptions")


def failures_of(client: Any) -> tuple[type[Exception], ...]:
    """Return the errors that a client raises if the server or the network fails."""
    names = ("RedisError", "RedisClusterException", "ValkeyError", "ValkeyClusterException")
    return (OSError, *existing(exceptions_of(client), names))


def existing(module: Any, names: Sequence[str]) -> list[type[Exception]]:
    """Return the exceptions with these names that this version of redis-py or valkey-py has."""
    return [getattr(module, name) for name in names if hasattr(module, name)]


def check_knows_hello(error: Exception) -> None:
    """Refuse a server that replied to HELLO, which clients may send first, that it does not know the command.

    The server's own message may repeat the password that came with HELLO, so it is left out.

    Raises:
        UnsupportedServer: The server does not know HELLO.
    """
    # redis-py says "Cluster mode is not enabled" instead, as the cause of its error.
    if any(_NO_HELLO.match(str(each)) for each in (error, getattr(error.__cause__, "__context__", None))):
        oldest = " or ".join(f"{name} {major}.{minor}" for name, (major, minor) in OLDEST.items())
        raise UnsupportedServer(
            f"the server does not know the command HELLO: redis_saver needs {oldest}, or newer. Update the server, or "
            "use another one. If a proxy is in between, connect to the server itself"
        ) from None


def check_version(hello: Any) -> None:
    """Check the server's version in its reply to HELLO, which any user may send.

    Raises:
        UnsupportedServer: The server is older than `OLDEST`.
    """
    flat = hello if isinstance(hello, Mapping) else dict(zip(hello[::2], hello[1::2], strict=True))
    fields = {_text(key): value for key, value in flat.items()}
    server, version = _text(fields["server"]), _text(fields["version"])
    oldest = OLDEST.get(server)
    if oldest and tuple(int(part) for part in version.split(".")[:2]) < oldest:
        raise UnsupportedServer(f"{server} {version}: redis_saver needs {server} {oldest[0]}.{oldest[1]} or newer")


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def close(client: Any) -> None:
    """Close the idle connections of a blocking client, and all connections of a cluster's client.

    Other connections are closed when Python collects the client.
    """
    if is_cluster(client):
        client.close()
    for pool in _pools(client):
        pool.disconnect(inuse_connections=False)


async def aclose(client: Any) -> None:
    """Close an asyncio client and all its connections, on their loop."""
    await client.aclose()
    for pool in _pools(client):
        await pool.disconnect()


async def aclose_idle(client: Any) -> None:
    """Close the idle connections of an asyncio client, on their loop. This does nothing for a cluster's client."""
    for pool in _pools(client):
        await pool.disconnect(inuse_connections=False)


def _pools(client: Any) -> list[Any]:
    """Return the connection pools of the server and its sentinels. A cluster's client has none."""
    if is_cluster(client):
        return []
    pool = client.connection_pool
    manager = getattr(pool, "sentinel_manager", None)
    return [pool, *(sentinel.connection_pool for sentinel in (manager.sentinels if manager else ()))]


@contextmanager
def on_node(client: Any, node: Any) -> Iterator[Any]:
    """Yield a blocking client of a cluster's node, or the client itself if the node is None.

    A client that was made for a `Newcomer` is closed on exit.
    """
    if node is None:
        yield client
    elif hasattr(node, "name"):
        yield (getattr(client, "get_redis_connection", None) or client.get_valkey_connection)(node)
    else:
        manager = client.nodes_manager
        create = getattr(manager, "create_redis_node", None) or manager.create_valkey_node
        newcomer = create(node.host, node.port, **manager.connection_kwargs)
        try:
            yield newcomer
        finally:
            close(newcomer)


def give_back_connections(client: Any) -> None:
    """Let an asyncio client give back each connection, also after an error. Only valkey-py's for clusters does not."""
    if is_cluster(client) and exceptions_of(client) is not redis.exceptions:
        import_module("redis_saver._client.valkey_nodes").give_back_connections(client)


def most_connections(client: Any, node: Any) -> int:
    """Return the number of connections to a node after which an asyncio client refuses calls.

    A client that lets calls wait has no limit.
    """
    pool = client.connection_pool if node is None and not is_cluster(client) else node
    return UNLIMITED if hasattr(pool, "timeout") else getattr(pool, "max_connections", UNLIMITED)


def target(node: Any) -> dict[str, Any]:
    """Return the option that sends a command to one node of a cluster. A single server needs no option."""
    return {} if node is None else {"target_nodes": node}


def nodes(client: Any) -> list[str | None]:
    """Return the names of a cluster's primaries, or `[None]` for a single server."""
    return [node.name for node in client.get_primaries()] if is_cluster(client) else [None]


def node_named(client: Any, name: str | None) -> Any:
    """Return the node with that name.

    Raises:
        ConnectionError: The node has left the cluster. The class is that of the client's package.
    """
    if name is None:
        return None
    if (node := client.get_node(node_name=name)) is None:
        raise exceptions_of(client).ConnectionError(f"node {name} has left the cluster; call again")
    return node


def described(client: Any) -> str:
    """Return the URL of a client's server without user, password and options. An unknown client gives its class."""
    if type(client).__module__.startswith("fakeredis"):
        return "memory://"
    if is_cluster(client):
        nodes = getattr(getattr(client, "nodes_manager", client), "startup_nodes", ())
        return f"redis+cluster://{','.join(sorted(map(str, nodes)))}"
    pool = getattr(client, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", {})
    database = options.get("db") or 0
    if manager := getattr(pool, "sentinel_manager", None):
        addresses = ",".join(
            sorted(_address(sentinel.connection_pool.connection_kwargs) for sentinel in manager.sentinels)
        )
        server = f"redis+sentinel://{addresses}/{getattr(pool, 'service_name', '')}/{database}"
    elif "path" in options:
        server = f"unix://{options['path']}?db={database}"
    elif "host" in options:
        tls = "s" if "SSL" in getattr(pool, "connection_class", type).__name__ else ""
        server = f"redis{tls}://{_address(options)}/{database}"
    else:
        return kind_of(client)
    return printable(server, MAX_NAME)


def _address(options: Mapping[str, Any]) -> str:
    return f"{options.get('host') or 'localhost'}:{options.get('port') or 6379}"


# -- twins: clients with the settings of another client, and with their own connections and locks
#
# They serve another event loop or the child of a fork. In the child, OS threads that are gone may hold locks of the
# first client, so a twin only reads its attributes: those that redis-py 5.2 to 8 and valkey-py 6 have in common.

_OF_ONE_POOL = (
    "maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler",
    "himport_registry", "event_dispatcher",
)  # fmt: skip
"""Settings that a pool adds for its own connections. A twin must not have them."""


def twin_after_fork(client: Any) -> Any:
    """Return a twin of a client of the parent process."""
    if type(client).__module__.startswith("fakeredis"):
        warnings.warn(
            "memory:// is used in a forked process. This process, its parent and other processes do not see each "
            "other's writes from now on. For several processes write redis://",
            RuntimeWarning,
            stacklevel=2,
        )
    return twin(client)


def twin(client: Any) -> Any:
    """Return a client of the same class with the same settings.

    It connects at its first use. Only a blocking cluster client connects now, to find its nodes.

    Raises:
        TypeError: The client's class, or its pool's, takes other arguments than its base class.
    """
    if is_cluster(client):
        return _twin_of_a_cluster(client)
    try:
        return type(client)(connection_pool=_twin_of_a_pool(client.connection_pool))
    except TypeError as error:
        raise TypeError(
            f"client={type(client).__name__}: it belongs to another event loop or to the parent process, and cannot "
            "be copied. Its class must take connection_pool=, and the pool's class the arguments of redis-py's "
            "ConnectionPool. Or pass a URL to from_conn_string()"
        ) from error


def _twin_of_a_pool(pool: Any) -> Any:
    settings = _own_settings(pool.connection_kwargs)
    settings = {"connection_class": pool.connection_class, "max_connections": pool.max_connections, **settings}
    if (manager := getattr(pool, "sentinel_manager", None)) is not None:
        settings.pop("connection_pool")  # the new pool sets its own
        manager = copy.copy(manager)
        manager.sentinels = [twin(sentinel) for sentinel in manager.sentinels]
        settings.update(is_master=pool.is_master, check_connection=pool.check_connection)
        return type(pool)(pool.service_name, manager, **settings)
    if hasattr(pool, "timeout"):  # a pool that lets callers wait for a connection
        settings["timeout"] = pool.timeout
    return type(pool)(**settings)


def _twin_of_a_cluster(client: Any) -> Any:
    nodes = client.nodes_manager
    settings = _own_settings(getattr(client, "connection_kwargs", None) or nodes.connection_kwargs)
    if "SSL" in getattr(settings.pop("connection_class", None), "__name__", ""):
        settings["ssl"] = True
    connected = settings.pop("redis_connect_func", None)
    if connected is not None and (own := getattr(client, "user_on_connect_func", None)):
        settings["redis_connect_func"] = own
    if getattr(client, "read_from_replicas", False):  # deprecated by redis-py 5.3, and False by default
        settings["read_from_replicas"] = True
    of_client = ("retry", "load_balancing_strategy", "reinitialize_steps", "cluster_error_retry_attempts")
    of_nodes = ("require_full_coverage", "_require_full_coverage", "_dynamic_startup_nodes", "address_remap")
    for holder, names in ((client, of_client), (nodes, of_nodes)):
        for name in names:
            if (value := getattr(holder, name, None)) is not None:
                settings[name.lstrip("_")] = value
    known = inspect.signature(type(client).__init__).parameters
    takes_more = any(each.kind is each.VAR_KEYWORD for each in known.values())
    node_class = type(next(iter(nodes.startup_nodes.values())))
    return type(client)(
        startup_nodes=[node_class(node.host, node.port) for node in nodes.startup_nodes.values()],
        **{name: value for name, value in settings.items() if takes_more or name in known},
    )


def _own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _OF_ONE_POOL}
