"""What a process holds in hot for a while, a flusher's claim or the look at all keys, where it does not know how its last request ended.

A lease whose reply was lost is held by a token. Who asks again with that token goes on at once; with a new one it would have to wait until the lease runs out.
"""

from __future__ import annotations

from uuid import uuid4

from redis_saver._common import forks, names
from redis_saver._engine import scripts
from redis_saver._engine.requests import Call
from redis_saver._tiered.context import MAX_NOTED
from redis_saver._tiered.requests import Attempt


class Leases:
    """The tokens of leases that this process may hold without using them, by the key in Redis."""

    def __init__(self) -> None:
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Hold nothing: it is the parent that does."""
        self._tokens: dict[bytes, str] = {}

    def token(self, key: bytes) -> str:
        """The token to ask with: that of an attempt that was kept, else a new one.

        It is given to one caller only, so no two workers hold a lease by one token; nor do two processes, after a fork.
        """
        return self._tokens.pop(key, None) or uuid4().hex

    def keep(self, key: bytes, token: str) -> None:
        """Let the next attempt go on with what this token may hold."""
        if len(self._tokens) >= MAX_NOTED:
            self._tokens.clear()
        self._tokens[key] = token


def release(keys: names.TierKeys, token: str) -> Attempt:
    """Release what a token holds of a thread, if hot can be told so now; else its time runs out."""
    return Attempt(Call(scripts.RELEASE, (keys.flush, keys.intents), (token,)))
