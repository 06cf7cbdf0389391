"""Rows of lists of threads and of trees of checkpoints, as pages and commands show them."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, TASKS

from redis_saver._checkpoint.auditing import Entry, WriteHead, node_of, ran_between
from redis_saver._checkpoint.threads import ThreadQuery
from redis_saver._common import times
from redis_saver._common.display import shown
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import (
    Hides,
    gist,
    has_failed,
    messages_in,
    moment,
    nothing,
    one_line,
    size,
    texts,
    used_tokens,
)
from redis_saver._tiered.thread_info import Damaged

# -- threads

_NEVER = datetime.min.replace(tzinfo=timezone.utc)
Order: TypeAlias = Literal["updated", "oldest", "bytes", "checkpoints", "expires", "name"]
ORDERS: dict[Order, Callable[[Any], Any]] = {
    "updated": lambda info: info.updated_at or _NEVER,
    "oldest": lambda info: -(info.updated_at or _NEVER).timestamp(),
    "bytes": lambda info: info.bytes,
    "checkpoints": lambda info: info.checkpoints,
    "expires": lambda info: -(timedelta.max if info.ttl is None else info.ttl).total_seconds(),
    "name": lambda info: [-ord(letter) for letter in info.thread_id] + [1],
}
"""Sort keys. The greatest comes first."""


@dataclass(slots=True)
class Listing:
    """The matching threads that come first in the chosen order, and counts of all that match."""

    threads: list[Any] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    damaged: list[Damaged] = field(default_factory=list)
    """Damaged threads with the prefix. The other filters do not apply to them."""


def list_threads(
    source: Source, query: ThreadQuery, order: Order, limit: int, is_over: Callable[[], bool] = lambda: False
) -> Listing:
    """Read the information about all threads that match, and keep the first ones of an order.

    Args:
        source: Saver to ask.
        query: Filters.
        order: Order of the threads.
        limit: Maximum number of threads to keep.
        is_over: Checked before each request. True ends the search.
    """
    listing = Listing()

    def readable() -> Iterator[Any]:
        for info in source.threads(query, is_over):
            if isinstance(info, Damaged):
                listing.damaged.append(info)
                continue
            listing.count += 1
            listing.bytes += info.bytes
            yield info

    listing.threads = heapq.nlargest(limit, readable(), key=ORDERS[order])
    return listing


def read_moment(text: str) -> datetime:
    """Read a moment: how long ago it was, or ISO 8601.

    Raises:
        ValueError: The text is neither.
    """
    try:
        return datetime.now(timezone.utc) - times.parse(text, name="")
    except OverflowError:
        return _NEVER
    except ValueError:
        if (at := times.moment(text)) is not None:
            return at
    raise ValueError(f"{shown(text)} is no time: write how long ago (2h), or 2026-11-25T03:00:00Z")


# -- trees


PREVIEWED = 16_000
"""Maximum size in bytes of a pending write that is read for previews."""
_OWN = ("__", "branch:", "join:")
"""Prefixes of the names of LangGraph's own channels."""
_BRANCH, _JOIN, _START = "branch:to:", "join:", "__start__"
_RETURNED = "__end__"
"""Channel with what an `@entrypoint` returned."""
_STARTS = ("input", "fork")
"""Sources of checkpoints that begin a turn."""
_LINE = 200
"""Maximum number of characters of a preview."""
_CHANNELS = 5
"""Maximum number of channels in a preview."""


