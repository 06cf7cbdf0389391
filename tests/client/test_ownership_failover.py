"""A failover that loses the last writes may lose who took a thread: what holds then, and what holds with `min_replicas`."""

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


def test_a_lost_take_gives_the_thread_back_to_who_had_it(pair: tuple[Process, Process]) -> None:
    """Nothing of the one who took it is left either, so the history is one chain; but it is the older owner's."""
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
        with promoted.own("thread", on_busy="take") as third:  # what is taken from now on is greater
            assert third["configurable"]["thread_owner"] > second["configurable"]["thread_owner"]


def test_with_replicas_to_wait_for_nobody_takes_a_thread_that_a_failover_gives_back(
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
            with pytest.raises(NotOwner):  # the server that is to be replaced refuses the older owner: no two go on
                put(old, first, 2)
            last = put(promoted, first, 3)
        assert ids(promoted.list(config())) == [last, kept]
