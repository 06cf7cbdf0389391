"""`JsonPlusSerializer`'s own functions, which take the short path for messages inside of other values.

`JsonPlusSerializer` decides about every value that is no plain message, and about every error. But it calls itself
for the values inside others, and messages are inside others. So its functions are copied here: the same code, with
another function bound to the name that it calls. `_msgpack_enc` is this module's `encode`, and the hook is that of
`ext_hook`. This uses names that `langgraph-checkpoint` does not promise. If one of them is gone or has changed, `KNOWN`
is false. Then `FastSerializer` is no more than a `JsonPlusSerializer`: it is as right, and as slow. The log says so
once.
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
"""With this many extensions around each other, the depth of the rest is measured. Hardly any value has so many."""
_DEEPEST: Final = 4000
"""Maximum nesting of lists, dicts and objects, when written, and when read below `_DEEP` extensions.

ormsgpack allows a thousand lists and dicts around each other, and begins anew in each extension. So twenty extensions
with a thousand lists around each, 20 kB, would overflow the stack and end the process. This many fit into a stack of 8
MB, together with a thousand lists in each of the first six extensions.
"""
_DEEPEST_CONTAINERS: Final = 1024
"""No packer goes this deep without an object. A value that is nested deeper most likely contains itself."""


class _Packing(threading.local):
    """The state of this OS thread's packing."""

    depth = 0
    """Depth of the value in other values."""
    why = ""
    """Why packing fails, if that is known. Whatever `default` raises, the packer itself only says that the type is not
    known."""


class _Reading(threading.local):
    """The extensions around each other that this OS thread is reading.

    `ext_hook` counts them itself, because a function for that would add a Python frame to each.
    """

    depth = 0
    too_deep = False
    """Set if they nest too deep, because `JsonPlusSerializer` returns None for an extension with an error in it."""


_packing = _Packing()
_reading = _Reading()


def encode(value: Any) -> bytes:
    """The bytes of a value, which other OS threads may change meanwhile.

    As `jsonplus._msgpack_enc`, with the short path for messages.

    A value that needs no Python code is packed in one step, during which no other OS thread runs. Any other value is
    copied first (`_copy_of`). What an object holds comes here again. So at every depth, values are either packed in one
    step or copied.

    Raises:
        MsgpackEncodeError: It cannot be encoded.
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
    """The function that the packer calls for a value it does not know.

    If another OS thread is changing the value, it is asked again what it holds.
    """
    try:
        return _ordinary_default(value)
    except RecursionError:
        _packing.why = f"{type(value).__name__} is nested too deep, or contains itself"
        raise
    except BaseException as error:
        # "dictionary changed size during iteration": a RuntimeError, and in pydantic's Rust a panic.
        if not isinstance(error, RuntimeError) and type(error).__name__ != "PanicException":
            raise
        if tries == 1:
            _packing.why = f"{type(value).__name__} cannot be encoded: {error}"
            raise
    return _default(value, tries - 1)


# -- copies, which no other OS thread can change while the value is packed
#
# ormsgpack reads the length of a list once, and holds no reference to an element while it packs it. It keeps the
# interpreter's lock, so nothing changes as long as it runs no Python code. But when it calls `default`, or asks a key
# for
# its value, other OS threads may run. If one of them shortens a list that is being packed, the interpreter crashes
# (`docs/upstream/ormsgpack-concurrent-mutation.md`). A graph can do that to state that is saved in the background.
#
# Copied are the containers that ormsgpack walks through itself: lists, dicts and tuples, and subclasses of lists and
# dicts,
# whose methods it does not call either. Each is copied in one step, so all of it is from one moment. Two containers may
# be
# from two moments.

_LEAVES: Final = frozenset({str, int, float, bool, NoneType, bytes, bytearray, memoryview, ormsgpack.Ext})
"""Types of values that need no copy. (The packer copies bytes that can be changed in one step.)"""


def _copy_of(value: Any) -> tuple[Any, int]:
    """A copy of a value for the packer.

    It packs to the same bytes, and shares no container with others that can change it.

    Tuples become lists, and messages become what they are packed as. Objects stay; what they hold is copied when
    `default` returns it.

    Returns:
        The copy, and how deep its containers are nested.

    Raises:
        MsgpackEncodeError: They are nested deeper than can be packed.
    """
    found = None if native is None else native.snapshot(value, _message)
    return _copy_in_python(value) if found is None else found


def _copy_in_python(value: Any) -> tuple[Any, int]:
    top = [value]
    copies: list[tuple[Any, int]] = [(top, 0)]
    deepest = 0
    # The last one first, so that a list that contains itself twice is copied only as often as it is deep.
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
    """The Ext that a message is packed as. The message itself if `default` has to decide."""
    data = native.payload(message)
    return message if data is None else ormsgpack.Ext(5, data)


def _copied(item: Any, kind: type) -> list[Any] | dict[Any, Any] | None:
    """A copy of a container as a list or dict; None if the packer does not walk through it."""
    if kind is list or kind is tuple:
        return list(item)  # not item[:], which may collect garbage halfway before Python 3.12
    if kind is dict:
        return dict(item)
    if type(kind) is EnumMeta:
        return None
    # The contents of subclasses, without their own methods.
    if issubclass(kind, list):
        return list(list.__iter__(item))
    if issubclass(kind, dict):
        return dict(list(dict.items(item)))  # the list first, because hashing a key may run Python code
    return None


# -- the copied functions


def with_encode(function: Any, encode: Callable[[Any], bytes]) -> Any:
    """A copy of a function of `jsonplus` that calls another function to encode a value."""
    return FunctionType(function.__code__, {**vars(jsonplus), "_msgpack_enc": encode})


def ext_hook(ordinary: Any) -> Callable[[int, bytes], Any]:
    """Return a hook that decodes as the ordinary one does.

    It takes the short path for messages, and refuses what nests too deep.
    """
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
            raise ValueError(f"its values nest too deep: over {_DEEPEST} lists, dicts and objects around each other")
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
    """True if a copy of this function would call the function that is bound to the name."""
    return (
        type(function) is FunctionType
        and "_msgpack_enc" in function.__code__.co_names
        and not (function.__code__.co_freevars or function.__defaults__ or function.__kwdefaults__)
    )


def _known() -> bool:
    """True if everything that is copied or relied on is as this module knows it."""
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
    """With these options and no `default` the packer runs no Python code. It refuses keys that might run some
    (`datetime`, `Enum`), and strings with
    surrogates: for these it first makes an error, and before Python 3.12 that may collect garbage."""
    _ordinary_default = with_encode(jsonplus._msgpack_default, encode)  # noqa: SLF001
    KNOWN = _known()
except (AttributeError, LookupError, NameError, TypeError, ValueError) as _error:
    KNOWN = False
    _why = f"{type(_error).__name__}: {_error}"
else:
    _why = "one of them has changed"
if not KNOWN:
    Log("redis_saver.serde").warning(
        "redis_saver does not know this release of langgraph-checkpoint (%s), so FastSerializer is no more than a "
        "JsonPlusSerializer: it is slower, long values are "
        "stored whole, and a value must not change while it is stored. Upgrade redis-saver, or install a "
        "langgraph-checkpoint that it knows.",
        _why,
    )
