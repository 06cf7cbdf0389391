"""A `Keyset` whose file changes while the process runs."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.factories import checkpoint, config
from tests.support.uniform import Target

from redis_saver._storage import keysets
from redis_saver.encryption import Encryption, KeyContext, Keyset, WrappedKey
from redis_saver.errors import KeyUnavailable

pytestmark = pytest.mark.plain("each of its tests sets encryption= itself")

SECRETS = {name: os.urandom(32) for name in ("new", "old", "tenant/1", "tenant/2", "other")}
CONTEXT = KeyContext("prefix", "thread", "name")


class Clock:
    """The clocks that `KeyFile` reads, which a test moves on."""

    def __init__(self) -> None:
        self.ahead, self.slept, self.written = 0.0, 0.0, 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def time(self) -> float:
        """The file system does not know that the clock is ahead, so count from the last write."""
        return time.time() + self.ahead - self.written

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.ahead += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(keysets, "time", made)
    return made


def text_of(*names: str, **secrets: bytes) -> str:
    given = {**{name: SECRETS[name] for name in names}, **secrets}
    return "".join(f"{name}={base64.b64encode(key).decode()}\n" for name, key in given.items())


class File:
    """A file of keys, which is replaced in one of the ways that programs have."""

    def __init__(self, folder: Path, how: str, clock: Clock) -> None:
        self.how, self.folder, self.clock, self.number = how, folder, clock, 0
        self.path = folder / "keys"

    def write(self, text: str) -> None:
        self.number, self.clock.written = self.number + 1, self.clock.ahead
        if self.how == "in place":
            self.path.write_text(text)
        elif self.how == "renamed":
            (self.folder / "other").write_text(text)
            (self.folder / "other").replace(self.path)
        else:  # as Kubernetes updates a mounted secret
            made = self.folder / f"..{self.number}"
            made.mkdir()
            (made / "keys").write_text(text)
            (self.folder / "..tmp").symlink_to(made.name)
            (self.folder / "..tmp").replace(self.folder / "..data")
            if not self.path.is_symlink():
                self.path.symlink_to(Path("..data") / "keys")


@pytest.fixture(params=["in place", "renamed", "mounted"])
def file(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> File:
    return File(tmp_path, request.param, clock)


@pytest.fixture
def alone(tmp_path: Path, clock: Clock) -> File:
    return File(tmp_path, "in place", clock)


def wrapped(*names: str, name: str | None = None) -> WrappedKey:
    """Wrap a data key in another process."""
    return Keyset({name: SECRETS[name] for name in names}).wrap(b"d" * 32, CONTEXT, name)


def test_a_key_is_added_and_retired_without_a_restart(file: File, clock: Clock) -> None:
    file.write(text_of("old"))
    keys = Keyset.from_file(file.path)
    old = keys.wrap(b"d" * 32, CONTEXT, None)
    clock.ahead += 60
    file.write(text_of("old", "new"))
    assert keys.unwrap(wrapped("new"), CONTEXT) == b"d" * 32
    assert keys.wrap(b"d" * 32, CONTEXT, None).key_id == keys.primary == "old"
    file.write(text_of("new", "old"))
    clock.ahead += 60
    assert keys.wrap(b"d" * 32, CONTEXT, None).key_id == keys.primary == "new"
    file.write(text_of("new"))
    assert keys.unwrap(old, CONTEXT) == b"d" * 32
    clock.ahead += 60
    keys.wrap(b"d" * 32, CONTEXT, None)
    with pytest.raises(KeyUnavailable, match="'old'"):
        keys.unwrap(old, CONTEXT)


def test_an_unknown_key_is_looked_for_at_once(alone: File, clock: Clock) -> None:
    alone.write(text_of("old"))
    keys = Keyset.from_file(alone.path)
    alone.write(text_of("old", "tenant/1"))
    assert keys.unwrap(wrapped("tenant/1"), CONTEXT) == b"d" * 32
    assert 0 < clock.slept <= 1, "until the file is complete"
    alone.write(text_of("old", "tenant/1", "other"))
    assert keys.wrap(b"d" * 32, CONTEXT, "other").key_id == "other"
    slept = clock.slept
    for _ in range(3):
        with pytest.raises(KeyUnavailable, match="'new'"):
            keys.unwrap(wrapped("new"), CONTEXT)
    assert clock.slept == slept, "it waits only for a key that the file has"


def test_the_file_is_read_once_a_second_at_most(alone: File, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    alone.write(text_of("old"))
    keys, reads = Keyset.from_file(alone.path), list[str]()
    read = keysets.KeyFile._read
    monkeypatch.setattr(keysets.KeyFile, "_read", lambda self: reads.append("read") or read(self))
    monkeypatch.setattr(clock, "monotonic", lambda: clock.ahead)
    keys._file._looked = 0.0  # type: ignore[union-attr]
    for _ in range(4):
        clock.ahead += 0.5
        for _ in range(10):
            keys.unwrap(keys.wrap(b"d" * 32, CONTEXT, None), CONTEXT)
    assert len(reads) == 2


def test_after_an_idle_time_all_callers_wait_for_the_next_look(
    alone: File, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise some use a key that was destroyed long ago."""
    alone.write(text_of("old", "new"))
    keys, said = Keyset.from_file(alone.path), list[str]()
    old = keys.wrap(b"d" * 32, CONTEXT, None)
    alone.write(text_of("new"))
    clock.ahead += 60
    is_reading, goes_on, read = threading.Event(), threading.Event(), keysets.KeyFile._read

    def slow(self: Any) -> Any:
        is_reading.set()
        assert goes_on.wait(30)
        return read(self)

    def ask() -> None:
        try:
            said.append(str(keys.unwrap(old, CONTEXT)))
        except KeyUnavailable:
            said.append("gone")

    monkeypatch.setattr(keysets.KeyFile, "_read", slow)
    monkeypatch.setattr(keysets, "WAIT_SECONDS", 30.0)
    callers = [threading.Thread(target=ask) for _ in range(3)]
    callers[0].start()
    assert is_reading.wait(30)
    for each in callers[1:]:
        each.start()
        each.join(0.1)
    assert said == []
    goes_on.set()
    for each in callers:
        each.join(30)
    assert said == ["gone"] * 3


