"""With encryption, nothing that cold stores is decoded before it is known to be ours."""

from __future__ import annotations

from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any

import aiosqlite
import fakeredis
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import TASKS, _DeltaSnapshot
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from redis_saver import DecodeError, PlainValueRefused, RedisSaver, TieredSaver
from redis_saver._storage.envelopes import HEAD
from redis_saver.encryption import ColdSerializer, Encryption, Keyset
from tests.support.factories import checkpoint, config, put
from tests.support.marking import PLANTED, TRUSTING, Marker, made
from tests.support.tiering import Cold, Tiers, id_of, plain, written
from test_packed_values import Silent
from tests.support.tiering import is_encrypted  # noqa: F401
from tests.support.uniform import KEYS, Uniform
from tests.support.values import KEY

pytestmark = [pytest.mark.plain("all of its savers encrypt"), pytest.mark.also_on()]


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    made.clear()


async def trusting(tiers: Tiers, **options: Any) -> Uniform:
    """Return a saver of another process, whose cold would make each planted object."""
    cold = await tiers.cold()
    cold.serde = JsonPlusSerializer(**TRUSTING)
    return await tiers.uniform(cold=cold, **options)


async def check_reads(uniform: Uniform, where: Any, error: type[Exception], match: str | None = None) -> None:
    """Check that each way to read a thread raises, and makes nothing of what was planted."""
    for read in (
        lambda: uniform.get_tuple(where),
        lambda: uniform.list(config()),
        lambda: uniform.get_delta_channel_history(config=where, channels=["n"]),
        lambda: uniform.copy_thread("thread", "copy"),
    ):
        with pytest.raises(error, match=match):
            await read()
    assert made == []


ROWS = {
    "value": "UPDATE checkpoint_blobs SET type = %s, blob = %s WHERE channel = 'n'",
    "write": "UPDATE checkpoint_writes SET type = %s, blob = %s WHERE task_id = 'task-a'",
    "special write": "UPDATE checkpoint_writes SET type = %s, blob = %s WHERE task_id = 'task-c'",
}


@pytest.mark.by_turns
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("what", PLANTED)
async def test_a_planted_row_is_refused_and_makes_nothing(tiers: Tiers, row: str, what: str) -> None:
    where = (await written(await tiers.uniform()))[-1]
    tiers.sql(ROWS[row], *PLANTED[what])
    tiers.evict()
    uniform = await trusting(tiers)
    await check_reads(uniform, where, PlainValueRefused, "'n'|'__interrupt__'")
    status = await uniform.key_status()
    assert status.plain == (3 if row == "value" else 1) and not status.failed
    assert (await uniform.rotate_keys()).plain == status.plain
    assert made == []
    JsonPlusSerializer(**TRUSTING).loads_typed(PLANTED[what])
    assert made == ["planted"], "the bytes make an object, if they are decoded"


PART = "UPDATE checkpoints SET checkpoint = jsonb_set(checkpoint, '{%s}', %%s::jsonb)"
JSON = PART % "channel_values,n"
HEADS = f"UPDATE checkpoints SET metadata = jsonb_set(metadata, '{{{HEAD}}}', %s::jsonb)"
IN_JSON: dict[str, tuple[str, str, type[DecodeError]]] = {
    "a number for a value": (JSON, "1", PlainValueRefused),
    "a text for a value": (JSON, '"plain"', PlainValueRefused),
    "an object for a value": (JSON, PLANTED["an object as JSON"][1].decode(), PlainValueRefused),
    "no values": (PART % "channel_values", "7", DecodeError),
    "no checkpoint": ("UPDATE checkpoints SET checkpoint = %s", "[]", DecodeError),
    "a number that Python refuses": (JSON, "9" * 5000, DecodeError),
    "lists that nest too deep": (JSON, "[" * 900 + "]" * 900, DecodeError),
    "no versions": (PART % "channel_versions", "7", DecodeError),
    "no metadata": ("UPDATE checkpoints SET metadata = %s", "[]", PlainValueRefused),
    "a head that is no text": (HEADS, "[1]", PlainValueRefused),
    "a head that is no envelope": (HEADS, '"cGxhaW4="', PlainValueRefused),
    "a head that is no base64": (HEADS, '"x"', DecodeError),
}


