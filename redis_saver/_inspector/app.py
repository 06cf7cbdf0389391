"""The inspector as an ASGI application."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from threading import BoundedSemaphore

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from redis_saver._common.display import error_text, printable, shown
from redis_saver._common.logs import log_text
from redis_saver._inspector.arguments import Refused, asked
from redis_saver._inspector.changes import Changes
from redis_saver._inspector.checkpoint_pages import CheckpointPages
from redis_saver._inspector.guard import LOOPBACK, Guard, form_token
from redis_saver._inspector.rendering import STATIC, Pages, static_file
from redis_saver._inspector.source import Source
from redis_saver._inspector.thread_pages import ThreadPages
from redis_saver._inspector.values import Mask
from redis_saver._inspector.without_cold import FallbackToRedis
from redis_saver.errors import DecodeError, EncodeError, RedisSaverError, ThreadNotFound

_NOT_FOUND = 404
VALUES_AT_ONCE = 2
"""The number of pages that read values at the same time. More wait, because each may hold a few times the bytes of a checkpoint."""
TOKEN_VARIABLE = "REDIS_SAVER_INSPECTOR_TOKEN"  # noqa: S105 - the name of a variable


def app(
    saver: object,
    *,
    token: str | None = None,
    hosts: Sequence[str] = LOOPBACK,
    mask: Sequence[str] = (),
    allow_changes: bool = False,
) -> Starlette:
    """The inspector over a saver, to serve, or to mount in a service.

    Each page is answered in a worker thread, so no event loop waits for it, and holds a page of what there is in memory. Without
    `allow_changes` nothing is written to Redis, and no deadline moves.

    Args:
        saver: A `RedisSaver`, `AsyncRedisSaver`, `TieredSaver` or `AsyncTieredSaver`. Values are decoded by its serializer.
        token: Who opens a page with `?token=...` may look, and gets a cookie for all others. None: what `REDIS_SAVER_INSPECTOR_TOKEN` says
            in the environment. Empty: everybody may look; what the application is mounted in has to check who asks.
        hosts: Names under which the pages are reached, without a port; requests with another one in their Host header are refused. `"*"`:
            any.
        mask: Patterns, such as `"*token*"`. What stands under a channel, a key or a field whose name matches one is not shown. `"*"`: no
            values.
        allow_changes: Whether threads can be deleted, pinned, unpinned, and given another TTL. It needs a token.

    Raises:
        TypeError: The saver is none of this package, or `hosts` or `mask` is one text.
        ValueError: Nobody said who may look, or everybody could change threads.
    """
    for name, given in (("hosts", hosts), ("mask", mask)):
        if isinstance(given, (str, bytes)):
            raise TypeError(f"{name}={shown(given)}: write a list, such as [{shown(given)}]")
    token = os.environ.get(TOKEN_VARIABLE) if token is None else token
    if token is None:
        raise ValueError(
            f'who may look? Write token="..." (or {TOKEN_VARIABLE} in the environment); token="" only where what the inspector is mounted in checks that'
        )
    if allow_changes and not token:
        raise ValueError("allow_changes=True needs a token, which protects the forms")
    source, secret = Source(saver), form_token(token)
    say = partial(_said, is_masked=bool(mask))
    about = {"allow_changes": allow_changes, "form_token": secret, "has_cold": source.tiers is not None, "say": say}
    pages = Pages(about)
    turns = BoundedSemaphore(VALUES_AT_ONCE)
    shown_pages = _pages_of(source, pages, mask, turns)
    if source.tiers is not None:
        of_redis = _pages_of(Source(source.tiers.hot), Pages({**about, "has_cold": False}), mask, turns)
        fallback = FallbackToRedis(say)
        shown_pages = {name: fallback.around(page, of_redis[name]) for name, page in shown_pages.items()}
    routes = [Route(f"/{name}", page) for name, page in shown_pages.items()]
    routes += [Route(f"/static/{name}", _Static(name)) for name in STATIC]
    if allow_changes:
        routes.append(Route("/change", Changes(source, secret).change, methods=["POST"]))

    statuses: dict[type[Exception], int] = {ThreadNotFound: _NOT_FOUND, Refused: 400, NotImplementedError: 400}
    statuses[RedisSaverError] = 500
    statuses.update(dict.fromkeys(source.failures, 503))

    def fail(request: Request, error: Exception) -> Response:
        status = next(status for kind, status in statuses.items() if isinstance(error, kind))
        near = (
            source.near(asked(request).get("id", ""))
            if request.url.path.endswith("/thread") and status == _NOT_FOUND
            else ()
        )
        return pages.page(request, "error.html", status=status, wrong=say(error), near=near)

    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=token, hosts=hosts)],
        exception_handlers=dict.fromkeys(statuses, fail),
    )


def _pages_of(
    source: Source, pages: Pages, mask: Sequence[str], turns: BoundedSemaphore
) -> Mapping[str, Callable[[Request], Response]]:
    """The functions that answer, by the path of their page."""
    threads, checkpoints = ThreadPages(source, pages), CheckpointPages(source, pages, Mask(mask))
    light = (threads.newer, threads.cost, threads.channel, threads.writes)
    heavy = (threads.thread, checkpoints.checkpoint, checkpoints.value, checkpoints.first, checkpoints.diff)
    return {
        "": threads.threads,
        **{page.__name__: page for page in light},
        **{page.__name__: _in_turn(page, turns) for page in heavy},
    }


def _in_turn(page: Callable[[Request], Response], turns: BoundedSemaphore) -> Callable[[Request], Response]:
    """A page that reads values only while few others do."""

    @wraps(page)
    def answer(request: Request) -> Response:
        with turns:
            return page(request)

    return answer


def _said(error: Exception, *, is_masked: bool) -> str:
    """What a page says of an error; where values are masked, without the words of a serializer, which may quote them."""
    if is_masked and isinstance(error, (DecodeError, EncodeError)):
        return log_text(error)
    is_ours = isinstance(error, (RedisSaverError, Refused, NotImplementedError))
    return printable(str(error)) if is_ours else error_text(error)


class _Static:
    """A file that pages refer to."""

    def __init__(self, name: str) -> None:
        self._content, self._type = static_file(name), STATIC[name]

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        answer = Response(self._content, media_type=self._type, headers={"cache-control": "private, max-age=300"})
        await answer(scope, receive, send)  # type: ignore[arg-type]