class TreeRow(NamedTuple):
    """A checkpoint in a tree."""

    entry: Entry
    state: str
    """`failed` (a task), `interrupted`, `tool failed` (before it) or `answered`: the first that applies. Else empty."""
    has_failed: bool
    """True if a task failed, or a tool before it, also if a question to a human waits."""
    ran: Sequence[str]
    """Nodes that ran between its parent and this checkpoint. Empty if the parent was not read."""
    next: Sequence[str]
    """Nodes that run next, as far as the channels' versions and the pending writes tell."""
    preview: str
    """Its last new message, or the channels that changed, in one line."""
    notice: str
    """Its questions to a human with their answers, or its errors, in one line."""
    bytes: int
    """Size of the writes that made it."""
    tokens: Mapping[str, int]
    """Total tokens of new messages with `usage_metadata`, by the message's id."""
    values: Sequence[tuple[str, Any]]
    """Channels and values of the writes that made it, and of its own questions, answers and errors."""

    @property
    def levels(self) -> Sequence[str]:
        """The nodes whose subgraphs enclose it, outermost first. The last one is the agent's name, if LangChain set it.

        Deep Agents runs all subagents in one node, so the node's name does not tell them apart.
        """
        nodes = [level.partition(":")[0] for level in self.entry.ns.split("|")] if self.entry.ns else []
        agent = self.entry.metadata.get("lc_agent_name")
        return [*nodes[:-1], agent] if nodes and isinstance(agent, str) and agent else nodes

    def has(self, text: str, hides: Hides) -> bool:
        """True if its id, its time (UTC), its previews, or its values contain a text, in upper or lower case."""
        made = moment(self.entry.created_at)
        shown_here = [self.entry.ns, self.entry.id, *self.levels, *self.ran, self.preview, self.notice]
        of_values = (each for channel, value in self.values for each in texts(channel, value, hides))
        wanted = text.lower()
        return any(wanted in each.lower() for each in (*shown_here, made, made.replace(" ", "T"), *of_values))


class Turn(NamedTuple):
    """The checkpoints from an input, or from a fork, to the end of the run, with those of subgraphs."""

    number: int
    """-1 for the newest turn, -2 for the one before."""
    rows: Sequence[TreeRow]
    """Checkpoints, newest first."""

    @property
    def first(self) -> TreeRow:
        """Its first checkpoint."""
        return self.rows[-1]

    @property
    def answer(self) -> str:
        """The last preview after that of its first checkpoint, of the root if that has one."""
        said = [row for row in self.rows[:-1] if row.preview]
        return next((row.preview for row in said if not row.entry.ns), said[0].preview if said else "")

    @property
    def is_whole(self) -> bool:
        """False if its first checkpoints were not read, or were removed."""
        return self.first.entry.source in _STARTS

    @property
    def states(self) -> Sequence[str]:
        """The state of its newest checkpoint with a state, and a failure before that."""
        failed = ("failed" if row.state == "failed" else "tool failed" for row in self.rows if row.has_failed)
        newest = next((row.state for row in self.rows if row.state), "")
        return [state for state in dict.fromkeys((newest, next(failed, ""))) if state]

    @property
    def has_failed(self) -> bool:
        """True if a task or a tool failed in it."""
        return any(row.has_failed for row in self.rows)

    @property
    def bytes(self) -> int:
        """Size of the writes of its checkpoints."""
        return sum(row.bytes for row in self.rows)

    @property
    def tokens(self) -> int:
        """Total tokens of its new messages."""
        return sum({name: number for row in self.rows for name, number in row.tokens.items()}.values())


def turns(entries: Sequence[Entry], hides: Hides = nothing, newer: int = 0) -> list[Turn]:
    """Group checkpoints by turn, newest first.

    A resume belongs to the turn that asked. Without an input among these checkpoints, the oldest begins the turn.

    Args:
        entries: Checkpoints, newest first.
        hides: Hides values by the names of channels, keys and fields.
        newer: Number of newer turns that are not among the checkpoints.
    """
    by_key = {(entry.ns, entry.id): entry for entry in entries}
    continued = {(entry.ns, entry.parent) for entry in entries if entry.source == "loop"}
    homes, groups = dict[tuple[str, str], list[TreeRow]](), list[list[TreeRow]]()
    for entry in reversed(entries):
        caller = homes.get(("", entry.parents.get("", ""))) if entry.ns else None
        before = None if entry.source in _STARTS else homes.get((entry.ns, entry.parent or ""))
        if (home := caller or before) is None:
            groups.append(home := [])
        parent = by_key.get((entry.ns, entry.parent or ""))
        home.insert(0, _row(entry, parent, hides, is_continued=(entry.ns, entry.id) in continued))
        homes[entry.ns, entry.id] = home
    return [Turn(-newer - at, group) for at, group in enumerate(reversed(groups), 1)]


