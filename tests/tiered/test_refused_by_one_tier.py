"""Operations or values that one tier does not support: refused before any change, or stored in the other tier alone."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from tests.support.factories import checkpoint, config, ids, put
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from tests.support.tiering import BEHIND, Tiers, drained, keys_of, two_runs, written
from tests.support.uniform import Uniform
from tests.support.wrappers import Around, asked, script_of

from redis_saver import EncodeError, ThreadBusy
from redis_saver._tiered import scripts
from redis_saver._engine.requests import Scan
from redis_saver._tiered import threads

pytestmark = pytest.mark.parametrize("target_name", ["redis"], indirect=True)
modes = pytest.mark.parametrize("mode", [{}, BEHIND], ids=["through", "behind"])


class Odd:
    """A class that only the pickle fallback serializes."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd)

    __hash__ = None  # type: ignore[assignment]


async def test_delete_for_runs_is_refused_if_cold_lacks_it(tiers: Tiers) -> None:
    """Readers still trust hot."""
    uniform = await tiers.uniform(cold=InMemorySaver())
    await two_runs(uniform)
    with pytest.raises(NotImplementedError):
        await uniform.delete_for_runs(["run-1"])
    assert not tiers.target.raw.exists(keys_of(tiers).intents)
    assert len(await uniform.list(config())) == 2
    with pytest.raises(NotImplementedError):
        await _rolled_back(uniform)
    assert not tiers.target.raw.exists(keys_of(tiers).intents)
    await uniform.get_tuple(config())
    assert uniform.saver.stats().tiers.hits == 1


async def _rolled_back(uniform: Uniform) -> None:
    """Start a rollback of a run that owns the thread."""
    own = uniform.saver.own
    if uniform.native_async:
        async with own("thread", run_id="run-2"):
            async with own("thread", on_busy="rollback"):
                raise AssertionError
    with own("thread", run_id="run-2"), own("thread", on_busy="rollback"):
        raise AssertionError


async def test_delete_thread_is_refused_if_cold_lacks_it(tiers: Tiers) -> None:
    class Kept(InMemorySaver):
        def delete_thread(self, thread_id: str) -> None:
            raise NotImplementedError

        async def adelete_thread(self, thread_id: str) -> None:
            raise NotImplementedError

    uniform = await tiers.uniform(cold=Kept())
    await two_runs(uniform)
    for call in (uniform.delete_thread("thread"), uniform.copy_thread("thread", "copy")):
        with pytest.raises(NotImplementedError):
            await call
    assert [key for key in tiers.target.keys() if key.endswith(b":intents")] == []
    assert len(await uniform.list(config())) == 2


async def test_delete_for_runs_looks_into_many_threads_per_request(tiers: Tiers) -> None:
    uniform, sent = await tiers.uniform(cold=InMemorySaver()), list[Any]()
    for number in range(20):
        await put(tiers.target.uniform(), config(f"t{number}"), {"n": number})

    def noted(request: Any) -> Any:
        sent.append(request)
        return (yield request)

    Around(uniform.saver.hot, noted)
    with pytest.raises(NotImplementedError):
        await uniform.delete_for_runs(["nobody"])
    looks = sum(isinstance(request, Scan) for request in sent)
    assert len(sent) <= 2 * looks + 1  # which indexes exist, then which have the run


async def test_later_operations_end_the_intents_of_a_cancelled_deletion(tiers: Tiers) -> None:
    """A cancelled operation cannot send requests. The next write or deletion of its process ends the intents."""
    uniform = await tiers.uniform()
    last = {thread: (await written(uniform, thread))[-1] for thread in ("a", "b", "c")}
    for thread, where in last.items():
        one = checkpoint({"n": [9]}, {"n": f"{9:032}.1"})
        last[thread] = await uniform.put(where, one, {"run_id": "run"}, one["channel_versions"])
    operation, begun, reply = threads.delete_for_runs(uniform.saver._context, ["run"]), 0, None
    while begun < 2:
        request = operation.send(reply)
        reply = await asked(uniform, request)
        begun += script_of(request) is scripts.BEGIN_INTENT
    assert script_of(operation.send(reply)) is scripts.BEGIN_INTENT  # of the third thread, not sent
    operation.close()
    intents = [keys_of(tiers, thread).intents for thread in last]
    assert [tiers.target.raw.zcard(key) for key in intents] == [1, 1, 0]
    await uniform.put_writes(last["a"], [("n", 1)], "task")
    assert [tiers.target.raw.zcard(key) for key in intents] == [0, 1, 0]
    await uniform.delete_for_runs(["run"])
    assert [tiers.target.raw.zcard(key) for key in intents] == [0, 0, 0]
    assert [len(await uniform.list(config(thread))) for thread in last] == [3, 3, 3]


WRONG: dict[str, Any] = {
    "a TTL": lambda uniform, one: uniform.put(config(thread_ttl="soon"), one, {}, {"n": "1"}),
    "a history": lambda uniform, one: uniform.put(config(thread_history=0), one, {}, {"n": "1"}),
    "a TTL with writes": lambda uniform, _: uniform.put_writes(
        config(checkpoint_id="1", thread_ttl="soon"), [("n", 1)], "task"
    ),
    "a history with writes": lambda uniform, _: uniform.put_writes(
        config(checkpoint_id="1", thread_history=0), [("n", 1)], "task"
    ),
    "writes of no checkpoint": lambda uniform, _: uniform.put_writes(config(), [("n", 1)], "task"),
}


@modes
@pytest.mark.parametrize("what", WRONG)
@pytest.mark.by_turns
async def test_invalid_arguments_are_refused_before_either_tier_changes(
    tiers: Tiers, mode: dict[str, Any], what: str
) -> None:
    uniform, cold = await tiers.uniform(**mode), await tiers.cold_uniform()
    with pytest.raises((TypeError, ValueError), match="thread_ttl|thread_history|checkpoint_id"):
        await WRONG[what](uniform, checkpoint({"n": 1}))
    assert tiers.target.keys() == []
    assert await cold.list(config()) == []


@modes
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
    one, metadata = (
        checkpoint({"n": 1}, {"n": "1"}),
        {"step": 1, "x": Odd() if kind == "pickle" else date(2026, 1, 1)},
    )
    if kind == "pickle" or (cold == "postgres" and not tiers.target.is_encrypted):
        with pytest.raises(EncodeError, match=r"cannot encode 'x' of the metadata.*Nothing was written.*isoformat"):
            await uniform.put(config(), one, metadata, {"n": "1"})
        assert await uniform.get_tuple(config()) is None
        metadata = {"step": 1}
    await uniform.put(config(), one, metadata, {"n": "1"})
    await drained(uniform)
    tiers.evict()
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
