"""`threads`, `writes`, `channel_history` and `latest_values`, compared with `list` and the raw keys."""

from __future__ import annotations

import itertools
import operator
import random
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any

import pytest
from tests.support.acl import acl_rule
from tests.support.factories import chain, checkpoint, config, ids, put
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import ERROR, INTERRUPT, CheckpointTuple
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import TASKS
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from tests.support.raw import all_links
from tests.support.seeds import seed
from tests.support.servers import Server
from typing_extensions import TypedDict
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Meanwhile, noted

from redis_saver import RedisSaver, ThreadDamaged, TieredSaver, VersionInfo, WriteInfo
from redis_saver._checkpoint import auditing
from redis_saver._checkpoint import scripts
from redis_saver._engine.requests import Batch, Call
from redis_saver._storage import chunks as chunked, codec
from redis_saver._storage.framing import unpack

pytestmark = pytest.mark.also_on(cluster="async", valkey="sync")
OTHER_LUA = pytest.mark.also_on(cluster="async", valkey="sync", fakeredis="async")

HOSTILE = ["", "{a}", "a\0b", "\1", "*?[x]", "line\nbreak", "\x1b[31m", "snö", "a:b", "%7B"]
NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


# -- which threads


async def some_threads(uniform: Uniform) -> None:
    """Threads of every kind, with hostile names."""
    for number, name in enumerate([*HOSTILE, *(f"plain-{number}" for number in range(20))]):
        made = checkpoint({"n": "x" * (100 * number)}, checkpoint_id=f"{number:04}")
        made["ts"] = (NOON + timedelta(minutes=number)).isoformat()
        where = await uniform.put(config(name), made, {}, {"n": "1"})
        pending = [(("n", 1),), ((INTERRUPT, 2),), ((ERROR, "no"),), ((INTERRUPT, 2), (ERROR, "no")), ()][number % 5]
        await uniform.put_writes(where, list(pending), "task\0")
        if number % 3 == 0:  # neither writes before the newest checkpoint nor those in a subgraph count
            await put(uniform, where, {"n": number}, checkpoint_id=f"{number:04}-b", versions={"n": "2"})
        inner = await put(uniform, config(name, "sub"), {}, checkpoint_id=f"{number:04}-c")
        await uniform.put_writes(inner, [(INTERRUPT, 1), (ERROR, "no")], "inner")
        if number % 4 == 1:
            await uniform.set_thread_ttl(name, timedelta(minutes=number + 1))
        if number % 7 == 2:
            await uniform.pin(name)


def state_of(found: list[CheckpointTuple]) -> set[str]:
    """Return the state by the newest root checkpoint that `list` returns."""
    root = [one for one in found if not one.config["configurable"]["checkpoint_ns"]]
    states = {INTERRUPT: "interrupted", ERROR: "failed"}
    return {states[channel] for _, channel, _ in root[0].pending_writes if channel in states} or {"active"}


FILTERS: dict[str, list[Any]] = {
    "state": [None, "active", "interrupted", "failed"],
    "updated_after": [None, NOON + timedelta(minutes=9)],
    "updated_before": [None, NOON + timedelta(minutes=20)],
    "min_bytes": [0, 1500],
    "expires_within": [None, "15m", timedelta()],
    "pinned": [None, True, False],
    "dirty": [None, True, False],
    "thread_prefix": ["", "plain-1"],
}


