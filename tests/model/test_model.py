"""Random operations compared with InMemorySaver: all answers agree where it defines them.

InMemorySaver lacks prune, copy and delete_for_runs. They are modelled on its storage, by the rules in the docstrings.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.memory import InMemorySaver

from tests.support import raw
from tests.support.factories import checkpoint, config, ids as ids_of
from tests.support.seeds import targets
from tests.support.servers import url_of
from tests.support.sharing import text
from tests.support.uniform import Target

THREADS = ["a", "*:{\0}", "é\ud800"]
NAMESPACES = ["", "n|x:\1", "\0"]
CHANNELS = ["c", "c:d", "\0c"]
TASKS = ["t", "u\0", "00000000-0000-0000-0000-000000000000"]
PATHS = ["", "~__pregel_pull, n", "é"]
RUNS = ["r1", "r2", "*", "", None]
IDS = ["0\0", "1f001", "1f002", "1f003", "1f01", "z{*}"]

threads, namespaces, ids = st.sampled_from(THREADS), st.sampled_from(NAMESPACES), st.sampled_from(IDS)
some_id, channels = st.sampled_from([None, *IDS]), st.lists(st.sampled_from(CHANNELS), unique=True)
RESULT = text("a tool's result", 5000)
LONG = [RESULT, RESULT.encode(), RESULT + "more", [RESULT], [1, RESULT, RESULT[:3000]], {"in": {"a": RESULT[:4000]}}]
"""Values that share chunks, as channels and as pending writes."""
short = st.none() | st.integers(-5, 5) | st.text(max_size=5) | st.binary(max_size=5)
values = short | st.lists(st.integers(0, 9), max_size=3) | st.sampled_from(LONG)
lists_of_writes = st.lists(st.tuples(st.sampled_from([*CHANNELS, *WRITES_IDX_MAP]), values), max_size=4)
tasks = st.sampled_from(TASKS)
_counter = itertools.count()


class Machine(RuleBasedStateMachine):
    """Both savers with the same operations. The test sets `target`."""

    target: Target

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model = InMemorySaver()
        self.puts: list[tuple[dict[str, Any], Any, Any, dict[str, Any]]] = []
        self.versions = itertools.count(1)
        self.copied: set[Any] = set()

    @initialize()
    def open(self) -> None:
        self.target.prefix = f"m{os.getpid()}-{next(_counter)}"
        self.client = self.target.client()
        self.uniform = self.target.uniform(client=self.client)

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.loop.run_until_complete(self.client.aclose()) if self.uniform.native_async else self.client.close()
        self.loop.close()

    def ours(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self.loop.run_until_complete(getattr(self.uniform, method)(*args, **kwargs))

    def same(self, theirs: Any, mine: Any) -> None:
        assert normal(mine) == normal(theirs)

    def stored(self, thread: str, ns: str) -> dict[str, Any]:
        return self.model.storage.get(thread, {}).get(ns, {})

    # -- writing

    @rule(thread=threads, ns=namespaces, which=ids, parent=some_id, data=st.data())
    def put(self, thread: str, ns: str, which: str, parent: str | None, data: Any) -> None:
        inherited: dict[str, Any] = {}
        held: dict[str, Any] = {}
        if parent in self.stored(thread, ns):
            found = self.model.get_tuple(config(thread, ns, parent))
            assert found is not None
            inherited, held = dict(found.checkpoint["channel_versions"]), dict(found.checkpoint["channel_values"])
        changed = data.draw(channels)
        new = {channel: f"{next(self.versions):032}.x" for channel in changed}
        for channel in changed:
            held.pop(channel, None)
            if data.draw(st.booleans()):
                held[channel] = data.draw(values)
        made = checkpoint(held, {**inherited, **new}, which)
        metadata = {"source": "loop", "step": data.draw(st.integers(-1, 3))}
        metadata |= {"run_id": data.draw(st.sampled_from(RUNS)), "x": data.draw(values)}
        where = config(thread, ns, parent)
        given = where, made, metadata, new
        self.same(self.model.put(*given), self.ours("put", *given))
        self.puts.append(given)
        self.copied.discard((thread, ns, which))

    @precondition(lambda self: self.puts)
    @rule(data=st.data())
    def put_again(self, data: Any) -> None:
        """Retry the last put or an old one, as after a lost reply, if its checkpoint is unchanged."""
        where, made, metadata, new = data.draw(st.sampled_from(self.puts))
        place = where["configurable"]
        before = self.model.get_tuple(config(place["thread_id"], place["checkpoint_ns"], made["id"]))
        if before is None or before.checkpoint["channel_versions"] != made["channel_versions"]:
            return
        self.model.put(where, made, metadata, new)
        self.ours("put", where, made, metadata, new)
        self.copied.discard((place["thread_id"], place["checkpoint_ns"], made["id"]))

    @rule(thread=threads, ns=namespaces, which=ids, task=tasks, path=st.sampled_from(PATHS), writes=lists_of_writes)
    def put_writes(self, thread: str, ns: str, which: str, task: str, path: str, writes: Any) -> None:
        where = config(thread, ns, which)
        self.model.put_writes(where, writes, task, path)
        self.ours("put_writes", where, writes, task, path)

    # -- reading

    @rule(thread=threads, ns=namespaces, which=some_id)
    def get_tuple(self, thread: str, ns: str, which: str | None) -> None:
        where = config(thread, ns, which)
        self.same(self.model.get_tuple(where), self.ours("get_tuple", where))

    @rule(
        thread=st.none() | threads, ns=st.none() | namespaces, which=some_id,
        filter=st.sampled_from([None, {"step": 1}, {"run_id": "r1"}, {"x": None}, {"step": 2, "run_id": "*"}, {"nothing": 1}]),
        before=st.sampled_from([None, *IDS, "1f0035", "zz"]), limit=st.sampled_from([None, 0, 1, 2, 5]),
    )  # fmt: skip
    def list(
        self, thread: str | None, ns: str | None, which: str | None, filter: Any, before: str | None, limit: int | None
    ) -> None:
        where = None if thread is None else config(thread, ns, which)
        bound = None if before is None else config("any", "", before)
        everything = list(self.model.list(where, filter=filter, before=bound))
        mine = self.ours("list", where, filter=filter, before=bound, limit=limit)
        assert ids_of(mine) == sorted(ids_of(everything), reverse=True)[:limit]
        by_place = {place(one): one for one in everything}
        assert len({place(one) for one in mine}) == len(mine)
        for one in mine:
            self.same(by_place[place(one)], one)

    @rule(thread=threads, ns=namespaces, which=some_id, channels=channels)
    def history(self, thread: str, ns: str, which: str | None, channels: Any) -> None:
        if looped(self.stored(thread, ns)):
            return  # InMemorySaver does not terminate on a cycle
        where = config(thread, ns, which)
        theirs = self.model.get_delta_channel_history(config=where, channels=channels)
        assert dict(self.ours("get_delta_channel_history", config=where, channels=channels)) == dict(theirs)

    # -- threads

    @rule(thread=threads)
    def delete_thread(self, thread: str) -> None:
        self.model.delete_thread(thread)
        self.ours("delete_thread", thread)
        self.forget(lambda place: place[0] == thread)

    @rule(runs=st.lists(st.sampled_from(RUNS[:4]), unique=True, max_size=2))
    def delete_for_runs(self, runs: Any) -> None:
        found = [one for one in self.model.list(None) if one.metadata.get("run_id") in runs]
        victims = {place(one) for one in found} - self.copied
        self.ours("delete_for_runs", runs)
        self.forget(victims.__contains__)

    @rule(chosen=st.lists(threads, unique=True, max_size=2), keep=st.integers(1, 3), dry=st.booleans())
    def prune(self, chosen: Any, keep: int, dry: bool) -> None:
        if any(looped(self.stored(thread, ns)) for thread in chosen for ns in NAMESPACES):
            return
        present = {place(one) for one in self.model.list(None)}
        would = self.ours("prune", chosen, keep_last=keep, dry_run=True)
        assert {place(one) for one in self.ours("list", None)} == present
        if dry:
            return
        kept = set()
        for thread in chosen:
            for ns in NAMESPACES:
                newest = sorted(self.stored(thread, ns))[-keep:]
                asked = {(thread, ns, one) for one in newest}
                while asked:
                    kept |= asked
                    asked = set().union(*(self.needed(*one) for one in asked)) - kept
        assert self.ours("prune", chosen, keep_last=keep) == would
        gone = {one for one in present if one[0] in chosen and one not in kept}
        assert would.checkpoints == len(gone)
        self.forget(gone.__contains__)
        for thread in chosen:
            for by_ns in self.model.storage.get(thread, {}).values():
                for which, (made, metadata, parent) in by_ns.items():
                    by_ns[which] = (made, metadata, parent if parent in by_ns else None)
        for thread, ns, which in list(self.model.writes):  # writes of missing checkpoints older than the newest
            stored = self.stored(thread, ns)
            if thread in chosen and which not in stored and which < max(stored, default=""):
                del self.model.writes[thread, ns, which]

    def needed(self, thread: str, ns: str, which: str) -> set[Any]:
        """The ancestors that `get_delta_channel_history` needs for the channels without a value."""
        found = self.model.get_tuple(config(thread, ns, which))
        assert found is not None
        needed: set[Any] = set()
        for channel in set(found.checkpoint["channel_versions"]) - set(found.checkpoint["channel_values"]):
            chain, holders = [], []
            parent = self.stored(thread, ns)[which][2]
            while parent in self.stored(thread, ns):
                tup = self.model.get_tuple(config(thread, ns, parent))
                assert tup is not None
                chain.append((thread, ns, parent))
                if any(write[1] == channel for write in tup.pending_writes or ()):
                    holders.append(len(chain))
                if channel in tup.checkpoint["channel_values"]:
                    if holders:
                        holders.append(len(chain))
                    break
                parent = self.stored(thread, ns)[parent][2]
            needed |= set(chain[: max(holders, default=0)])
        return needed

    @rule(source=threads, into=threads)
    def copy_thread(self, source: str, into: str) -> None:
        self.ours("copy_thread", source, into)
        held = [key for key in self.model.writes if key[0] == source and self.model.writes[key]]
        if source == into or not (any(self.model.storage.get(source, {}).values()) or held):
            return
        self.model.delete_thread(into)
        self.copied = {one for one in self.copied if one[0] != into}
        for ns, stored in self.model.storage.get(source, {}).items():
            self.model.storage[into][ns].update(stored)
            self.copied |= {(into, ns, which) for which in stored}
        for (thread, *rest), stored in list(self.model.writes.items()):
            if thread == source:
                self.model.writes[(into, *rest)].update(stored)
        for (thread, *rest), stored in list(self.model.blobs.items()):
            if thread == source:
                self.model.blobs[(into, *rest)] = stored

    def forget(self, gone: Any) -> None:
        """Remove checkpoints and their writes from the model."""
        for thread, by_ns in list(self.model.storage.items()):
            for ns, stored in by_ns.items():
                for which in [one for one in stored if gone((thread, ns, one))]:
                    del stored[which]
                    self.model.writes.pop((thread, ns, which), None)

    # -- always

    @rule()
    def describe(self) -> None:
        described = self.ours("threads")
        present = {thread for thread, by_ns in self.model.storage.items() if any(by_ns.values())}
        present |= {key[0] for key, stored in self.model.writes.items() if stored}
        assert {info.thread_id for info in described} == present
        for info in described:
            key = self.uniform.saver._context.keyspace.keys(info.thread_id).data_key
            data: dict[bytes, bytes] = self.target.raw.hgetall(key)
            raw.check_counters(data)
            raw.check_chunks(self.target, info.thread_id)
            assert info.bytes == raw.counters(data)["bytes"]
            assert info.checkpoints == sum(field[:1] == b"c" for field in data)
            assert info.checkpoints == sum(map(len, self.model.storage.get(info.thread_id, {}).values()))
            counted = sum(len(found) for key, found in self.model.writes.items() if key[0] == info.thread_id)
            assert raw.counters(data)["writes"] == counted


def place(one: Any) -> tuple[str, str, str]:
    found = one.config["configurable"]
    return found["thread_id"], found["checkpoint_ns"], found["checkpoint_id"]


def looped(stored: dict[str, Any]) -> bool:
    """True if the parents of a namespace form a cycle, which random ids may do."""
    for which in stored:
        seen, now = set(), which
        while now in stored:
            if now in seen:
                return True
            seen.add(now)
            now = stored[now][2]
    return False


def normal(answer: Any) -> Any:
    """Answers as plain data, as InMemorySaver returns the config that it was given."""
    if hasattr(answer, "_asdict"):
        return {**answer._asdict(), "config": place(answer)}
    return answer


EXAMPLES = {"redis": 50, "redis62": 15, "cluster": 20, "fakeredis": 10, "valkey": 15}
"""Histories per server. The slow suite runs twelve times as many."""


@pytest.mark.random
@pytest.mark.by_turns
@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("server", targets(*EXAMPLES))
@pytest.mark.parametrize("times", [1, pytest.param(12, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_random_operations_match_the_model(server: str, flavour: str, times: int) -> None:
    machine = type("Machine", (Machine,), {"target": Target(server, flavour, url_of(server), "m")})
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    count = times * EXAMPLES[server]
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=count, stateful_step_count=50, deadline=None, suppress_health_check=checks),
    )