UNUSABLE = {
    **{"empty": "", "a line break": "\n", "no keys": "no keys", "no text": "\udcff", "no file": None},
    **{"no secret": text_of("new") + "old", "an empty secret": text_of("new") + "old="},
    **{"cut base64": text_of("old", "new")[:-6], "a short key": text_of("old", new=b"short")},
    "a key twice": text_of("old") * 2,
}


@pytest.mark.parametrize("seconds", [0.0, 5.0, 60.0])
@pytest.mark.parametrize("text", UNUSABLE.values(), ids=UNUSABLE)
def test_a_file_that_cannot_be_used_changes_nothing(
    alone: File, clock: Clock, caplog: pytest.LogCaptureFixture, text: str | None, seconds: float
) -> None:
    caplog.set_level("WARNING", "redis_saver.storage")
    keysets._LOG._throttle._passed.clear()
    alone.write(text_of("new", "old"))
    keys = Keyset.from_file(alone.path)
    old = wrapped("old")
    if text is None:
        alone.path.unlink()
    else:
        alone.path.write_bytes(text.encode("utf-8", "surrogateescape"))
    clock.ahead += 1 + seconds
    for _ in range(3):
        clock.ahead += 1
        assert keys.wrap(b"d" * 32, CONTEXT, None).key_id == "new"
        assert keys.unwrap(old, CONTEXT) == b"d" * 32
        with pytest.raises(KeyUnavailable):
            keys.unwrap(wrapped("other"), CONTEXT)
    assert len(caplog.records) == 1
    assert "keys" in caplog.text and base64.b64encode(SECRETS["new"]).decode()[:8] not in caplog.text
    alone.write(text_of("other", "new", "old"))
    clock.ahead += 2
    assert keys.wrap(b"d" * 32, CONTEXT, None).key_id == "other"


def test_keys_that_are_gone_stay_until_the_file_is_stable(alone: File, clock: Clock, caplog: Any) -> None:
    caplog.set_level("WARNING", "redis_saver.storage")
    keysets._LOG._throttle._passed.clear()
    alone.write(text_of("old", "tenant/1"))
    keys = Keyset.from_file(alone.path)
    whole = text_of("new", "old", "tenant/2", "tenant/1")
    lines = [at + 1 for at, character in enumerate(whole) if character == "\n"]
    for end in sorted([*range(0, len(whole), 15), *lines[:-1]]):  # a program that writes slowly
        alone.write(whole[:end])
        clock.ahead += 0.9
        assert keys.wrap(b"d" * 32, CONTEXT, None).key_id == "old"
        assert keys.wrap(b"d" * 32, CONTEXT, "tenant").key_id == "tenant/1"
        assert keys.unwrap(wrapped("tenant/1"), CONTEXT) == b"d" * 32
    assert "are gone or have changed" in caplog.text
    alone.write(whole)
    clock.ahead += 1.5
    assert keys.wrap(b"d" * 32, CONTEXT, None).key_id == "new"
    assert keys.wrap(b"d" * 32, CONTEXT, "tenant").key_id == "tenant/2"
    alone.write(text_of("new", "tenant/2"))
    clock.ahead += 5
    assert keys.wrap(b"d" * 32, CONTEXT, None).key_id == "new"
    assert keys.unwrap(wrapped("old"), CONTEXT) == b"d" * 32
    clock.ahead += 6
    keys.wrap(b"d" * 32, CONTEXT, None)
    with pytest.raises(KeyUnavailable, match="'old'"):
        keys.unwrap(wrapped("old"), CONTEXT)