@pytest.mark.random
async def test_filters_of_threads_match_a_filter_in_python(saver: Uniform) -> None:
    await some_threads(saver)
    everything = {one.thread_id: one for one in await saver.threads()}
    states = {name: state_of(await saver.list(config(name, None))) for name in everything}
    assert len(everything) == 30 and set().union(*states.values()) == {"active", "interrupted", "failed"}
    for name, one in everything.items():
        said = {word for word in ("interrupted", "failed") if getattr(one, word)} or {"active"}
        assert said == states[name]

    def is_wanted(name: str, asked: dict[str, Any]) -> bool:
        one = everything[name]
        within = {"15m": timedelta(minutes=15)}.get(asked["expires_within"], asked["expires_within"])
        return (
            (asked["state"] is None or asked["state"] in states[name])
            and (asked["updated_after"] is None or one.updated_at > asked["updated_after"])
            and (asked["updated_before"] is None or one.updated_at < asked["updated_before"])
            and (one.bytes >= asked["min_bytes"] and not asked["dirty"])
            and (within is None or (one.ttl is not None and one.ttl <= within))
            and (asked["pinned"] in (None, one.pinned) and name.startswith(asked["thread_prefix"]))
        )

    cases = [dict(zip(FILTERS, given)) for given in itertools.product(*FILTERS.values())]
    alone = [{**cases[0], name: value} for name, values in FILTERS.items() for value in values]
    for asked in [*alone, *random.Random(seed()).sample(cases, 25)]:
        found = [one.thread_id for one in await saver.threads(**asked)]
        assert set(found) == {name for name in everything if is_wanted(name, asked)}, (seed(), asked)
    assert {one.thread_id for one in await saver.threads(pinned=True)} != set()


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("threads", {"state": "waiting"}, "'active', 'interrupted', 'failed' or 'orphaned'"),
    ("threads", {"updated_after": datetime(2026, 1, 1)}, "a datetime with a tzinfo"),
    ("threads", {"updated_before": "2026"}, "updated_before='2026'"),
    ("threads", {"min_bytes": -1}, "min_bytes=-1"),
    ("threads", {"min_bytes": True}, "min_bytes=True"),
    ("threads", {"expires_within": "soon"}, "expires_within='soon'"),
    ("threads", {"expires_within": timedelta(-1)}, "not negative"),
    ("threads", {"pinned": 1}, "pinned=1"),
    ("threads", {"dirty": "yes"}, "dirty='yes'"),
    ("threads", {"thread_prefix": b"x"}, "thread_prefix=b'x'"),
    ("threads", {"states": "failed"}, "unexpected keyword argument 'states'"),
    ("latest_values", {}, "either thread_ids"),
    ("latest_values", {"thread_ids": ["a"], "thread_prefix": ""}, "either thread_ids"),
    ("latest_values", {"thread_ids": "a"}, "pass a list of thread_ids"),
    ("latest_values", {"thread_prefix": b"a"}, "write a str"),
    ("latest_values", {"thread_ids": [b"a"]}, "thread_id=b'a'"),
]


@pytest.mark.parametrize(("method", "asked", "said"), WRONG, ids=str)
def test_wrong_arguments_raise_at_the_call(method: str, asked: dict[str, Any], said: str) -> None:
    channel = ("n",) if method == "latest_values" else ()
    with RedisSaver.from_conn_string("redis://127.0.0.1:1") as saver:
        with pytest.raises((TypeError, ValueError), match=said):
            getattr(saver, method)(*channel, **asked)


@pytest.mark.parametrize("target_name", ["redis"])
async def test_the_server_sends_only_matching_threads(saver: Uniform) -> None:
    """For a match, it sends only the part of the header with the time."""
    for name in range(20):
        await put(saver, config(f"t{name}"), {f"channel-{number}": number for number in range(100)})
    await saver.put_writes(config("t7", "", (await saver.get_thread("t7")).checkpoint_id), [(ERROR, "x")], "task")

    asked = noted(saver.saver)
    assert [one.thread_id for one in await saver.threads(state="failed")] == ["t7"]
    answers = [answer for request, reply in asked if isinstance(request, Batch) for answer in reply]
    assert len(answers) == 20 and [one for one in answers if one is not None] and answers.count(None) == 19
    assert len(repr(answers)) < 500


