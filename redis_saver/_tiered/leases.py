"""What this process may hold in hot without using it: a flusher's claim, the right to scan, a write intent of a caller that was cancelled.

A lease, or an intent, is held by a token. If the process asks again with the same token, it goes on at once. With a new token it would have to wait until the lease runs out.
"""

from __future__ import annotations

from uuid import uuid4

from redis_saver._common import forks, names
from redis_saver._engine import scripts
from redis_saver._engine.requests import Call
from redis_saver._tiered.context import MAX_NOTED
from redis_saver._tiered.requests import Attempt


class Leases:
    """The tokens of leases that this process may hold and does not use, by the key in Redis."""

    def __init__(self) -> None:
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, forget them: the parent holds the leases."""
        self._tokens: dict[bytes, str] = {}

    def token(self, key: bytes) -> str:
        """The token to ask with: one that was kept, or a new one.

        A kept token is given to one caller only. So no two workers hold a lease by the same token, nor do two processes after a fork.
        """
        return self._tokens.pop(key, None) or uuid4().hex

    def keep(self, key: bytes, token: str) -> None:
        """Keep a token, so that the next attempt goes on with the lease that it may hold."""
        if len(self._tokens) >= MAX_NOTED:
            self._tokens.clear()
        self._tokens[key] = token


def release(keys: names.TierKeys, token: str) -> Attempt:
    """Release what a token holds of a thread. If hot does not answer, the lease runs out by itself."""
    return Attempt(Call(scripts.RELEASE, (keys.flush, keys.intents), (token,)))
