"""Reading histories of `DeltaChannel`s, by a walk over the ancestors of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, DeltaChannelHistory

from redis_saver._checkpoint import scripts
from redis_saver._checkpoint.reading import BYTES_PER_PAGE, MAX_TOLD, HasIntents
from redis_saver._common import config, limits, names
from redis_saver._common.display import shown
from redis_saver._engine.replies import HistoryReply
from redis_saver._engine.requests import Argument, Call, Operation
from redis_saver._storage import chunks as chunked, codec, header as headers
from redis_saver._storage.chunk_cache import ChannelKey, History, KnownPoint, Version, size_of
from redis_saver._storage.context import Context, refresh_arguments
from redis_saver._storage.framing import take
from redis_saver._storage.sealing import Cipher, check_writes
from redis_saver.errors import DecodeError, decoding

ANCESTORS_PER_PAGE = 200
COUNTERS = "counters_since_delta_snapshot"
"""A key of LangGraph in the metadata of a checkpoint. It names the `DeltaChannel`s that are rebuilt from writes."""


_EMPTIED_BY_LANGGRAPH = ("__", "branch:to:")
"""Beginnings of channels that have no value most of the time: the input, and the triggers of nodes."""
K = TypeVar("K")


def unstored(metadata: Mapping[str, Any]) -> frozenset[str]:
    """Return the `DeltaChannel`s without a stored value in a checkpoint, according to its metadata."""
    noted = metadata.get(COUNTERS)
    return frozenset(noted) if isinstance(noted, Mapping) else frozenset()


def rebuilt(metadata: Mapping[str, Any]) -> set[str]:
    """Return the `DeltaChannel`s with updates since their snapshot, the last of them as writes to the parent.

    Without the parent they cannot be rebuilt, unless the checkpoint has a stored value.
    """
    noted = metadata.get(COUNTERS)
    counted = noted if isinstance(noted, Mapping) else {}
    return {channel for channel, counts in counted.items() if isinstance(counts, (list, tuple)) and any(counts[:1])}


def lacking(channels: Iterable[str], stored: Collection[str]) -> list[str]:
    """Return the channels without a stored value, except those that LangGraph itself empties."""
    return [name for name in channels if name not in stored and not name.startswith(_EMPTIED_BY_LANGGRAPH)]


def first_with(key: K, parent_of: Callable[[K], K | None], has: Callable[[K], bool]) -> K:
    """Return the first checkpoint of a line of ancestors that has something, such as a version of a channel.

    Args:
        key: A checkpoint that has it.
        parent_of: Returns the parent of a checkpoint, if it is known.
        has: True if a checkpoint has it.
    """
    seen = {key}
    while (parent := parent_of(key)) is not None and parent not in seen and has(parent):
        seen.add(parent)  # a caller may have put a checkpoint as its own ancestor
        key = parent
    return key


class Partial(Exception):
    """Hot lacks some of the ancestors."""

    def __init__(self, basis: Basis | None = None) -> None:
        """Store the basis, if hot has the target."""
        super().__init__()
        self.basis = basis


class Ancestor(NamedTuple):
    """An ancestor's values and writes of the channels of a walk."""

    checkpoint_id: str
    seeds: dict[str, Seed]
    writes: list[chunked.Write]


class Seed(NamedTuple):
    """A stored value and its field."""

    field: bytes
    value: bytes


class Basis(NamedTuple):
    """The facts that a walk, or a page of it, depends on. With these facts its result can be cached (`KnownPoint`).

    All but the last two come from `lua/checkpoint/history.lua`, in this order.
    """

    target: bytes
    rewritten: bytes
    lowest: bytes
    checkpoints: int
    tasks: int
    missing: bytes
    """The id of the first missing ancestor, escaped."""
    checkpoints_before: int
    tasks_before: int
    ids: Sequence[bytes]
    """The ids of the ancestors, escaped."""
    unsure: Collection[str]
    """Channels that are not cached, because they may get a value later without a rewrite."""


_TYPES = [bytes, bytes, bytes, int, int, bytes, int, int, bytes]
_BEFORE = Basis(b"", b"", b"", 0, 0, b"", 0, 0, (), ())


