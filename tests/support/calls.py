"""Calls of a saver on the thread `thread` and on all threads, by name, for tests that make each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from tests.support.factories import config, put

CALLS: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
    "get_tuple": lambda uniform, where: uniform.get_tuple(config()),
    "get_tuple by id": lambda uniform, where: uniform.get_tuple(where),
    "list": lambda uniform, where: uniform.list(config()),
    "list by metadata": lambda uniform, where: uniform.list(config(), filter={"step": 1}),
    "list all": lambda uniform, where: uniform.list(None),
    "list all by metadata": lambda uniform, where: uniform.list(None, filter={"step": 1}),
    "history": lambda uniform, where: uniform.get_delta_channel_history(config=where, channels=["n", "long"]),
    "threads": lambda uniform, where: uniform.threads(),
    "get_thread": lambda uniform, where: uniform.get_thread("thread"),
    "get_thread_ttl": lambda uniform, where: uniform.get_thread_ttl("thread"),
    "writes": lambda uniform, where: uniform.writes("thread"),
    "channel_history": lambda uniform, where: uniform.channel_history("thread", "n"),
    "latest_values": lambda uniform, where: uniform.latest_values("n", thread_ids=["thread"]),
    "check": lambda uniform, where: uniform.check("thread"),
    "key_status": lambda uniform, where: uniform.key_status(),
    "copy_thread": lambda uniform, where: uniform.copy_thread("thread", "copy"),
    "put": lambda uniform, where: put(uniform, where, {"n": "3"}, versions={"n": "3"}),
    "put_writes": lambda uniform, where: uniform.put_writes(where, [("n", "4")], "another"),
    "set_thread_ttl": lambda uniform, where: uniform.set_thread_ttl("thread", timedelta(days=1)),
    "rotate_keys": lambda uniform, where: uniform.rotate_keys(),
    "rotate_keys of data": lambda uniform, where: uniform.rotate_keys(data=True),
    "prune": lambda uniform, where: uniform.prune(["thread"]),
    "delete_for_runs": lambda uniform, where: uniform.delete_for_runs(["run"]),
    "delete_thread": lambda uniform, where: uniform.delete_thread("thread"),
}
