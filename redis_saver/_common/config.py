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
"""The key in `configurable` that gives a thread its own TTL."""
HISTORY_KEY = "thread_history"
"""And the one that says how much of its history it keeps."""
OWNER_KEY = "thread_owner"
"""The one with the token of who owns the thread, as `own` gives it."""
NEWEST_KEY = "__redis_saver_newest"
"""The one by which `get_tuple` tells the loop that it answered the newest checkpoint of the namespace, for savers that
refuse forks. LangGraph hands it on to the loop's `put`, and leaves it out of metadata because of how it begins."""
OURS = frozenset((TTL_KEY, HISTORY_KEY, OWNER_KEY, NEWEST_KEY))
"""All keys that LangGraph does not know."""
MAX_INT = 2**63 - 1
"""The greatest number that Redis and Postgres take, and `sys.maxsize`, which some callers write for "all"."""
_MAX_SECONDS = 10**9
"""30 years. Python's locks and event loops take no timeout above 292 years."""
_MAX_NESTING = 100
"""Levels of dicts and lists. JSON in Postgres, and Python's own comparison, end at about a thousand."""
_TOKEN = re.compile(r"[0-9]{1,16}-[0-9a-f]{16}")


class Address(NamedTuple):
    """The checkpoint, or namespace, that a config names."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None

    def __str__(self) -> str:
        """As messages say it."""
        of = f"namespace {shown(self.checkpoint_ns)} of thread {shown(self.thread_id)}"
        return f"checkpoint {shown(self.checkpoint_id)} of {of}"


def configurable(config: RunnableConfig) -> Mapping[str, Any]:
    """The `configurable` of a config.

    Raises:
        TypeError: there is none.
    """
    found: object = config.get("configurable") if isinstance(config, (dict, Mapping)) else None
    if not isinstance(found, (dict, Mapping)):
        raise TypeError(f'config={shown(config)}: pass {{"configurable": {{"thread_id": ...}}}}')
    return found


def name(value: object, what: str) -> str:
    """A thread's or checkpoint's name; a UUID or an int becomes its `str`.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (UUID, int)):
        return str(value)
    raise TypeError(f"{what}={shown(value)}: a {what} is a str (or a UUID or an int), not a {type(value).__name__}")


def names(values: Iterable[object], what: str) -> list[str]:
    """A list of thread or run ids, each once.

    Raises:
        TypeError: `values` is one str, or holds something that is no name.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{what}s={shown(values)}: pass a list of {what}s")
    return list(dict.fromkeys(name(value, what) for value in values))


def checkpoint_id(config: RunnableConfig) -> str | None:
    """The checkpoint id in a config, None where there is none or an empty one."""
    return _checkpoint_id(configurable(config))


def namespace(config: RunnableConfig) -> str | None:
    """The namespace in a config, None where there is none."""
    return _namespace(configurable(config))


def thread_id(config: RunnableConfig) -> str:
    """The thread in a config.

    Raises:
        ValueError: there is none.
    """
    return _thread_id(configurable(config))


def address(config: RunnableConfig) -> Address:
    """The address in a config. Without a namespace it is the root.

    Raises:
        TypeError, ValueError: The config has no thread, or something in it is no name.
    """
    given = config.get("configurable") if type(config) is dict else None
    if type(given) is dict:
        thread, ns, checkpoint = given.get("thread_id"), given.get("checkpoint_ns"), given.get("checkpoint_id")
        if type(thread) is type(ns) is str and (checkpoint is None or type(checkpoint) is str):
            return Address(thread, ns, checkpoint or None)
    of = configurable(config)
    return Address(_thread_id(of), _namespace(of) or "", _checkpoint_id(of))


def _checkpoint_id(given: Mapping[str, Any]) -> str | None:
    value = given.get("checkpoint_id")
    return name(value, "checkpoint_id") or None if value is not None else None


def _namespace(given: Mapping[str, Any]) -> str | None:
    value = given.get("checkpoint_ns")
    if value is not None and not isinstance(value, str):
        raise TypeError(f"checkpoint_ns={shown(value)}: a checkpoint_ns is a str, '' for the root")
    return value


def _thread_id(given: Mapping[str, Any]) -> str:
    if (value := given.get("thread_id")) is None:
        raise ValueError('config["configurable"] has no "thread_id"; it names the conversation to read or write')
    return name(value, "thread_id")


class ThreadSettings(NamedTuple):
    """The settings of a thread in a config that LangGraph does not know."""

    owner: str = ""
    """The token of its owner, in `configurable["thread_owner"]`."""
    ttl: int | None = None
    """Its own TTL in milliseconds, in `configurable["thread_ttl"]`."""
    history: bytes = b""
    """Its own history limit, in `configurable["thread_history"]`: a number of checkpoints, or `all`."""
    is_newest: bool = False
    """True if `get_tuple` marked the config: its checkpoint was the newest of the namespace."""


NO_SETTINGS = ThreadSettings()


def address_and_settings(config: RunnableConfig) -> tuple[Address, ThreadSettings]:
    """Return the address in a config, as `address` does, and the thread's settings.

    Raises:
        TypeError, ValueError: The config has no thread, or something in it makes no sense.
    """
    named, given = address(config), config["configurable"]
    return named, NO_SETTINGS if OURS.isdisjoint(given) else _settings(given)


def _settings(given: Mapping[str, Any]) -> ThreadSettings:
    ttl, history, owner = given.get(TTL_KEY), given.get(HISTORY_KEY), given.get(OWNER_KEY)
    if ttl is not None:
        ttl = ttls.parse(ttl, name=f"configurable[{TTL_KEY!r}]", refresh_allowed=False).milliseconds
    if history is not None:
        kept = parse_history(history, name=f"configurable[{HISTORY_KEY!r}]")
        history = b"all" if kept is None else b"%d" % kept
    if owner is not None and not isinstance(owner, str):
        raise TypeError(
            f"configurable[{OWNER_KEY!r}]={shown(owner)}: pass the config that own() gives, or its token, a str"
        )
    if owner is not None and not _TOKEN.fullmatch(owner):
        raise ValueError(
            f"configurable[{OWNER_KEY!r}]={shown(owner)} is no token of own(): pass the config that own() gives"
        )
    return ThreadSettings(owner or "", ttl, history or b"", bool(given.get(NEWEST_KEY)))


def to_config(thread: str, ns: str, checkpoint: str) -> RunnableConfig:
    """The config of one checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint}}


