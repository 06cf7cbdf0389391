"""Commands with encrypted threads: `keys status`, `keys rotate`, `--keys-file`, and moving threads."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
import redis
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from tests.support.factories import config
from tests.support.hostile import furnish
from tests.support.servers import url_of

from redis_saver import RedisCache, RedisSaver, RedisStore, TieredSaver
from redis_saver._cli.main import main
from redis_saver.encryption import Encryption, Keyset

NOTHING: dict[str, Any] = {
    "keys": [],
    **{"threads": {}, "plain": 0, "failed": {}, "partitions": {}, "caches": {}, "rows": {}},
    **{"cold_backed": 0, "primary": None},
}
NOT_COUNTED = "rows in Postgres: not counted. If there is a cold tier, name it with --postgres URL"
SECRETS = {name: os.urandom(32) for name in ("old", "new")}


class Place:
    """The tests' server, with prefixes of the test's own, and a folder for files of keys."""

    def __init__(self, prefix: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.url, self.prefix, self.folder, self._capsys = url_of("redis"), prefix, folder, capsys
        self.client = redis.Redis.from_url(self.url)

    def saver(self, *names: str, end: str = "", **options: Any) -> RedisSaver:
        encryption = Encryption(Keyset({name: SECRETS[name] for name in names})) if names else None
        return RedisSaver(self.client, prefix=self.prefix + end, encryption=encryption, **options)

    def file(self, *names: str) -> str:
        path = self.folder / "-".join(names)
        path.write_text("\n".join(f"{name}={base64.b64encode(SECRETS[name]).decode()}" for name in names))
        return str(path)

    def run(self, *words: str, code: int = 0) -> tuple[str, str]:
        found = main(list(words))
        said = self._capsys.readouterr()
        assert found == code, said
        assert not any(base64.b64encode(key).decode() in said.out + said.err for key in SECRETS.values())
        return said.out, said.err

    @property
    def where(self) -> tuple[str, ...]:
        return "--redis", self.url, "--prefix", self.prefix

    def keys(self, command: str, *words: str, code: int = 0) -> Any:
        out, _ = self.run("keys", command, *self.where, "--json", *words, code=code)
        return json.loads(out)


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("REDIS_URL", "REDIS_SAVER_KEYS", "REDIS_SAVER_ENCRYPTION", "LANGGRAPH_AES_KEY"):
        monkeypatch.delenv(name, raising=False)
    made = Place(f"k{os.getpid()}-{tmp_path.name}", tmp_path, capsys)
    yield made
    made.client.unlink(*made.client.keys(f"{made.prefix}*"), "nothing")


def seen(saver: RedisSaver, thread: str = "thread") -> list[Any]:
    """Return the checkpoints of a thread, without versions: a migration makes all of them texts."""
    found = saver.list(config(thread))
    return [(one.checkpoint["id"], one.checkpoint["channel_values"], one.metadata, one.pending_writes) for one in found]


def test_keys_are_counted_and_rotated(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    furnish(place.saver("old"), "a")
    furnish(place.saver(), "plain")
    expected = seen(place.saver("old"), "a")
    assert place.keys("status") == {**NOTHING, "threads": {"old": 1}, "plain": 1}
    where = place.where
    table = place.run("keys", "status", *where)[0].split()
    assert table == f"KEY THREADS PARTITIONS CACHES old 1 0 0 not encrypted: 1 {NOT_COUNTED}".split()
    _, err = place.run("keys", "rotate", *where, code=2)
    assert "write --keys-file FILE, or set REDIS_SAVER_KEYS" in err
    both, new = ("--keys-file", place.file("new", "old")), ("--keys-file", place.file("new"))
    assert place.keys("rotate", *both) == {"rotated": 1, "unchanged": 0, "plain": 1, "failed": {}, "cold_backed": 0}
    assert place.run("keys", "rotate", *where, *both)[0] == "0 data keys rotated, 1 unchanged, 1 plain, 0 failed\n"
    assert place.keys("status")["threads"] == {"new": 1}
    assert place.keys("rotate", "--data", *new)["rotated"] == 1
    assert place.keys("rotate", "--data", "--before", "1h", *new)["unchanged"] == 1
    assert place.run("keys", "rotate", *where, *both, "--before", "1h", code=2)[1].endswith("only for --data\n")
    assert seen(place.saver("new"), "a") == expected
    failed = place.keys("rotate", "--data", "--keys-file", place.file("old"), code=1)["failed"]
    assert list(failed) == ["a"] and "which the keyset does not have" in failed["a"]
    monkeypatch.setenv("REDIS_SAVER_KEYS", Path(place.file("new")).read_text())
    assert place.keys("rotate")["unchanged"] == 1


def test_the_primary_key_is_marked(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a tenant's key that was put first by mistake is seen before it wraps what others write."""
    furnish(place.saver("old"), "a")
    given, where = ("--keys-file", place.file("new", "old")), place.where
    assert place.keys("status", *given)["primary"] == "new"
    out = place.run("keys", "status", *where, *given)[0]
    assert out.split()[4:12] == ["new", "(primary)", "0", "0", "0", "old", "1", "0"]
    monkeypatch.setenv("REDIS_SAVER_KEYS", Path(place.file("old")).read_text())
    assert "old (primary)" in place.run("keys", "status", *where)[0]


