"""A failover that loses the last writes may lose a change of owner. With `min_replicas` it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.factories import checkpoint, config, ids
from replicated import Process, program_of, until

from redis_saver import RedisSaver
from redis_saver.errors import NotOwner, ReplicationTimeout


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Process, Process]]:
    """A primary, and a replica that the tests promote."""
    primary = Process(program=program_of("redis"))
    replica = Process("--repl-diskless-sync-delay", "0", program=program_of("redis"))
    yield primary, replica
    for one in (primary, replica):
        one.stop()


@pytest.fixture
def pair(servers: tuple[Process, Process]) -> tuple[Process, Process]:
    primary, replica = servers
    primary.ask("FLUSHALL")
    replica.ask("REPLICAOF", "127.0.0.1", primary.port)
    until(replica.is_replica_in_sync, "the replica is in sync")
    return servers


def put(saver: RedisSaver, given: Any, value: int) -> str:
    made = checkpoint({"n": value}, {"n": f"{value:032}.{value:020}"})
    where = {**config()["configurable"], **given["configurable"]}
    saver.put({"configurable": where}, made, {"source": "loop", "step": value}, made["channel_versions"])
    return str(made["id"])


def test_a_failover_may_return_a_thread_to_its_old_owner(pair: tuple[Process, Process]) -> None:
    """The new owner's writes are lost too, so the history stays one chain, written by the old owner."""
    primary, replica = pair
    with RedisSaver.from_conn_string(primary.url) as old, RedisSaver.from_conn_string(replica.url) as promoted:
        with old.own("thread", run_id="one") as first:
            kept = put(old, first, 1)
            until(lambda: len(ids(promoted.list(config()))) == 1, "it is replicated")
            replica.ask("REPLICAOF", "NO", "ONE")
            with old.own("thread", on_busy="take") as second:
                put(old, second, 2)  # acknowledged, and lost
                with pytest.raises(NotOwner):
                    put(promoted, second, 3)
                last = put(promoted, first, 4)
        assert ids(promoted.list(config())) == [last, kept]
        with promoted.own("thread", on_busy="take") as third:  # later epochs are greater
            assert third["configurable"]["thread_owner"] > second["configurable"]["thread_owner"]


def test_with_min_replicas_a_take_without_replicas_fails(
    pair: tuple[Process, Process],
) -> None:
    primary, replica = pair
    options: Any = {"min_replicas": 1, "replica_timeout": 2}
    with (
        RedisSaver.from_conn_string(primary.url, **options) as old,
        RedisSaver.from_conn_string(replica.url) as promoted,
    ):
        with old.own("thread") as first:
            kept = put(old, first, 1)
            replica.ask("REPLICAOF", "NO", "ONE")
            with pytest.raises(ReplicationTimeout), old.own("thread", on_busy="take"):
                raise AssertionError("the block must not begin")
            with pytest.raises(NotOwner):  # the old primary refuses the old owner, so only one continues
                put(old, first, 2)
            last = put(promoted, first, 3)
        assert ids(promoted.list(config())) == [last, kept]
