"""Migration of items between Redis, Postgres and files, with the command line."""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.documents import Document
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.store.postgres import PostgresStore

from redis_saver import FastSerializer, RedisStore
from redis_saver._engine.requests import Call
from redis_saver._migrate import engine, files
from redis_saver._store import namespaces, scripts
from redis_saver.migrate import ItemsReport, migrate_items, opened_store
from tests.support.commands import ROOT, Ran
from tests.support.servers import Server, new_database
from tests.support.wrappers import Around

pytestmark = pytest.mark.xdist_group("items")  # so the stores with items are made once
MEMORIES, OTHERS, ALIKE = ("memories", "user-1"), ("memories", "user-2"), ("memories", "user-10")
DEEP = ("memories", "user-1", "notes", "%_\\")
HOSTILE = "*%_'\"{a}|\\ü\n\u202e"
_numbers = itertools.count()


class Places:
    """Makes empty stores of each kind."""

    def __init__(self, postgres: str, folder: Path) -> None:
        self.redis = Server("--databases", "500")
        self.postgres, self.folder = postgres, folder

    def url(self, kind: str) -> str:
        if kind == "ours":
            return f"{self.redis.url}/{next(_numbers)}"
        url = new_database(self.postgres)
        with PostgresStore.from_conn_string(url) as store:
            store.setup()
        return url


@contextmanager
def opened(url: str) -> Iterator[Any]:
    """Open a store like a user."""
    kind = RedisStore if url.startswith("redis") else PostgresStore
    with kind.from_conn_string(url) as store:  # type: ignore[attr-defined]
        yield store


