"""A sentinel as a fixture, and a round trip with a call of each kind."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.factories import chain, config
from tests.support.servers import Sentinel, Server
from tests.support.uniform import Uniform


async def roundtrip(saver: Any) -> None:
    uniform = Uniform(saver)
    await uniform.setup()
    configs = await chain(uniform, "é\ud800", 3)
    await uniform.put_writes(configs[-1], [("n", b"\xff")], "task")
    found = await uniform.get_tuple(config("é\ud800"))
    assert (found.config, found.pending_writes) == (configs[-1], [("task", "n", b"\xff")])
    assert len(await uniform.list(None)) == 3
    assert [info.thread_id for info in await uniform.threads()] == ["é\ud800"]
    await uniform.delete_for_runs(["r"])
    await uniform.copy_thread("é\ud800", "copy")
    assert (await uniform.prune(["copy"])).checkpoints == 2
    for thread in ("copy", "é\ud800"):
        await uniform.delete_thread(thread)
    assert await uniform.threads() == []


@pytest.fixture
def sentinel() -> Any:
    """A sentinel that watches a primary with a password."""
    primary = Server("--requirepass", "secret", "--masterauth", "secret")
    watches = f"sentinel monitor our:service 127.0.0.1 {primary.port} 1"
    watch = Sentinel(watches, "sentinel auth-pass our:service secret", program=primary.program)
    yield watch
    for one in (watch, primary):
        one.stop()
