"""The classes of messages that the compiled module (`native.c`) encodes and decodes without pydantic.

`JsonPlusSerializer` writes a message as `(module, class, model_dump(), "model_validate_json")` and reads it by calling
the class. If the fields of a message match their annotations, `model_dump` returns the fields as they are, and
validation changes none of them. Then the compiled module packs the fields and fills the instance directly.

This module leaves out a class with an unknown annotation, validator, constructor, serializer or setting. The compiled
module returns None for a message that is not plain (a subclass, extra fields, a datetime, a key that is not a string).
Both take the ordinary path, which is always right. So does every message without the compiled module: with no C
compiler, on PyPy, or with `REDIS_SAVER_PURE=1` at installation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from importlib import import_module
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin

import langchain_core.messages as lc
import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel
from typing_extensions import NotRequired, Required, get_type_hints, is_typeddict

from redis_saver._common.logs import Log
from redis_saver._serde.msgpack import ext_header

CANDIDATES: Final = (
    lc.HumanMessage, lc.AIMessage, lc.SystemMessage, lc.ToolMessage, lc.FunctionMessage, lc.ChatMessage,
    lc.HumanMessageChunk, lc.AIMessageChunk, lc.SystemMessageChunk, lc.ToolMessageChunk, lc.FunctionMessageChunk,
    lc.ChatMessageChunk, lc.RemoveMessage,
)  # fmt: skip

_NOTHING_CHANGES, _CALLS_STAY, UNREADABLE = range(3)
"""Effect of a constructor or validator on the fields of a message that was read: it leaves them unchanged; it leaves
them unchanged if the message's tool calls show that; it may change them. Messages of a class with the last rule are
decoded by `JsonPlusSerializer`. `native.c` uses the same numbers."""
_RULES: Final = {
    "BaseMessage.__init__": _NOTHING_CHANGES,
    "HumanMessage.__init__": _NOTHING_CHANGES,
    "SystemMessage.__init__": _NOTHING_CHANGES,
    "AIMessage.__init__": _NOTHING_CHANGES,
    "ToolMessage.__init__": _NOTHING_CHANGES,
    "RemoveMessage.__init__": UNREADABLE,
    "_backwards_compat_tool_calls": _CALLS_STAY,
    "coerce_args": _NOTHING_CHANGES,
    "init_tool_calls": UNREADABLE,
    "init_server_tool_calls": UNREADABLE,
}
"""Rules of the known constructors and model validators."""


class UnknownError(Exception):
    """This module does not know a class or an annotation."""


_UNLIKE: Final = (UnknownError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""Errors that inspecting a class raises if another langchain-core or pydantic has changed it."""


# -- annotations
#
# A value is plain if pydantic's serializer and validator, following the annotation, would leave it as it is.

NONE, STR, INT, DICT, LIST = (1 << bit for bit in range(5))
"""Types of values. `native.c` uses the same numbers."""
_TYPES: Final = {None: NONE, NoneType: NONE, str: STR, int: INT, dict: DICT}


class Kind(NamedTuple):
    """The plain values of an annotation. None instead of a `Kind` allows any value."""

    types: int
    """Sum of types. A value with exactly one of these types is plain."""
    literals: frozenset[str] = frozenset()
    """Strings that are plain."""
    element: Kind | None = None
    """The kind of a list's elements."""
    keys: dict[str, tuple[Kind | None, bool]] | None = None
    """The keys of a `TypedDict` in order of declaration, with the kind of the value and True if the key is required.
    None if it is no `TypedDict`."""
    required: int = 0
    """Number of required keys."""

    @property
    def nested(self) -> bool:
        """True if the contents of a value must be checked, too."""
        return self.keys is not None or bool(self.types & LIST)