@pytest.mark.by_turns
@pytest.mark.parametrize("what", IN_JSON)
async def test_json_that_was_changed_is_refused(tiers: Tiers, what: str) -> None:
    where = (await written(await tiers.uniform()))[-1]
    tiers.sql("DELETE FROM checkpoint_blobs WHERE channel = 'n'")
    statement, text, error = IN_JSON[what]
    tiers.sql(statement, text)
    tiers.evict()
    await check_reads(await trusting(tiers), where, error, "thread 'thread'.*delete_thread|not encrypted")


@pytest.mark.parametrize("what", ["an object", "an object in a list"])
async def test_planted_sends_of_an_older_checkpoint_make_nothing(tiers: Tiers, what: str) -> None:
    """Before 2025, LangGraph kept sends as writes of the parent. Its Postgres savers decode them, and encode a list."""
    parent, where = (await written(await tiers.uniform()))[-2:]
    columns = "thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path"
    insert = f"INSERT INTO checkpoint_writes ({columns}) VALUES ('thread', '', %s, 'task', 0, %s, %s, %s, '')"
    tiers.sql(insert, id_of(parent), TASKS, *PLANTED[what])
    tiers.sql(PART % "v", "1")
    tiers.evict()
    await check_reads(await trusting(tiers), where, DecodeError, "thread 'thread'")


TYPES = ["json", "null", "pickle", "bytearray", "msgpack", "bytes+aes", "no+such", "empty", "", "é", r"\377", r"\x"]
"""Types of LangGraph's, others, and two that LangGraph's savers cannot read: no UTF-8, and no `bytea`."""


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("row", ["value", "write"])
async def test_a_changed_type_is_a_decode_error_with_its_place(tiers: Tiers, row: str, kind: str) -> None:
    """Also for a snapshot of a `DeltaChannel`, whose type is msgpack. Keys are counted and rotated in all other rows."""
    where = (await written(await tiers.uniform()))[-1]
    tiers.sql(ROWS[row].replace(", blob = %s", ""), kind)
    tiers.evict()
    uniform = await trusting(tiers)
    await check_reads(uniform, where, DecodeError, "thread 'thread'.* in cold.*delete_thread")
    changes, table = (3, "blobs") if row == "value" else (1, "writes")
    assert (await uniform.key_status()).rows == {"2026-11": 11 - changes}
    for done in (await uniform.key_status(), await uniform.rotate_keys()):
        assert "its type was changed to" in done.failed["cold thread"]
        assert f"checkpoint_{table} in cold" in done.failed["cold thread"]


async def test_a_snapshot_and_its_changed_type(tiers: Tiers) -> None:
    uniform, versions = await tiers.uniform(), {"log": "1"}
    where = await uniform.put(config(), checkpoint({"log": _DeltaSnapshot(["secret"])}, versions), {}, versions)
    tiers.evict()
    found = await (await trusting(tiers)).get_tuple(where)
    assert found.checkpoint["channel_values"] == {"log": _DeltaSnapshot(["secret"])}
    for kind in ("json", "bytes"):
        tiers.sql("UPDATE checkpoint_blobs SET type = %s", kind)
        tiers.evict()
        uniform = await trusting(tiers)
        with pytest.raises(DecodeError, match="'log'"):
            await uniform.get_tuple(where)
        assert (await uniform.key_status()).failed.keys() == {"cold thread"} if kind == "json" else True


# -- savers that store a whole checkpoint by their serializer


