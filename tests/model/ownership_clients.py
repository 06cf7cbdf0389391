"""Clients that take, renew, release and write a thread, and record when each call began and ended."""

from __future__ import annotations

import asyncio
import random
import time
from math import inf
from typing import Any

import redis
from linearizing import UNKNOWN, Event
from nursery import Worker

from redis_saver import AsyncRedisSaver, RedisSaver
from redis_saver._checkpoint import ownership
from redis_saver._checkpoint.guards import ANYBODY
from redis_saver._checkpoint.ownership import Terms
from redis_saver._client.clients import connect
from redis_saver._engine.requests import Call
from redis_saver.errors import NotOwner
from tests.support.factories import checkpoint, config
from tests.support.growing import together
from tests.support.proxy import retrying
from tests.support.uniform import Uniform
from tests.support.wrappers import Around

LEASE = 60_000
"""Milliseconds. It only expires by a `lapse`."""
_LAPSE = """
local record = redis.call('GET', KEYS[1])
if record then redis.call('SET', KEYS[1], (string.gsub(record, ' %d+ ', ' 1 ', 1)), 'KEEPTTL') end
"""
_TAKE = ("take", "take", "take!", "read", "put", "delete")
_OWN = ("put", "put", "put", "put", "read", "read", "renew", "release", "lapse", "take!")


class Client:
    """Makes random calls on one thread."""

    def __init__(self, uniform: Uniform, raw: Any, thread: str, seed: str) -> None:
        self.uniform, self.raw, self.thread = uniform, raw, thread
        self.chance = random.Random(seed)
        self.token, self.nonce, self.tokens = "", "", list[str]()
        self.events: list[Event] = []

    async def run(self, count: int) -> list[Event]:
        for _ in range(count):
            if self.chance.random() < 0.3:
                await asyncio.sleep(self.chance.random() / 500)
            kind = self.chance.choice(_OWN if self.token else _TAKE)
            await self.call(kind.rstrip("!"), kind)
        return self.events

    async def call(self, kind: str, how: str) -> None:
        token = self.token
        if self.tokens and self.chance.random() < 0.3:
            token = self.chance.choice(self.tokens)  # of an earlier block
        argument, made = "" if kind in ("read", "lapse", "delete") else token, checkpoint({})
        if kind == "take":
            if not self.nonce or self.chance.random() < 0.7:
                self.nonce = f"{self.chance.randrange(16**16):016x}"
            argument = self.nonce + how[4:]
        elif kind == "put":
            argument = f"{token} {made['id']}"
        begin = time.monotonic()
        try:
            result, end = await getattr(self, kind)(argument, token, made), time.monotonic()
        except NotOwner:
            result, end = "no", time.monotonic()
        except redis.ConnectionError:
            result, end = UNKNOWN, inf
        self.events.append(Event(begin, end, kind, argument, result))

    async def ran(self, operation: Any) -> Any:
        driver = self.uniform.saver._driver
        return await driver.arun(operation) if self.uniform.native_async else driver.run(operation)

    async def take(self, argument: str, _: str, __: Any) -> str:
        mode: Any = "take" if argument.endswith("!") else "raise"
        terms = Terms.of(self.thread, f"{LEASE}ms", mode, None, "a client", None)
        try:
            record = await self.ran(ownership.taken(self.uniform.saver._rules, terms, argument.rstrip("!")))
        except NotOwner:
            return "busy"
        self.token = str(record.token)
        self.tokens.append(self.token)
        return self.token

    async def renew(self, _: str, token: str, __: Any) -> str:
        done = await self.ran(ownership.renew(self.uniform.saver._rules, self.thread, token, LEASE))
        return "yes" if done else "no"

    async def release(self, _: str, token: str, __: Any) -> str:
        done = await self.ran(ownership.release(self.uniform.saver._rules, self.thread, token))
        self.token = ""
        return "yes" if done else "no"

    async def put(self, _: str, token: str, made: Any) -> str:
        given = {**config(self.thread)["configurable"], **({"thread_owner": token} if token else {})}
        await self.uniform.put({"configurable": given}, made, {"source": "loop"}, {})
        return "yes"

    async def delete(self, _: str, __: str, ___: Any) -> str:
        await self.uniform.delete_thread(self.thread)
        return "yes"

    async def read(self, _: str, __: str, ___: Any) -> str:
        found = await self.uniform.get_tuple(config(self.thread))
        return str(found.checkpoint["id"]) if found else ""

    async def lapse(self, _: str, __: str, ___: Any) -> str:
        self.raw.eval(_LAPSE, 1, self.uniform.saver._rules.keyspace.owner_key(self.thread))
        return ""


def unguarded(uniform: Uniform) -> None:
    """Make a saver write without checking ownership."""

    def around(request: Any) -> Any:
        if isinstance(request, Call) and request.script.is_owned:
            *arguments, writer = request.arguments
            keys = request.keys[:-1] if writer else request.keys
            request = Call(request.script, keys, (*arguments, ANYBODY))
        return (yield request)

    Around(uniform.saver, around)


async def side_by_side(uniforms: list[Uniform], raw: Any, thread: str, seed: str, count: int) -> list[Event]:
    """Run the clients concurrently, in OS threads or in tasks, and return the history."""
    clients = [Client(one, raw, thread, f"{seed} {number}") for number, one in enumerate(uniforms)]
    await together(uniforms[0], *(one.run(count) for one in clients))
    return [event for one in clients for event in one.events]


class Processes:
    """Processes that run two clients each."""

    def __init__(self, count: int) -> None:
        self._all = [Worker("ownership_clients") for _ in range(count)]

    def history(self, **spec: Any) -> list[Event]:
        """Run all processes, which begin at about the same time, and return the history."""
        at = time.monotonic() + 0.003
        for number, one in enumerate(self._all):
            one.tell(**{**spec, "seed": f"{spec['seed']} {number}"}, at=at)
        answers = [told for one in self._all for told in one.answer()]
        return [Event(begin, inf if end is None else end, *more) for begin, end, *more in answers]

    def close(self) -> None:
        for one in self._all:
            one.kill()


async def _play(spec: dict[str, Any]) -> list[Event]:
    """Run two savers whose clients do not retry, so a lost reply leaves the result unknown."""
    is_async = spec["flavour"] == "async"
    kind: Any = AsyncRedisSaver if is_async else RedisSaver
    retry = retrying(spec["flavour"], 0)
    clients = [connect(spec["url"], asynchronous=is_async, retry=retry) for _ in range(2)]
    uniforms = [Uniform(kind(one, prefix=spec["prefix"], ownership="required")) for one in clients]
    raw = redis.Redis.from_url(spec["raw_url"])
    time.sleep(max(0, spec["at"] - time.monotonic()))
    events = await side_by_side(uniforms, raw, spec["thread"], spec["seed"], spec["count"])
    for one in clients:
        await one.aclose() if is_async else one.close()
    raw.close()
    return events


def serve(spec: dict[str, Any], _: Any) -> list[list[Any]]:
    """Run in a worker process, and return the history as JSON."""
    events = asyncio.run(_play(spec))
    return [[one.begin, None if one.end == inf else one.end, *one[2:]] for one in events]
