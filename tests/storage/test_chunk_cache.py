"""Versions of long values share chunks. What is read is what was put, and no unused chunk is left.

A process's memory (`Saver.chunk_cache`) is only a hint. Tests let it be right, wrong or empty, and read with other
processes that have no memory.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import hypothesis.strategies as st
import pytest
from tests.support.counting import Calls, Traffic
from tests.support.factories import checkpoint, config, ids
from tests.support.growing import together
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from tests.support.raw import all_links, check_chunks, check_counters, check_sound, raw_bytes, size, stored_chunks
from tests.support.seeds import targets
from tests.support.servers import url_of
from tests.support.sharing import BASE, EDITS, FILES, THREAD, TaskInfo, _plain, all_said, fields_of, key_of, name
from tests.support.sharing import said, text, texts
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around, before_each

from bench import graphs
from bench.history import history, message
from redis_saver import PlainValueRefused, Pruned, RedisSaver, ThreadBusy, ThreadDamaged
from redis_saver._checkpoint import pruning, scripts
from redis_saver._checkpoint.copying import copy_thread
from redis_saver._checkpoint.retention import Retention
from redis_saver._common.names import Keyspace
from redis_saver._storage.chunk_cache import CACHE_BYTES, ChunkCache

BOTH = pytest.mark.parametrize("target_name", ["redis", pytest.param("redis62", marks=pytest.mark.slow)])


@pytest.fixture(params=["redis"])
def target_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def chunks_of_values(target: Target) -> list[bytes]:
    """Return the fields of all chunks, except those with the names of headers."""
    fields = fields_of(target)
    return sorted(stored_chunks(fields) - {links.names_chunk for links in all_links(fields).values()})


# -- with any memory


SAME = {"files": FILES, "words": texts(10, "words")}


async def grow(told: TaskInfo, uniform: Uniform, first: int, last: int) -> None:
    """Put a chain in which `messages` grows by one each time, and `files` and `words` stay as first put."""
    for number in range(first, last + 1):
        messages, run = texts(100 + number), "late" if number > 2 else "early"
        if number == 1:
            await told.put(uniform, 1, messages=messages, **SAME)
        else:
            await told.put(uniform, number, number - 1, same=SAME, run=run, messages=messages)


async def deleted(told: TaskInfo, other: Uniform) -> None:
    await other.delete_thread(THREAD)
    told.forget()


async def evicted(told: TaskInfo, other: Uniform) -> None:
    told.target.raw.delete(*Keyspace(told.target.prefix).keys(THREAD))
    told.forget()


async def grown(told: TaskInfo, other: Uniform) -> None:
    """Another process wrote the last version."""
    await grow(told, other, 5, 6)


async def cut_short(told: TaskInfo, other: Uniform) -> None:
    """Another process put a last version that shares nothing with the known ones."""
    await told.put(other, 5, 4, same=SAME, messages=texts(90, "other"))
    await other.prune([THREAD])
    told.forget(lambda number: number < 5)


async def pruned(told: TaskInfo, other: Uniform) -> None:
    await other.prune([THREAD])
    told.forget(lambda number: number < max(told.values))


async def run_deleted(told: TaskInfo, other: Uniform) -> None:
    await other.delete_for_runs(["late"])
    told.forget(lambda number: number > 2)


async def overwritten(told: TaskInfo, other: Uniform) -> None:
    """The last checkpoint is put again, with other values under the same versions."""
    await told.put(other, 4, 3, same=SAME, run="late", messages=texts(104, "overwritten"))
    await other.prune([THREAD], keep_last=10)


async def anew(told: TaskInfo, other: Uniform) -> None:
    """Put another thread of that name, with other values under the same versions."""
    await other.delete_thread(THREAD)
    told.forget()
    for number in range(1, 5):
        await told.put(other, number, number - 1 or None, messages=texts(100 + number, "anew"))


async def replaced(told: TaskInfo, other: Uniform) -> None:
    """Replace the thread by a copy of another one."""
    source = TaskInfo(told.target, "source")
    for number in range(1, 5):
        await source.put(other, number, number - 1 or None, messages=texts(100 + number, "source"))
    await other.copy_thread("source", THREAD)
    told.values, told.versions, told.parents = source.values, source.versions, source.parents


async def nothing(told: TaskInfo, other: Uniform) -> None:
    pass


HAPPENINGS = deleted, evicted, grown, cut_short, pruned, run_deleted, overwritten, anew, replaced, nothing


@pytest.mark.by_turns
@pytest.mark.parametrize("happening", HAPPENINGS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("follows", ["append", "edit", "read first", "unchanged", "fork"])
async def test_outdated_memory_changes_no_result(target: Target, happening: Any, follows: str) -> None:
    uniform, other, told = target.uniform(), target.uniform(), TaskInfo(target)
    await grow(told, other, 1, 2)
    await grow(told, uniform, 3, 4)
    assert len(stored_chunks(fields_of(target))) > 30
    await uniform.get_tuple(config("warm"))
    await happening(told, other)
    calls = Calls(target)
    if follows == "read first":
        found = await uniform.get_tuple(config())
        assert calls.take() <= 2
        assert (found and found.checkpoint["id"]) == (name(max(told.values)) if told.values else None)
        if found:
            told.same(found)
    parent = (min if follows == "fork" else max)(told.values, default=None)
    has_files = parent is not None and "files" in told.values[parent]
    same, new = (dict(SAME), {}) if has_files else ({}, dict(SAME))
    messages = texts(105)
    if follows == "edit":
        messages[40] = "something else"
    if follows == "unchanged" and parent is not None:
        same["messages"] = _plain.loads_typed(told.values[parent]["messages"])
    else:
        new["messages"] = messages
    await told.put(uniform, 10, parent, same=same, **new)
    assert calls.take() <= 2
    await uniform.get_tuple(config())
    assert calls.take() == 1
    await told.put(uniform, 11, 10, same={"files": FILES}, messages=[*messages, "one more"])
    assert calls.take() <= 2
    if happening is nothing:
        await told.put(uniform, 12, 11, messages=[*messages, "one more", "and one more"])
        assert calls.take() == 1
    await told.check(uniform, other)
    await told.swept(other)
    await other.prune([THREAD])
    told.forget(lambda number: number < max(told.values))
    await told.check(uniform, other, swept=True)


@BOTH
@pytest.mark.parametrize("vanish", [deleted, evicted])
async def test_a_put_to_a_vanished_thread_sends_unchanged_values_again(target: Target, vanish: Any) -> None:
    """A run continues after its thread vanished. The checkpoint has all its values, though only one is new."""
    uniform, other, told = target.uniform(), target.uniform(), TaskInfo(target)
    await grow(told, uniform, 1, 4)
    versions = told.versions[4]
    await vanish(told, other)
    calls, new = Calls(target), texts(105)
    made = checkpoint({**SAME, "messages": new}, {**versions, "messages": 5}, name(5))
    await uniform.put(config(THREAD, "", name(4)), made, {}, {"messages": 5})
    assert calls.take() == 2
    told.values[5], told.versions[5], told.parents[5] = all_said(made["channel_values"]), made["channel_versions"], 4
    await told.check(uniform, swept=True)


@pytest.mark.parametrize("restored", ["dump", "fields"])
async def test_a_restored_older_snapshot_is_read_correctly(target: Target, restored: str) -> None:
    uniform, told = target.uniform(), TaskInfo(target)
    await grow(told, uniform, 1, 2)
    keys = Keyspace(target.prefix).keys(THREAD)
    dumps = [target.raw.dump(key) for key in keys]
    members, fields = target.raw.zrange(keys.index_key, 0, -1), fields_of(target)
    await grow(told, uniform, 3, 6)
    if restored == "dump":
        for key, dump in zip(keys, dumps, strict=True):
            target.raw.restore(key, 0, dump, replace=True)
    else:
        target.raw.delete(*keys)
        target.raw.zadd(keys.index_key, dict.fromkeys(members, 0))
        target.raw.hset(keys.data_key, mapping=fields)
    told.forget(lambda number: number > 2)
    calls = Calls(target)
    assert (await uniform.get_tuple(config())).checkpoint["id"] == name(2)
    assert calls.take() == 1
    await told.put(uniform, 7, 2, same=SAME, messages=texts(107))
    assert calls.take() <= 2
    await told.put(uniform, 8, 7, same=SAME, messages=texts(108))
    assert calls.take() == 1
    await told.check(uniform, swept=True)


# -- with any value


@pytest.mark.by_turns
@BOTH
@pytest.mark.parametrize("knows", ["all", "nothing", "little", "of another", "of one that compresses"])
async def test_every_edit_is_read_back(target: Target, knows: str) -> None:
    """One thread whose value changes often, with the first list in between, and forks from the middle."""
    told, client, is_shared = TaskInfo(target), target.client(), knows.startswith("of")
    other = target.uniform(compression="zstd" if knows == "of one that compresses" else None)
    uniform = target.uniform(client=client, cache_bytes={"all": 2**26, "little": 30_000}.get(knows, 2**20))
    number = 1
    await told.put(uniform, 1, v=BASE)
    edits = list(EDITS.values())
    random.Random(target.flavour).shuffle(edits)
    for edit in edits:
        number += 1
        if knows == "nothing":
            uniform = target.uniform(client=client)
        await told.put(other if is_shared and number % 3 == 0 else uniform, number, number - 1, v=edit)
        if number % 4 == 0:
            number += 1
            await told.put(uniform, number, 1, v=BASE)
    await told.check(uniform, swept=True)


def with_long(at: int) -> list[Any]:
    """A chunk may end because a long element follows. Without that element it ends elsewhere."""
    return [*BASE[:at], text("big", 1500), *BASE[at:]]


VERSIONS = {edit: [BASE, EDITS[edit], with_long(80), [*BASE, 1]] for edit in EDITS if edit != "the same"}
VERSIONS |= {f"a long element at {at}": [with_long(at), [*BASE, 1]] for at in range(20, 60, 3)}


async def test_equal_values_are_stored_alike_with_any_memory(target: Target) -> None:
    """Otherwise processes that take turns would share less. Equal values have equal roots."""
    client = target.client()
    uniform = target.uniform(client=client)
    for edit, versions in VERSIONS.items():
        for number, value in enumerate(versions):
            made = checkpoint({"v": value}, {"v": number}, name(number))
            await uniform.put(config(edit), made, {}, {"v": number})
            await target.uniform(client=client).put(config("fresh"), made, {}, {"v": number})
        mine, theirs = ({f: v for f, v in fields_of(target, one).items() if f[:1] == b"b"} for one in (edit, "fresh"))
        assert mine == theirs, edit
        await uniform.delete_thread("fresh")


@pytest.mark.by_turns
async def test_elements_changed_in_place_are_stored(target: Target) -> None:
    """The objects stay the same, so their identity, length or equality shows nothing."""
    told, uniform = TaskInfo(target), target.uniform()
    value: dict[str, Any] = {
        "numbers": [1] * 2000,
        "nested": [[n, {"a": n, "b": text(n)}] for n in range(100)],
        "messages": history(100),
        "files": {f"f{n:03}": [text(n)] for n in range(100)},
    }

    def changes() -> Iterator[None]:
        yield
        value["numbers"][1000] = True
        yield
        value["numbers"][1000] = 1.0
        yield
        value["numbers"][:] = [True] * 2000
        yield
        value["numbers"][:] = [1.0] * 2000
        yield
        value["numbers"].reverse()
        value["nested"][50][1].update({"b": value["nested"][50][1].pop("b")[::-1], "c": 1})
        yield
        value["nested"][50][1] = dict(reversed(value["nested"][50][1].items()))
        yield
        value["nested"][3][0] = True
        value["nested"][99].append([])
        yield
        value["messages"][50].content = "edited"
        yield
        value["messages"][50].additional_kwargs["x"] = 1
        value["messages"][51].id = "another"
        yield
        del value["messages"][:10]
        yield
        value["files"]["f050"].append("more")
        yield
        value["files"]["f000"] = value["files"].pop("f000")
        yield

    for number, _ in enumerate(changes(), 1):
        await told.put(uniform, number, number - 1 or None, **value)
    await told.check(uniform, swept=True)


@pytest.mark.by_turns
async def test_a_change_of_one_file_sends_little_and_shares_all_others(target: Target) -> None:
    told, uniform = TaskInfo(target), target.uniform()
    files = {f"/{n:03}.md": text(n, 2000) for n in range(200)}
    steps: list[dict[str, str]] = [dict(files)]
    steps.append({**files, "/100.md": text("new", 2000)})
    steps.append({**steps[-1], "/200.md": text("added", 2000)})
    steps.append({key: one for key, one in steps[-1].items() if key != "/050.md"})
    steps.append({"/first.md": text("first", 2000), **steps[-1]})
    steps.append(dict(sorted(steps[-1].items(), reverse=True)))
    steps.append(dict(random.Random(1).sample(list(steps[-1].items()), len(steps[-1]))))
    for number, step in enumerate(steps, 1):
        traffic = Traffic(target)
        await told.put(uniform, number, number - 1 or None, files=step)
        assert number not in (2, 3, 4) or traffic.take()[0] < 10_000, "one file changes"
        assert len(stored_chunks(fields_of(target))) > 200
    sizes = size(fields_of(target))
    assert sizes < 410_000 * 1.4, "documents are stored once"
    await told.check(uniform, swept=True)


@pytest.mark.by_turns
async def test_a_huge_element_is_sent_and_stored_once(target: Target) -> None:
    told, uniform = TaskInfo(target), target.uniform()
    huge = random.Random(1).randbytes(5_000_000)
    await told.put(uniform, 1, v=["a", huge, "b"], w=[text(1), huge.hex()])
    traffic = Traffic(target)
    await told.put(uniform, 2, 1, v=["a", huge, "b", "c"])
    assert traffic.take()[0] < 5_000
    await told.put(uniform, 3, 2, v=["z", huge[:-1] + b"x", "b", "c"])
    fresh = target.uniform()
    for number in (1, 2, 3):
        told.same(await fresh.get_tuple(config(THREAD, "", name(number))))
    assert [one.checkpoint["id"] for one in await fresh.list(config())] == [name(3), name(2), name(1)]
    await fresh.copy_thread(THREAD, "copy")
    told.same(await fresh.get_tuple(config("copy")))
    check_sound(target, "copy")
    await fresh.prune([THREAD])
    told.forget(lambda number: number < 3)
    await told.read(target.uniform())
    check_chunks(target, swept=True)
    assert size(fields_of(target)) < 5_050_000


@pytest.mark.by_turns
async def test_equal_elements_are_stored_once(target: Target) -> None:
    uniform, told = target.uniform(), TaskInfo(target)
    await told.put(uniform, 1, v=[message(3)] * 2000)
    assert size(fields_of(target)) < len(said([message(3)] * 2000)[1]) / 20
    await told.check(uniform, swept=True)


@BOTH
async def test_namespaces_and_channels_share_chunks(target: Target) -> None:
    """Equal values are stored once, and stay until the last one is removed."""
    uniform = target.uniform()
    for ns in ("", "sub|1"):
        made = checkpoint({"a": BASE, "b": BASE}, {"a": "1", "b": "1"}, name(1))
        await uniform.put(config(THREAD, ns), made, {"run_id": f"run of {ns}"}, {"a": "1", "b": "1"})
    assert size(fields_of(target)) < 1.2 * len(said(BASE)[1])
    await uniform.delete_for_runs(["run of "])
    check_sound(target)
    found = await target.uniform().get_tuple(config(THREAD, "sub|1"))
    assert found.checkpoint["channel_values"] == {"a": BASE, "b": BASE}
    assert await target.uniform().get_tuple(config()) is None


async def test_threads_share_no_chunks(target: Target) -> None:
    """A process does not use what it knows of one thread for another."""
    uniform = target.uniform()
    for thread in ("a", "b"):
        made = checkpoint({"v": BASE}, {"v": 1}, name(1))
        await uniform.put(config(thread), made, {}, {"v": 1})
        found = await target.uniform().get_tuple(config(thread))
        assert found.checkpoint["channel_values"] == {"v": BASE}
    await uniform.delete_thread("a")
    await TaskInfo(target, "a").check(uniform)
    assert (await target.uniform().get_tuple(config("b"))).checkpoint["channel_values"] == {"v": BASE}


@pytest.mark.parametrize("prunes", [False, True])
async def test_writers_of_several_processes_keep_all_values(target: Target, prunes: bool) -> None:
    """Writers fork one thread, each with a part of the history in memory, maybe during removals."""
    uniforms = [target.uniform(cache_bytes=size) for size in (2**26, 2**26, 40_000, 0)]
    writers, turns = 8, 6
    put: dict[int, tuple[str, bytes]] = {}
    done: list[int] = []

    async def write(number: int) -> None:
        uniform, mine = uniforms[number % len(uniforms)], random.Random(number)
        value: list[Any] = texts(60, number % 2)
        try:
            for turn in range(turns):
                now = 10 + turn * writers + number
                value = [*value, text((number, turn))]
                value[mine.randrange(60)] = f"{number} {turn}"
                put[now] = said(value)
                made = checkpoint({"v": value}, {"v": now}, name(now))
                parent = config(THREAD, "", name(now - writers))
                await uniform.put(parent, made, {"run_id": f"r{number % 3}"}, {"v": now})
                found = await uniforms[turn % len(uniforms)].get_tuple(config())
                if found is not None:
                    assert said(found.checkpoint["channel_values"]["v"]) == put[int(found.checkpoint["id"][1:])]
                else:
                    assert prunes
        finally:
            done.append(number)

    async def remove() -> None:
        uniform, turn = target.uniform(), 0
        while prunes and len(done) < writers:
            turn += 1
            try:
                if turn % 7 == 3:
                    await uniform.delete_thread(THREAD)
                elif turn % 7 == 5:
                    await uniform.delete_for_runs(["r1"])
                else:
                    assert isinstance(await uniform.prune([THREAD], keep_last=turn % 3 + 1), Pruned)
            except ThreadBusy:
                pass

    await together(uniforms[0], remove(), *(write(number) for number in range(writers)))
    fresh = target.uniform()
    listed = await fresh.list(config())
    assert len(listed) == writers * turns or prunes
    for one in listed:
        assert said(one.checkpoint["channel_values"]["v"]) == put[int(one.checkpoint["id"][1:])]
    if listed:
        check_chunks(target)
        await fresh.prune([THREAD], keep_last=100)
        check_sound(target)
        check_chunks(target, swept=True)


# -- random histories


class Machine(RuleBasedStateMachine):
    """Edits, forks, removals, copies and savers with memory, compared with a plain dict."""

    target: Target
    _counter = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.versions, self.next = itertools.count(1), itertools.count(1)
        self.checkpoints: dict[str, dict[int, tuple[dict[str, int], str]]] = {"a": {}, "b": {}}
        self.blobs: dict[str, dict[tuple[str, int], Any]] = {"a": {}, "b": {}}
        self.kept: list[Any] = []
        self.checked: dict[str, Any] = {}
        """By thread: what was stored and expected when it was last read."""

    @initialize()
    def open(self) -> None:
        self.target.prefix = f"s{os.getpid()}-{next(self._counter)}"
        self.clients = [self.target.client() for _ in range(3)]
        self.uniforms = [
            self.target.uniform(client=client, cache_bytes=limit)
            for client, limit in zip(self.clients, (2**26, 20_000, 2**26), strict=True)
        ]

    def teardown(self) -> None:
        for client in getattr(self, "clients", ()):
            closing = client.aclose() if self.target.flavour == "async" else client.close()
            if closing is not None:
                self.loop.run_until_complete(closing)
        self.loop.close()

    def do(self, which: int, method: str, *args: Any, **kwargs: Any) -> Any:
        return self.loop.run_until_complete(getattr(self.uniforms[which], method)(*args, **kwargs))

    def values(self, thread: str, number: int) -> dict[str, Any]:
        return {pair[0]: self.blobs[thread][pair] for pair in self.checkpoints[thread][number][0].items()}

    def sweep(self, thread: str) -> None:
        held = {pair for versions, _ in self.checkpoints[thread].values() for pair in versions.items()}
        self.blobs[thread] = {pair: value for pair, value in self.blobs[thread].items() if pair in held}

    @rule(thread=st.sampled_from("ab"), which=st.integers(0, 2), data=st.data())
    def put(self, thread: str, which: int, data: Any) -> None:
        there = self.checkpoints[thread]
        parent = data.draw(st.sampled_from([max(there), *there])) if there else None
        versions = dict(there[parent][0]) if parent is not None else {}
        held = dict(self.values(thread, parent)) if parent is not None else {}
        new: dict[str, int] = {}
        for channel in data.draw(st.sampled_from([("v",), ("v", "w"), ("w",), ("v", "n")])):
            new[channel] = versions[channel] = next(self.versions)
            held[channel] = edited(held.get(channel), data.draw(st.integers(0, 10**6)))
        run = data.draw(st.sampled_from(["r1", "r2"]))
        self.store(thread, which, next(self.next), parent, versions, held, new, run)

    def store(
        self, thread: str, which: int, number: int, parent: Any, versions: Any, held: Any, new: Any, run: str
    ) -> None:
        made = checkpoint(copy.deepcopy(held), versions, name(number))
        where = config(thread, "", name(parent) if parent is not None else None)
        self.do(which, "put", where, made, {"run_id": run}, new)
        self.checkpoints[thread][number] = versions, run
        for pair in versions.items():
            if pair[0] in new or pair not in self.blobs[thread]:
                self.blobs[thread][pair] = held[pair[0]]
        self.sweep(thread)

    @rule(thread=st.sampled_from("ab"), which=st.integers(0, 2), data=st.data())
    def put_again(self, thread: str, which: int, data: Any) -> None:
        """Put an id again with other values under the same versions. All checkpoints with these versions get them."""
        there = self.checkpoints[thread]
        if not there:
            return
        number = data.draw(st.sampled_from(list(there)))
        versions, run = there[number]
        seeds = st.integers(0, 10**6)
        held = {channel: edited(one, data.draw(seeds)) for channel, one in self.values(thread, number).items()}
        self.store(thread, which, number, None, versions, held, versions, run)

    @rule(thread=st.sampled_from("ab"), which=st.integers(0, 2), how=st.sampled_from(["delete_thread", "evict"]))
    def delete(self, thread: str, which: int, how: str) -> None:
        if how == "evict":
            self.target.raw.delete(*Keyspace(self.target.prefix).keys(thread))
        else:
            self.do(which, "delete_thread", thread)
        self.checkpoints[thread], self.blobs[thread] = {}, {}

    @rule(thread=st.sampled_from("ab"), which=st.integers(0, 2), keep=st.integers(1, 6))
    def prune(self, thread: str, which: int, keep: int) -> None:
        before = self.fields(thread)
        would = self.do(which, "prune", [thread], keep_last=keep, dry_run=True)
        assert self.fields(thread) == before
        assert self.do(which, "prune", [thread], keep_last=keep) == would
        assert size(before) - size(self.fields(thread)) == would.bytes
        for number in sorted(self.checkpoints[thread])[:-keep]:
            del self.checkpoints[thread][number]
        self.sweep(thread)
        if self.checkpoints[thread]:
            check_chunks(self.target, thread, swept=True)
            check_sound(self.target, thread)

    @rule(which=st.integers(0, 2), run=st.sampled_from(["r1", "r2"]))
    def delete_for_runs(self, which: int, run: str) -> None:
        self.do(which, "delete_for_runs", [run])
        for thread, there in self.checkpoints.items():
            for number in [number for number, (_, of) in there.items() if of == run]:
                del there[number]
            self.sweep(thread)

    @rule(which=st.integers(0, 2), pair=st.sampled_from(["ab", "ba"]))
    def copy_thread(self, which: int, pair: str) -> None:
        source, into = pair
        self.do(which, "copy_thread", source, into)
        if self.checkpoints[source]:
            there = self.checkpoints[source].items()
            self.checkpoints[into] = {number: (dict(one), "nobody's") for number, (one, _) in there}
            self.blobs[into] = dict(self.blobs[source])

    @rule(which=st.integers(0, 2), keeps=st.booleans())
    def lose_memory(self, which: int, keeps: bool) -> None:
        saver = self.uniforms[which].saver
        fresh = type(saver)(self.clients[which], prefix=self.target.prefix)
        self.kept.append(saver._context.chunk_cache)
        saver._context = saver._context._replace(chunk_cache=fresh._context.chunk_cache)

    @rule(which=st.integers(0, 2), data=st.data())
    def remember_older(self, which: int, data: Any) -> None:
        """Use older memory, or that of another process."""
        saver = self.uniforms[which].saver
        known = saver._context.chunk_cache._threads
        mine = ChunkCache(CACHE_BYTES)
        for key, thread in known.items():
            mine._threads.store(key, copy.deepcopy(thread), known._sizes[key])
        if self.kept and data.draw(st.booleans()):
            saver._context = saver._context._replace(chunk_cache=data.draw(st.sampled_from(self.kept)))
        self.kept.append(mine)

    @rule(thread=st.sampled_from("ab"), which=st.integers(0, 2), data=st.data())
    def read(self, thread: str, which: int, data: Any) -> None:
        there = self.checkpoints[thread]
        number = data.draw(st.sampled_from([None, *there]))
        found = self.do(which, "get_tuple", config(thread, "", name(number) if number is not None else None))
        if there:
            self.same(thread, found)
        else:
            assert found is None

    def same(self, thread: str, found: Any) -> None:
        number = int(found.checkpoint["id"][1:])
        assert all_said(found.checkpoint["channel_values"]) == all_said(self.values(thread, number))
        assert found.checkpoint["channel_versions"] == self.checkpoints[thread][number][0]

    def fields(self, thread: str) -> dict[bytes, bytes]:
        return fields_of(self.target, thread)

    @invariant()
    def all_is_there(self) -> None:
        if not hasattr(self, "uniforms"):
            return
        for thread, there in self.checkpoints.items():
            if not there:
                assert self.fields(thread) == {}
                continue
            now = self.fields(thread), dict(there), dict(self.blobs[thread])
            if self.checked.get(thread) == now:
                continue
            self.checked[thread] = now
            check_chunks(self.target, thread)
            check_counters(self.fields(thread))
            listed = list(RedisSaver(self.target.raw, prefix=self.target.prefix).list(config(thread)))
            assert ids(listed) == [name(number) for number in sorted(there, reverse=True)]
            for one in listed:
                self.same(thread, one)


def edited(value: Any, seed: int) -> Any:
    """Return a value near another one: mostly a long list or dict."""
    chance = random.Random(seed)
    if not isinstance(value, list | dict) or chance.random() < 0.05:
        long = texts(60, seed % 3)
        return chance.choice([long, long[:30], FILES, [], texts(1), "short", None, list(range(3000))])
    if isinstance(value, dict):
        found = dict(value)
        for _ in range(chance.randrange(3)):
            found[chance.choice(list(found))] = text(seed)
        if chance.random() < 0.3:
            found[text(seed, 20)] = text(seed, 500)
        if chance.random() < 0.3:
            del found[chance.choice(list(found))]
        return found or FILES
    found = list(value)
    at = chance.randrange(len(found) + 1)
    match chance.randrange(8):
        case 0 | 1 | 2:
            found += texts(chance.randrange(1, 4), seed)
        case 3:
            found[at:at] = texts(2, seed)
        case 4:
            del found[at : at + chance.randrange(10)]
        case 5:
            found[at : at + 1] = [text(seed, chance.choice([10, 1500, 9000]))]
        case 6:
            found = [*found, *found[:at]][:200]
        case 7:
            found[at : at + 1] = [[text(seed), {"a": found[:3]}]]
    return found


@pytest.mark.random
@pytest.mark.by_turns
@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("server", targets("redis", "redis62"))
@pytest.mark.parametrize("examples", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_random_histories_are_read_back(server: str, flavour: str, examples: int) -> None:
    target = Target(server, flavour, url_of(server), "s")
    machine = type("Machine", (Machine,), {"target": target})
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=checks),
    )


# -- missing chunks, and garbage


OPERATIONS: dict[str, Callable[[Uniform], Awaitable[Any]]] = {
    "get_tuple": lambda uniform: uniform.get_tuple(config()),
    "list": lambda uniform: uniform.list(config()),
    "list all": lambda uniform: uniform.list(None),
    "list filtered": lambda uniform: uniform.list(config(), filter={"step": 2}),
    "history": lambda uniform: uniform.get_delta_channel_history(config=config(THREAD, "", name(3)), channels=["v"]),
    "copy": lambda uniform: uniform.copy_thread(THREAD, "copied"),
}


GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "text": lambda was: b"garbage",
    "short": lambda was: was[: len(was) // 2],
    "shorter by a digest": lambda was: was[:-16],
    "longer": lambda was: was + was,
    "turned round": lambda was: was[:1] + was[:0:-1],
    "one bit": lambda was: was[:-1] + bytes([was[-1] ^ 1]),
}
OF_CHUNKS = {"nothing": lambda was: b"", "another order": lambda was: was[:1] + was[17:33] + was[1:17] + was[33:]}
OF_ROOTS = {
    "another kind": lambda was: b"p" + was[1:],
    "a list's head": lambda was: was[:17],
    "another order": lambda was: was[:-32] + was[-16:] + was[-32:-16],
}
SPOILT = [(part, garbage) for part in ("chunk p", "chunk n") for garbage in {**GARBAGE, **OF_CHUNKS}]
SPOILT += [("root", garbage) for garbage in {**GARBAGE, **OF_ROOTS}]


@pytest.mark.by_turns
@pytest.mark.parametrize(("part", "garbage"), SPOILT, ids=map(" ".join, SPOILT))
async def test_garbage_in_a_chunk_or_a_root_is_never_returned(target: Target, part: str, garbage: str) -> None:
    """Each operation raises, or returns what was put."""
    client = target.client()
    uniform, told = target.uniform(client=client), TaskInfo(target)
    await told.put(uniform, 1, v=texts(150, "first"))
    await told.put(uniform, 2, 1, v=BASE, w={one[:20]: one for one in BASE[::-1]})
    await told.put(uniform, 3, 2, n=1)
    fields = fields_of(target)
    if part == "root":
        chosen = [field for field in fields if field[:1] == b"b" and fields[field][:1] == b"n"]
    else:
        chosen = [field for field in chunks_of_values(target) if field[:1] == part[-1:].encode()]
    assert len(chosen) >= 2
    spoil = {**GARBAGE, **(OF_ROOTS if part == "root" else OF_CHUNKS)}[garbage]
    for field in dict.fromkeys(chosen[:2] + chosen[-2:]):
        await uniform.delete_thread("copied")
        target.raw.hset(key_of(target), field, spoil(fields[field]))
        for operation, call in OPERATIONS.items():
            try:
                answer = await call(target.uniform(client=client))
                if operation == "copy":
                    answer = await target.uniform(client=client).list(config("copied"))
            except ThreadDamaged:
                assert operation == "copy" or target.raw.exists(key_of(target, "copied")) == 0
                continue
            for one in answer if isinstance(answer, list) else [answer] if hasattr(answer, "checkpoint") else []:
                told.same(one)
            if operation == "history" and "seed" in answer["v"]:
                assert said(answer["v"]["seed"]) == told.values[2]["v"]
            assert operation != "copy" or len(answer) == 3
        target.raw.hset(key_of(target), field, fields[field])


@BOTH
async def test_reads_that_need_a_missing_chunk_raise(target: Target) -> None:
    """A fresh process cannot take it from its memory."""
    uniform, told = target.uniform(), TaskInfo(target)
    await told.put(uniform, 1, v=BASE)
    await told.put(uniform, 2, 1, same={"v": BASE}, n=1)
    await told.put(uniform, 3, 2, n=1)
    fields, chunks = fields_of(target), chunks_of_values(target)
    client = target.client()
    for field in (chunks[0], chunks[5], chunks[-1]):
        assert target.raw.hdel(key_of(target), field) == 1
        before = fields_of(target)
        for operation in ("get_tuple of 2", *(one for one in OPERATIONS if one not in ("get_tuple", "list filtered"))):
            call = OPERATIONS.get(operation, lambda uniform: uniform.get_tuple(config(THREAD, "", name(2))))
            with pytest.raises(ThreadDamaged):
                await call(target.uniform(client=client))
        assert fields_of(target) == before
        assert target.raw.exists(key_of(target, "copied")) == 0
        target.raw.hset(key_of(target), field, fields[field])
    await told.check(uniform, swept=True)


@BOTH
async def test_prune_with_missing_chunks_happens_completely_or_not_at_all(target: Target) -> None:
    uniform, told = target.uniform(), TaskInfo(target)
    for field_at in range(4):
        await uniform.delete_thread(THREAD)
        told.forget()
        await told.put(uniform, 1, v=BASE)
        await told.put(uniform, 2, 1, v=texts(150, "second"))
        chunks = chunks_of_values(target)
        target.raw.hdel(key_of(target), chunks[field_at * (len(chunks) - 1) // 3])
        before = fields_of(target)
        try:
            await target.uniform().prune([THREAD])
        except ThreadDamaged:
            assert fields_of(target) == before
        else:
            assert sum(field[:1] == b"c" for field in fields_of(target)) == 1
            assert b"@gc_roots" not in fields_of(target)


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", ["p", "n"])
async def test_a_put_repairs_missing_chunks_or_reads_raise(target: Target, kind: str) -> None:
    client = target.client()
    told, uniform = TaskInfo(target), target.uniform(client=client)
    await told.put(uniform, 1, v=BASE)
    fields = fields_of(target)
    for number, field in enumerate(chunks_of_values(target), 2):
        for by in (uniform, target.uniform(client=client)) if field[:1] == kind.encode() else ():
            target.raw.hdel(key_of(target), field)
            await told.put(by, number, 1, v=[*BASE, "more"])
            for each in (number, 1):
                try:
                    told.same(await target.uniform(client=client).get_tuple(config(THREAD, "", name(each))))
                except ThreadDamaged:
                    target.raw.hset(key_of(target), field, fields[field])


@pytest.mark.by_turns
async def test_putting_a_value_again_restores_missing_chunks(target: Target) -> None:
    """All chunks that the server lacks are sent."""
    told, client = TaskInfo(target), target.client()
    await told.put(target.uniform(client=client), 1, v=BASE)
    for field in chunks_of_values(target):
        target.raw.hdel(key_of(target), field)
        await told.put(target.uniform(client=client), 1, v=BASE)
        await told.read(target.uniform(client=client))


# -- exactly the unused chunks are removed


@BOTH
async def test_overwritten_values_leave_no_chunks(target: Target) -> None:
    """Values are put again under the same versions, in chunks or short."""
    told, uniform = TaskInfo(target), target.uniform()
    edited_list, a_dict = [*BASE[:90], *texts(9)], {one[:9]: one for one in BASE}
    for value in (BASE, texts(150, "b"), "short", BASE[:30], None, edited_list, [], a_dict):
        await told.put(uniform, 1, v=value)
        await told.check(uniform)
    await told.put(uniform, 1, v="short")
    await told.swept(uniform)
    assert len(stored_chunks(fields_of(target))) == 1, "the names"


@BOTH
async def test_prune_counts_what_it_removes(target: Target) -> None:
    told, uniform = TaskInfo(target), target.uniform()
    now = datetime.now(timezone.utc)
    for number in (*range(1, 9), 4):
        value = [*texts(100, "again" if number in told.values else number // 3), str(number)]
        made = checkpoint({"v": value}, {"v": number}, name(number))
        made["ts"] = (now - timedelta(days=20 - number)).isoformat()
        await uniform.put(config(), made, {}, {"v": number})
        told.values[number], told.versions[number], told.parents[number] = {"v": said(value)}, {"v": number}, None
    for kept, left in (({"older_than": timedelta(days=17)}, 4), ({"keep_last": 3}, 6), ({}, 8)):
        before = fields_of(target)
        would = await uniform.prune([THREAD], dry_run=True, **kept)
        assert fields_of(target) == before
        done = await uniform.prune([THREAD], **kept)
        assert would == done
        assert size(before) - size(fields_of(target)) == done.bytes > 0
        told.forget(lambda number: number < left)
        await told.check(uniform, swept=True)
        assert await uniform.prune([THREAD], **kept) == Pruned()


def furnished(target: Target) -> TaskInfo:
    """Put values with several levels of chunks: some stay in use, many do not, and some are unused already."""
    target.raw.delete(*(target.keys() or ["none"]))
    told, uniform = TaskInfo(target), Uniform(target.blocking())

    async def fill() -> None:
        first = texts(400, "first")
        await told.put(uniform, 1, run="doomed", v=first, w=texts(300, "w"))
        await told.put(uniform, 1, run="doomed", v=[*first[:200], *texts(300, "again")], w=texts(300, "w"))
        await told.put(uniform, 2, 1, run="doomed", v=texts(1200, "second"))
        await told.put(uniform, 3, 2, run="doomed", v=[*texts(300, "third"), *first[:100]], w=texts(10))
        await told.put(uniform, 4, 1, run="kept", v=[*first[:100], *texts(40, "last")])

    asyncio.run(fill())
    return told


REMOVALS: dict[str, Callable[[RedisSaver], Any]] = {
    "prune": lambda saver: pruning.prune(saver._context, [THREAD], Retention(), False),
    "delete_for_runs": lambda saver: pruning.delete_for_runs(saver._context, ["doomed"]),
}


async def check_removed(target: Target, told: TaskInfo) -> None:
    """Check that the thread can be read, and that a prune removes what it says, and the rest."""
    uniform = Uniform(target.blocking())
    listed = await uniform.list(config())
    for one in listed:
        told.same(one)
    assert name(max(told.values)) in ids(listed)
    fields = fields_of(target)
    check_counters(fields)
    would = await uniform.prune([THREAD], dry_run=True)
    done = await uniform.prune([THREAD])
    assert would == done
    assert size(fields) - size(fields_of(target)) == done.bytes
    check_sound(target)
    check_chunks(target, swept=True)
    told.same(await uniform.get_tuple(config()))


# -- costs


@pytest.mark.by_turns
async def test_a_put_sends_only_what_changed(target: Target) -> None:
    bytes_of: dict[int, list[int]] = {}
    for length in (100, 1000, 5000):
        uniform, told, sent = target.uniform(), TaskInfo(target, f"of {length}"), []
        messages = history(length)
        await told.put(uniform, 1, messages=messages)
        calls, traffic = Calls(target), Traffic(target)
        for number in range(2, 12):
            messages = [*messages, message(length + number)]
            traffic.take()
            await told.put(uniform, number, number - 1, messages=messages)
            sent.append(traffic.take()[0])
        assert calls.take() == 10
        bytes_of[length] = sent
        await uniform.get_tuple(config(told.thread))
        calls.take()
        traffic.take()
        await uniform.get_tuple(config(told.thread))
        assert traffic.take()[1] < 2_500, "the process already has the values"
        assert calls.take() == 1
        told.same(await target.uniform().get_tuple(config(told.thread)))
    mean = {length: sum(sent) / len(sent) for length, sent in bytes_of.items()}
    print("a put:", mean)
    assert mean[1000] <= 2 * mean[100]
    assert mean[5000] <= 3 * mean[100]


@pytest.mark.by_turns
async def test_a_process_without_memory_does_not_send_everything(target: Target) -> None:
    told, messages = TaskInfo(target), history(1000)
    await told.put(target.uniform(), 1, messages=messages)
    for number in range(2, 7):
        messages = [*messages, message(1000 + number)]
        fresh = target.uniform()
        calls, traffic = Calls(target), Traffic(target)
        await told.put(fresh, number, number - 1, messages=messages)
        took = traffic.take()[0]
        print("without memory:", took, calls.take())
        assert took < 0.1 * len(said(messages)[1]), "it sends lists of chunks, but no chunks"
    await told.check(swept=True)


# -- encryption


KEY = b"0123456789abcdef"


@pytest.mark.parametrize("compression", [None, "zstd"])
async def test_encrypted_values_are_stored_whole_and_secret(target: Target, compression: str | None) -> None:
    """Chunks would show which elements are equal, and how long they are."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    uniform, told = target.uniform(serde=serde, compression=compression), TaskInfo(target)
    secret = [f"MARKER {n} " * 20 for n in range(300)]
    values = {"v": secret, "alike": list(secret), "d": {f"MARKER {n}": one for n, one in enumerate(secret)}}
    await told.put(uniform, 1, **values)
    await told.put(uniform, 2, 1, **{**values, "v": [*secret, "MARKER"]})
    await uniform.put_writes(config(THREAD, "", name(2)), [("v", secret)], "task")
    await told.read(target.uniform(serde=EncryptedSerializer.from_pycryptodome_aes(key=KEY)), uniform)
    fields = fields_of(target)
    assert not chunks_of_values(target)
    stored = [value for field, value in fields.items() if field[:1] == b"b"]
    assert len(stored) == 6
    assert len(set(stored)) == 6, "equal values do not look equal"
    assert min(map(len, stored)) > 40_000, "encrypted values are not compressed"
    everything = raw_bytes(target)
    assert b"msgpack+aes" in everything
    assert b"MARKER" not in everything
    with pytest.raises(ThreadDamaged):
        await target.uniform().get_tuple(config())
    await uniform.copy_thread(THREAD, "copy")
    await uniform.prune(["copy"])
    told.same(await uniform.get_tuple(config("copy")))
    assert b"MARKER" not in raw_bytes(target)
    plain = target.uniform()
    await told.put(plain, 3, 2, v=secret)
    assert b"MARKER" in raw_bytes(target), "without encryption the scan finds them"
    with pytest.raises(PlainValueRefused):
        await uniform.get_tuple(config())
    told.same(await target.uniform(serde=serde, require_encryption=False).get_tuple(config()))


