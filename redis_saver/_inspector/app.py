"""The inspector as an ASGI application: routes, forms, the fallback while Postgres fails, and the guard."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from importlib import import_module
from threading import BoundedSemaphore
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redis_saver._common import postgres, ttl as ttls
from redis_saver._common.display import counted, error_text, printable, shown
from redis_saver._common.logs import log_text
from redis_saver._inspector import manual_pages
from redis_saver._inspector.checkpoint_pages import LARGE, CheckpointPages, Large
from redis_saver._inspector.memory import memory_of
from redis_saver._inspector.memory_pages import MemoryPages
from redis_saver._inspector.pages import (
    STATIC,
    Pages,
    Query,
    Refused,
    Values,
    asked,
    number,
    pairs,
    query_of,
    root_of,
    static_file,
)
from redis_saver._inspector.source import Source
from redis_saver._inspector.thread_pages import ThreadPages
from redis_saver._inspector.values import Mask, nothing, size
from redis_saver._store.store import Store
from redis_saver.errors import ColdTimeout, DecodeError, EncodeError, RedisSaverError, ThreadNotFound

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
TOKEN = "token"  # noqa: S105 - the name of an argument
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
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
    answers = _answers_of(source, pages, Mask(mask), turns, fallback.check)
    if source.tiers is not None:
        of_redis = _answers_of(Source(source.tiers.hot), Pages({**about, "has_cold": False}), Mask(mask), turns)
        answers = {name: fallback.around(answer, of_redis[name]) for name, answer in answers.items()}
    memory = MemoryPages(memory_of(source.hot, store), Mask(mask))
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
    mask: Mask,
    turns: BoundedSemaphore,
    check: Callable[[Request], None] | None = None,
) -> dict[str, Answer]:
    """Return a function for each path. Pages that read values wait until one of the `turns` is free, and then check."""
    threads, checkpoints = ThreadPages(source, mask.hides if mask else nothing), CheckpointPages(source, mask)
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
    """Show what a form does. If its user has confirmed that, do it, and redirect to the changed thread."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM:
            return PlainTextResponse("The form is too long.", 413)
    form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    if not hmac.compare_digest(form.pop("form", "").encode(), form_token.encode()):
        return PlainTextResponse("The form is not from this inspector. Load the page again.", 403)
    root, arguments = root_of(request), asked(request)
    if "id" not in arguments:
        of_memory = await run_in_threadpool(memory.planned, arguments, form)
        if form.pop("sure", "") != "yes":
            return pages.page(request, "confirm_memory", about=arguments, fields=form, **of_memory._asdict())
        await run_in_threadpool(of_memory.run)
        to, its_arguments = of_memory.back
        return RedirectResponse(f"{root}/{to}{'?' if its_arguments else ''}{query_of(its_arguments)}", 303)
    thread = arguments["id"]
    change = await run_in_threadpool(_planned, source, thread, form)
    if form.pop("sure", "") != "yes":
        return pages.page(request, "confirm", name=thread, effect=change.effect, fields=form)
    await run_in_threadpool(change.run)
    is_gone, shown_next = form["do"] == "delete", form["to"] if form["do"] == "copy" else thread
    return RedirectResponse(f"{root}/" if is_gone else f"{root}/thread?{query_of({'id': shown_next})}", 303)


class _Change(NamedTuple):
    """A change of a thread."""

    effect: str
    """Sentences that say what it will do."""
    run: Callable[[], object]


def _planned(source: Source, thread: str, form: Mapping[str, str]) -> _Change:
    """Return the change that a form asks for.

    Raises:
        Refused: The form is invalid.
        ThreadNotFound: There is no such thread.
    """
    saver, info, what = source.saver, source.thread(thread), form.get("do")
    has = _amount(info.checkpoints, info.bytes)
    if what in ("pin", "unpin"):
        kept = "It will not expire until it is unpinned" if what == "pin" else "The saver's TTL will count from now"
        return _Change(f"{kept}. It has {has}, and expires now: {info.expires}.", partial(getattr(saver, what), thread))
    if what == "delete":
        return _Change(f"All its history, {has}, will be deleted for good.", partial(saver.delete_thread, thread))
    if what == "copy":
        return _planned_copy(source, thread, form)
    try:
        if what == "ttl":
            ttl = form.get("ttl", "").strip() or None
            ttls.parse(ttl, name="TTL")
            text = f"It will expire {ttl} after now and after each write" if ttl else "The saver's TTL will apply again"
            return _Change(
                f"{text}. It has {has}, and expires now: {info.expires}.", partial(saver.set_thread_ttl, thread, ttl)
            )
        if what == "prune":
            rules: Any = {
                "keep_last": number(form, "keep_last") or None,
                "older_than": form.get("older_than", "").strip() or None,
            }
            gone = saver.prune([thread], **rules, dry_run=True)
            text = f"{_amount(gone.checkpoints, gone.bytes)} will be removed for good, of {has}."
            return _Change(text, partial(saver.prune, [thread], **rules))
    except ValueError as error:
        raise Refused(str(error)) from error
    raise Refused("the form names no known action")


