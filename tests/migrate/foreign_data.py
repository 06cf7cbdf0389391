"""Keys of other savers as text, one key per line. A test fills a server with them, or reads them without a server.

`python tests/migrate/foreign_data.py KIND URL FILE [LEFT_OUT ...]` runs the agents of `foreign_agents.py` on a saver,
and writes its keys to a file. KIND is one of `MAKERS`. The agents leave out the given parts, which that release cannot
keep.

The script empties the server first. It needs the saver's package in the release that the file is named after. Like the
agents, it imports nothing from the project.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import foreign_agents
import redis

FOLDER = Path(__file__).resolve().parent / "foreign"
JSON_TYPE = "ReJSON-RL"


class Stored(NamedTuple):
    key: str
    type: str
    value: Any
    """Text of a string or a JSON document, elements of a list, or pairs of a sorted set."""


def load(name: str) -> Iterator[Stored]:
    """Yield the keys in a file."""
    with (FOLDER / name).open(encoding="utf-8") as lines:
        yield from (Stored(**json.loads(line)) for line in lines)


def fill(client: Any, name: str, documents: bool = False) -> None:
    """Store the keys of a file. With `documents`, store JSON documents too, which needs RedisJSON."""
    pipeline = client.pipeline(transaction=False)
    for key, kind, value in load(name):
        if kind == "string":
            pipeline.set(key, value)
        elif kind == "list":
            pipeline.rpush(key, *value)
        elif kind == "zset":
            pipeline.zadd(key, dict(value))
        elif documents:
            pipeline.execute_command("JSON.SET", key, "$", value)
    pipeline.execute()


def save(client: Any, path: Path) -> None:
    """Write the keys of a server to a file."""
    with path.open("w", encoding="utf-8") as lines:
        for key in sorted(client.scan_iter("*", count=1000)):
            kind = client.type(key).decode()
            reading = {
                "string": lambda: client.get(key).decode(),
                "list": lambda: [each.decode() for each in client.lrange(key, 0, -1)],
                "zset": lambda: [(each.decode(), score) for each, score in client.zrange(key, 0, -1, withscores=True)],
                JSON_TYPE: lambda: client.execute_command("JSON.GET", key).decode(),
            }
            lines.write(json.dumps(Stored(key.decode(), kind, reading[kind]())._asdict(), ensure_ascii=False) + "\n")


def redis_saver(url: str, cls: str = "RedisSaver", **settings: Any) -> Any:
    """Return a saver of langgraph-checkpoint-redis."""
    import redis
    from langgraph.checkpoint import redis as package
    from langgraph.checkpoint.redis import aio, ashallow, shallow

    found = next(vars(module)[cls] for module in (package, shallow, aio, ashallow) if cls in vars(module))
    client = (redis.asyncio if cls.startswith("Async") else redis).Redis.from_url(url)
    return found(redis_client=client, **settings)


def valkey_saver(url: str, cls: str = "ValkeySaver", **settings: Any) -> Any:
    """Return a saver of langgraph-checkpoint-aws."""
    import valkey
    from langgraph_checkpoint_aws.checkpoint import valkey as package

    client = (valkey.asyncio if cls.startswith("Async") else valkey).Valkey.from_url(url)
    return vars(package)[cls](client, **settings)


PREFIXES = {"checkpoint_prefix": "app:state", "checkpoint_write_prefix": "app:writes"}
MAKERS: dict[str, Any] = {
    "redis": redis_saver,
    "redis-prefixes": lambda url: redis_saver(url, **PREFIXES),
    "aredis": lambda url: redis_saver(url, "AsyncRedisSaver"),
    "shallow": lambda url: redis_saver(url, "ShallowRedisSaver"),
    "ashallow": lambda url: redis_saver(url, "AsyncShallowRedisSaver"),
    "valkey": valkey_saver,
    "avalkey": lambda url: valkey_saver(url, "AsyncValkeySaver"),
}


async def run(kind: str, url: str, with_saver: Any = lambda _: None) -> Any:
    """Make a saver, pass it to `with_saver`, and run the agents on it."""
    saver = MAKERS[kind](url)
    with_saver(saver)
    if hasattr(saver, "setup"):
        await saver.asetup() if kind.startswith("a") else saver.setup()
    await foreign_agents.alive(saver) if kind.startswith("a") else foreign_agents.live(saver)
    return saver


if __name__ == "__main__":
    kind, url, file, *left_out = sys.argv[1:]
    foreign_agents.LEFT_OUT.update(left_out)
    client = redis.Redis.from_url(url)
    client.flushall()
    asyncio.run(run(kind, url))
    save(client, Path(file))
