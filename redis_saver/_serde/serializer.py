"""A serializer that writes and reads what `JsonPlusSerializer` does, byte for byte, several times as fast.

Most of what a chat's checkpoint holds are LangChain's messages; those that are plain go the short path of
`redis_saver._serde.message_codec`, and lists of them that of `redis_saver._serde.message_fields`; or both that of `redis_saver._serde.native_bridge`. Whatever else there is, and every error, is
`JsonPlusSerializer`'s own: its functions run with the short path in place of the calls with which they go into nested values.

That relies on names that `langgraph-checkpoint` keeps to itself, and may change in any release. So all of it is looked at
on import (`redis_saver._serde.fallback`). Where something is missing or is not what it was, `FastSerializer` leaves everything to
`JsonPlusSerializer`: it is slower then, but what it writes and reads is right, and the import does not fail.

A graph's code may change a value in another OS thread while it is encoded here. `JsonPlusSerializer` may crash the interpreter then;
what this module has does not (`SafeSerializer`), and `safe` makes it of what users bring.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver._serde import elements, fallback, message_list
from redis_saver._serde.elements import EncodedElements
from redis_saver._serde.message_list import Fingerprint
from redis_saver._serde.msgpack import header, header_length, list_length


class SafeSerializer(JsonPlusSerializer):
    """A `JsonPlusSerializer` for values that other OS threads change while they are encoded: it never crashes the interpreter.

    What is encoded of such a value is a mix of moments: each list, dict and set in it is what it was at some moment, and two of
    them may be of two. It can always be decoded. Whoever needs one moment for all of it hands over a copy. Where an object cannot be
    asked while it changes (its `model_dump` raises, or iterating over it), that is an error, as for a value that is not known.

    Of the builds of CPython with the interpreter's lock; those without are not supported.
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

    Output, allowlists, events, settings and the warnings on reading are the same. What pydantic warns of on writing, fields
    of another type than declared, is written as it would be, without the warning. With a hook of your own (`__unpack_ext_hook__`) it reads
    just as `JsonPlusSerializer` does.
    """

    _hook: Any = None
    """The hook that takes the short path, if there is one."""

    def __init__(self, **settings: Any) -> None:
        """Take the settings of `JsonPlusSerializer`."""
        super().__init__(**settings)
        fallback.hasten(self)

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> JsonPlusSerializer:
        """A serializer that allows these types, too; itself if it does already."""
        clone = super().with_msgpack_allowlist(extra_allowlist)
        if clone is not self:
            fallback.hasten(clone)
        return clone

    def dumps_elements(self, obj: Any, last: EncodedElements | None = None) -> EncodedElements:
        """Encode a value in elements which, joined, are the bytes that `dumps_typed` answers (but see `EncodedElements.same`).

        A list, or a dict whose keys are strings, is cut between its elements: its header is the first, the others are
        an element each (a key with its value). Small ones are encoded several together, as many each time, so that a list that grows
        keeps those it had but for the last. A `_DeltaSnapshot` of such a list or dict is cut likewise. Anything else
        is one element, and so is what is short or has fewer than two elements.

        Args:
            obj: The value.
            last: What was answered for an earlier version of the value: messages at the front of a list that are what they
                were, whatever was done to them meanwhile, are counted and left out.

        A subclass with a `dumps_typed` of its own, which may encrypt, gets one element of that.
        """
        own = type(self).dumps_typed is not SafeSerializer.dumps_typed or "dumps_typed" in vars(self)
        if fallback.KNOWN and not own and obj is not None and not isinstance(obj, (bytes, bytearray)):
            try:
                return elements.cut(obj, last)
            except (ormsgpack.MsgpackEncodeError, RuntimeError):
                # It cannot be encoded, or another OS thread is changing it: `dumps_typed` answers or raises what is right.
                pass
        kind, data = self.dumps_typed(obj)
        return EncodedElements(kind, [data])

    def loads_elements(
        self, kind: str, data: bytes, last: EncodedElements | None = None, same: int = 0
    ) -> tuple[Any, tuple[list[int], EncodedElements] | None] | None:
        """What `loads_typed` answers; and what `dumps_elements` would, with the elements' sizes in place of the elements.

        The latter of lists of plain messages only, and of snapshots of such, as it is these that are made once more of what is known of them.

        Args:
            kind: What `dumps_typed` answered, and so is `data`.
            data: With `same`, all but so many elements at the front, as in `dumps_elements`.
            last: What was answered for an earlier version.
            same: How many elements at the front are what they were in that, `last.read` at the most. They are new objects like
                all others, but made faster. Their sizes are not among those answered.

        Returns:
            None where `data` is no list, but with the elements of one, so that it takes all of its bytes to read it.
        """
        if kind != "msgpack" or not self._takes_short_road():
            return None if same else (self.loads_typed((kind, data)), None)
        start = elements.snapshot_start(data)
        if not same or last is None or last.fingerprint is None:
            value = self.loads_typed((kind, data))
            inner: Any = getattr(value, "value", None) if start else value
            read = message_list.loaded(inner, data[start:]) if type(inner) is list and len(inner) > 1 else None
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
        return fallback.delta_snapshot(front), known  # type: ignore[misc]  # there is such a class, where its header is known

    def _loads_behind(
        self, data: bytes, last: EncodedElements, before: Fingerprint, same: int
    ) -> tuple[list[Any], tuple[list[int], EncodedElements] | None] | None:
        """`loads_elements` for a list of which `same` elements at the front are those of a fingerprint, that of `last`."""
        count = list_length(data)
        if count is None or count < same:
            return None
        front, fingerprint = message_list.again(before, same)
        if count == same:
            known = last if fingerprint is before else EncodedElements("msgpack", [], 0, fingerprint)
            return front, ([header_length(count)], known)
        data = header(count - same, list) + data[header_length(count) :]
        value = self.loads_typed(("msgpack", data))
        found = message_list.loaded(value, data, fingerprint)
        return front + value, (found[0], EncodedElements("msgpack", [], 0, found[1])) if found else None

    def _takes_short_road(self) -> bool:
        """Whether this reads as it was made to: a subclass, or a hook that was put in later, may read otherwise."""
        own = type(self).loads_typed is not JsonPlusSerializer.loads_typed or "loads_typed" in vars(self)
        return self._hook is not None and self._unpack_ext_hook is self._hook and not own


S = TypeVar("S", bound=SerializerProtocol)


def safe(serializer: S) -> S:
    """A serializer that encodes and decodes what another one does, and bears values that other OS threads change (`SafeSerializer`).

    It is a copy where that is to be had: of any `JsonPlusSerializer`, also of a subclass that has a `dumps_typed` of its own and
    calls its parent's, and of an `EncryptedSerializer` around one. What another serializer does with such values is up to it.
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
    # Behind a subclass, in front of JsonPlusSerializer: what the subclass calls as its parent's method is the safe one.
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__slots__": ()}
    own = kind is not JsonPlusSerializer
    made.__class__ = type(kind)(kind.__name__, (kind, SafeSerializer), about) if own else SafeSerializer
    return made  # type: ignore[no-any-return]


