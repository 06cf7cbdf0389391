"""The guard of cold: with `encryption=`, cold decodes nothing before it is known to be ours.

A cold saver decodes what its database has before it returns it, and LangGraph's serializer makes whatever objects the
bytes name. So all calls go to a twin of cold, with an `EnvelopeSerializer` in place of its serializer. The twin shares
all else, such as the connection, also if it changes later. Cold itself stays as it is for its other users.

That protects only if cold decodes by its `serde` alone. It cannot be seen from outside, so it is known by class: the
savers of LangGraph do, and others have to say so. The guard also notices at the first writes that it was passed by.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from redis_saver._checkpoint.saver import Saver, context_of
from redis_saver._common import config as configs, postgres
from redis_saver._common.display import kind_of
from redis_saver._storage.context import Context
from redis_saver._storage.envelopes import EnvelopeSerializer
from redis_saver._tiered.carrying import DECODES_ONLY_BY_SERDE, Carrier, Way, decodes_only_by_serde
from redis_saver._tiered.in_cold import InCold
from redis_saver._tiered.requests import ColdCall, Tiered
from redis_saver._tiered.sealing import REMEDY, SealedCold
from redis_saver._tiered.twins import twin
from redis_saver.errors import DecodeError, decoding

_READS = "get_tuple", "list"
_OF_DAMAGE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, UnicodeDecodeError),
    *(DecodeError, NotImplementedError, RecursionError),
)
"""Errors of a saver that reads a row which somebody changed."""
_DATA_EXCEPTION = "22"
"""Beginning of Postgres' error codes for values that a query cannot use, such as JSON of another shape."""


def carrier_between(hot: Context, cold: BaseCheckpointSaver[Any], in_cold: InCold) -> Carrier:
    """Return how values are carried between two savers: in envelopes, if hot encrypts."""
    return Carrier(hot, cold) if hot.data_keys is None else Guard(hot, cold, in_cold)


class Guard(Carrier):
    """Carries envelopes, by a twin of cold that decodes nothing else."""

    def __init__(self, hot: Context, cold: BaseCheckpointSaver[Any], in_cold: InCold) -> None:
        """Make the twin.

        Raises:
            TypeError: It is not known that cold decodes only by its `serde`.
        """
        super().__init__(hot, cold)
        self._hot, self._in_cold, self._makes_blobs = hot, in_cold, False
        self._envelopes, self._guarded = EnvelopeSerializer(cold.serde), cold
        if isinstance(cold, Saver) and context_of(cold).data_keys is not None:  # it opens values before it decodes them
            self._envelopes.is_used = True
            return
        if not decodes_only_by_serde(cold):
            raise TypeError(
                f"cold is {kind_of(cold)}, and hot has encryption=. Then cold must store and read all values by its "
                "serde, or somebody without the keys could make it decode theirs. LangGraph's savers for Postgres, "
                "SQLite and memory do, and their subclasses. A RedisSaver needs an encryption= of its own. If "
                f"yours stores all values by its serde, set {DECODES_ONLY_BY_SERDE} = True in its class"
            )
        self._guarded = twin(cold, serde=self._envelopes)

    def way(self, request: ColdCall) -> Way:
        way = super().way(request)._replace(cold=self._guarded, reading=self._reading(request))
        if request.is_sealed or way.serde is None or not hasattr(SealedCold, request.method):
            return way
        is_sql, waits = postgres.has_history(self._cold), not request.is_read
        cold = SealedCold(self._hot, self._in_cold, way.serde, is_sql=is_sql, waits=waits)
        operation: Tiered[Any] = getattr(cold, request.method)(*request.arguments, **request.options)
        return way._replace(sealed=operation if request.around is None else request.around(operation))

    @contextmanager
    def _reading(self, request: ColdCall) -> Iterator[None]:
        """Turn an error of cold about a row that somebody changed into a `DecodeError`. Others pass."""
        try:
            yield
        except Exception as error:  # of any database
            if request.method not in _READS or not self._is_of_damage(error, request):
                raise
            config = request.arguments[0]
            where = "a thread" if config is None else configs.address(config)
            raise decoding("{} in cold", where, remedy=REMEDY).of(error) from error

    def _is_of_damage(self, error: Exception, request: ColdCall) -> bool:
        if isinstance(error, ValueError) and not isinstance(error, (*_OF_DAMAGE, UnicodeEncodeError)):
            return postgres.is_known(self._cold)  # aiosqlite raises it for a closed connection
        if (getattr(error, "sqlstate", "") or "").startswith(_DATA_EXCEPTION):
            return not request.options.get("filter")  # else the caller's filter may be the reason
        return isinstance(error, _OF_DAMAGE)

    def checked(self, request: ColdCall, answer: Any) -> Any:
        """Return an answer, after a check that the pending writes of the call went through the guard.

        Raises:
            TypeError: They did not, so cold decodes by something else than its `serde`.
        """
        if self._envelopes.is_used or request.method not in (*_READS, "put_writes"):
            return answer
        answers = answer if isinstance(answer, list) else [answer]
        if request.method == "put_writes" or any(saved is not None and saved.pending_writes for saved in answers):
            raise TypeError(
                f"cold is {kind_of(self._cold)}, which does not store and read values by its own serde, so "
                "encryption= cannot protect what it decodes. A saver that hands calls to another one is no cold for it"
            )
        return answer
