"""Which server a client talks to, for messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis_saver._client import clients
from redis_saver._common.display import MAX_NAME, kind_of, printable


def described(client: Any) -> str:
    """The server of a client as a URL, without user, password and options. For a client of an unknown kind, its class."""
    if type(client).__module__.startswith("fakeredis"):
        return "memory://"
    if clients.is_cluster(client):
        manager = getattr(client, "nodes_manager", client)
        nodes = sorted(map(str, getattr(manager, "startup_nodes", ())))
        return f"redis+cluster://{','.join(nodes)}"
    pool = getattr(client, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", {})
    if manager := getattr(pool, "sentinel_manager", None):
        sentinels = ",".join(sorted(_address(one.connection_pool.connection_kwargs) for one in manager.sentinels))
        return printable(
            f"redis+sentinel://{sentinels}/{getattr(pool, 'service_name', '')}{_database(options)}", MAX_NAME
        )
    if "path" in options:
        return printable(f"unix://{options['path']}?db={options.get('db', 0)}", MAX_NAME)
    if "host" in options:
        tls = "s" if "SSL" in getattr(pool, "connection_class", type).__name__ else ""
        return printable(f"redis{tls}://{_address(options)}{_database(options)}", MAX_NAME)
    return kind_of(client)


def _address(options: Mapping[str, Any]) -> str:
    return f"{options.get('host') or 'localhost'}:{options.get('port') or 6379}"


def _database(options: Mapping[str, Any]) -> str:
    return f"/{options.get('db') or 0}"
