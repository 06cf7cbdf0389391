"""Operations or values that one tier does not support: refused before any change, or stored in the other tier alone."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver import EncodeError, ThreadBusy
from redis_saver._engine.requests import Scan
from redis_saver._tiered import scripts, threads
from tests.support.factories import checkpoint, config, ids, put
from tests.support.tiering import BEHIND, Tiers, both_modes, keys_of, put_new, two_runs, written, only_in_cold
from tests.support.wrappers import asked, requests_of, script_of

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)


class Odd:
    """A class that only the pickle fallback serializes."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd)

    __hash__ = None  # type: ignore[assignment]


async def test_delete_for_runs_is_refused_if_cold_lacks_it(tiers: Tiers) -> None:
    """Readers still trust hot."""
    uniform = await tiers.uniform(cold=InMemorySaver())
    await two_runs(uniform)
    with pytest.raises(NotImplementedError, match=r"cold=InMemorySaver has no delete_for_runs\(\)"):
        await uniform.delete_for_runs(["run-1"])
    assert not tiers.target.raw.exists(keys_of(tiers).intents)
    assert len(await uniform.list(config())) == 2
    async with uniform.own(run_id="run-2"):
        with pytest.raises(NotImplementedError):
            await uniform.own(on_busy="rollback").__aenter__()
    assert not tiers.target.raw.exists(keys_of(tiers).intents)
    await uniform.get_tuple(config())
    assert uniform.saver.stats().tiers.hits == 1


async def test_delete_thread_is_refused_if_cold_lacks_it(tiers: Tiers) -> None:
    class Kept(InMemorySaver):
        def delete_thread(self, thread_id: str) -> None:
            raise NotImplementedError

    uniform = await tiers.uniform(cold=Kept())
    await two_runs(uniform)
    for call in (uniform.delete_thread("thread"), uniform.copy_thread("thread", "copy")):
        with pytest.raises(NotImplementedError, match=r"cold=Kept has no delete_thread\(\)"):
            await call
    assert [key for key in tiers.target.keys() if key.endswith(b":intents")] == []
    assert len(await uniform.list(config())) == 2


async def test_delete_for_runs_looks_into_many_threads_per_request(tiers: Tiers) -> None:
    uniform = await tiers.uniform(cold=InMemorySaver())
    for number in range(20):
        await put(tiers.target.uniform(), config(f"t{number}"), {"n": number})
    sent = requests_of(uniform.saver.hot)
    with pytest.raises(NotImplementedError):
        await uniform.delete_for_runs(["nobody"])
    looks = sum(isinstance(request, Scan) for request in sent)
    assert len(sent) <= 2 * looks + 1  # which indexes exist, then which have the run


async def test_later_operations_end_the_intents_of_a_cancelled_deletion(tiers: Tiers) -> None:
    """A cancelled operation cannot send requests. The next write or deletion of its process ends the intents."""
    uniform, raw, last = await tiers.uniform(), tiers.target.raw, dict[str, Any]()
    for thread in ("a", "b", "c"):
        last[thread] = await put_new(uniform, (await written(uniform, thread))[-1], run_id="run")
    operation, begun, reply = threads.delete_for_runs(uniform.saver._context, ["run"]), 0, None
    while begun < 2:
        request = operation.send(reply)
        reply = await asked(uniform, request)
        begun += script_of(request) is scripts.BEGIN_INTENT
    assert script_of(operation.send(reply)) is scripts.BEGIN_INTENT  # of the third thread, not sent
    operation.close()
    intents = [keys_of(tiers, thread).intents for thread in last]
    assert list(map(raw.zcard, intents)) == [1, 1, 0]
    await uniform.put_writes(last["a"], [("n", 1)], "task")
    assert list(map(raw.zcard, intents)) == [0, 1, 0]
    await uniform.delete_for_runs(["run"])
    assert list(map(raw.zcard, intents)) == [0, 0, 0]
    assert [len(await uniform.list(config(thread))) for thread in last] == [3, 3, 3]


