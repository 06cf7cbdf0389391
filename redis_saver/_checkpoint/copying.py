"""Copying a thread, also between cluster slots.

The client copies the source, page by page, into keys beside the target. Then a script replaces the target by the copy.
A copy of an encrypted thread has a data key of its own. So a thread gets a new data key by a copy of itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias
from uuid import uuid4

from redis_saver._checkpoint import checking, guards, pruning, reading, scripts
from redis_saver._checkpoint.retention import (
    OF_NAMESPACE,
    OF_THREAD,
    ReachableChunks,
    References,
    reachable_chunks,
    read_references,
    roots_of,
)
from redis_saver._common import config, limits, names
from redis_saver._common.display import shown
from redis_saver._engine.requests import Argument, Call, Command, Operation
from redis_saver._storage import chunks, codec, compression, header
from redis_saver._storage.context import Context, default_ttl
from redis_saver._storage.framing import pack, take, unpack
from redis_saver._storage.keyed import keyed
from redis_saver._storage.keys import FIELD
from redis_saver._storage.sealing import Cipher
from redis_saver.errors import ThreadBusy, ThreadDamaged, decoding, from_text

FIELDS_PER_PAGE = 500
ABANDONED_AFTER = 3_600_000
"""Milliseconds after which an unfinished copy of a dead process expires."""
Fields: TypeAlias = "dict[bytes, list[bytes] | None]"
"""Fields to copy, each with its members of the index. A field that may be missing has None instead."""


@keyed
def copy_thread(context: Context, source: str, target: str, newest: str | None = None) -> Operation[None]:
    """Make the target a copy of the source as it is now.

    With `newest`, leave out later checkpoints, and the pending writes of the last one of each namespace. So a resume
    runs their tasks again.
    """
    if source == target:
        return
    limits.check_name(context.limits, target, "a thread")
    for _ in range(pruning.ATTEMPTS):
        if (every := (yield from read_references(context, source))) is None:
            return
        references = every if newest is None else _until(every, newest)
        copy = _Copy(context, source, target, references)
        yield from copy.stage({*every.writes}.difference(references.writes))
        if (yield from copy.promote(guards.writer_of(context, target, deletes=True), ttl=default_ttl(context))):
            return
    raise _busy(source)


def reseal(context: Context, thread: str) -> Operation[bool]:
    """Replace a thread by a copy of itself that has a new data key. Returns False if there is no such thread.

    It keeps its runs, its settings, its deadline, its owner and its cold tier.
    """
    data_key = context.keyspace.keys(thread).data_key
    for _ in range(pruning.ATTEMPTS):
        state = yield Command(("HGET", data_key, "@state"), (data_key,))
        references = yield from read_references(context, thread)
        if references is None or state is None:
            return False
        copy = _Copy(context, thread, thread, references)
        yield from copy.stage(keeps_runs=True)
        if (yield from copy.promote(guards.ANYBODY, kept=(state, *_marks(references)))):
            return True
    raise _busy(thread)


def _busy(source: str) -> ThreadBusy:
    return ThreadBusy(
        f"others wrote to thread {shown(source)} during each of {pruning.ATTEMPTS} attempts to copy it. Nothing was "
        "changed; try again"
    )


class _Copy:
    """A copy of a thread. `stage` makes it in keys beside the target, and `promote` replaces the target by it."""

    def __init__(self, context: Context, source: str, target: str, references: References) -> None:
        """Plan to copy what these references name."""
        self._context, self._source, self._target, self._references = context, source, target, references
        self._token = uuid4().hex
        self._keys = context.keyspace.keys(target, self._token)
        self._sealing: Cipher | None = None
        """The cipher of the copy, if the source has one."""
        self._numbers: tuple[int, int, int, int] | None = None
        """The numbers of pages, bytes, values and pending writes. None if the copy is not complete."""

    def stage(self, left_out: Iterable[bytes] = (), *, keeps_runs: bool = False) -> Operation[None]:
        """Copy fields, in their order, into keys beside the target. Stop if the source has changed meanwhile.

        Args:
            left_out: Pending writes of the source that the copy has not, by their members of the index.
            keeps_runs: True if the copy stays in the index of runs.
        """
        context, source, references = self._context, self._source, self._references
        reachable = yield from reachable_chunks(context, source, references)
        if context.data_keys is not None and (cipher := context.opener()) is not None:
            self._sealing = yield from context.data_keys.wrap_anew(self._target, cipher, replaces=True)
        with decoding("the contents of thread {!r}", source):
            fields = _fields(references, reachable, keeps_runs=keeps_runs)
        conversion = _Conversion(context, source, self._target, self._sealing, reachable.lists)
        conversion.leave_out(left_out)
        left, size, blobs, writes, pages = list(fields), 0, 0, 0, 0
        data = context.keyspace.keys(source).data_key
        while left:
            values = yield Call(scripts.READ_FIELDS, (data,), (reading.BYTES_PER_PAGE, *left[:FIELDS_PER_PAGE]))
            pairs, members = list[Argument](), list[bytes]()
            if self._sealing is not None and not pages:
                pairs += (FIELD, self._sealing.argument)
            with decoding("the contents of thread {!r}", source):
                if not values:
                    raise ValueError("the server answered a page without values")
                page = dict(zip(left, values, strict=False))
                lost = [field for field, stored in page.items() if stored is None and fields[field] is not None]
                for field, stored in () if lost else page.items():
                    if stored is None:
                        continue
                    if not isinstance(stored, bytes):
                        raise TypeError(f"the field {shown(field)} holds {shown(stored)} in place of bytes")
                    if not _is_as_planned(field, stored, references, reachable):
                        return
                    name, value = conversion.copied(field, stored)
                    blobs += field[:1] == b"b"
                    writes += codec.count_writes(value, source) if field[:1] == b"w" else 0
                    size += len(value)
                    pairs += (name, value)
                    members += fields[field] or ()
            if lost:
                yield from self._check_changed(lost[0])
                return
            pages += 1
            left = left[len(values) :]
            if not (yield Call(scripts.STAGE, self._keys, (ABANDONED_AFTER, pages, len(pairs) // 2, *pairs, *members))):
                return
        self._numbers = pages, size, blobs, writes

    def _check_changed(self, lost: bytes) -> Operation[None]:
        """Check that a removal gave the source another revision, so that a field may be gone.

        Raises:
            ThreadDamaged: It has the same revision.
        """
        now = yield from read_references(self._context, self._source)
        if now and now.revision == self._references.revision:
            text = f"DAMAGED a stored value is gone: {checking.describe(lost)}"
            raise from_text(text, self._context.keyspace.keys(self._source)) or ThreadDamaged(text)

    def promote(self, writer: bytes, *, ttl: Argument = b"", kept: Sequence[bytes] = (b"",)) -> Operation[bool]:
        """Replace the target by the copy. Returns False if the copy has to start again; then it is removed.

        Args:
            writer: Who may do that.
            ttl: The saver's TTL.
            kept: For a copy of the thread itself: the state that was copied, and the fields that stay.
        """
        context, keys = self._context, self._context.keyspace.keys(self._target)
        if self._numbers is not None:
            pages, size, blobs, writes = self._numbers
            state, *marks = kept
            arguments = scripts.PromoteArguments(
                token=self._token, pages=pages, default=ttl, bytes=size, blobs=blobs, writes=writes,
                format=self._references.format, state=state,
            )  # fmt: skip
            if (yield guards.GuardedScript(scripts.PROMOTE, (*keys, *self._keys), writer).call(*arguments, *marks)):
                context.chunk_cache.forget(keys.data_key)
                if self._sealing is not None and context.data_keys is not None:
                    context.data_keys.keep(self._target, self._sealing)
                return True
        yield Command(("UNLINK", *self._keys))
        return False


def _marks(references: References) -> list[bytes]:
    """Return the fields that stay with a copy of the thread itself."""
    namespaces = dict.fromkeys(ns for ns, _ in references.checkpoints)
    return [*OF_THREAD, *(field + names.component(ns) for ns in namespaces for field in OF_NAMESPACE)]


def _until(references: References, newest: str) -> References:
    """Leave out checkpoints after `newest`, and the pending writes of the last checkpoint of each namespace.

    Also those of the root, if `newest` is of a subgraph: they hold what that subgraph returned later.
    """
    checkpoints = {key: links for key, links in references.checkpoints.items() if key[1] <= newest}
    of_each = [(names.components(member[1:].rpartition(b"\0")[0] + b"\0"), member) for member in references.writes]
    last = dict[str, str]()
    for ns, checkpoint_id in checkpoints:
        last[ns] = max(last.get(ns, ""), checkpoint_id)
    writes = [member for (ns, checkpoint_id, *_), member in of_each if checkpoint_id < last.get(ns, "")]
    return references._replace(checkpoints=checkpoints, writes=writes)


def _fields(references: References, reachable: ReachableChunks, *, keeps_runs: bool) -> Fields:
    """Return the fields in the order of copying: chunks, lists of chunks, the others."""
    fields: Fields = {}
    for key, links in references.checkpoints.items():
        member = names.checkpoint(*key)
        fields[member] = [
            member,
            *([names.by_age(*key)] if key[0] else ()),
            *([links.run] if keeps_runs and links.run else ()),
        ]
        fields[links.names_chunk] = []
        for entry in links.entries:
            field = names.blob(key[0], entry[1:])
            if entry[:1] == header.ABSENT:
                fields.setdefault(field, None)
            else:
                fields[field] = []
    fields.update((chunk, []) for chunk in reachable.chunks(reachable.roots))
    fields.update((member, [member]) for member in references.writes)
    return dict(sorted(fields.items(), key=lambda field: b"znbcw".find(field[0][:1])))


class _Conversion:
    """Converts the fields of a thread for its copy. With encryption, chunks get other names in it."""

    def __init__(
        self, context: Context, source: str, target: str, sealing: Cipher | None, lists: Mapping[bytes, bytes]
    ) -> None:
        """Start.

        Args:
            context: The saver.
            source: The thread.
            target: The thread of the copy.
            sealing: The cipher of the copy, if the source has one.
            lists: The lists of chunks of the source, by field.
        """
        self._context, self._source, self._target, self._lists = context, source, target, lists
        self.sealing: Cipher | None = sealing
        self._names = dict[bytes, bytes]()
        """The new names of chunks."""
        self._left_out = set[tuple[str, bytes]]()
        """Namespaces and escaped ids of checkpoints that the copy has without some of their writes."""

    def leave_out(self, writes: Iterable[bytes]) -> None:
        """Copy headers so that they do not rely on these writes, named by their members of the index."""
        for member in writes:
            ns, checkpoint_id, _ = member[1:].split(b"\0", 2)
            self._left_out.add((names.name_of(ns + b"\0"), checkpoint_id + b"\0"))

    def copied(self, field: bytes, stored: bytes) -> tuple[bytes, bytes]:
        """Return a field of the copy and its contents."""
        kind, new, old = field[:1], self.sealing, self._context.opener()
        if kind == b"c":
            return field, self._header(old, new, field, stored)
        if new is None or old is None or not stored or field == chunks.PLAIN + chunks.digest(stored):  # names stay open
            return field, stored
        if kind == b"w":
            return field, self._writes(old, new, field, stored)
        if kind == b"b":
            return field, new.seal_value(field, self._root(new, old.open_value(field, stored)))
        if kind == chunks.LIST:
            return self._name(new, field), self._list(new, field)
        chunk = whole = old.open_chunk(field, stored)
        if kind == chunks.ZSTD:
            whole = compression.decompress(chunk, limits.Allowance(self._context.limits, "the thread"))
        name = self._names[field] = kind + new.digest(whole)
        return name, new.seal_chunk(name, chunk)

    def _header(self, old: Cipher | None, new: Cipher | None, field: bytes, stored: bytes) -> bytes:
        address = config.Address(self._source, *names.components(field[1:]))
        with decoding("the header of {}", address):
            of = None if old is None else old.open_header(field, stored)
        opened = of.header if of else stored
        if self._source != self._target:
            opened = header.copied(self._context, opened, address, self._target)
        if of is None or new is None:
            return opened
        writes = b"" if (address.checkpoint_ns, of.parent) in self._left_out else of.known_writes
        return new.seal_header(field, opened, writes, of)

    def _writes(self, old: Cipher, new: Cipher, field: bytes, stored: bytes) -> bytes:
        end, records = field.rindex(b"\0") + 1, list[bytes]()
        frames, call = old.open_writes(field[:end], field[end:], unpack(stored))
        for begin in range(0, len(frames), 5):
            *place, kind, data = frames[begin : begin + 5]
            records.append(pack([*place, kind, self._root(new, data) if kind == chunks.IN_CHUNKS else data]))
        if call is not None:
            (record,) = records
            (sealed,) = new.seal_special(field[:end], {int(field[end:]): record}, call).values()
            return sealed
        return b"".join(new.seal_writes(field[:end], records))

    def _name(self, new: Cipher, field: bytes) -> bytes:
        if field not in self._names:  # a list
            self._names[field] = chunks.LIST + new.digest(self._list(new, field))
        return self._names[field]

    def _list(self, new: Cipher, field: bytes) -> bytes:
        chunk = self._lists[field]
        return chunk[:1] + self._below(new, chunk[:1], chunk[1:])

    def _root(self, new: Cipher, value: bytes) -> bytes:
        """Return a value, or the root of its chunks under their new names."""
        if not chunks.in_chunks(value):
            return value
        start = take(value, 1 + chunks.DIGEST, 2)[1]
        below = value[1 + chunks.DIGEST : start] + self._below(new, value[:1], value[start:])
        return value[:1] + new.digest(value[:1] + below) + below

    def _below(self, new: Cipher, kind: bytes, digests: bytes) -> bytes:
        return chunks.digests_of([self._name(new, field) for field in chunks.children(kind, digests)])


def _is_as_planned(field: bytes, stored: bytes, references: References, reachable: ReachableChunks) -> bool:
    """True if a field still refers to the values or chunks that it had when the copy was planned."""
    if field[:1] == b"c":
        ns, checkpoint_id = names.components(field[1:])
        return stored.startswith(references.checkpoints[ns, checkpoint_id].raw)
    return roots_of(field, stored) == reachable.roots.get(field, [])