@pytest.fixture(scope="module")
def places(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    made = Places(postgres, tmp_path_factory.mktemp("places"))
    yield made
    made.redis.stop()


def live(store: Any) -> None:
    for number in range(7):
        store.put(
            MEMORIES, f"{number}", {"text": f"memory {number}", "n": number, "nested": {"list": [1.5, None, True]}}
        )
    store.put(MEMORIES, "0", {"text": "changed"})
    store.put(DEEP, HOSTILE, {"": HOSTILE})
    store.put(OTHERS, "a", {"big": 2**53 + 1, "small": -1e-300})
    store.put(ALIKE, "a", {})
    store.put(("one",), "x", {"a": []})
    store.put(MEMORIES, "short", {"n": 1}, ttl=60)


@pytest.fixture(scope="module")
def lived(places: Places) -> dict[str, str]:
    """URLs of a filled store of each kind. Tests must not change them."""
    urls = {kind: places.url(kind) for kind in ("ours", "postgres")}
    for url in urls.values():
        with opened(url) as store:
            live(store)
    return urls


def all_of(url: str, prefix: tuple[str, ...] = ()) -> list[Any]:
    with opened(url) as store:
        found = store.search(prefix, limit=10_000, refresh_ttl=False)
    return sorted(((*one.namespace, "/", one.key), one.value, one.created_at, one.updated_at) for one in found)


def put(url: str, key: str, value: Any, namespace: tuple[str, ...] = MEMORIES, **more: Any) -> None:
    with opened(url) as store:
        store.put(namespace, key, value, **more)


def value_of(url: str, key: str, namespace: tuple[str, ...] = MEMORIES) -> Any:
    with opened(url) as store:
        found = store.get(namespace, key, refresh_ttl=False)
    return found and found.value


@pytest.fixture
def here(places: Places) -> str:
    return places.url("ours")


@pytest.fixture
def there(places: Places) -> str:
    return places.url("ours")


@pytest.fixture
def exported(lived: dict[str, str], tmp_path: Path) -> Path:
    file = tmp_path / "items"
    assert Ran("export", lived["ours"], str(file), "--store").all_well
    return file


# -- between all kinds of stores


@pytest.mark.parametrize("target", ["ours", "postgres"])
@pytest.mark.parametrize("source", ["ours", "postgres"])
def test_all_items_arrive_with_their_timestamps(
    places: Places, lived: dict[str, str], source: str, target: str, tmp_path: Path
) -> None:
    file, there = tmp_path / "items", places.url(target)
    assert Ran("export", lived[source], str(file), "--store").out.startswith("12 items: 12 copied")
    assert (ran := Ran("import", str(file), there)).all_well
    assert ran.out.startswith("12 items: 12 copied, 0 replaced, 0 there already, 0 expired, 0 conflicts, 0 failed")
    assert all_of(lived[source]) == all_of(there)
    assert (again := Ran("import", str(file), there)).all_well
    assert again.out.startswith("12 items: 0 copied, 0 replaced, 12 there already")
    assert all_of(lived[source]) == all_of(there)
    straight = places.url(target)
    assert Ran("migrate", lived[source], straight, "--store").all_well
    assert all_of(lived[source]) == all_of(straight)
    assert oct(file.stat().st_mode & 0o777) == "0o600" and [path.name for path in tmp_path.iterdir()] == ["items"]


def test_two_exports_of_a_store_are_identical(lived: dict[str, str], exported: Path, tmp_path: Path) -> None:
    assert Ran("export", lived["ours"], str(tmp_path / "again"), "--store").all_well
    assert (tmp_path / "again").read_bytes() == exported.read_bytes()


@pytest.mark.parametrize("kind", ["ours", "postgres"])
def test_only_the_given_namespace_is_moved(places: Places, lived: dict[str, str], kind: str, tmp_path: Path) -> None:
    file = tmp_path / "items"
    assert Ran("export", lived[kind], str(file), "--store", "--namespace", ".".join(MEMORIES)).out.startswith("9 items")
    with opened_store(f"file:{file}", target=False) as source:
        assert {item.namespace for item in source.items(())} == {MEMORIES, DEEP}
        assert {item.namespace for item in source.items(DEEP[:3])} == {DEEP}
    there = places.url(kind)
    assert Ran("migrate", lived[kind], there, "--store", "--namespace", "one").out.startswith("1 item: 1 copied")
    assert Ran("import", str(file), there, "--namespace", ".".join(DEEP)).out.startswith("1 item: 1 copied")
    none = Ran("import", str(file), there, "--namespace", "nobody")
    assert none.code == 0 and none.err == "no item's namespace begins with ('nobody',)\n"
    assert len(all_of(there)) == 2


def test_the_remaining_ttl_arrives(places: Places, tmp_path: Path) -> None:
    """The full TTL arrives too, so reads can restart it."""
    for kind, other in (("ours", "postgres"), ("postgres", "ours"), ("ours", "ours")):
        there, here = places.url(kind), places.url(other)
        put(there, "hour", {}, ttl=60)
        time.sleep(0.05)
        assert Ran("migrate", there, here, "--store").all_well
        with opened_store(there, target=False) as old, opened_store(here, target=False) as new:
            (before,), (after,) = old.items(()), new.items(())
        assert before.expires_at == after.expires_at and after.ttl == before.ttl == 3_600_000
        assert 3_590_000 < after.expires_at - time.time() * 1000 < 3_600_000


def test_expired_items_are_imported_only_with_a_new_ttl(there: str, here: str, tmp_path: Path) -> None:
    put(there, "stays", {"n": 2})
    for seconds in (0.3, 5):
        put(there, "soon", {"n": 1}, ttl=seconds / 60)
        file = tmp_path / "items"
        file.unlink(missing_ok=True)
        if Ran("export", there, str(file), "--store").out.startswith("2 items: 2 copied"):
            break  # otherwise the export came too late
    time.sleep(seconds + 0.05)
    ran = Ran("import", str(tmp_path / "items"), here)
    assert ran.code == 0 and ran.out.startswith("2 items: 1 copied, 0 replaced, 0 there already, 1 expired")
    again = Ran("import", str(tmp_path / "items"), here, "--ttl", "7d")
    assert again.out.startswith("2 items: 1 copied, 0 replaced, 1 there already, 0 expired")
    assert value_of(here, "soon") == {"n": 1}


def test_expired_postgres_rows_are_skipped_and_overwritten(places: Places, here: str) -> None:
    there, back = places.url("postgres"), places.url("postgres")
    for url in (there, back):
        put(url, "gone", {"at": url}, ttl=1)
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE store SET expires_at = now() - interval '1 second'")
    said = Ran("migrate", there, here, "--store").out
    assert said.startswith("1 item: 0 copied, 0 replaced, 0 there already, 1 expired")
    put(here, "gone", {"at": "here"})
    assert Ran("migrate", here, back, "--store").out.startswith("1 item: 1 copied")
    assert value_of(back, "gone") == {"at": "here"}


# -- items that the target has


@pytest.mark.parametrize("target", ["ours", "postgres"])
def test_a_different_item_is_a_conflict_unless_replaced(places: Places, there: str, target: str) -> None:
    here = places.url(target)
    put(here, "older", {"from": "here"})
    put(there, "older", {"from": "there"})
    put(there, "newer", {"from": "there"})
    put(here, "newer", {"from": "here"})
    put(there, "same", {"a": 1, "b": [2.0]})
    put(here, "same", {"b": [2.0], "a": 1})
    before = all_of(here)
    ran = Ran("migrate", there, here, "--store")
    said = "3 items: 0 copied, 0 replaced, 1 there already, 0 expired, 2 conflicts, 0 failed"
    assert ran.code == 1 and ran.out.startswith(said)
    assert len(re.findall("^conflict: item '.*has another value, put at 20.*\n", ran.err, re.MULTILINE)) == 2
    assert ran.err.count("\n") == 2
    assert all_of(here) == before
    dry = Ran("migrate", there, here, "--store", "--replace", "all", "--dry-run")
    assert dry.code == 0 and "0 to be copied, 2 to be replaced" in dry.out and all_of(here) == before
    assert Ran("migrate", there, here, "--store", "--replace", "older").code == 1
    assert (value_of(here, "older"), value_of(here, "newer")) == ({"from": "there"}, {"from": "here"})
    assert Ran("migrate", there, here, "--store", "--replace", "all").all_well
    assert value_of(here, "newer") == {"from": "there"}
    moved, given = ([one for one in all_of(url) if one[0][-1] != "same"] for url in (here, there))
    assert moved == given


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, False),
        ({"a": [1]}, {"a": [1, 2]}, False),
        ({"a": None}, {}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": float("nan")}, {"a": float("nan")}, True),
        ({"a": b"x"}, {"a": "x"}, False),
    ],
)
def test_only_different_values_are_a_conflict(there: str, here: str, one: Any, other: Any, equal: bool) -> None:
    put(there, "a", one)
    put(here, "a", other)
    assert Ran("migrate", there, here, "--store").code == (0 if equal else 1)


