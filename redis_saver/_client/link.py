"""Exchanges with a server, without I/O: NOSCRIPT, moving slots, confirmation by replicas, SCAN.

The methods of `Link` are generators that yield `Send`, `Together` and `Sleep`. `SyncDriver` and `Batcher` carry these
out. A request may be sent twice, because all our scripts are idempotent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from redis_saver._client import clients
from redis_saver._common.display import error_text, shown
from redis_saver._common.logs import ThrottledLog
from redis_saver._common.names import REPLICATED
from redis_saver._engine.counting import Traffic
from redis_saver._engine.requests import (
    KEYS_PER_SCAN,
    Argument,
    Batch,
    Call,
    Command,
    Request,
    Scan,
    Sleep,
    T,
    ToEach,
    key_of,
)  # fmt: skip
from redis_saver._engine.scripts import Script
from redis_saver.errors import ClusterMoving, RedisSaverError, ReplicationTimeout, from_reply

_LOG = ThrottledLog("redis_saver.client")
_MIN_PAUSE, _MAX_PAUSE = 0.01, 0.5
"""Approximate first and maximum pause between two tries, in seconds."""
_jitter = random.Random()  # noqa: S311 - no secret; apart from `random`, which a graph may seed
ALONE: Any = object()
"""Reply of `Link.together` for a request to send again alone."""


class Send(NamedTuple):
    """Send a command with the client, which may retry it. The reply is the command's; an error reply is raised."""

    command: Sequence[Argument]
    key: bytes | None = None
    """Key whose slot selects the node in a cluster."""
    node: Any = None
    """The node, for a command without a key."""


class Together(NamedTuple):
    """Send commands on one connection to one node. The reply is a list of replies, with error replies among them."""

    commands: Sequence[Sequence[Argument]]
    node: Any = None
    """A node of the client's cluster, a `Newcomer`, or None for a single server."""


class Newcomer(NamedTuple):
    """A node that the cluster's client does not know yet."""

    host: str
    port: int


Exchange: TypeAlias = Generator[Send | Together | Sleep, Any, T]


class Rules(NamedTuple):
    """Settings for sending requests."""

    traffic: Traffic
    cluster_timeout: float
    guard: Sequence[Argument] | None
    """Command that only a primary accepts. None without `require_primary`."""
    min_replicas: int
    replica_timeout: float
    repeats_late: bool