async def test_a_thread_deleted_during_the_scan_is_left_out(target: Target) -> None:
    saver, other = target.uniform(), target.uniform()
    for name in "abc":
        await chain(saver, name, 1)

    def before(request: Any) -> Any:
        is_look = isinstance(request, Batch) and request.requests[0].script is scripts.THREAD_INFO
        return (lambda: other.delete_thread("b")) if is_look else None

    if target.flavour == "sync":
        other = Uniform(target.blocking())
    Meanwhile(saver.saver, before)
    assert {one.thread_id for one in await saver.threads(state="active")} == {"a", "c"}


# -- who wrote what


class State(TypedDict):
    log: Annotated[list[str], operator.add]
    """Every node writes it."""
    text: str
    sent: Annotated[list[int], operator.add]


def inner_graph() -> Any:
    return StateGraph(State).add_node("inner", lambda _: {"log": ["inner"]}).add_edge(START, "inner").compile()


def big(_: Any) -> Any:
    return {"log": [f"big {number} " + "x" * 100 for number in range(60)], "text": "t" * 5000}


def waits(_: Any) -> Any:
    return {"log": [interrupt("go on?")]}


async def run_graph(saver: Uniform, thread: str, **options: Any) -> Any:
    """A graph with a subgraph, parallel tasks, Sends, an interrupt, a resume, an update, a fork, and a second turn."""
    builder = StateGraph(State)
    builder.add_node("big", big).add_node("worker", lambda _: {"sent": [1]}).add_node("waits", waits)
    builder.add_node("sub", inner_graph())
    builder.add_edge(START, "big").add_conditional_edges("big", lambda _: [Send("worker", 1), Send("worker", 2), "sub"])
    builder.add_edge("sub", "waits")
    graph = builder.compile(checkpointer=saver.saver)
    where = config(thread)
    await graph.ainvoke({"log": ["first"]}, where, **options)
    await graph.ainvoke(Command(resume="yes"), where, **options)
    found = await saver.list(config(thread))
    await graph.aupdate_state(found[min(2, len(found) - 1)].config, {"log": ["fork"]}, as_node="big")
    await graph.ainvoke(None, where, **options)
    return graph


def children_of(found: list[CheckpointTuple], parent: CheckpointTuple) -> list[CheckpointTuple]:
    return [one for one in found if one.parent_config == parent.config]


def seen_nodes(before: CheckpointTuple | None, after: list[CheckpointTuple]) -> set[str]:
    old = before.checkpoint["versions_seen"] if before else {}
    ran = {node for one in after for node, seen in one.checkpoint["versions_seen"].items() if seen != old.get(node)}
    return {node for node in ran if not node.startswith("__") or node == START}


def sent_nodes(before: CheckpointTuple | None, after: list[CheckpointTuple]) -> set[str]:
    """Nodes of the `Send`s that ran, if the checkpoint has their pending writes."""
    if before is None or not any(one.metadata["source"] == "loop" for one in after):
        return set()
    sends = before.checkpoint["channel_values"].get(TASKS) or []
    return {one.node for one in sends} if any(channel == "sent" for _, channel, _ in before.pending_writes) else set()


def by_hand(saver: Uniform, found: list[CheckpointTuple]) -> Counter[tuple[Any, ...]]:
    """Writes derived from `list`: (channel, ns, began from, step, source, task, size, applied in)."""
    told = list[tuple[Any, ...]]()
    for one in found:
        address, children = one.config["configurable"], children_of(found, one)
        versions = one.checkpoint["channel_versions"]

        def having(channel: str, versions: Any = versions, children: Any = children) -> list[CheckpointTuple]:
            return [c for c in children if c.checkpoint["channel_versions"].get(channel) != versions.get(channel)]

        for task, channel, value in one.pending_writes:
            applied = having(channel)
            told.append(
                (
                    channel, address["checkpoint_ns"], address["checkpoint_id"], one.metadata["step"] + 1,
                    applied[-1].metadata["source"] if applied else None, task,
                    size_of(saver, stored_size(saver, value)), tuple(c.checkpoint["id"] for c in applied),
                )
            )  # fmt: skip
        written = {channel for _, channel, _ in one.pending_writes}
        for child in children:
            values, old = child.checkpoint["channel_values"], one.checkpoint["channel_values"]
            for channel, version in child.checkpoint["channel_versions"].items():
                is_emptied = channel in old and channel not in values
                if version != versions.get(channel) and channel not in written and not is_emptied:
                    told.append(inferred(child, channel, address["checkpoint_id"]))
        if one.parent_config is None and one.metadata["step"] == -1:
            told += [inferred(one, channel, None) for channel in versions]
    return Counter(told)


