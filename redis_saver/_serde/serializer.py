"""Serializers that produce the same bytes as `JsonPlusSerializer`, several times faster.

Most of a chat's checkpoint is LangChain's messages. Plain messages take a short path in compiled code (`messages.py`).
`JsonPlusSerializer` does everything else and raises every error. Its functions call the short path for nested values.

That relies on private names of `langgraph-checkpoint`, which any release may change. So `fallback.py` checks them at
import. If one is missing or has changed, `FastSerializer` leaves everything to `JsonPlusSerializer`. Then it gives the
same results, but slower.

Another OS thread of a graph may change a value while it is encoded. Then `JsonPlusSerializer` may crash the
interpreter. The serializers of this module do not (`SafeSerializer`), and `safe` protects a user's serializer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver._serde import fallback, fingerprint
from redis_saver._serde.fingerprint import NONE, EncodedValue, Fingerprint
from redis_saver._serde.msgpack import SNAPSHOT, ext_start, header, header_length, list_length


class SafeSerializer(JsonPlusSerializer):
    """A `JsonPlusSerializer` that never crashes if another OS thread changes the value while it is encoded.

    Each list, dict and set in the result is from one moment, but two of them may be from different moments. The result
    can always be decoded. If you need all of it from one moment, pass a copy. If an object cannot be read while it
    changes (its `model_dump` raises), encoding raises an error, as for a value of an unknown type.

    This needs a CPython with the global interpreter lock. Free-threaded builds are not supported.
    """

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Encode a value. Return its type and its bytes.

        Raises:
            MsgpackEncodeError: It cannot be encoded. With `pickle_fallback`, pickle raises its own errors.
        """
        if isinstance(obj, bytearray):
            return "bytearray", bytes(memoryview(obj))
        return _dumps_typed(self, obj)  # type: ignore[no-any-return]


_dumps_typed: Any = JsonPlusSerializer.dumps_typed
if fallback.KNOWN:
    _dumps_typed = fallback.with_encode(_dumps_typed, fingerprint.encode)


class FastSerializer(SafeSerializer):
    """A `JsonPlusSerializer` that is faster with messages.

    Output, allowlists, events, settings and warnings on reading are the same. A field of another type than declared is
    encoded in the same way, but without pydantic's warning. With your own `__unpack_ext_hook__` it reads exactly as
    `JsonPlusSerializer` does.
    """

    _hook: Any = None
    """The hook that takes the short path, if there is one."""

    def __init__(self, **settings: Any) -> None:
        """Take the settings of `JsonPlusSerializer`."""
        super().__init__(**settings)
        fallback.hasten(self)

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> JsonPlusSerializer:
        """Return a serializer that also allows these types. It is this one if it already allows them."""
        clone = super().with_msgpack_allowlist(extra_allowlist)
        if clone is not self:
            fallback.hasten(clone)
        return clone

    def dumps_rest(self, obj: Any, last: Fingerprint | None = None) -> EncodedValue:
        """Encode a value as `dumps_typed` does, but leave out messages that have not changed.

        Args:
            obj: The value.
            last: The fingerprint of an earlier version of the value. Messages at the front of a list, or of a snapshot
                of one, that have not changed since are left out.
        """
        own = type(self).dumps_typed is not SafeSerializer.dumps_typed or "dumps_typed" in vars(self)
        if fallback.KNOWN and not own and obj is not None and not isinstance(obj, (bytes, bytearray)):
            try:
                return fingerprint.encode_rest(obj, last)
            except (ormsgpack.MsgpackEncodeError, RuntimeError):
                pass  # `dumps_typed` tries again, or raises the right error
        return EncodedValue(*self.dumps_typed(obj))

    def loads_rest(self, kind: str, data: bytes, front: Fingerprint = NONE) -> tuple[Any, Fingerprint | None] | None:
        """Decode a value as `loads_typed` does. Also return its fingerprint, if it is a list of plain messages.

        Args:
            kind: The type that `dumps_typed` returned.
            data: The bytes that it returned, without the messages of `front`.
            front: The fingerprint of messages at the front that were read before. They become new objects, but faster.

        Returns:
            None if `front` has messages and `data` is not the rest of a list. Then all bytes are needed.
        """
        if kind != "msgpack" or not self._has_short_path():
            return None if front.kinds else (self.loads_typed((kind, data)), None)
        start = ext_start(SNAPSHOT, data)
        if not front.kinds:
            value = self.loads_typed((kind, data))
            inner: Any = getattr(value, "value", None) if start else value
            is_list = type(inner) is list and len(inner) > 1
            return value, fingerprint.of_read(inner, data[start:]) if is_list else None
        count = list_length(data[start:])
        if count is None or count < len(front.kinds):
            return None
        value, more = front.made(), count - len(front.kinds)
        known: Fingerprint | None = front
        if more:
            rest = header(more, list) + data[start + header_length(count) :]
            others = self.loads_typed((kind, rest))
            value, known = value + others, fingerprint.of_read(others, rest, front)
        # The class exists, as its head was recognised.
        return fallback.delta_snapshot(value) if start else value, known  # type: ignore[misc]

    def _has_short_path(self) -> bool:
        """True unless a subclass, or a hook that was set later, changes how values are decoded."""
        own = type(self).loads_typed is not JsonPlusSerializer.loads_typed or "loads_typed" in vars(self)
        return self._hook is not None and self._unpack_ext_hook is self._hook and not own


