"""LangChain's messages to and from msgpack without pydantic: the short path for plain messages.

`JsonPlusSerializer` writes a message as `(module, class, model_dump(), "model_validate_json")` and reads it by calling
the class. If the fields of a message hold exactly what their annotations say, `model_dump` returns the fields as they
are, and validation changes none of them. Then the fields can be packed, and the instance filled, directly.

The code for that is generated from the fields of the installed langchain-core: a function per class and direction, so
that each check is inline. A class with something that is not known here (an annotation, a validator, a constructor, a
serializer, a setting) is left out. For a message that is not plain (a subclass, a datetime, a key that is no string, a
missing field) the function returns None. Both take the ordinary path, which is always right.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final

import langchain_core.messages as lc
import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from redis_saver._serde.annotations import Source, UnknownError, indented, kind_of

Encoder = Callable[[Any], "bytes | None"]
"""Returns the payload of a message's Ext, or None if the message has to take the ordinary path."""
Decoder = Callable[[bytes], Any]
"""Returns the message of a payload, or None if it has to take the ordinary path."""

KEY_LENGTH: Final = 36
"""The first bytes of a payload, by which the classes are told apart: the module, and the length of the class name."""

METHOD: Final = "model_validate_json"

PLAIN: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
"""With these options and no `default` the packer refuses whatever pydantic might change, and keys that are no
strings."""

_FAILURES: Final = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)
"""Errors of the generated code for a message that is not plain: a field is missing, or the packer refuses a value.
RuntimeError: another OS thread is changing it."""

_CLASSES: Final = (
    lc.HumanMessage,
    lc.HumanMessageChunk,
    lc.AIMessage,
    lc.AIMessageChunk,
    lc.SystemMessage,
    lc.SystemMessageChunk,
    lc.ToolMessage,
    lc.ToolMessageChunk,
    lc.FunctionMessage,
    lc.FunctionMessageChunk,
    lc.ChatMessage,
    lc.ChatMessageChunk,
    lc.RemoveMessage,
)

_CONSTRUCTORS: Final = {
    "BaseMessage.__init__": "",
    "HumanMessage.__init__": "",
    "SystemMessage.__init__": "",
    "AIMessage.__init__": "",
    "ToolMessage.__init__": "",
    "RemoveMessage.__init__": "content_ == ''",
}
"""The constructors known, and what must hold for them to pass the fields on unchanged."""

TOOL_CALLS_STAY: Final = "not invalid_tool_calls_ and (tool_calls_ or not additional_kwargs_.get('tool_calls'))"
_VALIDATORS: Final = {
    "_backwards_compat_tool_calls": TOOL_CALLS_STAY,
    "coerce_args": "",
    "init_tool_calls": "not tool_calls_ and not invalid_tool_calls_ and not tool_call_chunks_",
    "init_server_tool_calls": "chunk_position_ is None or type(content_) is str",
}
"""The model validators known, and what must hold for them to change nothing."""

_RESERVED: Final = frozenset({"self", "cls", "content_blocks", "tool_calls", "invalid_tool_calls", "tool_call_chunks"})
"""Names that, as extra fields, are arguments of the constructors, or that the validators look at."""


UNLIKE: Final = (UnknownError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""Errors of a look at a class that another langchain-core has changed. The class then takes the ordinary path."""


# -- pydantic's insides. No other Python module reaches into them (`native.c` sets the same slots). If they have
# changed,
# `is_plain` is false for every class, and all messages take the ordinary path.


_SLOTS: Final = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
SETTERS: Final[tuple[Any, ...]] = tuple(getattr(vars(BaseModel).get(slot), "__set__", None) for slot in _SLOTS)
"""The setters of an instance's slots. `BaseModel.__setattr__` is slow, and so is looking them up by name."""
KNOWN: Final = None not in SETTERS and hasattr(BaseModel, "__pydantic_decorators__")
"""True if pydantic has all of this."""
extra_of: Final = operator.attrgetter("__pydantic_extra__")
"""The fields of an instance that its class does not declare, if any."""


def validators_of(cls: type[BaseModel]) -> AbstractSet[str]:
    """The names of a class's model validators, in their order."""
    return cls.__pydantic_decorators__.model_validators.keys()


def is_plain(cls: type[BaseModel]) -> bool:
    """True if nothing but its fields and its model validators decide how a class is serialized and validated."""
    if not KNOWN:
        return False
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
        and all(name.isidentifier() for name in cls.model_fields)
    )


def _known_field(field: Any) -> bool:
    """True if nothing but its annotation decides how a field is validated and serialized."""
    unset = ("alias", "validation_alias", "serialization_alias", "exclude", "exclude_if", "discriminator", "frozen")
    return all(getattr(field, name, None) is None for name in unset) and all(
        # Validation makes strings of ids that are numbers; a string stays as it is.
        vars(entry) == {"coerce_numbers_to_str": True}
        for entry in field.metadata
    )


# -- encoders and decoders


def _known(cls: type[BaseModel]) -> bool:
    """Return True if a class is serialized and validated by its fields and by known validators alone."""
    return (
        is_plain(cls)
        and validators_of(cls) <= _VALIDATORS.keys()
        and cls.__init__.__qualname__ in _CONSTRUCTORS
        and cls.__init__.__module__.startswith("langchain_core.messages.")
        and cls.__module__.startswith("langchain_core.messages.")
    )