@contextmanager
def with_late_writes(there: str, here: str, act: Callable[[], None]) -> Iterator[tuple[Any, Any]]:
    """The two endpoints of a migration, in which something happens after it has read the target, and before it writes."""
    with opened_store(there, target=False) as source, opened_store(here, target=True) as place:
        write = place.write

        def late(wanted: Any) -> Any:
            act()
            return write(wanted)

        place.write = late
        yield source, place


@pytest.mark.parametrize("target", ["ours", "postgres"])
def test_a_concurrent_write_is_not_overwritten(places: Places, there: str, target: str) -> None:
    here = places.url(target)
    put(there, "a", {"n": "there"})
    put(there, "b", {"n": "there"})
    with with_late_writes(there, here, lambda: put(here, "a", {"n": "here"})) as ends:
        report = migrate_items(*ends)
    assert (report.written, report.conflicts, report.failed) == (1, 1, 0)
    assert (value_of(here, "a"), value_of(here, "b")) == ({"n": "here"}, {"n": "there"})


def test_a_constantly_written_item_is_reported_as_failed(places: Places, here: str) -> None:
    there, numbers = places.url("ours"), itertools.count()
    put(there, "a", {"n": -1})
    with with_late_writes(there, here, lambda: put(here, "a", {"n": next(numbers)})) as ends:
        report = migrate_items(*ends, replace="all")
    assert (report.written, report.replaced, report.failed) == (0, 0, 1) and "keeps writing it" in report.problems[0]
    assert value_of(here, "a") == {"n": engine.ROUNDS - 1}


