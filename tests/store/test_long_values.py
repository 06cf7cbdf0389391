"""Long values: a read of one that the process knows is answered without it, and a put sends what changed. What is stored is what was put, whoever wrote when."""

from __future__ import annotations

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from counting import Bytes
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.store.base import GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from proxy import Proxy, proxy, retrying  # noqa: F401 - a fixture
from stores import check_sound, later
from uniform import Target, Uniform
from wrappers import Around, ran

from redis_saver import Conflict
from redis_saver._common.store_names import StoreKeyspace
from redis_saver._engine import scripts
from redis_saver._store import transfer

pytestmark = pytest.mark.also_on(cluster="sync", valkey="async")

NS = ("files", "ada")
MEMBER = b"files\0ada\0"
LITTLE = 450
"""Bytes of a call without a long value: keys, fields, and what is said about values."""
on_redis = pytest.mark.parametrize("target_name", ["redis"])


def lines(count: int, seed: int = 0) -> str:
    chance = random.Random(seed)
    return "\n".join(f"{number}: {chance.randbytes(20).hex()}" for number in range(count))


def file(text: str, n: int = 0) -> dict[str, Any]:
    return {"content": text, "modified": f"2026-11-25T01:02:03.{n:06}", "n": n}


TEXT = lines(2000)
"""About 90 kB."""


def edited(number: int, text: str = TEXT) -> dict[str, Any]:
    """The file with another line."""
    return file(text.replace(f"\n{number * 17}: ", f"\nedit {number}: "), number)


def record(target: Target, key: str = "f") -> bytes:
    found: bytes = target.raw.hget(StoreKeyspace(target.prefix).partition(MEMBER).keys[0], key.encode() + b"\0")
    return found


async def seen(target: Target, key: str = "f") -> Any:
    """The value that a process which knows nothing gets."""
    found = await target.store(cache_bytes=0).get(NS, key, refresh_ttl=False)
    return found and found.value


@pytest.mark.everywhere
async def test_an_edit_sends_what_changed_and_a_read_receives_nothing(target: Target, store: Uniform) -> None:
    counted = Bytes(store)
    await store.put(NS, "f", file(TEXT))
    assert counted.take()[0] > len(TEXT)
    for number in range(1, 6):
        await store.put(NS, "f", edited(number))
        sent, received = counted.take()
        assert sent < LITTLE + 100 and received < 50, (sent, received)
        found = await store.get(NS, "f")
        assert found.value == await seen(target) == edited(number)
        assert found.version > found.created_at.timestamp() * 1e6
        sent, received = counted.take()
        assert sent < LITTLE and received < 100, (sent, received)
    check_sound(target)


@on_redis
async def test_what_another_process_wrote_is_read_once(target: Target, store: Uniform) -> None:
    other = target.store()
    counted = Bytes(store)
    await store.put(NS, "f", file(TEXT))
    for number in range(1, 4):
        await other.put(NS, "f", edited(number))
        counted.take()
        for _ in range(3):
            found = await store.get(NS, "f")
            assert found.value == edited(number)
        sent, received = counted.take()
        assert len(TEXT) < received < len(TEXT) + 600 and sent < 3 * LITTLE


@on_redis
async def test_two_processes_edit_in_turn(target: Target) -> None:
    """Each reads first, as editors do: then nobody's base is stale."""
    stores = [target.store(), target.store()]
    counted = [Bytes(store) for store in stores]
    text = TEXT
    await stores[0].put(NS, "f", file(text))
    for turn in range(1, 11):
        store, count = stores[turn % 2], counted[turn % 2]
        text = (await store.get(NS, "f")).value["content"].replace(f"\n{turn * 19}: ", f"\nturn {turn}: ")
        count.take(), setattr(count, "calls", 0)
        await store.put(NS, "f", file(text, turn))
        assert count.take()[0] < LITTLE + 100 and count.calls == 1
        assert await seen(target) == file(text, turn)


