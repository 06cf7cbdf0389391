"""Runs one scenario with LangGraph's saver, store and cache, and with ours: `python inside.py swarm`.

`runner.py` starts it in the environment of the scenario's package. Its last line is the result, as JSON.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from comparing import Plain, difference
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from scripted import DIMENSIONS, embed

from redis_saver import RedisCache, RedisSaver, RedisStore

INDEX: Any = {"dims": DIMENSIONS, "embed": embed, "fields": ["content"]}
EVERYTHING = 10_000


def refuse(*_: Any) -> None:
    raise ConnectionRefusedError("no scenario uses the network")


def outcome(run: Callable[..., Any], saver: Any, store: Any, cache: Any) -> dict[str, Any]:
    """Return what a scenario saw, and the states and items that it leaves."""
    graph, configs, seen = run(saver, store, cache)
    namespaces = sorted(store.list_namespaces(limit=EVERYTHING))
    items = [item for namespace in namespaces for item in store.search(namespace, limit=EVERYTHING)]
    items = {(item.namespace, item.key): item.value for item in items}
    return {
        "seen": seen,
        "states": [graph.get_state(config, subgraphs=True) for config in configs],
        "histories": [list(graph.get_state_history(config)) for config in configs],
        "checkpoints": [stored(saver, config["configurable"]["thread_id"]) for config in configs],
        "items": sorted(([*namespace, key, value] for (namespace, key), value in items.items()), key=masked),
    }


def stored(saver: Any, thread_id: str) -> list[Any]:
    """Return the checkpoints of a thread, also of its subgraphs, as the saver returns them."""
    found = sorted(saver.list({"configurable": {"thread_id": thread_id}}), key=lambda saved: saved.checkpoint["id"])
    return [
        Plain(named=False).of(
            {
                "config": saved.config["configurable"],
                "values": saved.checkpoint["channel_values"],
                "metadata": saved.metadata,
                "parent": saved.parent_config,
                "writes": sorted((write[1:] for write in saved.pending_writes), key=masked),  # their order may vary
            }
        )
        for saved in found
    ]


def masked(item: Any) -> str:
    """Return a sort key without ids and times."""
    return repr(Plain().of(item))


def main(name: str) -> None:
    socket.socket.connect = refuse  # type: ignore[assignment,method-assign]
    run = importlib.import_module(f"scenarios.{name}").run
    theirs = outcome(run, InMemorySaver(), InMemoryStore(index=INDEX), InMemoryCache())
    with ExitStack() as stack:
        opened = (cls.from_conn_string("memory://neighbours") for cls in (RedisSaver, RedisCache))
        saver, cache = map(stack.enter_context, opened)
        store = stack.enter_context(RedisStore.from_conn_string("memory://neighbours", index=INDEX))
        ours = outcome(run, saver, store, cache)
    found = difference(Plain().of(theirs), Plain().of(ours))
    counts = {"checkpoints": sum(map(len, ours["checkpoints"])), "items": len(ours["items"])}
    print(json.dumps({"difference": found, **counts}))


if __name__ == "__main__":
    main(sys.argv[1])
