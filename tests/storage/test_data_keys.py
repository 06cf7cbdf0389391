"""Data keys of threads: who makes them, and who learns them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.factories import checkpoint, config
from tests.support.uniform import Target

from redis_saver.encryption import Encryption, KeyContext, Keyset, WrappedKey

WRITERS = 6


class Together(Keyset):
    """A keyset that answers only when all writers have asked for a new data key."""

    def __init__(self) -> None:
        super().__init__({"1": b"k" * 32})
        self.barrier = threading.Barrier(WRITERS)

    def wrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
        self.barrier.wait(10)
        return super().wrap(data_key, context, name)


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("target_name", ["redis"])
async def test_writers_of_a_new_thread_agree_on_a_data_key(target: Target) -> None:
    """With a slow provider, each of a run's first calls makes a data key. All but one are dropped."""
    saver = target.uniform(encryption=Encryption(Together())).saver
    saved = checkpoint({"n": 1})
    place = config(checkpoint_id=saved["id"])
    with ThreadPoolExecutor(WRITERS) as threads:
        calls = [threads.submit(saver.put, config(), saved, {}, saved["channel_versions"])]
        calls += [threads.submit(saver.put_writes, place, [("c", n)], f"task-{n}") for n in range(WRITERS - 1)]
        for call in calls:
            call.result()
    found = saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"n": 1}
    assert sorted(found.pending_writes) == [(f"task-{n}", "c", n) for n in range(WRITERS - 1)]