class Walk:
    """The ancestors of a checkpoint, nearest first, and the chunks of their seeds. They arrive page by page."""

    def __init__(
        self, context: Context, address: config.Address, channels: Sequence[str], points: Sequence[KnownPoint] = ()
    ) -> None:
        """Start at a checkpoint.

        Args:
            context: The saver.
            address: The checkpoint; without an id, the newest.
            channels: The channels. The walk of each ends at its nearest stored value, or at the root.
            points: Known points of the namespace. The walk of a channel also ends at one that has it.
        """
        self._context, self._address, self._channels, self._points = context, address, channels, points
        self._ns, checkpoint_id = names.component(address.checkpoint_ns), address.checkpoint_id
        self._position = names.component(checkpoint_id) if checkpoint_id else b""
        self.pages, self._seen = list[Basis](), set[bytes]()
        self.ancestors, self.chunks = list[Ancestor](), dict[bytes, bytes]()
        self.known = dict[str, History]()
        """Histories of the channels whose walk ended at a known point."""
        self.used = list[bytes]()
        """The ids of these known points, escaped."""
        self.remaining = {names.component(channel): channel for channel in channels}
        """The channels whose walk goes on, by escaped name."""
        self.is_done = not channels
        self.chain = None if context.cipher is None else _Chain(context.cipher, self._ns, self._position)

    def run(
        self, keys: Sequence[bytes], refresh: tuple[bytes, int | bytes] = (b"0", b""), told: Sequence[bytes] = ()
    ) -> Operation[Walk]:
        """Read the ancestors, page by page. Returns the walk itself.

        Args:
            keys: The keys, as in `reading.read`.
            refresh: The arguments that move the deadline (`refresh_arguments`). By default it stays.
            told: Known chunks, which the server need not send.

        Raises:
            HasIntents: The thread has write intents, so cold may be newer than hot.
            Partial: Hot lacks some of the ancestors.
        """
        thread, in_tiers = self._address.thread_id, len(keys) > 2
        while not self.is_done:
            answer = yield Call(scripts.HISTORY, keys, (*self._arguments(refresh), *told))
            if in_tiers and answer == HistoryReply.INTENTS:
                raise HasIntents
            if in_tiers and isinstance(answer, list) and answer[:1] == [HistoryReply.PARTIAL]:
                with decoding("the ancestors in hot of a checkpoint of thread {!r}", thread):
                    bases = [_page(basis, (), 0, self.remaining.values()) for basis in answer[1:]]
                raise Partial(_basis(bases))
            with decoding("the ancestors of a checkpoint of thread {!r}", thread):
                self._add(answer)
        if self.chain is not None and self.remaining:
            self.chain.check_end(self._context, self._address, self.remaining.values())
        return self

    def _arguments(self, refresh: tuple[bytes, int | bytes]) -> list[Argument]:
        """Return the arguments of `lua/checkpoint/history.lua` for the next page, without known chunks."""
        last = self.pages[-1] if self.pages else _BEFORE
        fixed = scripts.HistoryArguments(
            ns=self._ns, id=self._position, target=last.target, lowest=last.lowest,
            limit=ANCESTORS_PER_PAGE, budget=BYTES_PER_PAGE, refresh=refresh[0], default=refresh[1],
            n=len(self.remaining), m=len(self._points),
        )  # fmt: skip
        arguments: list[Argument] = [*fixed]
        for escaped, channel in self.remaining.items():
            arguments += (names.encode(channel), escaped)
        for point in self._points:
            flags = b"".join([b"1" if channel in point.histories else b"0" for channel in self.remaining.values()])
            arguments += (*point[:5], flags)
        return arguments

    def _add(self, answer: Any) -> None:
        """Add a page. A wrong page may raise any error, so this runs under `decoding`."""
        position, flat, basis, *page = answer
        self.chunks.update(codec.as_chunks(self._context, flat, self._address.thread_id))
        if not isinstance(position, bytes) or (position and not page):
            raise ValueError(f"{len(page)} ancestors, and others from {shown(position)} on")
        self.pages.append(_page(basis, page, len(self._points), self.remaining.values()))
        if page:
            self._context.opener()
        for raw_id, seeds, writes, number, *header in page:
            if self.chain is not None:
                seeds = self.chain.opened(raw_id, seeds, header[0], self.chunks, self.remaining)  # noqa: PLW2901
            if raw_id in self._seen:
                # A caller put an ancestor again, below its own descendant. All below was collected already.
                position = b""
                break
            self._add_ancestor(raw_id, seeds, writes)
            if number:
                self._end_at(self._points[number - 1])
        self._position, self.is_done = position, not (position and self.remaining)

    def _add_ancestor(self, raw_id: bytes, raw_seeds: Sequence[bytes], raw_writes: Sequence[bytes]) -> None:
        """Add an ancestor, and end the walk of the channels that have a value there."""
        self._seen.add(raw_id)
        wanted, checkpoint_id = set(self.remaining.values()), names.name_of(raw_id)
        writes = codec.decode_writes(self._context, raw_writes, self._address._replace(checkpoint_id=checkpoint_id))
        if self.chain is not None:
            self.chain.check_writes(writes)
        writes = [write for write in writes if write.channel in wanted]
        triples = zip(raw_seeds[::3], raw_seeds[1::3], raw_seeds[2::3], strict=True)
        seeds = {self.remaining.pop(escaped): Seed(field, value) for escaped, field, value in triples}
        self.ancestors.append(Ancestor(checkpoint_id, seeds, writes))

    def _end_at(self, point: KnownPoint) -> None:
        """End the walk of the channels that a known point has."""
        self.used.append(point.checkpoint_id)
        for channel, history in point.histories.items():
            if self.remaining.pop(names.component(channel), None) is not None:
                self.known[channel] = history

    def histories(self, data: bytes, versions: Mapping[str, Version]) -> dict[str, DeltaChannelHistory]:
        """Decode the histories that the walk collected, and remember them.

        Args:
            data: The key of the thread's data.
            versions: The versions of seeds that this process knows.
        """
        chunks: dict[bytes, bytes] = {}
        for known in versions.values():
            chunks.update(known.stored.chunks)
        chunks.update(self.chunks)
        context, ns = self._context, self._address.checkpoint_ns
        allowance = limits.Allowance(context.limits, f"thread {shown(self._address.thread_id)}")
        decoder = codec.Decoder(context, chunks, allowance)
        writes: dict[str, list[chunked.Write]] = {channel: [] for channel in self._channels}
        seeds: dict[str, Seed] = {}
        for ancestor in self.ancestors:
            for write in reversed(ancestor.writes):
                is_whole = write.type != chunked.IN_CHUNKS
                writes[write.channel].append(write if is_whole else decoder.whole(write))
            seeds.update(ancestor.seeds)
        answers: dict[str, DeltaChannelHistory] = {}
        learned: dict[str, History] = {}
        seen: dict[ChannelKey, Version] = {}
        for channel in self._channels:
            base = self.known.get(channel) or History(seeds[channel].value if channel in seeds else None, None, ())
            history = base._replace(writes=(*base.writes, *reversed(writes[channel])))
            answers[channel] = {"writes": list(map(decoder.write, history.writes))}
            if history.seed is not None:
                version = history.version or versions.get(channel)
                last = version.stored if version else None
                answers[channel]["seed"], stored = decoder.value(history.seed, channel, last, remembers=True)
                if stored is not None:
                    seed = seeds.get(channel) or history.version
                    field = seed.field if seed else b""
                    is_same = version is not None and version.field == field and version.stored is stored
                    version = version if is_same and version else Version(field, stored)
                    seen[ns, channel] = version
                    history = history._replace(version=version, seed=stored.value)
            learned[channel] = history
        if (basis := _basis(self.pages)) is not None:
            context.chunk_cache.remember_history(data, ns, _point(basis, learned), self.used, seen)
        else:
            context.chunk_cache.remember_versions(data, seen)
        return answers


