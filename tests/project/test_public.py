"""Public names are those in `docs/api/`; neither an IDE nor a type checker shows internals."""

from __future__ import annotations

import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from fakeredis import FakeAsyncRedis
from langgraph.checkpoint.memory import InMemorySaver
from tests.support.methods import methods_of

import redis_saver
from redis_saver import AsyncRedisCache, AsyncRedisSaver, AsyncRedisStore, AsyncTieredSaver, AsyncTieredStore
from redis_saver import RedisCache, RedisLLMCache, RedisSaver, RedisStore, TieredSaver, TieredStore

MODULES = {"agent_server", "encryption", "errors", "inspector", "migrate", "sentinels", "serde", "telemetry"}
CLASSES = (
    RedisSaver, AsyncRedisSaver, TieredSaver, AsyncTieredSaver, RedisStore, AsyncRedisStore, TieredStore, AsyncTieredStore,
    RedisCache, AsyncRedisCache, RedisLLMCache,
)  # fmt: skip
VALUES = {  # docs/metrics.md lists the fields of `Stats` and the like
    "Limits": {"name_bytes", "value_bytes"},
    "OperationStats": {"calls", "errors", "seconds", "histogram"},
    "Pruned": {"checkpoints", "writes", "blobs", "bytes"},
    "Finding": {"severity", "where", "what", "remedy"},
    "Owner": {"by", "since", "run_id", "lease_left", "lease_until", "orphaned"},
    "Ownership": {"token", "is_lost"},
    "ThreadInfo": {
        "thread_id", "checkpoints", "bytes", "ttl", "pinned", "interrupted", "failed", "checkpoint_id", "updated_at", "owner", "orphaned", "expires",
    },
    "TieredThreadInfo": {
        "thread_id", "checkpoints", "bytes", "ttl", "pinned", "interrupted", "failed", "checkpoint_id", "updated_at", "owner", "orphaned", "expires",
        "hot", "cold", "lacking", "tier", "asked_cold", "in_cold",
    },
    "WriteInfo": {
        "channel", "checkpoint_ns", "checkpoint_id", "step", "source", "task_id", "node", "candidates", "bytes", "applied_in", "inferred",
    },
    "VersionInfo": {
        "version", "checkpoint_ns", "checkpoint_id", "created_at", "step", "source", "bytes", "shared_bytes", "new_bytes", "writes",
    },
    "ChannelValue": {"thread_id", "checkpoint_id", "updated_at", "version", "bytes", "value", "stored"},
    "CheckpointDiff": {"thread_id", "checkpoint_ns", "before", "after", "channels", "not_compared"},
    "ChannelDiff": {"channel", "kind", "changes"},
    "Change": {"kind", "path", "before", "after"},
}  # fmt: skip


DOCS = Path(__file__).parents[2] / "docs"


def shown(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def exported(module: str) -> set[str]:
    return set(import_module(module).__all__)


def test_only_modules_of_the_api_lack_an_underscore() -> None:
    found = {one.name for one in pkgutil.iter_modules(redis_saver.__path__)}
    assert {name for name in found if not name.startswith("_")} == MODULES
    assert shown(redis_saver) - MODULES == exported("redis_saver") - {"__version__"}
    assert exported("redis_saver.errors") == {name for name in redis_saver.__all__ if is_error(name)}


def is_error(name: str) -> bool:
    one = getattr(redis_saver, name)
    return inspect.isclass(one) and issubclass(one, Exception)


def test_the_reference_names_all_exports() -> None:
    pages = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    named = set(re.findall(r"^\.\. (?:auto(?!module|method)\w+|py:type|py:data):: ([\w.]+)$", pages, re.MULTILINE))
    own = exported("redis_saver") - {"__version__"}
    others = {
        f"redis_saver.{module}.{name}" for module in MODULES - {"errors"} for name in exported(f"redis_saver.{module}")
    }
    twice = {f"redis_saver.serde.{name}" for name in own}
    differ = named ^ ({f"redis_saver.{name}" for name in own} | (others - twice))
    assert not differ, f"describe each on a page of docs/api/, or take it away there: {sorted(differ)}"


def test_a_class_exposes_only_its_interface() -> None:
    differ = {f"{kind.__name__}.{name}" for kind in CLASSES for name in shown(kind) ^ set(methods_of(kind))}
    assert not differ, f"give each a row in tests/support/methods.py, or take its row away: {sorted(differ)}"


def test_pages_explain_each_method_and_option() -> None:
    """Besides the reference, which is made of docstrings, and except what callers of LangGraph's interfaces use."""
    theirs = {"aget_iter", "config_specs", "lookup", "supports_ttl", "ttl_config"}
    text = "".join(page.read_text() for page in DOCS.glob("*.md"))
    names = {name for kind in CLASSES for name in (*methods_of(kind, twins=False), *inspect.signature(kind).parameters)}
    missing = {name for name in names - theirs if not re.search(rf"[`.]a?{name.removeprefix('a')}\b|\b{name}=", text)}
    assert not missing, f"explain each on the page where a user looks for it: {sorted(missing)}"


def test_an_instance_adds_only_its_arguments() -> None:
    blocking, asynchronous = fakeredis.FakeRedis(), FakeAsyncRedis()
    hot, hot_async, cache = RedisSaver(blocking), AsyncRedisSaver(asynchronous), RedisCache[Any](blocking)
    made = {
        hot: set[str](),
        hot_async: set[str](),
        TieredSaver(hot, InMemorySaver()): {"serde", "hot", "cold"},
        AsyncTieredSaver(hot_async, InMemorySaver()): {"serde", "hot", "cold"},
        RedisStore(blocking): {"embeddings", "index_config", "ttl_config"},
        AsyncRedisStore(asynchronous): {"embeddings", "index_config", "ttl_config"},
        cache: {"serde"},
        AsyncRedisCache(asynchronous): {"serde"},
        RedisLLMCache(cache): set[str](),
    }
    assert {one: {name for name in vars(one) if name[0] != "_"} for one in made} == made


@pytest.mark.parametrize("name", VALUES)
def test_a_value_exposes_only_its_fields(name: str) -> None:
    kind = getattr(redis_saver, name)
    fields = set(getattr(kind, "__dataclass_fields__", ()))
    assert (shown(kind) | fields) - shown(tuple) == VALUES[name]


def test_stats_expose_only_their_fields() -> None:
    stats = TieredSaver(RedisSaver(fakeredis.FakeRedis()), InMemorySaver()).stats()
    assert type(stats) is redis_saver.Stats
    assert shown(stats) == set(vars(stats))
