"""Reading what a caller passes: configs, lists of names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict
from uuid import UUID

from langchain_core.runnables import RunnableConfig

from redis_saver._common import ttl as ttls
from redis_saver._common.display import shown

TTL_KEY = "thread_ttl"
"""Key in `configurable` with the thread's own TTL."""
HISTORY_KEY = "thread_history"
"""Key in `configurable` with the thread's own history limit."""
OWNER_KEY = "thread_owner"
"""Key in `configurable` with the token of the thread's owner, as `own` returns it."""
NEWEST_KEY = "__redis_saver_newest"
"""Key in `configurable`, for savers that refuse forks. It marks a config from `get_tuple` whose checkpoint was the
newest of its namespace. LangGraph passes it on to the loop's `put`, and keeps it out of metadata because of its
prefix."""
OURS = frozenset((TTL_KEY, HISTORY_KEY, OWNER_KEY, NEWEST_KEY))
"""Our own keys in `configurable`, which LangGraph does not know."""
MAX_INT = 2**63 - 1
"""Maximum integer of Redis and Postgres. It is also `sys.maxsize`, which some callers pass for "all"."""
_MAX_SECONDS = 10**9
"""30 years. Python's locks and event loops take no timeout above 292 years."""
_MAX_NESTING = 100
"""Maximum levels of dicts and lists. JSON in Postgres, and Python's comparison, fail at about a thousand."""
_TOKEN = re.compile(r"[0-9]{1,16}-[0-9a-f]{16}")


class Address(NamedTuple):
    """The checkpoint, or namespace, that a config names."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None

    def __str__(self) -> str:
        """Return the address for error messages."""
        namespace = f"namespace {shown(self.checkpoint_ns)} of thread {shown(self.thread_id)}"
        return f"checkpoint {shown(self.checkpoint_id)} of {namespace}"


def configurable(config: RunnableConfig) -> Mapping[str, Any]:
    """Return the `configurable` of a config.

    Raises:
        TypeError: The config has no `configurable`.
    """
    entries: object = config.get("configurable") if isinstance(config, (dict, Mapping)) else None
    if not isinstance(entries, (dict, Mapping)):
        raise TypeError(f'config={shown(config)}: pass {{"configurable": {{"thread_id": ...}}}}')
    return entries


def name(value: object, what: str) -> str:
    """Return the name of a thread or checkpoint. A UUID or an int becomes its `str`.

    Raises:
        TypeError: It is another type.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (UUID, int)):
        return str(value)
    raise TypeError(f"{what}={shown(value)}: a {what} is a str (or a UUID or an int), not a {type(value).__name__}")


def names(values: Iterable[object], what: str) -> list[str]:
    """Return thread or run ids without duplicates.

    Raises:
        TypeError: `values` is a single str, or a value is not a name.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{what}s={shown(values)}: pass a list of {what}s")
    return list(dict.fromkeys(name(value, what) for value in values))


def checkpoint_id(config: RunnableConfig) -> str | None:
    """Return the checkpoint id in a config, or None if it is missing or empty."""
    value = configurable(config).get("checkpoint_id")
    return name(value, "checkpoint_id") or None if value is not None else None


def namespace(config: RunnableConfig) -> str | None:
    """Return the namespace in a config, or None.

    Raises:
        TypeError: It is another type than a str.
    """
    value = configurable(config).get("checkpoint_ns")
    if value is not None and not isinstance(value, str):
        raise TypeError(f"checkpoint_ns={shown(value)}: a checkpoint_ns is a str, '' for the root")
    return value


def thread_id(config: RunnableConfig) -> str:
    """Return the thread in a config.

    Raises:
        ValueError: It is missing.
    """
    if (value := configurable(config).get("thread_id")) is None:
        raise ValueError('config["configurable"] has no "thread_id"; it names the conversation to read or write')
    return name(value, "thread_id")


def address(config: RunnableConfig) -> Address:
    """Return the address in a config. The default namespace is the root.

    Raises:
        TypeError, ValueError: The config has no thread, or a name has a wrong type.
    """
    entries: Any = config.get("configurable") if type(config) is dict else None
    if type(entries) is not dict:
        entries = configurable(config)
    thread, ns, checkpoint = entries.get("thread_id"), entries.get("checkpoint_ns"), entries.get("checkpoint_id")
    if type(thread) is type(ns) is str and (checkpoint is None or type(checkpoint) is str):
        return Address(thread, ns, checkpoint or None)
    return Address(thread_id(config), namespace(config) or "", checkpoint_id(config))


class ThreadSettings(NamedTuple):
    """Our settings of a thread in a config."""

    owner: str = ""
    """Token of its owner, in `configurable["thread_owner"]`."""
    ttl: int | None = None
    """The thread's own TTL in milliseconds, in `configurable["thread_ttl"]`."""
    history: bytes = b""
    """The thread's own history limit, in `configurable["thread_history"]`: a number of checkpoints, or `all`."""
    is_newest: bool = False
    """True if `get_tuple` marked the config because its checkpoint was the newest of the namespace."""