@on_redis
@pytest.mark.parametrize("meanwhile", ["put", "delete", "delete and put", "expire", "shorten", "damage", "empty"])
async def test_a_stale_base_is_sent_whole(target: Target, store: Uniform, meanwhile: str) -> None:
    """Two round trips, whatever became of the item."""
    other = target.store()
    await store.put(NS, "other", {"n": 1}, ttl=10_000)
    await store.put(NS, "f", file(TEXT), ttl=5 if meanwhile == "expire" else None)
    created = (await store.get(NS, "f")).created_at
    if meanwhile == "put":
        await other.put(NS, "f", file(TEXT, 9))
    elif meanwhile.startswith("delete"):
        await other.delete(NS, "f")
    elif meanwhile == "expire":
        later(target, 10 * 60_000)
    elif meanwhile == "shorten":
        await other.put(NS, "f", {"n": 1})
    elif meanwhile == "damage":
        target.raw.hset(StoreKeyspace(target.prefix).partition(MEMBER).keys[0], b"f\0", record(target)[:-1])
    elif meanwhile == "empty":
        await other.delete_namespace(NS)
    if meanwhile == "delete and put":
        await other.put(NS, "f", file(TEXT))
    counted = Bytes(store)
    await store.put(NS, "f", edited(1))
    sent, _ = counted.take()
    assert sent > len(TEXT) and counted.calls == (4 if meanwhile in ("empty", "expire") else 2), (
        "and the directory has to be told"
    )
    found = await store.get(NS, "f")
    assert found.value == await seen(target) == edited(1)
    assert (found.created_at == created) == (meanwhile in ("put", "shorten", "damage"))
    check_sound(target)


@on_redis
async def test_a_conflict_is_one_also_with_a_splice(target: Target, store: Uniform) -> None:
    await store.put(NS, "f", file(TEXT), if_version=0)
    version = (await store.get(NS, "f")).version
    await store.put(NS, "f", edited(1), if_version=version)
    counted = Bytes(store)
    with pytest.raises(Conflict):
        await store.put(NS, "f", edited(2), if_version=version)
    await target.store().put(NS, "f", edited(3))
    with pytest.raises(Conflict):
        await store.put(NS, "f", edited(4), if_version=version)
    assert counted.take()[0] < 2 * (LITTLE + 100)
    assert await seen(target) == edited(3)


@on_redis
async def test_ttls_go_on_beginning_anew(target: Target, store: Uniform) -> None:
    await store.put(NS, "f", file(TEXT), ttl=10)
    counted = Bytes(store)
    for _ in range(4):
        later(target, 6 * 60_000)
        assert (await store.get(NS, "f")).value == file(TEXT)
        sent, received = counted.take()
        assert received < 600 and sent < 5 * LITTLE, "the directory may have to be told"
    await store.put(NS, "f", edited(1), ttl=10)
    assert counted.take()[0] < LITTLE + 100
    later(target, 11 * 60_000)
    assert await store.get(NS, "f") is None
    check_sound(target)


@on_redis
async def test_batches(target: Target, store: Uniform) -> None:
    """Long and short ones, known ones and others, in one step each; one stale base has all values sent whole."""
    names = [f"f{number}" for number in range(5)]
    ns = [NS, (*NS, "deep")]
    await store.batch([PutOp(where, name, file(TEXT, 1)) for where in ns for name in names])
    await target.store().put(NS, "f3", file(TEXT, 3))
    await store.put(NS, "short", {"n": 1})
    counted = Bytes(store)
    found = await store.batch([GetOp(where, name) for where in ns for name in [*names, "short", "none"]])
    assert [item and item.value["n"] for item in found] == [1, 1, 1, 3, 1, 1, None] + [1] * 5 + [None] * 2
    sent, received = counted.take()
    assert len(TEXT) < received < len(TEXT) + 2000 and sent < 1500
    puts = [PutOp(where, name, edited(4)) for where in ns for name in names]
    await store.batch([*puts, PutOp(NS, "short", {"n": 2}), PutOp(NS, "none", None)])
    assert counted.take()[0] < 10 * 250 + LITTLE
    await target.store().put((*NS, "deep"), "f2", file(TEXT, 3))
    counted.calls = 0
    await store.batch([PutOp(where, name, edited(5)) for where in ns for name in names])
    assert counted.calls == 2 and counted.take()[0] > 10 * len(TEXT)
    for where in ns:
        for name in names:
            assert (await target.store(cache_bytes=0).get(where, name)).value == edited(5)
    check_sound(target)