def _memory(cold: InMemorySaver, part: str, typed: tuple[str, bytes]) -> None:
    if part in ("checkpoint", "metadata"):
        of_ns = cold.storage["thread"][""]
        for checkpoint_id, (saved, metadata, parent) in of_ns.items():
            of_ns[checkpoint_id] = (typed, metadata, parent) if part == "checkpoint" else (saved, typed, parent)
    elif part == "value":
        cold.blobs.update({key: typed for key in cold.blobs if key[2] == "n"})
    else:
        for writes in cold.writes.values():
            writes.update({key: (*write[:2], typed, write[3]) for key, write in writes.items()})


SQLITE = {
    "checkpoint": "UPDATE checkpoints SET type = ?, checkpoint = ?",
    "write": "UPDATE writes SET type = ?, value = ?",
}


@pytest.mark.by_turns
@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("part", ["checkpoint", "metadata", "value", "write"])
async def test_a_cold_that_stores_whole_checkpoints_makes_nothing(tiers: Tiers, part: str, what: str) -> None:
    """A checkpoint with a planted value, and a planted object in place of a checkpoint."""
    cold = InMemorySaver(serde=JsonPlusSerializer(**TRUSTING))
    where = await written_and_read(tiers, cold)
    _memory(cold, part, PLANTED[what])
    tiers.evict()
    await check_reads(await tiers.uniform(cold=cold), where, DecodeError)


async def written_and_read(tiers: Tiers, cold: Any) -> Any:
    """Write a thread, and check that another process reads it from cold. Return the config of the newest checkpoint."""
    made_by = await tiers.uniform(cold=cold)
    where = (await written(made_by))[-1]
    before = plain(await made_by.get_tuple(where))
    tiers.evict()
    assert plain(await (await tiers.uniform(cold=cold)).get_tuple(where)) == before
    return where