def limit(value: int | None) -> int | None:
    """Check the `limit` of `list`.

    Raises:
        ValueError: it is negative.
        TypeError: it is no int.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"limit={shown(value)}: a limit is an int, or None for all")
    if value < 0:
        raise ValueError(f"limit={shown(value)}: a limit is not negative; None means all")
    number("limit", value, 0, whole=True)
    return value


def number(name: str, given: object, least: float, *, whole: bool = False, most: int = MAX_INT) -> None:
    """Check a setting: an int from `least` to `most` if `whole`, else seconds from `least` to 30 years.

    Raises:
        ValueError: It is no such number.
    """
    kind, most = ("an int", most) if whole else ("a number", _MAX_SECONDS)
    is_number = isinstance(given, int if whole else (int, float)) and not isinstance(given, bool)
    if not is_number or not given >= least:  # type: ignore[operator]  # NaN is neither less nor more
        raise ValueError(f"{name}={shown(given)}: write {kind} of at least {least:g}")
    if given > most:  # type: ignore[operator]
        raise ValueError(f"{name}={shown(given)}: write {kind} of at most {most}")


def check_nesting(name: str, value: object) -> None:
    """Check an argument without recursion.

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


def one_of(of: type, name: str, given: object, *known: str) -> None:
    """Check a setting of the class `of` that has to be one of some words.

    Raises:
        ValueError: It is none of them.
    """
    if given not in known:
        raise ValueError(f"{of.__name__}: {name}={shown(given)}: write {' or '.join(map(repr, known))}")


# -- how much of its history a thread keeps


class KeepLast(TypedDict):
    """Keep the newest `keep_last` checkpoints of each namespace."""

    keep_last: int


History: TypeAlias = Literal["all"] | KeepLast
"""`"all"`; or `{"keep_last": n}`: the newest `n` checkpoints of each namespace, and up to half as many more (or 32)."""

MAX_KEEP_LAST = 1000


def parse_history(history: object, *, name: str = "history") -> int | None:
    """Return the number of checkpoints to keep in each namespace. None: all.

    Args:
        history: A `History`.
        name: What the argument is called, for the message.

    Raises:
        TypeError: It is of another type.
        ValueError: It is another text, has another key, or a number out of range.
    """
    if isinstance(history, str):
        if history == "all":
            return None
        raise ValueError(f"{name}={shown(history)}: write 'all' or {{\"keep_last\": n}}")
    if not isinstance(history, Mapping):
        raise TypeError(
            f"{name}={shown(history)}: write 'all' or {{\"keep_last\": n}}, not a bare {type(history).__name__}"
        )
    if set(history) != {"keep_last"}:
        raise ValueError(f"{name}={shown(history)}: it has one key, 'keep_last'; or write 'all'")
    return keep_last(history["keep_last"], f"{name}={shown(history)}")


def keep_last(number: object, said: str) -> int:
    """Check a number of checkpoints to keep; `said` is the caller's text, for the message.

    Raises:
        TypeError, ValueError: It is no such number.
    """
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{said}: keep_last is an int")
    if not 1 <= number <= MAX_KEEP_LAST:
        raise ValueError(f"{said}: keep_last lies between 1 and {MAX_KEEP_LAST}; prune() keeps any number")
    return number
