"""The pages, each with the function that answers it. Starlette runs these in worker threads, so no event loop waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from starlette.requests import Request
from starlette.responses import Response

from redis_saver._checkpoint import auditing
from redis_saver._checkpoint.auditing import Entry
from redis_saver._common.config import Address, address
from redis_saver._inspector import first_change, graph, tasks
from redis_saver._inspector.rendering import Pages, Refused, address_text, asked, read_address
from redis_saver._inspector.source import Source
from redis_saver._inspector.thread_list import found_threads, read_filters
from redis_saver._inspector.values import CHILDREN, At, Mask, Trees, chat, is_chat, part, unpacked

ROWS = 100
"""Checkpoints on a page."""
COLD_ROWS = 30
"""Those of a cold saver, which sends their values, too."""
_OWN = ("__", "branch:", "join:")
"""What the names of LangGraph's own channels begin with."""


class Inspector:
    """The pages over a saver."""

    def __init__(self, source: Source, pages: Pages, mask: Mask) -> None:
        """Show what a saver has, masked."""
        self._source, self._pages, self._mask = source, pages, mask

    # -- threads

    def threads(self, request: Request) -> Response:
        """Which threads there are."""
        given = asked(request)
        try:
            filters = read_filters(given)
        except ValueError as error:
            return self._pages.page(request, "threads.html", status=400, found=None, wrong=str(error))
        found = found_threads(self._source, filters)
        return self._pages.page(request, "threads.html", found=found, wrong=found.problem)

    def thread(self, request: Request) -> Response:
        """A thread as a tree of checkpoints."""
        given = asked(request)
        name = _needed(given, "id")
        info = self._source.thread(name)
        hot = getattr(info, "hot", info)
        cold = given.get("tier") == "cold" or hot is None
        rows = COLD_ROWS if cold else ROWS
        found = self._source.entries(name, given.get("ns"), given.get("before"), rows + 1, cold=cold)
        by_place = {(one.ns, one.id): one for one in found}
        shown, older = _page(found, rows)
        told = [_told(name, one, by_place.get((one.ns, one.parent or ""))) for one in shown]
        lines = list(zip(shown, graph.drawn(shown), told, strict=True))
        return self._pages.page(request, "thread.html", name=name, info=info, lines=lines, older=older, cold=cold)

    # -- a checkpoint

    def checkpoint(self, request: Request) -> Response:
        """A checkpoint with its values, pending writes and costs."""
        given = asked(request)
        found = self._source.get(_place(given)) if "ns" in given else self._newest(_place(given))
        where = address(found.config)
        parent = address(found.parent_config) if found.parent_config else None
        values = found.checkpoint["channel_values"]
        sizes = self._source.sizes(where, parent, list(found.checkpoint["channel_versions"]))
        ordered = sorted(values, key=lambda one: (one.startswith(_OWN), one))
        trees = Trees(self._mask)
        channels = [self._channel(trees, name, values[name]) for name in ordered]
        costs = sorted(((name, sizes[name]) for name in sizes if sizes[name].bytes), key=lambda one: -one[1].bytes)
        return self._pages.page(
            request,
            "checkpoint.html",
            where=where,
            parent=parent,
            found=found,
            created=found.checkpoint.get("ts") or "-",
            channels=channels,
            unreduced=self._unreduced(trees, found),
            costs=costs,
            most=max((size.bytes for _, size in costs), default=0),
            measures_others=len(found.checkpoint["channel_versions"]) > len(sizes),
            metadata=[trees.tree(name, one) for name, one in _about(found).items()],
            next=tasks.next_nodes(found),
            written=self._written(trees, found),
        )

    def _newest(self, where: Address) -> CheckpointTuple:
        """A checkpoint of the root; the newest of any namespace where the root has none."""
        found = self._source.find(where)
        others = (
            [] if found or where.checkpoint_id else self._source.entries(where.thread_id, None, None, 1, cold=False)
        )
        return found or self._source.get(
            where._replace(checkpoint_ns=others[0].ns, checkpoint_id=others[0].id) if others else where
        )

    def _channel(self, trees: Trees, name: str, value: Any) -> dict[str, Any]:
        """What is shown of a channel: a chat, also of a snapshot of messages, or a tree."""
        made: dict[str, Any] = {"name": name, "tree": None, "chat": None, "first": 0, "at": ()}
        at, said = unpacked(value)
        if self._mask.hides(name) or not is_chat(said):
            return {**made, "tree": trees.tree(name, value)}
        first = max(0, len(said) - CHILDREN)
        return {**made, "chat": chat(trees, self._mask, said, first, at), "first": first, "at": at}

    def _unreduced(self, trees: Trees, found: CheckpointTuple) -> list[dict[str, Any]]:
        """Channels without a value: their last one, and what was written since. Only the graph could reduce these to a value."""
        have = found.checkpoint["channel_values"]
        asked = [one for one in found.checkpoint["channel_versions"] if one not in have and not one.startswith(_OWN)]
        shown = []
        for name, history in sorted(self._source.histories(address(found.config), asked).items()):
            writes = [value for _, _, value in history["writes"]]
            if not writes:
                continue  # it was emptied
            seed = history.get("seed")
            parts = [
                *([unpacked(seed)[1]] if "seed" in history else ()),
                *writes,
            ]
            flat = [one for part in parts for one in (part if isinstance(part, list) else [part])]
            made = self._channel(trees, name, flat if is_chat(flat) else {**history, "writes": writes})
            shown.append({**made, "writes": len(writes)})
        return shown

    def _written(self, trees: Trees, found: CheckpointTuple) -> Sequence[Any]:
        """Pending writes by task, interrupts and errors among them."""
        return [
            {
                "task": one.task_id,
                "state": one.state,
                "writes": [(name, trees.tree(name, value), name in (INTERRUPT, ERROR)) for name, value in one.writes],
            }
            for one in tasks.written(found)
        ]

    def value(self, request: Request) -> Response:
        """A part of a channel's value, in pages."""
        given = asked(request)
        where, channel, at = _place(given), _needed(given, "channel"), _at(given)
        first = _number(given, "first")
        found = self._source.get(where)
        names, value = self._part(found, channel, at)
        trees = Trees(self._mask)
        hidden = any(self._mask.hides(one) for one in (channel, *names))
        said = chat(trees, self._mask, value, first, at) if is_chat(value) and not hidden else None
        count = len(value) if said is not None else 0
        name = channel if hidden else names[-1] if names else channel
        tree = (
            None
            if said is not None
            else (trees.masked(name, value, at) if hidden else trees.tree(name, value, at, first, whole=True))
        )
        return self._pages.page(
            request,
            "value.html",
            where=address(found.config),
            channel=channel,
            at=at,
            names=["…" if hidden else one for one in names],
            first=first,
            length=CHILDREN,
            count=tree.count if tree else count,
            tree_=tree,
            said=said,
        )

    def _part(self, found: CheckpointTuple, channel: str, at: At) -> tuple[list[Any], Any]:
        values = found.checkpoint["channel_values"]
        if channel not in values:
            raise Refused("this checkpoint has no value in that channel")
        try:
            return part(values[channel], at)
        except LookupError as error:
            raise Refused(str(error)) from None

    def first(self, request: Request) -> Response:
        """Where a value, or a part of it, became what it is."""
        given = asked(request)
        where, channel, at = _place(given), _needed(given, "channel"), _at(given)
        found = self._source.get(where)
        names, _ = self._part(found, channel, at)
        change = first_change.find(self._source, found, channel, names, at)
        hidden = any(self._mask.hides(one) for one in (channel, *names))
        return self._pages.page(
            request,
            "first.html",
            where=address(found.config),
            channel=channel,
            at=at,
            names=["…" if hidden else one for one in names],
            change=change,
        )

    # -- comparisons and histories

    def diff(self, request: Request) -> Response:
        """What differs between two checkpoints."""
        given = asked(request)
        first, second = (self._source.get(read_address(_needed(given, name))) for name in ("a", "b"))
        found, trees = self._source.compare(first, second), Trees(self._mask)
        channels = [
            {
                "name": one.channel,
                "kind": one.kind,
                "changes": [self._change(trees, one.channel, change) for change in one.changes[:CHILDREN]],
                "more": max(0, len(one.changes) - CHILDREN),
            }
            for one in found.channels
        ]
        places = address(first.config), address(second.config)
        return self._pages.page(request, "diff.html", name=places[1].thread_id, places=places, channels=channels)

    def _change(self, trees: Trees, channel: str, change: Any) -> dict[str, Any]:
        hides = any(self._mask.hides(step) for step in (channel, *change.path))
        name = change.path[-1] if change.path else channel
        make = trees.masked if hides else trees.tree
        return {
            "kind": change.kind,
            "path": change.path,
            "before": None if change.kind == "added" else make(name, change.before),
            "after": None if change.kind == "removed" else make(name, change.after),
        }

    def channel(self, request: Request) -> Response:
        """The versions of a channel."""
        given = asked(request)
        name, channel, ns = _needed(given, "thread"), _needed(given, "channel"), given.get("ns", "")
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
        name = _needed(given, "thread")
        info, limit = self._source.thread(name), min(max(_number(given, "limit"), ROWS), 20 * ROWS)
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


def _place(given: dict[str, str]) -> Address:
    return Address(_needed(given, "thread"), given.get("ns", ""), given.get("id") or None)


def _needed(given: dict[str, str], name: str) -> str:
    if name not in given:
        raise Refused(f"this page needs {name}= in its URL")
    return given[name]


def _number(given: dict[str, str], name: str) -> int:
    text = given.get(name) or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Refused(f"{name}= in the URL is no number")
    return int(text)


def _at(given: dict[str, str]) -> At:
    return tuple(_number({"at": one}, "at") for one in given.get("at", "").split(".") if one)


def _about(found: CheckpointTuple) -> dict[str, Any]:
    about: Any = found.metadata
    return dict(about or {})