@on_redis
async def test_pages_and_filters_know_values_too(target: Target) -> None:
    writer, page, filtered = target.store(), target.store(), target.store()
    await writer.put(NS, "f", file(TEXT, 1))
    await page.search(NS)
    await filtered.search(NS, filter={"n": 1})
    for store in (page, filtered):
        counted = Bytes(store)
        assert (await store.get(NS, "f")).value["n"] == 1
        sent, received = counted.take()
        assert sent < LITTLE and received < 100
    await page.put(NS, "f", edited(2))
    await filtered.get(NS, "f")
    counted = Bytes(filtered)
    await filtered.put(NS, "f", edited(3))
    assert counted.take()[0] < LITTLE + 150
    assert await seen(target) == edited(3)


@on_redis
async def test_a_caller_may_change_what_it_got_and_gave(target: Target, store: Uniform) -> None:
    given = file(TEXT)
    await store.put(NS, "f", given)
    given["content"] = "changed"
    found = await store.get(NS, "f")
    found.value["content"] = "changed, too"
    assert (await store.get(NS, "f")).value == file(TEXT)


@on_redis
async def test_hostile_bytes(target: Target, store: Uniform) -> None:
    """Values full of what splices, records and frames are made of; edited at random by two processes."""
    chance = random.Random(7)
    bits = [
        b"=",
        b"0123456789abcdef 5 ",
        b"0 5 7:",
        b"\0",
        b"\xff",
        b" ",
        b"=ab 1 0 0 9:",
        b"7:msgpack",
        b"%d",
        b"\r\n$5\r\n",
    ]
    others = [store, target.store(), target.store(cache_bytes=20_000)]
    value = b""
    for turn in range(60):
        at, end = sorted(chance.randrange(len(value) + 1) for _ in "ab")
        new = b"".join(chance.choice(bits) for _ in range(chance.choice([0, 3, 900])))
        value = value[:at] + new + value[min(end, at + 500) :]
        writer = chance.choice(others)
        await writer.put(NS, "=f\0", {"raw": value, "t": value[:200].decode("latin-1")})
        for reader in others:
            assert (await reader.get(NS, "=f\0")).value == {"raw": value, "t": value[:200].decode("latin-1")}, turn
    check_sound(target)


