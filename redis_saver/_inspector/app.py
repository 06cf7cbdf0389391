"""The inspector as an ASGI application: its pages, forms, and what it shows while Postgres fails."""

from __future__ import annotations

import hmac
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import BoundedSemaphore
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from redis_saver._common import postgres, ttl as ttls
from redis_saver._common.display import error_text, printable, shown
from redis_saver._common.logs import log_text
from redis_saver._inspector.checkpoint_pages import CheckpointPages
from redis_saver._inspector.guard import LOOPBACK, Guard, derived
from redis_saver._inspector.pages import STATIC, Pages, Query, Refused, Values, asked, query_of, static_file
from redis_saver._inspector.source import Source
from redis_saver._inspector.thread_pages import ThreadPages
from redis_saver._inspector.values import Mask
from redis_saver.errors import DecodeError, EncodeError, RedisSaverError, ThreadNotFound

_NOT_FOUND = 404
VALUES_AT_ONCE = 2
"""Maximum number of pages that read values at a time, as each may hold a few times the bytes of a checkpoint."""
Answer: TypeAlias = Callable[[Request], Response]
TOKEN_VARIABLE = "REDIS_SAVER_INSPECTOR_TOKEN"  # noqa: S105 - the name of a variable


def app(
    saver: object,
    *,
    token: str | None = None,
    hosts: Sequence[str] = LOOPBACK,
    mask: Sequence[str] = (),
    allow_changes: bool = False,
) -> Starlette:
    """Make the inspector of a saver, to serve, or to mount in a service.

    A worker thread answers each page, so no event loop waits. Without `allow_changes` the inspector writes nothing to
    Redis and moves no deadline.

    Args:
        saver: A `RedisSaver`, `AsyncRedisSaver`, `TieredSaver` or `AsyncTieredSaver`. Its serializer decodes values.
        token: Secret that opens the pages. A URL with `?token=...` sets a cookie for all other pages. Default: the
            environment variable `REDIS_SAVER_INSPECTOR_TOKEN`. Empty: every request may read, so the service around the
            application must check requests.
        hosts: Host names without a port. Requests with another Host header are refused. `"*"` allows any.
        mask: Patterns, such as `"*token*"`. The value of a channel, key or field whose name matches is hidden. `"*"`
            hides all values.
        allow_changes: True to let users delete, pin and unpin threads, and set their TTL. It needs a token.

    Raises:
        TypeError: The saver is not one of this package, or `hosts` or `mask` is a single text.
        ValueError: There is no token, or an empty one with `allow_changes`.
    """
    for name, names in (("hosts", hosts), ("mask", mask)):
        if isinstance(names, (str, bytes)):
            raise TypeError(f"{name}={shown(names)}: write a list, such as [{shown(names)}]")
    token = os.environ.get(TOKEN_VARIABLE) if token is None else token
    if token is None:
        raise ValueError(
            f'who may look? Write token="..." (or {TOKEN_VARIABLE} in the environment); token="" only where what the '
            "inspector is mounted in checks that"
        )
    if allow_changes and not token:
        raise ValueError("allow_changes=True needs a token, which protects the forms")
    source, secret = Source(saver), derived(token, b"form")
    say = partial(_said, is_masked=bool(mask))
    about = {"allow_changes": allow_changes, "form_token": secret, "has_cold": source.tiers is not None, "say": say}
    pages = Pages(about)
    turns = BoundedSemaphore(VALUES_AT_ONCE)
    answers = _answers_of(source, pages, Mask(mask), turns)
    if source.tiers is not None:
        of_redis = _answers_of(Source(source.tiers.hot), Pages({**about, "has_cold": False}), Mask(mask), turns)
        fallback = FallbackToRedis(say)
        answers = {name: fallback.around(answer, of_redis[name]) for name, answer in answers.items()}
    routes = [Route(f"/{name}", answer) for name, answer in answers.items()]
    for name, kind in STATIC.items():
        headers = {"cache-control": "private, max-age=300"}
        routes.append(Route(f"/static/{name}", Response(static_file(name), media_type=kind, headers=headers)))
    if allow_changes:
        routes.append(Route("/change", partial(_change, source.saver, secret), methods=["POST"]))

    statuses: dict[type[Exception], int] = {
        ThreadNotFound: _NOT_FOUND, Refused: 400, NotImplementedError: 400, RedisSaverError: 500,
        **dict.fromkeys(source.failures, 503),
    }  # fmt: skip

    def fail(request: Request, error: Exception) -> Response:
        status = next(status for kind, status in statuses.items() if isinstance(error, kind))
        is_thread = request.url.path.endswith("/thread") and status == _NOT_FOUND
        near = source.near(asked(request).get("id", "")) if is_thread else ()
        return pages.page(request, "error", status=status, wrong=say(error), near=near)

    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=token, hosts=hosts)],
        exception_handlers=dict.fromkeys(statuses, fail),
    )


