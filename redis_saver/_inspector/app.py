"""The inspector as an ASGI application."""

from __future__ import annotations

import os
from collections.abc import Sequence

from redis.exceptions import RedisClusterException, RedisError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from redis_saver._common.display import printable, shown
from redis_saver._inspector.changes import Changes
from redis_saver._inspector.guard import LOOPBACK, Guard, form_token
from redis_saver._inspector.pages import Inspector
from redis_saver._inspector.rendering import STATIC, Pages, Refused, static_file
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import Mask
from redis_saver.errors import RedisSaverError, ThreadNotFound

TOKEN_VARIABLE = "REDIS_SAVER_INSPECTOR_TOKEN"  # noqa: S105 - the name of a variable
_STATUS: dict[type[Exception], int] = {
    ThreadNotFound: 404,
    RedisSaverError: 500,
    RedisError: 503,
    RedisClusterException: 503,
    NotImplementedError: 400,
    Refused: 400,
}


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
    pages = Pages({"allow_changes": allow_changes, "form_token": secret, "has_cold": source.tiers is not None})
    inspector = Inspector(source, pages, Mask(mask))
    shown_pages = ("thread", "checkpoint", "value", "first", "diff", "channel", "writes")
    routes = [
        Route("/", inspector.threads, name="threads"),
        *(Route(f"/{name}", getattr(inspector, name)) for name in shown_pages),
        *(Route(f"/static/{name}", _Static(name)) for name in STATIC),
    ]
    if allow_changes:
        routes.append(Route("/change", Changes(source, secret).change, methods=["POST"]))

    def fail(request: Request, error: Exception) -> Response:
        status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
        return pages.page(request, "error.html", status=status, wrong=printable(str(error)))

    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=token, hosts=hosts)],
        exception_handlers=dict.fromkeys(_STATUS, fail),
    )


class _Static:
    """A file that pages refer to."""

    def __init__(self, name: str) -> None:
        self._content, self._type = static_file(name), STATIC[name]

    async def __call__(self, scope: object, receive: object, send: object) -> None:
        answer = Response(self._content, media_type=self._type, headers={"cache-control": "private, max-age=300"})
        await answer(scope, receive, send)  # type: ignore[arg-type]