@pytest.mark.parametrize("part", SQLITE)
async def test_sqlite_makes_nothing(tiers: Tiers, part: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        if tiers.native_async:
            cold: Any = AsyncSqliteSaver(
                await stack.enter_async_context(aiosqlite.connect(tmp_path / "cold")), serde=None
            )
        else:
            cold = stack.enter_context(SqliteSaver.from_conn_string(str(tmp_path / "cold")))
        where = await written_and_read(tiers, cold)
        nested = JsonPlusSerializer().dumps_typed(checkpoint({"n": Marker()}, {"n": "1"}))
        made.clear()
        for typed in (nested, *PLANTED.values()):
            statement = SQLITE[part], typed
            await cold.conn.execute(*statement) if tiers.native_async else cold.conn.execute(*statement)
            tiers.evict()
            await check_reads(await tiers.uniform(cold=cold), where, DecodeError)


# -- the guard itself


async def test_other_users_of_cold_keep_its_serializer(tiers: Tiers) -> None:
    cold = await tiers.cold()
    await written(await tiers.uniform(cold=cold))
    assert isinstance(cold.serde, JsonPlusSerializer)
    own = Cold(cold, tiers.native_async)
    where = await put(own, config("own"), {"n": Marker("mine")})
    assert (await own.get_tuple(where)).checkpoint["channel_values"]["n"] == Marker("mine")


async def test_a_cold_that_changes_later_is_followed(tiers: Tiers) -> None:
    """Such as one that connects again: only the serializer differs."""
    cold = InMemorySaver()
    uniform = await tiers.uniform(cold=cold)
    where = (await written(uniform))[-1]
    tiers.evict()
    cold.storage, full = type(cold.storage)(cold.storage.default_factory), cold.storage
    assert await (other := await tiers.uniform(cold=cold)).get_tuple(where) is None
    cold.storage = full
    tiers.evict()
    assert await other.get_tuple(where) and await uniform.get_tuple(where)


class SaysSo(Silent):
    decodes_only_by_serde = True


async def test_a_cold_that_decodes_by_itself_is_refused(tiers: Tiers) -> None:
    """When the saver is made, or, if its class says that it does not, at the first pending writes."""
    with pytest.raises(TypeError, match=r"Silent, and hot has encryption=.*decodes_only_by_serde = True"):
        await tiers.uniform(cold=Silent(InMemorySaver()))
    assert await tiers.uniform(cold=Silent(InMemorySaver()), hot={"encryption": None})
    with pytest.raises(TypeError, match="RedisSaver needs an encryption= of its own"):
        await tiers.uniform(cold=tiers.target.uniform(prefix="cold", encryption=None).saver)
    assert await tiers.uniform(cold=tiers.target.uniform(prefix="cold").saver)
    uniform = await tiers.uniform(cold=SaysSo(inner := InMemorySaver()))
    with pytest.raises(TypeError, match="does not store and read values by its own serde"):
        await uniform.put_writes(config(checkpoint_id="1"), [("n", "secret")], "task")
    assert b"secret" not in repr(inner.writes).encode()
    reader = await tiers.uniform(cold=SaysSo(filled := InMemorySaver()))
    where = filled.put(config(), checkpoint({"n": 1}, {"n": "1"}), {}, {"n": "1"})
    filled.put_writes(where, [("n", 1)], "task")
    with pytest.raises(TypeError, match="does not store and read values by its own serde"):
        await reader.get_tuple(config())


async def test_envelopes_within_an_encrypted_serializer(tiers: Tiers) -> None:
    """As before: cold's cipher encrypts envelopes again, and a row that it refuses is named."""

    async def another(**hot: Any) -> Uniform:
        cold = await tiers.cold()
        cold.serde = EncryptedSerializer.from_pycryptodome_aes(JsonPlusSerializer(**TRUSTING), key=KEY)
        return await tiers.uniform(cold=cold, hot=hot)

    uniform = await another()
    where = (await written(uniform))[-1]
    before = plain(await uniform.get_tuple(where))
    tiers.evict()
    assert plain(await (await another()).get_tuple(where)) == before
    assert tiers.sql("SELECT DISTINCT type FROM checkpoint_blobs") == [("bytes+aes",)]
    rotating = {"encryption": Encryption(Keyset({"new": b"n" * 32, **KEYS}))}
    assert (await (await another(**rotating)).rotate_keys()).rotated == 12
    tiers.evict()
    assert plain(await (await another(**rotating)).get_tuple(where)) == before
    for kind in ("msgpack+aes", "bytes+xyz", "json"):
        tiers.sql("UPDATE checkpoint_blobs SET type = %s WHERE channel = 'n'", kind)
        tiers.evict()
        with pytest.raises(DecodeError, match="thread 'thread'"):
            await (await another(**rotating)).get_tuple(where)


dumped = JsonPlusSerializer().dumps_typed
FROM_COLD: dict[str, Any] = {
    **PLANTED,
    "a checkpoint": dumped(checkpoint({"n": Marker()}, {"n": "1"})),
    "a checkpoint with one in its versions": dumped(checkpoint({}, {"n": Marker()})),
    "metadata": dumped({"source": Marker()}),
    "metadata with a head": dumped({HEAD: Marker()}),
}


@pytest.mark.parametrize("what", FROM_COLD)
def test_a_cold_serializer_makes_nothing(what: str) -> None:
    serde = ColdSerializer(Keyset(KEYS), JsonPlusSerializer(**TRUSTING))
    is_left_out = what == "a checkpoint with one in its versions"
    with nullcontext() if is_left_out else pytest.raises(PlainValueRefused, match="a value of cold"):
        serde.loads_typed(FROM_COLD[what])
    assert made == []


def test_a_subclass_of_a_known_saver_may_be_cold() -> None:
    class Mine(PostgresSaver):
        pass

    hot = RedisSaver(fakeredis.FakeRedis(version=(7,)), encryption=Encryption(Keyset(KEYS)))
    assert TieredSaver(hot, Mine(None))  # type: ignore[arg-type]
