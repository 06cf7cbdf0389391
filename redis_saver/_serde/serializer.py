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

from redis_saver._serde import elements, fallback
from redis_saver._serde.elements import EncodedElements, Fingerprint
from redis_saver._serde.msgpack import header, header_length, list_length


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
    _dumps_typed = fallback.with_encode(_dumps_typed, elements.encode)


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

    def dumps_elements(self, obj: Any, last: EncodedElements | None = None) -> EncodedElements:
        """Encode a value as elements. Joined, they are the result of `dumps_typed` (except `EncodedElements.same`).

        A list, or a dict whose keys are strings, is cut between its elements. The result is its head, then one piece
        for each element (or key with its value). Small elements are encoded in groups of a fixed size, so a list that
        grows keeps all pieces except the last. A `_DeltaSnapshot` of such a list or dict is cut in the same way. A
        short value, and any other kind of value, is one element. If a subclass has its own `dumps_typed`, which may
        encrypt, the result is one element.

        Args:
            obj: The value.
            last: The result for an earlier version of the value. Messages at the front of a list that have not changed
                since are counted and left out.
        """
        own = type(self).dumps_typed is not SafeSerializer.dumps_typed or "dumps_typed" in vars(self)
        if fallback.KNOWN and not own and obj is not None and not isinstance(obj, (bytes, bytearray)):
            try:
                return elements.cut(obj, last)
            except (ormsgpack.MsgpackEncodeError, RuntimeError):
                pass  # `dumps_typed` tries again, or raises the right error
        kind, data = self.dumps_typed(obj)
        return EncodedElements(kind, [data])

    def loads_elements(
        self, kind: str, data: bytes, last: EncodedElements | None = None, same: int = 0
    ) -> tuple[Any, tuple[list[int], EncodedElements] | None] | None:
        """Decode a value as `loads_typed` does.

        For a list of plain messages, or a snapshot of one, also return the result of `dumps_elements` with the sizes of
        the elements instead of the elements. With this result as `last`, the next version is decoded faster.

        Args:
            kind: The type that `dumps_typed` returned.
            data: The bytes that it returned, without the first `same` elements.
            last: The result for an earlier version.
            same: Number of elements at the front that are the same as in `last`, at most `last.fingerprint.read`. They
                become new objects, but faster. The result lacks their sizes.

        Returns:
            None if `same` is not 0 and `data` is not the rest of a list. Then all bytes are needed.
        """
        if kind != "msgpack" or not self._has_short_path():
            return None if same else (self.loads_typed((kind, data)), None)
        start = elements.snapshot_start(data)
        if not same or last is None or last.fingerprint is None:
            value = self.loads_typed((kind, data))
            inner: Any = getattr(value, "value", None) if start else value
            read = elements.read_elements(inner, data[start:]) if type(inner) is list and len(inner) > 1 else None
            if read is None:
                return value, None
            sizes, fingerprint = read
            return value, ([start + sizes[0], *sizes[1:]], EncodedElements(kind, [], 0, fingerprint))
        decoded = self._loads_rest(data[start:], last, last.fingerprint, same)
        if decoded is None or not start:
            return decoded
        messages, known = decoded
        if known is not None:
            known = [start + known[0][0], *known[0][1:]], known[1]
        # The class exists, as its head was recognised.
        return fallback.delta_snapshot(messages), known  # type: ignore[misc]

    def _loads_rest(
        self, data: bytes, last: EncodedElements, before: Fingerprint, same: int
    ) -> tuple[list[Any], tuple[list[int], EncodedElements] | None] | None:
        """Decode a list whose first `same` elements are those of the fingerprint of `last`."""
        count = list_length(data)
        if count is None or count < same:
            return None
        fingerprint = before.front(same)
        front = fingerprint.made()
        if count == same:
            known = last if fingerprint is before else EncodedElements("msgpack", [], 0, fingerprint)
            return front, ([header_length(count)], known)
        data = header(count - same, list) + data[header_length(count) :]
        value = self.loads_typed(("msgpack", data))
        read = elements.read_elements(value, data, fingerprint)
        return front + value, (read[0], EncodedElements("msgpack", [], 0, read[1])) if read else None

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