def inferred(child: CheckpointTuple, channel: str, began: str | None) -> tuple[Any, ...]:
    ns, about = child.config["configurable"]["checkpoint_ns"], child.metadata
    return channel, ns, began, about["step"], about["source"], None, None, (child.checkpoint["id"],)


def stored_size(saver: Uniform, value: Any) -> int:
    """Return the size of a pending write's value, or of the root and the chunks of a long one."""
    chunks = dict[bytes, bytes]()
    (record,), _ = codec.encode_writes(saver.saver._context, [("channel", value)], "", chunks)
    return len(unpack(record)[4]) + sum(map(len, chunks.values()))


def size_of(saver: Uniform, size: int | None) -> int | None:
    """Return the size of a write to compare. With encryption it is that of the sealed record, so return None."""
    return size if saver.saver._context.data_keys is None else None


def as_row(saver: Uniform, one: WriteInfo) -> tuple[Any, ...]:
    return (
        one.channel, one.checkpoint_ns, one.checkpoint_id, one.step, one.source, one.task_id, size_of(saver, one.bytes),
        one.applied_in,
    )  # fmt: skip


@OTHER_LUA
@pytest.mark.parametrize("options", [{}, {"durability": "exit"}], ids=["each step", "exit"])
async def test_writes_of_a_graph_match_list(saver: Uniform, options: Any) -> None:
    await run_graph(saver, "t", **options)
    found, told = await saver.list(config("t", None)), await saver.writes("t")
    assert Counter(as_row(saver, one) for one in told) == by_hand(saver, found)
    for ns in {one.checkpoint_ns for one in told}:
        assert await saver.writes("t", checkpoint_ns=ns) == [one for one in told if one.checkpoint_ns == ns]
    by_id = {one.checkpoint["id"]: one for one in found}
    for one in told:
        having = [by_id[name] for name in one.applied_in]
        is_of_caller = one.task_id == "00000000-0000-0000-0000-000000000000"
        if one.node is None and not is_of_caller:
            before = by_id.get(one.checkpoint_id) if one.checkpoint_id else None
            assert set(one.candidates) == seen_nodes(before, having) | sent_nodes(before, having)
        else:
            assert one.candidates == () and one.inferred == (one.task_id is None)
    nodes = {(one.channel, one.node) for one in told}
    if not options:
        known = {("log", node) for node in ("big", "inner", "sub", "waits")} | {("text", "big"), ("sent", "worker")}
        assert known <= nodes and ("sent", None) not in nodes
        assert {one.node for one in told if one.channel == INTERRUPT} == {"waits"}
    assert all(one.node is None for one in told if one.inferred) and any(one.inferred for one in told)


async def test_no_write_is_inferred_from_a_pruned_parent(saver: Uniform) -> None:
    configs = await chain(saver, "t", 5)
    await saver.put_writes(configs[-1], [("n", 1)], "task")
    await saver.prune(["t"], keep_last=2)
    told = await saver.writes("t")
    assert [(one.channel, one.task_id, one.step) for one in told] == [("n", "task", 5), ("n", None, 4)]
    assert [one.applied_in for one in told] == [(), (ids(await saver.list(config("t")))[0],)]
    history = await saver.channel_history("t", "n")
    assert [(one.step, len(one.writes)) for one in history] == [(4, 1), (3, 0)]


