"""A serializer that writes and reads what `JsonPlusSerializer` does, byte for byte, several times as fast.

Most of a chat's checkpoint are LangChain's messages. Plain messages take a short path in C, where it could be built
(`redis_saver._serde.messages`). `JsonPlusSerializer` itself does everything else, and raises every error: its functions
run with the short path in place of the calls for nested values.

That relies on private names of `langgraph-checkpoint`, which any release may change. So all of it is checked at
import (`redis_saver._serde.fallback`). If something is missing or has changed, `FastSerializer` leaves everything to
`JsonPlusSerializer`. Then it is slower, but what it writes and reads is right, and the import does not fail.

Another OS thread of a graph may change a value while it is encoded. `JsonPlusSerializer` may then crash the
interpreter. The serializers of this module do not (`SafeSerializer`), and `safe` makes one of a user's serializer.
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
    """A `JsonPlusSerializer` for values that other OS threads change while they are encoded.

    It never crashes the interpreter.

    What is encoded of such a value mixes moments: each list, dict and set in it is as it was at some moment, and two of
    them may be from two moments. It can always be decoded. If you need all of it from one moment, pass a copy. If an
    object cannot be read while it changes (its `model_dump` raises, or iterating over it), encoding raises an error, as
    for a value of an unknown type.

    This holds for builds of CPython with the interpreter's lock. Free-threaded builds are not supported.
    """

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Encode a value: its type and its bytes.

        Raises:
            MsgpackEncodeError: It cannot be encoded; with `pickle_fallback`, whatever pickle raises.
        """
        if isinstance(obj, bytearray):
            return "bytearray", bytes(memoryview(obj))
        return _dumps_typed(self, obj)  # type: ignore[no-any-return]


_dumps_typed: Any = JsonPlusSerializer.dumps_typed
if fallback.KNOWN:
    _dumps_typed = fallback.with_encode(_dumps_typed, elements.encode)


class FastSerializer(SafeSerializer):
    """A `JsonPlusSerializer` that is faster at messages.

    Output, allowlists, events, settings and the warnings on reading are the same. Fields of another type than declared
    are written in the same way, but without pydantic's warning. With a hook of your own (`__unpack_ext_hook__`) it
    reads just as `JsonPlusSerializer` does.
    """

    _hook: Any = None
    """The hook that takes the short path, if there is one."""

    def __init__(self, **settings: Any) -> None:
        """Take the settings of `JsonPlusSerializer`."""
        super().__init__(**settings)
        fallback.hasten(self)

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> JsonPlusSerializer:
        """A serializer that also allows these types; this one, if it allows them already."""
        clone = super().with_msgpack_allowlist(extra_allowlist)
        if clone is not self:
            fallback.hasten(clone)
        return clone

    def dumps_elements(self, obj: Any, last: EncodedElements | None = None) -> EncodedElements:
        """Encode a value as elements.

        Joined, they are the bytes that `dumps_typed` returns (but see `EncodedElements.same`).

        A list, or a dict whose keys are strings, is cut between its elements: the first result is its head, then comes
        one for each element (a key with its value). Small elements are encoded several together, always the same
        number, so that a list that grows keeps all but the last of these. A `_DeltaSnapshot` of such a list or dict is
        cut in the same way. Any other value is one element, and so is one that is short or has fewer than two elements.

        Args:
            obj: The value.
            last: The result for an earlier version of the value. Messages at the front of a list that are unchanged
                since are counted and left out.

        If a subclass has a `dumps_typed` of its own, which may encrypt, its result is one element.
        """
        own = type(self).dumps_typed is not SafeSerializer.dumps_typed or "dumps_typed" in vars(self)
        if fallback.KNOWN and not own and obj is not None and not isinstance(obj, (bytes, bytearray)):
            try:
                return elements.cut(obj, last)
            except (ormsgpack.MsgpackEncodeError, RuntimeError):
                # It cannot be encoded, or another OS thread is changing it: `dumps_typed` returns or raises what is
                # right.
                pass
        kind, data = self.dumps_typed(obj)
        return EncodedElements(kind, [data])

    def loads_elements(
        self, kind: str, data: bytes, last: EncodedElements | None = None, same: int = 0
    ) -> tuple[Any, tuple[list[int], EncodedElements] | None] | None:
        """Decode a value as `loads_typed` does.

        Also returns what `dumps_elements` would return for it, with the elements' sizes in place of the elements.

        The latter only for lists of plain messages and snapshots of such lists: these are compared with an earlier
        version, and made again of what is known of them.

        Args:
            kind: The type that `dumps_typed` returned.
            data: The bytes that it returned; with `same`, without that many elements at the front, as in
                `dumps_elements`.
            last: The result for an earlier version.
            same: How many elements at the front are the same as in `last`; at the most `last.read`. They become new
                objects like all others, but faster. Their sizes are not among the result's.

        Returns:
            None if `same` was given and `data` is not what is left of a list: then all of its bytes are needed.
        """
        if kind != "msgpack" or not self._takes_short_road():
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
        found = self._loads_behind(data[start:], last, last.fingerprint, same)
        if found is None or not start:
            return found
        front, known = found
        if known is not None:
            known = [start + known[0][0], *known[0][1:]], known[1]
        # There is such a class, as its header is known.
        return fallback.delta_snapshot(front), known  # type: ignore[misc]

    def _loads_behind(
        self, data: bytes, last: EncodedElements, before: Fingerprint, same: int
    ) -> tuple[list[Any], tuple[list[int], EncodedElements] | None] | None:
        """Decode a list of which `same` elements at the front are those of the fingerprint of `last`."""
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
        found = elements.read_elements(value, data, fingerprint)
        return front + value, (found[0], EncodedElements("msgpack", [], 0, found[1])) if found else None

    def _takes_short_road(self) -> bool:
        """Return True if this serializer still reads with its own hook.

        A subclass may read in another way, and so may a hook that was set later.
        """
        own = type(self).loads_typed is not JsonPlusSerializer.loads_typed or "loads_typed" in vars(self)
        return self._hook is not None and self._unpack_ext_hook is self._hook and not own


