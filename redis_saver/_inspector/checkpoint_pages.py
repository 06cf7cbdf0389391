"""The pages about checkpoints and their values. A method for each page returns the values of its template."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from redis_saver._checkpoint.auditing import Size
from redis_saver._common.config import Address, address
from redis_saver._inspector.pages import (
    Query,
    Refused,
    Values,
    address_in,
    address_text,
    needed,
    number,
    pairs,
    position_in,
    read_address,
)
from redis_saver._inspector.rows import EMPTIED, PREVIEWED, is_own, is_routine, task_state, upcoming
from redis_saver._inspector.source import Source, elements_of, entry_of
from redis_saver._inspector.values import (
    CHILDREN,
    At,
    Hides,
    Trees,
    chat,
    has_failed,
    is_chat,
    messages_in,
    part,
    plain,
    questions_in,
    reads_as_chat,
    unpacked,
    used_tokens,
    visible,
)
from redis_saver.errors import LimitExceeded

LARGE = 8_000_000
"""Maximum total bytes, as stored, of the values that a page reads. JSON has all values."""

FEW = 10
"""Minimum number of messages of a chat on the page of a checkpoint, if the newest turn is shorter."""


class Large(Exception):
    """A page needs values that are too large for it."""

    def __init__(self, size: int) -> None:
        """Keep their size in bytes, as stored."""
        super().__init__(size)
        self.size = size


class _Part(NamedTuple):
    """The part of a channel's value that a page shows."""

    saved: CheckpointTuple
    channel: str
    at: At
    names: list[Any]
    """Keys, fields and positions that lead to the part."""
    value: Any
    is_hidden: bool

    @property
    def location(self) -> Values:
        """Template values that locate the part. If one name on the way is hidden, all are."""
        names = ["…"] * len(self.names) if self.is_hidden else self.names
        return {"where": address(self.saved.config), "channel": self.channel, "at": self.at, "names": names}


