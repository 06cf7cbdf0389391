"""The pages about threads, each with the function that answers it. Starlette runs these in worker threads, so no event loop waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from starlette.requests import Request
from starlette.responses import Response

from redis_saver._checkpoint import auditing
from redis_saver._checkpoint.auditing import Entry
from redis_saver._common.config import Address
from redis_saver._inspector import costs, graph
from redis_saver._inspector.arguments import address_text, asked, needed, number, read_address
from redis_saver._inspector.rendering import Pages
from redis_saver._inspector.source import Source
from redis_saver._inspector.text import state_of
from redis_saver._inspector.thread_list import found_threads, read_filters

ROWS = 100
"""Checkpoints on a page."""
COLD_ROWS = 30
"""Those of a cold saver, which sends their values, too."""
_STOP_ASKING = 286
"""The status with which htmx asks no more."""


class ThreadPages:
    """The list of threads, and the pages about one."""

    def __init__(self, source: Source, pages: Pages) -> None:
        """Show what a saver has."""
        self._source, self._pages = source, pages

    def threads(self, request: Request) -> Response:
        """Which threads there are."""
        given = asked(request)
        try:
            filters = read_filters(given)
        except ValueError as error:
            return self._pages.page(request, "threads.html", status=400, found=None, wrong=str(error))
        return self._pages.page(request, "threads.html", found=found_threads(self._source, filters), wrong="")

    def thread(self, request: Request) -> Response:
        """A thread as a tree of checkpoints."""
        given = asked(request)
        name = needed(given, "id")
        info = self._source.thread(name)
        hot = getattr(info, "hot", info)
        cold = given.get("tier") == "cold" or hot is None
        rows = COLD_ROWS if cold else ROWS
        found = self._source.entries(name, given.get("ns"), given.get("before"), rows + 1, cold=cold)
        by_place = {(one.ns, one.id): one for one in found}
        shown, older = _page(found, rows)
        chosen = read_address(given["a"]) if "a" in given else None
        told = [_told(name, one, by_place.get((one.ns, one.parent or ""))) for one in shown]
        lines = list(zip(shown, graph.drawn(shown), told, strict=True))
        return self._pages.page(
            request, "thread.html", name=name, info=info, lines=lines, older=older, cold=cold, chosen=chosen,
            seen=hot and _mark(hot),
        )  # fmt: skip

    def newer(self, request: Request) -> Response:
        """Whether a thread is another one than a page shows; what htmx asks. Nothing while it is the same: then the page stays as it is."""
        given = asked(request)
        name, seen = needed(given, "id"), needed(given, "seen")
        info = self._source.in_redis(name)
        if _mark(info) == seen or (info is None and self._source.tiers is not None):  # Redis lets go what cold has
            return Response(status_code=204)
        return self._pages.page(request, "newer.html", status=_STOP_ASKING, name=name, info=info)

    def cost(self, request: Request) -> Response:
        """What a thread costs."""
        given = asked(request)
        name = needed(given, "thread")
        info = self._source.thread(name)
        seconds = costs.MORE_SECONDS if given.get("long") == "yes" else costs.FIRST_SECONDS
        found = costs.measured(self._source, name, seconds)
        in_redis = getattr(info, "hot", info)
        return self._pages.page(
            request, "cost.html", name=name, info=info, in_redis=in_redis, found=found, seconds=costs.MORE_SECONDS
        )

    def channel(self, request: Request) -> Response:
        """The versions of a channel."""
        given = asked(request)
        name, channel, ns = needed(given, "thread"), needed(given, "channel"), given.get("ns", "")
        info = self._source.thread(name)
        found = self._source.history(name, channel, ns, ROWS + 1)
        most = max((one.bytes for one in found), default=0)
        return self._pages.page(
            request, "channel.html", name=name, info=info, channel=channel, ns=ns, found=found[:ROWS], most=most,
            more=len(found) > ROWS,
        )  # fmt: skip

    def writes(self, request: Request) -> Response:
        """Who wrote what."""
        given = asked(request)
        name = needed(given, "thread")
        info, limit = self._source.thread(name), min(max(number(given, "limit"), ROWS), 20 * ROWS)
        found = self._source.writes(name, given.get("ns"), limit + 1)
        more = min(limit * 2, 20 * ROWS) if len(found) > limit < 20 * ROWS else None
        return self._pages.page(request, "writes.html", name=name, info=info, found=found[:limit], more=more)


def _page(found: Sequence[Entry], rows: int) -> tuple[Sequence[Entry], str | None]:
    """A page of checkpoints, and the id that the next one is below. Checkpoints of several namespaces that share an id stay together."""
    if len(found) <= rows:
        return found, None
    end = next((at for at in range(rows, 0, -1) if found[at].id != found[at - 1].id), rows)
    return found[:end], found[end - 1].id


def _told(thread: str, one: Entry, parent: Entry | None) -> dict[str, Any]:
    """What a row says of a checkpoint."""
    channels = {write.channel for write in one.writes}
    state = "failed" if ERROR in channels else "interrupted" if INTERRUPT in channels else ""
    place = Address(thread, one.ns, one.id)
    ran = auditing.ran_between(parent, one) if parent or one.parent is None else ()
    return {
        "state": state,
        "tasks": len({write.task_id for write in one.writes}),
        "ran": ran,
        "place": address_text(place),
    }


def _mark(info: Any) -> str:
    """What shows that a thread is another one than before: its newest checkpoint, and its state. Nothing of one that is not in Redis."""
    return "" if info is None else f"{state_of(info)} {info.checkpoint_id}"