# -- round trips, garbage and removals


@BOTH
async def test_a_header_put_again_with_other_names_leaves_no_chunk(target: Target) -> None:
    """The chunk with its old names is unused then."""
    uniform, told = target.uniform(), TaskInfo(target)
    await told.put(uniform, 1, a=1)
    await told.put(uniform, 1, a=1, b=2)
    await told.put(uniform, 1, c=3)
    await uniform.prune([THREAD])
    assert (await target.uniform().get_tuple(config())).checkpoint["channel_values"] == {"c": 3}
    check_sound(target)
    check_chunks(target, swept=True)


@pytest.mark.parametrize("operation", REMOVALS)
@pytest.mark.parametrize("flavour", ["sync"])
def test_the_next_removal_finishes_one_that_died(target: Target, operation: str, monkeypatch: Any) -> None:
    """After each step the thread is sound and readable, and the next removal leaves no unused chunk."""
    monkeypatch.setattr(pruning, "NAMES_PER_STEP", 125)

    class Died(Exception):
        pass

    def die(step: int) -> None:
        if step == died_before:
            raise Died

    for died_before in itertools.count(2):
        told, saver = furnished(target), RedisSaver(target.raw, prefix=target.prefix)
        before_each(saver, scripts.REMOVE, die)
        try:
            saver._driver.run(REMOVALS[operation](saver))
            died = False
        except Died:
            died = True
        asyncio.run(check_removed(target, told))
        if not died:
            assert died_before > 6, "the removal takes many steps"
            break