@OTHER_LUA
async def test_hostile_names_are_just_names(saver: Uniform) -> None:
    for name in [*HOSTILE[1:], "%"]:
        await put(saver, config(name + "other", name), {name: "other"})
        first = await put(saver, config(name, name), {name: 1}, versions={name: "1"}, checkpoint_id="1" + name)
        await saver.put_writes(first, [(name, 2), (name + "x", 3)], name, f"~__pregel_pull, {name}")
        await put(saver, first, {name: 2, "m": 1}, versions={name: "2", "m": "1"}, checkpoint_id="2" + name)
        told = await saver.writes(name)
        assert [(one.channel, one.node, one.task_id, one.applied_in) for one in told] == [
            (name, name, name, ("2" + name,)),
            (name + "x", name, name, ()),
            ("m", None, None, ("2" + name,)),
        ]
        assert {(one.checkpoint_ns, one.checkpoint_id) for one in told} == {(name, "1" + name)}
        (one, other) = await saver.channel_history(name, name, checkpoint_ns=name)
        assert (one.version, one.checkpoint_id, other.version) == ("2", "2" + name, "1")
        assert await saver.channel_history(name, name) == [] == await saver.channel_history(name, "m" + name)
        (value,) = await saver.latest_values(name, thread_ids=[name], checkpoint_ns=name)
        assert (value.thread_id, value.value) == (name, 2)
        found = await saver.latest_values(name, thread_prefix=name, checkpoint_ns=name)
        assert {one.thread_id: one.value for one in found} == {name: 2, name + "other": "other"}


@pytest.mark.random
async def test_random_branches_over_many_pages_match_list(saver: Uniform) -> None:
    """120 checkpoints in two namespaces, with random parents: near, distant, missing, or with a greater id."""
    chance = random.Random(seed())
    made: dict[str, list[str]] = {"": [], "sub": []}
    for number in range(120):
        ns = chance.choice(["", "sub"])
        parent = chance.choice([*made[ns][-3:], *made[ns][:1], None, "0000", "9999"]) if number else None
        made[ns].append(f"{number + 1000}")
        versions = {"n": f"{chance.randrange(4)}", "m": f"{number}"}
        values, which = dict.fromkeys(versions, number), made[ns][-1]
        where = await put(saver, config("t", ns, parent), values, checkpoint_id=which, versions=versions)
        if chance.random() < 0.5:
            await saver.put_writes(where, [(chance.choice("nm"), number), ("other", 1)], f"task{number}")
    found, told = await saver.list(config("t", None)), await saver.writes("t")
    assert Counter(as_row(saver, one) for one in told) == by_hand(saver, found), seed()
    versions = {}
    for one in found:
        address = one.config["configurable"]
        parent = one.parent_config and by_address(found).get(key_of(one.parent_config))
        before = parent.checkpoint["channel_versions"].get("n") if parent else None
        version = one.checkpoint["channel_versions"].get("n")
        if version != before and not address["checkpoint_ns"]:
            versions[one.checkpoint["id"]] = version
    history = await saver.channel_history("t", "n")
    assert {one.checkpoint_id: one.version for one in history} == versions and len(history) == len(versions), seed()
    assert len(found) == 120


def key_of(where: Any) -> tuple[str, str]:
    return where["configurable"]["checkpoint_ns"], where["configurable"]["checkpoint_id"]


def by_address(found: list[CheckpointTuple]) -> dict[tuple[str, str], CheckpointTuple]:
    return {key_of(one.config): one for one in found}


# -- the versions of a channel


