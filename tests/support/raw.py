"""Raw data of a thread in Redis, decoded by hand."""

from __future__ import annotations

import itertools
import re
from typing import Any

from tests.support.uniform import Target

from redis_saver import Limits
from redis_saver._common import names
from redis_saver._common.limits import Allowance
from redis_saver._common.names import Keyspace
from redis_saver._storage import chunks as chunked
from redis_saver._storage import codec, framing
from redis_saver._storage import header as headers
from redis_saver._storage.header import ABSENT
from redis_saver._storage.keys import FIELD
from redis_saver._engine.scripts import FORMAT
from redis_saver._storage.sealing import ID


def counters(fields: dict[bytes, bytes]) -> dict[str, int]:
    """Return the counters in the data's `@state`."""
    counted, _ = _state(fields)
    return dict(zip(("format", "rev", "bytes", "blobs", "writes"), map(int, counted), strict=True))


def _state(fields: dict[bytes, bytes]) -> tuple[list[bytes], bytes]:
    """Return the counters in `@state`, and the tag, if any."""
    said = re.fullmatch(rb"(\d+ \d+ \d+ \d+ \d+)(?: (\d{16}[0-9a-f]{16}))?", fields[b"@state"])
    assert said, fields[b"@state"]
    return said[1].split(), said[2] or b""


def size(fields: dict[bytes, bytes]) -> int:
    """Count the bytes of headers, values, chunks and writes by hand."""
    return sum(len(value) for field, value in fields.items() if field[:1] != b"@")


def counted(fields: dict[bytes, bytes]) -> dict[str, int]:
    """Count by hand what `@state` should have, except `rev`."""
    return {
        "bytes": size(fields),
        "blobs": sum(field[:1] == b"b" for field in fields),
        "writes": sum(len(framing.unpack(value)) // 5 for field, value in fields.items() if field[:1] == b"w"),
    }


def writes_in_chunks(fields: dict[bytes, bytes]) -> list[bytes]:
    """Return the roots of all pending writes that are stored in chunks."""
    return [root for field, record in fields.items() if field[:1] == b"w" for root in codec.roots_in(record)]


def check_counters(fields: dict[bytes, bytes]) -> None:
    said = counters(fields)
    lowest = 3 if _state(fields)[1] else 2 if writes_in_chunks(fields) else 1
    lowest, highest = (FORMAT, FORMAT) if b"@key" in fields else (lowest, 3)
    assert lowest <= said.pop("format") <= highest
    assert said.pop("rev") > 0
    assert said == counted(fields)


def all_links(fields: dict[bytes, bytes]) -> dict[tuple[str, str], headers.Links]:
    """Return the links of each checkpoint, by namespace and id."""
    return {
        tuple(names.components(field[1:])): headers.decode_links(header, fields, "", Allowance(Limits(), ""))  # type: ignore[misc]
        for field, header in fields.items()
        if field[:1] == b"c"
    }


def check_sound(target: Target, thread: str = "thread") -> None:
    """Check that all parts of a thread agree: index, headers, values, chunks, writes, counters.

    Nothing may be left over.
    """
    index, data = Keyspace(target.prefix).keys(thread)
    members, fields = set(target.raw.zrange(index, 0, -1)), target.raw.hgetall(data)
    needed, known, ages, runs, chunks = set[bytes](), set[bytes](), set[bytes](), set[bytes](), set[bytes]()
    for (ns, checkpoint_id), links in all_links(fields).items():
        known |= {names.blob(ns, entry[1:]) for entry in links.entries}
        needed |= {names.blob(ns, entry[1:]) for entry in links.entries if entry[:1] != ABSENT}
        ages |= {names.by_age(ns, checkpoint_id)} if ns else set()
        runs |= {links.run} - {b""}
        chunks.add(links.names_chunk)
    stored = {kind: {field for field in fields if field[:1] == kind} for kind in (b"c", b"b", b"w", b"@")}
    for root in [*(fields[field] for field in stored[b"b"]), *writes_in_chunks(fields)]:
        chunks |= chunked.reachable([root], fields)
    assert set().union(chunks, *stored.values()) == set(fields)
    assert needed <= stored[b"b"] <= known
    assert members == {b""} | stored[b"c"] | stored[b"w"] | ages | runs
    check_counters(fields)


def without_revision(holds: Any) -> Any:
    """Return a hash without what every write or the clock changes; any other value unchanged."""
    if not isinstance(holds, dict):
        return holds
    kept = {field: value for field, value in holds.items() if field != b"@copy"}
    if b"@state" in kept:
        kept[b"@state"] = b" ".join(_state(kept)[0][2:])
    if b"@rewritten" in kept:
        kept[b"@rewritten"] = b""
    if FIELD in kept:  # a copy's data key has an id of its own, and is wrapped anew
        wrapped_by, _, asked, _ = framing.unpack(kept[FIELD][ID:])
        kept[FIELD] = framing.pack([wrapped_by, asked])
    return kept


def referenced(fields: dict[bytes, bytes]) -> set[bytes]:
    """Return the fields of all chunks that a header, a value or a pending write uses."""
    found = chunked.reachable(writes_in_chunks(fields), fields)
    found |= {links.names_chunk for links in all_links(fields).values()}
    for field, value in fields.items():
        if field[:1] == b"b":
            found |= chunked.reachable([value], fields)
    return found


def stored_chunks(fields: dict[bytes, bytes]) -> set[bytes]:
    return {field for field in fields if field[:1] in (b"p", b"z", b"n")}


def check_chunks(target: Target, thread: str = "thread", *, swept: bool = False) -> None:
    """Check that all used chunks exist, and that `@gc_roots` lists all others. If `swept`, there must be no others."""
    fields = target.raw.hgetall(Keyspace(target.prefix).keys(thread).data_key)
    alive, there = referenced(fields), stored_chunks(fields)
    assert alive <= there, "chunks are missing"
    stray = chunked.reachable(framing.unpack(fields.get(b"@gc_roots", b"")), fields)
    assert there - alive <= stray, "chunks are left that no root refers to"
    if swept:
        assert b"@gc_roots" not in fields
        assert there == alive


def raw_bytes(target: Target) -> bytes:
    """Return all keys, fields, members and values of the test's prefix."""
    found: list[bytes] = []
    for key in target.keys():
        is_hash = target.raw.type(key) == b"hash"
        found += [
            key,
            *(itertools.chain(*target.raw.hgetall(key).items()) if is_hash else target.raw.zrange(key, 0, -1)),
        ]
    return b"\n".join(found)


def contents(target: Target) -> dict[bytes, tuple[Any, int]]:
    """Return what each key under the test's prefix holds, and in how many minutes it expires. 0: never."""
    raw, found = target.raw, {}
    for key in target.keys():
        read = {b"hash": raw.hgetall, b"zset": lambda key: raw.zrange(key, 0, -1, withscores=True)}
        found[key] = read.get(raw.type(key), raw.get)(key), -(-raw.pttl(key) // 60_000)
    return found
