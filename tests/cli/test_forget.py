"""The forget command: it deletes all data of one user, and nothing of others."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from tests.support.factories import chain, config
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.store.postgres import PostgresStore
from tests.support.commands import run_python
from tests.support.servers import Server
from tests.support.store_tiering import Recording
from tests.support.uniform import Target, Uniform

from redis_saver import RedisSaver, RedisStore, TieredSaver, TieredStore
from redis_saver._checkpoint.saver import RedisSaver as SyncSaver
from redis_saver._cli.main import main
from redis_saver._store.store import RedisStore as SyncStore

_numbers = itertools.count()
THREADS = ["user-1:a", "user-1:b", "user-1*%\n", "user-10:a", "user-2:a"]
NAMESPACES = ("--namespace", "memories.user-1", "--namespace", "notes.user-1.private")
MINE = ("--thread-prefix", "user-1:", "--thread", "user-1*%\n", *NAMESPACES)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server("--databases", "100")
    yield made
    made.stop()


class Place:
    """Threads and memories of three users."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stack = ExitStack()
        self.saver = self.stack.enter_context(RedisSaver.from_conn_string(url))
        self.store = self.stack.enter_context(RedisStore.from_conn_string(url))

    async def live(self, saver: Any = None) -> None:
        for number, thread in enumerate(THREADS, 1):
            await chain(Uniform(saver or self.saver), thread, number)
        self.remember(self.store)

    @staticmethod
    def remember(store: Any) -> None:
        for user in ("user-1", "user-10", "user-2"):
            for key in "abc":
                store.put(("memories", user), key, {"n": key})
            store.put(("memories", user, "deep", "er"), "d", {})
            store.put(("notes", user, "private"), "e", {})
            store.put(("notes", user), "kept", {})

    def forget(self, *more: str) -> int:
        return main(["forget", "--redis", self.url, *more])

    def left(self) -> tuple[set[str], dict[tuple[str, ...], int]]:
        threads = {one.thread_id for one in self.saver.threads()}
        namespaces = self.store.list_namespaces(limit=1000)
        return threads, {labels: len(self.store.search(labels, limit=100)) for labels in namespaces}


OTHERS = (
    {"user-10:a", "user-2:a"},
    {
        ("notes", "user-1"): 1,
        **{("memories", user): 4 for user in ("user-10", "user-2")},
        **{("memories", user, "deep", "er"): 1 for user in ("user-10", "user-2")},
        **{("notes", user): 2 for user in ("user-10", "user-2")},
        **{("notes", user, "private"): 1 for user in ("user-10", "user-2")},
    },
)


@pytest.fixture
async def place(server: Server) -> Any:
    made = Place(f"{server.url}/{next(_numbers)}")
    await made.live()
    yield made
    made.stack.close()