def test_another_secret_of_a_known_key_is_not_used_at_once(alone: File, clock: Clock) -> None:
    """It may be cut short. So it counts like a key that is gone."""
    alone.write(text_of("old"))
    keys, old = Keyset.from_file(alone.path), wrapped("old")
    for secret, kept in ((SECRETS["old"][:24], True), (SECRETS["new"], False)):
        alone.write(text_of(old=secret))
        clock.ahead += 5
        assert keys.unwrap(keys.wrap(b"d" * 32, CONTEXT, None), CONTEXT) == b"d" * 32
        assert keys.unwrap(old, CONTEXT) == b"d" * 32
        clock.ahead += 0 if kept else 6
    keys.wrap(b"d" * 32, CONTEXT, None)
    with pytest.raises(ValueError, match="another key has this id"):
        keys.unwrap(old, CONTEXT)


def test_a_change_during_a_call_does_not_mix_keys(alone: File, clock: Clock) -> None:
    """OS threads that use the keys, while the file changes."""
    alone.write(text_of("old", "new"))
    keys, errors = Keyset.from_file(alone.path), list[BaseException]()
    ended = threading.Event()

    def use() -> None:
        try:
            while not ended.is_set():
                assert keys.unwrap(keys.wrap(b"d" * 32, CONTEXT, None), CONTEXT) == b"d" * 32
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(15):
        alone.write(text_of(*(("old", "new") if number % 2 else ("new", "old"))))
        clock.ahead += 2
        time.sleep(0.005)
    ended.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """As with `--keys-file <(command)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(text_of("old"),))
    writer.start()
    keys = Keyset.from_file(pipe)
    writer.join()
    with pytest.raises(KeyUnavailable):
        keys.unwrap(wrapped("new"), CONTEXT)
    assert keys.unwrap(wrapped("old"), CONTEXT) == b"d" * 32


def test_a_file_that_becomes_a_pipe_does_not_block(alone: File, clock: Clock) -> None:
    alone.write(text_of("old"))
    keys = Keyset.from_file(alone.path)
    alone.path.unlink()
    os.mkfifo(alone.path)
    clock.ahead += 5
    with pytest.raises(KeyUnavailable):
        keys.unwrap(wrapped("new"), CONTEXT)
    assert keys.unwrap(wrapped("old"), CONTEXT) == b"d" * 32


def test_a_child_looks_for_itself(alone: File, clock: Clock) -> None:
    """A fork while another OS thread of the parent looks."""
    alone.write(text_of("old"))
    keys = Keyset.from_file(alone.path)
    lock = keys._file._lock  # type: ignore[union-attr]
    with lock:
        if (child := os.fork()) == 0:
            alone.write(text_of("old", "new"))
            os._exit(keys.unwrap(wrapped("new"), CONTEXT) != b"d" * 32)
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The OS threads that read the file."""
    readers, read = list[int](), keysets.KeyFile._read

    def noting(self: Any) -> Any:
        readers.append(threading.get_ident())
        return read(self)

    monkeypatch.setattr(keysets.KeyFile, "_read", noting)
    yield readers


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_running_saver_learns_of_a_key(target: Target, alone: File, clock: Clock, opened: list[int]) -> None:
    alone.write(text_of("old"))
    uniform = target.uniform(encryption=Encryption(Keyset.from_file(alone.path), cache_seconds=0))
    opened.clear()
    saved = checkpoint({"n": 1})
    await uniform.put(config(), saved, {}, saved["channel_versions"])
    alone.write(text_of("new", "old"))
    other = target.uniform(encryption=Encryption(Keyset({"new": SECRETS["new"]})))
    await other.put(config("another"), saved, {}, saved["channel_versions"])
    for thread in ("thread", "another"):
        assert (await uniform.get_tuple(config(thread))).checkpoint["channel_values"] == {"n": 1}
    assert (await uniform.rotate_keys()).failed == {}
    assert (await uniform.key_status()).threads == {"new": 2}
    assert opened
    if target.flavour == "async":
        assert threading.get_ident() not in opened, "the event loop does not read files"