def _encoder(cls: type[BaseModel]) -> Encoder:
    """Compile the function that packs a message of a class.

    Raises:
        UnknownError: If a field's annotation is not known.
    """
    source = Source(_names(cls), shapes_only=True)
    body = [
        "fields = message.__dict__",
        *_field_checks(cls, source),
        "if len(fields) != count: return None",
        "extra = extra_of(message)",
        "if extra: fields = {**fields, **extra}",
        "return packb((MODULE, NAME, fields, METHOD), None, PLAIN)",
    ]
    made: Encoder = source.function("message", ["try:", *indented(body), "except FAILURES: return None"])
    return made


def _decoder(cls: type[BaseModel]) -> Decoder:
    """Compile the function that makes a message of a class.

    Raises:
        UnknownError: If a field's annotation is not known.
    """
    source = Source(_names(cls), shapes_only=False)
    made_of = ", ".join(f"{name!r}: {local(name)}" for name in cls.model_fields)
    body = [
        # No hook and no other option: an Ext inside, or a key that is no string, is not plain. So this fails before any
        # hook
        # is called; a hook that warns must be called only once.
        "module, name, fields, method = unpackb(data)",
        "if name != NAME: return None",
        *_field_checks(cls, source),
        *(f"if not ({condition}): return None" for condition in conditions(cls)),
        "if len(fields) == count:",
        "    extra = {}",
        "    names = NAMES.copy()",
        "else:",
        "    extra = {key: value for key, value in fields.items() if key not in NAMES}",
        "    if not RESERVED.isdisjoint(extra): return None",
        "    names = set(fields)",
        "message = new(CLASS)",
        f"set_fields(message, {{{made_of}}})",
        "set_names(message, names)",
        "set_extra(message, extra)",
        "set_private(message, None)",
        "return message",
    ]
    made: Decoder = source.function("data", ["try:", *indented(body), "except FAILURES: return None"])
    return made


def conditions(cls: type[BaseModel]) -> list[str]:
    """The conditions under which constructor and validators leave the fields as they are."""
    validators = (_VALIDATORS[name] for name in validators_of(cls))
    return list(filter(None, (_CONSTRUCTORS[cls.__init__.__qualname__], *validators)))


def _field_checks(cls: type[BaseModel], source: Source) -> list[str]:
    """The statements that put the fields into variables, and return None unless they are plain."""
    lines = [", ".join(map(local, cls.model_fields)) + " = pick(fields)"]
    for name, field in cls.model_fields.items():
        lines += source.checks(kind_of(field.annotation), local(name))
    return lines


def local(field: str) -> str:
    """The variable for a field. It is not the field's name, because `type` and others have a meaning in the code."""
    return field + "_"


def _names(cls: type[BaseModel]) -> dict[str, Any]:
    """The names that the generated code of a class uses."""
    return {
        "CLASS": cls,
        "MODULE": cls.__module__,
        "NAME": cls.__name__,
        "METHOD": METHOD,
        "NAMES": set(cls.model_fields),
        "RESERVED": _RESERVED,
        "FAILURES": _FAILURES,
        "count": len(cls.model_fields),
        "pick": operator.itemgetter(*cls.model_fields),
        "PLAIN": PLAIN,
        "packb": ormsgpack.packb,
        "unpackb": ormsgpack.unpackb,
        "new": object.__new__,
        "extra_of": extra_of,
        **dict(zip(("set_fields", "set_names", "set_extra", "set_private"), SETTERS, strict=True)),
    }


def samples(cls: type[BaseModel]) -> Iterable[Any]:
    """Messages of a class on which both paths are compared."""
    more = {"role": "r", "tool_call_id": "t"}
    needed = {key: value for key, value in more.items() if key in cls.model_fields}
    yield cls(content="", id="1", name="n", **needed)
    if cls is not lc.RemoveMessage:
        blocks = ["a", {"type": "text", "text": "b"}]
        yield cls(content=blocks, name="n", additional_kwargs={"a": [1]}, response_metadata={"b": {}}, x=1, **needed)
    if cls is lc.AIMessage:
        usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "input_token_details": {"cache_read": 1}}
        yield cls(content="", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "1"}], usage_metadata=usage)


def _agree(cls: type[BaseModel], encode: Encoder, decode: Decoder) -> bool:
    """True if the compiled functions give the same results for the samples as the ordinary path."""
    ordinary = JsonPlusSerializer()
    for sample in samples(cls):
        data = encode(sample) or b""
        stored = ormsgpack.packb(ormsgpack.Ext(5, data))
        made = decode(data)
        if ordinary.dumps_typed(sample) != ("msgpack", stored) or type(made) is not cls:
            return False
        if state(made) != state(ordinary.loads_typed(("msgpack", stored))):
            return False
    return True


def state(message: BaseModel) -> Any:
    """Everything that pydantic stores of a message."""
    return list(message.__dict__.items()), message.__getstate__()


def _build() -> tuple[dict[type, Encoder], dict[bytes, tuple[tuple[str, str], Decoder]]]:
    """The functions of all classes that are known."""
    encoders: dict[type, Encoder] = {}
    decoders: dict[bytes, tuple[tuple[str, str], Decoder]] = {}
    for cls in _CLASSES:
        try:
            if not _known(cls):
                continue
            encode, decode = _encoder(cls), _decoder(cls)
            if not _agree(cls, encode, decode):
                continue
        except UNLIKE:
            continue
        name = (cls.__module__, cls.__name__)
        encoders[cls] = encode
        decoders[ormsgpack.packb((*name, {}, ""))[:KEY_LENGTH]] = (name, decode)
    return encoders, decoders


ENCODERS, DECODERS = _build()
"""Encoders by class; decoders by the first bytes of a payload, each with the class's module and name."""
