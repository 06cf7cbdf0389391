"""Does what `redis_saver._serde.message_fields` and `redis_saver._serde.message_codec` do in C, if `native.c` could be built.

The C functions return None for whatever they do not know; then Python does it. At import, the results of both for samples are compared.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import ormsgpack
from pydantic import BaseModel

from redis_saver._common import compiled
from redis_saver._common.logs import Log
from redis_saver._serde import message_codec as single
from redis_saver._serde import message_fields
from redis_saver._serde.annotations import kind_of
from redis_saver._serde.message_codec import Encoder

__all__ = ["CLASSES", "native", "payload"]

_LOG: Final = Log("redis_saver.serde")

if TYPE_CHECKING:
    from redis_saver._serde import native
else:
    native = compiled.load("redis_saver._serde.native")

_NOTHING_CHANGES, _CALLS_STAY, _UNREADABLE = range(3)
"""The conditions under which constructor and validators leave the fields as they are: none, one that `native.c` checks, or others. Numbered as in `native.c`."""


def payload(message: Any, encode: Encoder) -> bytes | None:
    """The payload of the Ext of a message whose class has an encoder. The encoder makes it if C cannot."""
    data = None if native is None else native.payload(message)
    return encode(message) if data is None else data


def _rule(cls: type[BaseModel]) -> int:
    conditions = single.conditions(cls)
    if conditions == [single.TOOL_CALLS_STAY]:
        return _CALLS_STAY
    return _UNREADABLE if conditions else _NOTHING_CHANGES


def _learn(cls: type[BaseModel]) -> bool:
    """Register a class with the compiled module. Returns whether it gives the same results as Python."""
    fields = {sys.intern(name): kind_of(field.annotation) for name, field in cls.model_fields.items()}
    packed, head = tuple(map(ormsgpack.packb, fields)), message_fields.HEADS[cls].constant
    told = native.learn(
        cls, tuple(fields), packed, tuple(fields.values()), head, dict.fromkeys(fields), frozenset(fields), _rule(cls)
    )
    return told and all(map(_agree, single.samples(cls)))


def _agree(sample: Any) -> bool:
    """Whether both give the same result for a sample."""
    cls, pair = type(sample), [sample, sample]
    packed = native.pack(pair)
    if packed is None:
        return bool(sample.model_extra)
    bodies, fields = packed
    found = message_fields.known(pair)
    payload = single.ENCODERS[cls](sample)
    if found is None or payload is None:
        return False
    kinds = tuple(found[0])
    if (bodies, native.payload(sample)) != (message_fields.pack(kinds, pair), payload):
        return False
    made = native.make(kinds, fields)
    states = [
        single.state(message) for message in message_fields.make(kinds, message_fields.unpack_all(b"".join(bodies), 2))
    ]
    read = native.read(payload)
    return (
        native.encode(pair) == b"\x92" + b"".join(message_fields.elements(kinds, bodies))
        and native.unchanged(pair, kinds, fields) == 2
        and made is not None
        and [single.state(message) for message in made] == states
        and (_rule(cls) == _UNREADABLE if read is None else single.state(read) == states[0])
    )


CLASSES: Final[set[type]] = set()
"""The classes that the compiled module knows."""
if native is not None:
    for _cls in message_fields.HEADS:
        try:
            _agrees = _learn(_cls)
        except single.UNLIKE as _error:
            _LOG.info("%s is left to Python: %r", _cls.__name__, _error)
            _agrees = False
        if _agrees:
            CLASSES.add(_cls)
        else:
            native.forget(_cls)
