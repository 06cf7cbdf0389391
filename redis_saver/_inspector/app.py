"""The inspector as an ASGI application: routes, forms, and the fallback while Postgres fails."""

from __future__ import annotations

import hmac
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from importlib import import_module
from threading import BoundedSemaphore
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from redis_saver._common import postgres
from redis_saver._common.display import error_text, printable, shown
from redis_saver._common.logs import log_text
from redis_saver._inspector import manual_pages
from redis_saver._inspector.changes import of_thread
from redis_saver._inspector.checkpoint_pages import LARGE, CheckpointPages, Large
from redis_saver._inspector.guard import Guard, derived
from redis_saver._inspector.memory import memory_of
from redis_saver._inspector.memory_pages import MemoryPages
from redis_saver._inspector.pages import STATIC, Pages, Query, Refused, Values, asked, static_file, url_of
from redis_saver._inspector.source import Source
from redis_saver._inspector.thread_pages import ThreadPages
from redis_saver._inspector.values import Hides, hiding
from redis_saver._store.store import Store
from redis_saver.errors import ColdTimeout, DecodeError, EncodeError, RedisSaverError, ThreadNotFound

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_NOT_FOUND = 404
VALUES_AT_ONCE = 2
"""Maximum number of pages that read values at a time, because a page may hold a few times a checkpoint's bytes."""
Answer: TypeAlias = Callable[[Request], Response]
TOKEN_VARIABLE = "REDIS_SAVER_INSPECTOR_TOKEN"  # noqa: S105 - the name of a variable


def app(
    saver: object,
    *,
    token: str | None = None,
    hosts: Sequence[str] = LOOPBACK,
    mask: Sequence[str] = (),
    allow_changes: bool = False,
    store: Store[Any] | None = None,
) -> Starlette:
    """Make the inspector of a saver, to serve alone or to mount in a service.

    A worker thread answers each page, so no event loop waits. Without `allow_changes` the inspector writes nothing to
    Redis and moves no deadline.

    Args:
        saver: A `RedisSaver`, `AsyncRedisSaver`, `TieredSaver` or `AsyncTieredSaver`. Its serializer decodes values.
        token: Secret that opens the pages. A URL with `?token=...` sets a cookie for all other pages. Default: the
            environment variable `REDIS_SAVER_INSPECTOR_TOKEN`. Empty: every request may read, so the service around the
            application must check requests.
        hosts: Host names without a port. Requests with another Host header are refused. `"*"` allows any name.
        mask: Patterns, such as `"*token*"`. The value of a channel, key or field whose name matches is hidden. `"*"`
            hides all values.
        allow_changes: True to let users pin, prune, copy and delete threads, set their TTL, delete items, and clear
            caches. It needs a token.
        store: A `RedisStore` or `AsyncRedisStore` for the pages of memory, such as one with an `index`. Default: the
            store under the saver's prefix, with the saver's client, serializer and keys.

    Raises:
        TypeError: The saver or store is not one of this package, or `hosts` or `mask` is a single text.
        ValueError: There is no token, or an empty one with `allow_changes`.
    """
    for name, names in (("hosts", hosts), ("mask", mask)):
        if isinstance(names, (str, bytes)):
            raise TypeError(f"{name}={shown(names)}: write a list, such as [{shown(names)}]")
    token = os.environ.get(TOKEN_VARIABLE) if token is None else token
    if token is None:
        raise ValueError(f'an inspector needs a token: write one or set {TOKEN_VARIABLE} ("" if others check requests)')
    if allow_changes and not token:
        raise ValueError("allow_changes=True needs a token, which protects the forms")
    with suppress(ImportError):  # else the first page with an interrupt would wait for the import
        import_module("langgraph.types")
    source, secret = Source(saver), derived(token, b"form")
    say = partial(_said, is_masked=bool(mask))
    about = {"allow_changes": allow_changes, "form_token": secret, "has_cold": source.tiers is not None, "say": say}
    pages = Pages(about)
    turns = BoundedSemaphore(VALUES_AT_ONCE)
    fallback = FallbackToRedis(say)
    hides = hiding(mask)
    answers = _answers_of(source, pages, hides, turns, fallback.check)
    if source.tiers is not None:
        of_redis = _answers_of(Source(source.tiers.hot), Pages({**about, "has_cold": False}), hides, turns)
        answers = {name: fallback.around(answer, of_redis[name]) for name, answer in answers.items()}
    memory = MemoryPages(memory_of(source.hot, store), hides)
    for make in (memory.memory, memory.item, memory.caches):
        answers[make.__name__] = _answering(pages, make, turns)
    routes = [Route(f"/{name}", answer) for name, answer in answers.items()]
    routes += [Route(path, partial(manual_pages.show, pages)) for path in ("/docs", "/docs/{name}")]
    for name, kind in STATIC.items():
        headers = {"cache-control": "private, max-age=300"}
        routes.append(Route(f"/static/{name}", Response(static_file(name), media_type=kind, headers=headers)))
    if allow_changes:
        routes.append(Route("/change", partial(_change, source, memory, pages, secret), methods=["POST"]))

    statuses: dict[type[Exception], int] = {
        ThreadNotFound: _NOT_FOUND, Refused: 400, NotImplementedError: 400, ColdTimeout: 503, RedisSaverError: 500,
        **dict.fromkeys(source.failures, 503),
    }  # fmt: skip

    def fail(request: Request, error: Exception) -> Response:
        status = next(status for kind, status in statuses.items() if isinstance(error, kind))
        is_thread = request.url.path.endswith("/thread") and status == _NOT_FOUND
        near = source.near(asked(request).get("id", "")) if is_thread else ()
        return pages.page(request, "error", status=status, wrong=say(error), near=near)

    def ask(request: Request, error: Exception) -> Response:
        return pages.page(request, "large", size=getattr(error, "size", 0), most=LARGE)

    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=token, hosts=hosts)],
        exception_handlers={**dict.fromkeys(statuses, fail), Large: ask},
    )


