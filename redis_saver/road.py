"""`JsonPlusSerializer`'s own functions, with the short road for messages where they go into nested values.

What becomes of a value that is no plain message, and of every error, is for `JsonPlusSerializer` to say; but it calls itself
for the values inside others, and messages are inside others. So its functions are copied here, the same code with another
name bound for the call: `_msgpack_enc` is this module's `encode`, and `ext_hook` is this module's hook. That takes names
which `langgraph-checkpoint` does not promise. If one is gone, or is no longer what it was, `KNOWN` is false, and
`FastSerializer` is a `JsonPlusSerializer` and nothing more: as right as before, and as slow as that. The log says so once.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver import compiled
from redis_saver.messages import DECODERS, ENCODERS, KEY_LENGTH


def _default(value: Any) -> Any:
    """What the packer calls for a value it does not know."""
    encode = ENCODERS.get(type(value))
    if encode is not None:
        data = compiled.payload(value, encode)
        if data is not None:
            return ormsgpack.Ext(5, data)
    return _ordinary_default(value)


def ext_hook(ordinary: Any) -> Callable[[int, bytes], Any]:
    """A hook that answers what an ordinary one does, and is called for nested values, too."""
    safe = vars(jsonplus)["_lg_msgpack"].SAFE_MSGPACK_TYPES
    decoders = {key: decode for key, (name, decode) in DECODERS.items() if name in safe}

    def hook(code: int, data: bytes) -> Any:
        if code == 5:
            decode = decoders.get(data[:KEY_LENGTH])
            if decode is not None:
                native = compiled.native
                message = None if native is None else native.read(data)
                if message is None:
                    message = decode(data)
                if message is not None:
                    return message
        return inner(code, data)

    free = zip(ordinary.__code__.co_freevars, ordinary.__closure__, strict=True)
    cells = tuple(CellType(hook) if name == "ext_hook" else cell for name, cell in free)
    inner = FunctionType(ordinary.__code__, ordinary.__globals__, closure=cells)
    return hook


def _known() -> bool:
    """Whether all that is copied or relied on is what it was."""
    serializer = JsonPlusSerializer(pickle_fallback=False)
    hook = serializer._unpack_ext_hook  # noqa: SLF001
    ordinary: Any = jsonplus._msgpack_default  # noqa: SLF001
    nested = {"a": {frozenset({1})}}
    data = encode(nested)
    copied = ext_hook(hook)
    return (
        (jsonplus.EXT_PYDANTIC_V2, jsonplus.EXT_DELTA_SNAPSHOT) == (5, 7)
        and serializer._custom_unpack_ext_hook is False  # noqa: SLF001
        and type(ordinary) is FunctionType
        and "_msgpack_enc" in ordinary.__code__.co_names
        and not (ordinary.__code__.co_freevars or ordinary.__defaults__ or ordinary.__kwdefaults__)
        and jsonplus._msgpack_enc.__code__.co_names == ("ormsgpack", "packb", "_msgpack_default", "_option")  # noqa: SLF001
        and "ext_hook" in hook.__code__.co_freevars
        and not (hook.__defaults__ or hook.__kwdefaults__)
        and serializer.dumps_typed(nested) == ("msgpack", data)
        and serializer.loads_typed(("msgpack", memoryview(data))) == nested  # type: ignore[arg-type]
        and ormsgpack.unpackb(data, ext_hook=copied, option=ormsgpack.OPT_NON_STR_KEYS) == nested
    )


encode: Callable[[Any], bytes]
"""`jsonplus._msgpack_enc`, except that it finds messages. (A partial is no Python frame: values nest as deep as there.)"""
delta_snapshot: type | None

try:
    delta_snapshot = vars(jsonplus)["_DeltaSnapshot"]
    encode = functools.partial(ormsgpack.packb, default=_default, option=jsonplus._option)  # noqa: SLF001
    _ordinary_default = FunctionType(
        jsonplus._msgpack_default.__code__,  # noqa: SLF001
        {**vars(jsonplus), "_msgpack_enc": encode},
    )
    KNOWN = _known()
except (AttributeError, LookupError, NameError, TypeError, ValueError) as error:
    KNOWN = False
    _why = f"{type(error).__name__}: {error}"
else:
    _why = "one of them is not what it was"
if not KNOWN:
    logging.getLogger(__name__).warning(
        "FastSerializer cannot use the functions of this langgraph-checkpoint (%s): it encodes as JsonPlusSerializer does, "
        "only slower than it could, and long values are stored whole. A newer redis-saver may know this release.",
        _why,
    )
