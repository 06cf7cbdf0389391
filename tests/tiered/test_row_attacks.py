"""Random attacks on the rows of encrypted threads in Postgres, read after hot has lost the thread.

A read raises, or answers what was written there. Whoever can write to Postgres may hide things: the newest checkpoints,
a whole checkpoint, or all of a task's pending writes that no child names.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

from redis_saver import TieredSaver
from tests.support import seeds
from tests.support.attacking import Honest, check_history, check_tuple, graph, key_of, turn
from tests.support.factories import config
from tests.support.hostile import ALLOWED, changed_bytes
from tests.support.servers import new_database, url_of
from tests.support.uniform import Target

PART = 150
"""Attacks of one test."""
TABLES = {
    "checkpoints": ("thread_id", "checkpoint_ns", "checkpoint_id"),
    "checkpoint_blobs": ("thread_id", "checkpoint_ns", "channel", "version"),
    "checkpoint_writes": ("thread_id", "checkpoint_ns", "checkpoint_id", "task_id", "idx"),
}
Row = dict[str, Any]
Key = tuple[str, tuple[Any, ...]]
"""A table, and the primary key of a row."""


class Attack(NamedTuple):
    rows: dict[Key, Row | None]
    """New rows by key; None: removed."""
    hides: bool = False
    """True if something may be missing: all writes of a task, or whole checkpoints."""


class Battlefield:
    """Encrypted threads in Postgres, and what was written to them."""

    def __init__(self, url: str) -> None:
        self.target = Target("redis", "sync", url_of("redis"), "rows", is_encrypted=True)
        options: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        self.pool = ConnectionPool(url, min_size=1, max_size=2, open=True, kwargs=options)
        self.connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)
        saver = self.saver()
        saver.setup()
        for number in range(2):
            turn(saver, "thread", number, "said")
        turn(saver, "other", 0, "meant")
        graph(saver).invoke({"log": ["last"], "turn": 9, "long": [], "done": []}, config("thread", None))
        newest = saver.get_tuple(config("thread")).config
        saver.put_writes(newest, [("__interrupt__", "pay 1?")], "asking")
        self.older = self.rows()
        before = {key_of(saved): saved for saved in saver.list(config("thread", None))}
        saver.put_writes(newest, [("__interrupt__", "pay 1,000?"), ("__resume__", ["yes"])], "asking")
        saved = saver.get_tuple(config("thread"))
        saver.put(saved.parent_config, saved.checkpoint, {**saved.metadata, "note": "put again"}, {})
        self.now, self.changed = self.rows(), dict[Key, Row | None]()
        self.evict()
        tuples = {key_of(saved): [saved, before[key_of(saved)]] for saved in self.saver().list(config("thread", None))}
        self.evict()
        histories = {key: self.history(self.saver(), key) for key in tuples}
        self.honest = Honest(tuples, histories, [])

    def saver(self) -> TieredSaver:
        """A saver of another process."""
        return TieredSaver(self.target.blocking(), PostgresSaver(self.pool))

    def evict(self) -> None:
        if keys := self.target.keys():
            self.target.raw.unlink(*keys)

    def history(self, saver: TieredSaver, key: tuple[str, str]) -> Any:
        return saver.get_delta_channel_history(config=config("thread", *key), channels=["log", "long"])

    def rows(self) -> dict[Key, Row]:
        return {
            (table, tuple(row[name] for name in key)): row
            for table, key in TABLES.items()
            for row in self.connection.execute(f"SELECT * FROM {table}").fetchall()
        }

    def change(self, attack: Attack) -> None:
        """Undo the last attack, and make another one."""
        for key, row in {**{key: self.now.get(key) for key in self.changed}, **attack.rows}.items():
            table, values = key
            where = " AND ".join(f"{name} = %s" for name in TABLES[table])
            self.connection.execute(f"DELETE FROM {table} WHERE {where}", values)
            if row is not None:
                row = {**row, **dict(zip(TABLES[table], values, strict=True))}
                given = [Jsonb(value) if isinstance(value, (dict, list)) else value for value in row.values()]
                places = ", ".join(["%s"] * len(row))
                self.connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", given)
        self.changed = attack.rows
        self.evict()

    def any_of(self, chance: random.Random, *tables: str, thread: str = "thread") -> Key:
        keys = [key for key in self.now if key[1][0] == thread and key[0] in (tables or TABLES)]
        return chance.choice(sorted(keys, key=repr))


# -- attacks


def moved(chance: random.Random, field: Battlefield) -> Attack:
    """A row at the place of another one of its table, perhaps of another thread."""
    into = field.any_of(chance)
    source = field.any_of(chance, into[0], thread=chance.choice(["thread", "thread", "other"]))
    return Attack({into: field.now[source]})


def swapped(chance: random.Random, field: Battlefield) -> Attack:
    one = field.any_of(chance)
    two = field.any_of(chance, one[0])
    return Attack({one: field.now[two], two: field.now[one]})


def mixed(chance: random.Random, field: Battlefield) -> Attack:
    """Some columns are those of another row."""
    one = field.any_of(chance)
    two, columns = field.now[field.any_of(chance, one[0])], sorted(field.now[one])
    return Attack({one: {**field.now[one], **{name: two[name] for name in chance.sample(columns, 2)}}})


def replayed(chance: random.Random, field: Battlefield) -> Attack:
    """What was at this place before."""
    changed = sorted((key for key, row in field.older.items() if field.now.get(key) != row), key=repr)
    return Attack({key: field.older[key] for key in chance.sample(changed, chance.randint(1, len(changed)))})


def damaged(chance: random.Random, field: Battlefield) -> Attack:
    """Bits are flipped; bytes are cut, added or repeated."""
    key = field.any_of(chance, "checkpoint_blobs", "checkpoint_writes")
    return Attack({key: {**field.now[key], "blob": changed_bytes(chance, bytes(field.now[key]["blob"] or b""))}})


def typed(chance: random.Random, field: Battlefield) -> Attack:
    """Another type, with the same bytes or none."""
    key = field.any_of(chance, "checkpoint_blobs", "checkpoint_writes")
    kind = chance.choice(["msgpack", "bytes", "bytearray", "null", "json", "empty", "", "msgpack+aes", "bytes+siv"])
    blob = chance.choice([field.now[key]["blob"], b"", b"\x90"])
    return Attack({key: {**field.now[key], "type": kind, "blob": blob}})


def json_changed(chance: random.Random, field: Battlefield) -> Attack:
    """A part of the checkpoint's JSON, or of its metadata, is removed, or is another value."""
    key = field.any_of(chance, "checkpoints")
    row = json.loads(json.dumps(field.now[key]))
    part: Any = row[chance.choice(["checkpoint", "metadata"])]
    name = chance.choice(sorted(part))
    while isinstance(part[name], dict) and part[name] and chance.random() < 0.8:
        part = part[name]
        name = chance.choice(sorted(part))
    if chance.random() < 0.3:
        del part[name]
    else:
        part[name] = chance.choice([None, 7, True, "text", [], {}, {"a": 1}, part[chance.choice(sorted(part))]])
    return Attack({key: row})


