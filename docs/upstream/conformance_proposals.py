"""Two capabilities for langgraph-checkpoint-conformance: write ownership and bounded history.

They call nothing but the methods of `BaseCheckpointSaver`. Neither has a method of its own there, so a saver cannot be
asked for them. Instead, whoever registers a checkpointer passes one more argument, as with `lifespan`:

- `claim(saver, thread_id)` returns the config of a new owner of the thread. All earlier owners are superseded.
- `history_limit=(keep, at_most)`: the saver keeps the newest `keep` checkpoints, and never more than `at_most`.

A checkpointer without the argument does not have the capability. See `langgraph-conformance.md`.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.conformance.test_utils import (
    generate_checkpoint,
    generate_config,
    generate_metadata,
)

Saver = BaseCheckpointSaver[Any]
Claim = Callable[[Saver, str], Awaitable[RunnableConfig]]
OnTestResult = Callable[[str, str, bool, str | None], None]


async def _put(
    saver: Saver,
    config: RunnableConfig,
    step: int,
    *,
    parent: RunnableConfig | None = None,
    namespace: str = "",
) -> RunnableConfig:
    """Put a checkpoint whose channel `step` has a new value. Returns its config."""
    configurable = {**config["configurable"], "checkpoint_ns": namespace}
    if parent:
        configurable["checkpoint_id"] = parent["configurable"]["checkpoint_id"]
    versions: Any = {"step": step + 1}
    checkpoint = generate_checkpoint(channel_values={"step": step}, channel_versions=versions)
    return await saver.aput({"configurable": configurable}, checkpoint, generate_metadata(step=step), versions)


def _id(config: RunnableConfig) -> str:
    return config["configurable"]["checkpoint_id"]


async def _newest(saver: Saver, thread_id: str, namespace: str = "") -> CheckpointTuple:
    found = await saver.aget_tuple(generate_config(thread_id, checkpoint_ns=namespace))
    assert found is not None, "the thread has no checkpoint"
    return found


async def _listed(saver: Saver, thread_id: str, namespace: str = "") -> list[CheckpointTuple]:
    return [each async for each in saver.alist(generate_config(thread_id, checkpoint_ns=namespace))]


async def _refused(write: Awaitable[Any]) -> None:
    """Expect an error. Its class is the saver's own, as the interface has none for this."""
    try:
        await write
    except Exception:
        return
    raise AssertionError("the write of a superseded owner was accepted")


async def test_the_owner_can_write(saver: Saver, claim: Claim) -> None:
    """Checkpoints and pending writes of the owner are stored."""
    tid = str(uuid4())
    owner = await claim(saver, tid)
    stored = await _put(saver, owner, 0)
    await saver.aput_writes({"configurable": {**owner["configurable"], **stored["configurable"]}}, [("a", 1)], "task")
    found = await _newest(saver, tid)
    assert _id(found.config) == _id(stored)
    assert [write[:3] for write in found.pending_writes or []] == [("task", "a", 1)]


async def test_a_superseded_owner_cannot_put(saver: Saver, claim: Claim) -> None:
    """Its checkpoint raises, also the second time, and nothing of it is stored."""
    tid = str(uuid4())
    first = await claim(saver, tid)
    before = await _put(saver, first, 0)
    second = await claim(saver, tid)
    for _ in range(2):
        await _refused(_put(saver, first, 1, parent=before))
    after = await _put(saver, second, 2, parent=before)
    await _refused(_put(saver, first, 3, parent=before))
    found = await _listed(saver, tid)
    assert [_id(each.config) for each in found] == [_id(after), _id(before)]
    assert found[0].checkpoint["channel_values"] == {"step": 2}


