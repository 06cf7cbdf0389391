"""Runs an operation on a thread with the cipher of its data key."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from langchain_core.runnables import RunnableConfig

from redis_saver._common.display import shown
from redis_saver._engine.requests import Page, R, Request, T
from redis_saver._engine.runner import Pump
from redis_saver._storage.context import Context
from redis_saver.errors import DecodeError, KeyMismatch, ThreadBusy

P = ParamSpec("P")
ATTEMPTS = 3
"""Maximum number of attempts. Several callers of this process may make a data key for a thread at the same time."""


def with_key(
    context: Context,
    thread: str,
    make: Callable[[Context], Generator[R, Any, T]],
    *,
    creates: bool = False,
    config: RunnableConfig | None = None,
    key: bytes = b"",
) -> Generator[R | Request, Any, T]:
    """Run an operation on a thread with the thread's cipher in its context. Without `encryption=`, just run it.

    If another process has replaced the thread, this process finds that its data key is another one, and runs the
    operation again.

    Args:
        context: The saver, or the settings of a store.
        thread: The thread, or the name of a partition.
        make: Makes the operation.
        creates: True if the operation may create the thread, which then gets a data key.
        config: LangGraph's config, for `key_for`.
        key: The hash of a partition.

    Raises:
        ThreadBusy: The thread was replaced after the operation had streamed a page.
    """
    if (data_keys := context.data_keys) is None:
        return (yield from make(context))
    key, attempts, is_streaming = key or context.keyspace.keys(thread).data_key, ATTEMPTS, False
    cipher = yield from data_keys.load(thread, key)
    while True:
        if cipher is None and creates:
            cipher = yield from data_keys.make(thread, config)
        pump = Pump(make(context.with_cipher(cipher)))
        try:
            for request in pump:
                is_streaming = is_streaming or isinstance(request, Page)
                with pump:
                    pump.reply = yield request
        except (KeyMismatch, DecodeError) as error:
            attempts -= 1
            failed, cipher = cipher, (yield from data_keys.load(thread, key, cipher))
            if is_streaming and cipher is not failed:
                text = f"thread {shown(thread)} was replaced between two pages of its results: read it again"
                raise ThreadBusy(text) from error
            # If the key did not match, but does now, others have replaced the thread twice.
            if not attempts or is_streaming or (cipher is failed and isinstance(error, DecodeError)):
                raise
            context.chunk_cache.forget(key)
        else:
            return pump.result
        finally:
            pump.close()


def keyed(
    function: Callable[Concatenate[Context, str, P], Generator[R, Any, T]],
) -> Callable[Concatenate[Context, str, P], Generator[R | Request, Any, T]]:
    """Decorate an operation whose second argument is a thread. It runs as by `with_key`."""

    @wraps(function)
    def operation(context: Context, thread: str, /, *args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, T]:
        if context.data_keys is None or context.cipher is not None:
            return function(context, thread, *args, **kwargs)
        return with_key(context, thread, lambda of: function(of, thread, *args, **kwargs))

    return operation