def test_a_key_id_that_is_there_twice_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Path(place.file("old", "new")).read_text().replace("new=", "old=")
    (place.folder / "twice").write_text(lines)
    monkeypatch.setenv("REDIS_SAVER_KEYS", lines)
    for options in ([], ["--keys-file", str(place.folder / "twice")]):
        _, err = place.run("keys", "status", "--redis", place.url, *options, code=2)
        assert "entry 2 has the id 'old' again. Each key needs an id of its own" in err


def test_commands_read_encrypted_threads_with_keys(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    furnish(place.saver("old"))
    where, given = place.where, ("--keys-file", place.file("old"))
    for words in (
        ["show", "thread"], ["tree", "thread"], ["writes", "thread"],
        ["diff", "thread", "c000000", "c000001"], ["history", "thread", "texts"], ["check", "thread"],
    ):  # fmt: skip
        out, _ = place.run(*words, *where, *given)
        assert out
        if words[0] != "check":
            _, err = place.run(*words, *where, code=2)
            assert "(commands: --keys-file)" in err, words
    place.run("copy", "thread", "copy", *where, *given)
    assert len(seen(place.saver("old"), "copy")) == 3
    furnish(place.saver(), "plain")
    assert "it is not encrypted" in place.run("check", "plain", *where, *given, code=1)[0]
    assert place.run("show", "plain", *where, *given)[0]
    assert "No such file" in place.run("threads", *where, "--keys-file", "nowhere", code=2)[1]
    for wrong in (base64.b64encode(SECRETS["old"]).decode(), "old=?", "old=AAAA"):
        monkeypatch.setenv("REDIS_SAVER_KEYS", wrong)
        err = place.run("threads", *where, code=2)[1]
        assert err.startswith("redis-saver: REDIS_SAVER_KEYS: "), err


@pytest.mark.parametrize("source", ["plain", "EncryptedSerializer"])
def test_threads_move_between_plain_and_encrypted(place: Place, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serde = None
    if source != "plain":
        monkeypatch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
        serde = EncryptedSerializer.from_pycryptodome_aes()
    before = place.saver(serde=serde)
    furnish(before)
    given, file = ("--keys-file", place.file("new")), str(place.folder / "threads.jsonl")

    def prefixes(start: str, end: str) -> list[str]:
        return ["--source-prefix", place.prefix + start, "--target-prefix", place.prefix + end]

    move = ["migrate", place.url, place.url, *prefixes("", "-encrypted"), *given]
    assert "1 copied" in place.run(*move)[0]
    assert "1 there already" in place.run(*move)[0]
    assert seen(place.saver("new", end="-encrypted")) == seen(before)
    assert "1 copied" in place.run("migrate", place.url, place.url, *prefixes("-encrypted", "-again"), *given)[0]
    assert "there are no keys" in place.run("migrate", place.url, place.url, *prefixes("-encrypted", "-no"), code=2)[1]
    monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)
    export = ["export", place.url, file, "--source-prefix", f"{place.prefix}-again", *given]
    assert "1 copied" in place.run(*export, "--plain")[0]
    assert "1 copied" in place.run("import", file, place.url, "--target-prefix", f"{place.prefix}-plain")[0]
    assert "1 copied" in place.run("import", file, place.url, "--target-prefix", f"{place.prefix}-last", *given)[0]
    assert seen(place.saver(end="-plain")) == seen(place.saver("new", end="-last")) == seen(before)


def test_everything_is_rotated_and_read_without_the_old_key(place: Place, database: str) -> None:
    """Threads in both tiers, items, and cached values."""

    def parts(*names: str) -> tuple[TieredSaver, RedisStore, RedisCache[Any]]:
        encryption = Encryption(Keyset({name: SECRETS[name] for name in names}))
        options: Any = {"prefix": place.prefix, "encryption": encryption}
        tiers = TieredSaver(place.saver(*names), cold)
        return tiers, RedisStore(place.client, **options), RedisCache(place.client, **options)

    name: Any = (("a",), "key")
    with PostgresSaver.from_conn_string(database) as cold:
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):  # of other tests
            cold.conn.execute(f"DELETE FROM {table}")  # type: ignore[union-attr]
        saver, store, cache = parts("old")
        furnish(saver)
        store.put(("memories", "user-1"), "key", {"text": "value"})
        cache.set({name: ("value", None)})
        expected = seen(saver)  # type: ignore[arg-type]
        postgres = ("--postgres", database)
        status = place.keys("status", *postgres)
        assert [list(status[part]) for part in ("threads", "partitions", "caches", "rows")] == [["old"]] * 4
        total = sum(status[part]["old"] for part in ("threads", "partitions", "caches", "rows"))
        assert (status["cold_backed"], place.keys("status", code=1)["cold_backed"]) == (0, 1)
        for command, done in (("status", "counted"), ("rotate", "rotated")):
            words = ("keys", command, *place.where, "--keys-file", place.file("old"))
            _, err = place.run(*words, code=1)
            assert f"in a cold tier, too: 1 thread, whose rows were not {done}. Name it with --postgres URL" in err
        assert place.keys("rotate", "--keys-file", place.file("new", "old"), *postgres)["rotated"] == total
        where = (*place.where, *postgres)
        out = place.run("keys", "status", *where)[0].split()
        rows = status["rows"]["old"]
        assert out == f"KEY THREADS PARTITIONS CACHES ROWS new 1 1 1 {rows} not encrypted: 0".split()
        saver, store, cache = parts("new")
        item = store.get(("memories", "user-1"), "key")
        assert item is not None and item.value == {"text": "value"}
        assert cache.get([name]) == {name: "value"}
        assert seen(saver) == expected  # type: ignore[arg-type]
        place.client.unlink(*place.client.keys(f"{place.prefix}:{{thread}}:*"))
        assert seen(parts("new")[0]) == expected  # type: ignore[arg-type]


