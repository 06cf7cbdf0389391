"""Migrations from and to the hot tier of a TieredSaver or a TieredStore, with and without its cold tier."""

from __future__ import annotations

import asyncio
import base64
import sys
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from tests.support.commands import Ran
from tests.support.factories import chain, config, ids, late_id, put
from tests.support.tenants import SECRETS, threads_of
from tests.support.store_tiering import StoreTiers
from tests.support.tiering import Tiers
from tests.support.uniform import Uniform

from redis_saver.encryption import Encryption, Keyset
from redis_saver.errors import EndpointError
from redis_saver.migrate import migrate, migrate_items, opened

pytestmark = [pytest.mark.plain("its tests set encryption= themselves"), pytest.mark.also_on()]
NAMES = ["cold", "hot", "part", "whole"]


async def lived(tiers: Tiers, **options: Any) -> Uniform:
    """Make a thread that only Redis has, one that only Postgres has, and two in both. Redis has a part of one."""
    saver = await tiers.uniform(hot=options, mode="write-behind", flusher=False)
    for name in ("cold", "part", "whole"):
        await saver.get_tuple(config(name))  # so Redis knows that Postgres has nothing of it
        await chain(saver, name, 4)
        await saver.put_writes((await saver.get_tuple(config(name))).config, [("n", name)], "task")
    await saver.flush()
    tiers.evict(thread="cold")
    tiers.evict(thread="part")
    await saver.get_tuple(config("part"))
    await chain(tiers.target.uniform(**options), "hot", 2)
    return saver


def history(saver: Any, name: str) -> list[Any]:
    return [
        (one.checkpoint, one.metadata, one.parent_config, one.pending_writes)
        for one in sorted(saver.list(config(name, None)), key=lambda one: one.checkpoint["id"])
    ]


async def test_without_its_cold_tier_redis_moves_what_it_has_whole_and_names_the_rest(tiers: Tiers) -> None:
    await lived(tiers)
    redis, target = tiers.target.uniform().saver, InMemorySaver()
    report = await asyncio.to_thread(migrate, redis, target)
    assert (report.moved, threads_of(list(target.list(None)))) == (2, {"hot", "whole"})
    missing, part = report.failed
    assert (
        missing.startswith("threads that only a cold tier has: ")
        and "has 2 threads that a cold tier has, too" in missing
    )
    assert part.startswith("thread 'part': ") and "has only a part, a cold tier the rest" in part
    assert all("--postgres URL" in text and "migrate(TieredSaver(hot, cold), target)" in text for text in report.failed)
    report = await asyncio.to_thread(migrate, redis, InMemorySaver(), thread_prefix="x")
    assert report.failed == [missing], "threads that begin with x may be in cold"
    for options in ({}, {"dry_run": True}):
        report = await asyncio.to_thread(migrate, redis, InMemorySaver(), threads=["hot", "part", "whole"], **options)
        assert report.failed == [part]
    tiers.target.raw.zadd(tiers.target.uniform().saver._context.keyspace.tier_keys("whole").intents, {"x": 0})
    report = await asyncio.to_thread(migrate, redis, InMemorySaver(), threads=["whole"])
    assert "has only a part" in report.failed[0], "a writer may have died between Postgres and Redis"


async def test_a_saver_over_both_tiers_moves_all_and_copies_nothing_to_redis(tiers: Tiers) -> None:
    saver = (await lived(tiers)).saver
    target = InMemorySaver()
    report = await asyncio.to_thread(migrate, saver, target)
    assert (report.moved, report.failed, report.compared) == (4, [], 8)
    assert {name for (name,) in tiers.sql("SELECT DISTINCT thread_id FROM checkpoints")} == {"cold", "part", "whole"}

    def compare() -> None:
        for name in NAMES:
            assert history(saver, name) == history(target, name) and len(history(target, name)) in (2, 4)
        report = migrate(target, saver)
        assert (report.moved, report.unchanged, report.failed) == (1, 4, [])
        assert history(saver, "new") == history(target, "new")

    await chain(Uniform(target), "new", 2)
    await asyncio.to_thread(compare)
    redis = tiers.target.uniform()
    assert await redis.get_thread("cold") is None and (await redis.get_thread("part")).checkpoints == 1


