"""Carrying values between the tiers as packed bytes, so that no reader changes what others get.

A process may lack a class, refuse it, or validate it anew. What it decodes and encodes again is then something else. So
calls that carry go to a twin of cold whose serializer leaves objects packed, and hot stores their bytes as they are.
The caller's own answer is decoded from these bytes by cold's serializer, as if cold had answered.

That works if cold stores and reads all values by its `serde`, and if both serializers are LangGraph's or ours, with or
without a cipher. Otherwise values are decoded, and each is encoded again to compare the bytes. If they differ, the
answer is marked as lossy (`is_lossy`), and nobody stores it in hot.

With `encryption=`, envelopes are carried (`guarding.py`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NamedTuple

import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver._checkpoint.saver import Saver, context_of, with_context
from redis_saver._common import config as configs, postgres
from redis_saver._common.display import shown
from redis_saver._serde.serializer import FastSerializer, SafeSerializer, StrictSerializer
from redis_saver._storage.context import Context
from redis_saver._storage.encryption import EncryptedOnly
from redis_saver._storage.envelopes import HEAD
from redis_saver._storage.opaque import Opaque, OpaqueSerializer
from redis_saver._storage.sealing import ENCRYPTED
from redis_saver._tiered.requests import ColdCall, Tiered
from redis_saver._tiered.twins import BY_PARENTS, can_have_twin, twin
from redis_saver.errors import IsEncrypted, decoding

_KNOWN = (JsonPlusSerializer, SafeSerializer, FastSerializer, StrictSerializer, OpaqueSerializer)
_KINDS = ("null", "bytes", "bytearray", "msgpack", "json", "pickle")
"""Types that LangGraph's serializer writes or once wrote."""
_READS = "get_tuple", "list", "get_delta_channel_history", BY_PARENTS
_ATOMS = frozenset({type(None), bool, int, float, str, bytes, bytearray})
_PACKER = OpaqueSerializer()
_OF_LANGGRAPH = ("langgraph.checkpoint.memory.", "langgraph.checkpoint.postgres.", "langgraph.checkpoint.sqlite.")
DECODES_ONLY_BY_SERDE = "decodes_only_by_serde"
"""Attribute of a class whose savers store and read each value, each write and all metadata by `serde` or as JSON."""


def decodes_only_by_serde(cold: BaseCheckpointSaver[Any]) -> bool:
    """True if a saver's class says so, or is LangGraph's or a subclass of it that does not deny it."""
    known = any(f"{base.__module__}.".startswith(_OF_LANGGRAPH) for base in type(cold).__mro__)
    return getattr(cold, DECODES_ONLY_BY_SERDE, known) is True


class Direct:
    """Passes calls to cold as they are, such as those of a store."""

    def __init__(self, cold: Any) -> None:
        """Use a cold saver or store."""
        self._cold = cold

    def way(self, request: ColdCall) -> Way:
        """Return how cold answers a call."""
        return Way(request, self._cold)

    def checked(self, request: ColdCall, answer: Any) -> Any:  # noqa: ARG002 - a `Carrier` needs it
        """Return what cold answered, after a check and with its metadata decoded."""
        return answer