def page_of(
    entries: Sequence[Entry], limit: int, hides: Hides = nothing, newer: int = 0
) -> tuple[list[Turn], str | None]:
    """Return the turns of a page, and the id below which the next page begins.

    A turn that does not begin on the page is left to the next one, unless it has newer checkpoints than another turn.
    Checkpoints of several namespaces with the same id stay together.

    Args:
        entries: Up to `limit + 1` checkpoints, newest first.
        limit: Page size.
        hides: See `turns`.
        newer: See `turns`.
    """
    if len(entries) <= limit:
        return turns(entries, hides, newer), None
    end = next((at for at in range(limit, 0, -1) if entries[at].id != entries[at - 1].id), limit)
    grouped = turns(entries[:end], hides, newer)
    *whole, last = grouped
    if whole and not last.is_whole and max(row.entry.id for row in last.rows) < whole[-1].first.entry.id:
        return whole, whole[-1].first.entry.id
    return grouped, entries[end - 1].id


def _row(entry: Entry, parent: Entry | None, hides: Hides, *, is_continued: bool) -> TreeRow:
    ran = ran_between(parent, entry) if parent and entry.source != "input" else ()
    made, special = _made(entry, parent, ran), [write for write in entry.writes if write.channel in _SPECIAL]
    failed = [message for write in made if not hides(write.channel) for message in _failed_tools(write.value)]
    state = task_state([write.channel for write in special])
    is_answered = state == "interrupted" and is_continued
    if is_answered or not state:
        state = "tool failed" if failed else "answered" if is_answered else ""
    notice = _notice(entry, special, failed, hides, is_answered=is_answered)
    preview = "" if failed or ran == (_START,) else one_line(_preview(entry, parent, made, hides), _LINE)
    values = [(write.channel, write.value) for write in (*made, *special)]
    return TreeRow(
        entry, state, bool(failed) or state == "failed", ran, upcoming(entry), preview, notice,
        sum(write.size for write in made), tokens_of(entry, [value for _, value in values]), values,
    )  # fmt: skip


def _made(entry: Entry, parent: Entry | None, ran: Sequence[str]) -> Sequence[WriteHead]:
    """Return the writes that made a checkpoint: an input's own, or those of its parent that changed a channel."""
    own = [write for write in entry.writes if write.channel not in _SPECIAL] if entry.source == "input" else []
    made = [write for write in own if node_of(entry, write) == _START or not write.path]  # Postgres returns no paths
    if made or parent is None or ran == (_START,):  # the input has what its first step wrote
        return made
    new = {name for name, version in entry.versions.items() if parent.versions.get(name) != version}
    changed, is_loop = [write for write in parent.writes if write.channel in new], entry.source == "loop"
    its = [write for write in changed if bool(write.path) == is_loop]  # branches share their parent's writes
    return sorted(its or (changed if is_loop else ()), key=lambda write: write.path)


def _notice(
    entry: Entry, special: Sequence[WriteHead], failed: Sequence[BaseMessage], hides: Hides, *, is_answered: bool
) -> str:
    """Return questions, answers, and errors of tasks and tools, in one line. Errors name their nodes."""
    verbs = {**_SPECIAL, INTERRUPT: "asked"} if is_answered else _SPECIAL
    said = [gist(message, hides) for message in failed]
    for channel, verb in verbs.items():
        for write in [write for write in special if write.channel == channel]:
            node = node_of(entry, write) if channel == ERROR else None
            said.append(f"{node} {verb}: {_answer(write, hides)}" if node else f"{verb}: {_answer(write, hides)}")
    return one_line(", ".join(dict.fromkeys(said)), _LINE)


def upcoming(entry: Entry, values: Mapping[str, Any] = MappingProxyType({})) -> list[str]:
    """Return the nodes that run next: those with tasks that wrote, with a `Send`, or with a channel not yet seen.

    A join is known only by its value. If a graph has custom triggers, some nodes may be missing.
    """
    nodes = {node_of(entry, write) for write in entry.writes if write.path} or {*entry.sends}
    for channel in entry.present:
        node = _triggered(channel, values.get(channel))
        if node and (entry.seen.get(node) or {}).get(channel) != entry.versions.get(channel):
            nodes.add(node)
    return sorted(node for node in nodes if node)


