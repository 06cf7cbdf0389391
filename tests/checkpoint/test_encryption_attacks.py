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
            if stored is None:
                pipeline.hdel(key + "data", field)
            else:
                pipeline.hset(key + "data", field, stored)
        for member, is_there in members.items():
            if is_there:
                pipeline.zadd(key + "index", {member: 0})
            else:
                pipeline.zrem(key + "index", member)


# -- attacks


class Attacker:
    """What attacks are made of: a thread, its copy or source, and other data."""

    def __init__(self, chance: random.Random, field: Battlefield, thread: str) -> None:
        self.chance, self.field, self.thread, (self.now, self.index) = chance, field, thread, field.now[thread]
        self.twin, self.other = field.now["copy" if thread == "thread" else "thread"].data, field.now["other"].data

    def any_of(self, kinds: bytes = b"cbwpnz") -> bytes:
        kind = self.chance.choice([kind for kind in kinds if any(field[0] == kind for field in self.now)])
        return self.chance.choice(sorted(field for field in self.now if field[0] == kind))

    def another(self, field: bytes) -> bytes:
        """Return another field of the same kind, if there is one."""
        return self.chance.choice(sorted({each for each in self.now if each[:1] == field[:1]} - {field}) or [field])


def moved(by: Attacker) -> Attack:
    """A record at the place of another one of its kind."""
    into = by.any_of()
    return Attack({into: by.now[by.another(into)]}, {})


def swapped(by: Attacker) -> Attack:
    one = by.any_of()
    two = by.another(one)
    return Attack({one: by.now[two], two: by.now[one]}, {})


def replayed(by: Attacker) -> Attack:
    """What was at this place before."""
    older = by.field.older[by.thread].data
    changed = sorted(name for name in older if by.now.get(name) != older[name] and name[:1] in b"cbw")
    chosen = by.chance.sample(changed, by.chance.randint(1, len(changed)))
    return Attack({name: older[name] for name in chosen}, {})


def from_elsewhere(by: Attacker) -> Attack:
    """A record of another thread, of the copy or its source, of a plain thread, or under another key."""
    into = by.any_of()
    source = dict(by.chance.choice([*by.field.strangers.values(), [*by.other.items()], [*by.twin.items()]]))
    if into in source and source[into] != by.now[into] and by.chance.random() < 0.7:
        return Attack({into: source[into]}, {})
    same = [stored for name, stored in sorted(source.items()) if name[:1] == into[:1]]
    return Attack({into: by.chance.choice(same or [b"plain"])}, {})


def damaged(by: Attacker) -> Attack:
    """Bits are flipped; bytes are cut, added or repeated; a root of chunks is forged."""
    into = by.any_of()
    data = changed_bytes(by.chance, by.now[into])
    return Attack({into: resealed(by.chance, data) if by.chance.random() < 0.1 else data}, {})


def unsealed(by: Attacker) -> Attack:
    """The mark of a sealed record is removed."""
    into = by.any_of(b"cbw")
    data = by.now[into]
    for kind in (b"msgpack", b"null", b"bytes", b"json", b"str"):
        for rule in (b"+siv2", b"+siv"):
            data = data.replace(b"%d:%b" % (len(kind + rule), kind + rule), b"%d:%b" % (len(kind), kind))
    return Attack({into: data}, {})


def ruled(by: Attacker) -> Attack:
    """A record is said to be sealed by the other rule."""
    into = by.any_of(b"cw")
    data, kind = by.now[into], b"msgpack"
    first, second = (b"%d:%b" % (len(kind + rule), kind + rule) for rule in (b"+siv", b"+siv2"))
    return Attack({into: data.replace(second, first) if second in data else data.replace(first, second)}, {})


def header_changed(by: Attacker) -> Attack:
    """Some frames of a header are those of another one, or are changed."""
    into = by.any_of(b"c")
    frames = unpack(by.now[into])
    for _ in range(by.chance.randint(1, 2)):
        number = by.chance.randrange(len(frames))
        other = unpack(by.now[by.another(into)])[number]
        choices = [other, b"", changed_bytes(by.chance, frames[number]), frames[number][::-1]]
        if number == 4:
            choices += [bytes(b ^ 1 for b in frames[4]), b"1" * len(frames[4]), b"0" * len(frames[4])]
        frames[number] = by.chance.choice(choices)
    return Attack({into: pack(frames)}, {})