class Cipher:
    """In place of a real one: each text looks like no other, and none like the plain one."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        pad = os.urandom(16)
        return "pad", pad + self._turned(pad, plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return self._turned(ciphertext[:16], ciphertext[16:])

    def _turned(self, pad: bytes, text: bytes) -> bytes:
        stream = random.Random(pad).randbytes(len(text))
        return (int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(text), "big")


@on_redis
@pytest.mark.parametrize("kind", ["encrypted", "compressed"])
async def test_encrypted_and_compressed_values_are_put_whole(target: Target, kind: str) -> None:
    """A read of one is answered without it all the same, and decrypted each time."""
    options: Any = {"compression": "zstd"} if kind == "compressed" else {"serde": EncryptedSerializer(Cipher())}
    store, other = target.store(**options), target.store(**options)
    await store.put(NS, "f", file(TEXT))
    stored, counted = len(record(target)), Bytes(store)
    await store.put(NS, "f", edited(1))
    assert counted.take()[0] > stored - 200
    assert b"modified" not in record(target)
    for _ in range(3):
        assert (await store.get(NS, "f")).value == edited(1)
    assert counted.take()[1] < 300
    assert (await other.get(NS, "f")).value == edited(1)


def behind(proxy: Proxy, target: Target) -> Uniform:  # noqa: F811
    beyond = Target(target.name, target.flavour, proxy.url, target.prefix)
    return beyond.store(client=beyond.client(retry=retrying(target.flavour, 2)))


@on_redis
async def test_a_splice_whose_reply_is_lost_counts_once(target: Target, proxy: Proxy) -> None:  # noqa: F811
    store = behind(proxy, target)
    await store.put(NS, "f", file(TEXT))
    version = (await store.get(NS, "f")).version
    proxy.lose_reply(scripts.PUT_ITEMS.sha.encode())
    await store.put(NS, "f", edited(1), if_version=version)
    assert proxy.lost == 1
    assert (await store.get(NS, "f")).value == await seen(target) == edited(1)
    await store.put(NS, "f", edited(2))
    assert await seen(target) == edited(2)
    check_sound(target)


@on_redis
async def test_a_splice_that_is_sent_again_behind_another_put_comes_whole(target: Target, store: Uniform) -> None:
    """As any put that is sent twice: the later sending counts."""
    other: Any = Target(target.name, "sync", target.url, target.prefix).store().saver
    await store.put(NS, "f", file(TEXT))
    sent = []

    def twice(request: Any) -> Any:
        sent.append(request)
        reply = yield request
        if len(sent) == 1:
            other.put(NS, "f", file(TEXT, 9))
            reply = yield request
        return reply

    Around(store.saver, twice)
    await store.put(NS, "f", edited(1))
    assert len(sent) == 2
    assert await seen(target) == edited(1)
    check_sound(target)


@on_redis
async def test_a_failover_that_lost_writes_is_no_base(target: Target, store: Uniform) -> None:
    await store.put(NS, "f", file(TEXT))
    saved = {key: target.raw.dump(key) for key in target.keys()}
    await store.put(NS, "f", edited(1))
    target.raw.unlink(*target.keys())
    for key, dump in saved.items():
        target.raw.restore(key, 0, dump)
    assert (await store.get(NS, "f")).value == file(TEXT)
    await store.put(NS, "f", edited(2))
    assert await seen(target) == edited(2)


@on_redis
async def test_an_import_brings_another_value_under_the_same_moment(target: Target, store: Uniform) -> None:
    await store.put(NS, "f", file(TEXT))
    context = store.saver._context
    item = transfer.StoredItem(NS, "f", edited(1), 1000, 2000, 0, 0, 10)
    version = (await store.get(NS, "f")).version
    for value in (edited(1), edited(2)):
        one = transfer.as_import(context, item._replace(value=value), version)
        assert await ran(store, transfer.import_items(context, one.partition, [one], transfer.new_put())) == []
        found = await store.get(NS, "f")
        version = found.version
        assert found.value == value and version in (2000, 2001)
    await store.put(NS, "f", edited(3))
    assert await seen(target) == edited(3)


@on_redis
@pytest.mark.parametrize("began_anew", [False, True])
async def test_a_version_that_comes_again_is_of_another_value(target: Target, store: Uniform, began_anew: bool) -> None:
    """An import brings versions that were there before. It gives the partition another token, as one does that begins anew."""
    other = target.store()

    async def bring(value: Any) -> None:
        item = transfer.StoredItem(NS, "f", value, 1000, 2000, 0, 0, 10)
        one = transfer.as_import(other.saver._context, item, 0)
        assert (
            await ran(other, transfer.import_items(other.saver._context, one.partition, [one], transfer.new_put()))
            == []
        )

    await other.put(NS, "other", {"n": 1})
    for number in range(3):
        await bring(edited(number))
        for _ in range(3):
            found = await store.get(NS, "f")
            assert (found.value, found.version) == (edited(number), 2000)
        await other.delete(NS, "f")
        assert await store.get(NS, "f") is None
        if began_anew:
            await other.delete_namespace(NS)
            await other.put(NS, "other", {"n": 1})


@on_redis
async def test_a_known_value_is_not_read_by_the_server(target: Target, store: Uniform) -> None:
    """Only the state is, and the version: scripts copy each value they read."""
    await store.put(NS, "f", file(TEXT))
    await store.get(NS, "f")
    calls = []
    for _ in range(2):
        stats = target.raw.info("commandstats")
        calls.append([stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("hmget", "hget", "zscore")])
        assert (await store.get(NS, "f")).value == file(TEXT)
    assert [after - before for before, after in zip(*calls, strict=True)] == [0, 1, 1]
    target.raw.delete(StoreKeyspace(target.prefix).partition(MEMBER).keys[1])
    assert (await store.get(NS, "f")).value == file(TEXT), "without its order, too"


@on_redis
async def test_memory_is_bounded_and_may_be_none(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    none, small, large = (target.store(cache_bytes=bytes_) for bytes_ in (0, 10_000, 250_000))
    counts = [Bytes(store) for store in (none, small, large)]
    for store, count in zip((none, small, large), counts, strict=True):
        for name in ("a", "b", "c"):
            await store.put(NS, name, file(TEXT))
        assert store.saver._context.remembered._size <= 250_000
        count.take()
        for name in ("c", "b"):
            assert (await store.get(NS, name)).value == file(TEXT)
        assert await store.get(NS, "a")
    assert [count.take()[1] // len(TEXT) for count in counts] == [3, 3, 1]
    assert caplog.text.count("cache_bytes=10,000 cannot hold") == 1
    await large.put(NS, "a", {"n": 1})
    await large.delete(NS, "c")
    assert list(large.saver._context.long_values._known[MEMBER]) == [b"b\0"]


@on_redis
@pytest.mark.parametrize("flavour", ["sync"])
async def test_os_threads_and_processes_edit_one_file(target: Target) -> None:
    """By compare-and-set: each edit is in the file at the end."""
    shared, other = target.store().saver, target.store().saver
    shared.put(NS, "f", file(TEXT))

    def edit(number: int) -> None:
        store = shared if number % 3 else other
        for line in range(number * 100, number * 100 + 5):
            while True:
                item = store.get(NS, "f")
                text = item.value["content"].replace(f"\n{line}: ", f"\nby {number} in {line}: ")
                try:
                    store.put(NS, "f", file(text, line), if_version=item.version)
                    break
                except Conflict:
                    continue

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(edit, range(1, 7)))
    found = (await seen(target))["content"]
    for number in range(1, 7):
        for line in range(number * 100, number * 100 + 5):
            found = found.replace(f"\nby {number} in {line}: ", f"\n{line}: ")
    assert found == TEXT
    check_sound(target)


@on_redis
@pytest.mark.parametrize("flavour", ["sync"])
async def test_a_forked_child_begins_with_nothing(target: Target) -> None:
    store = target.store().saver
    store.put(NS, "f", file(TEXT))
    store.search(NS)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        known = len(store._context.long_values._known)
        ok = store.get(NS, "f").value == file(TEXT)
        store.put(NS, "f", edited(1))
        os.write(write, b"ok" if ok and known == 0 else b"no")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 2) == b"ok"
    assert store.get(NS, "f").value == edited(1)


@on_redis
async def test_copies_of_a_cold_store_are_not_taken_for_puts(target: Target) -> None:
    """They name cold's moment there, which may be that of two values."""
    store = target.store()
    await store.put(NS, "f", file(TEXT))
    items, *_ = StoreKeyspace(target.prefix).partition(MEMBER).keys
    for value in (file(TEXT, 1), file(TEXT, 2)):
        created, version, ttl, _, data = record(target).split(b" ", 4)
        data = data.replace(b"\xa1n" + data[-1:], b"\xa1n" + bytes([value["n"]]))
        target.raw.hset(items, b"f\0", b" ".join([created, version, ttl, b"0" * 14, data]))
        assert (await store.get(NS, "f")).value["n"] == value["n"]
        assert (await store.search(NS))[0].value["n"] == 1 or value["n"] == 2


