"""Pages over two tiers while the cold tier fails: what Redis has is shown, as that is when somebody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import wraps

from starlette.requests import Request
from starlette.responses import Response

from redis_saver._common import postgres
from redis_saver._inspector.arguments import asked
from redis_saver.errors import ThreadNotFound

Answer = Callable[[Request], Response]


SLOW = 0.5
"""Seconds. A cold tier that takes longer to fail is not asked again by the next page."""
ASK_AGAIN = 15.0
"""Seconds after which a page asks a slow cold tier again."""


class FallbackToRedis:
    """Pages of both tiers; of Redis alone while the cold tier fails, with a notice that says so.

    A page about a thread that Redis does not have, or about what Redis cannot tell, asks the cold tier each time.
    """

    def __init__(self, say: Callable[[Exception], str]) -> None:
        """`say`: what is shown of an error."""
        self._say = say
        self._failed: tuple[float, str] | None = None

    def around(self, page: Answer, of_redis: Answer) -> Answer:
        """The page with this fallback.

        Args:
            page: Answers from both tiers.
            of_redis: Answers from Redis alone.
        """

        @wraps(page)
        def answer(request: Request) -> Response:
            is_about_cold = _is_about_cold(asked(request))
            if not is_about_cold and (said := self._said_lately()):
                try:
                    return _of_redis(request, of_redis, said)
                except ThreadNotFound:
                    request.state.without_cold = ""
            began = time.monotonic()
            try:
                found = page(request)
            except postgres.failures() as error:
                said = self._say(error)
                now = time.monotonic()
                if now - began > SLOW:
                    self._failed = now, said
                if is_about_cold:
                    raise
                try:
                    return _of_redis(request, of_redis, said)
                except ThreadNotFound:
                    raise error from None
            self._failed = None
            return found

        return answer

    def _said_lately(self) -> str:
        """What is shown of a slow failure of the last seconds; empty if there was none."""
        at, said = self._failed or (0.0, "")
        return said if said and time.monotonic() - at < ASK_AGAIN else ""


def _of_redis(request: Request, of_redis: Answer, said: str) -> Response:
    request.state.without_cold = said
    return of_redis(request)


def _is_about_cold(given: Mapping[str, str]) -> bool:
    """Whether a page is about what only the cold tier has, or about what it lacks."""
    return given.get("tier") == "cold" or bool(given.get("dirty"))
