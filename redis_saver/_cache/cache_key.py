"""`cache_key`: keys of cached nodes that are the same in all processes.

LangGraph's default key is a pickle. A pickled message contains a set of field names, whose order differs between
processes. The serializer leaves that set out. Other sets, and dicts, are sorted here.
"""

from __future__ import annotations

import hashlib
from typing import Any

import ormsgpack

from redis_saver._cache.cache import Cache
from redis_saver.errors import encoding

_SERDE = Cache.serde
_REMEDY = (
    "The node did not run. Pass to cache_key only the parts of the input on which the result depends: "
    "CachePolicy(key_func=lambda state: cache_key(state['question']))"
)
_SETS = (["builtins", "set"], ["builtins", "frozenset"])


def cache_key(*args: Any, closure: Any = None, **kwargs: Any) -> str:
    """Return a digest of a node's input, or of a task's arguments, for `CachePolicy(key_func=cache_key)`.

    Equal messages, dicts and sets have the same key in every process. LangGraph's default key differs between
    processes if the input contains messages.

    LangGraph names an entry by the module and qualified name of its function, and by the node. So functions that one
    factory makes share their entries, and so do two versions of a function. Pass what distinguishes them as `closure`:

        CachePolicy(key_func=functools.partial(cache_key, closure=(model_name, "prompt 2")))

    Args:
        args: The input of the node, or the arguments of the task.
        closure: What else the result depends on: values that the function holds, or its version. The serializer must
            know them.
        kwargs: Keyword arguments of the task.

    Raises:
        EncodeError: The serializer does not know a value. The node did not run.
    """
    with encoding("the input of a cached node", remedy=_REMEDY):
        _, data = _SERDE.dumps_typed([list(args), kwargs, closure])
        return hashlib.sha256(_sorted(data)).hexdigest()


def _sorted(data: bytes) -> bytes:
    """Return msgpack with its dicts and sets in one order."""
    value = ormsgpack.unpackb(data, ext_hook=_sorted_object, option=ormsgpack.OPT_NON_STR_KEYS)
    return _packed(_with_order(value))


def _sorted_object(code: int, data: bytes) -> ormsgpack.Ext:
    value = ormsgpack.unpackb(data, ext_hook=_sorted_object, option=ormsgpack.OPT_NON_STR_KEYS)
    if isinstance(value, list) and value[:2] in _SETS:
        value[2] = sorted(value[2], key=_packed)
    return ormsgpack.Ext(code, _packed(_with_order(value)))


def _with_order(value: Any) -> Any:
    if isinstance(value, dict):
        are_texts = all(type(key) is str for key in value)  # nearly always, and comparing them is fast
        return {key: _with_order(value[key]) for key in sorted(value, key=None if are_texts else _packed)}
    return [_with_order(one) for one in value] if isinstance(value, list) else value


def _packed(value: Any) -> bytes:
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)