WRONG: list[tuple[str, dict[str, Any]]] = [
    *((call, {"checkpoint_id": "1", "thread_ttl": "soon"}) for call in ("put", "put_writes")),
    *((call, {"checkpoint_id": "1", "thread_history": 0}) for call in ("put", "put_writes")),
    ("put_writes", {}),
]


@both_modes
@pytest.mark.parametrize(("call", "given"), WRONG)
@pytest.mark.by_turns
async def test_invalid_arguments_are_refused_before_either_tier_changes(
    tiers: Tiers, mode: dict[str, Any], call: str, given: dict[str, Any]
) -> None:
    """A TTL or a history, or writes of no checkpoint."""
    uniform, cold, where = await tiers.uniform(**mode), await tiers.cold_uniform(), config(**given)
    with pytest.raises((TypeError, ValueError), match="thread_ttl|thread_history|checkpoint_id"):
        await (put_new(uniform, where) if call == "put" else uniform.put_writes(where, [("n", 1)], "task"))
    assert tiers.target.keys() == []
    assert await cold.list(config()) == []


@both_modes
async def test_an_empty_list_of_writes_stores_nothing(tiers: Tiers, mode: dict[str, Any]) -> None:
    uniform = await tiers.uniform(**mode)
    await uniform.put_writes(config(checkpoint_id="1"), [], "task")
    assert tiers.target.keys() == []


@pytest.mark.encrypted_too
@pytest.mark.parametrize("cold", ["postgres", "memory"])
@pytest.mark.parametrize("kind", ["pickle", "date"])
async def test_metadata_that_no_flusher_can_bring_to_cold_are_refused(tiers: Tiers, cold: str, kind: str) -> None:
    """Except those that cold can have: it stores JSON, envelopes, or what its serializer makes of them."""
    serde = JsonPlusSerializer(pickle_fallback=True)
    over = await tiers.cold() if cold == "postgres" else InMemorySaver(serde=serde)
    uniform = await tiers.uniform(cold=over, hot={"serde": serde}, **BEHIND)
    await uniform.get_tuple(config())
    one = checkpoint({"n": 1}, {"n": "1"})
    metadata = {"step": 1, "x": Odd() if kind == "pickle" else date(2026, 1, 1)}
    if kind == "pickle" or (cold == "postgres" and not tiers.target.is_encrypted):
        with pytest.raises(EncodeError, match=r"cannot encode 'x' of the metadata.*Nothing was written.*isoformat"):
            await uniform.put(config(), one, metadata, {"n": "1"})
        assert await uniform.get_tuple(config()) is None
        metadata = {"step": 1}
    await uniform.put(config(), one, metadata, {"n": "1"})
    await only_in_cold(tiers, uniform)
    assert (await uniform.get_tuple(config())).metadata == metadata


async def test_a_value_unknown_to_hots_serializer_is_stored_in_cold_alone(tiers: Tiers) -> None:
    cold = InMemorySaver(serde=JsonPlusSerializer(pickle_fallback=True))
    uniform = await tiers.uniform(cold=cold)
    await uniform.get_tuple(config())
    first = await uniform.put(config(), one := checkpoint({"n": 1}, {"n": "1"}), {}, one["channel_versions"])
    second = await uniform.put(first, one := checkpoint({"n": Odd()}, {"n": "2"}), {}, one["channel_versions"])
    await uniform.put_writes(second, [("n", Odd())], "task")
    for _ in range(2):
        found = await uniform.get_tuple(config())
        assert found.checkpoint["channel_values"] == {"n": Odd()}
        assert found.pending_writes == [("task", "n", Odd())]
    with pytest.raises(ThreadBusy, match="'thread' is only in cold.*cannot store one of its values"):
        await uniform.pin("thread")
    assert await tiers.target.uniform().get_tuple(config()) is None
    assert not tiers.target.raw.exists(keys_of(tiers).intents)
    await uniform.put(second, one := checkpoint({"n": 3}, {"n": "3"}), {}, one["channel_versions"])
    assert ids(await uniform.list(config()))[0] == (await uniform.get_tuple(config())).checkpoint["id"]