def writes_changed(by: Attacker) -> Attack:
    """The writes of a record are cut off, repeated, reordered, mixed with others, or one of their frames is changed."""
    into, chance = by.any_of(b"w"), by.chance
    frames, other = unpack(by.now[into]), unpack(by.now[by.another(into)])
    writes, others = ([some[at : at + 5] for at in range(0, len(some), 5)] for some in (frames, other))
    which = chance.randrange(6)
    if which == 0:
        del writes[chance.randrange(len(writes))]
    elif which == 1:
        writes.append(chance.choice(writes))
    elif which == 2:
        writes[chance.randrange(len(writes))] = chance.choice(others)
    elif which == 3:
        writes.append(chance.choice(others))
    else:
        one, two, number = chance.choice(writes), chance.choice(others), chance.randrange(5)
        one[number] = two[number] if which == 4 else changed_bytes(chance, one[number])
    return Attack({into: pack([frame for write in writes for frame in write])}, {})


def removed(by: Attacker) -> Attack:
    """A field is gone, possibly with its members of the index."""
    name = by.any_of()
    members = {name: False} if name in by.index and by.chance.random() < 0.7 else {}
    if members and name[:1] == b"c":
        ns, checkpoint_id = name[1:].split(b"\0")[:2]
        by_age = b"i%b\0%b\0" % (checkpoint_id, ns)
        members |= {by_age: False} if by_age in by.index else {}
        gone = {other: None for other in by.now if other[:1] == b"w" and other[1:].startswith(name[1:])}
        return Attack({name: None, **gone}, members | dict.fromkeys(gone, False), hides=True)
    return Attack({name: None}, members, hides=bool(members) and name[:1] == b"w")


def index_changed(by: Attacker) -> Attack:
    """A member of the index is gone, or one is added that has another name."""
    chance, member = by.chance, by.chance.choice(sorted(by.index - {b""}))
    if chance.random() < 0.4:
        return Attack({}, {member: False}, hides=True)
    parts, others = member[1:].split(b"\0"), chance.choice(sorted(by.index))[1:].split(b"\0")
    parts[chance.randrange(len(parts))] = chance.choice([b"ffff", b"", *others])
    made = chance.choice([member[:1], b"i", b"c", b"w"]) + b"\0".join(parts)
    fields = {made: by.now[member]} if member in by.now and made not in by.now and chance.random() < 0.7 else {}
    return Attack(fields, {made: True}, hides=True)


def chunk_renamed(by: Attacker) -> Attack:
    """A root or a list names other chunks."""
    names = sorted(name for name in by.now if name[:1] in b"pn" and len(name) == 17)
    into = by.chance.choice(sorted(name for name, data in by.now.items() if any(one[1:] in data for one in names)))
    data = by.now[into]
    inside = [name for name in names if name[1:] in data]
    one, two = by.chance.choice(inside), by.chance.choice([*inside, *names])
    made = data.replace(one[1:], two[1:]) if by.chance.random() < 0.5 else data.replace(one[1:], b"", 1)
    return Attack({into: made, **({two: by.now[one]} if by.chance.random() < 0.3 else {})}, {})


def marks_changed(by: Attacker) -> Attack:
    """The data key or the state of the thread is changed."""
    name = by.chance.choice([b"@key", b"@key", b"@state"])
    state = by.now[b"@state"].replace(b"5 ", by.chance.choice([b"1 ", b"4 ", b"9 "]), 1)
    replaced = [by.other[name], by.twin[name], changed_bytes(by.chance, by.now[name]), b"", None]
    return Attack({name: by.chance.choice(replaced if name == b"@key" else [*replaced[:3], state])}, {})


def all_plain(by: Attacker) -> Attack:
    """The whole thread is replaced by a plain one."""
    plain = dict(by.field.strangers["plain"])
    changed = {name: plain.get(name) for name in {*by.now, *plain}}
    if by.chance.random() < 0.5:
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
    which = chance.choices(range(8), [60, 10, 2, 2, 20, 8, 2, 0.3])[0]  # the others take long
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
        attack = attack_with(Attacker(chance, battlefield, thread))
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