async def test_a_superseded_owner_cannot_put_writes(saver: Saver, claim: Claim) -> None:
    """A run that was stopped and goes on finishes its task again. What the new owner's task wrote remains."""
    tid = str(uuid4())
    first = await claim(saver, tid)
    stored = await _put(saver, first, 0)
    second = await claim(saver, tid)
    mine, theirs = ({"configurable": {**each["configurable"], **stored["configurable"]}} for each in (second, first))
    await _refused(saver.aput_writes(theirs, [("a", "stale")], "early"))  # ty: ignore[invalid-argument-type]
    await saver.aput_writes(mine, [("a", "fresh")], "task")  # ty: ignore[invalid-argument-type]
    await _refused(saver.aput_writes(theirs, [("a", "stale")], "task"))  # ty: ignore[invalid-argument-type]
    found = (await _newest(saver, tid)).pending_writes or []
    assert [write[:3] for write in found] == [("task", "a", "fresh")]


async def test_the_new_owner_goes_on_where_the_old_one_was(saver: Saver, claim: Claim) -> None:
    """Taking a thread changes nothing in it."""
    tid = str(uuid4())
    first = await claim(saver, tid)
    before = await _put(saver, first, 0)
    await saver.aput_writes({"configurable": {**first["configurable"], **before["configurable"]}}, [("a", 1)], "task")
    second = await claim(saver, tid)
    found = await saver.aget_tuple(second)
    assert found is not None
    assert _id(found.config) == _id(before)
    assert [write[:3] for write in found.pending_writes or []] == [("task", "a", 1)]
    after = await _put(saver, second, 1, parent=before)
    parent = (await _newest(saver, tid)).parent_config
    assert parent is not None
    assert (_id(parent), _id(after)) == (_id(before), _id((await _newest(saver, tid)).config))


async def test_a_superseded_owner_can_read(saver: Saver, claim: Claim) -> None:
    """A run that lost its thread can still show it."""
    tid = str(uuid4())
    first = await claim(saver, tid)
    await _put(saver, first, 0)
    second = await claim(saver, tid)
    after = await _put(saver, second, 1)
    found = await saver.aget_tuple(first)
    assert found is not None
    assert _id(found.config) == _id(after)


async def test_other_threads_have_other_owners(saver: Saver, claim: Claim) -> None:
    """Taking a thread supersedes nobody elsewhere."""
    tid, other = str(uuid4()), str(uuid4())
    owner = await claim(saver, other)
    await claim(saver, tid)
    await claim(saver, tid)
    stored = await _put(saver, owner, 0)
    assert _id((await _newest(saver, other)).config) == _id(stored)


async def test_subgraphs_have_the_threads_owner(saver: Saver, claim: Claim) -> None:
    """A superseded owner cannot write in any namespace of the thread."""
    tid = str(uuid4())
    first = await claim(saver, tid)
    stored = await _put(saver, first, 0, namespace="child:1")
    await claim(saver, tid)
    await _refused(_put(saver, first, 1, parent=stored, namespace="child:1"))
    await _refused(_put(saver, first, 1, namespace="child:2"))
    assert _id((await _newest(saver, tid, "child:1")).config) == _id(stored)
    assert not await _listed(saver, tid, "child:2")


async def _chain(saver: Saver, thread_id: str, count: int, namespace: str = "") -> list[RunnableConfig]:
    """Put checkpoints, each the child of the one before."""
    stored: list[RunnableConfig] = []
    for step in range(count):
        parent = stored[-1] if stored else None
        stored.append(await _put(saver, generate_config(thread_id), step, parent=parent, namespace=namespace))
    return stored


async def test_the_history_is_bounded(saver: Saver, keep: int, at_most: int) -> None:
    """A thread never has more than `at_most` checkpoints, and the newest `keep` are whole and linked."""
    tid = str(uuid4())
    stored: list[RunnableConfig] = []
    for step in range(2 * at_most + keep):
        stored.append(await _put(saver, generate_config(tid), step, parent=stored[-1] if stored else None))
        if step % keep == 0:
            assert len(await _listed(saver, tid)) <= at_most
    found = await _listed(saver, tid)
    assert keep <= len(found) <= at_most
    newest = list(reversed(stored[-keep:]))
    assert [_id(each.config) for each in found[:keep]] == [_id(each) for each in newest]
    values = [each.checkpoint["channel_values"] for each in found[:keep]]
    assert values == [{"step": len(stored) - 1 - n} for n in range(keep)]
    for each, expected in zip(found[: keep - 1], newest[1:], strict=True):
        assert each.parent_config is not None
        assert _id(each.parent_config) == _id(expected)


