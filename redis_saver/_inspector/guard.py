"""The check of each request to the inspector: its token, its Host header, its origin."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redis_saver._inspector.pages import Refused, pairs

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
