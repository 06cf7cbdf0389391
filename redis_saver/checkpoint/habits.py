"""Arguments that a saver does not have: those that users of other savers are used to, and slips of the pen."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache

_INSTEAD = {
    "redis_url": "for a URL write {name}.from_conn_string(url)",
    "redis_client": "write {name}(client)",
    "connection_args": "write {name}.from_conn_string(url, client_options={{...}}), or options behind the ? of the URL",
    "checkpoint_prefix": "write prefix=, the beginning of all keys",
    "checkpoint_blob_prefix": "write prefix=, the beginning of all keys",
    "checkpoint_write_prefix": "write prefix=, the beginning of all keys",
    "conn": "write {name}(client)",
    "conn_string": "for a URL write {name}.from_conn_string(url)",
}


def check(kind: type, given: Mapping[str, object], takes: str) -> None:
    """Refuse a keyword that a class's constructor does not have, and say what to write.

    Args:
        kind: The class that is made.
        given: The keywords it was given.
        takes: What it takes, for the message.

    Raises:
        TypeError: It has no such argument. No value is shown: one may hold a password.
    """
    known = _keywords(kind)
    for name in given:
        if known and name not in known:
            said = f"{kind.__name__} has no argument {name!r}"
            if name in _INSTEAD:
                raise TypeError(f"{said}: {_INSTEAD[name].format(name=kind.__name__)}. It takes {takes}")
            close = get_close_matches(name, known, 1)
            raise TypeError(f"{said}{f'; did you mean {close[0]!r}?' if close else ''}")


@lru_cache(maxsize=64)
def _keywords(kind: type) -> frozenset[str]:
    """The keywords of a class's constructor; none where it takes any."""
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return frozenset()
    return frozenset(one.name for one in parameters)