class Carrier(Direct):
    """The two serializers between which values are carried, and the calls of cold that carry."""

    def __init__(self, hot: Context, cold: BaseCheckpointSaver[Any]) -> None:
        """Find out how values can be carried between these savers."""
        super().__init__(cold)
        of_ours = context_of(cold) if isinstance(cold, Saver) else None
        self._is_known = of_ours is not None or decodes_only_by_serde(cold)
        self.has_twins: bool = of_ours is None and can_have_twin(cold)
        """True if calls of cold that carry go to twins of it."""
        self.hot_serde: SerializerProtocol = hot.serde
        """The serializer by which hot stores and reads what is carried."""
        self._makes_blobs = self._is_known and self.has_twins and postgres.has_history(cold)
        self._packed: tuple[BaseCheckpointSaver[Any], SerializerProtocol] | None = None
        packed = _within(of_ours.serde if of_ours else cold.serde, _PackedSerializer)
        packed_hot = _within(hot.serde, _CarryingSerializer)
        if packed is not None and packed_hot is not None and self._is_known:
            if isinstance(cold, Saver) and of_ours:
                self._packed, self.hot_serde = (with_context(cold, of_ours._replace(serde=packed)), packed), packed_hot
            elif self.has_twins:
                self._packed, self.hot_serde = (twin(cold, serde=packed), packed), packed_hot

    @property
    def is_packed(self) -> bool:
        """True if values stay packed."""
        return self._packed is not None

    def way(self, request: ColdCall) -> Way:
        if request.method == "put" and self._makes_blobs:
            request = self._with_blobs(request)
        elif request.method != "put" and not request.is_packed:
            return Way(request, self._cold, self._cold.serde)
        if self._packed is not None:
            return Way(request, *self._packed)
        checked = _CheckedSerializer(self._cold.serde, is_known=self._is_known)
        is_read = request.method in _READS
        cold = twin(self._cold, serde=checked) if self.has_twins and (is_read or self._is_known) else self._cold
        return Way(request, cold, checked, checked if is_read else None)

    def _with_blobs(self, put: ColdCall) -> ColdCall:
        """Return a `put` in which values that Postgres would change as JSON become blobs.

        LangGraph's Postgres saver stores a str, int, float or bool of a channel as JSON. A blob of a version replaces
        it. So only new versions become blobs, except values that JSON cannot have: cold has the blobs of older ones.
        """
        target, checkpoint, metadata, new_versions = put.arguments
        values = {
            channel: _InBlob(value) if self._needs_blob(value, is_new=channel in new_versions) else value
            for channel, value in checkpoint["channel_values"].items()
        }
        return put._replace(arguments=(target, {**checkpoint, "channel_values": values}, metadata, new_versions))

    def _needs_blob(self, value: Any, *, is_new: bool) -> bool:
        """True if Postgres cannot store a value as JSON, or if a new value would come back as something else."""
        if value is None or type(value) in (bool, int) or not isinstance(value, (str, int, float)):
            return False
        if type(value) is str:
            return not postgres.is_text(value)
        if type(value) is float:
            return is_new or not math.isfinite(value)
        with suppress(TypeError, ValueError):  # such as a float of numpy, which only JSON takes
            self._cold.serde.dumps_typed(value)
            return is_new
        return False

    def opened(self, saved: CheckpointTuple | None) -> CheckpointTuple | None:
        """Return a checkpoint that was carried as cold itself would have returned it."""
        if saved is None or not self.is_packed:
            return saved and CheckpointTuple(*saved)
        values = {channel: self._opened(value) for channel, value in saved.checkpoint["channel_values"].items()}
        writes = [(task, channel, self._opened(value)) for task, channel, value in saved.pending_writes or ()]
        opened = self.with_open_parts(saved, self._cold.serde)
        return opened._replace(checkpoint={**opened.checkpoint, "channel_values": values}, pending_writes=writes)

    def opened_history(self, carried: Mapping[str, DeltaChannelHistory]) -> dict[str, DeltaChannelHistory]:
        """Return histories that were carried as cold itself would have returned them."""
        if not self.is_packed:
            return dict(carried)
        answers: dict[str, DeltaChannelHistory] = {}
        for channel, history in carried.items():
            answers[channel] = {"writes": [(*write[:2], self._opened(write[2])) for write in history["writes"]]}
            if "seed" in history:
                answers[channel]["seed"] = self._opened(history["seed"])
        return answers

    def checked(self, request: ColdCall, answer: Any) -> Any:
        if request.method == "list":
            return [self._with_metadata(saved, is_sealed=request.is_sealed) for saved in answer]
        if request.method == "get_tuple" and answer is not None:
            return self._with_metadata(answer, is_sealed=request.is_sealed)
        return answer

    def _with_metadata(self, saved: CheckpointTuple, *, is_sealed: bool) -> CheckpointTuple:
        """Return a checkpoint with decoded metadata. If cold stored these as JSON or as a pickle, it is lossy then.

        Raises:
            DecodeError: It is encrypted, and the call does not ask for envelopes.
        """
        if isinstance(saved.metadata, Opaque):
            saved = _LossyTuple(*saved._replace(metadata=_decoded(saved.metadata, self._cold.serde)))
        if HEAD in saved.metadata and not is_sealed:
            raise decoding("{} in cold", configs.address(saved.config)).of(IsEncrypted(ENCRYPTED))
        return saved

    def with_open_parts(self, saved: CheckpointTuple, serde: SerializerProtocol) -> CheckpointTuple:
        """Decode a carried checkpoint except its values and writes."""
        if not self.is_packed:
            return saved
        values = saved.checkpoint["channel_values"]
        checkpoint = _decoded({**saved.checkpoint, "channel_values": {}}, serde)
        checkpoint["channel_values"] = values
        return saved._replace(checkpoint=checkpoint, metadata=_decoded(saved.metadata, serde))

    def _opened(self, value: Any) -> Any:
        return _decoded(value, self._cold.serde)


