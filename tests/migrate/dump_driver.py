"""A driver that replies from a file of keys, because few servers have RedisJSON."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any

import foreign_data
from foreign_data import JSON_TYPE, Stored

from redis_saver._engine.requests import Batch, Command, Scan
from redis_saver._engine.runner import BlockingDriver
from redis_saver._migrate.foreign import ForeignSource, RedisDocuments, ValkeyStrings
from redis_saver._storage.opaque import OpaqueSerializer


class DumpDriver(BlockingDriver[Any]):
    """Answers the requests of sources. `test_foreign.py` compares it with a server with RedisJSON, if there is one."""

    failures: tuple[type[Exception], ...] = ()

    def __init__(self, *names: str) -> None:
        self.stored = {each.key.encode(): each for name in names for each in foreign_data.load(name)}
        self.asked: list[Any] = []
        """Round trips."""

    def request(self, request: Any) -> Any:
        self.asked.append(request)
        if isinstance(request, Scan):
            pattern = request.pattern.decode().replace("[", "[[]")
            keys = sorted(key for key in self.stored if fnmatchcase(key.decode(), pattern))
            start = request.position or 0
            return (start + 7 if start + 7 < len(keys) else None), keys[start : start + 7]
        if isinstance(request, Batch):
            return [self._answer(*each.arguments) for each in request.requests]
        assert isinstance(request, Command)
        return self._answer(*request.arguments)

    def _answer(self, command: Any, key: Any, *rest: Any) -> Any:
        found = self.stored.get(key, Stored("", "none", None))
        if command == "TYPE":
            return found.type.encode()
        if found.type == "none":
            return b"" if command == "GETRANGE" else None
        if command == "JSON.GET":
            assert found.type == JSON_TYPE
            return found.value.encode() if not rest else _paths(json.loads(found.value), rest)
        assert found.type == "string"
        return found.value.encode() if command == "GET" else found.value.encode()[rest[0] : rest[1] + 1]

    def document(self, key: str) -> Any:
        """Return a document, which a test may change and `put` back."""
        return json.loads(self.stored[key.encode()].value)

    def put(self, key: str, document: Any, kind: str = JSON_TYPE) -> None:
        """Store a document."""
        self.stored[key.encode()] = Stored(key, kind, json.dumps(document))


def documents(driver: DumpDriver, prefix: str | None = None) -> RedisDocuments:
    return RedisDocuments(driver, OpaqueSerializer(), "old", prefix)  # type: ignore[arg-type]


def strings(driver: DumpDriver) -> ValkeyStrings:
    return ValkeyStrings(driver, OpaqueSerializer(), "old", None)  # type: ignore[arg-type]


def source_on(driver: DumpDriver, name: str) -> ForeignSource:
    """Return a source that reads a file's keys from a driver."""
    return strings(driver) if name.startswith("valkey") else documents(driver)


def _paths(document: Any, paths: Any) -> bytes:
    """Return the reply of JSON.GET for several paths that consist of names."""
    found = {}
    for path in paths:
        value = document
        for name in path.split(".")[1:]:
            value = value.get(name, ()) if isinstance(value, dict) else ()
        found[path] = [] if value == () else [value]
    return json.dumps(found).encode()