@pytest.mark.parametrize("target_name", ["redis", "cluster"], indirect=True)
async def test_records_that_wait_for_cold_are_moved_too(tiers: Tiers) -> None:
    """Redis has a part of the thread, and Postgres lacks some of that part."""
    saver = await lived(tiers)
    await chain(saver, "part", 2)
    await saver.put_writes((await saver.get_tuple(config("part"))).config, [("n", "late")], "task")
    target = InMemorySaver()
    report = await asyncio.to_thread(migrate, saver.saver, target, threads=["part"])
    assert (report.moved, report.failed) == (1, [])
    expected = await asyncio.to_thread(history, saver.saver, "part")
    assert history(target, "part") == expected and len(expected) == 6 and expected[-1][3]


@pytest.mark.parametrize("flavour", ["sync"])
async def test_a_command_that_lacks_a_class_moves_its_values(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also of a thread that only Postgres has, and of one of which Redis has a part."""
    order = make_dataclass("Order", [("number", int)])
    order.__module__ = __name__
    monkeypatch.setattr(sys.modules[__name__], "Order", order, raising=False)
    saver, file = await tiers.uniform(mode="write-behind", flusher=False), str(tmp_path / "file")
    for name in ("cold", "part"):
        await saver.get_tuple(config(name))
        for number in (1, 2):
            where = await put(saver, config(name), {"order": order(number)}, checkpoint_id=late_id(number))
        await saver.put_writes(where, [("order", order(3))], "task")
    await saver.flush()
    tiers.evict(thread="cold")
    tiers.evict(thread="part")
    await saver.get_tuple(config("part"))
    before = {name: history(saver.saver, name) for name in ("cold", "part")}
    monkeypatch.delattr(sys.modules[__name__], "Order")
    assert Ran(
        "export", tiers.target.url, file, "--source-prefix", tiers.target.prefix, "--postgres", tiers.url
    ).all_well
    monkeypatch.setattr(sys.modules[__name__], "Order", order, raising=False)
    target = InMemorySaver()
    with opened(f"file:{file}", target=False) as source:
        assert migrate(source, target).moved == 2
    assert {name: history(target, name) for name in before} == before


@pytest.mark.parametrize("flavour", ["sync"])
async def test_while_postgres_is_away_nothing_is_written(tiers: Tiers, tmp_path: Path) -> None:
    await lived(tiers)
    words = ("export", tiers.target.url, str(tmp_path / "file"), "--source-prefix", tiers.target.prefix)
    ran = Ran(*words, "--postgres", "postgresql://127.0.0.1:1/x")
    assert ran.code == 2 and "127.0.0.1" in ran.err and not (tmp_path / "file").exists()


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("encrypted", [False, True])
async def test_the_commands_move_both_tiers_with_postgres(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encrypted: bool
) -> None:
    """A file, or a database, then goes back into both tiers, with the tenant's key."""
    monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)
    held = ",".join(f"{name}={base64.b64encode(key).decode()}" for name, key in SECRETS.items())
    monkeypatch.delenv("REDIS_SAVER_KEYS", raising=False)
    if encrypted:
        monkeypatch.setenv("REDIS_SAVER_KEYS", held)
    saver: Any = (
        await lived(tiers, encryption=Encryption(Keyset(SECRETS), key_for="acme") if encrypted else None)
    ).saver
    in_both = ["cold", "part", "whole"]
    before, file = {name: history(saver, name) for name in in_both}, tmp_path / "file"
    words = ["--source-prefix", tiers.target.prefix, *["--plain"] * encrypted]

    ran = Ran("export", tiers.target.url, str(file), *words)
    assert ran.code == 1 and "3 threads: 2 copied, 0 completed, 0 there already, 0 conflicts, 2 failed" in ran.out
    assert ran.err.startswith("failed: threads that only a cold tier has") and "failed: thread 'part'" in ran.err
    with opened(f"file:{file}", target=False) as partial:
        assert set(partial.threads()) == {"hot", "whole"}
    file.unlink()

    words += ["--postgres", tiers.url]
    if encrypted:
        ran = Ran("export", tiers.target.url, str(file), *words[:2], *words[-2:])
        assert ran.refused_with("--plain") and not file.exists()
    assert Ran("export", tiers.target.url, str(file), *words).all_well
    if encrypted:
        monkeypatch.delenv("REDIS_SAVER_KEYS")
        assert Ran("export", tiers.target.url, f"{file}-2", *words).refused_with("is encrypted, and there are no keys")
    assert Ran("import", str(file), f"sqlite:{file}.sqlite").all_well
    for url in (f"file:{file}", f"sqlite:{file}.sqlite"):
        for name in in_both:
            saver.delete_thread(name)
        with opened(url, target=False) as old:
            assert migrate(old, saver, threads=in_both).moved == 3
        assert {name: history(saver, name) for name in in_both} == before
    assert set(saver.key_status().threads) == ({"acme"} if encrypted else set())