class Way(NamedTuple):
    """The way in which cold answers a call."""

    request: ColdCall
    """The call as cold gets it."""
    cold: Any
    """The saver or store that answers it."""
    serde: SerializerProtocol | None = None
    """The serializer of the values in it. None for a store."""
    checked: _CheckedSerializer | None = None
    sealed: Tiered[Any] | None = None
    """The operation in place of the call, if the call has values and cold gets envelopes."""
    reading: AbstractContextManager[None] = nullcontext()
    """Context of the call."""

    def marked(self, answer: Any) -> Any:
        """Return an answer, marked if it may be something else than what cold has."""
        if self.checked is None or not self.checked.is_lossy:
            return answer
        if isinstance(answer, CheckpointTuple):
            return _LossyTuple(*answer)
        if isinstance(answer, list):
            return [_LossyTuple(*saved) for saved in answer]
        return _LossyHistory(answer) if isinstance(answer, Mapping) else answer


class _LossyTuple(CheckpointTuple):
    """A checkpoint that this process may have decoded only in part."""


class _LossyHistory(dict[str, DeltaChannelHistory]):
    """Histories that this process may have decoded only in part."""


def is_lossy(answer: object) -> bool:
    """True if the answer of a call that carries may be something else than what cold has."""
    return isinstance(answer, (_LossyTuple, _LossyHistory))


class _InBlob(NamedTuple):
    """A value that cold stores as a blob."""

    value: Any


class _PackedSerializer(OpaqueSerializer):
    """Leaves objects packed, and encodes as another serializer does."""

    def __init__(self, serde: SerializerProtocol) -> None:
        super().__init__()
        self._own = serde

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Decode as `OpaqueSerializer` does. What it refuses stays an `Opaque`, about which the own one decides."""
        kind, stored = data
        if kind in ("msgpack", "null", "bytes", "bytearray"):
            with suppress(ValueError):
                return super().loads_typed(data)
        opaque = Opaque(kind, stored)
        if b"channel_versions" not in stored:
            return opaque
        # Some savers store a checkpoint as a whole: before September 2024 as JSON, and as a pickle if it has to be one.
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            return opaque.as_checkpoint()
        return self._own.loads_typed(data)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        value = obj.value if isinstance(obj, _InBlob) else obj
        if type(value) is list and any(isinstance(item, Opaque) for item in value):  # pending sends, before 2025
            value = [_decoded(item, self._own) for item in value]
        return value.typed if isinstance(value, Opaque) else self._own.dumps_typed(value)


class _CarryingSerializer(OpaqueSerializer):
    """An `OpaqueSerializer` for hot. It refuses types that the serializer of the other side does not know."""

    def __init__(self, serde: SerializerProtocol) -> None:
        super().__init__()
        self._own = serde

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, _ = data
        if "+" not in kind and kind not in _KINDS:
            raise ValueError(f"it has the type {shown(kind)}, which LangGraph's serializer does not know")
        return super().loads_typed(data)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if isinstance(obj, Opaque):
            self._own.loads_typed(obj.typed)  # raises if hot could not read it back
        return super().dumps_typed(obj)


class _CheckedSerializer(SerializerProtocol):
    """Notes if another serializer does not encode what it decoded to the same bytes."""

    def __init__(self, serde: SerializerProtocol, *, is_known: bool) -> None:
        """Wrap a serializer. `is_known`: its saver uses no other one."""
        self._own, self._is_used, self._differs = serde, is_known, False

    @property
    def is_lossy(self) -> bool:
        """True if a value differed, or if the saver does not use this serializer."""
        return self._differs or not self._is_used

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        value = self._own.loads_typed(data)
        self._is_used = True
        try:
            kind, again = self._own.dumps_typed(value)
        except Exception:  # noqa: BLE001 - a user's serializer may raise anything, and reading goes on
            self._differs = True
        else:
            self._differs |= (kind, bytes(again)) != (data[0], bytes(data[1]))
        return value

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return self._own.dumps_typed(obj.value if isinstance(obj, _InBlob) else obj)


def _decoded(value: Any, serde: SerializerProtocol) -> Any:
    """Decode a packed value by another serializer."""
    if type(value) in _ATOMS:
        return value
    while isinstance(serde, (EncryptedSerializer, EncryptedOnly)):  # nothing that is packed is encrypted
        serde = serde.serde
    try:
        return serde.loads_typed(_PACKER.dumps_typed(value))
    except ormsgpack.MsgpackEncodeError:  # cold read it from JSON, so nothing in it is packed
        return value


def _within(
    serde: SerializerProtocol, make: Callable[[SerializerProtocol], SerializerProtocol]
) -> SerializerProtocol | None:
    """Replace the serializer within ciphers. Returns None unless it is LangGraph's or ours."""
    if type(serde) in (EncryptedSerializer, EncryptedOnly):
        wrapper: Any = copy.copy(serde)
        wrapper.serde = _within(wrapper.serde, make)
        return wrapper if wrapper.serde is not None else None
    return make(serde) if type(serde) in _KNOWN else None
