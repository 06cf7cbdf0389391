"""Random attacks on the stored data of encrypted threads: a read raises, or answers what was written there.

Whoever can write to Redis may hide things: the newest checkpoints, a whole checkpoint, or all of a task's pending
writes. Everything else that is changed, moved, replaced or removed has to be noticed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from tests.support import seeds
from tests.support.attacking import Honest, check_history, check_tuple, graph, key_of, turn
from tests.support.factories import config
from tests.support.hostile import ALLOWED, changed_bytes, resealed
from tests.support.servers import url_of
from tests.support.uniform import encryption, shared

from redis_saver import KeyMismatch, RedisSaver, UnsupportedFormat
from redis_saver._storage.framing import pack, unpack
from redis_saver.encryption import Encryption, Keyset

ERRORS = (*ALLOWED, KeyMismatch, UnsupportedFormat)
PART = 500
"""Attacks of one test."""


class Stored(NamedTuple):
    """The raw data of a thread."""

    data: dict[bytes, bytes]
    index: frozenset[bytes]


class Attack(NamedTuple):
    fields: dict[bytes, bytes | None]
    """New contents by field; None: removed."""
    members: dict[bytes, bool]
    """Members of the index that are added or removed."""
    hides: bool = False
    """True if something may be missing: whole records of writes, or whole checkpoints."""


class Battlefield:
    """Encrypted threads, what was written to them, and records of other places to attack them with."""

    def __init__(self) -> None:
        self.client = shared(url_of("redis"))
        self.prefix = f"attacks{os.getpid()}"
        saver = self.saver()
        turn(saver, "thread", 0, "said")
        turn(saver, "thread", 1, "said")
        turn(saver, "other", 0, "meant")
        saver.copy_thread("thread", "copy")
        turn(saver, "thread", 3, "said")
        turn(saver, "copy", 3, "copied")
        graph(saver).invoke({"log": ["last"], "turn": 9, "long": [], "done": []}, config("thread", None))
        newest = saver.get_tuple(config("thread")).config
        saver.put_writes(newest, [("log", ["early"]), ("long", ["early"])], "early")
        saver.put_writes(newest, [("__error__", "first")], "failing")
        saver.put_writes(newest, [("__interrupt__", "pay 1?")], "asking")
        self.older = {"thread": self.stored("thread"), "copy": self.stored("copy")}
        old_tuples = {thread: self._tuples(thread) for thread in self.older}
        saver.put_writes(newest, [("log", ["early"]), ("long", ["early"]), ("turn", 7)], "early")
        saver.put_writes(newest, [("__error__", "second")], "failing")
        saver.put_writes(newest, [("__interrupt__", "pay 1,000?"), ("__resume__", ["yes"])], "asking")
        for thread in self.older:
            saved = saver.get_tuple(config(thread))
            metadata = {**saved.metadata, "note": "put again"}
            saver.put(saved.parent_config, saved.checkpoint, metadata, {})
        self.data_keys = saver._context.data_keys
        self.now = {thread: self.stored(thread) for thread in ("thread", "copy", "other")}
        self.honest = {}
        for thread in self.older:
            tuples = {key: [saved, *old_tuples[thread].get(key, [])] for key, (saved,) in self._tuples(thread).items()}
            histories = {key: self.history(self.saver(), thread, key) for key in tuples}
            self.honest[thread] = Honest(tuples, histories, [*self.saver().writes(thread)])
        self.strangers = {
            kind: [*self.now["other"].data.items()] + self._of(kind, setting)
            for kind, setting in {
                "plain": None,
                "another key": Encryption(Keyset({"2026-11": bytes(reversed(range(32)))})),
                "the same key": encryption(),
            }.items()
        }
        self.users = {thread: self._users(thread) for thread in self.older}
        self.attacked: tuple[str, Attack] = "thread", Attack({}, {})

    def saver(self, **options: Any) -> RedisSaver:
        return RedisSaver(self.client, **{"prefix": self.prefix, "encryption": encryption(), **options})

    def stored(self, thread: str, prefix: str = "") -> Stored:
        key = f"{prefix or self.prefix}:{{{thread}}}:"
        return Stored(self.client.hgetall(key + "data"), frozenset(self.client.zrange(key + "index", 0, -1)))

    def _tuples(self, thread: str) -> dict[tuple[str, str], list[CheckpointTuple]]:
        return {key_of(saved): [saved] for saved in self.saver().list(config(thread, None))}

    def _of(self, kind: str, setting: Encryption | None) -> list[tuple[bytes, bytes]]:
        """Return the fields of a thread with the same checkpoints and writes, stored by another saver."""
        prefix = f"{self.prefix}-{kind}"
        saver = RedisSaver(self.client, prefix=prefix, encryption=setting)
        for saved in reversed([*self.saver().list(config("thread", None))]):
            parent = saved.parent_config or config("thread", saved.config["configurable"]["checkpoint_ns"])
            saver.put(parent, saved.checkpoint, saved.metadata, saved.checkpoint["channel_versions"])
            for task, channel, value in saved.pending_writes:
                saver.put_writes(saved.config, [(channel, value)], task)
        return [*self.stored("thread", prefix).data.items()]

    def _users(self, thread: str) -> dict[bytes, list[tuple[str, str]]]:
        """Return the checkpoints of which a field is a part."""
        users: dict[bytes, list[tuple[str, str]]] = {}
        for ns, checkpoint_id in self.honest[thread].tuples:
            place = ns.encode() + b"\0" + checkpoint_id.encode() + b"\0"
            for field in self.now[thread].data:
                if field[1:].startswith(place) or (field[:1] == b"b" and field[1:].startswith(ns.encode() + b"\0")):
                    users.setdefault(field, []).append((ns, checkpoint_id))
        return users

    def history(self, saver: RedisSaver, thread: str, key: tuple[str, str]) -> Any:
        where = config(thread, key[0], key[1])
        return saver.get_delta_channel_history(config=where, channels=["log", "long"])

    def change(self, thread: str, attack: Attack) -> None:
        """Undo the last attack, and make another one."""
        pipeline = self.client.pipeline(transaction=False)
        now, last = self.now[self.attacked[0]], self.attacked[1]
        undone = {field: now.data.get(field) for field in last.fields}
        self._apply(pipeline, self.attacked[0], undone, {member: member in now.index for member in last.members})
        self._apply(pipeline, thread, attack.fields, attack.members)
        pipeline.execute()
        self.attacked = thread, attack

    def _apply(self, pipeline: Any, thread: str, fields: dict[bytes, bytes | None], members: dict[bytes, bool]) -> None:
        key = f"{self.prefix}:{{{thread}}}:"
        for field, stored in fields.items():
            pipeline.hdel(key + "data", field) if stored is None else pipeline.hset(key + "data", field, stored)
        for member, is_there in members.items():
            pipeline.zadd(key + "index", {member: 0}) if is_there else pipeline.zrem(key + "index", member)


# -- attacks


def any_of(chance: random.Random, stored: Stored, kinds: bytes = b"cbwpnz") -> bytes:
    kind = chance.choice([kind for kind in kinds if any(field[0] == kind for field in stored.data)])
    return chance.choice(sorted(field for field in stored.data if field[0] == kind))


def alike(stored: Stored, field: bytes) -> list[bytes]:
    """Return the other fields of the same kind."""
    return sorted(other for other in stored.data if other[:1] == field[:1] and other != field)


def moved(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """A record at the place of another one of its kind."""
    now = field.now[thread]
    into = any_of(chance, now)
    return Attack({into: now.data[chance.choice(alike(now, into) or [into])]}, {})


def swapped(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    now = field.now[thread]
    one = any_of(chance, now)
    two = chance.choice(alike(now, one) or [one])
    return Attack({one: now.data[two], two: now.data[one]}, {})


def replayed(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """What was at this place before."""
    older, now = field.older[thread].data, field.now[thread].data
    changed = sorted(name for name in older if now.get(name) != older[name] and name[:1] in b"cbw")
    chosen = chance.sample(changed, chance.randint(1, len(changed)))
    return Attack({name: older[name] for name in chosen}, {})


def from_elsewhere(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """A record of another thread, of the copy or its source, of a plain thread, or under another key."""
    into, now = any_of(chance, field.now[thread]), field.now[thread]
    twin = field.now["copy" if thread == "thread" else "thread"].data
    source = dict(chance.choice([*field.strangers.values(), [*field.now["other"].data.items()], [*twin.items()]]))
    if into in source and source[into] != now.data[into] and chance.random() < 0.7:
        return Attack({into: source[into]}, {})
    same = [stored for name, stored in sorted(source.items()) if name[:1] == into[:1]]
    return Attack({into: chance.choice(same or [b"plain"])}, {})


def damaged(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """Bits are flipped; bytes are cut, added or repeated; a root of chunks is forged."""
    into, now = any_of(chance, field.now[thread]), field.now[thread]
    data = changed_bytes(chance, now.data[into])
    return Attack({into: resealed(chance, data) if chance.random() < 0.1 else data}, {})


def unsealed(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """The mark of a sealed record is removed."""
    now = field.now[thread]
    into = any_of(chance, now, b"cbw")
    data = now.data[into]
    for kind in (b"msgpack", b"null", b"bytes", b"json", b"str"):
        for rule in (b"+siv2", b"+siv"):
            data = data.replace(b"%d:%b" % (len(kind + rule), kind + rule), b"%d:%b" % (len(kind), kind))
    return Attack({into: data}, {})


def ruled(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """A record is said to be sealed by the other rule."""
    now = field.now[thread]
    into = any_of(chance, now, b"cw")
    data, kind = now.data[into], b"msgpack"
    first, second = (b"%d:%b" % (len(kind + rule), kind + rule) for rule in (b"+siv", b"+siv2"))
    return Attack({into: data.replace(second, first) if second in data else data.replace(first, second)}, {})


def header_changed(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """Some frames of a header are those of another one, or are changed."""
    now = field.now[thread]
    into = any_of(chance, now, b"c")
    frames = unpack(now.data[into])
    for _ in range(chance.randint(1, 2)):
        number = chance.randrange(len(frames))
        other = unpack(now.data[chance.choice(alike(now, into))])[number]
        choices = [other, b"", changed_bytes(chance, frames[number]), frames[number][::-1]]
        if number == 4:
            choices += [bytes(b ^ 1 for b in frames[4]), b"1" * len(frames[4]), b"0" * len(frames[4])]
        frames[number] = chance.choice(choices)
    return Attack({into: pack(frames)}, {})


def writes_changed(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """The writes of a record are cut off, repeated, reordered, mixed with others, or one of their frames is changed."""
    now = field.now[thread]
    into = any_of(chance, now, b"w")
    frames, other = unpack(now.data[into]), unpack(now.data[chance.choice(alike(now, into))])
    writes = [frames[at : at + 5] for at in range(0, len(frames), 5)]
    others = [other[at : at + 5] for at in range(0, len(other), 5)]
    which = chance.randrange(6)
    if which == 0:
        del writes[chance.randrange(len(writes))]
    elif which == 1:
        writes.append(chance.choice(writes))
    elif which == 2:
        writes[chance.randrange(len(writes))] = chance.choice(others)
    elif which == 3:
        writes.append(chance.choice(others))
    elif which == 4:
        one, two = chance.choice(writes), chance.choice(others)
        number = chance.randrange(5)
        one[number] = two[number]
    else:
        one, number = chance.choice(writes), chance.randrange(5)
        one[number] = changed_bytes(chance, one[number])
    return Attack({into: pack([frame for write in writes for frame in write])}, {})


def removed(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """A field is gone, possibly with its members of the index."""
    now = field.now[thread]
    name = any_of(chance, now)
    members = {name: False} if name in now.index and chance.random() < 0.7 else {}
    if members and name[:1] == b"c":
        ns, checkpoint_id = name[1:].split(b"\0")[:2]
        by_age = b"i%b\0%b\0" % (checkpoint_id, ns)
        members |= {by_age: False} if by_age in now.index else {}
        gone = {other: None for other in now.data if other[:1] == b"w" and other[1:].startswith(name[1:])}
        return Attack({name: None, **gone}, members | dict.fromkeys(gone, False), hides=True)
    return Attack({name: None}, members, hides=bool(members) and name[:1] == b"w")


def index_changed(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """A member of the index is gone, or one is added that has another name."""
    now = field.now[thread]
    member = chance.choice(sorted(now.index - {b""}))
    if chance.random() < 0.4:
        return Attack({}, {member: False}, hides=True)
    parts = member[1:].split(b"\0")
    others = chance.choice(sorted(now.index))[1:].split(b"\0")
    parts[chance.randrange(len(parts))] = chance.choice([b"ffff", b"", *others])
    made = chance.choice([member[:1], b"i", b"c", b"w"]) + b"\0".join(parts)
    fields = {made: now.data[member]} if member in now.data and made not in now.data and chance.random() < 0.7 else {}
    return Attack(fields, {made: True}, hides=True)


def chunk_renamed(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """A root or a list names other chunks."""
    now = field.now[thread]
    names = [name for name in now.data if name[:1] in b"pn" and len(name) == 17]
    into = chance.choice(sorted(name for name, data in now.data.items() if any(one[1:] in data for one in names)))
    data = now.data[into]
    inside = [name for name in sorted(names) if name[1:] in data]
    one = chance.choice(inside)
    two = chance.choice([*inside, *sorted(names)])
    made = data.replace(one[1:], two[1:]) if chance.random() < 0.5 else data.replace(one[1:], b"", 1)
    return Attack({into: made, **({two: now.data[one]} if chance.random() < 0.3 else {})}, {})


def marks_changed(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """The data key or the state of the thread is changed."""
    now, other = field.now[thread], field.now["other"].data
    name = chance.choice([b"@key", b"@key", b"@state"])
    twin = field.now["copy" if thread == "thread" else "thread"].data
    state = [part.replace(b"5 ", chance.choice([b"1 ", b"4 ", b"9 "]), 1) for part in (now.data[b"@state"],)]
    replaced = [other[name], twin[name], changed_bytes(chance, now.data[name]), b"", None]
    return Attack({name: chance.choice(replaced if name == b"@key" else [*replaced[:3], *state])}, {})


def all_plain(chance: random.Random, field: Battlefield, thread: str) -> Attack:
    """The whole thread is replaced by a plain one."""
    plain = dict(field.strangers["plain"])
    changed = {name: plain.get(name) for name in {*field.now[thread].data, *plain}}
    if chance.random() < 0.5:
        changed.pop(b"@key")
    return Attack(changed, {}, hides=True)


ATTACKS: list[tuple[Callable[..., Attack], int]] = [
    (moved, 8), (swapped, 6), (replayed, 4), (from_elsewhere, 10), (damaged, 12), (unsealed, 2), (ruled, 2), (header_changed, 10),
    (writes_changed, 10), (removed, 8), (index_changed, 6), (chunk_renamed, 6), (marks_changed, 4), (all_plain, 1),
]  # fmt: skip


# -- reading


def read(chance: random.Random, field: Battlefield, thread: str, attack: Attack) -> None:
    """Read the thread by a new saver, in one of many ways, and check what it answers."""
    saver, honest = field.saver(), field.honest[thread]
    if b"@key" not in attack.fields:  # saves a round trip
        saver._context = saver._context._replace(data_keys=field.data_keys)
    touched = [key for name in attack.fields for key in field.users[thread].get(name, ())]
    ns, checkpoint_id = key = chance.choice(touched or [*honest.tuples])
    which = chance.choices(range(8), [60, 10, 2, 2, 20, 8, 2, 1])[0]  # the others take long
    if which <= 1:
        saved = saver.get_tuple(config(thread, ns, checkpoint_id if which == 0 else None))
        assert saved is not None or attack.hides
        if saved is not None:
            check_tuple(saved, honest, thread, hides=attack.hides)
            assert which == 1 or key_of(saved) == key
    elif which <= 3:
        filter, limit = {"source": "loop"} if which == 3 else None, chance.choice([None, 2, 4])
        found = [*saver.list(config(thread, chance.choice([None, ns])), filter=filter, limit=limit)]
        for saved in found:
            check_tuple(saved, honest, thread, hides=attack.hides)
            assert which == 2 or saved.metadata["source"] == "loop"
        order = [key_of(saved)[::-1] for saved in found]
        assert order == sorted(set(order), reverse=True)
    elif which == 4:
        history = field.history(saver, thread, key)
        check_history(history, honest.histories[key], honest.tuples[key][0], hides=attack.hides)
    elif which == 5:
        for channel in ("turn", "long"):
            found = [*saver.latest_values(channel, thread_ids=[thread])]
            assert found or attack.hides
            for value in found:
                (newest, *_) = honest.tuples["", value.checkpoint_id]
                assert value.value == newest.checkpoint["channel_values"][channel]
                assert value.version == newest.checkpoint["channel_versions"][channel]
    elif which == 6:
        made, wanted = (
            {
                (one.checkpoint_ns, one.checkpoint_id, one.task_id, one.channel, one.step, one.node)
                for one in writes
                if one.task_id
            }
            for writes in (saver.writes(thread), honest.writes)
        )
        assert made <= wanted
        assert attack.hides or len(made) >= len(wanted) - 2, "the writes that were added later may be missing"
    else:
        saver.check(thread)


@pytest.fixture(scope="module")
def battlefield() -> Iterator[Battlefield]:
    made = Battlefield()
    yield made
    keys = [key for key in made.client.scan_iter(match=f"{made.prefix}*", count=1000)]
    made.client.unlink(*keys)


def test_without_an_attack_all_is_read(battlefield: Battlefield) -> None:
    for thread in battlefield.older:
        for seed in range(60):
            read(random.Random(seed), battlefield, thread, Attack({}, {}))
        assert battlefield.saver().check(thread).sound


@pytest.mark.random
@pytest.mark.parametrize("part", seeds.seeds_and_slow(range(5), range(5, 200)))
def test_an_attack_shows_no_other_value(battlefield: Battlefield, part: int) -> None:
    for seed in range(part * PART, (part + 1) * PART):
        chance = random.Random(seed)
        ((attack_with, _),) = chance.choices(ATTACKS, [weight for _, weight in ATTACKS])
        thread = chance.choice(["thread", "copy"])
        attack = attack_with(chance, battlefield, thread)
        battlefield.change(thread, attack)
        try:
            read(chance, battlefield, thread, attack)
        except ERRORS:
            pass
        except AssertionError as error:
            raise AssertionError(f"attack {seed}, {attack_with.__name__} of {thread}: {error}") from error
    battlefield.change("thread", Attack({}, {}))
    for thread, now in battlefield.now.items():
        assert battlefield.stored(thread) == now, "the attacks were undone"
