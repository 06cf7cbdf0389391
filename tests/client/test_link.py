"""Exchanges with a server, simulated: the requests of a link after each reply."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from hashlib import sha1
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis.exceptions import AskError, ClusterError, MovedError, NoScriptError, ResponseError, TryAgainError

from redis_saver import KeyConflict, ReplicationTimeout
from redis_saver._client.asking import AT_ONCE, aask_all, ask_all
from redis_saver._client.link import ALONE, Link, Newcomer, Rules, Send, Together
from redis_saver._engine.counting import Traffic
from redis_saver._engine.requests import Ask, Batch, Call, Command, Scan, Sleep
from redis_saver._engine.runner import run
from redis_saver._engine.scripts import Script

A, B = SimpleNamespace(name="a:1"), SimpleNamespace(name="b:2")
CONFIRM = (("SET", b"p:{t}:replicated", "", "PX", 1), ("WAIT", 2, 500))


class Nodes:
    """A cluster of two nodes. Keys that begin with `b` are on the second."""

    def get_encoder(self) -> Any:
        return SimpleNamespace(decode_responses=False)

    def get_primaries(self) -> list[Any]:
        return [A, B]

    def get_node_from_key(self, key: bytes) -> Any:
        return B if key.startswith(b"b") else A

    def get_node(self, host: str = "", port: int = 0, node_name: str = "") -> Any:
        return {"a:1": A, "b:2": B}.get(node_name or f"{host}:{port}")

    def keyslot(self, key: bytes) -> int:
        return 7


def link(client: Any = None, guard: Sequence[str] | None = None, replicas: int = 0, repeats_late: bool = True) -> Link:
    return Link(redis.Redis() if client is None else client, Rules(Traffic(), 20.0, guard, replicas, 0.5, repeats_late))


def script(text: str, **rules: bool) -> Script:
    return Script(text, text, sha1(text.encode(), usedforsecurity=False).hexdigest(), None, **rules)


ONE, TWO = script("return 1"), script("return 2")
GET = Call(ONE, [b"p:{t}:index"], ["x"])
BY_DIGEST, BY_TEXT = ("EVALSHA", ONE.sha, 1, b"p:{t}:index", "x"), ("EVAL", ONE.text, 1, b"p:{t}:index", "x")


def played(exchange: Generator[Any, Any, Any], *answers: Any) -> tuple[Any, list[Any]]:
    """Answer each request with the next reply, or raise it. Return the result, and the requests except pauses."""
    seen, left = list[Any](), list(answers)

    def answer(verb: Any) -> Any:
        if isinstance(verb, Sleep):
            return None
        seen.append(verb)
        reply = left.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    result = run(exchange, answer)
    assert not left
    return result, seen


def test_an_unknown_script_is_sent_with_its_text() -> None:
    at = link()
    assert played(at.answer(GET), "reply") == ("reply", [Send(BY_DIGEST, GET.keys[0])])
    sent = [Send(BY_DIGEST, GET.keys[0]), Send(BY_TEXT, GET.keys[0])]
    assert played(at.answer(GET), NoScriptError(), "reply") == ("reply", sent)
    assert played(at.refused(GET, NoScriptError()), "reply") == ("reply", sent[1:])
    assert at.traffic.script_loads == 2
    with pytest.raises(KeyConflict):
        played(at.answer(GET), NoScriptError(), ResponseError("WRONGTYPE Operation against a key"))
    with pytest.raises(ResponseError, match="unknown command"):
        played(at.answer(Command(("NONE", b"k"))), ResponseError("unknown command"))


def test_a_lost_connection_is_retried_on_a_cluster_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "redis_saver.client")
    lost = redis.ConnectionError("lost")
    with pytest.raises(redis.ConnectionError):
        played(link().answer(GET), lost)
    at = link(Nodes())
    assert played(at.answer(GET), lost, TryAgainError(), "reply")[0] == "reply"
    assert at.traffic.retries == 2
    assert [record.args for record in caplog.records] == [("ConnectionError: lost",)]
    with pytest.raises(redis.AuthenticationError):
        played(at.answer(GET), redis.AuthenticationError("wrong password"))


@pytest.mark.parametrize("error", [ClusterError("TTL exhausted"), AttributeError("no attribute 'redis_connection'")])
def test_requests_go_to_the_nodes_if_the_client_gives_up(error: Exception) -> None:
    at, key = link(Nodes()), GET.keys[0]
    by_client, by_node = Send(BY_DIGEST, key), Together((BY_DIGEST,), A)
    assert played(at.answer(GET), error, ["reply"]) == ("reply", [by_client, by_node])
    assert played(at.answer(GET), error, [MovedError("7 b:2")], "reply")[1] == [by_client, by_node, by_client]
    for to, node in (("b:2", B), ("c:3", Newcomer("c", 3))):
        seen = played(at.answer(GET), error, [AskError(f"7 {to}")], [b"OK", "reply"])[1]
        assert seen == [by_client, by_node, Together((("ASKING",), BY_DIGEST), node)]


def test_a_pipeline_repeats_unknown_scripts_with_each_text_once() -> None:
    at = link()
    calls = [GET, Call(TWO, [b"k"], []), GET._replace(arguments=["y"]), Call(TWO, [b"l"], [])]
    unknown = NoScriptError()
    replies, seen = played(at.together(None, calls, neighbours=True), [unknown, 2, unknown, unknown], [1, 3, 4])
    assert (replies, at.traffic.script_loads) == ([1, 2, 3, 4], 2)
    assert [command[0] for command in seen[1].commands] == ["EVAL", "EVALSHA", "EVAL"]


def test_an_error_in_a_pipeline_reaches_only_its_caller() -> None:
    at, calls, refused = link(), [GET, Call(TWO, [b"k"], [])], ResponseError("ERR")
    ours = ResponseError("WRONGTYPE Operation against a key")
    replies, _ = played(at.together(None, calls, neighbours=True), [ours, refused])
    assert isinstance(replies[0], KeyConflict) and replies[0].__cause__ is ours and replies[1] is ALONE
    lost = redis.ConnectionError("lost")
    assert played(at.together(None, calls, neighbours=True), lost)[0] == [ALONE, ALONE]
    assert played(at.together(None, calls), lost)[0] == [lost, lost]  # all of one caller
    assert played(link(Nodes()).together(A, calls), lost)[0] == [ALONE, ALONE]
    with pytest.raises(redis.TimeoutError):
        played(link(repeats_late=False).together(None, calls, neighbours=True), redis.TimeoutError())


def test_a_batch_is_one_pipeline_per_node() -> None:
    at = link(Nodes())
    batch = Batch([Command(("GET", key)) for key in (b"a1", b"b1", b"a2")])
    replies, seen = played(at.answer(batch), [1, ResponseError("ERR")], [2], 3)
    assert replies == [1, 2, 3]
    assert seen == [
        Together([("GET", b"a1"), ("GET", b"a2")], A),
        Together([("GET", b"b1")], B),
        Send(("GET", b"a2"), b"a2"),
    ]
    with pytest.raises(redis.ConnectionError):
        played(link().answer(batch), redis.ConnectionError("lost"))


def test_a_confirmed_write_waits_on_its_own_connection() -> None:
    at, write = link(replicas=2), Call(script("return 3", is_confirmed=True), GET.keys, [])
    by_digest, by_text = ("EVALSHA", write.script.sha, 1, *write.keys), ("EVAL", write.script.text, 1, *write.keys)
    assert at.travels(GET) and not at.travels(write)
    sent = [Together((by_digest, *CONFIRM)), Together((by_text, *CONFIRM))]
    assert played(at.answer(write), ["reply", True, 2]) == ("reply", sent[:1])
    assert played(at.answer(write), [NoScriptError(), True, 2], ["reply", True, 3]) == ("reply", sent)
    with pytest.raises(ReplicationTimeout, match="only 1 replicas"):
        played(at.answer(write), ["reply", True, 1])
    with pytest.raises(ReplicationTimeout, match="READONLY"):
        played(at.answer(write), ["reply", ResponseError("READONLY You can't write"), 0])
    moving = link(Nodes(), replicas=2)
    answers = [redis.ConnectionError("lost"), "by the client", ["reply", True, 2]]
    result, seen = played(moving.answer(write), *answers)
    assert result == "reply" and [type(verb) for verb in seen] == [Together, Send, Together]


def test_a_guard_precedes_commands_and_scans() -> None:
    guard = ("UNLINK", "p:primary")
    at = link(guard=guard)
    command = ("GET", b"k")
    assert played(at.answer(Command(command)), [0, b"v"]) == (b"v", [Together((guard, command))])
    assert played(at.answer(Command(command)), [ResponseError("NOREPLICAS"), b"v"])[0] == b"v"
    with pytest.raises(ResponseError, match="READONLY"):
        played(at.answer(Command(command)), [ResponseError("READONLY"), b"v"])
    guarded = ONE._replace(on_primary=TWO)
    assert played(at.answer(GET._replace(script=guarded)), 1)[1][0].command[1] == TWO.sha
    assert played(at.answer(Scan(b"*", None)), [0, [b"0", [b"k"]]])[0] == (None, [b"k"])


def test_a_scan_restarts_after_a_failure() -> None:
    at = link(Nodes())
    (position, keys), seen = played(at.answer(Scan(b"*", None)), ResponseError("unknown command"), [{"a:1": 5}, [b"k"]])
    assert (position, keys) == ((["a:1", "b:2"], 5), [b"k"])
    assert [verb.command[0] for verb in seen] == ["CLUSTERSCAN", "SCAN"]
    _, seen = played(at.answer(Scan(b"*", position)), redis.ConnectionError("lost"), [{"a:1": 0}, []])
    assert [verb.command[1] for verb in seen] == [5, 0]


def test_a_scan_of_a_whole_cluster_continues_after_a_failure() -> None:
    at = link(Nodes())
    (position, keys), _ = played(at.answer(Scan(b"*", None)), [b"b-cursor", [b"k"]])
    assert (position, keys) == (b"b-cursor", [b"k"])
    (position, _), seen = played(at.answer(Scan(b"*", position)), redis.ConnectionError("lost"), [b"0", []])
    assert position is None
    assert [(verb.command[:2], verb.node) for verb in seen] == [(("CLUSTERSCAN", b"b-cursor"), B)] * 2
    with pytest.raises(ResponseError, match="cursor"):  # only the first page shows that the server lacks it
        played(at.answer(Scan(b"*", b"b-cursor")), ResponseError("invalid cursor"))


def test_an_interrupted_exchange_is_closed() -> None:
    closed = list[bool]()

    def exchange() -> Generator[Any, Any, None]:
        try:
            yield "request"
        finally:
            closed.append(True)

    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(exchange(), interrupted)
    assert closed == [True]


# -- several questions to the provider of keys at once


NAME = ContextVar("NAME", default="")


def questions(answer: Callable[[int], Any], count: int) -> list[Ask]:
    async def aanswer(number: int) -> Any:
        return await asyncio.to_thread(answer, number)

    return [Ask(answer, aanswer, (number,)) for number in range(count)]


async def answers(flavour: str, asked: list[Ask]) -> list[Any]:
    return await aask_all(asked) if flavour == "async" else ask_all(asked)


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_an_error_answers_its_own_question_alone(flavour: str) -> None:
    def answer(number: int) -> int:
        time.sleep(0.002)
        if number == 3:
            raise ConnectionError("no answer")
        return number

    found = await answers(flavour, questions(answer, 10))
    assert [each for each in found if not isinstance(each, ConnectionError)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert isinstance(found[3], ConnectionError)
    assert await answers(flavour, []) == []


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_a_slow_provider_gets_a_few_questions_at_a_time_in_the_context_of_the_caller(flavour: str) -> None:
    NAME.set("caller")
    now, most, lock = 0, 0, threading.Lock()

    def answer(number: int) -> str:
        nonlocal now, most
        with lock:
            now += 1
            most = max(now, most)
        time.sleep(0.01)
        with lock:
            now -= 1
        return f"{number} {NAME.get()}"

    assert await answers(flavour, questions(answer, 40)) == [f"{number} caller" for number in range(40)]
    assert 1 < most <= AT_ONCE


def test_a_fast_provider_needs_no_threads() -> None:
    asked = ask_all(questions(lambda _: threading.get_ident(), 1000))
    assert asked[0] == threading.get_ident() and len(asked) == 1000


def test_questions_are_answered_while_the_interpreter_ends() -> None:
    program = """
import atexit, time
from redis_saver._client.asking import ask_all
from redis_saver._engine.requests import Ask
answer = lambda number: time.sleep(0.005) or number
atexit.register(lambda: print(ask_all([Ask(answer, None, (number,)) for number in range(5)])))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[0, 1, 2, 3, 4]\n" and not ran.stderr
