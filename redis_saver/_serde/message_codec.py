"""LangChain's messages to and from msgpack without pydantic's serializer and validator, for the plain majority.

`JsonPlusSerializer` writes a message as `(module, class, model_dump(), "model_validate_json")` and reads it by calling the
class. For a message whose fields hold just what their annotations say, `model_dump` answers the fields as they are, and
validation changes none of them: then the fields can be packed, and the instance filled, directly.

The code that does so is generated from the fields of the installed langchain-core, a function per class and direction, so
that each check is inline. What is not known here (an annotation, a validator, a constructor, a serializer, a setting) leaves
its class out; what is not plain (a subclass, a datetime, a key that is no string, a missing field) makes the function answer
None. Both go the ordinary path, which is always right.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final

import langchain_core.messages as lc
import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from redis_saver._serde import pydantic_models
from redis_saver._serde.annotations import Source, UnknownError, indented, kind_of

Encoder = Callable[[Any], "bytes | None"]
"""The payload of a message's Ext, or None where the ordinary path is to be taken."""
Decoder = Callable[[bytes], Any]
"""The message of a payload, or None where the ordinary path is to be taken."""

KEY_LENGTH: Final = 36
"""So many bytes of a payload tell the classes apart: module and, by the length in front of it, the class name."""

METHOD: Final = "model_validate_json"

PLAIN: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
"""With these and no default the packer refuses whatever pydantic might change, and keys that are no strings."""

_FAILURES: Final = (AttributeError, KeyError, TypeError, ValueError, RuntimeError)
"""What a message that is not plain makes the generated code raise: a field that is gone, a value the packer refuses. The last where another OS
thread is changing it."""

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
"""Names which, as extra fields, are arguments of the constructors or looked at by the validators."""


UNLIKE: Final = (UnknownError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""What looking at a class of another langchain-core raises where that is not what it was: it takes the ordinary path."""


def _known(cls: type[BaseModel]) -> bool:
    """Whether a class is serialized and validated by its fields and the validators known, and by nothing else."""
    return (
        pydantic_models.is_plain(cls)
        and pydantic_models.validators_of(cls) <= _VALIDATORS.keys()
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
        # No hook and no other option: an Ext inside, or a key that is no string, is not plain. It fails before any hook
        # is called, as a hook that warns has to be called once.
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
    """What must hold of the fields for constructor and validators to leave them as they are."""
    validators = (_VALIDATORS[name] for name in pydantic_models.validators_of(cls))
    return list(filter(None, (_CONSTRUCTORS[cls.__init__.__qualname__], *validators)))


def _field_checks(cls: type[BaseModel], source: Source) -> list[str]:
    """The statements that bring the fields into variables, and return None unless they are plain."""
    lines = [", ".join(map(local, cls.model_fields)) + " = pick(fields)"]
    for name, field in cls.model_fields.items():
        lines += source.checks(kind_of(field.annotation), local(name))
    return lines


def local(field: str) -> str:
    """The variable of a field; not its very name, as `type` and others have other meanings there."""
    return field + "_"


def _names(cls: type[BaseModel]) -> dict[str, Any]:
    """What the generated code of a class uses."""
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
        "extra_of": pydantic_models.extra_of,
        **dict(zip(("set_fields", "set_names", "set_extra", "set_private"), pydantic_models.SETTERS, strict=True)),
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
    """Whether the compiled functions do with the samples what the ordinary path does."""
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
    """All of a message that pydantic holds."""
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
"""By class; decoders by the first bytes of a payload, with the class's module and name."""
