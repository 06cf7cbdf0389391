"""Damaged keys of other savers: the report names each unreadable thread, and no other error is raised."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from dump_driver import DumpDriver
from foreign_data import JSON_TYPE
from langgraph.checkpoint.memory import InMemorySaver
from tests.support.seeds import seeds

from redis_saver import EndpointError
from redis_saver._migrate.foreign import RedisDocuments, ValkeyStrings
from redis_saver._storage.opaque import OpaqueSerializer
from redis_saver.migrate import migrate

FILES = {name: DumpDriver(f"{name}.jsonl").stored for name in ("redis-0.5.2", "ashallow-0.4.1", "valkey-1.2.6")}
JUNK: list[Any] = [
    None, True, -1, 1.5, 2**70, "", "x", "{}", "__empty__", "\ud800", [], [1], {}, {"a": 1},
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"], "kwargs": []},
    {"lc": 2, "type": "constructor", "id": ["builtins", "set"], "args": [1]},
    {"lc": 2, "type": "constructor", "id": ["builtins", "set"], "kwargs": [1]},
    {"__bytes__": 1}, {"__interrupt__": True, "value": 2}, {"__send__": True, "node": 1, "arg": 2},
]  # fmt: skip


def places(found: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each dict or list within a value, with each of its keys or indexes."""
    for at in found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ():
        yield found, at
        yield from places(found[at])


def damaged(text: str, draw: random.Random) -> str:
    document = json.loads(text)
    if isinstance(document, dict) and "blob" in document and draw.random() < 0.2:
        document["blob"] = b64encode(json.dumps(draw.choice(JUNK)).encode()).decode()
        return json.dumps(document)
    if draw.random() < 0.05 or not (found := list(places(document))):
        return json.dumps(draw.choice(JUNK))
    within, at = draw.choice(found)
    if isinstance(within, dict) and draw.random() < 0.2:
        del within[at]
    else:
        within[at] = draw.choice(JUNK)
    return json.dumps(document)


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds(range(3)))
def test_random_damage_is_reported_by_thread(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        name = draw.choice(list(FILES))
        driver = DumpDriver()
        driver.stored = dict(FILES[name])
        keys = [
            key for key, each in driver.stored.items() if each.type in (JSON_TYPE, "string") and each.value[0] in "[{"
        ]
        for key in draw.sample(keys, draw.randint(1, 3)):
            stored = driver.stored[key]
            driver.stored[key] = stored._replace(value=damaged(stored.value, draw))
        source = (ValkeyStrings if name.startswith("valkey") else RedisDocuments)(
            driver, OpaqueSerializer(), "old", None
        )  # type: ignore[arg-type]
        try:
            report = migrate(source, InMemorySaver(serde=OpaqueSerializer()))
        except EndpointError:  # about prefixes, or because no thread is left
            continue
        assert report.moved + report.unchanged + len(report.failed) == report.total, (seed, report)
        assert not report.conflicts


def test_a_checkpoint_with_a_different_inner_id_is_not_moved() -> None:
    """It would arrive under an id that the source does not have."""
    driver = DumpDriver()
    driver.stored = dict(FILES["redis-0.5.2"])
    key = next(key for key, each in driver.stored.items() if key.startswith(b"checkpoint:user-nested:"))
    document = json.loads(driver.stored[key].value)
    document["checkpoint"]["id"] = "x"
    driver.stored[key] = driver.stored[key]._replace(value=json.dumps(document))
    target = InMemorySaver(serde=OpaqueSerializer())
    report = migrate(RedisDocuments(driver, OpaqueSerializer(), "old", None), target)  # type: ignore[arg-type]
    (failed,) = report.failed
    assert failed.startswith("thread 'user-nested': checkpoint '1f1e87a3") and "its id is 'x'" in failed
    assert not report.conflicts
    assert "x" not in {found.checkpoint["id"] for found in target.list(None)}


@pytest.mark.parametrize("name", ["redis-0.5.2", "valkey-1.2.6"])
def test_a_parent_that_is_not_a_string_is_damage(name: str) -> None:
    driver = DumpDriver()
    driver.stored = dict(FILES[name])
    key = next(key for key in driver.stored if key.startswith(b"checkpoint:") and b"user-nested" in key)
    document = {**json.loads(driver.stored[key].value), "parent_checkpoint_id": -1}
    driver.stored[key] = driver.stored[key]._replace(value=json.dumps(document))
    kind = ValkeyStrings if name.startswith("valkey") else RedisDocuments
    source = kind(driver, OpaqueSerializer(), "old", None)  # type: ignore[arg-type]
    report = migrate(source, InMemorySaver(serde=OpaqueSerializer()))
    (failed,) = report.failed
    assert "thread 'user-nested'" in failed and "the parent of checkpoint '1f1e87a" in failed and "is -1" in failed
    assert not report.conflicts