async def test_channel_history_matches_the_raw_keys(saver: Uniform, target: Target) -> None:
    """Sizes are those in Redis, shared bytes included. Each version comes once, with its writers."""
    await run_graph(saver, "t")
    found = by_address(await saver.list(config("t", None)))
    fields = target.raw.hgetall(saver.saver._context.keyspace.keys("t").data_key)
    links, shares = all_links(fields), 0

    def pieces(place: tuple[str, str], channel: str) -> tuple[int, dict[bytes, int]]:
        entries = [entry[1:] for entry in links[place].entries if entry[1:].startswith(channel.encode() + b"\0")]
        stored = fields.get(b"b" + place[0].encode() + b"\0" + entries[0], b"") if entries else b""
        below = chunked.reachable([stored], fields) if stored else set()
        return len(stored), {one: len(fields[one]) for one in below}

    for channel in ("log", "text", "sent", "branch:to:big", "nothing"):
        expected = dict[str, tuple[Any, ...]]()
        for place, one in found.items():
            parent = found.get(key_of(one.parent_config)) if one.parent_config else None
            version = one.checkpoint["channel_versions"].get(channel)
            if place[0] or version in (None, parent and parent.checkpoint["channel_versions"].get(channel)):
                continue
            size, mine = pieces(place, channel)
            theirs = pieces(key_of(parent.config), channel)[1] if parent else {}
            shared = sum(amount for field, amount in mine.items() if field in theirs)
            shares += shared
            created = datetime.fromisoformat(one.checkpoint["ts"])
            total = size + sum(mine.values())
            expected[place[1]] = (version, created, one.metadata["step"], one.metadata["source"], total, shared)
        told: list[VersionInfo] = await saver.channel_history("t", channel)
        found_rows = [(one.version, one.created_at, one.step, one.source, one.bytes, one.shared_bytes) for one in told]
        assert dict(zip([one.checkpoint_id for one in told], found_rows)) == expected and len(told) == len(expected)
        writes = [one for one in await saver.writes("t", checkpoint_ns="") if one.channel == channel]
        for one in told:
            assert set(one.writes) == {write for write in writes if one.checkpoint_id in write.applied_in}
            assert one.new_bytes == one.bytes - one.shared_bytes
    assert shares > 5000, "a long list shares chunks"


async def test_a_delta_channel_has_versions_without_values(saver: Uniform) -> None:
    class Growing(TypedDict):
        log: Annotated[list[str], DeltaChannel(lambda state, writes: state + sum(writes, []), snapshot_frequency=3)]

    builder = StateGraph(Growing).add_node("node", lambda _: {"log": ["x" * 50]}).add_edge(START, "node")
    graph = builder.compile(checkpointer=saver.saver)
    for _ in range(4):
        await graph.ainvoke({"log": ["hi"]}, config("t"))
    found, told = await saver.list(config("t")), await saver.channel_history("t", "log")
    has_value = {one.checkpoint["id"]: "log" in one.checkpoint["channel_values"] for one in found}
    assert told and all((one.bytes > 0) == has_value[one.checkpoint_id] for one in told)
    assert {bool(one.bytes) for one in told} == {True, False}
    assert any(write.node == "node" and write.bytes for one in told for write in one.writes)


@pytest.mark.parametrize("method", ["writes", "channel_history"])
async def test_a_thread_deleted_between_pages_ends_the_result(target: Target, method: str) -> None:
    saver, arguments = target.uniform(), ("t", "n")[: 2 if method == "channel_history" else 1]
    await chain(saver, "t", 60)
    other, pages = Uniform(target.blocking()), list[Any]()

    def before(request: Any) -> Any:
        if isinstance(request, Call) and request.script is scripts.AUDIT:
            pages.append(request)
        return (lambda: other.delete_thread("t")) if len(pages) == 2 else None

    Meanwhile(saver.saver, before)
    told = await getattr(saver, method)(*arguments)
    assert len(told) == (49 if method == "writes" else 19) and len(pages) == 2, (
        "a checkpoint whose parent follows on the next page is no beginning"
    )
    assert await getattr(saver, method)(*arguments) == []