def test_an_interrupted_migration_can_be_continued(there: str, here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(there) as store:
        for user in range(30):
            for number in range(10):
                store.put(("memories", f"u{user}"), f"{number}", {"n": number})
    with opened_store(there, target=False) as source, opened_store(here, target=True) as place:
        imports = itertools.count()

        def dies(request: Any) -> Any:
            reply = yield request
            if isinstance(request, Call) and request.script is scripts.IMPORT_ITEMS and next(imports) == 3:
                raise KeyboardInterrupt
            return reply

        monkeypatch.setattr(engine, "ITEMS_PER_BATCH", 10)
        Around(place.store, dies)
        with pytest.raises(KeyboardInterrupt):
            migrate_items(source, place)
    assert len(all_of(here)) == 20, "20 items were stored before the interruption"
    assert Ran("migrate", there, here, "--store").out.startswith("300 items: 280 copied, 0 replaced, 20 there already")
    assert all_of(there) == all_of(here)


def test_a_killed_import_can_be_continued(places: Places, here: str, tmp_path: Path) -> None:
    file = tmp_path / "items"
    data = files.ormsgpack.packb({"n": 1})
    items = [
        ["item", ["memories", f"u{n % 50}"], f"{n}", "msgpack", data, 10**15 + n, 10**15 + n, 0, 0]
        for n in range(10_000)
    ]
    file.write_bytes(sealed(*items, ["end", len(items)]))
    command = [sys.executable, "-m", "redis_saver", "import", str(file), here]
    with opened(here) as store:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
        while not store.count():
            assert running.poll() is None
        running.kill()
        running.communicate()
        arrived = store.count()
        assert 0 < arrived < len(items)
        ran = Ran("import", str(file), here)
        assert ran.all_well and ran.out.startswith(
            f"10,000 items: {len(items) - arrived:,} copied, 0 replaced, {arrived:,} there already"
        )
        assert store.count() == len(items)


def test_two_batches_take_four_round_trips_at_the_target(there: str, here: str) -> None:
    """Forty partitions of five items make two batches."""
    with opened(there) as store:
        for user in range(40):
            for number in range(5):
                store.put(("memories", f"u{user}"), f"{number}", {"n": number})
    with opened_store(there, target=False) as source, opened_store(here, target=True) as place:
        asked = {"source": 0, "target": 0}

        def counting(name: str) -> Any:
            def count(request: Any) -> Any:
                asked[name] += 1
                return (yield request)

            return count

        Around(source.store, counting("source"))
        Around(place.store, counting("target"))
        assert migrate_items(source, place).written == 200
    # The first ones look for copies of a cold store, and for partitions with a key.
    assert asked == {"source": 4 + 2 + 1 + 2 * 40, "target": 1 + 4}


def test_the_directory_is_read_in_pages(there: str, here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(there) as store:
        for user in range(25):
            store.put(("memories", f"u{user}"), "k", {})
    for size in (24, 25, 26, 5, 1):
        monkeypatch.setattr(namespaces, "PARTITIONS_PER_CALL", size)
        with opened_store(there, target=False) as source:
            found = [item.namespace for item in source.items(())]
            assert len(found) == len(set(found)) == 25 == source.count(("memories",))


def test_the_source_may_change_during_the_migration(there: str, here: str) -> None:
    for key in "abc":
        put(there, key, {"n": 1})
    with opened_store(there, target=False) as source, opened_store(here, target=True) as place:

        def changing(request: Any) -> Any:
            if isinstance(request, Call) and request.script is scripts.READ_ITEMS:
                put(there, "a", {"n": 2})
                put(there, "new", {"n": 2})
                with opened(there) as store:
                    store.delete(MEMORIES, "b")
            return (yield request)

        Around(source.store, changing)
        report = migrate_items(source, place)
    assert (report.written, report.failed) == (2, 0)
    assert (value_of(here, "a"), value_of(here, "b"), value_of(here, "c")) == ({"n": 2}, None, {"n": 1})


# -- values


class Order:
    """A class that the migrating process cannot import."""


def test_values_are_moved_unchanged_without_their_classes(places: Places, here: str, tmp_path: Path) -> None:
    """The command runs in a process of its own."""
    there, file = places.url("ours"), tmp_path / "items"
    put(
        there,
        "doc",
        {"at": datetime.now(timezone.utc), "doc": Document("text", id="7"), "raw": b"\0\xff", "tags": {1, 2}},
    )
    root = Path(__file__).parents[2]
    for arguments in (("export", there, str(file), "--store"), ("import", str(file), here)):
        command = [sys.executable, "-m", "redis_saver", *arguments]
        done = subprocess.run(
            command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=280
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout.startswith("1 item: 1 copied")
    assert all_of(there) == all_of(here)
    with opened(there) as old, opened(here) as new:
        records = [
            store._driver.client.hget(
                store._context.places.of(MEMORIES).partition.keys[0], store._context.places.of(MEMORIES).field("doc")
            )
            for store in (old, new)
        ]
    assert records[0].split(b" ", 4)[4] == records[1].split(b" ", 4)[4]


def test_values_that_postgres_refuses_do_not_stop_others(places: Places, there: str) -> None:
    here = places.url("postgres")
    refused: dict[str, Any] = {
        "bytes": {"a": b"x"},
        "moment": {"a": datetime.now(timezone.utc)},
        "nan": {"a": float("nan")},
        "nul": {"a": "\0"},
        "number as key": {"a": {1: 2}},
    }
    others = {"good": {"a": 1}, "nul\0": {"a": 1}, "k" * 4000: {"a": 1}, "great": {"a": 10**18}}
    for key, value in {**refused, **others}.items():
        put(there, key, value)
    put(there, "key", {"text": os.urandom(4000).hex()}, namespace=("n" * 3000, "x" * 3000))
    ran = Ran("migrate", there, here, "--store")
    assert ran.code == 1, ran.out
    failed = {line.partition("item '")[2].partition("'")[0] for line in ran.err.splitlines()}
    assert set(refused) <= failed and "nul\\x00" in failed and not failed & {"good", "great"}
    assert {one[0][-1] for one in all_of(here)} >= {"good", "great"}
    assert ran.err.count("\n") == len(ran.err.splitlines()) and "failed: " in ran.err


def test_invalid_postgres_rows_are_reported(places: Places, here: str) -> None:
    there = places.url("postgres")
    put(there, "good", {"a": 1})
    with psycopg.connect(there) as connection:
        for prefix, key, value in (
            ("langgraph.x", "k", "{}"),  # a batch may put it
            ("a..b", "k", "{}"),
            ("a.b", "list", "[1]"),
            ("a.b", "big", '{"a": 1e400}'),
        ):
            connection.execute("INSERT INTO store (prefix, key, value) VALUES (%s, %s, %s)", (prefix, key, value))
    ran = Ran("migrate", there, here, "--store")
    assert ran.code == 1 and {one[0][-1] for one in all_of(here)} == {"good", "k"}
    assert ran.out.startswith("5 items: 2 copied") and ran.err.count("failed: ") == 3


def test_vectors_of_replaced_postgres_items_are_deleted(places: Places, there: str) -> None:
    """Otherwise a search would find the new value by the old vectors."""
    here = places.url("postgres")
    put(here, "a", {"n": "old"})
    put(here, "b", {"n": "same"})
    with psycopg.connect(here) as connection:
        connection.execute(
            "CREATE TABLE store_vectors (prefix text, key text, field_name text, FOREIGN KEY (prefix, key) REFERENCES store (prefix, key) ON DELETE CASCADE)"
        )
        connection.execute("INSERT INTO store_vectors SELECT prefix, key, 'n' FROM store")
    put(there, "a", {"n": "new"})
    put(there, "b", {"n": "same"})
    assert Ran("migrate", there, here, "--store", "--replace", "all").all_well
    with psycopg.connect(here) as connection:
        assert connection.execute("SELECT key FROM store_vectors").fetchall() == [("b",)]


def test_encrypted_values_stay_encrypted(
    places: Places, here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, there, file = b"0123456789abcdef", places.url("ours"), tmp_path / "items"
    serde = EncryptedSerializer.from_pycryptodome_aes(FastSerializer(), key=key)
    with RedisStore.from_conn_string(there, serde=serde) as store:
        store.put(MEMORIES, "a", {"secret": "words"})
    put(there, "plain", {"n": 1})
    blind = Ran("export", there, str(tmp_path / "blind"), "--store")
    assert blind.code == 1 and "LANGGRAPH_AES_KEY" in blind.err and blind.out.startswith("2 items: 1 copied")
    monkeypatch.setenv("LANGGRAPH_AES_KEY", key.decode())
    assert Ran("export", there, str(file), "--store").all_well
    assert b"words" not in file.read_bytes() and b"msgpack+aes" in file.read_bytes()
    assert Ran("import", str(file), here).all_well
    assert Ran("import", str(file), here).out.startswith("2 items: 0 copied, 0 replaced, 2 there already")
    plain = Ran("import", str(file), places.url("postgres"))
    assert plain.code == 2 and "keeps plain JSON" in plain.err
    with RedisStore.from_conn_string(here, serde=serde) as store:
        assert {one.key: one.value for one in store.search(MEMORIES)} == {"a": {"secret": "words"}, "plain": {"n": 1}}


def test_a_damaged_source_partition_does_not_stop_others(there: str, here: str) -> None:
    put(there, "a", {}, namespace=("memories", "bad"))
    put(there, "a", {}, namespace=("memories", "good"))
    damage(there, ("memories", "bad"))
    ran = Ran("migrate", there, here, "--store")
    assert ran.code == 1 and ran.err.startswith("failed: ") and "order is gone" in ran.err
    assert [one[0] for one in all_of(here)] == [("memories", "good", "/", "a")]


def damage(url: str, namespace: tuple[str, ...], *, record: str = "") -> None:
    """Remove a partition's order, or only one record."""
    with opened(url) as store:
        place = store._context.places.of(namespace)
        if record:
            assert store._driver.client.hdel(place.partition.keys[0], place.field(record))
        else:
            assert store._driver.client.unlink(place.partition.keys[1])


@pytest.mark.parametrize("damaged_when", ["before", "looked up"])
def test_a_damaged_target_partition_does_not_stop_others(places: Places, here: str, damaged_when: str) -> None:
    """Other items of the batch are written and counted once."""
    there, users = places.url("ours"), [("memories", user) for user in ("a", "bad", "c")]
    for namespace in users:
        for key in "xy":
            put(there, key, {"n": 1}, namespace=namespace)
    put(here, "x", {"n": 1}, namespace=("memories", "bad"))
    if damaged_when == "before":
        damage(here, ("memories", "bad"))

    def late() -> None:
        if damaged_when == "looked up":
            damage(here, ("memories", "bad"))

    with with_late_writes(there, here, late) as ends:
        report = migrate_items(*ends)
    failed = 2 if damaged_when == "before" else 1
    assert (report.written, report.unchanged, report.failed, report.conflicts) == (4, 2 - failed, failed, 0)
    assert len(report.problems) == failed
    assert all("'bad')" in said and "order is gone" in said for said in report.problems)
    assert [value_of(here, key, users[at]) for at in (0, 2) for key in "xy"] == [{"n": 1}] * 4


def test_a_missing_record_is_reported_as_damage(there: str, here: str) -> None:
    put(there, "a", {})
    put(there, "b", {})
    damage(there, MEMORIES, record="a")
    ran = Ran("migrate", there, here, "--store")
    assert ran.code == 1 and ran.err.startswith("failed: ") and "a record is gone" in ran.err


# -- files


def sealed(*records: Any) -> bytes:
    """Return the bytes of a file with these records."""
    whole = bytearray(files.ItemFile.FIRST_LINE)
    for record in records:
        data = files.ormsgpack.packb(record)
        whole += files.FRAME.pack(len(data), files.checksum(data, len(whole))) + data
    return bytes(whole)


def refused(file: Path, here: str) -> str:
    ran = Ran("import", str(file), here)
    assert ran.code == 2 and ran.err.count("\n") == 1 and "Nothing was read from it" in ran.err, ran.err
    return ran.err


def test_a_truncated_or_changed_file_is_refused(exported: Path, here: str) -> None:
    whole = exported.read_bytes()
    numbers = random.Random(1)
    for length in [20, 21, 25, len(whole) - 1, *numbers.sample(range(26, len(whole) - 1), 15)]:
        exported.write_bytes(whole[:length])
        assert "is damaged" in refused(exported, here)
    for place in numbers.sample(range(20, len(whole)), 20):
        exported.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        refused(exported, here)
    exported.write_bytes(whole + b"x")
    refused(exported, here)
    assert all_of(here) == []


def test_unknown_records_are_refused(tmp_path: Path, here: str) -> None:
    file, good = tmp_path / "items", ["item", ["a", "b"], "k", "msgpack", b"\x80", 1, 1, 0, 0]
    for wrong in (
        [*good, 1], good[:-1], [*good[:1], [], *good[2:]], [*good[:1], ["a", 1], *good[2:]], [*good[:-1], -1], [*good[:-1], True],
        ["news", 1], ["item"], 7, ["end", "1"], ["thread", "t"],
    ):  # fmt: skip
        file.write_bytes(sealed(good, wrong, ["end", 1]))
        assert "does not know" in refused(file, here), wrong
    for records in (
        [good],
        [good, ["end", 2]],
        [good, ["end", 1], ["end", 1]],
        [good, good, ["end", 1]],
        [["end", 0], good],
    ):
        file.write_bytes(sealed(*records))
        assert "is damaged" in refused(file, here)
    file.write_bytes(sealed(good, ["end", 1]))
    assert Ran("import", str(file), here).all_well
    exported_by_newer = file.read_bytes().replace(b"items 1", b"items 2")
    file.write_bytes(exported_by_newer)
    assert "does not begin with" in refused(file, here)


def test_a_forged_file_does_no_harm(tmp_path: Path, here: str) -> None:
    """It has absurd timestamps, invalid labels, a repeated item, and malformed or deeply nested values."""
    file, put_at = tmp_path / "items", 1_700_000_000_000_000
    good = ["item", ["a", "b"], "k", "msgpack", b"\x81\xa1n\x01", put_at, put_at, 0, 0]
    other = [*good[:4], b"\x81\xa1n\x02", *good[5:]]
    records = [
        good,
        other,
        ["item", ["a", "b"], "wild", "msgpack", b"\x80", 2**63 - 1, 2**63 - 1, 2**62, 2**63 - 1],
        ["item", ["a", "b"], "first", "msgpack", b"\x80", 0, 0, 0, 0],
        ["item", ["a.b"], "period", "msgpack", b"\x80", 1, 1, 0, 0],
        ["item", ["langgraph", "b"], "theirs", "msgpack", b"\x80", 1, 1, 0, 0],
        ["item", ["a", "b"], "nested", "msgpack", b"\x91" * 5000 + b"\x80", 1, 1, 0, 0],
        ["item", ["a", "b"], "junk", "msgpack", b"\xc1", 1, 1, 0, 0],
        ["item", ["a", "b"], "k" * 20_000, "msgpack", b"\x80", 1, 1, 0, 0],
    ]
    file.write_bytes(sealed(*records, ["end", len(records)]))
    ran = Ran("import", str(file), here)
    assert ran.code == 1 and ran.out.startswith(
        "9 items: 4 copied, 0 replaced, 0 there already, 0 expired, 1 conflict, 4 failed"
    )
    found = {one[0][-1]: one[1:] for one in all_of(here)}
    assert found.keys() == {"k", "wild", "first", "theirs"} and found["k"][0] == {"n": 1}
    assert abs(found["wild"][2].timestamp() - time.time()) < 60
    with opened(here) as store:
        store.put(("a", "b"), "later", {})
        assert store.search(("a",))[0].key == "later"


def test_an_export_never_replaces_a_file(exported: Path, lived: dict[str, str]) -> None:
    before = exported.read_bytes()
    ran = Ran("export", lived["ours"], str(exported), "--store")
    assert ran.code == 2 and "exists already" in ran.err and exported.read_bytes() == before
    assert [path.name for path in exported.parent.iterdir()] == ["items"]


def test_postgres_items_with_equal_timestamps_get_distinct_versions(
    places: Places, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows come from one transaction, and fill more than one page."""
    there = places.url("postgres")
    with psycopg.connect(there) as connection:
        connection.execute("INSERT INTO store SELECT 'memories.u', n::text, '{}' FROM generate_series(1, 450) AS n")
    assert Ran("migrate", there, here, "--store").out.startswith("450 items: 450 copied")
    with opened(here) as store:
        versions = [one.version for one in store.search(("memories",), limit=1000)]
    assert len(set(versions)) == 450 and max(versions) - min(versions) == 449


# -- errors and reports


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("export", "{ours}", "{file}", "--store", "--thread-prefix", "x"), "only for threads"),
        (("export", "{ours}", "{file}", "--namespace", "x"), "add --store"),
        (("import", "{threads}", "{ours}", "--replace", "all"), "add --store"),
        (("export", "sqlite:x.db", "{file}", "--store"), "is not the URL of a store"),
        (("export", "memory://x", "{file}", "--store"), "an embedded server"),
        (("export", "{ours}", "{file}", "--store", "--namespace", "a..b"), "is empty"),
        (("export", "{ours}", "{file}", "--store", "--namespace", ""), "is empty"),
        (("export", "{ours}", "{file}", "--store", "--namespace", "a", "--namespace", "b"), "write --namespace once"),
        (("export", "{empty}", "{file}", "--store"), "no table of a PostgresStore"),
        (("export", "postgresql://user:secret@127.0.0.1:1/x", "{file}", "--store"), "127.0.0.1"),
        (("export", "redis://:secret@127.0.0.1:1", "{file}", "--store"), "127.0.0.1"),
        (("migrate", "{threads}", "{ours}", "--store"), "does not begin with 'redis-saver items 1'"),
        (("migrate", "file:{missing}", "{ours}", "--store"), "No such file"),
    ],
)
def test_invalid_arguments_give_one_line_and_write_nothing(
    places: Places, empty_database: str, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    threads = tmp_path / "threads"
    threads.write_bytes(b"redis-saver threads 1\n")
    names = {
        "ours": places.url("ours"),
        "file": tmp_path / "new",
        "threads": threads,
        "empty": empty_database,
        "missing": tmp_path / "missing",
    }
    prefix = "file:" if arguments[0] == "migrate" and "{threads}" in arguments else ""
    given = [f"{prefix if one == '{threads}' else ''}{one.format(**names)}" for one in arguments]
    assert Ran(*given).refused_with(said)
    assert [path.name for path in tmp_path.iterdir()] == ["threads"]


def test_the_report_names_20_conflicts_and_counts_the_rest(there: str, here: str) -> None:
    for url, value in ((there, 1), (here, 2)):
        with opened(url) as store:
            for number in range(30):
                store.put(MEMORIES, f"{number}", {"n": value})
    ran = Ran("migrate", there, here, "--store")
    assert ran.code == 1 and "30 conflicts" in ran.out
    assert len(ran.err.splitlines()) == 21 and ran.err.endswith("conflict: and 10 more\n")


def test_progress_is_reported(lived: dict[str, str], here: str) -> None:
    seen: list[int] = []
    with ExitStack() as stack:
        source = stack.enter_context(opened_store(lived["ours"], target=False))
        place = stack.enter_context(opened_store(here, target=True))
        report = migrate_items(source, place, progress=lambda now: seen.append(now.items), ttl=timedelta(days=1))
        with pytest.raises(ValueError, match="write 'older', 'all', or None"):
            migrate_items(source, place, replace="newer")  # type: ignore[arg-type]
    assert isinstance(report, ItemsReport) and seen[-1] == report.items == 12
    assert report.problems == []
    with opened_store(here, target=False) as now:
        assert {item.ttl for item in now.items(())} == {86_400_000}
