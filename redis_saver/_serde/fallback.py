"""Copies of `JsonPlusSerializer`'s functions that take the short path for messages inside other values.

`JsonPlusSerializer` encodes every value that is not a plain message, and raises every error. But such a value may have
messages inside, for which it calls itself. So this module copies its functions with other globals: in the copies the
name `_msgpack_enc` means this module's `encode`, and the hook is the one of `ext_hook`.

This uses private names of `langgraph-checkpoint`. If one is missing or has changed, `KNOWN` is False. Then
`FastSerializer` works like `JsonPlusSerializer`, and logs that once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import EnumMeta
from types import CellType, FunctionType, NoneType
from typing import Any, Final

import ormsgpack
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver._common.logs import Log
from redis_saver._serde.messages import CLASSES, native
from redis_saver._serde.msgpack import is_deeper

_BUILT_IN: Final = frozenset({str, int, float, bool, NoneType, list, dict, tuple})
"""Types of values that may be packed in one step."""
_DEEP: Final = 6
"""Number of nested extensions from which the depth of the rest is measured. Few values have that many."""
_DEEPEST: Final = 4000
"""Maximum nesting of lists, dicts and objects when encoding, and when decoding inside `_DEEP` extensions.

ormsgpack allows a thousand nested lists and dicts, and counts from 0 again in each extension. So twenty nested
extensions with a thousand lists each, 20 kB, would overflow the stack and crash the process. This depth fits into a
stack of 8 MB, even with a thousand lists in each of the first six extensions.
"""
_DEEPEST_CONTAINERS: Final = 1024
"""Maximum nesting of lists and dicts that contain no object. A value that is nested deeper most likely contains
itself."""


class _Packing(threading.local):
    """The state of this OS thread's packing."""

    depth = 0
    """Depth of the value in other values."""
    why = ""
    """The reason of a failure, if it is known. The packer itself only says that the type is unknown."""


class _Reading(threading.local):
    """The state of this OS thread's reading."""

    depth = 0
    """Number of nested extensions. `ext_hook` counts them, as a function for that would add a frame to each."""
    too_deep = False
    """True if they nest too deep. It replaces an error, for which `JsonPlusSerializer` would return None."""


_packing = _Packing()
_reading = _Reading()


def encode(value: Any) -> bytes:
    """Encode a value that other OS threads may change. It replaces `jsonplus._msgpack_enc`.

    A value that needs no Python code is packed in one step, during which no other OS thread runs. Any other value is
    copied first (`_copy_of`). The contents of an object are encoded by this function, too. So at every depth, values
    are either packed in one step or copied.

    Raises:
        MsgpackEncodeError: The value cannot be encoded.
    """
    if type(value) in _BUILT_IN:
        try:
            return ormsgpack.packb(value, None, _ONE_STEP)
        except ormsgpack.MsgpackEncodeError:
            pass
    copy, depth = _copy_of(value)
    _packing.depth += depth + 1
    if _packing.depth > _DEEPEST:
        _packing.why = f"values are nested more than {_DEEPEST} deep; one may contain itself"
    try:
        return ormsgpack.packb(copy, None if _packing.why else _default, _option)
    except ormsgpack.MsgpackEncodeError as error:
        if not _packing.why:
            raise
        raise ormsgpack.MsgpackEncodeError(_packing.why) from error
    finally:
        _packing.depth -= depth + 1
        if not _packing.depth:
            _packing.why = ""


def _default(value: Any, tries: int = 4) -> Any:
    """Return the packable form of a value that the packer does not know.

    If another OS thread is changing the value, try again.
    """
    try:
        return _ordinary_default(value)
    except RecursionError:
        _packing.why = f"{type(value).__name__} is nested too deep, or contains itself"
        raise
    except BaseException as error:
        # "dictionary changed size during iteration" is a RuntimeError, and a panic in pydantic's Rust code.
        if not isinstance(error, RuntimeError) and type(error).__name__ != "PanicException":
            raise
        if tries == 1:
            _packing.why = f"{type(value).__name__} cannot be encoded: {error}"
            raise
    return _default(value, tries - 1)