S = TypeVar("S", bound=SerializerProtocol)


def safe(serializer: S) -> S:
    """Return a copy of a serializer that is safe for values that other OS threads change.

    This works for a `JsonPlusSerializer`, for a subclass whose `dumps_typed` calls its parent's, and for an
    `EncryptedSerializer` around one. Any other serializer is returned unchanged, without protection.
    """
    if isinstance(serializer, EncryptedSerializer):
        if (inner := safe(serializer.serde)) is serializer.serde:
            return serializer
        wrapper: Any = copy.copy(serializer)
        wrapper.serde = inner
        return wrapper  # type: ignore[no-any-return]
    if not isinstance(serializer, JsonPlusSerializer) or isinstance(serializer, SafeSerializer):
        return serializer
    kind: Any = type(serializer)
    made: Any = copy.copy(serializer)
    # SafeSerializer comes between the subclass and JsonPlusSerializer, so `super()` in the subclass finds it.
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__slots__": ()}
    own = kind is not JsonPlusSerializer
    made.__class__ = type(kind)(kind.__name__, (kind, SafeSerializer), about) if own else SafeSerializer
    return made  # type: ignore[no-any-return]


class StrictSerializer(FastSerializer):
    """A `FastSerializer` that only makes objects of allowed classes. So it runs no code that stored bytes choose.

    LangGraph's safe types are allowed (`SAFE_MSGPACK_TYPES`: dates, UUIDs, sets, messages, `Send`, `Interrupt`, ...),
    and those passed to `with_msgpack_allowlist`. An object of another class is decoded to the data that it was stored
    as, and logged once per class, as with `LANGGRAPH_STRICT_MSGPACK=true`. Pickles, and objects in values of the type
    `json`, are errors.
    """

    def __init__(self) -> None:
        """Make a serializer. It has no settings, as each one would allow more."""
        super().__init__(pickle_fallback=False, allowed_json_modules=None, allowed_msgpack_modules=None)

    def _reviver(self, value: dict[str, Any]) -> Any:
        """Refuse a dict in a value of the type `json` that stands for an object."""
        if "lc" in value:
            raise ValueError(f"it has an object as JSON ({value.get('id')!r}), which strict=True does not allow")
        return value


def chosen(serde: SerializerProtocol | None, *, strict: bool) -> SerializerProtocol | None:
    """Return the serializer for these settings of a saver, a store or a cache. None means the default one.

    Raises:
        ValueError: Both settings were passed.
    """
    if not strict:
        return None if serde is None else safe(serde)
    if serde is not None:
        raise ValueError(
            f"strict=True chooses the serializer, but serde={serde!r} was passed, too: leave one out. To encrypt "
            "strictly, pass serde=EncryptedSerializer.from_pycryptodome_aes(redis_saver.StrictSerializer())"
        )
    return StrictSerializer()


def takes_views(serializer: Any) -> bool:
    """True if `loads_typed` also takes a memoryview of msgpack, as that of `JsonPlusSerializer` does."""
    own = getattr(type(serializer), "loads_typed", None) is not JsonPlusSerializer.loads_typed
    return fallback.KNOWN and not own and "loads_typed" not in vars(serializer)
