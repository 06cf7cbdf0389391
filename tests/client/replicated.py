"""Real servers with replicas: a primary with sentinels, and a cluster whose slots can move. All timeouts are short."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot
from tests.support.servers import Sentinel, Server, binary, valkey_binary

from bench.servers import redis_of_the_wheel

PROGRAMS = ["redis", *(["valkey"] if valkey_binary() else [])]
"""Server programs for the failover tests."""
_REPLICATION = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
_NODE_TIMEOUT = 1500
"""Milliseconds until a cluster takes a silent node for lost."""


def program_of(name: str) -> str:
    """Path of a server program."""
    found = binary() if name == "redis" else valkey_binary()
    assert found
    return found


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Wait until a condition of the servers holds."""
    end = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):  # the server is starting
            pass
        assert time.monotonic() < end, f"not in {seconds} seconds: {what}"
        time.sleep(0.02)


class Process(Server):
    """A server that can be paused. Its questions share a client, as the waits ask every 20 ms."""

    asking: redis.Redis | None = None

    def start_as(self, *arguments: str) -> None:
        super().start_as(*arguments)
        self.asking = self.client(socket_timeout=5, retry=None)

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, but get no replies."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Send SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ask(self, *command: Any) -> Any:
        """Send a command and return its reply."""
        assert self.asking is not None
        return self.asking.execute_command(*command)

    def info(self, name: str) -> str:
        """Return a field of INFO replication."""
        return str(self.ask("INFO", "replication").get(name, ""))

    def is_replica_in_sync(self) -> bool:
        return self.info("role") == "slave" and self.info("master_link_status") == "up"


class _Sentinel(Sentinel, Process):
    """A sentinel of the primary on a port."""

    def __init__(self, primary: int, program: str) -> None:
        limits = ("down-after-milliseconds us 800", "failover-timeout us 3000", "parallel-syncs us 2")
        monitor = f"monitor us 127.0.0.1 {primary} 2"
        super().__init__(*(f"sentinel {setting}" for setting in (monitor, *limits)), program=program)


class Sentinels:
    """A primary, two replicas, and three sentinels."""

    def __init__(self, program: str, *options: str) -> None:
        path = program_of(program)
        first = Process(*_REPLICATION, *options, program=path)
        replicaof = ("--replicaof", "127.0.0.1", str(first.port))
        self.servers = [first, *(Process(*replicaof, *_REPLICATION, *options, program=path) for _ in range(2))]
        self.sentinels = [_Sentinel(first.port, path) for _ in range(3)]
        self.wait_ready()

    @property
    def url(self) -> str:
        return "redis+sentinel://" + ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels) + "/us"

    def primary(self) -> Process:
        """The server that all sentinels name as primary."""
        found: set[int] = set()

        def agreed() -> bool:
            found.clear()
            for one in self.sentinels:
                _, port = one.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "us")
                found.add(int(port))
            return len(found) == 1

        until(agreed, "the sentinels name one primary")
        (port,) = found
        return next(one for one in self.servers if one.port == port)

    def replicas(self) -> list[Process]:
        """The servers other than the primary."""
        primary = self.primary()
        return [one for one in self.servers if one is not primary]

    def fail_over(self, *how: str) -> None:
        """Fail over as planned. With COORDINATED (Valkey 9), the primary stops taking writes first."""
        before = self.primary()
        until(lambda: self.sentinels[0].ask("SENTINEL", "FAILOVER", "us", *how) is not None, "a failover can begin")
        self.wait_promoted(before)

    def wait_promoted(self, before: Process) -> Process:
        """Wait until another server is the primary."""
        until(lambda: (now := self.primary()) is not before and now.info("role") == "master", "a promotion")
        return self.primary()

    def wait_ready(self) -> None:
        """Restart the stopped servers, and wait until the sentinels agree and the replicas are in sync."""
        for one in (*self.servers, *self.sentinels):
            if one.is_running:
                one.go_on()
            else:
                one.start()

        def is_ready() -> bool:
            if not all(self._knows_all(one) for one in self.sentinels):
                return False
            primary = self.primary()
            others = [one for one in self.servers if one is not primary]
            for one in others:
                if one.info("role") == "master":
                    one.ask("REPLICAOF", "127.0.0.1", primary.port)  # faster than the sentinels
            return primary.info("role") == "master" and all(
                one.is_replica_in_sync() and one.info("master_port") == str(primary.port) for one in others
            )

        until(is_ready, "the sentinels and replicas are there", 60)

    @staticmethod
    def _knows_all(sentinel: Process) -> bool:
        assert sentinel.asking is not None
        state = sentinel.asking.sentinel_masters()["us"]
        return (
            state["num-other-sentinels"] == 2
            and state["num-slaves"] == 2
            and not (state["is_sdown"] or state["is_odown"] or "failover_in_progress" in state["flags"])
        )

    def stop(self) -> None:
        for one in (*self.sentinels, *self.servers):
            one.stop()