class CheckpointPages:
    """The pages about checkpoints."""

    def __init__(self, source: Source, hides: Hides) -> None:
        """Show the checkpoints of a saver. `hides` hides values by names."""
        self._source, self._small, self._hides = source, Source(source.saver, LARGE), hides

    def checkpoint(self, arguments: Query) -> Values:
        """Show a checkpoint with its values, pending writes and costs."""
        saved, sizes, left_out = self._saved(arguments, partly=True)
        where = address(saved.config)
        parent = address(saved.parent_config) if saved.parent_config else None
        values, trees, children = saved.checkpoint["channel_values"], Trees(self._hides), self._source.children(where)
        nodes = upcoming(entry_of(saved), values)
        ordered = sorted(values, key=lambda name: (is_own(name), name))
        costs = sorted(sizes.items(), key=lambda cost: -cost[1].bytes)
        return {
            "where": where, "parent": parent, "about": saved.metadata, "created": saved.checkpoint.get("ts") or "-",
            "channels": [self._channel(trees, name, values[name]) for name in ordered],
            "unreduced": self._unreduced(trees, saved, left_out), "left_out": left_out,
            "costs": costs, "most": max((size.bytes for _, size in costs), default=0),
            "metadata": [trees.tree(name, value) for name, value in (saved.metadata or {}).items()],
            "next": nodes, "written": self._written(trees, saved), "children": children,
            "code": _code(saved, nodes, is_newest=not children), "called_by": self._caller(saved),
        }  # fmt: skip

    def _caller(self, saved: CheckpointTuple) -> Address | None:
        """Return the checkpoint of the root that called the subgraph of a checkpoint, if Redis has it."""
        where, parents = address(saved.config), dict(saved.metadata).get("parents")
        caller = Address(where.thread_id, "", parents.get("") if isinstance(parents, Mapping) else None)
        is_known = where.checkpoint_ns and isinstance(caller.checkpoint_id, str) and self._source.has(caller)
        return caller if is_known else None

    def _saved(
        self, arguments: Query, channel: str | None = None, *, partly: bool = False, of_any_size: bool = False
    ) -> tuple[CheckpointTuple, Mapping[str, Size], Mapping[str, int]]:
        """Read the checkpoint that a URL names.

        Args:
            arguments: The URL's arguments.
            channel: The only channel that the page needs.
            partly: True if the page can do without large values.
            of_any_size: True to read large values, too.

        Returns:
            The checkpoint; the sizes of its values in Redis; and the sizes of those that were not read.

        Raises:
            Large: Values that the page needs are too large.
        """
        asked = address_in(arguments)
        measured = self._source.measured(asked, PREVIEWED)
        if measured is None and "ns" not in arguments and not asked.checkpoint_id:  # the root has none
            for entry in self._source.entries(asked.thread_id, None, None, 1):
                asked = asked._replace(checkpoint_ns=entry.ns, checkpoint_id=entry.id)
                measured = self._source.measured(asked, PREVIEWED)
        if measured is None:
            return self._source.get(asked), {}, {}
        entry, sizes = measured
        total = sum(size.bytes for size in sizes.values()) + sum(write.size for write in entry.writes)
        if total <= LARGE:
            with suppress(LimitExceeded):  # they are compressed
                return self._small.get(asked), sizes, {}
        if of_any_size and channel is None:
            return self._source.get(asked), sizes, {}
        wanted = sizes if channel is None else {name: size for name, size in sizes.items() if name == channel}
        source, most = (self._source, math.inf) if of_any_size else (self._small, LARGE)
        saved, left_out = source.partly(asked.thread_id, entry, wanted, most)
        if left_out and not partly:
            raise Large(sum(left_out.values()))
        return saved, sizes, left_out

    def json(self, arguments: Query) -> Values:
        """Return a checkpoint, or a part of a channel's value, as JSON, without what the mask hides."""
        hides = self._hides
        if "channel" in arguments:
            shown = self._part(arguments, of_any_size=True)
            value: Any = "masked" if shown.is_hidden else plain(shown.value, hides)
        else:
            saved = self._saved(arguments, of_any_size=True)[0]
            names = ("task_id", "channel", "value")
            whole = {
                **address(saved.config)._asdict(), "metadata": saved.metadata,
                "parent": saved.parent_config and address(saved.parent_config).checkpoint_id,
                "channels": saved.checkpoint["channel_values"],
            }  # fmt: skip
            writes = saved.pending_writes or ()
            shown_writes = [
                dict(zip(names, (task, name, "masked" if hides(name) else plain(one, hides)), strict=True))
                for task, name, one in writes
            ]
            value = {**plain(whole, hides), "pending_writes": shown_writes}
        return {"json": json.dumps(value, ensure_ascii=True, indent=1).replace("<", "\\u003c").encode()}

    def _channel(self, trees: Trees, name: str, value: Any, *, is_stored: bool = True) -> Values:
        """Show a channel as a chat if it is a list or a snapshot of messages, else as a tree.

        Of a stored chat it shows the newest turn. Another page has the older messages.
        """
        about, (at, messages) = {"name": name, "is_own": is_own(name)}, unpacked(value)
        if self._hides(name) or not reads_as_chat(messages):
            return {**about, "chat": None, "tree": trees.tree(name, value)}
        asked = max((at for at, message in enumerate(messages_in(messages)) if message.type == "human"), default=0)
        first = max(0, len(messages) - CHILDREN, min(asked, len(messages) - FEW) if is_stored else 0)
        shown = chat(trees, messages, first, at)
        tokens = sum(map(used_tokens, messages_in(messages)))
        older = max(0, asked - first)
        return {**about, "chat": shown, "first": first, "at": at, "tokens": tokens, "older": older}

    def _unreduced(self, trees: Trees, saved: CheckpointTuple, left_out: Collection[str]) -> list[Values]:
        """Show the last snapshot and later writes of channels without a value. Only the graph can reduce them."""
        values, versions = saved.checkpoint["channel_values"], saved.checkpoint["channel_versions"]
        missing = [name for name in versions if name not in {*values, *left_out, *EMPTIED} and not is_own(name)]
        large = self._small.large_histories(address(saved.config), missing)
        channels: list[Values] = [{"name": name, "size": size} for name, size in large.items()]
        missing = [name for name in missing if name not in large]
        for name, history in sorted(self._small.histories(address(saved.config), missing).items()):
            writes = [value for _, _, value in history["writes"]]
            if not writes:
                continue  # the channel was emptied
            flat = elements_of(history)
            value = flat if is_chat(flat) else {**history, "writes": writes}
            channel = self._channel(trees, name, value, is_stored=False)
            channels.append({**channel, "size": None, "writes": len(writes)})
        return channels

    def _written(self, trees: Trees, saved: CheckpointTuple) -> list[Values]:
        """Show the pending writes by task, with interrupts and errors."""
        tasks: dict[str, Values] = {}
        for task, channel, value in saved.pending_writes or ():
            one = tasks.setdefault(task, {"task": task, "writes": [], "questions": [], "errors": [], "tool": False})
            one["writes"].append({"channel": channel, "is_own": is_own(channel), "tree": trees.tree(channel, value)})
            if channel == ERROR:
                one["errors"].append(trees.tree(channel, value))
            elif channel == INTERRUPT:
                for question, schema in questions_in(value):
                    one["questions"].append((trees.tree(channel, question), schema and trees.tree("schema", schema)))
            one["tool"] = one["tool"] or any(map(has_failed, messages_in(value)))
        for one in tasks.values():
            state = task_state([write["channel"] for write in one["writes"]])
            one["state"] = "caller" if one["task"] == _CALLER else state or ("tool failed" if one["tool"] else "done")
        return list(tasks.values())

    def value(self, arguments: Query) -> Values:
        """Show a page of a part of a channel's value."""
        shown, first, trees = self._part(arguments), number(arguments, "first"), Trees(self._hides)
        tree, messages = None, None
        if shown.is_hidden:
            tree = trees.masked(shown.channel, shown.value, shown.at)
        elif reads_as_chat(shown.value):
            messages = chat(trees, shown.value, first, shown.at)
        else:
            tree = trees.tree((shown.channel, *shown.names)[-1], shown.value, shown.at, first, whole=True)
        count = len(shown.value) if tree is None else tree.count
        page = {"first": first, "length": CHILDREN, "count": count}
        return {**shown.location, **page, "tree_": tree, "messages": messages}

    def _part(self, arguments: Query, *, of_any_size: bool = False) -> _Part:
        """Read the part of a value that a URL names.

        Raises:
            Refused: The checkpoint has no such part.
        """
        where, channel, at = address_in(arguments), needed(arguments, "channel"), position_in(arguments)
        saved = self._saved({**arguments, "ns": where.checkpoint_ns}, channel, of_any_size=of_any_size)[0]
        values = saved.checkpoint["channel_values"]
        if channel not in values:
            raise Refused("this checkpoint has no value in that channel")
        try:
            names, value = part(values[channel], at)
        except LookupError as error:
            raise Refused(str(error)) from None
        return _Part(saved, channel, at, names, value, any(self._hides(name) for name in (channel, *names)))

    def diff(self, arguments: Query) -> Values:
        """Show the differences between two checkpoints."""
        places = [dict(pairs(address_text(read_address(needed(arguments, name))))) for name in ("a", "b")]
        first, second = (self._saved(place)[0] for place in places)
        compared, trees = self._small.compare(first, second), Trees(self._hides)
        channels = []
        for diff in compared.channels:
            changes = [self._change(trees, diff.channel, change) for change in diff.changes[:CHILDREN]]
            more = max(0, len(diff.changes) - CHILDREN)
            about = {"name": diff.channel, "is_own": is_routine(diff.channel), "kind": diff.kind}
            channels.append({**about, "changes": changes, "more": more})
        of_both = address(first.config), address(second.config)
        name = of_both[1].thread_id
        return {"name": name, "places": of_both, "channels": channels, "not_compared": compared.not_compared}

    def _change(self, trees: Trees, channel: str, change: Any) -> Values:
        steps = (channel, *change.path)
        hidden = next((at for at, step in enumerate(steps) if self._hides(step)), None)
        make, name, path = (trees.tree if hidden is None else trees.masked), steps[-1], change.path
        if hidden is not None:  # names below a hidden one are hidden, too
            path = (*path[:hidden], *(["…"] if len(path) > hidden else ()))
        before = None if change.kind == "added" else make(name, change.before)
        after = None if change.kind == "removed" else make(name, change.after)
        return {"path": path, "before": before, "after": after}