@pytest.mark.plain("a value that is emptied in its version cannot be told from damage")
async def test_an_emptied_value_is_not_reported_as_damage(saver: Uniform) -> None:
    """A later checkpoint records that a stored version has no value."""
    first = await put(saver, config("t"), {"n": 1}, versions={"n": "1"}, checkpoint_id="1")
    await put(saver, first, {}, versions={"n": "1"}, checkpoint_id="2")
    assert [one.checkpoint["channel_values"] for one in await saver.list(config("t"))] == [{}, {}]
    assert [(one.checkpoint_id, one.bytes) for one in await saver.channel_history("t", "n")] == [("1", 0)]
    assert await saver.latest_values("n", thread_ids=["t"]) == []


@pytest.mark.parametrize("query", ["writes", "channel_history", "latest_values"])
async def test_a_missing_chunk_or_header_raises_thread_damaged(saver: Uniform, target: Target, query: str) -> None:
    await put(saver, config("t"), {"n": [f"{number} " + "x" * 100 for number in range(100)]}, metadata={"step": -1})
    data = saver.saver._context.keyspace.keys("t").data_key
    leaf = next(field for field in target.raw.hkeys(data) if field[:1] == b"p")
    header = next(field for field in target.raw.hkeys(data) if field[:1] == b"c")
    asked: dict[str, Any] = {
        "writes": lambda: saver.writes("t"),
        "channel_history": lambda: saver.channel_history("t", "n"),
        "latest_values": lambda: saver.latest_values("n", thread_ids=["t"]),
    }
    assert len(await asked[query]()) == 1
    target.raw.hdel(data, header if query == "writes" else leaf)
    with pytest.raises(ThreadDamaged, match="gone"):
        await asked[query]()