def walk(context: Context, address: config.Address, channels: Sequence[str]) -> Operation[Walk]:
    """Walk the ancestors of a checkpoint on one server, nearest first (`Walk`). Its deadline stays."""
    return Walk(context, address, channels).run(context.keyspace.keys(address.thread_id))


class _Chain:
    """Opens the ancestors of an encrypted thread as they arrive, and checks that none is missing between two.

    Their links are in the open, so somebody may have changed them.
    """

    def __init__(self, cipher: Cipher, ns: bytes, target: bytes) -> None:
        """Start with the target. Its id is empty for the newest."""
        self._cipher, self._ns, self._last = cipher, ns, (b"", b"", b"")
        self._next: bytes | None = target or None
        self._known = self._of_parent = b""
        """The known tasks with writes at this ancestor, and at its parent."""

    def opened(
        self, raw_id: bytes, seeds: Sequence[bytes], header: bytes, chunks: codec.Chunks, channels: Collection[bytes]
    ) -> Sequence[bytes]:
        """Open the seeds of the next ancestor, or of the target, which has none.

        Args:
            raw_id: Its id, escaped.
            seeds: Its stored values of these channels: escaped channel, field, value.
            header: Its header.
            chunks: The chunk with its names.
            channels: The channels, escaped.

        Raises:
            ValueError: It is not the parent of the one before, or not all of its values are there.
        """
        if self._next not in (None, raw_id):
            raise ValueError(f"{shown(raw_id)} comes in place of the parent {shown(self._next)}")
        of = self._cipher.open_header(b"c" + self._ns + raw_id, header)
        is_target, self._last = not self._last[0], (raw_id, header, of.parent)
        self._next = take(of.header, 0, 1)[0][0]
        self._known, self._of_parent = self._of_parent, of.known_writes
        if is_target:
            return seeds
        prefix, answered = b"b" + self._ns, dict(zip(seeds[::3], seeds[1::3], strict=True))
        for field, flag in zip(headers.fields(of.header, chunks, prefix), of.flags, strict=True):
            channel = field[len(prefix) : field.index(b"\0", len(prefix)) + 1]
            stored = answered.pop(channel, None)
            if stored not in (None, field) or (stored is None and channel in channels and flag == ord(headers.PRESENT)):
                raise ValueError(f"{shown(stored)} is answered in place of {shown(field)}")
        if answered:
            raise ValueError(f"it has no {shown(answered)}")
        return [part if at % 3 < 2 else self._cipher.open_value(seeds[at - 1], part) for at, part in enumerate(seeds)]

    def check_writes(self, writes: Iterable[chunked.Write]) -> None:
        """Check that the ancestor has the pending writes of all tasks that the header of its child names.

        Raises:
            ValueError: Some were removed.
        """
        check_writes(self._known, [(write.task_id, write.channel) for write in writes], names.name_of(self._last[0]))

    def check_end(self, context: Context, address: config.Address, channels: Iterable[str]) -> None:
        """Check that nothing that these channels need was removed after the last ancestor.

        Prune keeps the ancestors of a `DeltaChannel` back to its snapshot. The metadata count the updates since that.

        Raises:
            ThreadDamaged: The ancestor's parent is gone, and has an update of one of the channels.
        """
        raw_id, header, parent = self._last
        if not parent:
            return
        last = config.Address(address.thread_id, address.checkpoint_ns, names.name_of(raw_id))
        counters = headers.metadata(context, header, last).get(COUNTERS) or {}
        with decoding("the ancestors of {}", last):
            if lost := [channel for channel in channels if counters.get(channel, (0,))[0]]:
                gone = shown(names.name_of(parent))
                raise ValueError(f"its parent {gone} is gone, which the DeltaChannels {shown(lost)} need")