def inlined(chance: random.Random, field: Battlefield) -> Attack:
    """A channel has a plain value in the JSON of the checkpoint."""
    key = field.any_of(chance, "checkpoints")
    row = json.loads(json.dumps(field.now[key]))
    channel = chance.choice(["turn", "log", "long", "done", "unknown"])
    row["checkpoint"]["channel_values"][channel] = chance.choice([7, "text", True, None])
    return Attack({key: row})


def reparented(chance: random.Random, field: Battlefield) -> Attack:
    key = field.any_of(chance, "checkpoints")
    others = [other[1][2] for other in sorted(field.now, key=repr) if other[0] == "checkpoints"]
    return Attack({key: {**field.now[key], "parent_checkpoint_id": chance.choice([None, None, "x", *others])}})


def removed(chance: random.Random, field: Battlefield) -> Attack:
    """A row is gone, or all writes of a task, or a checkpoint with its writes and the link to it."""
    key = field.any_of(chance)
    if key[0] == "checkpoint_blobs" or (key[0] == "checkpoint_writes" and chance.random() < 0.4):
        return Attack({key: None}, hides=key[0] == "checkpoint_writes")
    same, tables = 4 if key[0] == "checkpoint_writes" else 3, (key[0], "checkpoint_writes")
    beside = [other for other in field.now if other[1][:same] == key[1][:same] and other[0] in tables]
    gone: dict[Key, Row | None] = dict.fromkeys(beside)
    if key[0] == "checkpoints" and chance.random() < 0.5:
        for other, row in field.now.items():
            if other[0] == "checkpoints" and row["parent_checkpoint_id"] == key[1][2]:
                gone[other] = {**row, "parent_checkpoint_id": None}
    return Attack(gone, hides=True)