def _answers_of(source: Source, pages: Pages, mask: Mask, turns: BoundedSemaphore) -> dict[str, Answer]:
    """The functions that answer, by the path of their page. Those that read values do so only while few others do."""
    threads, checkpoints = ThreadPages(source), CheckpointPages(source, mask)
    light = (threads.newer, threads.cost, threads.channel, threads.writes)
    heavy = (threads.thread, checkpoints.checkpoint, checkpoints.value, checkpoints.first, checkpoints.diff)

    def answering(make: Callable[[Query], Values], turn: AbstractContextManager[Any]) -> Answer:
        def answer(request: Request) -> Response:
            with turn:
                return pages.page(request, make.__name__, **make(asked(request)))

        return answer

    answers = {"": answering(threads.threads, nullcontext())}
    answers |= {make.__name__: answering(make, nullcontext()) for make in light}
    return answers | {make.__name__: answering(make, turns) for make in heavy}


def _said(error: Exception, *, is_masked: bool) -> str:
    """Word an error for a page. With a mask, leave out the words of a serializer, which may quote values."""
    if is_masked and isinstance(error, (DecodeError, EncodeError)):
        return log_text(error)
    is_ours = isinstance(error, (RedisSaverError, Refused, NotImplementedError))
    return printable(str(error)) if is_ours else error_text(error)


MAX_FORM = 10_000
"""Bytes of a form."""


async def _change(saver: Any, form_token: str, request: Request) -> Response:
    """Do what a form says, then lead back to the thread, or to all threads if it is gone."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM:
            return PlainTextResponse("The form is too long.", 413)
    form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    if not hmac.compare_digest(form.get("form", "").encode(), form_token.encode()):
        return PlainTextResponse("The form is none of this inspector. Load the page again.", 403)
    thread = asked(request).get("id", "")
    await run_in_threadpool(_do, saver, thread, form)
    root = request.scope.get("root_path", "").rstrip("/")
    is_gone = form.get("do") == "delete"
    return RedirectResponse(f"{root}/" if is_gone else f"{root}/thread?{query_of({'id': thread})}", 303)


def _do(saver: Any, thread: str, form: Mapping[str, str]) -> None:
    what, ttl = form.get("do"), form.get("ttl", "").strip()
    if what == "ttl":
        try:
            ttls.parse(ttl or None, name="TTL")
        except ValueError as error:
            raise Refused(str(error)) from error
        saver.set_thread_ttl(thread, ttl or None)
    elif what == "pin":
        saver.pin(thread)
    elif what == "unpin":
        saver.unpin(thread)
    elif what == "delete":
        if form.get("sure") != "yes":
            raise Refused('tick "delete all its history" first; nothing was deleted')
        saver.delete_thread(thread)
    else:
        raise Refused("the form says nothing that can be done")


SLOW = 0.5
"""Seconds. A cold tier that takes longer to fail is not asked again by the next page."""
ASK_AGAIN = 15.0
"""Seconds after which a page asks a slow cold tier again."""


class FallbackToRedis:
    """Pages of both tiers; of Redis alone while the cold tier fails, with a notice that says so.

    A page about a thread that Redis does not have, or about what Redis cannot tell, asks the cold tier each time.
    """

    def __init__(self, say: Callable[[Exception], str]) -> None:
        """Word the errors by `say`."""
        self._say = say
        self._failed = (-math.inf, "")
        """When the cold tier last failed slowly, and how."""

    def around(self, page: Answer, of_redis: Answer) -> Answer:
        """The page with this fallback.

        Args:
            page: Answers from both tiers.
            of_redis: Answers from Redis alone.
        """

        def from_redis(request: Request, notice: str) -> Response:
            request.state.without_cold = notice
            return of_redis(request)

        def answer(request: Request) -> Response:
            arguments = asked(request)
            # The page is about cold's checkpoints, or lists threads by what cold lacks.
            is_about_cold = arguments.get("tier") == "cold" or bool(arguments.get("dirty"))
            failed_at, notice = self._failed
            if not is_about_cold and time.monotonic() - failed_at < ASK_AGAIN:
                try:
                    return from_redis(request, notice)
                except ThreadNotFound:
                    request.state.without_cold = ""
            began = time.monotonic()
            try:
                found = page(request)
            except postgres.failures() as error:
                notice, now = self._say(error), time.monotonic()
                if now - began > SLOW:
                    self._failed = now, notice
                if is_about_cold:
                    raise
                try:
                    return from_redis(request, notice)
                except ThreadNotFound:
                    raise error from None
            self._failed = (-math.inf, "")
            return found

        return answer
