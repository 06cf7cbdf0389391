"""Twins: a client with the settings of another, and with connections and locks of its own.

They serve another event loop, and the child of a fork. In the child, OS threads that are gone may hold locks of the
first client, so it is only read. What is read are attributes that redis-py 5.2 to 8 and valkey-py 6 have in common.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Mapping
from typing import Any

from redis_saver._client.clients import is_cluster

_OF_ONE_POOL = frozenset(
    {
        "maint_notifications_pool_handler",
        "oss_cluster_maint_notifications_handler",
        "himport_registry",
        "event_dispatcher",
    }
)
"""Settings that a pool adds for its own connections, and that a twin must not have."""


def after_fork(client: Any) -> Any:
    """A twin of a client of the parent process."""
    if type(client).__module__.startswith("fakeredis"):
        warnings.warn(
            "memory:// is used in a forked process: what this process writes from now on, the parent and other "
            "processes do not see, and the reverse. For several processes write redis://",
            RuntimeWarning,
            stacklevel=2,
        )
    return twin(client)


def twin(client: Any) -> Any:
    """A client of the same class with the same settings.

    It connects when it is first used, but a blocking cluster client looks for its nodes now.

    Raises:
        TypeError: The client's class takes other arguments than the client it is derived from.
    """
    if is_cluster(client):
        return _cluster(client)
    try:
        return type(client)(connection_pool=_pool(client.connection_pool))
    except TypeError as error:
        raise TypeError(
            f"client={type(client).__name__}: it is bound to another event loop, or to the process that this one was "
            "forked from, and the saver cannot make "
            "another like it. Its class has to take connection_pool=, and the pool's class the arguments of redis-py's "
            "ConnectionPool. Or pass a URL to from_conn_string()"
        ) from error


def _pool(pool: Any) -> Any:
    settings = {
        "connection_class": pool.connection_class,
        "max_connections": pool.max_connections,
        **_own_settings(pool.connection_kwargs),
    }
    if (manager := getattr(pool, "sentinel_manager", None)) is not None:
        settings.pop("connection_pool")  # its connections refer to their pool by it
        manager = copy.copy(manager)
        manager.sentinels = [twin(sentinel) for sentinel in manager.sentinels]
        settings.update(is_master=pool.is_master, check_connection=pool.check_connection)
        return type(pool)(pool.service_name, manager, **settings)
    if hasattr(pool, "timeout"):  # a pool that lets callers wait for a connection
        settings["timeout"] = pool.timeout
    return type(pool)(**settings)


def _cluster(client: Any) -> Any:
    nodes = client.nodes_manager
    settings = _own_settings(getattr(client, "connection_kwargs", None) or nodes.connection_kwargs)
    connection_class = settings.pop("connection_class", None)
    if connection_class is not None and "SSL" in connection_class.__name__:
        settings["ssl"] = True
    connected = settings.pop("redis_connect_func", None)
    if connected is not None and (own := getattr(client, "user_on_connect_func", None)):
        settings["redis_connect_func"] = own
    if getattr(client, "read_from_replicas", False):  # deprecated by redis-py 5.3, and False by default
        settings["read_from_replicas"] = True
    for name in ("retry", "load_balancing_strategy", "reinitialize_steps", "cluster_error_retry_attempts"):
        if (value := getattr(client, name, None)) is not None:
            settings[name] = value
    for name in ("require_full_coverage", "_require_full_coverage", "_dynamic_startup_nodes", "address_remap"):
        if (value := getattr(nodes, name, None)) is not None:
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