_CALLER = "00000000-0000-0000-0000-000000000000"
"""Task id of writes by a caller."""


def _code(saved: CheckpointTuple, nodes: Sequence[str], *, is_newest: bool) -> str:
    """Return the lines of Python that resume and edit, with the real ids. LangGraph resumes only the newest one."""
    where = address(saved.config)
    values = [value for _, channel, value in saved.pending_writes or () if channel == INTERRUPT]
    asked = [each for value in values if isinstance(value, (list, tuple)) for each in value]
    resume, config = "None", "config"
    if asked and is_newest:
        resume = f"Command(resume={ {str(getattr(each, 'id', '')): 'yes' for each in asked}!r})"
        config = f"{{'configurable': {{'thread_id': {where.thread_id!r}}}}}"
    node = f", as_node={nodes[0]!r}" if nodes else ""
    what = "answers" if asked and is_newest else "runs on from here, and calls tools again"
    edit = f"as if {nodes[0]} had written this instead of running" if nodes else "in a fork"
    lines = (
        f"config = {{'configurable': {where._asdict()!r}}}",
        f"graph.invoke({resume}, {config})  # {what}",
        "# or",
        f"new = graph.update_state(config, {{'messages': []}}{node})  # {edit}",
        "graph.invoke(None, new)",
    )
    return visible("\n".join(lines))