@on_redis
@pytest.mark.skipif(sys.version_info < (3, 11), reason="deepagents needs Python 3.11")
async def test_a_deep_agent_edits_a_long_file(target: Target, store: Uniform) -> None:
    """Twenty edits of 90 kB, each with a read: what the backend answers is what it answers over an `InMemoryStore`."""
    from deepagents.backends import StoreBackend

    ours = StoreBackend(store=store.saver, namespace=lambda _: NS)
    theirs = StoreBackend(store=InMemoryStore(), namespace=lambda _: NS)
    counted = Bytes(store)

    async def both(method: str, *args: Any) -> Any:
        call = getattr(ours, f"a{method}" if store.native_async else method)
        answer = await call("/f.md", *args) if store.native_async else call("/f.md", *args)
        expected = getattr(theirs, method)("/f.md", *args)
        assert (answer.error, getattr(answer, "occurrences", 0)) == (
            expected.error,
            getattr(expected, "occurrences", 0),
        )
        return answer, expected

    await both("write", TEXT)
    counted.take()
    for number in range(20):
        await both("edit", f"\n{number * 90}: ", f"\n{number} was edited here: ")
        answer, expected = await both("read", number * 80, 100)
        assert answer.file_data["content"] == expected.file_data["content"]
        sent, received = counted.take()
        assert sent < 3 * LITTLE + 100 and received < 300, (sent, received)
    check_sound(target)