def test_commands_over_many_threads_skip_and_name_those_whose_key_is_gone(place: Place) -> None:
    furnish(place.saver("old"), "shredded")
    for thread in ("a", "b"):
        furnish(place.saver("new"), thread)
    where = (*place.where, "--keys-file", place.file("new"))
    for command, code in ((("prune", "--all", "--yes"), 0), (("check", "--all"), 1)):
        out, err = place.run(*command, *where, code=code)
        assert err.startswith("skipped: shredded: the data key of thread 'shredded' was wrapped by the key 'old'"), err
        assert err.count("\n") == 1
        assert "of 2 threads" in out or out == "2 threads: 2 sound, 0 not, and 1 skipped\n"
    out, _ = place.run("threads", *where, "--json")
    assert {json.loads(line)["thread_id"] for line in out.splitlines()} == {"a", "b", "shredded"}
    named = place.run("prune", "a", "shredded", *where, "--yes", code=1)[1]
    assert named.startswith("not pruned: shredded: the data key of")
    assert "shredded" in place.run("check", "a", "shredded", *where, code=1)[0]
    assert "old (not among your keys) 1" in " ".join(place.run("keys", "status", *where)[0].split())
    assert "the key 'old'" in place.run("show", "shredded", *where, code=2)[1]
    assert place.run("delete", "shredded", *where, "--yes")[0] == "deleted: shredded\n"


def test_a_damaged_data_key_does_not_stop_a_check_of_all_threads(place: Place) -> None:
    for thread in ("a", "b"):
        furnish(place.saver("new"), thread)
    names = [f"{place.prefix}:{{{thread}}}:" for thread in ("a", "moved")]
    for part in ("data", "index"):
        place.client.copy(names[0] + part, names[1] + part)
    where = (*place.where, "--keys-file", place.file("new"))
    out, _ = place.run("check", "--all", *where, code=1)
    assert out.startswith("'moved': not sound") and out.endswith("3 threads: 2 sound, 1 not\n")
    assert "First check the keys of this process" in out and "delete_thread" not in out
    assert place.run("check", "moved", *where, code=1)[0].startswith("'moved': not sound")


def test_new_data_keys_name_threads_whose_rows_in_cold_keep_theirs(place: Place, database: str) -> None:
    with PostgresSaver.from_conn_string(database) as cold:
        cold.delete_thread("thread")  # of another test
        furnish(TieredSaver(place.saver("new"), cold))  # type: ignore[arg-type]
        cold.delete_thread("thread")
    where = (*place.where, "--keys-file", place.file("new"))
    for more in ((), ("--postgres", database)):
        out, err = place.run("keys", "rotate", "--data", *where, *more, code=1)
        assert out.startswith("1 data key rotated")
        assert err == "in a cold tier, too: 1 thread, whose rows were not rotated. They keep their data keys\n"