@pytest.mark.parametrize("flavour", ["sync"])
@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("operation", REMOVALS)
def test_puts_during_a_removal_keep_their_values(target: Target, operation: str, knows: bool) -> None:
    """They rely on chunks that are being removed. So they are repaired, or the removal is planned again."""
    value = [*texts(1200, "second"), "more"]

    def put(step: int) -> None:
        if step == put_before and 5 not in told.values:
            asyncio.run(told.put(writer, 5, 2, run="kept", v=value, w=texts(300, "w")))

    for put_before in itertools.count(1):
        told, saver, writer = furnished(target), target.blocking(), Uniform(target.blocking())
        if knows:
            asyncio.run(writer.list(config()))
            asyncio.run(writer.get_tuple(config(THREAD, "", name(2))))
        before_each(saver, scripts.REMOVE, put)
        saver._driver.run(REMOVALS[operation](saver))
        asyncio.run(check_removed(target, told))
        if 5 not in told.values:
            assert put_before > 4
            break


@pytest.mark.parametrize("flavour", ["sync"])
def test_a_value_put_again_during_a_copy_is_copied_whole(target: Target) -> None:
    """The value is put before each step of the copy, in chunks or short, and the copy has no unused chunk."""
    other = Uniform(target.blocking())
    for before, after in itertools.product((BASE, "short", texts(150, "b")), repeat=2):
        for steps in itertools.count():
            target.raw.delete(*(target.keys() or ["none"]))
            told, saver, done = TaskInfo(target), RedisSaver(target.raw, prefix=target.prefix), 0
            asyncio.run(told.put(other, 1, v=before))

            def around(request: Any) -> Any:
                nonlocal done
                done += 1
                if done == steps:
                    asyncio.run(told.put(other, 1, v=after))
                return (yield request)

            Around(saver, around)
            saver._driver.run(copy_thread(saver._context, THREAD, "copy"))
            (found,) = target.blocking().list(config("copy"))
            assert said(found.checkpoint["channel_values"]["v"]) in (said(before), said(after))
            check_sound(target, "copy")
            check_chunks(target, "copy", swept=True)
            if done < steps:
                break
        assert steps > 3