def kind_of(annotation: Any) -> Kind | None:
    """Return the `Kind` of an annotation, or None if it allows any value.

    Raises:
        UnknownError: A `Kind` cannot express the annotation.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return None
    if origin in (Union, UnionType):
        return reduce(_either, map(kind_of, args))
    if is_typeddict(annotation):
        return _typed_dict(annotation)
    if origin is list:
        return Kind(LIST, element=kind_of(args[0]))
    if origin is Literal and all(type(arg) is str for arg in args):
        return Kind(0, frozenset(args))
    if origin is dict and args in ((Any, Any), (str, Any)):
        annotation = dict
    if annotation not in _TYPES:
        raise UnknownError(annotation)
    return Kind(_TYPES[annotation])


def _either(one: Kind | None, other: Kind | None) -> Kind | None:
    if one is None or other is None or (one.nested and other.nested):
        raise UnknownError(one, other)
    nested, types = one if one.nested else other, one.types | other.types
    if nested.keys is not None and types & DICT:
        raise UnknownError(one, other)
    return nested._replace(types=types, literals=one.literals | other.literals)


def _typed_dict(annotation: Any) -> Kind:
    keys = {}
    for key, hint in get_type_hints(annotation, include_extras=True).items():
        origin: Any = get_origin(hint)
        inner = get_args(hint)[0] if origin in (NotRequired, Required) else hint
        # The key `type` of tool calls is declared as optional, but LangChain always sets it.
        needed = origin is Required or (origin is not NotRequired and key in annotation.__required_keys__)
        needed = needed or get_origin(inner) is Literal
        keys[sys.intern(key)] = kind_of(inner), needed
    return Kind(0, keys=keys, required=sum(needed for _, needed in keys.values()))


# -- classes


def is_plain(cls: type[BaseModel]) -> bool:
    """True if only fields, constructor and model validators decide how a class is serialized and validated.

    This uses private names of pydantic, as `native.c` does. If they have changed, all messages take the ordinary path.
    """
    decorators = cls.__pydantic_decorators__
    others = (
        decorators.validators,
        decorators.field_validators,
        decorators.root_validators,
        decorators.field_serializers,
        decorators.model_serializers,
        decorators.computed_fields,
        cls.__private_attributes__,
        cls.__pydantic_post_init__,
    )
    return (
        not any(others)
        and cls.model_config == {"extra": "allow"}
        and cls.model_dump is BaseModel.model_dump
        and cls.__new__ is object.__new__
        and cls.__setattr__ is BaseModel.__setattr__
        and all(_known_field(field) for field in cls.model_fields.values())
        and cls.__init__.__module__.startswith("langchain_core.messages.")
        and cls.__module__.startswith("langchain_core.messages.")
    )


def _known_field(field: Any) -> bool:
    """True if only its annotation decides how a field is validated and serialized."""
    unset = ("alias", "validation_alias", "serialization_alias", "exclude", "exclude_if", "discriminator", "frozen")
    return all(getattr(field, name, None) is None for name in unset) and all(
        # Validation makes strings of ids that are numbers; a string stays as it is.
        vars(entry) == {"coerce_numbers_to_str": True}
        for entry in field.metadata
    )


def rule_of(cls: type[BaseModel]) -> int:
    """Return the rule of a class, which is the strictest of its constructor and its validators.

    Raises:
        KeyError: One of them is unknown.
    """
    names = (cls.__init__.__qualname__, *cls.__pydantic_decorators__.model_validators)
    return max(_RULES[name] for name in names)


def _load() -> Any:
    """Return the compiled module. None if it was not built, or cannot be loaded, which is logged."""
    try:
        return import_module("redis_saver._serde.native")
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        _LOG.warning(
            "redis_saver cannot load its compiled part, so it is slower: %s. Install it again for this machine",
            error,
        )
        return None


def learn(cls: type[BaseModel]) -> None:
    """Register a class with the compiled module.

    Raises:
        UnknownError: The class is unknown, or the results for samples differ from those of `JsonPlusSerializer`.
    """
    if not is_plain(cls):
        raise UnknownError(cls)
    rule, start = rule_of(cls), _start(cls)
    fields = {sys.intern(name): kind_of(field.annotation) for name, field in cls.model_fields.items()}
    names, kinds, packed = tuple(fields), tuple(fields.values()), tuple(map(ormsgpack.packb, fields))
    known = native.learn(cls, names, packed, kinds, start, dict.fromkeys(fields), frozenset(fields), rule)
    if not (known and all(_agrees_on(sample, rule) for sample in samples(cls))):
        raise UnknownError(cls)


def _learned(cls: type[BaseModel]) -> bool:
    """Register a class. Return False, and log it, if the class is unknown."""
    try:
        learn(cls)
    except _UNLIKE as error:
        _LOG.info("%s takes the slower path: %r", cls.__name__, error)
        native.forget(cls)
        return False
    return True


def samples(cls: type[BaseModel]) -> Iterable[Any]:
    """Yield sample messages of a class, with which both paths are compared."""
    more = {"role": "r", "tool_call_id": "t"}
    needed = {key: value for key, value in more.items() if key in cls.model_fields}
    yield cls(content="", id="1", name="n", **needed)
    if cls is not lc.RemoveMessage:
        blocks = ["a", {"type": "text", "text": "b"}]
        yield cls(content=blocks, name="n", additional_kwargs={"a": [1]}, response_metadata={"b": {}}, **needed)
        yield cls(content="", name="n", x=1, **needed)
    if cls is lc.AIMessage:
        usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "input_token_details": {"cache_read": 1}}
        yield cls(content="", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "1"}], usage_metadata=usage)


def _agrees_on(sample: Any, rule: int) -> bool:
    """True if the compiled module gives the same results for a sample as the ordinary path."""
    ordinary, pair = JsonPlusSerializer(), [sample, sample]
    packed, payload = pack(pair), native.payload(sample)
    if packed is None or payload is None:
        return bool(sample.model_extra)
    elements, kinds, fields = packed
    _, data = stored = ordinary.dumps_typed(pair)
    _, single = ordinary.dumps_typed(sample)
    states = list(map(state, ordinary.loads_typed(stored)))
    made, read = native.make(kinds, fields), native.read(payload)
    return (
        data == native.encode(pair) == b"\x92" + b"".join(elements)
        and single == ormsgpack.packb(ormsgpack.Ext(5, payload))
        and native.unchanged(pair, kinds, fields) == 2
        and made is not None
        and list(map(state, made)) == states
        and (rule == UNREADABLE if read is None else state(read) == states[0])
    )


def state(message: BaseModel) -> Any:
    """Return everything that pydantic stores of a message."""
    return list(message.__dict__.items()), message.__getstate__()


# -- elements of lists

_END: Final = ormsgpack.packb("model_validate_json")
"""The end of a message's Ext, after its packed fields."""


def pack(messages: list[Any]) -> tuple[list[bytes], tuple[type, ...], Sequence[Any]] | None:
    """Encode messages. Return their elements, classes and fields, or None if not all messages are known and plain.

    An element is an extension with the class of the message and its packed fields.
    """
    packed = native.pack(messages)
    if packed is None:
        return None
    bodies, fields = packed
    kinds = tuple(map(type, messages))
    heads = map(_head, kinds, map(len, bodies))
    return list(map(b"".join, zip(heads, bodies, repeat(_END)))), kinds, fields


@lru_cache(4096)
def _head(cls: type, size: int) -> bytes:
    """Return the bytes before a message's packed fields, which have this size."""
    start = _start(cls)
    return ext_header(5, len(start) + size + len(_END)) + start


def _start(cls: type) -> bytes:
    """Return the beginning of the contents of a message's extension: its class."""
    return b"\x94" + ormsgpack.packb(cls.__module__) + ormsgpack.packb(cls.__name__)


_LOG: Final = Log("redis_saver.serde")
native: Any = _load()
CLASSES: Final = {cls for cls in CANDIDATES if native is not None and _learned(cls)}
"""The classes that the compiled module knows. Empty without it."""
