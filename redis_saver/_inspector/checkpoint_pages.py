"""The pages about checkpoints and their values, each with the function that answers it, in a worker thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from starlette.requests import Request
from starlette.responses import Response

from redis_saver._common.config import Address, address
from redis_saver._inspector import arguments, first_change, tasks
from redis_saver._inspector.arguments import Refused, asked, needed, number, read_address
from redis_saver._inspector.rendering import Pages
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import CHILDREN, At, Mask, Trees, chat, is_chat, part, unpacked

_OWN = ("__", "branch:", "join:")
"""What the names of LangGraph's own channels begin with."""


class _Part(NamedTuple):
    """The part of a channel's value that a page is about."""

    found: CheckpointTuple
    channel: str
    at: At
    names: list[Any]
    """The steps that lead there."""
    value: Any
    is_hidden: bool

    @property
    def said(self) -> dict[str, Any]:
        """What pages say of where it is. Under a name that is hidden, no other one is shown."""
        return {
            "where": address(self.found.config),
            "channel": self.channel,
            "at": self.at,
            "names": ["…" if self.is_hidden else one for one in self.names],
        }


class CheckpointPages:
    """The pages about checkpoints."""

    def __init__(self, source: Source, pages: Pages, mask: Mask) -> None:
        """Show what a saver has, masked."""
        self._source, self._pages, self._mask = source, pages, mask

    def checkpoint(self, request: Request) -> Response:
        """A checkpoint with its values, pending writes and costs."""
        given = asked(request)
        place = arguments.place(given)
        found = self._source.get(place) if "ns" in given else self._newest(place)
        where = address(found.config)
        parent = address(found.parent_config) if found.parent_config else None
        values = found.checkpoint["channel_values"]
        sizes = self._source.sizes(where, parent)
        ordered = sorted(values, key=lambda one: (one.startswith(_OWN), one))
        trees = Trees(self._mask)
        channels = [self._channel(trees, name, values[name]) for name in ordered]
        costs = sorted(sizes.items(), key=lambda one: -one[1].bytes)
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
            parts = [*([unpacked(history["seed"])[1]] if "seed" in history else ()), *writes]
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
        one, first, trees = self._part(given), number(given, "first"), Trees(self._mask)
        said, tree = None, None
        if one.is_hidden:
            tree = trees.masked(one.channel, one.value, one.at)
        elif is_chat(one.value):
            said = chat(trees, self._mask, one.value, first, one.at)
        else:
            tree = trees.tree((one.channel, *one.names)[-1], one.value, one.at, first, whole=True)
        count = len(one.value) if tree is None else tree.count
        return self._pages.page(
            request, "value.html", **one.said, first=first, length=CHILDREN, count=count, tree_=tree, said=said
        )

    def first(self, request: Request) -> Response:
        """Where a value, or a part of it, became what it is."""
        one = self._part(asked(request))
        change = first_change.find(self._source, one.found, one.channel, one.names, one.at)
        return self._pages.page(request, "first.html", **one.said, change=change)

    def _part(self, given: dict[str, str]) -> _Part:
        """The part of a value that a URL names.

        Raises:
            Refused: The checkpoint has no such part.
        """
        where, channel, at = arguments.place(given), needed(given, "channel"), arguments.at(given)
        found = self._source.get(where)
        values = found.checkpoint["channel_values"]
        if channel not in values:
            raise Refused("this checkpoint has no value in that channel")
        try:
            names, value = part(values[channel], at)
        except LookupError as error:
            raise Refused(str(error)) from None
        return _Part(found, channel, at, names, value, any(self._mask.hides(one) for one in (channel, *names)))

    def diff(self, request: Request) -> Response:
        """What differs between two checkpoints."""
        given = asked(request)
        first, second = (self._source.get(read_address(needed(given, name))) for name in ("a", "b"))
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
        return self._pages.page(
            request, "diff.html", name=places[1].thread_id, places=places, channels=channels,
            not_compared=found.not_compared,
        )  # fmt: skip

    def _change(self, trees: Trees, channel: str, change: Any) -> dict[str, Any]:
        steps = (channel, *change.path)
        hidden = next((at for at, step in enumerate(steps) if self._mask.hides(step)), None)
        make, name, path = (trees.tree if hidden is None else trees.masked), steps[-1], change.path
        if hidden is not None:  # under a name that is hidden, no other one is shown
            path = (*path[:hidden], *(["…"] if len(path) > hidden else ()))
        return {
            "kind": change.kind,
            "path": path,
            "before": None if change.kind == "added" else make(name, change.before),
            "after": None if change.kind == "removed" else make(name, change.after),
        }


def _about(found: CheckpointTuple) -> dict[str, Any]:
    about: Any = found.metadata
    return dict(about or {})