@pytest.mark.parametrize("flavour", ["sync"])
async def test_a_thread_of_the_hot_tier_gets_nothing_that_cold_would_not_get(tiers: Tiers) -> None:
    saver = await lived(tiers)
    source, redis = InMemorySaver(), tiers.target.uniform()
    migrate(saver.saver, source)
    assert migrate(source, redis.saver, threads=["whole"]).unchanged == 1
    await chain(Uniform(source), "new", 1)
    where = await chain(Uniform(source), "whole", 1)
    before = ids(await saver.list(config("whole", None)))
    report = migrate(source, redis.saver, threads=["new", "part", "whole"])
    assert (report.moved, len(report.failed)) == (1, 2)
    assert all("make the saver over both tiers the target" in failure for failure in report.failed)
    assert ids(await saver.list(config("whole", None))) == before
    assert migrate(source, saver.saver, threads=["whole"]).completed == 1
    saver.saver.flush()
    tiers.evict(thread="whole")
    assert where[0]["configurable"]["checkpoint_id"] in ids(await saver.list(config("whole", None)))


@pytest.mark.parametrize("flavour", ["sync"])
async def test_copies_of_a_cold_store_are_refused(store_tiers: StoreTiers, tmp_path: Path) -> None:
    store = await store_tiers.store()
    await store.put(("memories", "ada"), "drink", {"text": "tea"})
    hot, other = store.saver.hot, store_tiers.target.store(prefix=f"{store_tiers.target.prefix}-2").saver
    for source, target in ((hot, other), (other, hot)):
        with pytest.raises(EndpointError, match="has copies of items of a cold store"):
            migrate_items(source, target)
    assert migrate_items(hot, other, namespace=("x", "y")).items == 0
    url, prefix = store_tiers.target.url, ("--source-prefix", hot._context.keyspace.prefix)
    ran = Ran("export", url, str(tmp_path / "file"), "--store", *prefix)
    assert ran.refused_with("Name the cold store instead: postgresql://") and not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            "migrate sqlite:x redis://x --postgres postgresql://x",
            "names the cold tier of a SOURCE in Redis, not of sqlite:x",
        ),
        ("export redis://x file --store --postgres postgresql://x", "--postgres is only for threads"),
        ("export redis://x file --postgres redis://x", "is not the URL of a database"),
    ],
)
def test_wrong_uses_of_postgres_are_refused(words: str, text: str, tmp_path: Path) -> None:
    assert Ran(*words.replace("file", str(tmp_path / "file")).split()).refused_with(text)
    assert not list(tmp_path.iterdir())