class ReplicatedCluster:
    """Three primaries with a replica each. Nodes can be added."""

    def __init__(self, program: str, *options: str) -> None:
        self._program, self._options = program_of(program), options
        self.nodes = [self._node() for _ in range(6)]
        bounds = [0, 5461, 10923, 16384]
        for position, node in enumerate(self.nodes[:3]):
            node.ask("CLUSTER", "ADDSLOTSRANGE", bounds[position], bounds[position + 1] - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", position + 1)
        for node in self.nodes[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port)
        for primary, replica in zip(self.nodes[:3], self.nodes[3:], strict=True):
            name = self.name_of(primary)
            until(lambda replica=replica, name=name: replica.ask("CLUSTER", "REPLICATE", name) is not None, "a replica")
        self.wait_ready()

    def _node(self) -> Process:
        return Process(
            "--cluster-enabled", "yes", "--cluster-node-timeout", str(_NODE_TIMEOUT), "--cluster-replica-validity-factor", "0",
            "--cluster-migration-barrier", "99", "--cluster-allow-replica-migration", "no", *_REPLICATION, *self._options, program=self._program,
        )  # fmt: skip

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @staticmethod
    def name_of(node: Process) -> str:
        """Return the node's id in the cluster."""
        return str(node.ask("CLUSTER", "MYID").decode())

    def _seen_by(self, node: Process) -> dict[int, list[str]]:
        """Fields of CLUSTER NODES by port, as a node reports them."""
        lines = [line.split() for line in node.ask("CLUSTER", "NODES").decode().splitlines()]
        return {int(line[1].partition("@")[0].rpartition(":")[2]): line for line in lines}

    def running(self) -> list[Process]:
        return [node for node in self.nodes if node.is_running]

    def primaries(self) -> list[Process]:
        """The primaries that have slots."""
        return [one for one in self.running() if one.info("role") == "master" and self.slots_of(one)]

    def slots_of(self, node: Process) -> list[str]:
        """Ranges of a node's slots, such as 0-5460, and marks of open slots."""
        return self._seen_by(node)[node.port][8:]

    def replica_of(self, primary: Process) -> Process:
        """A replica of a primary."""
        name, found = self.name_of(primary), list[Process]()

        def is_there() -> bool:
            seen = self._seen_by(primary)
            found[:] = [one for one in self.running() if seen[one.port][3] == name]
            return bool(found)

        until(is_there, "a replica")
        return found[0]

    def primary_of(self, slot: int) -> Process:
        """The node that has a slot. During an atomic migration, there may be none for a moment."""
        found: list[Process] = []

        def is_there() -> bool:
            for one in self.running():
                if one.info("role") == "master":
                    for range_ in self.slots_of(one):
                        first, _, last = range_.partition("-")
                        if range_[0] != "[" and int(first) <= slot <= int(last or first):
                            found.append(one)
                            return True
            return False

        until(is_there, f"somebody has slot {slot}")
        return found[0]

    # -- slots

    def other_than(self, slot: int) -> Process:
        """A primary that does not have a slot."""
        holder = self.primary_of(slot)
        return next(one for one in self.primaries() if one is not holder)

    def open_slot(self, slot: int, target: Process) -> Process:
        """Begin to move a slot. Return its current node."""
        source = self.primary_of(slot)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self.name_of(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self.name_of(target))
        return source

    def move_keys(self, slot: int, source: Process, target: Process, most: int = 1000) -> int:
        """Move some keys of an open slot. Return their number."""
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, most)
        if keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "REPLACE", "KEYS", *keys)
        return len(keys)

    def close_slot(self, slot: int, target: Process) -> None:
        """Announce the new node of a slot to all primaries, beginning with that node."""
        name = self.name_of(target)
        for node in (target, *(one for one in self.running() if one is not target and one.info("role") == "master")):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", name)

    def move_slot(self, slot: int, target: Process) -> None:
        """Move a slot with all its keys."""
        source = self.open_slot(slot, target)
        while self.move_keys(slot, source, target):
            pass
        self.close_slot(slot, target)

    @contextmanager
    def opened(self, slot: int, target: Process) -> Iterator[Process]:
        """Open a slot in a block, without moving keys. Yield its current node."""
        source = self.open_slot(slot, target)
        try:
            yield source
        finally:
            while self.move_keys(slot, source, target):
                pass
            self.close_slot(slot, target)

    def reshard(self, source: Process, target: Process, slots: int) -> None:
        """Move slots with redis-cli, as operators do."""
        cli = shutil.which("redis-cli") or str(Path(redis_of_the_wheel() or "").with_name("redis-cli"))
        moved = subprocess.run(
            [cli, "--cluster", "reshard", f"127.0.0.1:{target.port}", "--cluster-from", self.name_of(source), "--cluster-to",
             self.name_of(target), "--cluster-slots", str(slots), "--cluster-yes"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert moved.returncode == 0, moved.stdout[-2000:] + moved.stderr[-2000:]

    def migrate_atomically(self, first: int, last: int, target: Process) -> bool:
        """Move slots of one node by CLUSTER MIGRATESLOTS. Return False if the server lacks it (before Valkey 9)."""
        source = self.primary_of(first)
        try:
            source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", self.name_of(target))
        except redis.ResponseError as error:
            if "unknown" in str(error).lower():
                return False
            raise
        until(lambda: self.primary_of(first) is target and self.primary_of(last) is target, "slots are moved")
        return True

    # -- nodes

    def fail_over(self, primary: Process, *how: str) -> None:
        """Run CLUSTER FAILOVER on a replica, optionally with FORCE."""
        replica = self.replica_of(primary)
        replica.ask("CLUSTER", "FAILOVER", *how)
        until(lambda: replica.info("role") == "master", "a failover")

    def wait_promoted(self, replica: Process) -> None:
        """Wait until a replica has taken over."""
        until(lambda: replica.info("role") == "master" and bool(self.slots_of(replica)), "a promotion")

    def add_node(self) -> Process:
        """Add a node without slots that all others know."""
        added = self._node()
        self.running()[0].ask("CLUSTER", "MEET", "127.0.0.1", added.port)
        others = self.running()
        self.nodes.append(added)
        until(lambda: all(added.port in self._seen_by(one) for one in others), "the new node is known")
        until(lambda: b"cluster_state:ok" in added.ask("CLUSTER", "INFO") or _is_ok(added), "the new node is ready")
        return added

    def remove_node(self, node: Process) -> None:
        """Remove a node without slots."""
        assert not self.slots_of(node)
        name = self.name_of(node)
        self.nodes.remove(node)
        node.kill()
        for one in self.running():
            one.ask("CLUSTER", "FORGET", name)

    def wait_ready(self) -> None:
        """Restart stopped nodes, close open slots, and wait until all slots are served and replicated."""
        for one in self.nodes:
            if one.is_running:
                one.go_on()
            else:
                one.start()
        until(self._is_ready, "the cluster is whole", 60)

    def _is_ready(self) -> bool:
        replicas = 0
        for one in self.nodes:
            if not _is_ok(one) or len(self._seen_by(one)) != len(self.nodes):
                return False
            if one.info("role") == "slave":  # (Valkey's replicas list the open slots of their primaries)
                replicas += 1
                if not one.is_replica_in_sync():
                    return False
                continue
            for range_ in self.slots_of(one):
                if range_[0] == "[":
                    self._close(one, int(range_[1:].partition("-")[0]))
                    return False
        return replicas >= 3

    def _close(self, node: Process, slot: int) -> None:
        """Move the remaining keys of an open slot to its target."""
        holder = self.primary_of(slot)
        mark = next(mark for mark in self.slots_of(node) if mark.startswith(f"[{slot}-"))
        names = {self.name_of(one): one for one in self.nodes}
        other = names[mark.strip("[]").partition("-")[2].lstrip("<>-")]
        source, target = (holder, other) if holder is node else (holder, node)
        while self.move_keys(slot, source, target):
            pass
        self.close_slot(slot, target)

    def stop(self) -> None:
        for one in self.nodes:
            one.stop()


def _is_ok(node: Process) -> bool:
    info = node.ask("CLUSTER", "INFO")
    state = info if isinstance(info, dict) else dict(part.split(":") for part in info.decode().split())
    return bool(state["cluster_state"] == "ok" and int(state["cluster_slots_ok"]) == 16384)


def slot_of(key: bytes) -> int:
    """The slot of a key."""
    return int(key_slot(key))