async def test_a_removed_checkpoint_is_not_found(saver: Saver, keep: int, at_most: int) -> None:
    """Asking for it returns None. Another checkpoint never takes its place."""
    tid = str(uuid4())
    stored = await _chain(saver, tid, 2 * at_most)
    assert await saver.aget_tuple(generate_config(tid, checkpoint_id=_id(stored[0]))) is None
    kept = await saver.aget_tuple(generate_config(tid, checkpoint_id=_id(stored[-keep])))
    assert kept is not None
    assert kept.checkpoint["channel_values"] == {"step": len(stored) - keep}


async def test_pending_writes_stay_with_their_checkpoint(saver: Saver, keep: int, at_most: int) -> None:
    """The writes of an interrupted superstep are still there after checkpoints before it were removed."""
    tid = str(uuid4())
    stored = await _chain(saver, tid, at_most)
    await saver.aput_writes(stored[-1], [("a", 1)], "task")
    stored += await _chain(saver, tid, keep - 1)
    found = await saver.aget_tuple(generate_config(tid, checkpoint_id=_id(stored[at_most - 1])))
    assert found is not None
    assert [write[:3] for write in found.pending_writes or []] == [("task", "a", 1)]


async def test_namespaces_are_bounded_one_by_one(saver: Saver, keep: int, at_most: int) -> None:
    """A busy subgraph does not push out checkpoints of its parent, or of another thread."""
    tid, other = str(uuid4()), str(uuid4())
    root, elsewhere = await _chain(saver, tid, keep), await _chain(saver, other, keep)
    await _chain(saver, tid, 2 * at_most, "child:1")
    assert keep <= len(await _listed(saver, tid, "child:1")) <= at_most
    for thread, stored in ((tid, root), (other, elsewhere)):
        assert [_id(each.config) for each in await _listed(saver, thread)] == [_id(each) for each in reversed(stored)]


OWNERSHIP = (
    test_the_owner_can_write,
    test_a_superseded_owner_cannot_put,
    test_a_superseded_owner_cannot_put_writes,
    test_the_new_owner_goes_on_where_the_old_one_was,
    test_a_superseded_owner_can_read,
    test_other_threads_have_other_owners,
    test_subgraphs_have_the_threads_owner,
)
HISTORY = (
    test_the_history_is_bounded,
    test_a_removed_checkpoint_is_not_found,
    test_pending_writes_stay_with_their_checkpoint,
    test_namespaces_are_bounded_one_by_one,
)


async def _run(
    capability: str, tests: dict[str, Callable[[], Awaitable[None]]], on_test_result: OnTestResult | None
) -> tuple[int, int, list[str]]:
    """Run tests as the suite's other runners do. Returns the numbers of passed and failed ones, and the failures."""
    failures: list[str] = []
    for name, test in tests.items():
        error = None
        try:
            await test()
        except Exception as failed:
            error = f"{name}: {failed}"
            failures.append(f"{error}\n{traceback.format_exc()}")
        if on_test_result:
            on_test_result(capability, name, error is None, error)
    return len(tests) - len(failures), len(failures), failures


async def run_write_ownership_tests(
    saver: Saver, claim: Claim, on_test_result: OnTestResult | None = None
) -> tuple[int, int, list[str]]:
    """Run the tests of `write_ownership`."""
    tests = {test.__name__: partial(test, saver, claim) for test in OWNERSHIP}
    return await _run("write_ownership", tests, on_test_result)


async def run_bounded_history_tests(
    saver: Saver, history_limit: tuple[int, int], on_test_result: OnTestResult | None = None
) -> tuple[int, int, list[str]]:
    """Run the tests of `bounded_history`."""
    tests = {test.__name__: partial(test, saver, *history_limit) for test in HISTORY}
    return await _run("bounded_history", tests, on_test_result)
