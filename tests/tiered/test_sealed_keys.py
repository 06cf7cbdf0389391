"""Keys of two tiers with `encryption=`: providers that fail or answer wrongly, and `ColdSerializer`."""

from __future__ import annotations

import time
from typing import Any

import pytest
from langgraph.checkpoint.postgres import PostgresSaver

from redis_saver.encryption import ColdSerializer, Encryption, KeyContext, Keyset, WrappedKey
from redis_saver.errors import DecodeError, KeyUnavailable
from tests.support.factories import checkpoint, config
from tests.support.tiering import BEHIND, VERSIONS, Tiers, drained, keys_of, plain, written
from tests.support.tiering import is_encrypted  # noqa: F401
from tests.support.uniform import KEYS, Uniform

pytestmark = [
    pytest.mark.plain("all of its savers encrypt"),
    pytest.mark.also_on(),
    pytest.mark.parametrize("target_name", ["redis"], indirect=True),
]


class Provider(Keyset):
    """A provider that counts, is slow, and fails or answers wrongly for the threads `bad`."""

    def __init__(self, error: Exception | None = None, **keys: bytes) -> None:
        super().__init__({**keys, **KEYS})
        self.asked, self.error = list[str](), error

    def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
        self.asked.append(context.name)
        data_key = super().unwrap(wrapped, context)
        if not context.name.startswith("bad"):
            return data_key
        if self.error is not None:
            raise self.error
        return data_key[::-1]


async def with_keys(tiers: Tiers, keys: Keyset, **options: Any) -> Uniform:
    return await tiers.uniform(hot={"encryption": Encryption(keys)}, **options)


@pytest.mark.parametrize("on_hot_error", ["raise", "bypass"])
async def test_a_rotation_of_both_tiers_goes_on_after_a_provider_s_error(tiers: Tiers, on_hot_error: str) -> None:
    for thread in ("bad", "fine"):
        await written(await tiers.uniform(), thread)
    provider = Provider(ConnectionError("the KMS is down"), new=b"n" * 32)
    uniform = await with_keys(tiers, provider, on_hot_error=on_hot_error)
    rotated = await uniform.rotate_keys()
    assert sorted(rotated.failed) == ["bad", "cold bad"]
    assert all("ConnectionError: the KMS is down" in text for text in rotated.failed.values())
    assert rotated.rotated > 3
    assert provider.asked.count("bad") <= 2, "once for the rows of cold, once for hot"
    status = await uniform.key_status()
    assert (status.threads, set(status.rows)) == ({"2026-11": 1, "new": 1}, {"2026-11", "new"})
    with pytest.raises(ConnectionError, match="the KMS is down"):
        await uniform.get_tuple(config("bad"))
    assert not uniform.saver.stats().tiers.bypasses  # type: ignore[union-attr]
    tiers.sql("UPDATE checkpoint_writes SET blob = 'redis_saver envelope 1\n2:xx'")
    assert "cold fine" in (await uniform.rotate_keys()).failed
    assert "cold fine" in (await uniform.key_status()).failed


async def test_another_data_key_than_was_wrapped_is_refused_in_cold(tiers: Tiers) -> None:
    await written(await tiers.uniform(), "bad thread")
    tiers.evict(thread="bad thread")
    uniform = await with_keys(tiers, Provider())
    with pytest.raises(DecodeError, match="another data key than the one that it wrapped"):
        await uniform.get_tuple(config("bad thread"))
    assert not tiers.target.raw.exists(f"{tiers.target.prefix}:{{bad thread}}:data")


@pytest.mark.parametrize("flavour", ["sync"])
async def test_the_serializer_of_cold_forgets_data_keys(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    for thread in ("thread", "bad thread"):
        await written(await tiers.uniform(), thread)
    provider, now = Provider(), [time.monotonic()]
    serde = ColdSerializer(provider, prefix=tiers.target.prefix)
    monkeypatch.setattr("redis_saver._storage.keys.time.monotonic", lambda: now[0])
    monkeypatch.setattr("redis_saver._storage.sealing.time.monotonic", lambda: now[0])
    with PostgresSaver.from_conn_string(tiers.url) as cold:
        cold.serde = serde
        for seconds in (0, 299, 2):
            now[0] += seconds
            assert cold.get_tuple(config()) is not None
        assert provider.asked == ["thread"] * 2
        with pytest.raises(ValueError, match="another data key than the one that it wrapped"):
            cold.get_tuple(config("bad thread"))
        cold.serde = ColdSerializer(Keyset({"other": b"o" * 32}), prefix=tiers.target.prefix, cache_seconds=1)
        with pytest.raises(KeyUnavailable, match="2026-11"):
            cold.get_tuple(config())


STATES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "dirty": (BEHIND, []),
    "flushed": (BEHIND, ["flush"]),
    "filled": (BEHIND, ["flush", "evict", "read"]),
    "written through": ({}, []),
}


@pytest.mark.parametrize("state", STATES)
async def test_a_thread_with_a_new_data_key_keeps_its_cold_tier(tiers: Tiers, state: str) -> None:
    """Else a later deletion would leave its rows, and a thread that was dirty would never expire."""
    settings, steps = STATES[state]
    uniform, raw, keys = await tiers.uniform(hot={"ttl": "1d"}, **settings), tiers.target.raw, keys_of(tiers)
    made = await written(uniform)
    for step in steps:
        if step == "flush":
            await drained(uniform)
        elif step == "evict":
            tiers.evict()
        else:
            assert (await uniform.get_tuple(config())).config == made[-1]

    def marks() -> dict[bytes, bytes]:
        found = raw.hgetall(keys.data_key)
        kept = {name for name in found if name[:1] == b"@"} - {b"@state", b"@key", b"@copy", b"@rewritten"}
        return {name: found[name] for name in kept}

    before, deadline, expected = marks(), raw.pexpiretime(keys.data_key), plain(await uniform.get_tuple(config()))
    assert b"@cold_backed" in before and (deadline == -1) == (state == "dirty")
    rotated = await Uniform(uniform.saver.hot).rotate_keys(data=True)
    assert (rotated.rotated, rotated.cold_backed) == (1, 1)
    assert marks() == before and abs(raw.pexpiretime(keys.data_key) - deadline) < 1000
    other = await tiers.uniform(hot={"ttl": "1d"}, **settings)
    assert plain(await other.get_tuple(config())) == expected
    child = checkpoint({**expected[1]["channel_values"], "n": [9]}, {**expected[1]["channel_versions"], **VERSIONS})
    newest = await other.put(made[-1], child, {"step": 9}, VERSIONS)
    await drained(other)
    assert 0 < raw.pttl(keys.data_key) <= 86_400_000
    tiers.evict()
    uniform = await tiers.uniform(**settings)
    assert (await uniform.get_tuple(config())).config == newest
    assert len(await uniform.list(config())) == 4
    await other.delete_thread("thread")
    await drained(other)
    assert await (await tiers.uniform(**settings)).get_tuple(config()) is None