def _messages_of(write: WriteHead) -> Sequence[BaseMessage]:
    """Return the messages of a write. LangGraph's `messages` reducer makes a text a message of a human."""
    if write.channel == "messages" and isinstance(write.value, str):
        return [HumanMessage(write.value)]
    return messages_in(write.value)


def _failed_tools(value: Any) -> list[BaseMessage]:
    """Return the errors of tools at the end of a value. Earlier ones were answered, so they are not new."""
    last = itertools.takewhile(lambda message: message.type == "tool", reversed(messages_in(value)))
    return [message for message in last if has_failed(message)][::-1]


def tokens_of(entry: Entry, values: Iterable[Any]) -> dict[str, int]:
    """Return the total tokens of the messages in values that a checkpoint has, by the message's id."""
    messages = [message for value in values for message in messages_in(value)]
    return {str(each.id or (entry.ns, entry.id, at)): used_tokens(each) for at, each in enumerate(messages)}


def is_own(channel: str) -> bool:
    """True for a channel with which LangGraph works, and which holds nothing of the user's or of their tasks."""
    return channel.startswith(_OWN) and channel not in _OF_USERS


def is_routine(channel: str) -> bool:
    """True for a channel whose changes are of LangGraph's own, also if it holds an input that a step takes away."""
    return is_own(channel) or channel in EMPTIED


_SPECIAL = {INTERRUPT: "waits", RESUME: "answered", ERROR: "failed"}
"""Verbs for LangGraph's channels of questions, answers and errors."""
EMPTIED = frozenset({_START, TASKS})
"""Channels of LangGraph that hold the user's input and the arguments of each `Send`, until these have run."""
_OF_USERS = {*_SPECIAL, *EMPTIED, _RETURNED, "__previous__", "__return__", "__root__"}
"""Channels with such names that hold values of users: also results, and the state of functions and of single values."""


def _answer(write: WriteHead, hides: Hides) -> str:
    values = write.value if isinstance(write.value, (list, tuple)) else [write.value]
    return "masked" if hides(write.channel) else ", ".join(gist(each, hides) for each in values[:_CHANNELS])


def _preview(entry: Entry, parent: Entry | None, made: Sequence[WriteHead], hides: Hides) -> str:
    its_own = [write for write in made if not write.channel.startswith(_OWN) or write.channel == _RETURNED]
    for write in reversed(its_own):
        if not hides(write.channel) and (messages := _messages_of(write)):
            return gist(messages[-1], hides)
    if its_own:
        shown_here = [_written(write, hides) for write in its_own[:_CHANNELS]]
        return ", ".join([*shown_here, *(["…"] if len(its_own) > _CHANNELS else ())])
    before = parent.versions if parent else {}
    changed = [name for name, version in entry.versions.items() if version != before.get(name)]
    changed = [name for name in changed if not name.startswith(_OWN)] if parent or entry.parent is None else []
    return f"{', '.join(sorted(changed)[:_CHANNELS])} changed" if changed else ""


def _written(write: WriteHead, hides: Hides) -> str:
    name = "returns" if write.channel == _RETURNED else write.channel
    if write.value is None and write.size:
        return f"{name} ({size(write.size)})"
    return f"{name}: {'masked' if hides(write.channel) else gist(write.value, hides)}"


def _triggered(channel: str, value: Any) -> str | None:
    """Return the node that a channel triggers, if the channel is complete. A join needs its value."""
    if channel == _START:
        return _START
    if channel.startswith(_BRANCH):
        return channel.removeprefix(_BRANCH).partition("::")[0]
    if channel.startswith(_JOIN):
        awaited, _, node = channel.removeprefix(_JOIN).rpartition(":")
        return node if isinstance(value, (set, frozenset)) and set(awaited.split("+")) <= value else None
    return None