NO_SETTINGS = ThreadSettings()


def address_and_settings(config: RunnableConfig) -> tuple[Address, ThreadSettings]:
    """Return the address in a config, and the thread's settings.

    Raises:
        TypeError, ValueError: The config has no thread, or an entry has a wrong type or value.
    """
    named, entries = address(config), config["configurable"]
    return named, NO_SETTINGS if OURS.isdisjoint(entries) else _settings(entries)


def ttl_of(config: RunnableConfig | None) -> int | None:
    """Return the thread's own TTL in a config, in milliseconds. The config need not name a thread.

    Raises:
        TypeError, ValueError: The config or its TTL is invalid.
    """
    if config is None or (isinstance(config, Mapping) and "configurable" not in config):
        return None
    return _settings(configurable(config)).ttl


def _settings(entries: Mapping[str, Any]) -> ThreadSettings:
    ttl, history, owner = entries.get(TTL_KEY), entries.get(HISTORY_KEY), entries.get(OWNER_KEY)
    if ttl is not None:
        ttl = ttls.parse(ttl, name=f"configurable[{TTL_KEY!r}]", refresh_allowed=False).milliseconds
    if history is not None:
        kept = parse_history(history, name=f"configurable[{HISTORY_KEY!r}]")
        history = b"all" if kept is None else b"%d" % kept
    if owner is not None and not isinstance(owner, str):
        raise TypeError(f"configurable[{OWNER_KEY!r}]={shown(owner)}: pass the config of own(), or its token (a str)")
    if owner is not None and not _TOKEN.fullmatch(owner):
        raise ValueError(f"configurable[{OWNER_KEY!r}]={shown(owner)} is no token of own(): pass the config of own()")
    return ThreadSettings(owner or "", ttl, history or b"", bool(entries.get(NEWEST_KEY)))


def to_config(thread: str, ns: str, checkpoint: str) -> RunnableConfig:
    """Return the config of a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint}}


def limit(value: int | None) -> int | None:
    """Check the `limit` of `list`. None means all.

    Raises:
        ValueError: It is negative, or not an int.
    """
    if value is not None:
        number("limit", value, 0, whole=True)
    return value


def number(name: str, value: object, least: float, *, whole: bool = False, most: int = MAX_INT) -> None:
    """Check a number: if `whole`, an int from `least` to `most`, else seconds from `least` to 30 years.

    Raises:
        ValueError: It has another type, or is out of range.
    """
    kind, most = ("an int", most) if whole else ("a number", _MAX_SECONDS)
    is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not is_number or not value >= least:  # type: ignore[operator]  # NaN is neither less nor more
        raise ValueError(f"{name}={shown(value)}: write {kind} of at least {least:g}")
    if value > most:  # type: ignore[operator]
        raise ValueError(f"{name}={shown(value)}: write {kind} of at most {most}")


def check_nesting(name: str, value: object) -> None:
    """Check the nesting of an argument, without recursion.

    Raises:
        ValueError: It has more than `_MAX_NESTING` levels, or contains itself.
    """
    level = [value]
    for _ in range(_MAX_NESTING):
        inside = {id(child): child for parent in level for child in _children(parent)}
        level = list(inside.values())
        if not level:
            return
    raise ValueError(f"{name}: it is nested more than {_MAX_NESTING} levels deep, or contains itself")


def _children(value: object) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def one_of(of: type, name: str, value: object, *known: str) -> None:
    """Check a setting of the class `of` that must be one of the known words.

    Raises:
        ValueError: It is not.
    """
    if value not in known:
        raise ValueError(f"{of.__name__}: {name}={shown(value)}: write {' or '.join(map(repr, known))}")


# -- history limits


class KeepLast(TypedDict):
    """Keep the newest `keep_last` checkpoints of each namespace."""

    keep_last: int


History: TypeAlias = Literal["all"] | KeepLast
"""`"all"`, or `{"keep_last": n}` for the newest `n` checkpoints of each namespace. A thread may have half as many more,
or 32 more."""

MAX_KEEP_LAST = 1000


def parse_history(history: object, *, name: str = "history") -> int | None:
    """Return the number of checkpoints to keep in each namespace. None means all.

    Args:
        history: A `History`.
        name: Name of the argument for error messages.

    Raises:
        ValueError: It is something else, or the number is out of range.
    """
    if history == "all":
        return None
    if not isinstance(history, Mapping) or set(history) != {"keep_last"}:
        raise ValueError(f"{name}={shown(history)}: write 'all' or {{\"keep_last\": n}}")
    number(f"{name}={shown(history)}: keep_last", history["keep_last"], 1, whole=True, most=MAX_KEEP_LAST)
    return int(history["keep_last"])