def _amount(checkpoints: int, amount: int) -> str:
    return f"{counted(checkpoints, 'checkpoint')} ({size(amount)})"


def _planned_copy(source: Source, thread: str, form: Mapping[str, str]) -> _Change:
    target, newest = form.get("to", ""), form.get("at", "")
    if source.tiers is not None:
        raise Refused("a copy up to a checkpoint needs a saver of one tier. The command redis-saver copy copies all")
    if not target or target == thread:
        raise Refused("write the name of another thread")
    count = sum((each.checkpoint_id or "") <= newest for each in source.addresses(thread))
    if not count:
        raise Refused("there is no such checkpoint")
    those = f"{counted(count, 'checkpoint')} up to {printable(newest)}, of the root and of subgraphs,"
    text = f"{those} will be copied to {shown(target)}. The pending writes of the last one of the root and of each "
    text += "subgraph are left out, so a resume runs their tasks again."
    if (there := source.in_redis(target)) is not None:
        text += f" It replaces that thread: {_amount(there.checkpoints, there.bytes)} will go."
    return _Change(text, partial(source.copy, thread, target, newest))


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


# -- access


class Guard:
    """Middleware that checks the token and the Host header of each request, and sets headers of answers."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Sequence[str]) -> None:
        """Guard the pages.

        Args:
            app: The pages.
            token: The token. Empty: the service around the pages checks requests.
            hosts: Allowed names in the Host header, without a port. `*` allows any name.
        """
        self._app, self._token = app, token
        self._hosts = {host.lower() for host in hosts}
        self._cookie = f"redis_saver_inspector_{hashlib.sha256(token.encode()).hexdigest()[:8]}"
        self._pass = derived(token, b"cookie")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        try:
            query = pairs(scope["query_string"].decode("latin-1"))
        except Refused as error:
            answer: Response | None = PlainTextResponse(f"{error}.", 400)
        else:
            answer = (
                self._refused_host(headers)
                or self._refused_origin(scope, headers)
                or self._entrance(scope, headers, query)
            )
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refused_host(self, headers: Headers) -> Response | None:
        """Refuse other host names, because a foreign site's name may resolve to this server (DNS rebinding)."""
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if "*" in self._hosts or name in self._hosts:
            return None
        return PlainTextResponse("The inspector does not serve this host name. Add it to hosts=.", 421)

    def _refused_origin(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse a change that does not come from the inspector's own pages."""
        if scope["method"] in ("GET", "HEAD"):
            return None
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        is_ours = origin is None or origin.partition("://")[2] == headers.get("host")
        if is_ours and site in ("same-origin", "none"):
            return None
        return PlainTextResponse("The request is not from a page of the inspector.", 403)

    def _entrance(self, scope: Scope, headers: Headers, query: list[tuple[str, str]]) -> Response | None:
        """Check the token in the URL, the cookie or the Authorization header.

        A token in the URL sets the cookie and redirects to the same URL without the token.
        """
        if not self._token:
            return None
        token = next((value for name, value in query if name == TOKEN), None)
        if token is not None and self._is_token(token) and scope["method"] in ("GET", "HEAD"):
            return self._without_token(scope, [pair for pair in query if pair[0] != TOKEN])
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        cookie = Request(scope).cookies.get(self._cookie, "")
        if hmac.compare_digest(cookie.encode(), self._pass.encode()) or self._is_token(bearer):
            return None
        return PlainTextResponse("Open the URL with the token (?token=...), as redis-saver inspect prints it.", 403)

    def _without_token(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        path = "/" + quote(scope["path"].lstrip("/"))
        rest = f"?{urlencode(query, errors='surrogatepass')}" if query else ""
        answer = RedirectResponse(path + rest, 303)
        answer.set_cookie(
            self._cookie,
            self._pass,
            path=scope.get("root_path") or "/",
            secure=scope["scheme"] == "https",
            httponly=True,
            samesite="lax",  # links in a chat work; changes are checked by their origin and the form's token
        )
        return answer

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._token.encode())


def derived(token: str, purpose: bytes) -> str:
    """Derive a secret from the token. It does not reveal the token."""
    return hmac.new(token.encode(), purpose, hashlib.sha256).hexdigest()
