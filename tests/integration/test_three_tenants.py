"""A service with three tenants: one's key is rotated, another one's is destroyed, and all others go on."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import MessagesState, StateGraph
from langgraph.store.base import BaseStore
from tests.support.uniform import Target

from redis_saver import RedisSaver, RedisStore
from redis_saver._cli.main import main
from redis_saver.encryption import Encryption, Keyset
from redis_saver.errors import KeyUnavailable

pytestmark = [
    pytest.mark.plain("it sets encryption= itself"),
    pytest.mark.parametrize("target_name", ["redis"]),
    pytest.mark.parametrize("flavour", ["sync"]),
]
TENANTS = ("acme", "globex", "initech")


class Service:
    """A process of the service, with the keys that it is given."""

    def __init__(self, target: Target, secrets: dict[str, bytes], end: str = "") -> None:
        setting = Encryption(
            Keyset(secrets), key_for=lambda name, _: name.replace("/", ":").partition(":")[0], on_unavailable="skip"
        )
        options: Any = {"prefix": target.prefix + end, "encryption": setting}
        self.saver, self.store = RedisSaver(target.raw, **options), RedisStore(target.raw, **options)

        def bot(state: MessagesState, *, store: BaseStore) -> Any:
            said = state["messages"][-1].content
            tenant = str(said).partition(":")[0]
            store.put((tenant, "notes"), "last", {"said": said})
            return {"messages": [("ai", f"you said {said}")]}

        builder = StateGraph(MessagesState).add_node("bot", bot).set_entry_point("bot")
        self.graph = builder.compile(checkpointer=self.saver, store=self.store)

    def chat(self, tenant: str, text: str) -> list[str]:
        where: Any = {"configurable": {"thread_id": f"{tenant}:chat"}}
        answer = self.graph.invoke({"messages": [("user", f"{tenant}:{text}")]}, where)
        return [message.content for message in answer["messages"]]

    def threads(self) -> set[str]:
        return {saved.config["configurable"]["thread_id"] for saved in self.saver.list(None)}

    def notes(self) -> set[str]:
        return {item.namespace[0] for item in self.store.search((), limit=100)}


def test_tenants_rotate_are_shredded_and_move(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("REDIS_URL", "REDIS_SAVER_ENCRYPTION", "LANGGRAPH_AES_KEY"):
        monkeypatch.delenv(name, raising=False)
    secrets = {"primary": os.urandom(32), **{f"{tenant}/1": os.urandom(32) for tenant in TENANTS}}
    for tenant in TENANTS:
        Service(target, secrets).chat(tenant, "one")

    # acme's key is rotated
    secrets = {"primary": secrets["primary"], "acme/2": os.urandom(32), **secrets}
    service = Service(target, secrets)
    assert service.saver.rotate_keys().rotated == service.store.rotate_keys().rotated == 1
    del secrets["acme/1"]
    assert len(Service(target, secrets).chat("acme", "two")) == 4

    # globex is shredded
    del secrets["globex/1"]
    service = Service(target, secrets)
    with pytest.raises(KeyUnavailable, match="globex"):
        service.chat("globex", "two")
    assert len(service.chat("acme", "three")) == 6
    assert len(service.chat("initech", "two")) == 4
    assert service.threads() == {"acme:chat", "initech:chat"}
    assert service.notes() == {"acme", "initech"}
    values = service.saver.latest_values("messages", thread_prefix="")
    assert {value.thread_id for value in values} == {"acme:chat", "initech:chat"}
    pruned = service.saver.prune([f"{tenant}:chat" for tenant in TENANTS])
    assert pruned.checkpoints > 0
    assert service.saver.stats().unavailable >= 3 and service.store.stats().unavailable == 1

    # what is left moves to another prefix, by commands
    keys = "\n".join(f"{name}={base64.b64encode(key).decode()}" for name, key in secrets.items())
    (tmp_path / "keys").write_text(keys)
    prefixes = ("--source-prefix", target.prefix, "--target-prefix", f"{target.prefix}-there")
    for store in ((), ("--store",)):
        assert main(["migrate", target.url, target.url, *prefixes, "--keys-file", str(tmp_path / "keys"), *store]) == 1
        said = capsys.readouterr()
        assert "2 copied" in said.out and "globex" in said.err and "initech" not in said.err
    there = Service(target, secrets, "-there")
    assert there.threads() == {"acme:chat", "initech:chat"} and there.notes() == {"acme", "initech"}
    assert len(there.chat("acme", "four")) == 8

    # and what was shredded can be deleted
    service.saver.delete_thread("globex:chat")
    assert service.store.delete_namespace(("globex",)) == 1
    assert service.saver.key_status().threads == {"acme/2": 1, "initech/1": 1}
