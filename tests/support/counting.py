"""Counters of round trips and bytes."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around

from redis_saver._engine import scripts
from redis_saver._engine.requests import Batch, Call, Command


@cache
def every_script() -> list[scripts.Script]:
    folder = scripts.folder("lua")
    paths = [path.relative_to(folder) for path in folder.glob("*/*.lua") if path.parent.name != "lib"]
    return [scripts.load(str(path.with_suffix(""))) for path in paths]


def load_scripts(raw: Any) -> None:
    """Load all scripts into a server, so that calls send none, whichever tests ran before."""
    forms = [form for script in every_script() for form in (script, script.on_primary) if form]
    there = raw.script_exists(*(form.sha for form in forms))
    for form in (form for form, is_there in zip(forms, there, strict=True) if not is_there):
        raw.script_load(form.text)


class Counted:
    """A client that counts round trips. A command or a whole pipeline is one."""

    def __init__(self, client: Any) -> None:
        self.client, self.sent = client, list[Any]()
        self.send, self.make_pipeline = client.execute_command, client.pipeline
        if self.is_async:
            client.execute_command = self.asend
        else:
            client.execute_command = lambda *args, **kwargs: (self.sent.append(args), self.send(*args, **kwargs))[1]
        client.pipeline = lambda *args, **kwargs: (
            self.sent.append(("PIPELINE",)),
            self.make_pipeline(*args, **kwargs),
        )[1]

    @property
    def is_async(self) -> bool:
        return hasattr(self.client, "aclose") and "asyncio" in type(self.client).__mro__[0].__module__

    async def asend(self, *args: Any, **kwargs: Any) -> Any:
        self.sent.append(args)
        return await self.send(*args, **kwargs)

    def take(self) -> list[str]:
        names = [str(args[0]) for args in self.sent]
        self.sent.clear()
        return names

    async def trips(self, call: Any) -> int:
        """Count the round trips of a call, except those that load scripts or connect."""
        self.take()
        await call
        return len([one for one in self.take() if one not in ("EVAL", "HELLO")])


class Calls:
    """Number of scripts that a server ran since the last `take`."""

    def __init__(self, target: Target) -> None:
        self.raw, self.before = target.raw, 0
        load_scripts(self.raw)
        self.take()

    def take(self) -> int:
        stats, before = self.raw.info("commandstats"), self.before
        self.before = sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))
        return self.before - before


class Traffic:
    """Bytes that a server received and sent since the last `take`, without those of the measurement."""

    def __init__(self, target: Target) -> None:
        self.raw, self.before, self.own = target.raw, (0, 0), (0, 0)
        self.take()
        self.own = self.take()

    def take(self) -> tuple[int, int]:
        stats = self.raw.info("stats")
        before, self.before = self.before, (stats["total_net_input_bytes"], stats["total_net_output_bytes"])
        return self.before[0] - before[0] - self.own[0], self.before[1] - before[1] - self.own[1]


class Bytes:
    """Counter of bytes sent and received by a store, in the arguments and replies of its scripts."""

    def __init__(self, store: Uniform) -> None:
        self.sent = self.received = self.calls = 0

        def around(request: Any) -> Any:
            for one in request.requests if isinstance(request, Batch) else (request,):
                if isinstance(one, (Call, Command)):
                    self.calls += 1
                    self.sent += sum(
                        len(part if isinstance(part, bytes) else str(part)) for part in (*one.keys, *one.arguments)
                    )
            reply = yield request
            self.received += size(reply)
            return reply

        Around(store.saver, around)

    def take(self) -> tuple[int, int]:
        found, self.sent, self.received = (self.sent, self.received), 0, 0
        return found


def size(reply: Any) -> int:
    if isinstance(reply, (list, tuple)):
        return sum(map(size, reply))
    return len(reply) if isinstance(reply, (bytes, str)) else 8