class StrictSerializer(FastSerializer):
    """A `FastSerializer` that makes no object of a class that was not allowed, and so runs no code that the stored bytes choose.

    Allowed are the types that LangGraph calls safe (`SAFE_MSGPACK_TYPES`: dates, UUIDs, sets, messages, `Send`, `Interrupt`, ...) and
    those given to `with_msgpack_allowlist`. An object of another class comes back as the data it was stored as, which is logged
    once a class, as with `LANGGRAPH_STRICT_MSGPACK=true`. Pickles, and objects in values of the type `json`, are errors.
    """

    def __init__(self) -> None:
        """Take no settings: each of them would allow more."""
        super().__init__(pickle_fallback=False, allowed_json_modules=None, allowed_msgpack_modules=None)

    def _reviver(self, value: dict[str, Any]) -> Any:
        """What `JsonPlusSerializer` makes of a dict in a value of the type `json`."""
        if "lc" in value:
            raise ValueError(f"it holds an object as JSON ({value.get('id')!r}), and strict=True makes none of it")
        return value


def takes_views(serializer: Any) -> bool:
    """Whether `loads_typed` takes a memoryview of msgpack, as that of `JsonPlusSerializer` does, instead of bytes."""
    own = getattr(type(serializer), "loads_typed", None) is not JsonPlusSerializer.loads_typed
    return fallback.KNOWN and not own and "loads_typed" not in vars(serializer)