# -- copies, which no other OS thread can change while the value is packed
#
# ormsgpack reads the length of a list once, and holds no reference to an element while it packs it. It keeps the
# interpreter's lock, so nothing changes until it runs Python code: `default`, or the value of a key that is an Enum.
# Then other OS threads may run. If one of them shortens a list that is being packed, the interpreter crashes
# (`docs/upstream/ormsgpack-concurrent-mutation.md`). That can happen to a graph's state while it is saved in the
# background.
#
# So this module copies the containers that ormsgpack walks through: lists, dicts, tuples, and subclasses of lists and
# dicts. Each is copied in one step, so all of it is from one moment. Two containers may be from different moments.

_LEAVES: Final = frozenset({str, int, float, bool, NoneType, bytes, bytearray, memoryview, ormsgpack.Ext})
"""Types of values that need no copy. The packer itself copies a bytearray or memoryview in one step."""


def _copy_of(value: Any) -> tuple[Any, int]:
    """Copy a value for the packer. The copy packs to the same bytes, and no other OS thread can change it.

    Tuples become lists, and messages become extensions. Objects stay: their contents are copied when `default` returns
    them.

    Returns:
        The copy, and the nesting of its containers.

    Raises:
        MsgpackEncodeError: They are nested deeper than can be packed.
    """
    copied = None if native is None else native.snapshot(value, _message)
    return _copy_in_python(value) if copied is None else copied


def _copy_in_python(value: Any) -> tuple[Any, int]:
    top = [value]
    copies: list[tuple[Any, int]] = [(top, 0)]
    deepest = 0
    # It goes depth first. So it copies a list that contains itself only as often as the maximum nesting allows.
    while copies:
        container, depth = copies.pop()
        deepest = max(deepest, depth)
        if depth > _DEEPEST_CONTAINERS:
            raise ormsgpack.MsgpackEncodeError(
                f"containers are nested more than {_DEEPEST_CONTAINERS} deep; one may contain itself"
            )
        for at, item in enumerate(container) if type(container) is list else container.items():
            kind = type(item)
            if kind in _LEAVES:
                continue
            if kind in CLASSES:
                container[at] = _message(item)
            elif (copy := _copied(item, kind)) is not None:
                container[at] = copy
                copies.append((copy, depth + 1))
    return top[0], deepest


def _message(message: Any) -> Any:
    """Return the extension of a message, or the message itself if `default` has to encode it."""
    data = native.payload(message)
    return message if data is None else ormsgpack.Ext(5, data)


def _copied(item: Any, kind: type) -> list[Any] | dict[Any, Any] | None:
    """Copy a container to a list or dict. Return None if the packer does not walk through it."""
    if kind is list or kind is tuple:
        return list(item)  # not item[:], which before Python 3.12 may start the garbage collector
    if kind is dict:
        return dict(item)
    if type(kind) is EnumMeta:
        return None
    # Copy the contents of subclasses without calling their own methods.
    if issubclass(kind, list):
        return list(list.__iter__(item))
    if issubclass(kind, dict):
        return dict(list(dict.items(item)))  # the list first, because hashing a key may run Python code
    return None


# -- the copied functions


def with_encode(function: Any, encode: Callable[[Any], bytes]) -> Any:
    """Copy a function of `jsonplus`. The copy calls another function to encode a value."""
    return FunctionType(function.__code__, {**vars(jsonplus), "_msgpack_enc": encode})