def text_tree(turns: Sequence[Turn]) -> Iterator[tuple[str, Turn, TreeRow]]:
    """Draw turns as text, oldest first. A chain runs straight down, and a fork opens a lane for each branch.

    A subgraph's checkpoints follow the one of the root that called it. A checkpoint without its parent starts a branch.

    Yields:
        The lines to print before a checkpoint, its turn, and the checkpoint.
    """
    every = [(turn, row) for turn in turns for row in turn.rows]
    roots, called = {row.entry.id for _, row in every if not row.entry.ns}, defaultdict[Any, list[Any]](list)
    left, children = dict[tuple[str, str], tuple[Turn, TreeRow]](), defaultdict[Any, list[tuple[str, str]]](list)
    for turn, row in every:
        caller = row.entry.parents.get("") if row.entry.ns else None
        if caller in roots:
            called["", caller].append((turn, row))
        else:
            left[row.entry[:2]] = turn, row
    for key, (_, row) in left.items():
        parent = row.entry.ns, row.entry.parent or ""
        children[parent if parent in left else None].append(key)
    stack = [("", "", key) for key in children[None]]
    circular = [("", "", key) for key in reversed(left)]  # for checkpoints that are each other's ancestors
    while left:
        lane, below, key = (stack or circular).pop()
        if key not in left:
            continue
        yield lane, *left.pop(key)
        inside = lane.replace("└─", "  ").replace("├─", "│ ")
        for turn, row in reversed(called[key]):
            yield f"{inside}{'┊ ' * min(row.entry.ns.count('|') + 1, MAX_LANES)}", turn, row
        branches = children[key]
        for position, branch in enumerate(branches):  # newest first, so that the oldest is on top of the stack
            fork, past = ("", "") if len(branches) == 1 else ("├─", "│ ") if position else ("└─", "  ")
            stack.append((below + fork, below + past, branch))


def task_state(channels: Collection[str]) -> str:
    """Return the state of tasks that wrote to channels: `failed`, `interrupted`, or empty."""
    return "failed" if ERROR in channels else "interrupted" if INTERRUPT in channels else ""


MAX_LANES = 12
"""Maximum number of lanes in a drawing. Further branches share the last lane."""


class Line(NamedTuple):
    """A line in a row of a drawing. `x` counts lanes; `y` is in percent, from 0 at the top to 100 at the bottom."""

    x1: int
    y1: int
    x2: int
    y2: int
    is_dashed: bool


class Drawing(NamedTuple):
    """A row of a drawing: a checkpoint and the lines around it."""

    lane: int
    lines: Sequence[Line]
    width: int
    """Number of lanes."""


class _Lane(NamedTuple):
    """A lane that runs down to a checkpoint."""

    target: tuple[str, str] | None
    """Namespace and id of the checkpoint. None if the lane is free."""
    is_dashed: bool


_FREE = _Lane(None, is_dashed=False)


def drawn(entries: Sequence[Entry]) -> list[Drawing]:
    """Draw checkpoints for SVG, newest first."""
    lanes, drawings = list[_Lane](), list[Drawing]()
    for entry in entries:
        key = (entry.ns, entry.id)
        ending = [at for at, lane in enumerate(lanes) if lane.target == key]
        passing = [at for at, lane in enumerate(lanes) if lane.target not in (key, None)]
        own = next((at for at in ending if not lanes[at].is_dashed), [*lanes, _FREE].index(_FREE))
        lines = [_line(at, 0, own, 50, lanes[at]) for at in ending]
        lines += [_line(at, 0, at, 100, lanes[at]) for at in passing]
        for at in ending:
            lanes[at] = _FREE
        below = _lane_below(entry)
        lanes[own : own + 1] = [below]
        if below is not _FREE:
            lines.append(_line(own, 50, own, 100, below))
        while lanes and lanes[-1] is _FREE:
            lanes.pop()
        widest = max([own, *(end for line in lines for end in (line.x1, line.x2))])
        drawings.append(Drawing(min(own, MAX_LANES - 1), list(dict.fromkeys(lines)), min(widest, MAX_LANES - 1) + 1))
    return drawings


def _lane_below(entry: Entry) -> _Lane:
    """Return the lane to the parent. From the first checkpoint of a subgraph it leads to the checkpoint that called."""
    if entry.parent is not None:
        return _Lane((entry.ns, entry.parent), is_dashed=False)
    outer = entry.ns.rpartition("|")[0]
    return _Lane((outer, entry.parents[outer]), is_dashed=True) if entry.ns and outer in entry.parents else _FREE


def _line(x1: int, y1: int, x2: int, y2: int, lane: _Lane) -> Line:
    return Line(min(x1, MAX_LANES - 1), y1, min(x2, MAX_LANES - 1), y2, lane.is_dashed)
