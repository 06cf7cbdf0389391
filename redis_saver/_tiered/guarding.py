"""The guard of cold: with `encryption=`, cold decodes nothing before it is known to be ours.

A cold saver decodes what its database has before it returns it, and LangGraph's serializer makes whatever objects the
bytes name. So all calls go to a twin of cold, with an `EnvelopeSerializer` in place of its serializer. The twin shares
all else, such as the connection, also if it changes later. Cold itself stays as it is for its other users.

That protects only if cold decodes by its `serde` alone. It cannot be seen from outside, so it is known by class: the
savers of LangGraph do, and others have to say so. The guard also notices at the first writes that it was passed by.

Without encryption, twins carry packed bytes (`carrying.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from redis_saver._checkpoint.saver import Saver, context_of
from redis_saver._common import config as configs, postgres
from redis_saver._common.display import kind_of
from redis_saver._storage.envelopes import EnvelopeSerializer
from redis_saver._tiered.requests import ColdCall
from redis_saver._tiered.twins import twin
from redis_saver.errors import DecodeError, decoding

_OF_LANGGRAPH = ("langgraph.checkpoint.memory.", "langgraph.checkpoint.postgres.", "langgraph.checkpoint.sqlite.")
_SAYS_SO = "decodes_only_by_serde"
"""Attribute of a class whose savers store and read each value, each write and all metadata by `serde` or as JSON."""
_READS = "get_tuple", "list"
_OF_DAMAGE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, UnicodeDecodeError),
    *(DecodeError, NotImplementedError, RecursionError),
)
"""Errors of a saver that reads a row which somebody changed."""
_DATA_EXCEPTION = "22"
"""Beginning of Postgres' error codes for values that a query cannot use, such as JSON of another shape."""
REMEDY = "Nothing was changed. Restore the row from a backup, or delete the thread with delete_thread()."


class Guard:
    """A twin of cold that decodes only envelopes."""

    def __init__(self, cold: BaseCheckpointSaver[Any]) -> None:
        """Make the twin.

        Raises:
            TypeError: It is not known that cold decodes only by its `serde`.
        """
        self.serde: EnvelopeSerializer = EnvelopeSerializer(cold.serde)
        self.cold: BaseCheckpointSaver[Any] = cold
        if isinstance(cold, Saver) and context_of(cold).data_keys is not None:  # it opens values before it decodes them
            self.serde.is_used = True
            return
        if not decodes_only_by_serde(cold):
            raise TypeError(
                f"cold is {kind_of(cold)}, and hot has encryption=. Then cold must store and read all values by its "
                "serde, or somebody without the keys could make it decode theirs. LangGraph's savers for Postgres, "
                "SQLite and memory do, and their subclasses. A RedisSaver needs an encryption= of its own. If "
                f"yours stores all values by its serde, set {_SAYS_SO} = True in its class"
            )
        self.cold = twin(cold, serde=self.serde)

    @contextmanager
    def reading(self, request: ColdCall) -> Iterator[None]:
        """Turn an error of cold about a row that somebody changed into a `DecodeError`. Others pass."""
        try:
            yield
        except Exception as error:
            if request.method not in _READS or not self._is_of_damage(error, request):
                raise
            config = request.arguments[0]
            where = "a thread" if config is None else configs.address(config)
            raise decoding("{} in cold", where, remedy=REMEDY).of(error) from error

    def _is_of_damage(self, error: Exception, request: ColdCall) -> bool:
        if isinstance(error, ValueError) and not isinstance(error, (*_OF_DAMAGE, UnicodeEncodeError)):
            return postgres.is_known(self.cold)  # aiosqlite raises it for a closed connection
        if (getattr(error, "sqlstate", "") or "").startswith(_DATA_EXCEPTION):
            return not request.options.get("filter")  # else the caller's filter may be the reason
        return isinstance(error, _OF_DAMAGE)

    def check(self, request: ColdCall, answer: Any) -> None:
        """Check that the pending writes of a call went through the guard.

        Raises:
            TypeError: They did not, so cold decodes by something else than its `serde`.
        """
        if self.serde.is_used or request.method not in (*_READS, "put_writes"):
            return
        answers = answer if isinstance(answer, list) else [answer]
        if request.method == "put_writes" or any(saved is not None and saved.pending_writes for saved in answers):
            raise TypeError(
                f"cold is {kind_of(self.cold)}, which does not store and read values by its own serde, so "
                "encryption= cannot protect what it decodes. A saver that hands calls to another one is no cold for it"
            )


def decodes_only_by_serde(cold: BaseCheckpointSaver[Any]) -> bool:
    """True if a saver's class says so, or is LangGraph's or a subclass of it that does not deny it."""
    known = any(f"{base.__module__}.".startswith(_OF_LANGGRAPH) for base in type(cold).__mro__)
    return getattr(cold, _SAYS_SO, known) is True
