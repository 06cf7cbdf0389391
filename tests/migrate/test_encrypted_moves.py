"""Encrypted threads and items move with keys on both sides, and become plain only if that is said."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.memory import InMemoryStore
from tests.support.factories import config, put
from tests.support.servers import url_of
from tests.support.tenants import SECRETS, keys
from tests.support.tiering import Tiers
from tests.support.uniform import Target, Uniform

from redis_saver import RedisSaver, TieredSaver
from redis_saver._cli.main import main
from redis_saver.encryption import ColdSerializer, Keyset
from redis_saver.errors import EndpointError
from redis_saver.migrate import migrate, migrate_items, opened, opened_store

pytestmark = [pytest.mark.plain("each of its tests sets encryption= itself"), pytest.mark.also_on()]
NAMESPACES = [("acme", "user-1"), ("acme", "user-1", "notes"), ("globex", "user-2")]
MARKER = "a marker that nobody may read"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command with the keys of all tenants but some, and returns what it says."""
    for name in ("REDIS_URL", "REDIS_SAVER_ENCRYPTION", "LANGGRAPH_AES_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str, code: int = 0, shredded: tuple[str, ...] = (), has_keys: bool = True) -> str:
        left = {name: key for name, key in SECRETS.items() if name not in shredded}
        text = ",".join(f"{name}={base64.b64encode(key).decode()}" for name, key in left.items())
        monkeypatch.setenv("REDIS_SAVER_KEYS", text)
        if not has_keys:
            monkeypatch.delenv("REDIS_SAVER_KEYS")
        found, said = main(list(words)), capsys.readouterr()
        assert found == code, said
        return said.out + said.err

    return run


async def items(target: Target, end: str = "", **options: Any) -> dict[Any, Any]:
    store = target.store(prefix=target.prefix + end, **options)
    return {item.namespace: (item.value, item.created_at) for item in await store.search((), limit=100)}


async def filled_store(target: Target) -> dict[Any, Any]:
    store = target.store(encryption=keys())
    for namespace in NAMESPACES:
        await store.put(namespace, "key", {"text": MARKER, "where": list(namespace)})
    return await items(target, encryption=keys())


def has_marker(target: Target, end: str) -> bool:
    found = [key for key in target.keys() if key.startswith(f"{target.prefix}{end}:".encode())]
    return any(
        MARKER.encode() in value for key in found if target.raw.type(key) == b"hash" for value in target.raw.hvals(key)
    )


def between(target: Target, end: str) -> tuple[str, ...]:
    return target.url, target.url, "--source-prefix", target.prefix, "--target-prefix", target.prefix + end


async def test_items_move_between_encrypted_stores(target: Target, run: Callable[..., str]) -> None:
    expected = await filled_store(target)
    assert "3 items: 3 copied" in run("migrate", *between(target, "-there"), "--store")
    assert await items(target, "-there", encryption=keys()) == expected
    assert not has_marker(target, "-there")
    assert "0 copied, 0 replaced, 3 there already" in run("migrate", *between(target, "-there"), "--store")
    other = target.store(encryption=keys(), prefix=f"{target.prefix}-there")
    assert set((await other.key_status()).partitions) == {"primary"}, "commands know no key_for"


@pytest.mark.parametrize("what", ["items", "threads"])
async def test_an_export_of_something_encrypted_needs_a_word(
    target: Target, run: Callable[..., str], tmp_path: Path, what: str
) -> None:
    file, store = str(tmp_path / "file"), ("--store",) if what == "items" else ()
    await filled_store(target)
    await put(target.uniform(encryption=keys()), config("acme:1"), {"text": MARKER})
    await put(target.uniform(prefix=f"{target.prefix}-plain"), config("plain"), {"text": "plain"})
    refused = run("export", target.url, file, *store, "--source-prefix", target.prefix, code=2)
    assert "is encrypted, and file" in refused and "--plain" in refused and not Path(file).exists()
    if not store:
        assert "1 copied" in run("export", target.url, f"{file}-2", "--source-prefix", f"{target.prefix}-plain")
    run("export", target.url, file, *store, "--source-prefix", target.prefix, "--plain")
    assert MARKER.encode() in Path(file).read_bytes()
    run("import", file, target.url, "--target-prefix", f"{target.prefix}-there")
    assert not has_marker(target, "-there")
    if store:
        assert await items(target, "-there", encryption=keys()) == await items(target, encryption=keys())


async def test_a_plain_prefix_needs_the_word_too(target: Target, run: Callable[..., str]) -> None:
    expected = await filled_store(target)
    run("migrate", *between(target, "-plain"), "--store", "--plain")
    assert await items(target, "-plain") == expected
    assert has_marker(target, "-plain")


async def test_without_keys_an_export_asks_for_them_and_not_for_a_deletion(
    target: Target, run: Callable[..., str], tmp_path: Path
) -> None:
    await filled_store(target)
    file = tmp_path / "file"
    said = run("export", target.url, str(file), "--store", "--source-prefix", target.prefix, code=2, has_keys=False)
    assert "REDIS_SAVER_KEYS" in said and "--keys-file" in said and "Nothing was written" in said
    assert "delete" not in said and not file.exists()


async def test_partitions_without_a_key_are_named_and_the_others_move(
    target: Target, run: Callable[..., str], tmp_path: Path
) -> None:
    await filled_store(target)
    assert set((await target.store(encryption=keys()).key_status()).partitions) == {"acme", "globex"}
    said = run("migrate", *between(target, "-there"), "--store", code=1, shredded=("globex",))
    assert "2 copied" in said and "1 failed" in said and "'globex'" in said
    assert {each[0] for each in await items(target, "-there", encryption=keys())} == {"acme"}
    made = target.uniform(encryption=keys())
    for thread in ("acme:1", "globex:1"):
        await put(made, config(thread), {"text": MARKER})
    said = run("migrate", *between(target, "-there"), code=1, shredded=("globex",))
    assert "1 copied" in said and "1 failed" in said and "'globex'" in said


async def test_an_item_for_a_plain_partition_of_an_encrypted_target_is_named(
    target: Target, run: Callable[..., str]
) -> None:
    await filled_store(target)
    await target.store(prefix=f"{target.prefix}-there").put(("acme", "user-1"), "another", {"n": 1})
    said = run("migrate", *between(target, "-there"), "--store", code=1)
    assert "1 copied" in said and "2 failed" in said
    left = await target.store(prefix=f"{target.prefix}-there").search(("acme", "user-1"))
    assert [item.value for item in left] == [{"n": 1}]


async def test_stores_are_arguments_in_python(target: Target) -> None:
    expected = await filled_store(target)
    source = target.store(encryption=keys()).saver
    there = target.store(encryption=keys(), prefix=f"{target.prefix}-there").saver
    plain = target.store(prefix=f"{target.prefix}-plain").saver

    def move() -> None:  # in an OS thread without an event loop, as an AsyncRedisStore needs
        assert migrate_items(source, there).written == 3
        assert migrate_items(source, there).unchanged == 3
        with pytest.raises(EndpointError, match="is encrypted, and .*RedisStore would store it plain.*plain=True"):
            migrate_items(source, plain)
        assert migrate_items(source, plain, plain=True).written == 3
        with opened_store(target.url, target=True, prefix=f"{target.prefix}-x", encryption=keys()) as opened:
            assert migrate_items(plain, opened).written == 3
        with pytest.raises(TypeError, match="source: a .*InMemoryStore; migrate_items takes a RedisStore"):
            migrate_items(InMemoryStore(), there)  # type: ignore[arg-type]

    await asyncio.to_thread(move)
    for end, options in (("-there", {"encryption": keys()}), ("-plain", {}), ("-x", {"encryption": keys()})):
        assert await items(target, end, **options) == expected


async def test_threads_become_plain_in_python_only_by_an_argument(target: Target) -> None:
    await put(target.uniform(encryption=keys()), config("acme:1"), {"text": MARKER})
    source = RedisSaver(target.raw, prefix=target.prefix, encryption=keys())
    plain = RedisSaver(target.raw, prefix=f"{target.prefix}-plain")
    for place in (InMemorySaver(), plain):
        with pytest.raises(EndpointError, match="thread 'acme:1' of RedisSaver is encrypted"):
            await asyncio.to_thread(migrate, source, place)
        assert not list(place.list(None))
        assert (await asyncio.to_thread(migrate, source, place, plain=True)).moved == 1
    assert migrate(plain, InMemorySaver()).moved == 1
    assert migrate(source, RedisSaver(target.raw, prefix=f"{target.prefix}-2", encryption=keys())).moved == 1


@pytest.mark.parametrize("flavour", ["sync"])
async def test_two_tiers_and_cold_itself_are_encrypted_sources(
    tiers: Tiers, run: Callable[..., str], tmp_path: Path
) -> None:
    saver = await tiers.saver(hot={"encryption": keys()})
    await put(await tiers.uniform(hot={"encryption": keys()}), config("acme:1"), {"text": MARKER})
    cold = await tiers.cold()
    reading = PostgresSaver(cold.conn, serde=ColdSerializer(Keyset(SECRETS), prefix=tiers.target.prefix))
    for source in (saver, reading):
        with pytest.raises(EndpointError, match="thread 'acme:1' of .* is encrypted"):
            migrate(source, InMemorySaver(), threads=["acme:1"])
    assert migrate(saver, InMemorySaver(), threads=["acme:1"], plain=True).moved == 1
    left, file = InMemorySaver(), f"sqlite:{tmp_path}/cold.db"
    with SqliteSaver.from_conn_string(f"{tmp_path}/cold.db") as sqlite:
        behind = TieredSaver(RedisSaver(tiers.target.raw, prefix=f"{tiers.target.prefix}-2", encryption=keys()), sqlite)
        await put(Uniform(behind), config("acme:1"), {"text": MARKER})
    with opened(tiers.url, target=False) as database, opened(file, target=False) as sqlite:
        for source in (PostgresSaver(cold.conn), database, sqlite):
            (failure,) = migrate(source, left, threads=["acme:1"], plain=True).failed
            assert "as the cold tier of a saver with encryption=" in failure
    assert not list(left.list(None))
    there = url_of("cluster"), "--target-prefix", tiers.target.prefix
    assert "as the cold tier of a saver" in run("migrate", file, *there, "--plain", code=1)
    assert "as the cold tier of a saver" in run("export", tiers.url, str(tmp_path / "threads"), "--plain", code=1)
