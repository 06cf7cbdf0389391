"""Long pending writes of odd shapes, crossed with keys, faults, removals, limits and damage, against a model."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.factories import config
from tests.support.raw import check_chunks, check_sound
from tests.support.seeds import seeds_and_slow, targets
from tests.support.sharing import fields_of
from tests.support.twins import Twin
from tests.support.uniform import Target

from redis_saver.encryption import Encryption, KeyContext, Keyset, WrappedKey
from redis_saver.errors import KeyUnavailable

ONE = pytest.mark.parametrize("target_name", targets("redis"))
SECRETS = {f"key-{n}": bytes([n]) * 32 for n in range(30)}
KINDS = ["plain", "zstd", "encrypted", "rotated"]


class LongLived(Keyset):
    """The keys of a process that learns of new ones in time, and wraps with the newest."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(SECRETS)
        self.names = names

    def wrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
        return super().wrap(data_key, context, name or self.names[0])


class Savers:
    """Savers of one kind, each as in its own process. Those of the kind `rotated` have the keys of the moment."""

    def __init__(self, target: Target, kind: str) -> None:
        self.target, self.kind, self.names = target, kind, ["key-0"]

    def new(self, keys: Any = None) -> Any:
        options: dict[str, Any] = {"compression": "zstd"} if self.kind in ("zstd", "rotated") else {}
        if self.kind in ("encrypted", "rotated"):
            options["encryption"] = Encryption(keys or Keyset({each: SECRETS[each] for each in self.names}))
        return self.target.uniform(**options)

    async def rotate(self, writers: list[Any], *, data: bool, retires: bool) -> None:
        """Rotate to a new key. Others are retired when no process can have them in memory (docs/encryption.md)."""
        self.names.insert(0, f"key-{int(self.names[0][4:]) + 1}")
        done = await self.new().rotate_keys(data=data)
        assert (done.rotated, done.failed) == (int(bool(self.target.keys())), {})
        if retires:
            writers[:] = [self.new(LongLived(self.names)) for _ in writers]
            del self.names[1:]


def check_stored(target: Target, twin: Twin) -> None:
    """Check that nothing is missing or left over, except what the thread knows as garbage."""
    fields = fields_of(target, twin.thread)
    if not fields:
        return
    check_chunks(target, twin.thread)
    if b"@gc_roots" not in fields:
        check_sound(target, twin.thread)


async def step(twin: Twin, savers: Savers, writers: list[Any]) -> None:
    """Make one superstep: writes, some of them early or again, a put that shares them, and something in between."""
    chance, target = twin.chance, savers.target
    uniform, other = chance.sample([*writers, savers.new()], 2)
    twin.edit()
    if twin.number and await twin.check():
        for _ in range(chance.choice([1, 1, 2])):
            await twin.write(uniform, *twin.some_writes(), task=chance.choice(["", "", "again"]))
    if chance.random() < 0.2:
        await twin.write(other, *twin.some_writes(), number=twin.number + 1)
    between = chance.choice(["nothing"] * 6 + ["flush", "prune", "delete", "runs", "rotate", "rotate", "copy"])
    numbers = await twin.check()
    if between == "flush":
        target.raw.script_flush()
    elif between == "prune" and numbers:
        keep = chance.choice([1, 2, 4])
        await other.prune([twin.thread], keep_last=keep)
        twin.forget(lambda number: number not in numbers[:keep], prunes=True)
        if fields := fields_of(target, twin.thread):
            assert b"@gc_roots" not in fields
            check_sound(target, twin.thread)
    elif between == "delete":
        await other.delete_thread(twin.thread)
        twin.model.delete_thread(twin.thread)
        assert not fields_of(target, twin.thread)
    elif between == "runs":
        run = chance.choice(numbers or [0]) // 2
        await other.delete_for_runs([f"run {run}"])
        twin.forget(lambda number: number // 2 == run)
    elif between == "rotate" and savers.kind == "rotated":
        await savers.rotate(writers, data=chance.random() < 0.5, retires=chance.random() < 0.5)
    elif between == "copy":
        await other.copy_thread(twin.thread, "copy")
        await twin.check(savers.new(), thread="copy")
        if numbers:
            check_sound(target, "copy")
        await other.delete_thread("copy")
    elif between == "nothing" or not numbers:
        numbers = await twin.check()
        parent = chance.choice([*numbers[:1] * 3, *numbers]) if numbers else 0
        await twin.put(uniform, parent, **{chance.choice("ab"): twin.value() for _ in range(chance.choice([1, 2]))})


@pytest.mark.random
@pytest.mark.by_turns
@ONE
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds_and_slow(range(3), range(3, 60)))
async def test_random_shapes_match_the_model(target: Target, kind: str, seed: int) -> None:
    savers, twin = Savers(target, kind), Twin((kind, seed))
    writers = [savers.new(LongLived(savers.names)) for _ in range(2)]
    for _ in range(16):
        await step(twin, savers, writers)
        await twin.check(savers.new())
        check_stored(target, twin)
    await twin.check(*writers)
    if kind in ("encrypted", "rotated"):
        await twin.put(savers.new(), 0, a=twin.value())
        stored = fields_of(target, twin.thread)
        dropped = savers.new(Keyset({"key-29": SECRETS["key-29"]}))
        for call in (
            dropped.get_tuple(twin.where()),
            dropped.list(config(twin.thread)),
            dropped.put_writes(twin.where(twin.number), twin.some_writes(), "task"),
        ):
            with pytest.raises(KeyUnavailable):
                await call
        assert fields_of(target, twin.thread) == stored