SEARCHES: dict[str, Any] = {
    "page": lambda store: store.search(NS, limit=20),
    "filter": lambda store: store.search(NS, filter={"n": {"$gt": 0}}, limit=20),
    "deeper": lambda store: store.search((*NS, "deep")),
    "all": lambda store: store.search((), limit=20),
    "all, filter": lambda store: store.search((), filter={"n": {"$gt": 0}}, limit=20),
}


@on_redis
@pytest.mark.parametrize("search", SEARCHES)
async def test_a_search_receives_no_value_that_this_process_put(target: Target, store: Uniform, search: str) -> None:
    """What others put comes whole, once."""
    other, deep = target.store(), (*NS, "deep")
    counted = Bytes(store)

    async def look(expected: dict[str, Any]) -> int:
        counted.take()
        found = {item.key: item.value for item in await SEARCHES[search](store) if item.namespace in (NS, deep)}
        assert found == {key: value for key, value in expected.items() if search != "deeper" or key[0] == "d"}
        return counted.take()[1]

    expected = {name: file(TEXT + name, 1) for name in ("a", "b", "c", "d1", "d2")}
    where = {name: deep if name[0] == "d" else NS for name in expected}
    await store.batch([PutOp(where[name], name, value) for name, value in expected.items()])
    assert await look(expected) < 1000
    expected |= {name: edited(number) for number, name in enumerate(("b", "c", "d2"), 1)}
    await store.put(NS, "b", expected["b"])
    await store.batch([PutOp(where[name], name, expected[name]) for name in ("c", "d2")])
    assert await look(expected) < 1000
    await store.put(NS, "a", file(TEXT, 4))
    expected |= {name: edited(7 + number) for number, name in enumerate(("a", "d1"))}
    await other.batch([PutOp(where[name], name, expected[name]) for name in ("a", "d1")])
    received = await look(expected)
    assert len(TEXT) < received < len(TEXT) * 2 + 3000
    assert await look(expected) < 1000
    check_sound(target)


@on_redis
async def test_a_put_that_was_replaced_is_not_taken_for_what_is_there(target: Target, store: Uniform) -> None:
    """The process put the item, and others did after it, before it searched; one record says that it is of the same put as another."""
    other = target.store()
    await store.batch([PutOp(NS, "a", file(TEXT, 1)), PutOp(NS, "b", file(TEXT, 2))])
    await other.put(NS, "a", file(TEXT, 3))
    items, *_ = StoreKeyspace(target.prefix).partition(MEMBER).keys
    shorter = record(target, "b").replace(b"2026-11-25", b"2027-12-26")
    target.raw.hset(items, b"b\0", shorter.replace(shorter.split(b" ")[3], b"0" * 16))
    found = {item.key: item.value for item in await store.search(NS)}
    assert found["a"] == file(TEXT, 3)
    assert found["b"]["modified"].startswith("2027") and found["b"]["n"] == 2
