"""Each caller gets its own answer or error in time, whatever happens to other callers and connections.

Many tasks on several event loops and many OS threads share one saver. Each writes its name into all values of its own
conversations, which reveals swapped answers. Meanwhile calls are cancelled or time out, requests and replies are lost
or cut in half, and the server kills connections and pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import redis
from tests.support.factories import checkpoint, config
from tests.support.proxy import Proxy, retrying
from tests.support.seeds import seed, targets, targets_and_slow
from tests.support.tiering import Tiers
from tests.support.uniform import Target
from tests.support.wrappers import Around

from redis_saver import ClusterMoving, KeyConflict
from redis_saver._client.aio import BYTES_PER_PIPELINE, Batcher
from redis_saver._client.link import Link
from redis_saver._common.names import Keyspace

pytestmark = pytest.mark.random

DEADLINE = 60.0
"""Time limit of a call in seconds, for a busy machine. A call that hangs never ends."""
SOCKET_TIMEOUT = 0.3
LOST = (redis.ConnectionError, redis.TimeoutError)


class Wrong(AssertionError):
    """Raised for an answer or an error that belongs to another caller."""


def is_lost(target: Target, error: object) -> bool:
    """True if a client raises this error after losing its connection."""
    if target.name == "fakeredis":
        return False
    if target.name == "cluster":
        return isinstance(error, ClusterMoving)  # all other errors are retried
    return isinstance(error, LOST)


class Asked(NamedTuple):
    """A call: a method, its arguments, and a check of the answer."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    check: Callable[[Any], None]