def _page(basis: Sequence[Any], page: Sequence[Any], points: int, channels: Iterable[str]) -> Basis:
    """Decode the basis of a page, and check what the next request sends back to the server.

    Raises:
        ValueError: The script cannot have answered this.
    """
    if [*map(type, basis)] != _TYPES:
        raise ValueError(f"what it depends on is {shown(basis)}")
    for raw_id, seeds, _, number, *header in page:
        if {type(raw_id), *map(type, seeds), *map(type, header)} != {bytes} or not 0 <= number <= points:
            raise ValueError(f"ancestor {shown(raw_id)} with {shown(seeds)}, and the point {shown(number)}")
    *counted, marks = basis
    unsure = [channel for channel, mark in zip(channels, marks, strict=False) if mark == ord("1")]
    return Basis._make((*counted, [ancestor[0] for ancestor in page], unsure))


def _basis(pages: Sequence[Basis]) -> Basis | None:
    """Return the basis of all pages, or None if the result cannot be cached.

    It cannot be cached if something changed between two pages, or if the id of an ancestor is not lower than the
    target's. The counts would not include later writes to such an ancestor.
    """
    if not pages or not pages[0].target or not pages[0].rewritten:
        return None
    for page, following in pairwise(pages):
        counted = following.checkpoints_before, following.tasks_before
        if following.rewritten != page.rewritten or counted != (page.checkpoints, page.tasks):
            return None
    last = pages[-1]
    ids = [raw_id for page in pages for raw_id in page.ids if raw_id != last.target]
    ids += [last.missing] if last.missing else []
    # The target may be its own ancestor, or its writer's clock may be slow.
    if len(set(ids)) < len(ids) or any(raw_id >= last.target for raw_id in ids):
        return None
    return last._replace(unsure={channel for page in pages for channel in page.unsure})


