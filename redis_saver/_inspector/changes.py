"""What the pages may change, where that is allowed: delete, pin, unpin, the TTL."""

from __future__ import annotations

import hmac
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from redis_saver._common import ttl as ttls
from redis_saver._inspector.arguments import Refused, asked, query_of
from redis_saver._inspector.source import Source

MAX_FORM = 10_000
"""Bytes of a form."""


class Changes:
    """Forms that change a thread."""

    def __init__(self, source: Source, form_token: str) -> None:
        """Take forms that hold this token."""
        self._source, self._form_token = source, form_token

    async def change(self, request: Request) -> Response:
        """Do what a form says, then lead back to the thread, or to all threads if it is gone."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_FORM:
                return PlainTextResponse("The form is too long.", 413)
        form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        if not hmac.compare_digest(form.get("form", "").encode(), self._form_token.encode()):
            return PlainTextResponse("The form is none of this inspector. Load the page again.", 403)
        thread = asked(request).get("id", "")
        await run_in_threadpool(self._do, thread, form)
        root = request.scope.get("root_path", "").rstrip("/")
        is_gone = form.get("do") == "delete"
        return RedirectResponse(f"{root}/" if is_gone else f"{root}/thread?{query_of({'id': thread})}", 303)

    def _do(self, thread: str, form: dict[str, str]) -> None:
        saver: Any = self._source.saver
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
