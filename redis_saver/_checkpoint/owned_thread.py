"""Ownership of a thread by a block: take the thread, renew the lease in the background, give the thread back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig

from redis_saver._checkpoint import guards, ownership
from redis_saver._checkpoint.ownership import Record, Terms
from redis_saver._client import loops
from redis_saver._common import times
from redis_saver._common.config import OWNER_KEY
from redis_saver._common.display import error_text, shown
from redis_saver._common.logs import Log
from redis_saver._engine.requests import Operation
from redis_saver._engine.runner import Driver
from redis_saver._storage.context import Context
from redis_saver.errors import NotOwner, RedisSaverError

_LOG = Log("redis_saver.checkpoint")
Taking: TypeAlias = Callable[[Terms, str], Generator[Any, Any, Record]]


class Ownership:
    """Context manager of `with saver.own(...) as config:`, and of `async with`. Each instance serves one block."""

    def __init__(
        self, terms: Terms, context: Context, owner_driver: Driver[Any], driver: Driver[Any], take: Taking
    ) -> None:
        """Own a thread on these terms, from the beginning of the block.

        Args:
            terms: The terms of the ownership.
            context: The saver on the server that holds the owners of threads.
            owner_driver: Driver for that server. Its `failures` are the errors that it raises if the server fails.
            driver: Driver that takes threads.
            take: Operation for `driver` that takes the thread, from the terms and a nonce.
        """
        self._terms, self._context, self._owner_driver = terms, context, owner_driver
        self._driver, self._take = driver, take
        self._key = context.keyspace.owner_key(terms.thread)
        self._nonce, self._token, self._pid, self._is_lost = "", "", 0, False
        self._held = guards.Held()
        self._renewing: Future[None] | None = None

    @property
    def token(self) -> str:
        """The token, which `configurable["thread_owner"]` carries. Empty before the block begins.

        Its form is `<epoch>-<16 hex digits>`. The epoch grows with each owner of a thread, so other systems that an
        agent writes to can refuse a smaller one.
        """
        return self._token

    @property
    def is_lost(self) -> bool:
        """True if a renewal found that this block does not own the thread any more.

        Then the thread was taken or deleted, or the server lost the key. A write finds out at once.
        """
        return self._is_lost

    # -- the block

    def __enter__(self) -> RunnableConfig:
        taking = self._taking()
        try:
            return self._begin(self._driver.run(taking))
        except BaseException as error:
            self._not_begun(error)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._end():
            try:
                self._owner_driver.run(self._released(self._token))
            except self._failures as failed:
                self._not_released(failed)

    async def __aenter__(self) -> RunnableConfig:
        taking = self._taking()
        try:
            return self._begin(await self._driver.arun_sleeping(taking))
        except BaseException as error:
            self._not_begun(error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._end():
            try:
                await self._give_back(self._token)
            except asyncio.CancelledError:  # nothing can be awaited any more, as in a cancelled scope of anyio
                loops.start(self._give_back(self._token))
                raise

    def _taking(self) -> Generator[Any, Any, Record]:
        if self._nonce:
            raise RuntimeError(
                f"thread {shown(self._terms.thread)} is owned by this block, or was: call own() anew for each block"
            )
        self._nonce, self._pid = os.urandom(8).hex(), os.getpid()
        return self._take(self._terms, self._nonce)

    def _begin(self, record: Record) -> RunnableConfig:
        terms = self._terms
        self._token = self._held.token = record.token
        self._start_renewing()
        guards.hold(self._context.keyspace, self._key, self._held)
        if record.was_owned:
            _LOG.info("thread %s was taken over by %s", shown(terms.thread), terms.by)
        config: RunnableConfig = {"configurable": {"thread_id": terms.thread, OWNER_KEY: record.token}}
        if terms.run_id is not None:
            config["metadata"] = {"run_id": terms.run_id}
        return config

    def _start_renewing(self) -> None:
        self._renewing = loops.start(self._renew())
        self._renewing.add_done_callback(self._renewed)

    def _renewed(self, renewing: Future[None]) -> None:
        """Restart the renewals, unless the end of the block or of the process ended them."""
        if not renewing.cancelled() and renewing.exception() is not None:
            self._start_renewing()

    def _not_begun(self, error: BaseException) -> None:
        """Give the thread back in the background if the block fails to begin, as the server may have given it.

        After `NotOwner` the server gave nothing. The child of a fork leaves this to its parent.
        """
        nonce, self._nonce = self._nonce, ""
        is_ours = self._pid == os.getpid()
        if is_ours and not isinstance(error, NotOwner):
            loops.start(self._give_back(nonce))

    def _end(self) -> bool:
        """Stop the renewals. Returns True if this process gives the thread back. The child of a fork does not."""
        guards.let_go(self._context.keyspace, self._key, self._held)
        if self._pid != os.getpid():
            return False
        assert self._renewing is not None  # noqa: S101 - the block has begun
        self._renewing.cancel()
        return True

    def _released(self, token: str) -> Operation[bool]:
        return ownership.release(self._context, self._terms.thread, token)

    async def _give_back(self, token: str) -> None:
        try:
            await self._owner_driver.arun(self._released(token))
        except self._failures as failed:
            self._not_released(failed)

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        return (*self._owner_driver.failures, RedisSaverError)  # type: ignore[attr-defined]

    def _not_released(self, error: Exception) -> None:
        """Log the failure instead of raising it. The lease runs out anyway, and the block's work is done."""
        thread = shown(self._terms.thread)
        _LOG.warning(
            "thread %s was not given back, or it is not known; its lease runs out: %s", thread, error_text(error)
        )

    async def _renew(self) -> None:
        """Renew the lease until the block ends or loses the thread.

        If the server fails, the next renewal tries again. A request is given up when the lease has run out, as the
        client may have no timeout.
        """
        terms, thread = self._terms, shown(self._terms.thread)
        left = terms.lease / 1000 - terms.renewal_interval
        while self._held.token:
            await asyncio.sleep(terms.renewal_interval)
            renewed = ownership.renew(self._context, terms.thread, self._token, terms.lease)
            try:
                is_owned = await asyncio.wait_for(self._owner_driver.arun(renewed), left)
            except asyncio.TimeoutError:
                waited = times.shown(timedelta(seconds=left))
                _LOG.warning("the lease of thread %s was not renewed: no answer in %s", thread, waited)
                continue
            except Exception as error:  # noqa: BLE001 - the next renewal may succeed, and writes find out themselves
                _LOG.warning("the lease of thread %s was not renewed: %s", thread, error_text(error))
                continue
            if not is_owned:
                self._is_lost = True
                _LOG.warning("thread %s was taken or deleted by somebody else, or the server lost its key", thread)
                return