def ext_hook(ordinary: Any) -> Callable[[int, bytes], Any]:
    """Return a hook that works as the ordinary one, takes the short path for messages, and refuses deep nesting."""
    safe = vars(jsonplus)["_lg_msgpack"].SAFE_MSGPACK_TYPES
    short = frozenset(cls for cls in CLASSES if (cls.__module__, cls.__name__) in safe)

    def hook(code: int, data: bytes) -> Any:
        if code == 5 and short:
            message = native.read(data)
            if type(message) in short:
                return message
        around = _reading
        if not around.depth:
            around.too_deep = False
        around.depth += 1
        try:
            if around.depth == _DEEP and is_deeper(data, _DEEPEST):
                around.too_deep = True
            value = None if around.too_deep else inner(code, data)
        finally:
            around.depth -= 1
        if around.too_deep and not around.depth:
            raise ValueError(f"its values nest too deep: more than {_DEEPEST} lists, dicts and objects")
        return value

    free = zip(ordinary.__code__.co_freevars, ordinary.__closure__, strict=True)
    cells = tuple(CellType(hook) if name == "ext_hook" else cell for name, cell in free)
    inner = FunctionType(ordinary.__code__, ordinary.__globals__, closure=cells)
    return hook


def hasten(serializer: Any) -> None:
    """Give a `JsonPlusSerializer` a hook with the short path, if its hook is the ordinary one."""
    if KNOWN and not serializer._custom_unpack_ext_hook:  # noqa: SLF001
        serializer._hook = serializer._unpack_ext_hook = ext_hook(serializer._unpack_ext_hook)  # noqa: SLF001


def _calls_encode(function: Any) -> bool:
    """True if a copy of this function would call the function that `with_encode` names."""
    return (
        type(function) is FunctionType
        and "_msgpack_enc" in function.__code__.co_names
        and not (function.__code__.co_freevars or function.__defaults__ or function.__kwdefaults__)
    )


def _known() -> bool:
    """True if everything that this module copies or relies on is unchanged."""
    serializer = JsonPlusSerializer(pickle_fallback=False)
    hook = serializer._unpack_ext_hook  # noqa: SLF001
    ordinary: Any = jsonplus._msgpack_default  # noqa: SLF001
    nested = {"a": {frozenset({1})}}
    data = encode(nested)
    copied = ext_hook(hook)
    return (
        (jsonplus.EXT_PYDANTIC_V2, jsonplus.EXT_DELTA_SNAPSHOT) == (5, 7)
        and serializer._custom_unpack_ext_hook is False  # noqa: SLF001
        and all(map(_calls_encode, (ordinary, JsonPlusSerializer.dumps_typed)))
        and jsonplus._msgpack_enc.__code__.co_names  # noqa: SLF001
        == ("ormsgpack", "packb", "_msgpack_default", "_option")
        and "ext_hook" in hook.__code__.co_freevars
        and not (hook.__defaults__ or hook.__kwdefaults__)
        and serializer.dumps_typed(nested) == ("msgpack", data)
        and serializer.loads_typed(("msgpack", memoryview(data))) == nested  # type: ignore[arg-type]
        and ormsgpack.unpackb(data, ext_hook=copied, option=ormsgpack.OPT_NON_STR_KEYS) == nested
    )


delta_snapshot: type | None

try:
    delta_snapshot = vars(jsonplus)["_DeltaSnapshot"]
    _option: int = jsonplus._option  # noqa: SLF001
    _ONE_STEP = _option & ~(ormsgpack.OPT_NON_STR_KEYS | ormsgpack.OPT_REPLACE_SURROGATES)
    """With these options and no `default` the packer runs no Python code. It refuses keys that may run some (such as
    `Enum`), and strings with surrogates: these first cause an error, which may start the garbage collector before
    Python 3.12."""
    _ordinary_default = with_encode(jsonplus._msgpack_default, encode)  # noqa: SLF001
    KNOWN = _known()
except (AttributeError, LookupError, NameError, TypeError, ValueError) as _error:
    KNOWN = False
    _why = f"{type(_error).__name__}: {_error}"
else:
    _why = "one of them has changed"
if not KNOWN:
    Log("redis_saver.serde").warning(
        "redis_saver does not know this release of langgraph-checkpoint (%s), so FastSerializer works as a "
        "JsonPlusSerializer: it is slower, stores long values whole, and a value must not change while it is stored. "
        "Upgrade redis-saver, or install a langgraph-checkpoint that it knows.",
        _why,
    )