async def test_queries_work_with_an_encrypting_saver(saver: Uniform, target: Target) -> None:
    other = target.uniform(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef"))
    await run_graph(other, "t")
    assert [one.step for one in await other.channel_history("t", "text")][-1] == 1
    assert all(one.bytes > 0 for one in await other.writes("t") if one.task_id)
    assert [one.value for one in await other.latest_values("text", thread_prefix="")] == ["t" * 5000]
    found = await other.list(config("t"))
    assert (await other.diff("t", found[1].checkpoint["id"], found[1].checkpoint["id"])).channels == ()


# -- one channel of many threads


async def test_latest_values_reads_one_channel_of_many_threads(saver: Uniform) -> None:
    expected = dict[str, Any]()
    for number in range(25):
        name = f"t{number:02}"
        for step in range(2):
            values = {"n": [f"{number} {step}"] * number, "other": "x" * 3000}
            if number % 5 == 0 and step:
                values.pop("n")  # emptied
            await put(saver, config(name), values, versions={"n": f"{step}", "other": "1"}, checkpoint_id=f"{step}")
        await put(saver, config(name, "sub"), {"n": "inner"}, checkpoint_id="9")
        if number % 5:
            expected[name] = values["n"]
    found = await saver.latest_values("n", thread_prefix="t")
    assert {one.thread_id: one.value for one in found} == expected and len(found) == len(expected)
    assert {(one.checkpoint_id, one.version, one.updated_at.hour) for one in found} == {("1", "1", 10)}
    wanted = ["t07", "nobody", "t03", "t05", "t24", "t07"]
    assert [one.thread_id for one in await saver.latest_values("n", thread_ids=wanted)] == ["t07", "t03", "t24"]
    assert {one.value for one in await saver.latest_values("n", thread_prefix="", checkpoint_ns="sub")} == {"inner"}
    assert await saver.latest_values("nothing", thread_prefix="") == [] == await saver.latest_values("n", thread_ids=[])


@pytest.mark.parametrize("target_name", ["redis"])
async def test_long_values_come_in_small_batches_and_other_channels_are_not_read(
    saver: Uniform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "BYTES_PER_BATCH", 40_000)
    for number in range(12):
        large = [f"{number} {position} " + "x" * 1000 for position in range(10)]
        await put(saver, config(f"t{number}"), {"n": large, "other": "y" * 10_000})
    asked = noted(saver.saver)
    wanted = [f"t{number}" for number in range(12)]
    found = await saver.latest_values("n", thread_ids=[*wanted, *(f"none{number}" for number in range(8))])
    assert [one.value[0] for one in found] == [f"{number} 0 " + "x" * 1000 for number in range(12)]
    sizes = [len(request.requests) for request, _ in asked]
    assert sizes[:2] == [10, 3] and sum(sizes) == 20, "pages get smaller after the first long values"
    assert "yyyy" not in repr([reply for _, reply in asked])
    assert await saver.latest_values("n", thread_ids=[f"none{number}" for number in range(500)]) == []
    assert max(len(request.requests) for request, _ in asked) == 200, "pages grow while threads have no value"


# -- costs and rights


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_page_takes_one_round_trip_and_sends_no_value(saver: Uniform) -> None:
    where = config("t")
    for number in range(60):
        values = {"n": ["secret " * 20] * (100 + number), "short": "secret"}
        versions = {"n": f"{number}", "short": "1"}
        where = await put(saver, where, values, versions=versions, metadata={"step": number})
        await saver.put_writes(where, [("n", "secret " * 1000)], "task")
    asked = noted(saver.saver)
    assert len(await saver.writes("t")) == 60
    assert len(asked) == 2
    assert len(await saver.channel_history("t", "n")) == 60
    assert len(asked) == 2 + 4, "three full pages, and an empty last one"
    assert "secret" not in repr([reply for _, reply in asked])
    assert (auditing.CHECKPOINTS_PER_PAGE, auditing.VERSIONS_PER_PAGE) == (50, 20)


OF_MEMORY = set("hlen hscan zrange zrevrange zrangebyscore zrevrangebyscore mget strlen getrange".split())
"""Commands that items and caches need. The inspector's pages of memory are tested with this rule."""


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_a_read_only_user_can_query(flavour: str) -> None:
    """The rule is that of docs/queries.md, and each command in it is needed."""
    server, rule = Server(), acl_rule("reader", "docs/queries.md").split()
    writer = Target("redis", flavour, f"redis://127.0.0.1:{server.port}", "langgraph")
    await run_graph(writer.uniform(), "t")
    server.client().execute_command(*rule)
    reader = Target("redis", flavour, f"redis://reader:secret@127.0.0.1:{server.port}", "langgraph")
    saver = reader.uniform()
    with RedisSaver(server.client()).own("t", by="worker 1"):
        server.client().config_resetstat()
        (found_thread,) = await saver.threads(state="interrupted", min_bytes=1)
        assert found_thread.owner and found_thread.owner.by == "worker 1"
    with RedisSaver.from_conn_string(reader.url) as hot:
        assert len(list(TieredSaver(hot, InMemorySaver()).threads())) == 1
    assert await saver.writes("t") and await saver.channel_history("t", "log")
    assert await saver.latest_values("log", thread_prefix="") and not await saver.writes("nobody")
    found = await saver.list(config("t"))
    assert (await saver.diff("t", found[-1].checkpoint["id"])).channels and await saver.get_tuple(found[0].config)
    used = {name.removeprefix("cmdstat_").split("|")[0] for name in server.client().info("commandstats")}
    granted = {word[1:] for word in rule if word.startswith("+")} - OF_MEMORY
    assert granted <= used, f"granted for nothing: {granted - used}"
    await writer.close()
    await reader.close()
    server.stop()


async def test_a_cycle_of_parents_ends(saver: Uniform) -> None:
    """Two checkpoints that are each other's parent."""
    await put(saver, config("t", "", "2"), {"n": 1}, checkpoint_id="1")
    await put(saver, config("t", "", "1"), {"n": 1}, checkpoint_id="2", versions={"n": "2"})
    assert [one.checkpoint_id for one in await saver.channel_history("t", "n")] == ["2", "1"]
    assert [(one.checkpoint_id, one.applied_in) for one in await saver.writes("t")] == [("1", ("2",))]
