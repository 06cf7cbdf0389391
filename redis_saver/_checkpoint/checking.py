"""Check that a thread is complete and consistent: headers, digests, references, deadlines, counters. Writes nothing.

HSCAN reads all fields of the data once, and each field is checked as it arrives. Names and links stay in memory, values
do not. If there are findings and somebody has written to the thread meanwhile, the check starts again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias

from redis_saver._checkpoint import delta, retention, scripts, threads
from redis_saver._common import config, limits, names
from redis_saver._common.display import shown
from redis_saver._engine.requests import Call, Command, Operation
from redis_saver._storage import chunks, codec, header
from redis_saver._storage.context import Context
from redis_saver._storage.framing import first, take, unpack
from redis_saver._storage.keyed import keyed
from redis_saver._storage.sealing import digests_of, split
from redis_saver.errors import DecodeError, KeyConflict, LimitExceeded, ThreadBusy, ThreadDamaged, decoding

Severity: TypeAlias = Literal["error", "warning", "info"]

MAX_FINDINGS = 100
"""Maximum number of listed findings of a thread. Further ones are only counted."""
ATTEMPTS = 5
APART = 100
"""Maximum difference of the two deadlines without a finding, in milliseconds. Older servers read the clock once for
each deadline."""
WRITER_GONE = 300_000
"""Milliseconds after which a writer with an open intent counts as dead. A write to cold must not take longer."""
FIRST_PAGE, FIELDS_PER_PAGE = 10, 1000
"""The COUNT of HSCAN for the first page, and its maximum. It is lower for long fields."""
BYTES_PER_PAGE = 500_000
"""Target size of a page of fields, in bytes."""
CHUNKS_PER_PAGE = 100
"""Number of chunks in a request."""

_RESTORE = "restore the thread from a backup, or delete it with delete_thread()"
_WITH = "read it with the serializer, key and limits that wrote it"
_READ = f"{_WITH}; if you have done so, {_RESTORE}"
_LEFT_OVER = "it only takes memory, until the thread is deleted; copy_thread() makes a copy without it"
_COUNT = "only threads() and prune() show this number; copy_thread() makes a copy with the right one"
_FOREIGN = "another program wrote it, and nothing reads it; remove it with HDEL or ZREM"
_CONFLICT = "find out which program owns that key; then choose another prefix, or remove the key"
_INDEX = "copy_thread() makes a copy with a new index"


class Finding(NamedTuple):
    """A problem of a thread."""

    severity: Severity
    """`error`: data are lost, unreadable or returned wrongly. `warning`: all data can be read, but something is
    superfluous or miscounted. `info`: the problem repairs itself."""
    where: str
    """The part of the thread, with names in the form of `repr`."""
    what: str
    """The problem."""
    remedy: str
    """The action that solves it."""


class CheckReport(NamedTuple):
    """The result of `check` for a thread."""

    thread_id: str
    """Its name."""
    checkpoints: int = 0
    """Number of checkpoints."""
    values: int = 0
    """Number of channel values."""
    chunks: int = 0
    """Number of chunks of long values."""
    writes: int = 0
    """Number of pending writes."""
    bytes: int = 0
    """Size of headers, values, chunks and writes as stored."""
    compared: int = 0
    """Number of checkpoints that were compared with cold."""
    lacking: int = 0
    """Number of records (checkpoints, pending writes of a task) that cold lacks. Unless it is 0, nothing is
    compared."""
    findings: tuple[Finding, ...] = ()
    """The first 100 problems."""
    more: int = 0
    """Number of further findings."""

    @property
    def sound(self) -> bool:
        """True if there are no findings, except those that repair themselves."""
        return not self.more and all(finding.severity == "info" for finding in self.findings)


class Findings(list[Finding]):
    """The first `MAX_FINDINGS` findings."""

    more: int = 0
    """Number of further findings."""

    def add(self, severity: Severity, where: str, what: str, remedy: str) -> None:
        """Add a finding, or count it if the list is full."""
        if len(self) < MAX_FINDINGS:
            self.append(Finding(severity, where, what, remedy))
        else:
            self.more += 1

    def add_each(self, severity: Severity, fields: Iterable[bytes], what: str, remedy: str) -> None:
        """Add the same finding about each of these fields or members."""
        for field in sorted(fields):
            self.add(severity, describe(field), what, remedy)

    @contextmanager
    def reading(self, where: str, remedy: str = _RESTORE) -> Iterator[None]:
        """Turn an error of the block into a finding: `where` cannot be read."""
        try:
            with decoding("{}", where):
                yield
        except (ThreadDamaged, LimitExceeded) as error:
            cause = error.__cause__
            why = str(error) if cause is None else f"{type(cause).__name__}: {cause}"
            self.add("error", where, f"it cannot be read: {why}", remedy)


class State(NamedTuple):
    """A thread as a whole, as `lua/checkpoint/check.lua` returns it."""

    counters: bytes
    index_deadline: int
    data_deadline: int
    members: int
    fields: int
    lacking: int
    note_deadline: int
    oldest_writer: int
    refused: list[bytes]
    has_cold: bytes
    """Not empty if the thread is `@cold_backed`: cold has all of it except dirty records."""
    is_whole: bytes
    """Not empty if the thread is `@complete`: hot has all that cold has."""
    has_gaps: bytes
    """Not empty if checkpoints were coalesced, so that cold lacks them."""
    is_deferred: bytes
    """Not empty if the data claim that there are dirty records (`@deferred_ttl`)."""

    def without_times(self) -> State:
        """Return the state without the parts that change without a write."""
        age = min(self.oldest_writer, 0)
        return self._replace(index_deadline=0, data_deadline=0, note_deadline=0, oldest_writer=age, refused=[])


_TYPES_OF_STATE = [bytes, *[int] * 7, list, *[bytes] * 4]
Compare: TypeAlias = Callable[[Context, str, State, "Inventory", Findings], Generator[Any, Any, int]]
"""Compares the checkpoints of a thread with another saver. Returns the number of compared checkpoints."""


def check(
    context: Context, thread: str, *, values: bool, compare: Compare | None = None
) -> Generator[Any, Any, CheckReport]:
    """Check all data of a thread.

    Args:
        context: The saver.
        thread: The thread.
        values: True to also decode values, writes and metadata.
        compare: Compares the thread with the cold saver, if there is one.

    Raises:
        ThreadNotFound: There is no such thread.
        ThreadBusy: Each of several attempts found something wrong, but the thread was written to during each.
        KeyUnavailable: The key of the thread is not there.
    """
    if (data_keys := context.data_keys) is None:
        return (yield from _check(context, thread, values=values, compare=compare))
    known, report = None, None
    for _ in range(ATTEMPTS):
        try:
            cipher = yield from data_keys.load(thread, context.keyspace.keys(thread).data_key, known)
        except DecodeError as error:
            return CheckReport(thread, findings=(Finding("error", f"thread {thread!r}", str(error), _WITH),))
        if report and cipher is known:
            return report
        report = yield from _check(context, thread, values=values, compare=compare)
        if not report.findings:
            return report
        known = cipher  # is read again, as findings may only show that another process has replaced the thread
    raise _busy(thread)


@keyed
def _check(context: Context, thread: str, *, values: bool, compare: Compare | None) -> Generator[Any, Any, CheckReport]:
    for _ in range(ATTEMPTS):
        try:
            before = yield from _state(context, thread)
        except (ThreadDamaged, KeyConflict) as error:
            remedy = _CONFLICT if isinstance(error, KeyConflict) else _RESTORE
            return CheckReport(thread, findings=(Finding("error", f"thread {thread!r}", str(error), remedy),))
        if before is None:
            raise threads.not_there(thread)
        findings = Findings()
        _check_state(thread, before, findings)
        inventory = Inventory(context, thread, findings, values=values)
        yield from inventory.take()
        yield from inventory.compare(before.counters)
        if not before.has_cold or before.is_whole:  # else cold may have what is not here
            yield from inventory.check_histories()
        compared = (yield from compare(context, thread, before, inventory, findings)) if compare else 0
        try:
            after = yield from _state(context, thread)
        except (ThreadDamaged, KeyConflict):
            continue  # the next attempt reports it
        if not findings or (after and before.without_times() == after.without_times()):
            counts = len(inventory.headers), len(inventory.values), len(inventory.chunks), inventory.writes
            return CheckReport(
                thread, *counts, inventory.bytes, compared, before.lacking, tuple(findings), findings.more
            )
    raise _busy(thread)


def _busy(thread: str) -> ThreadBusy:
    return ThreadBusy(f"thread {thread!r} was written to during each of {ATTEMPTS} attempts to check it; try again")


def _state(context: Context, thread: str) -> Operation[State | None]:
    """Read the state of a thread. None if there is no such thread."""
    keys = context.keyspace.tier_keys(thread)
    wanted = (keys.index_key, keys.data_key, keys.intents, keys.dirty, keys.flush)
    reply = yield Call(scripts.CHECK, wanted, (MAX_FINDINGS,))
    if reply is None:
        return None
    with decoding("the state of thread {!r}", thread):
        now = State(*reply)
        if [*map(type, now)] != _TYPES_OF_STATE or {*map(type, now.refused)} - {bytes} or len(now.refused) % 2:
            raise TypeError(f"it is {shown(reply)}")
    return now


def _check_state(thread: str, now: State, findings: Findings) -> None:
    """Check that deadlines, dirty records and intents of the thread agree with each other."""
    where, deadlines = f"thread {thread!r}", (now.index_deadline, now.data_deadline)
    if (min(deadlines) < 0 and deadlines[0] != deadlines[1]) or abs(deadlines[0] - deadlines[1]) > APART:
        index, data = ("never" if left < 0 else f"in {left} ms" for left in deadlines)
        remedy = "set_thread_ttl(), or pin() and unpin(), give both the same"
        findings.add("error", where, f"its index expires {index} and its data {data}: half of it will be gone", remedy)
    if now.lacking and max(*deadlines, now.note_deadline) >= 0:
        remedy = "bring it to cold before it expires: flush(), or redis-saver flush"
        findings.add("error", where, f"cold lacks {now.lacking} of its records, but it expires", remedy)
    if now.lacking and not now.is_deferred:
        remedy = "flush(), or redis-saver flush, brings it there"
        findings.add("warning", where, f"cold lacks {now.lacking} of its records, but its data do not say so", remedy)
    if now.is_deferred and not now.lacking:
        text = "its data say that cold lacks some of its records, but their list is gone"
        remedy = "redis-saver migrate to cold copies them; after the next write the thread expires again"
        findings.add("error", where, text, remedy)
    if now.oldest_writer >= WRITER_GONE:
        text = f"a writer began {now.oldest_writer // 1000} s ago, and did not report if its write reached cold"
        findings.add("info", where, text, "the next read through a TieredSaver reads cold, and repairs it")
    for member, noted in zip(now.refused[::2], now.refused[1::2], strict=True):
        with findings.reading(describe(member)):
            tries, _, error = noted.split(b" ", 2)
            text = f"cold refused it {int(tries)} times: {names.decode(error)!r}"
            findings.add("warning", describe(member), text, "remove the cause in cold; the flusher tries again")


def cut_off(parent: str, channels: Iterable[str]) -> str:
    """Return what is wrong with a checkpoint if the parent is gone from which `DeltaChannel`s are rebuilt."""
    return (
        f"its parent {shown(parent)} is gone, so its DeltaChannels {shown(sorted(channels))}, and those of later "
        "checkpoints up to a snapshot, lack updates"
    )


def describe(name: bytes) -> str:
    """Return a description of a field of the data or a member of the index."""
    try:
        return _described(name[:1], name[1:])
    except (ValueError, IndexError):
        return f"field {name!r}"


def _described(kind: bytes, rest: bytes) -> str:
    if kind in (b"c", b"i"):
        ns, checkpoint_id = names.components(rest)[:: 1 if kind == b"c" else -1]
        return f"checkpoint {checkpoint_id!r}{_of(ns)}"
    if kind == b"w":
        head, _, index = rest.rpartition(b"\0")
        ns, checkpoint_id, task = names.components(head + b"\0")
        special = f" to the special channel {int(index)}" if index else ""
        return f"writes of task {task!r}{special} on checkpoint {checkpoint_id!r}{_of(ns)}"
    if kind == b"b":
        (ns, channel), version = names.components(rest)[:2], rest.split(b"\0", 2)[2]
        return f"value of channel {channel!r} in version {names.version_from(version)!r}{_of(ns)}"
    if kind == b"r":
        return f"run {names.decode(rest)!r}"
    if kind == b"s":
        root_id, ns = names.components(rest)
        return f"the root checkpoint {root_id!r} of the call{_of(ns)}"
    if kind in chunks.KINDS and len(rest) == chunks.DIGEST:
        return f"chunk {kind.decode()}:{rest.hex()}"
    raise ValueError


def _of(ns: str) -> str:
    return f" of namespace {ns!r}" if ns else ""


class Inventory:
    """The contents of a thread. `take` fills it, and `compare` checks it."""

    def __init__(self, context: Context, thread: str, findings: Findings, *, values: bool) -> None:
        """Start empty.

        Args:
            context: The saver.
            thread: The thread.
            findings: Receives the findings.
            values: True to also decode values, writes and metadata.
        """
        self._context, self._thread, self._findings, self._decodes = context, thread, findings, values
        self._data_key = context.keyspace.keys(thread).data_key
        self.headers: dict[retention.CheckpointKey, bytes] = {}
        """The links of each checkpoint, as they are stored."""
        self.values: set[bytes] = set()
        """The fields of the values."""
        self.chunks: set[bytes] = set()
        self.marks: set[bytes] = set()
        """Fields of the thread as a whole (`@…`)."""
        self.bytes, self.writes = 0, 0
        self._records: set[bytes] = set()
        """The fields of the records of pending writes."""
        self._in_chunks: dict[bytes, bytes] = {}
        """The values and records with chunks, by field."""
        self._members: set[bytes] = set()
        self._lists: dict[bytes, bytes] = {}
        self._names: dict[bytes, bytes] = {}
        """The names chunks that were read."""
        self._strays: Sequence[bytes] = ()
        self._special = defaultdict[retention.CheckpointKey, list[bytes]](list)
        """The special writes of an encrypted thread, as `codec.decode_writes` takes them."""
        self._written = defaultdict[retention.CheckpointKey, set[bytes]](set)
        self._named = defaultdict[retention.CheckpointKey, set[bytes]](set)
        """Tasks with pending writes by checkpoint: those that are there, and those that sealed headers name."""

    def take(self) -> Operation[None]:
        """Read the members of the index and all fields of the data, and check each field alone."""
        self._members.update((yield from retention.members(self._context, self._thread)))
        cursor, count, seen, cursors = 0, FIRST_PAGE, set[bytes](), set[int]()
        while True:
            reply = yield Command(("HSCAN", self._data_key, cursor, "COUNT", count))
            with decoding("the contents of thread {!r}", self._thread):
                cursor, fields = _page(reply)
                if cursor in cursors:  # a server never returns a cursor twice, even if others write
                    raise ValueError(f"HSCAN answers cursor {shown(cursor)} a second time, and would never end")
                cursors.add(cursor)
            # HSCAN may return a field twice.
            new = {field: stored for field, stored in fields.items() if field not in seen}
            seen.update(new)
            wanted = {named for field, stored in new.items() if field[:1] == b"c" and (named := _named(stored))}
            read = yield from self._fetch(wanted - self._names.keys())
            with decoding("the names of channels of thread {!r}", self._thread):
                self._names |= {named: chunk for named, chunk in read.items() if named[1:] == chunks.digest(chunk)}
            for field, stored in new.items():
                with self._findings.reading(describe(field)):
                    self._look_at(field, stored)
            if not cursor:
                return
            size = sum(map(len, fields.values())) + 1
            count = max(1, min(FIELDS_PER_PAGE, 4 * count, count * BYTES_PER_PAGE // size))

    def _fetch(self, wanted: Iterable[bytes]) -> Operation[dict[bytes, bytes]]:
        """Read chunks as they are stored, except missing ones."""
        ordered, read = sorted(wanted), dict[bytes, bytes]()
        for start in range(0, len(ordered), CHUNKS_PER_PAGE):
            page = ordered[start : start + CHUNKS_PER_PAGE]
            stored = yield Command(("HMGET", self._data_key, *page))
            with decoding("chunks of thread {!r}", self._thread):
                read |= {field: chunk for field, chunk in zip(page, stored, strict=True) if chunk is not None}
        return read

    def _look_at(self, field: bytes, stored: bytes) -> None:
        """Check a field alone, and remember it for `compare`."""
        kind = field[:1]
        self.bytes += len(stored) if kind != b"@" else 0
        if kind == b"c":
            self._look_at_header(field, stored)
        elif kind in (b"b", b"w"):
            self._look_at_values(field, stored)
        elif kind in chunks.KINDS and len(field) == 1 + chunks.DIGEST:
            self.chunks.add(field)
            chunk = codec.as_chunks(self._context, (field, stored), self._thread)[field]
            if kind == chunks.LIST:
                self._lists[field] = chunk
                chunks.children(chunk[:1], chunk[1:])
        elif field.startswith(retention.FIELDS):
            self.marks.add(field)
            if field == retention.STRAY:
                self._strays = unpack(stored)
        else:
            self._findings.add("warning", describe(field), "redis_saver has no such field", _FOREIGN)

    def _look_at_header(self, field: bytes, stored: bytes) -> None:
        ns, checkpoint_id = names.components(field[1:])
        self.headers[ns, checkpoint_id] = stored[: take(stored, 0, 8)[1]]
        if (count := len(unpack(stored))) != header.FRAMES:
            raise ValueError(f"a header has {header.FRAMES} frames, and this one {count}")
        if self._decodes and _named(stored) in self._names:
            with self._findings.reading(describe(field), _READ):
                address = config.Address(self._thread, ns, checkpoint_id)
                if (cipher := self._context.opener()) is not None:
                    of = cipher.open_header(field, stored)
                    stored = of.header
                    self._named[ns, names.name_of(of.parent)] |= split(of.known_writes)
                header.decode(self._context, stored, checkpoint_id, self._names, address)

    def _look_at_values(self, field: bytes, stored: bytes) -> None:
        """Check a value, or a record of pending writes."""
        if field[:1] == b"b":
            self.values.add(field)
        else:
            self._records.add(field)
            self.writes += len(self._writes_in(field, stored))
        if roots := retention.roots_of(field, stored):
            for root in roots:
                if self._context.cipher is None:  # else decoding opens it
                    chunks.check(root, chunks.digest)
            self._in_chunks[field] = stored
        elif stored and self._decodes:  # a value is empty if a later put emptied its version
            self._decode(field, stored, {})
        elif stored:
            first(stored)

    def _writes_in(self, field: bytes, record: bytes) -> list[chunks.Write]:
        """Return the writes of a record."""
        head, _, special = field[1:].rpartition(b"\0")
        ns, checkpoint_id, task = names.components(head + b"\0")
        address, of_task = config.Address(self._thread, ns, checkpoint_id), (names.component(task) + special, record)
        writes = codec.decode_writes(self._context, of_task, address, is_whole=False)
        if self._context.cipher is not None and field in self._members:  # no reader sees others
            self._special[ns, checkpoint_id] += of_task if special else ()
            self._written[ns, checkpoint_id].update(digests_of([(task, write.channel) for write in writes]))
        return writes

    def _decode(self, field: bytes, stored: bytes, its_chunks: codec.Chunks) -> None:
        """Decode a value, or the writes in a record."""
        with self._findings.reading(describe(field), _READ):
            if field[:1] == b"b":
                channel = names.name_of(field[1:].split(b"\0", 2)[1] + b"\0")
                cipher = self._context.opener()
                value = stored if cipher is None else cipher.open_value(field, stored)
                self._decoder(its_chunks).value(value, channel)
                return
            for write in self._writes_in(field, stored):
                self._decoder(its_chunks).write(write)

    def _allowance(self) -> limits.Allowance:
        return limits.Allowance(self._context.limits, f"thread {self._thread!r}")

    def _decoder(self, its_chunks: codec.Chunks) -> codec.Decoder:
        return codec.Decoder(self._context, its_chunks, self._allowance())

    def compare(self, counters: bytes) -> Operation[None]:
        """Compare references with what they refer to.

        Args:
            counters: The field `@state`.
        """
        self._check_index()
        referred = self._check_headers()
        self._findings.add_each("warning", self.values - referred, "no checkpoint refers to it", _LEFT_OVER)
        self._check_writes()
        yield from self._check_chunks()
        with decoding("the counters of thread {!r}", self._thread):
            _format, _revision, *counted = map(int, counters.split()[:5])
            actual = self.bytes, len(self.values), self.writes
            counts = [*zip(("bytes", "values", "pending writes"), counted, actual, strict=True)]
        for what, count, wanted in counts:
            if count != wanted:
                text = f"its counter says {count} {what}, and there are {wanted}"
                self._findings.add("warning", f"thread {self._thread!r}", text, _COUNT)

    def _check_index(self) -> None:
        stored = {names.checkpoint(*key) for key in self.headers} | self._records
        listed = {member for member in self._members if member[:1] in (b"c", b"w")}
        ages = {names.by_age(*key) for key in self.headers if key[0]}
        listed_ages = {member for member in self._members if member[:1] == b"i"}
        others = {member for member in self._members if member and member[:1] not in (b"c", b"w", b"i", b"r", b"s")}
        add = self._findings.add_each
        add("error", listed - stored, "the index names it, but it is gone from the data", _RESTORE)
        text = "it is in the data, but the index does not name it, so no method lists it"
        add("warning", stored - listed, text, _LEFT_OVER)
        text = "the order by age does not name it, so list() over all namespaces leaves it out"
        add("error", ages - listed_ages, text, _INDEX)
        text = "the order by age names it, but it is not there, so list() over all namespaces fails"
        add("error", listed_ages - ages, text, _INDEX)
        add("warning", others, "redis_saver has no such member", _FOREIGN)

    def _check_headers(self) -> set[bytes]:
        """Check the references of headers. Returns the fields of all values that they name."""
        referred, runs = set[bytes](), set[bytes]()
        for key, raw in self.headers.items():
            where, named = describe(names.checkpoint(*key)), _named(raw)
            if named not in self._names:
                problem = "cannot be read" if named in self.chunks else "are gone"
                self._findings.add("error", where, f"the names of its channels {problem}", _RESTORE)
                continue
            with self._findings.reading(where):
                links = header.decode_links(raw, self._names, self._thread, self._allowance())
                runs |= {links.run} - {b""}
                for entry in links.entries:
                    field = names.blob(key[0], entry[1:])
                    referred.add(field)
                    if entry[:1] != header.ABSENT and field not in self.values:
                        self._findings.add("error", where, f"it has lost the {describe(field)}", _RESTORE)
        text = "the index does not name it, so delete_for_runs() misses it"
        self._findings.add_each("warning", runs - self._members, text, _INDEX)
        return referred

    def _check_writes(self) -> None:
        """Check that an encrypted thread has the pending writes that were sealed together, or seen by a child."""
        for key, stored in self._special.items():
            with self._findings.reading(describe(names.checkpoint(*key))):
                codec.decode_writes(self._context, stored, config.Address(self._thread, *key))
        for key, seen in self._named.items():
            if key in self.headers and (gone := seen - self._written[key]):
                text = f"the pending writes of {len(gone)} tasks are gone, which the writer of its child had seen"
                self._findings.add("error", describe(names.checkpoint(*key)), text, _RESTORE)

    def cut(self) -> dict[retention.CheckpointKey, str]:
        """Return the checkpoints whose parent is not here, with the id of that parent."""
        cut = dict[retention.CheckpointKey, str]()
        for key, raw in self.headers.items():
            if _named(raw) in self._names:  # else there is a finding already
                escaped = take(raw, 0, 1)[0][0]
                parent = names.name_of(escaped) if escaped else ""
                if parent and (key[0], parent) not in self.headers:
                    cut[key] = parent
        return cut

    def check_histories(self) -> Operation[None]:
        """Check that checkpoints whose parent is gone need nothing of it for a `DeltaChannel`."""
        with decoding("the links of thread {!r}", self._thread):
            cut = self.cut()
        stored = yield from self._fetch(names.checkpoint(*key) for key in cut)
        for key, parent in cut.items():
            member = names.checkpoint(*key)
            with self._findings.reading(describe(member), _READ):
                metadata = header.metadata(self._context, stored[member], config.Address(self._thread, *key))
                if not (needed := delta.rebuilt(metadata)):
                    continue
                links = header.decode_links(self.headers[key], self._names, self._thread, self._allowance())
                fields = {entry[1 : entry.index(b"\0") + 1]: names.blob(key[0], entry[1:]) for entry in links.entries}
                lost = {name for name in needed if fields.get(names.component(name), b"") not in self.values | {b""}}
                if lost:
                    self._findings.add("error", describe(member), cut_off(parent, lost), _RESTORE)

    def _check_chunks(self) -> Operation[None]:
        """Check that values and records have all their chunks, and that each chunk is used. Decodes complete ones."""
        used, last = {_named(raw) for raw in self.headers.values()}, dict[bytes, bytes]()
        for field, stored in sorted(self._in_chunks.items()):
            wanted = set[bytes]()
            with self._findings.reading(describe(field)):
                wanted = chunks.reachable(retention.roots_of(field, stored), self._lists)
            used |= wanted
            if gone := wanted - self.chunks:
                text = f"{len(gone)} of its chunks are gone, one of them is {describe(min(gone))}"
                self._findings.add("error", describe(field), text, _RESTORE)
            elif self._decodes and wanted:
                # The previous value has most of these chunks too.
                last = {chunk: last[chunk] for chunk in wanted & last.keys()}
                new = yield from self._fetch(wanted - last.keys())
                with self._findings.reading(describe(field)):
                    last |= codec.as_chunks(
                        self._context, [part for pair in new.items() for part in pair], self._thread
                    )
                if wanted <= last.keys():
                    self._decode(field, stored, last)
        for root in self._strays:
            with self._findings.reading("@gc_roots"):
                used |= chunks.reachable([root], self._lists)
        text = "no value or pending write has it, and @gc_roots does not lead to it, so prune() does not remove it"
        self._findings.add_each("warning", self.chunks - used, text, _LEFT_OVER)


def _named(raw: bytes) -> bytes:
    """Return the field of a header's names chunk. Empty if the header is damaged."""
    try:
        return header.names_chunk_of(raw)
    except ValueError:
        return b""


def _page(reply: Any) -> tuple[int, Mapping[bytes, bytes]]:
    """Return the next cursor and the fields of an HSCAN page. Some clients return a dict, others a flat list."""
    cursor, page = reply
    fields = page if isinstance(page, Mapping) else dict(zip(page[::2], page[1::2], strict=True))
    if wrong := [pair for pair in fields.items() if {*map(type, pair)} != {bytes}]:
        raise TypeError(f"{shown(wrong[0])} is no field with its bytes")
    return int(cursor), fields