async def test_forget_deletes_all_data_of_one_user_only(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.forget(*MINE, "--yes") == 0
    said = capsys.readouterr()
    assert said.out == "Deleted 3 threads with 6 checkpoints, and 5 items\n" and said.err == ""
    assert place.left() == OTHERS
    assert place.forget(*MINE, "--yes") == 0
    assert capsys.readouterr().out == "Deleted 0 threads with 0 checkpoints, and 0 items\n"
    assert place.left() == OTHERS
    left = {key for key in redis.Redis.from_url(place.url).keys() if not key.endswith(b"retired")}
    assert not [key for key in left if b"user-1:" in key or b"memories/user-1}" in key]


async def test_forget_without_yes_only_counts(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    before = place.left()
    assert place.forget(*MINE) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "thread 'user-1*%\\n': 3 checkpoints",
        "thread 'user-1:a': 1 checkpoint",
        "thread 'user-1:b': 2 checkpoints",
        f"namespace ('memories', 'user-1') in {place.url}: 4 items",
        f"namespace ('notes', 'user-1', 'private') in {place.url}: 1 item",
        "Nothing was deleted. --yes deletes 3 threads with 6 checkpoints, and 5 items",
    ]
    assert place.left() == before and said.err == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "name what to delete"),
        (("--thread-prefix", ""), "every name begins with it"),
        (("--thread-prefix", "x", "--thread-prefix", ""), "every name begins with it"),
        (("--namespace", ""), "is empty"),
        (("--namespace", "memories..b"), "is empty"),
        (("--thread", "x", "--redis", "memory://x"), "an embedded server"),
        (("--thread", "x", "--redis", "redis://:secret@127.0.0.1:1"), "127.0.0.1"),
        (("--namespace", "x", "--redis", "redis://:secret@127.0.0.1:1"), "127.0.0.1"),
        (("--thread", "x", "--postgres", "postgresql://u:secret@127.0.0.1:1/x"), "127.0.0.1"),
        (("--namespace", "x", "--postgres", "postgresql://u:secret@127.0.0.1:1/x"), "127.0.0.1"),
    ],
)
async def test_invalid_arguments_delete_nothing(
    place: Place, given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = place.left()
    try:
        code = place.forget(*given, "--yes")
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    err = capsys.readouterr().err
    assert code == 2 and said in err and "secret" not in err, err
    assert place.left() == before


async def test_a_missing_redis_url_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert main(["forget", "--thread", "x", "--yes"]) == 2
    assert "write --redis URL" in capsys.readouterr().err


async def test_a_failed_run_reports_the_rest_and_can_be_repeated(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server fails in the middle."""
    delete, left = SyncSaver.delete_thread, itertools.count()

    def fails(self: Any, thread: str) -> None:
        if next(left) == 1:
            raise redis.ConnectionError("gone away")
        delete(self, thread)

    with monkeypatch.context() as patched:
        patched.setattr(SyncSaver, "delete_thread", fails)
        assert place.forget(*MINE, "--yes") == 2
    lines = capsys.readouterr().err.splitlines()
    left = "thread 'user-1:a', thread 'user-1:b', namespace ('memories', 'user-1')"
    assert lines[0].startswith(f"still to be deleted: {left}")
    assert lines[0].endswith("Run this again") and "gone away" in lines[1] and len(lines) == 2
    assert place.forget(*MINE, "--yes") == 0 and place.left() == OTHERS


async def test_undeletable_data_is_reported_and_the_rest_is_deleted(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """The partition is of a newer release."""
    raw = redis.Redis.from_url(place.url)
    items = place.store._context.places.of(("memories", "user-1")).partition.keys[0]
    state = raw.hget(items, "@state")
    raw.hset(items, "@state", b"9" + state[1:])
    assert place.forget(*MINE) == 1
    said = capsys.readouterr()
    assert said.err.startswith("cannot be deleted: namespace ('memories', 'user-1')") and said.err.count("\n") == 1
    assert said.out.count("thread 'user-1") == 3 and "Nothing was deleted" in said.out
    assert place.forget(*MINE, "--yes") == 1
    said = capsys.readouterr()
    assert said.err.count("not deleted: ") == 1 and "namespace ('memories', 'user-1')" in said.err
    assert said.out == "Deleted 3 threads with 6 checkpoints, and 1 item\n"
    raw.hset(items, "@state", state)
    assert place.forget(*MINE, "--yes") == 0 and place.left() == OTHERS


async def test_damaged_data_is_deleted_too(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    raw = redis.Redis.from_url(place.url)
    raw.unlink(place.store._context.places.of(("memories", "user-1")).partition.keys[1])
    raw.unlink(place.saver._context.keyspace.keys("user-1:a").index_key)
    assert place.forget(*MINE) == 0
    said = capsys.readouterr().out
    assert "thread 'user-1:a': damaged, so its checkpoints cannot be counted" in said
    assert "user-1') in " in said and "damaged, so its items cannot be counted" in said
    assert place.forget(*MINE, "--yes") == 0
    assert capsys.readouterr().out.startswith("Deleted 3 threads with 5 checkpoints")
    assert place.left() == OTHERS


async def test_items_put_during_the_deletion_are_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent of the user is still running."""
    delete = SyncStore.delete_namespace

    def late(self: Any, labels: Any) -> int:
        gone = delete(self, labels)
        place.store.put(("memories", "user-1"), "late", {})
        return gone

    with monkeypatch.context() as patched:
        patched.setattr(SyncStore, "delete_namespace", late)
        assert place.forget(*MINE, "--yes") == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "namespace ('memories', 'user-1')" in err and "meanwhile" in err
    assert place.forget(*MINE, "--yes") == 0 and place.left() == OTHERS


@pytest.mark.parametrize("flavour", ["sync"])
async def test_forget_works_on_every_server(target: Target) -> None:
    if target.name == "fakeredis":
        pytest.skip("an embedded server is refused")
    saver, store = target.uniform(), target.store()
    for thread in ("u1-a", "u1-b", "u2"):
        await chain(saver, thread, 2)
    await store.put(("memories", "u1"), "a", {})
    await store.put(("memories", "u2"), "a", {})
    given = ["--redis", target.url, "--prefix", target.prefix, "--thread-prefix", "u1", "--namespace", "memories.u1"]
    assert main(["forget", *given, "--yes"]) == 0
    assert [one.thread_id for one in await saver.threads()] == ["u2"]
    assert await store.list_namespaces() == [("memories", "u2")]


# -- two tiers


@pytest.fixture
def cold(empty_database: str) -> str:
    with PostgresSaver.from_conn_string(empty_database) as saver:
        saver.setup()
    return empty_database


@pytest.mark.parametrize("write", ["through", "behind"])
async def test_forget_deletes_from_both_tiers(
    server: Server, cold: str, write: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """This includes unflushed data, and data that only cold has. None of it comes back."""
    place = Place(f"{server.url}/{next(_numbers)}")
    with place.stack, PostgresSaver.from_conn_string(cold) as saver, PostgresStore.from_conn_string(cold) as store:
        store.setup()
        place.remember(store)
        await chain(Uniform(saver), "user-1:cold", 3)
        await chain(Uniform(saver), "user-2:cold", 3)
        options: Any = {"flusher": False} if write == "behind" else {}
        tiers = TieredSaver(place.saver, saver, mode=f"write-{write}", **options)
        await place.live(tiers)
        assert tiers.get_tuple(config("user-1:b"))  # now hot has it
        for more in ([], ["--yes"]):
            assert main(["forget", "--redis", place.url, *MINE, *more]) == 2
            err = capsys.readouterr().err
            assert "is also in a cold tier" in err and "Nothing was deleted" in err and "--postgres URL" in err
        assert main(["forget", "--redis", place.url, "--postgres", cold, *MINE, "--yes"]) == 0
        assert capsys.readouterr().out == "Deleted 4 threads with 9 checkpoints, and 10 items\n"
        if write == "behind":
            flushing = TieredSaver(place.saver, saver, mode="write-behind")
            flushing.flush()
            flushing.close()
        found = {one.config["configurable"]["thread_id"] for one in saver.list(None)}
        assert found == {*OTHERS[0], "user-2:cold"}
        assert not any(tiers.get_tuple(config(thread)) for thread in ("user-1:a", "user-1:cold"))
        assert place.left()[1] == OTHERS[1]
        assert {labels: len(store.search(labels, limit=100)) for labels in store.list_namespaces()} == OTHERS[1]


USER = ("memories", "user-1")


@pytest.fixture
def tiers(server: Server, cold: str) -> Any:
    """A tiered store with copies of a user's items in hot, its cold store, and a `forget` command for it."""
    url, calls = f"{server.url}/{next(_numbers)}", ["--store-prefix", "copies", "--namespace", ".".join(USER)]
    with RedisStore.from_conn_string(url, prefix="copies") as hot, PostgresStore.from_conn_string(cold) as store:
        store.setup()
        recording = Recording(store)
        tiered = TieredStore(hot, recording)
        for key in "abc":
            tiered.put(USER, key, {"n": key})
        assert hot.count(USER) == 3
        yield tiered, recording, ["forget", "--redis", url, *calls]


@pytest.mark.parametrize("notes", ["there", "gone"])
@pytest.mark.parametrize("labels", [["memories"], [*USER]])
async def test_copies_are_not_deleted_without_cold(
    tiers: Any, notes: str, labels: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Cold would bring them back. Copies are recognized even after their notes have expired."""
    store, recording, forget = tiers
    if notes == "gone":
        client = store.hot._driver.client
        assert client.unlink(*client.keys("copies:store:*note*")) == 2
    for more in ([], ["--yes"]):
        assert main([*forget, "--namespace", ".".join(labels), *more]) == 2
        err = capsys.readouterr().err
        assert "are copies of a cold store's" in err and "Nothing was deleted" in err and "--postgres" in err
    assert store.hot.count(USER) == len(recording.store.search(USER)) == 3


@pytest.mark.parametrize("labels", [["memories"], [*USER]])
async def test_a_concurrent_reader_stores_no_copy_after_forget(tiers: Any, cold: str, labels: list[str]) -> None:
    store, recording, forget = tiers
    store.hot.delete_namespace(USER)  # like an eviction or expiry
    store.get(USER, "a")

    def erase(_: Any) -> None:
        """Forget the user when the reader has cold's answer, but has not stored a copy."""
        recording.then = lambda _: None
        assert main([*forget, "--namespace", ".".join(labels), "--postgres", cold, "--yes"]) == 0
        assert not store.hot._driver.client.keys("copies:store:*note*"), "they name the user's items"

    recording.then = erase
    assert store.get(USER, "b") is not None
    assert store.hot.count(USER) == 0 and store.get(USER, "b") is None and store.search(USER) == []
    store.put(USER, "new", {})
    assert store.get(USER, "new").value == {} and store.hot.count(USER) == 1


async def test_forget_works_if_cold_has_no_store(server: Server, cold: str) -> None:
    place = Place(f"{server.url}/{next(_numbers)}")
    with place.stack:
        await place.live()
        assert main(["forget", "--redis", place.url, "--postgres", cold, *MINE, "--yes"]) == 0
        assert place.left() == OTHERS


async def test_forget_runs_as_a_process(place: Place) -> None:
    words = ("-m", "redis_saver", "forget", "--namespace", "memories.user-1", "--yes")
    done = run_python(*words, environment={**os.environ, "REDIS_URL": place.url})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Deleted 0 threads with 0 checkpoints, and 4 items\n"