class Link:
    """A client and the exchanges with its server."""

    def __init__(self, client: Any, rules: Rules) -> None:
        """Use a client under these rules."""
        self.client: Any = client
        self.rules = rules
        self.traffic: Traffic = rules.traffic
        self.is_cluster: bool = clients.is_cluster(client)
        self._scans_cluster = self.is_cluster
        """True until a server was found to refuse CLUSTERSCAN."""
        self.is_plain: bool = rules.guard is None and not rules.min_replicas
        """True without `require_primary` and `min_replicas`, so that requests are sent unchanged."""
        # redis-py's client-side cache knows commands by their upper-case names, and raises "Cannot create cache key"
        # for those without `keys=`. In lower case they bypass it, and see what other processes have just written.
        self.spelling: Callable[[str], str] = str.lower if clients.replies_are_cached(client) else str
        """Returns the name of a command as the client takes it."""
        self.exceptions: Any = clients.exceptions_of(client)
        self.options: dict[str, Any] = {"NEVER_DECODE": True} if client.get_encoder().decode_responses else {}
        module = self.exceptions
        # LookupError, RuntimeError: another call changes the client's tables of nodes and slots.
        self.passing: tuple[type[Exception], ...] = (
            OSError, module.ConnectionError, module.TimeoutError,
            module.ClusterError, module.AskError, module.TryAgainError,
            AttributeError, LookupError, RuntimeError,
            *clients.existing(module, ("RedisClusterException", "ValkeyClusterException")),
        )  # fmt: skip
        """Errors that clients raise while slots move. Some are `final`."""
        final = ("AuthenticationError", "AuthorizationError", "MaxConnectionsError", "ExternalAuthProviderError")
        self.final: tuple[type[Exception], ...] = (RedisSaverError, *clients.existing(module, final))
        """Errors that a retry would raise again: no connection is free, or a password is wrong."""
        self.failures: tuple[type[Exception], ...] = clients.failures_of(client)
        """Errors that the client raises if the server or the network fails."""
        self._retried_alone: tuple[type[Exception], ...] = (module.ResponseError,)
        if self.is_cluster:
            self.failures += self.passing
            self._retried_alone += self.failures

    def node_of(self, key: bytes | None) -> Any:
        """Return the node that serves a key, or None for a single server, and while the client reloads its slots."""
        if not self.is_cluster:
            return None
        try:
            return self.client.get_node_from_key(key)
        except self.failures:
            return None

    def travels(self, request: Request) -> bool:
        """True if a request may share a pipeline with those of other callers."""
        if isinstance(request, Call):
            return not self._waits(request)
        return isinstance(request, Command) and self.rules.guard is None

    def answer(self, request: Request) -> Exchange[Any]:
        """Answer any request except `Sleep`."""
        if isinstance(request, Scan):
            return self._scan(request)
        if isinstance(request, ToEach):
            return self._to_each(request)
        request = self.on_primary(request)
        if isinstance(request, Batch):
            return self._batch(request.requests)
        assert isinstance(request, Call | Command)  # noqa: S101 - for the type checker
        return self.alone(request)

    def alone(self, request: Call | Command) -> Exchange[Any]:
        """Answer a request that shares no pipeline."""
        if isinstance(request, Call) and self._waits(request):
            return self._repeated(lambda: self._replicated(request), request.keys[0])
        if isinstance(request, Command) and self.rules.guard is not None:
            return self._at(None, request.arguments)
        if not self.is_cluster:
            return self._by_client(request)
        return self._repeated(lambda: self._by_client(request), key_of(request))

    def refused(self, request: Call | Command, error: Exception) -> Exchange[Any]:
        """Handle an error reply: send the script's text if the server lacks it.

        Raises:
            RedisSaverError: One of our scripts replied with an error, or one of our keys has another type.
            Exception: Any other error reply.
        """
        if isinstance(request, Call) and isinstance(error, self.exceptions.NoScriptError):
            self.traffic.script_loads += 1
            try:
                return (yield from self._to_slot(request, as_command_with_source(request)))
            except self.exceptions.ResponseError as second:
                error = second
        if (ours := self._ours(request, error)) is not None:
            raise ours from error
        raise error

    def together(
        self, node: Any, requests: Sequence[Call | Command], *, neighbours: bool = False
    ) -> Exchange[list[Any]]:
        """Send requests to one node in a pipeline.

        If the requests are `neighbours`, of several callers, no caller gets another's error.

        Returns:
            For each request its reply, its final error, or `ALONE`.
        """
        replies: list[Any] = [None] * len(requests)
        positions: Sequence[int] = range(len(requests))
        for with_source in (False, True):
            commands = _commands([requests[position] for position in positions], with_source)
            try:
                answers = yield Together(commands, node)
            except self.failures as failure:
                if not self.rules.repeats_late and isinstance(failure, self.exceptions.TimeoutError):
                    raise  # also to callers of this turn whose requests were not sent yet
                clients.check_knows_hello(failure)
                _LOG.info("a pipeline of %d calls failed; each is sent again: %s", len(commands), error_text(failure))
                answers = [failure] * len(commands)
            unknown = []
            for position, reply in zip(positions, answers, strict=True):
                replies[position] = reply
                if not isinstance(reply, Exception):
                    continue
                if isinstance(reply, self.exceptions.NoScriptError) and not with_source:
                    unknown.append(position)
                elif (ours := self._ours(requests[position], reply)) is not None:
                    ours.__cause__ = reply
                    replies[position] = ours
                elif neighbours or isinstance(reply, self._retried_alone):
                    self.traffic.retries += 1
                    replies[position] = ALONE
            if not unknown:
                break
            positions = unknown
            self.traffic.script_loads += len({requests[at].script for at in unknown})  # type: ignore[union-attr]
        return replies

    def check_version(self) -> Exchange[None]:
        """Ask each server for its version.

        Raises:
            UnsupportedServer: It is too old.
        """

        def check() -> Exchange[None]:
            for name in clients.nodes(self.client):
                clients.check_version((yield from self._at(name, ("HELLO",))))

        return self._repeated(check, None)

    def on_primary(self, request: T) -> T:
        """With `require_primary`, replace scripts by versions that a replica refuses (READONLY)."""
        if self.rules.guard is None:
            return request
        if isinstance(request, Call) and request.script.on_primary is not None:
            return request._replace(script=request.script.on_primary)
        if isinstance(request, Batch):
            return Batch([self.on_primary(each) for each in request.requests])  # type: ignore[return-value]
        return request

    # -- one request

    def _waits(self, call: Call) -> bool:
        return self.rules.min_replicas > 0 and call.script.is_confirmed

    def _repeated(self, attempt: Callable[[], Exchange[T]], key: bytes | None) -> Exchange[T]:
        """Return the result of an attempt. In a cluster, whose slots may move, retry it for a while."""
        if not self.is_cluster:
            return (yield from attempt())
        tries = Tries(self, key)
        while True:
            try:
                return (yield from attempt())
            except self.passing as error:
                pause = tries.pause(error)
            self.traffic.retries += 1
            yield Sleep(pause)

    def _by_client(self, request: Call | Command) -> Exchange[Any]:
        try:
            return (yield from self._to_slot(request, as_command(request)))
        except self.exceptions.ResponseError as error:
            return (yield from self.refused(request, error))

    def _to_slot(self, request: Call | Command, command: Sequence[Argument]) -> Exchange[Any]:
        """Send a command. If its slot is moving and redis-py fails, ask the nodes directly."""
        key = key_of(request)
        try:
            return (yield Send(command, key))
        except (self.exceptions.ClusterError, AttributeError) as error:
            # redis-py does not know the node that an ASK names, or alternates between two nodes.
            if not self.is_cluster or type(error) not in (self.exceptions.ClusterError, AttributeError):
                raise
        self.traffic.retries += 1
        return (yield from self.ask(key, command))

    def ask(self, key: bytes, command: Sequence[Argument]) -> Exchange[Any]:
        """Send a command to the node that has a key's slot, and then to the node that the slot is moving to.

        A node replies ASK for a key that has moved while its slot has not. The other node needs ASKING first, on the
        same connection (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/). redis-py's asyncio
        client (8.1) may send the two on different connections. With an even number of connections it then alternates
        between the nodes until it raises a ClusterError. Both of its clients raise an AttributeError for a node without
        slots, because they do not know it.
        """
        (reply,) = yield Together((command,), self.client.get_node_from_key(key))
        if isinstance(reply, self.exceptions.MovedError):  # the slot has moved meanwhile
            return (yield Send(command, key))
        if isinstance(reply, self.exceptions.AskError):
            target = self.client.get_node(reply.host, reply.port) or Newcomer(reply.host, reply.port)
            _, reply = yield Together((("ASKING",), command), target)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _ours(self, request: Call | Command, error: Exception) -> Exception | None:
        return from_reply(error, request.keys, self.exceptions) if request.keys else None

    # -- a batch

    def _batch(self, requests: Sequence[Call | Command]) -> Exchange[list[Any]]:
        """Answer requests in one round trip per node.

        Raises:
            Exception: The first error among the replies.
        """
        replies: list[Any] = [ALONE] * len(requests)
        nodes: dict[str | None, tuple[Any, list[int]]] = {}
        for position, request in enumerate(requests):
            node = self.node_of(key_of(request))
            if node is not None or not self.is_cluster:
                nodes.setdefault(name_of(node), (node, []))[1].append(position)
        for node, positions in nodes.values():
            answers = yield from self.together(node, [requests[position] for position in positions])
            for position, reply in zip(positions, answers, strict=True):
                replies[position] = reply
        for position, reply in enumerate(replies):
            if isinstance(reply, Exception):
                raise reply
            if reply is ALONE:
                replies[position] = yield from self.alone(requests[position])
        return replies

    # -- replicas and primaries

    def _replicated(self, call: Call) -> Exchange[Any]:
        """Run a script, and wait until replicas have its writes.

        WAIT waits for the last write of its own connection (https://redis.io/docs/latest/commands/wait/), so it
        follows the script in one pipeline. A script that is sent again may write nothing, so a SET comes between the
        two. Replicas get writes in order. A server that became a replica replies to WAIT with an error.

        Raises:
            ReplicationTimeout: Too few replicas confirmed in time, or the server became a replica itself.
        """
        beside = call.keys[0].rpartition(b"}:")[0] + b"}:" + REPLICATED
        wait = ("WAIT", self.rules.min_replicas, round(self.rules.replica_timeout * 1000))
        confirmation: Sequence[Sequence[Argument]] = (("SET", beside, "", "PX", 1), wait)
        node = self.node_of(call.keys[0])
        try:
            if self.is_cluster and node is None:  # the client is reloading its slots
                yield from self._by_client(call)
                node = self.client.get_node_from_key(call.keys[0])
            replies = yield Together((as_command(call), *confirmation), node)
            if isinstance(replies[0], self.exceptions.NoScriptError):
                self.traffic.script_loads += 1
                replies = yield Together((as_command_with_source(call), *confirmation), node)
            return self._confirmed(call, replies)
        except self.passing:
            if self.is_cluster:
                yield from self._by_client(call)  # so that the client learns where the slot is
            raise

    def _confirmed(self, call: Call, replies: Sequence[Any]) -> Any:
        reply, written, confirmed = replies
        if isinstance(reply, Exception):
            if (ours := self._ours(call, reply)) is not None:
                raise ours from reply
            raise reply
        failed = next((each for each in (written, confirmed) if isinstance(each, Exception)), None)
        if failed is not None and not isinstance(failed, self.exceptions.ResponseError):
            raise failed
        if failed is None and confirmed >= self.rules.min_replicas:
            return reply
        why = f"only {confirmed} replicas confirmed it in {self.rules.replica_timeout:g} seconds (replica_timeout)"
        if failed:
            why = f"the server replied {error_text(failed)}"
        raise ReplicationTimeout(
            f"{shown(call.keys[0].decode('utf-8', 'backslashreplace'))} was written on the primary, but {why}. "
            f"min_replicas={self.rules.min_replicas} requires more. It is safe to call again. "
            "Check that the replicas are connected, or lower min_replicas"
        ) from failed

    def _at(self, name: str | None, command: Sequence[Argument]) -> Exchange[Any]:
        """Send a command to a node by its name, or to a single server (None). With `require_primary`, refuse a replica.

        Raises:
            Exception: The server is a replica (READONLY), or the command failed.
        """
        if self.rules.guard is None:
            return (yield Send(command, node=clients.node_named(self.client, name)))
        guarded, reply = yield Together((self.rules.guard, command))
        # NOREPLICAS, MISCONF: a primary that lacks replicas or cannot save may still be read.
        if isinstance(guarded, Exception) and not str(guarded).startswith(("NOREPLICAS", "MISCONF")):
            raise guarded
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _to_each(self, request: ToEach) -> Exchange[dict[str, Any]]:
        replies = {}
        for name in clients.nodes(self.client):
            replies[name or ""] = yield from self._at(name, request.arguments)
        return replies

    # -- SCAN

    def _scan(self, request: Scan) -> Exchange[tuple[Any, list[bytes]]]:
        """Return one page of a scan.

        CLUSTERSCAN (Valkey 9.1) follows moving slots: its position is a cursor of the whole cluster. Other servers get
        SCAN: a position has the names of the remaining nodes, and the cursor of the first one.
        """
        position = request.position
        options = ("MATCH", request.pattern, "COUNT", KEYS_PER_SCAN)

        def page() -> Exchange[tuple[Any, list[bytes]]]:
            nonlocal position
            if self._scans_cluster and not isinstance(position, tuple):
                cursor = position or b"0"
                name = self.client.get_node_from_key(cursor).name
                try:
                    after, keys = yield from self._at(name, ("CLUSTERSCAN", cursor, *options))
                except self.exceptions.ResponseError as error:
                    if position or isinstance(error, self.passing):
                        raise
                    self._scans_cluster = False  # it lacks the command, or the user's rights do
                else:
                    return (None if after == b"0" else after), keys
            nodes, cursor = position or (clients.nodes(self.client), 0)
            position = None  # after a failure the nodes may have changed, so the next attempt starts over
            cursor, keys = yield from self._at(nodes[0], ("SCAN", cursor, *options))
            if isinstance(cursor, Mapping):  # a cluster's client returns a cursor per node
                (cursor,) = cursor.values()
            left = nodes if int(cursor) else nodes[1:]
            return ((left, int(cursor)) if left else None), keys

        return self._repeated(page, None)