def added(chance: random.Random, field: Battlefield) -> Attack:
    """A copy of a row has another key."""
    key = field.any_of(chance)
    values = list(key[1])
    place = chance.randrange(1, len(values))
    values[place] = field.any_of(chance, key[0])[1][place] if chance.random() < 0.7 else (99 if place == 4 else "zz")
    made = key[0], tuple(values)
    return Attack({made: field.now[key]}, hides=True)


ATTACKS: list[tuple[Callable[..., Attack], int]] = [
    (moved, 10), (swapped, 8), (mixed, 10), (replayed, 6), (damaged, 10), (typed, 8), (json_changed, 10), (inlined, 4),
    (reparented, 6), (removed, 10), (added, 8),
]  # fmt: skip


def read(chance: random.Random, field: Battlefield, attack: Attack) -> None:
    """Read the thread by a new saver, twice, and check what it answers: the first read fills hot."""
    saver, honest = field.saver(), field.honest
    touched = [key for (table, key) in attack.rows if table != "checkpoint_blobs" for key in [(key[1], key[2])]]
    key = chance.choice([key for key in touched if key in honest.tuples] or [*honest.tuples])
    which = chance.choices(range(4), [50, 15, 10, 25])[0]
    for _ in range(2):
        if which <= 1:
            saved = saver.get_tuple(config("thread", key[0], key[1] if which == 0 else None))
            assert saved is not None or attack.hides
            if saved is not None:
                check_tuple(saved, honest, "thread", hides=attack.hides)
                assert which == 1 or key_of(saved) == key
        elif which == 2:
            for saved in saver.list(config("thread", chance.choice([None, key[0]]))):
                check_tuple(saved, honest, "thread", hides=attack.hides)
        else:
            check_history(field.history(saver, key), honest.histories[key], honest.tuples[key][0], hides=attack.hides)


@pytest.fixture(scope="module")
def battlefield(postgres: str) -> Iterator[Battlefield]:
    made = Battlefield(new_database(postgres))
    yield made
    made.evict()
    made.connection.close()
    made.pool.close()


def test_without_an_attack_all_rows_are_read(battlefield: Battlefield) -> None:
    for seed in range(20):
        battlefield.evict()
        read(random.Random(seed), battlefield, Attack({}))


@pytest.mark.random
@pytest.mark.parametrize("part", seeds.seeds_and_slow(range(2), range(2, 100)))
def test_an_attack_on_rows_shows_no_other_value(battlefield: Battlefield, part: int) -> None:
    for seed in range(part * PART, (part + 1) * PART):
        chance = random.Random(seed)
        ((attack_with, _),) = chance.choices(ATTACKS, [weight for _, weight in ATTACKS])
        attack = attack_with(chance, battlefield)
        battlefield.change(attack)
        try:
            read(chance, battlefield, attack)
        except ALLOWED:
            pass
        except Exception as error:
            raise AssertionError(f"attack {seed}, {attack_with.__name__}: {type(error).__name__}: {error}") from error
    battlefield.change(Attack({}))
    assert battlefield.rows() == battlefield.now, "the attacks were undone"