S = TypeVar("S", bound=SerializerProtocol)


def safe(serializer: S) -> S:
    """Return a serializer like the given one that is safe for values that other OS threads change.

    It is a copy of any `JsonPlusSerializer`, also of a subclass that has a `dumps_typed` of its own and
    calls its parent's, and of an `EncryptedSerializer` around one. Any other serializer is returned as it is, without
    protection.
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
    # It comes after the subclass and before JsonPlusSerializer, so `super()` in the subclass finds the safe method.
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__slots__": ()}
    own = kind is not JsonPlusSerializer
    made.__class__ = type(kind)(kind.__name__, (kind, SafeSerializer), about) if own else SafeSerializer
    return made  # type: ignore[no-any-return]


class StrictSerializer(FastSerializer):
    """A `FastSerializer` that makes no object of a class that was not allowed.

    So it runs no code that the stored bytes choose.

    Allowed are the types that LangGraph calls safe (`SAFE_MSGPACK_TYPES`: dates, UUIDs, sets, messages, `Send`,
    `Interrupt`, ...) and those given to `with_msgpack_allowlist`. An object of another class comes back as the data it
    was stored as, which is logged once a class, as with `LANGGRAPH_STRICT_MSGPACK=true`. Pickles, and objects in values
    of the type `json`, are errors.
    """

    def __init__(self) -> None:
        """Take no settings: each of them would allow more."""
        super().__init__(pickle_fallback=False, allowed_json_modules=None, allowed_msgpack_modules=None)

    def _reviver(self, value: dict[str, Any]) -> Any:
        """Refuse a dict in a value of the type `json` that `JsonPlusSerializer` would make an object of."""
        if "lc" in value:
            raise ValueError(
                f"it has an object as JSON ({value.get('id')!r}), and with strict=True no such object is made"
            )
        return value


def chosen(serde: SerializerProtocol | None, *, strict: bool) -> SerializerProtocol | None:
    """The serializer that these settings of a saver, a store or a cache name; None: the default one.

    Raises:
        ValueError: Both are given.
    """
    if not strict:
        return None if serde is None else safe(serde)
    if serde is not None:
        raise ValueError(
            f"strict=True chooses the serializer, and serde={serde!r} was given, too: leave one out. To encrypt "
            "strictly, pass "
            "serde=EncryptedSerializer.from_pycryptodome_aes(redis_saver.StrictSerializer())"
        )
    return StrictSerializer()


def takes_views(serializer: Any) -> bool:
    """True if `loads_typed` takes a memoryview of msgpack, as that of `JsonPlusSerializer` does, instead of bytes."""
    own = getattr(type(serializer), "loads_typed", None) is not JsonPlusSerializer.loads_typed
    return fallback.KNOWN and not own and "loads_typed" not in vars(serializer)