def _answers_of(
    source: Source,
    pages: Pages,
    hides: Hides,
    turns: BoundedSemaphore,
    check: Callable[[Request], None] | None = None,
) -> dict[str, Answer]:
    """Return a function for each path. Pages that read values wait until one of the `turns` is free, and then check."""
    threads, checkpoints = ThreadPages(source, hides), CheckpointPages(source, hides)
    light = (threads.server, threads.newer, threads.cost, threads.channel, threads.writes)
    heavy = (threads.thread, checkpoints.checkpoint, checkpoints.value, checkpoints.diff, checkpoints.json)

    answering = partial(_answering, pages, check=check)
    answers = {"": answering(threads.threads, nullcontext())}
    answers |= {make.__name__: answering(make, nullcontext()) for make in light}
    return answers | {make.__name__: answering(make, turns) for make in heavy}


def _answering(
    pages: Pages,
    make: Callable[[Query], Values],
    turn: AbstractContextManager[Any],
    check: Callable[[Request], None] | None = None,
) -> Answer:
    def answer(request: Request) -> Response:
        with turn:
            if check:
                check(request)
            return pages.page(request, make.__name__, **make(asked(request)))

    return answer


def _said(error: Exception, *, is_masked: bool) -> str:
    """Return the message of an error. With a mask, leave out a serializer's message, which may quote values."""
    if is_masked and isinstance(error, (DecodeError, EncodeError)):
        return log_text(error)
    is_ours = isinstance(error, (RedisSaverError, Refused, NotImplementedError))
    return printable(str(error)) if is_ours else error_text(error)


MAX_FORM = 10_000
"""Maximum number of bytes of a form."""


async def _change(source: Source, memory: MemoryPages, pages: Pages, form_token: str, request: Request) -> Response:
    """Show what a form does. If its user has confirmed that, do it, and redirect to a page that shows it."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM:
            return PlainTextResponse("The form is too long.", 413)
    form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    if not hmac.compare_digest(form.pop("form", "").encode(), form_token.encode()):
        return PlainTextResponse("The form is not from this inspector. Load the page again.", 403)
    is_sure, arguments = form.pop("sure", "") == "yes", asked(request)
    planned = partial(of_thread, source) if "id" in arguments else memory.planned
    change = await run_in_threadpool(planned, arguments, form)
    if not is_sure:
        return pages.page(request, "confirm", change=change, fields=form)
    await run_in_threadpool(change.run)
    return RedirectResponse(url_of(request, *(change.then or change.back)), 303)


SLOW = 0.5
"""Seconds. If the cold tier takes longer to fail, the next pages do not ask it."""
ASK_AGAIN = 15.0
"""Seconds until a page asks such a cold tier again."""


class FallbackToRedis:
    """Answers pages from Redis alone while the cold tier fails. A notice on the page says so.

    A page about a thread that Redis does not have, or about cold's checkpoints, asks the cold tier each time.
    """

    def __init__(self, say: Callable[[Exception], str]) -> None:
        """Start without a failure. `say` returns the message of an error."""
        self._say = say
        self._failed = -math.inf
        """Time of the cold tier's last slow failure."""
        self._error: Exception = ColdTimeout()
        """Its error."""

    def check(self, request: Request) -> None:
        """Raise the error of cold if it failed while the page waited for its turn."""
        if self._failed > getattr(request.state, "began", math.inf):
            raise self._error

    def around(self, page: Answer, of_redis: Answer) -> Answer:
        """Return a page that answers from Redis alone while cold fails.

        Args:
            page: Answers from both tiers.
            of_redis: Answers from Redis alone.
        """

        def from_redis(request: Request, notice: str) -> Response:
            request.state.without_cold = notice
            return of_redis(request)

        def answer(request: Request) -> Response:
            arguments = asked(request)
            is_about_cold = arguments.get("tier") == "cold" or bool(arguments.get("dirty"))
            if not is_about_cold and time.monotonic() - self._failed < ASK_AGAIN:
                with suppress(ThreadNotFound):
                    return from_redis(request, self._say(self._error))
                request.state.without_cold = ""
            began = request.state.began = time.monotonic()
            failures: tuple[type[Exception], ...] = (*postgres.failures(), ColdTimeout)
            try:
                response = page(request)
            except failures as error:
                if time.monotonic() - began > SLOW and error is not self._error:
                    self._error, self._failed = error, time.monotonic()
                if is_about_cold:
                    raise
                try:
                    return from_redis(request, self._say(error))
                except ThreadNotFound:
                    raise error from None
            self._failed = -math.inf
            return response

        return answer
