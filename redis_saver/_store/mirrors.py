"""Mirrors: a partition's items as a process knows them, for searches that look at all of them.

A script changes no version but to a greater one, so what a mirror lacks are the items above its newest version. And the server says how many items the
partition has, and the sum of their versions: with these, a mirror that has all that is newer is exact, or it has items that are gone. Then all versions are
listed. A mirror is believed only if both numbers agree in the call that asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from redis_saver._common.store_names import Partition
from redis_saver._engine import scripts
from redis_saver._engine.requests import Operation
from redis_saver._store.calling import ask
from redis_saver._store.context import StoreContext
from redis_saver._store.items import Entry

MAX_ATTEMPTS = 5
"""How often versions are listed while others remove items all the time."""
_CHECKSUM = 2**50


@dataclass(frozen=True)
class Mirror:
    """The items of a partition at one moment. Nobody changes it: a later one is another."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    """By field, oldest first."""
    token: bytes = b""
    """That of the partition in the directory: one that begins anew has another."""
    checksum: int = 0
    """The sum of the versions."""

    @property
    def newest(self) -> int:
        """The greatest version, 0 for none."""
        return next(reversed(self.entries.values())).version if self.entries else 0


NOTHING = Mirror()


def synced(context: StoreContext, partition: Partition) -> Operation[Mirror]:
    """A partition's items as they are now.

    One round trip where nothing or little is new, of some bytes where nothing is. More for each thousand items, or megabyte, that is; and where items went, one
    more for each four thousand that the partition has.
    """
    place = "mirror", partition.member
    before: Mirror = context.remembered.get(place) or NOTHING
    if (found := (yield from _with_newer(context, partition, before))) is None:
        found = yield from _without_removed(context, partition, before)
    if found is not before:
        if found.entries:
            context.remembered.put(place, found, sum([entry.size for entry in found.entries.values()]))
        else:
            context.remembered.forget(place)
    return found


def _with_newer(context: StoreContext, partition: Partition, before: Mirror) -> Operation[Mirror | None]:
    """A mirror with what is newer than it; None if it also has items that are gone."""
    entries, token, above, is_last = before.entries, before.token, before.newest, 0
    while not is_last:
        reply = yield from ask(context, partition, scripts.LIST_ITEMS, (above, "records"))
        if not reply:
            return NOTHING
        now, count, checksum, is_last, *flat = reply
        if now != token and entries:  # it began anew, or goes on behind a failover
            entries, token, above, is_last = {}, now, 0, 0
            continue
        token = now
        if flat:
            entries = dict(entries) if entries is before.entries else entries
            above = _add(entries, flat)
    if entries is before.entries and len(entries) == count and before.checksum == int(checksum):
        return before
    found = Mirror(entries, token, _sum(entries))
    return found if len(entries) == count and found.checksum == int(checksum) else None


def _add(entries: dict[bytes, Entry], flat: list[bytes]) -> int:
    """Add newer items, which come oldest first. Returns the newest version."""
    entry = None
    for position in range(0, len(flat), 2):
        entry = Entry(flat[position], flat[position + 1])
        entries.pop(entry.field, None)
        entries[entry.field] = entry
    return entry.version if entry else 0


def _sum(entries: dict[bytes, Entry]) -> int:
    return sum([entry.version for entry in entries.values()]) % _CHECKSUM


def _without_removed(context: StoreContext, partition: Partition, before: Mirror) -> Operation[Mirror]:
    """A mirror that is made of the list of all versions.

    If others remove items during each attempt, the last one counts: it has each item that is there all the time.
    """
    known = dict(before.entries)
    found = NOTHING
    for _ in range(MAX_ATTEMPTS):
        versions: dict[bytes, int] = {}
        above, is_last = b"0", 0
        while not is_last:
            reply = yield from ask(context, partition, scripts.LIST_ITEMS, (above, "versions"))
            if not reply:
                return NOTHING
            token, count, checksum, is_last, *flat = reply
            for position in range(0, len(flat), 2):
                versions.pop(flat[position], None)
                versions[flat[position]] = int(flat[position + 1])
            above = flat[-1] if flat else above
        if lacking := [
            name for name, version in versions.items() if name not in known or known[name].version != version
        ]:
            yield from _read(context, partition, lacking, known)
        entries = {name: known[name] for name in versions if name in known}
        found = Mirror(dict(sorted(entries.items(), key=lambda one: one[1].version)), token, _sum(entries))
        if len(entries) == count and found.checksum == int(checksum):
            break
    return found


def _read(
    context: StoreContext, partition: Partition, fields: list[bytes], known: dict[bytes, Entry]
) -> Operation[None]:
    for start in range(0, len(fields), 500):
        some = fields[start : start + 500]
        records = yield from ask(context, partition, scripts.GET_ITEMS, (0, *some))
        for name, record in zip(some, records or [None] * len(some), strict=True):
            known.pop(name, None)
            if record is not None:
                known[name] = Entry(name, record)