def get_delta_channel_history(
    context: Context, requested: RunnableConfig, channels: Sequence[str]
) -> Operation[Mapping[str, DeltaChannelHistory]]:
    """Read seeds and writes of channels, as `BaseCheckpointSaver.get_delta_channel_history` defines them."""
    address = config.address(requested)
    return (yield from histories(context, address, channels, context.keyspace.keys(address.thread_id)))


def histories(
    context: Context, address: config.Address, channels: Sequence[str], keys: Sequence[bytes]
) -> Operation[dict[str, DeltaChannelHistory]]:
    """Read histories, and remember them. The keys and the exceptions are those of `Walk.run`."""
    ns, data = address.checkpoint_ns, keys[1]
    known = context.chunk_cache.of(data)
    points = known.points.get(ns, ())
    versions = {channel: known.versions[ns, channel] for channel in channels if (ns, channel) in known.versions}
    while True:
        fields = [field for version in versions.values() for field in version.right_edge()][:MAX_TOLD]
        walked = yield from Walk(context, address, channels, points).run(keys, refresh_arguments(context), fields)
        try:
            return walked.histories(data, versions)
        except DecodeError as error:
            if not versions or not isinstance(error.__cause__, chunked.ChunkMissing):
                raise
            versions = {}  # the server left out chunks that only another version has: request all of them


def _point(basis: Basis, learned: Mapping[str, History]) -> KnownPoint:
    left_out = {*basis.unsure, *WRITES_IDX_MAP}  # special writes are replaced by newer ones
    kept = {channel: history for channel, history in learned.items() if channel not in left_out}
    return KnownPoint(*basis[:5], kept, size_of(kept))


def remember(
    context: Context, address: config.Address, data: bytes, basis: Basis, answers: Mapping[str, DeltaChannelHistory]
) -> None:
    """Remember histories from cold, so that later reads only need hot.

    Args:
        context: The saver.
        address: The checkpoint.
        data: The key of the thread's data.
        basis: The basis in the `Partial` that was raised before cold was read.
        answers: The histories.

    Raises:
        EncodeError: This saver's serializer cannot encode a value.
        LimitExceeded: A value is too long for this saver.
    """
    learned: dict[str, History] = {}
    for channel, history in answers.items():
        writes = tuple([codec.encode_write(context, write) for write in history["writes"]])
        learned[channel] = History(None, None, writes)
        if "seed" in history:
            stored = codec.encode_value(context, history["seed"], channel)
            version = Version(b"", stored) if stored.chunks else None  # its field is not known
            learned[channel] = History(stored.value, version, writes)
    context.chunk_cache.remember_history(data, address.checkpoint_ns, _point(basis, learned), (), {})