class Tries:
    """Tries of one request to a cluster whose slots move, or whose primary is replaced.

    Meanwhile clients raise errors of three kinds: replies of nodes (MOVED, ASK, TRYAGAIN, CLUSTERDOWN), failures of
    connections, and internal errors. (When redis-py 8.1 reloads the slots it closes connections in use. A call then
    raises `AttributeError: 'NoneType' object has no attribute 'writelines'`.)
    """

    def __init__(self, link: Link, key: bytes | None) -> None:
        """Start the clock. A request without a key is for all nodes."""
        self._link, self._key = link, key
        self._began, self._count = time.monotonic(), 0

    def pause(self, error: Exception) -> float:
        """Return the seconds to wait after an error, before the next try.

        Unless the timeout is 0, there is always a second try. The client reloads the nodes only after an error, so the
        first try may have spent all the time on dead nodes.

        Raises:
            ClusterMoving: The time is up.
            Exception: The error itself, if a retry would not help.
        """
        if isinstance(error, self._link.final):
            raise error
        self._count += 1
        pause: float = min(_MAX_PAUSE, _MIN_PAUSE * 2 ** min(self._count - 1, 10)) * _jitter.uniform(0.5, 1.0)
        elapsed, timeout = time.monotonic() - self._began, self._link.rules.cluster_timeout
        if elapsed + pause > timeout and (self._count > 1 or not timeout):
            raise self._failed(elapsed, error) from error
        if self._count == 1:
            _LOG.info("a cluster's slots move or a node is lost; requests are retried: %s", error_text(error))
        return pause

    def _failed(self, seconds: float, error: Exception) -> ClusterMoving:
        what = "some nodes of the cluster were missing"
        if self._key is not None:
            slot = self._link.client.keyslot(self._key)
            what = f"slot {slot} of the cluster (key {shown(self._key)}) was not served"
        why = "Its slots move, or a primary is lost and no replica has taken over"
        if isinstance(error, (self._link.exceptions.AskError, self._link.exceptions.TryAgainError)):
            why = "The slot is open: if nobody is moving it any more, close it with redis-cli --cluster fix"
        return ClusterMoving(
            f"{what} for {seconds:.1f} seconds, in {self._count} tries. The last error was {error_text(error)}. {why}. "
            f"It is safe to call again. Retries end after cluster_timeout={self._link.rules.cluster_timeout:g} seconds"
        )


def name_of(node: Any) -> str | None:
    """Return the name of a node, which identifies it: redis-py 5.2 makes new node objects when it reloads the slots."""
    return None if node is None else node.name


def as_command(request: Call | Command) -> Sequence[Argument]:
    """Return the arguments of a request's command. A script is named by its digest."""
    if isinstance(request, Command):
        return request.arguments
    return ("EVALSHA", request.script.sha, len(request.keys), *request.keys, *request.arguments)


def as_command_with_source(call: Call) -> Sequence[Argument]:
    """Return the command for a script with its text, for a server that lost it by SCRIPT FLUSH, restart or failover."""
    return ("EVAL", call.script.text, len(call.keys), *call.keys, *call.arguments)


def _commands(requests: Sequence[Call | Command], with_source: bool) -> list[Sequence[Argument]]:
    """Return requests as commands. With source, the first call of each script has the script's text."""
    if not with_source:
        return [as_command(request) for request in requests]
    sent = set[Script]()
    commands = []
    for request in requests:
        if isinstance(request, Call) and request.script not in sent:
            sent.add(request.script)
            commands.append(as_command_with_source(request))
        else:
            commands.append(as_command(request))
    return commands