@pytest.mark.parametrize("flavour", ["async"])
async def test_a_chat_of_many_turns_stays_small(target: Target) -> None:
    thread, turns = config(), 40
    graph = graphs.chat(target.uniform().saver, asynchronous=True)
    await graph.ainvoke({"messages": history(100)}, config("warm"))
    await graph.aupdate_state(thread, {"messages": history(100)}, as_node="agent")

    def memory() -> int:
        return sum(target.raw.memory_usage(key, samples=0) for key in Keyspace(target.prefix).keys(THREAD))

    before, traffic = memory(), Traffic(target)
    for turn in range(turns):
        await graph.ainvoke({"messages": [message(100 + 4 * turn)]}, thread)
    took, gave = traffic.take()
    found = await target.uniform().get_tuple(thread)
    assert len(found.checkpoint["channel_values"]["messages"]) == 100 + 4 * turns
    print("a turn: sent", took // turns, "received", gave // turns, "memory", (memory() - before) // turns)
    assert memory() - before <= turns * 15_000
    assert took <= turns * 15_000
    assert gave <= turns * 2_000
    assert len(await target.uniform().list(thread)) >= 5 * turns
    check_sound(target)


@pytest.mark.parametrize(("channels", "nodes", "most"), [(12, 8, 600), (3, 2, 400)])
async def test_headers_are_short(target: Target, channels: int, nodes: int, most: int) -> None:
    """The checkpoint is as LangGraph writes it, and its nodes have seen every channel."""
    uniform = target.uniform()
    names_of = [f"branch:to:a node with a name {n}" for n in range(channels)]
    for step in range(3):
        new_version = uniform.saver.get_next_version
        versions = {channel: new_version(f"{step + n:032}.0", None) for n, channel in enumerate(names_of)}
        made = checkpoint(dict.fromkeys(names_of[:2], "x"), versions)
        made["versions_seen"] = {"__input__": {}, **{f"a node with a name {n}": dict(versions) for n in range(nodes)}}
        metadata = {"source": "loop", "step": step, "parents": {}, "thread_id": THREAD}
        await uniform.put(config(), made, metadata, versions)
        found = await target.uniform().get_tuple(config(THREAD, "", made["id"]))
        assert found.checkpoint["versions_seen"] == made["versions_seen"]
    assert max(len(value) for field, value in fields_of(target).items() if field[:1] == b"c") <= most
    assert len(stored_chunks(fields_of(target))) == 1, "the checkpoints share the chunk of names"