class Caller:
    """A caller that makes one call at a time. It knows its writes, and so which answers are right."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.own, self.chance, self.conversations = name, chance, 0
        self.begin_anew()

    def begin_anew(self) -> None:
        self.conversations += 1
        self.name = f"{self.own} {self.conversations}"
        self.tried = self.acknowledged = self.tasks = 0
        self.ids: dict[int, str] = {}
        """Ids of the acknowledged checkpoints."""

    # -- writes

    def value(self, number: int) -> list[Any]:
        """Value of a checkpoint. Its length depends on the number, and some are too long to share a pipeline."""
        length = (0, 10, 3_000, 20, BYTES_PER_PIPELINE + 1, 5)[number % 6]
        return [self.name, number, self.name * (length // len(self.name))]

    def ask(self) -> Asked:
        what = self.chance.choice(
            ["put"] * 4 + ["newest"] * 5 + ["writes", "writes", "one", "list", "history", "delete"]
        )
        if what == "newest":
            return Asked("get_tuple", (config(self.name),), {}, self.check_newest)
        if what == "put" or not self.ids:
            return self.put()
        number = self.chance.choice(list(self.ids))
        where = config(self.name, checkpoint_id=self.ids[number])
        if what == "writes":
            self.tasks += 1
            writes = [("n", [self.name, self.tasks])]
            return Asked("put_writes", (where, writes, f"{self.name} task {self.tasks}"), {}, self.expect(None))
        if what == "one":
            return Asked("get_tuple", (where,), {}, lambda found: self.check_one(found, number))
        if what == "list":
            return Asked("list", (config(self.name),), {}, self.check_list)
        if what == "history":
            channels = {"config": where, "channels": ["n"]}
            return Asked("get_delta_channel_history", (), channels, self.check_history)
        gone = Asked("delete_thread", (self.name,), {}, self.expect(None))
        self.begin_anew()  # after a lost reply, the deletion may happen later
        return gone

    def put(self) -> Asked:
        self.tried += 1
        number, versions = self.tried, {"n": f"{self.tried:032}.x"}
        made = checkpoint({"n": self.value(number)}, versions)
        parent = self.ids[max(self.ids)] if self.ids else None

        def acknowledged(where: Any) -> None:
            self.expect(config(self.name, checkpoint_id=made["id"]))(where)
            self.ids[number], self.acknowledged = made["id"], number

        return Asked("put", (config(self.name, "", parent), made, {"step": number}, versions), {}, acknowledged)

    # -- answers

    def expect(self, expected: Any) -> Callable[[Any], None]:
        def check(answer: Any) -> None:
            if answer != expected:
                raise Wrong(f"{answer!r:.300} and not {expected!r:.300}")

        return check

    def check_newest(self, found: Any) -> None:
        if found is None:
            if self.acknowledged:
                raise Wrong(f"None, but {self.acknowledged} was acknowledged")
        else:
            number = self.check_one(found)
            if number < self.acknowledged:
                raise Wrong(f"the newest is {number}, but {self.acknowledged} was acknowledged")

    def check_one(self, found: Any, expected: int | None = None) -> int:
        if found is None:
            raise Wrong("None, but it is there")
        held = found.checkpoint["channel_values"]["n"]
        number = held[1] if expected is None else expected
        if held != self.value(number) or not 0 < number <= self.tried:
            raise Wrong(f"{held!r:.300}")
        for task, _, value in found.pending_writes:
            if [f"{value[0]} task {value[1]}", value[0]] != [task, self.name]:
                raise Wrong(f"pending write {value!r:.300} of {task}")
        return int(number)

    def check_list(self, found: list[Any]) -> None:
        numbers = [self.check_one(one) for one in found]
        if numbers != sorted(numbers, reverse=True) or not set(self.ids) <= set(numbers):
            raise Wrong(f"a list of {numbers}, but {sorted(self.ids)} were acknowledged")

    def check_history(self, found: dict[str, Any]) -> None:
        values = [value for _, _, value in found["n"]["writes"]]
        if list(found) != ["n"] or any(value[0] != self.name for value in values):
            raise Wrong(f"a history of {found!r:.300}")

    def check_error(self, error: BaseException) -> None:
        """Reject any error. The crowd handles lost connections."""
        raise Wrong(f"{error!r:.500}") from error


class Refused(Caller):
    """A caller whose conversation is a key of another program. Each of its calls must raise an error that names it."""

    def begin_anew(self) -> None:
        self.name = self.own

    def ask(self) -> Asked:
        made = checkpoint({"n": self.name})
        calls: list[Any] = [
            ("get_tuple", ()),
            ("list", ()),
            ("put", (made, {}, {"n": "1"})),
            ("put_writes", ([("n", 1)], "t")),
        ]
        method, more = self.chance.choice(calls)
        where = config(self.name, checkpoint_id="x" if method == "put_writes" else None)
        return Asked(method, (where, *more), {}, self.expect(KeyConflict))

    def check_error(self, error: BaseException) -> None:
        if not isinstance(error, KeyConflict) or self.name not in str(error):
            super().check_error(error)


class Crowd:
    """Callers that share a saver: tasks of this loop, tasks of loops in other OS threads, and OS threads.

    Args:
        saver: The shared saver.
        of: Seed of the calls. Their timing varies.
        calls: Number of calls per caller.
        is_lost: Returns True for the error of a lost connection. By default there are none.
        foreign: Overwrites a thread with another program's key.
    """

    def __init__(
        self, saver: Any, of: int, calls: int, *, is_lost: Callable[[Any], bool] = lambda _: False, foreign: Any = None
    ) -> None:
        self.saver, self.seed, self.calls, self.is_lost, self.foreign = saver, of, calls, is_lost, foreign
        self.came: Counter[str] = Counter()
        self.wrong: list[str] = []

    def caller(self, number: int) -> Caller:
        chance = random.Random(f"{self.seed} {number}")
        if self.foreign is not None and number % 5 == 4:
            self.foreign(f"caller {number:03}")
            return Refused(f"caller {number:03}", chance)
        return Caller(f"caller {number:03}", chance)

    def note(self, caller: Caller, asked: Asked, answer: Any, began: float) -> None:
        """Check the answer or error of a call."""
        took = time.monotonic() - began
        try:
            if took > DEADLINE:
                raise Wrong(f"it took {took:.0f} s")
            if self.is_lost(answer):
                self.came["lost"] += 1
            elif isinstance(answer, BaseException):
                caller.check_error(answer)
                self.came["own error"] += 1
            else:
                asked.check(answer)
                self.came["answer"] += 1
        except Exception as error:  # an answer of the wrong shape belongs to another call
            trace = "" if isinstance(error, Wrong) else traceback.format_exc()
            self.wrong.append(f"{caller.name}: {asked.method} {asked.args!r:.200}: {error!r:.1000} {trace}")

    # -- an OS thread

    def talk(self, caller: Caller) -> None:
        for _ in range(self.calls):
            asked, began = caller.ask(), time.monotonic()
            try:
                answer: Any = getattr(self.saver, asked.method)(*asked.args, **asked.kwargs)
                answer = list(answer) if asked.method == "list" else answer
            except Exception as error:
                answer = error
            self.note(caller, asked, answer, began)

    # -- a task

    async def atalk(self, caller: Caller) -> None:
        for _ in range(self.calls):
            asked, began = caller.ask(), time.monotonic()
            task = asyncio.ensure_future(self.answer(asked))
            gives_up = caller.chance.random() < 0.3
            if gives_up and caller.chance.random() < 0.7:
                for _ in range(caller.chance.randrange(12)):
                    await asyncio.sleep(0)
                task.cancel()
            elif gives_up:
                await asyncio.wait([task], timeout=caller.chance.choice([0.0005, 0.002, 0.01]))
                task.cancel()
            await asyncio.wait([task], timeout=DEADLINE)
            if not task.done():
                self.wrong.append(f"{caller.name}: {asked.method} hangs")
                return
            if task.cancelled():
                self.came["given up"] += 1
                if not gives_up:
                    self.wrong.append(f"{caller.name}: {asked.method} was cancelled, but not by its caller")
            else:
                self.note(caller, asked, task.exception() or task.result(), began)

    async def answer(self, asked: Asked) -> Any:
        called = getattr(self.saver, "a" + asked.method)(*asked.args, **asked.kwargs)
        return [one async for one in called] if asked.method == "list" else await called

    # -- all of them

    async def run(self, *, tasks: int, loops: int, os_threads: int) -> None:
        """Run tasks on this loop, `loops` other loops with as many tasks each, and OS threads."""
        numbers = iter(range(1000))
        some = lambda count: [self.caller(next(numbers)) for _ in range(count)]  # noqa: E731

        async def together(callers: list[Caller]) -> None:
            await asyncio.gather(*(self.atalk(caller) for caller in callers))

        acts = [partial(lambda callers: asyncio.run(together(callers)), some(tasks)) for _ in range(loops)]
        acts += [partial(self.talk, one) for one in some(os_threads)]
        running = [threading.Thread(target=self.guarded, args=(act,), daemon=True) for act in acts]
        for each in running:
            each.start()
        await together(some(tasks))
        ended, since = 0, time.monotonic()
        while hanging := sum(each.is_alive() for each in running):
            if ended != (now := sum(self.came.values())):
                ended, since = now, time.monotonic()
            if time.monotonic() - since > DEADLINE:
                self.wrong.append(f"{hanging} OS threads hang")
                break
            await asyncio.sleep(0.005)

    def guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException:
            self.wrong.append(traceback.format_exc())

    def check(self) -> None:
        assert not self.wrong, f"seed {self.seed}, {dict(self.came)}: " + "\n".join(self.wrong[:5])
        assert self.came["answer"], f"seed {self.seed}: {self.came}, so it shows nothing"


@contextlib.contextmanager
def beyond(target: Target, of: int) -> Iterator[tuple[Any, Proxy | None]]:
    """A client of a target, and its proxy, which only a single server has."""
    if target.name == "fakeredis":
        yield target.client(), None
    elif target.name == "cluster":
        yield target.client(socket_timeout=SOCKET_TIMEOUT), None
    else:
        proxy = Proxy(int(target.url.rpartition(":")[2]))
        again = retrying(target.flavour, random.Random(of).choice([0, 2]))
        options = {"socket_timeout": SOCKET_TIMEOUT, "retry": again}
        try:
            yield target.client(url=proxy.url, **options), proxy
        finally:
            proxy.close()


@contextlib.contextmanager
def trouble(target: Target, proxy: Proxy | None, of: int) -> Iterator[Counter[str]]:
    """Lose requests and replies, kill connections and pause servers at random. Yield the counts.

    The embedded server has no connections.
    """
    chance, over, done = random.Random(of), threading.Event(), Counter[str]()
    nodes = [redis.Redis(port=int(port)) for port in re.findall(r":(\d+)", target.url)]

    def go_on() -> None:
        while nodes and not over.wait(chance.choice([0.001, 0.005, 0.02, 0.05])):
            what = chance.choice(["reply", "half", "request", "kill", "kill", *["pause"] * (chance.random() < 0.2)])
            if what == "kill":
                done[what] += chance.choice(nodes).client_kill_filter(_type="normal", skipme=True) > 0
            elif what == "pause":
                chance.choice(nodes).client_pause(int(SOCKET_TIMEOUT * 1200))
                done[what] += 1
            elif proxy is not None:
                done["lost"] += proxy.lost
                if what == "request":
                    proxy.drop_request(b"", chance.randint(1, 4))
                else:
                    proxy.lose_reply(b"", chance.randint(1, 4), half=what == "half")

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()
        if proxy is not None:
            proxy.lose_reply(b"", 0)  # lose no more
        for node in nodes:
            node.close()


@pytest.mark.parametrize("calls", [15, pytest.param(400, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
@pytest.mark.parametrize(
    "target_name", targets_and_slow(["redis", "cluster"], ["redis62", "fakeredis", "valkey"]), indirect=True
)
async def test_each_caller_gets_its_own_answer(target: Target, calls: int) -> None:
    """All callers share one saver, by blocking and by async methods."""
    of = seed()

    def foreign(name: str) -> None:
        for attempt in range(20):
            try:
                target.raw.set(Keyspace(target.prefix).keys(name).index_key, "another program's")
            except redis.ConnectionError:  # this connection may be killed too
                assert attempt < 19
                time.sleep(0.05)
            else:
                return

    with beyond(target, of) as (client, proxy), trouble(target, proxy, of) as done:
        crowd = Crowd(target.uniform(client=client).saver, of, calls, is_lost=partial(is_lost, target), foreign=foreign)
        await crowd.run(tasks=8, loops=2, os_threads=5)
    crowd.check()
    assert crowd.came["given up"]
    assert crowd.came["own error"]
    if target.name != "fakeredis":
        assert done["kill"] + done["lost"], f"seed {of}: {done}"


@pytest.mark.parametrize("calls", [10, pytest.param(150, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
@pytest.mark.parametrize("mode", ["write-through", "write-behind"])
@pytest.mark.parametrize("target_name", targets("redis", "cluster"), indirect=True)
async def test_each_caller_gets_its_own_answer_over_two_tiers(tiers: Tiers, mode: str, calls: int) -> None:
    of = seed()
    with beyond(tiers.target, of) as (client, proxy):
        settings = {"flush_interval": 0.05} if mode == "write-behind" else {}
        saver = await tiers.saver(hot={"client": client}, mode=mode, **settings)
        crowd = Crowd(saver, of, calls, is_lost=partial(is_lost, tiers.target))
        with trouble(tiers.target, proxy, of):
            await crowd.run(tasks=4, loops=1, os_threads=2)
        await (saver.aclose(10) if tiers.native_async else asyncio.to_thread(saver.close, 10))
    crowd.check()


# -- deliberate faults that the tests must find


def on_redis(flavour: str) -> Any:
    return pytest.mark.parametrize(("target_name", "flavour"), [("redis", flavour)], indirect=True)


@on_redis("async")
async def test_swapped_replies_of_a_pipeline_are_noticed(target: Target, monkeypatch: Any) -> None:
    together = Link.together

    def swapped(link: Link, *args: Any, **options: Any) -> Any:
        replies = yield from together(link, *args, **options)
        if len(replies) > 1:
            replies[0], replies[1] = replies[1], replies[0]
        return replies

    monkeypatch.setattr(Link, "together", swapped)
    crowd = Crowd(target.uniform().saver, 1, 15)
    await crowd.run(tasks=8, loops=0, os_threads=0)
    with pytest.raises(AssertionError, match="caller"):
        crowd.check()


@on_redis("sync")
async def test_a_stale_reply_on_a_connection_is_noticed(target: Target, monkeypatch: Any) -> None:
    """The client behaves as if it reused a connection before its reply arrived."""
    left, saver = list[Any](), target.uniform().saver

    def late(request: Any) -> Any:
        left.append((yield request))
        return left.pop(0) if len(left) > 10 else left[-1]

    Around(saver, late)
    crowd = Crowd(saver, 1, 15)
    await crowd.run(tasks=0, loops=0, os_threads=5)
    with pytest.raises(AssertionError, match="caller"):
        crowd.check()


@on_redis("async")
async def test_a_call_that_never_ends_is_noticed(target: Target, monkeypatch: Any) -> None:
    monkeypatch.setattr("test_own_answers.DEADLINE", 0.5)
    monkeypatch.setattr(Batcher, "_on_done", lambda batcher, task: batcher._under_way.pop(task))
    monkeypatch.setattr(Batcher, "_send", lambda batcher, together: asyncio.sleep(0))
    crowd = Crowd(target.uniform().saver, 1, 5)
    await crowd.run(tasks=8, loops=0, os_threads=0)
    assert any("hangs" in text for text in crowd.wrong)
