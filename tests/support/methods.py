"""All public methods, in one table for each kind of class. A new method gets a row.

`tests/project/test_public.py` compares the tables with the classes. `tests/client/test_closed.py` calls each method
after `close()`. `tests/engine/test_stats.py` checks that each call is counted under the method's name, so it calls
them in this order: what removes something comes last. Tests of damage, changed replies and rights call each method of a
store, too (`calls_of`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any, NamedTuple

from langchain_core.outputs import Generation
from langgraph.store.base import GetOp, PutOp
from tests.support.factories import checkpoint, config

REDIS, TIERED = r"(Async)?Redis.*", r"(Async)?Tiered.*"
AT, NAMESPACE, KEY = config("t", "", "1"), ("a", "b"), (("label",), "key")
GIVEN = checkpoint({"n": 1}, {"n": f"{1:032}.1"}, "1")
VERSIONS = GIVEN["channel_versions"]


class Method(NamedTuple):
    """A public method, or an attribute of a class."""

    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = {}
    of: str = ".*"
    """Pattern of the classes that have it."""
    has_twin: bool = True
    """True if there is an `a...` form, with the same arguments."""
    is_counted: bool = True
    """True if `stats()` counts its calls under its name."""
    raises_closed: bool = True
    """True if it needs a server, and nothing else that the tests of closed objects do not have."""
    is_stream: bool = False


def local(of: str = ".*") -> Method:
    """Return a method or attribute that sends no request, and has no async form."""
    return Method(of=of, has_twin=False, is_counted=False, raises_closed=False)


UNCOUNTED = Method(is_counted=False)
OF_KEYS = {
    "key_status": Method(of=REDIS),
    "rotate_keys": Method(of=REDIS, raises_closed=False),  # it needs keys
}
SAVER = {
    # LangGraph's
    "put": Method((config("t"), GIVEN, {}, VERSIONS)),
    "put_writes": Method((AT, [("n", 1)], "task")),
    "get": Method((config("t"),), is_counted=False),
    "get_tuple": Method((config("t"),)),
    "list": Method((config("t"),), is_stream=True),
    "get_delta_channel_history": Method(options={"config": config("t"), "channels": ["n"]}),
    "config_specs": local(),
    "get_next_version": local(),
    "serde": local(),
    "with_allowlist": local(),
    # ours
    "aget_iter": Method((config("t"),), has_twin=False, is_counted=False),
    "setup": UNCOUNTED,
    "stats": local(),
    "from_conn_string": local(REDIS),
    "own": Method(("t",), has_twin=False),
    "threads": Method(is_stream=True),
    "get_thread": Method(("t",)),
    "new_thread": Method(),
    "get_thread_ttl": Method(("t",)),
    "set_thread_ttl": Method(("t", "1h")),
    "pin": Method(("t",)),
    "unpin": Method(("t",)),
    "check": Method(("t",)),
    "diff": Method(("t", "1")),
    "writes": Method(("t",), of=REDIS, is_stream=True),
    "channel_history": Method(("t", "n"), of=REDIS, is_stream=True),
    "latest_values": Method(options={"channel": "n", "thread_ids": ["t"]}, of=REDIS, is_stream=True),
    **{name: method._replace(of=".*") for name, method in OF_KEYS.items()},
    "pause_flushing": Method((60,), of=TIERED),
    "resume_flushing": Method(of=TIERED),
    "flush": Method(of="TieredSaver", has_twin=False, is_counted=False),
    "aflush": Method(of=TIERED, has_twin=False, is_counted=False),
    "close": local("TieredSaver"),
    "aclose": local("AsyncTieredSaver"),
    "copy_thread": Method(("t", "u")),
    "prune": Method((["t"],)),
    "delete_for_runs": Method((["run"],)),
    "delete_thread": Method(("t",)),
}
STORE = {
    "put": Method((NAMESPACE, "k", {"v": 1})),
    "get": Method((NAMESPACE, "k")),
    "search": Method((NAMESPACE,)),
    "list_namespaces": Method(),
    "delete": Method((NAMESPACE, "k")),
    "batch": Method(([PutOp(NAMESPACE, "k", {"v": 1}), GetOp(NAMESPACE, "k")],)),  # one of a kind counts as that
    "supports_ttl": local(),
    "ttl_config": local(),
    "setup": UNCOUNTED,
    "stats": local(),
    "from_conn_string": local(REDIS),
    "count": Method((NAMESPACE,), of=REDIS),
    "sweep_ttl": Method(of=REDIS),
    "rebuild_directory": Method(of=REDIS),
    "build_index": Method(of=REDIS, raises_closed=False),  # it needs an index
    **OF_KEYS,
    "warm": Method((NAMESPACE,), of=TIERED),
    "delete_namespace": Method((NAMESPACE,), of=REDIS),
}
CACHE = {
    "set": Method(({KEY: (1, None)},)),
    "get": Method(([KEY],)),
    "serde": local(),
    "setup": UNCOUNTED,
    "stats": local(),
    "from_conn_string": local(),
    **OF_KEYS,
    "clear": Method(),
}
LLM_CACHE = {
    "lookup": Method(("prompt", "model")),
    "update": Method(("prompt", "model", [Generation(text="text")])),
    "clear": Method(),
    "stats": local(),
}
KINDS = {"LLMCache": LLM_CACHE, "Saver": SAVER, "Store": STORE, "Cache": CACHE}
STREAMS = {name for name, method in SAVER.items() if method.is_stream}


def methods_of(kind: type, *, twins: bool = True) -> dict[str, Method]:
    """Return the public names of a class, without or with the `a...` forms."""
    found: dict[str, Method] = {}
    for name, method in next(table for end, table in KINDS.items() if kind.__name__.endswith(end)).items():
        if re.fullmatch(method.of, kind.__name__):
            found[name] = method
            if twins and method.has_twin:
                found["a" + name] = method
    return found


def calls_of(kind: type, *left_out: str, **more: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """Return a call of each method that sends something, and `more` calls, which replace those of the same name."""
    rows = {name: row for name, row in methods_of(kind, twins=False).items() if row.is_counted and row.raises_closed}
    calls = {name: methodcaller(name, *row.arguments, **row.options) for name, row in rows.items()}
    assert calls.keys() >= {*left_out}, "a name that is left out is no method"
    return {**{name: call for name, call in calls.items() if name not in left_out}, **more}
