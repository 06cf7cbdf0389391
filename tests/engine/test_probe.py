"""The probe finds what each unfit server lacks, and nothing on a supported one."""

from __future__ import annotations

import json
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.support.acl import acl_rule
from tests.support.factories import config, late_id, put
from tests.support.lua_server import LuaServer
from tests.support.servers import RELEASES, TARGETS, Server, releases, url_of
from tests.support.uniform import Target
from tests.support.wrappers import ran

from redis_saver import AsyncRedisCache, RedisCache, RedisSaver, UnsupportedServer
from redis_saver._checkpoint.saver import driver_of
from redis_saver._cli.main import main
from redis_saver._engine import probe
from redis_saver._store import writing

NO_COMMAND = b"ERR unknown command"
_SCORES = b"""
for _, name in ipairs({ 'call', 'pcall' }) do
  local run = redis[name]
  redis[name] = function(command, ...)
    local reply = run(command, ...)
    return command == 'ZSCORE' and type(reply) == 'string' and string.format('%s', reply) or reply
  end
end"""
"""Writes the score of ZSCORE in another way."""
NO_HELLO = {
    "faults": {"HELLO": NO_COMMAND + b" `HELLO`, with args beginning with: `3`, `AUTH`, `default`, `hunter2`, "}
}
"""Redis 5, which repeats a password."""
_SHORT = b"local f = string.format string.format = function(p, ...) return f((p:gsub('%.0f', '.6g')), ...) end"
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "no HELLO": (NO_HELLO, "does not know the command HELLO: redis_saver needs redis 6.2 or"),
    "no EVAL": ({"forgets": True, "faults": {"EVAL": NO_COMMAND + b" 'EVAL'"}}, "runs no Lua scripts"),
    "no unpack": ({"prelude": b"rawset(_G, 'unpack', nil)"}, "variable 'unpack'.*cannot be used"),
    "another string.find": ({"prelude": b"string.find = function() return 1 end"}, "string.find: 1;?"),
    "short numbers": ({"prelude": _SHORT}, "string.format"),
    "short scores": ({"prelude": _SCORES % b"%.6g"}, r"ZSCORE: 1\.76427e\+15;?"),
    "floats for integers": ({"prelude": b"math.floor = function(x) return x // 1 + 0.0 end"}, "numbers: 3.0 17"),
    "integers of 32 bits": ({"bits": 32}, "replies: .*9007199254740992"),
}
NO_LUA = b"ERR This instance has Lua scripting support disabled"
NO_ENGINE = b"ERR Could not find scripting engine 'lua'"
FAULTS: dict[str, tuple[str, bytes, str]] = {
    "no EVALSHA": ("EVALSHA", NO_COMMAND + b" 'EVALSHA'", "runs no Lua scripts.*--lua"),
    "no Lua in Garnet": ("EVALSHA", NO_LUA, "runs no Lua scripts.*--lua-transaction-mode"),
    "no Lua in Valkey": ("EVALSHA", NO_ENGINE, "runs no Lua scripts.*load the module lua"),
    "no rights to EVALSHA": ("EVALSHA", b"NOPERM no", "rights do not suffice: redis-saver docs operations#rights"),
    "no TIME": ("script TIME", b"ERR not allowed from script", "TIME: ERR not allowed"),
    "no PEXPIREAT": ("script PEXPIREAT", NO_COMMAND, "PEXPIREAT: ERR unknown.*lacks the command"),
    "no rights within scripts": ("script HDEL", b"NOPERM no", "HDEL: NOPERM.*rights do not suffice"),
}
UNFIT |= {what: ({"faults": {command: reply}}, said) for what, (command, reply, said) in FAULTS.items()}


@pytest.fixture
def unfit() -> Iterator[Callable[..., LuaServer]]:
    made: list[LuaServer] = []

    def start(**options: Any) -> LuaServer:
        made.append(LuaServer(int(url_of("redis").rpartition(":")[2]), **options))
        return made[-1]

    yield start
    for each in made:
        each.stop()


@pytest.mark.everywhere
@pytest.mark.parametrize("target_name", [*TARGETS, *releases()])
async def test_a_supported_server_passes_and_keeps_nothing(target: Target) -> None:
    saver = target.uniform()
    await saver.setup()
    await target.store().setup()
    with RedisSaver.from_conn_string(target.url, prefix=target.prefix) as blocking:
        assert driver_of(blocking).run(probe.probe(target.prefix, everything=True)) == ("", [])
    assert target.keys() == []
    if target.name in RELEASES:
        info = target.raw.info("server")
        kind = "Valkey" if "valkey_version" in info else "Redis"
        version = info.get("valkey_version", info["redis_version"])
        assert f"{kind} {version}.".startswith(RELEASES[target.name].replace("Stack ", "") + ".")


@pytest.mark.parametrize("protocol", [2, 3])
def test_both_protocols_pass(protocol: int) -> None:
    with RedisSaver.from_conn_string(url_of("redis"), client_options={"protocol": protocol}) as saver:
        saver.setup()
        assert driver_of(saver).run(probe.probe("p", everything=True)) == ("", [])
        assert probe.is_isolated(driver_of(saver), "p")


def test_setup_takes_two_round_trips() -> None:
    with RedisSaver.from_conn_string(url_of("redis")) as saver:
        saver.setup()  # may have to send the text
        before = saver.stats().round_trips
        saver.setup()
        assert saver.stats().round_trips - before == 2


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_scripts_use_scores_as_numbers(flavour: str, unfit: Any) -> None:
    target = Target("redis", flavour, unfit(prelude=_SCORES % b"%.1f").url, f"scores{os.getpid()}")
    saver, store = target.uniform(), target.store()
    await saver.setup()
    await store.setup()
    newest = await put(saver, config(), {"n": 1})
    assert await saver.get_tuple(newest) is not None
    await store.put(("a", "b"), "k", {"n": 1}, ttl=5)
    context = store.saver._context
    place = context.places.of(("a", "b"))
    (item,) = await ran(store, writing.read_items(context, place.partition, [place.field(context.places.key("k"))]))
    assert 0 < item.expires_at / 1000 - time.time() <= 300
    await target.close()


@pytest.mark.by_turns
@pytest.mark.parametrize("what", UNFIT)
@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_setup_refuses_a_server_that(what: str, flavour: str, unfit: Any) -> None:
    options, message = UNFIT[what]
    target = Target("redis", flavour, unfit(**options).url, f"unfit{os.getpid()}")
    for made in (target.uniform(), target.store()):
        with pytest.raises(UnsupportedServer, match=message):
            await made.setup()
    await target.close()


@pytest.mark.parametrize("options", ["", "?protocol=2"])
@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_a_server_without_hello_is_named_whatever_makes_the_client(
    flavour: str, options: str, unfit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    url = unfit(**NO_HELLO).url
    target = Target("redis", flavour, url + options, "p")
    module: Any = redis.asyncio if flavour == "async" else redis
    own = module.Redis.from_url(url + options, **({} if options else {"password": "hunter2", "protocol": 3}))
    caches: dict[str, Any] = {"sync": RedisCache, "async": AsyncRedisCache}
    calls = [target.uniform().setup, target.uniform(client=own).setup, caches[flavour](own).asetup]
    saved = config(checkpoint_id=late_id(1))
    if not options:  # each call begins with HELLO
        calls.append(partial(target.uniform().get_tuple, config()))
        calls.append(partial(target.uniform(client=own, min_replicas=1).put_writes, saved, [("n", 1)], "task"))
        calls.append(partial(target.uniform(client=own).threads))
    for call in calls:
        with pytest.raises(UnsupportedServer, match="HELLO.*Update the server") as caught:
            await call()
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in caplog.text
    await own.aclose() if flavour == "async" else own.close()
    await target.close()


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_a_cluster_without_hello_is_named(flavour: str, unfit: Any) -> None:
    url = unfit(**NO_HELLO).url.replace("redis://", "redis+cluster://") + "?protocol=3"
    target = Target("cluster", flavour, unfit().url, "p")
    with pytest.raises(UnsupportedServer, match="HELLO"):
        await target.uniform(client=target.client(url=url)).setup()
    await target.close()


def test_the_command_line_names_a_server_without_hello(unfit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("doctor", "stats", "threads"):
        assert main([command, "--redis", unfit(**NO_HELLO).url]) == 2
        assert re.fullmatch("redis-saver: the server does not know the command HELLO.*\n", capsys.readouterr().err)


def test_other_errors_pass_unchanged(unfit: Any) -> None:
    busy = b"BUSY Redis is busy running a script", redis.ResponseError
    for text, kind in ((b"LOADING wait", redis.BusyLoadingError), busy, (b"OOM no memory", redis.OutOfMemoryError)):
        url = unfit(faults={"EVALSHA": text}).url
        with RedisSaver.from_conn_string(url, client_options={"retry": None}) as saver, pytest.raises(kind):
            saver.setup()


@pytest.mark.parametrize("text", [b"READONLY replica", b"OOM full", b"NOPERM no", b"MISCONF disk"])
def test_setup_skips_writes_that_are_refused_for_now(text: bytes, unfit: Any) -> None:
    with RedisSaver.from_conn_string(unfit(faults={"script HSET": text}).url) as saver:
        saver.setup()
        assert driver_of(saver).run(probe.probe("p")).refused == text.decode()


def test_the_documented_rights_suffice_and_each_one_is_missed() -> None:
    server = Server()
    raw, rule = server.client(), acl_rule("standalone").split()
    raw.execute_command(*rule)
    url = f"redis://checkpoints:secret@127.0.0.1:{server.port}"
    with RedisSaver.from_conn_string(url) as saver:
        saver.setup()
        denied = {entry["object"] for entry in raw.acl_log()}
        assert denied <= {"client", "client|setinfo"}
        for name in (word[1:] for word in rule if word.startswith("+")):
            if name in ("eval", "scan"):  # the server knows the script; SCAN is in none
                continue
            raw.execute_command("ACL", "SETUSER", "checkpoints", f"-{name}")
            if name == "hset":  # a user who only reads
                saver.setup()
            else:
                with pytest.raises(UnsupportedServer, match=name.upper() if name != "evalsha" else "script"):
                    saver.setup()
            raw.execute_command("ACL", "SETUSER", "checkpoints", f"+{name}")
    server.stop()


def test_scripts_that_do_not_run_alone_are_noticed(unfit: Any) -> None:
    for isolated in (False, True):
        with RedisSaver.from_conn_string(unfit(isolated=isolated).url) as saver:
            assert probe.is_isolated(driver_of(saver), "p") is isolated


DOCTOR: dict[str, tuple[dict[str, Any], int, str]] = {
    "not isolated": ({"isolated": False}, 1, "error +scripts.*other commands run between.*--lua-transaction-mode"),
    "no scripts": ({"faults": {"EVALSHA": NO_COMMAND + b" 'EVALSHA'"}}, 1, "error +scripts.*runs no Lua scripts"),
    "NOSCRIPT for ever": ({"forgets": True}, 1, "warning +scripts +NOSCRIPT follows an EVAL"),
    "few arguments": ({"max_arguments": 1000}, 1, "error +scripts.*too many arguments.*raise its limit"),
    "no rights to SET": ({"faults": {"script SET": b"NOPERM no"}}, 0, "info +rights +SET: NOPERM no"),
    "no ZREVRANGE": ({"faults": {"script ZREVRANGE": NO_COMMAND}}, 1, "error +scripts +ZREVRANGE.*lacks the command"),
    "no ACL WHOAMI": (
        {"faults": {"ACL": b"ERR unknown subcommand 'WHOAMI'. Try ACL HELP. NOPERM"}},
        0,
        r"server +the server refuses ACL WHOAMI \(ResponseError: unknown subcommand",
    ),
    "a replica": ({"faults": {"script HSET": b"READONLY no"}}, 0, "info +scripts +writes were not tried: READONLY"),
}


@pytest.mark.parametrize("what", DOCTOR)
def test_doctor_reports(what: str, unfit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options, code, text = DOCTOR[what]
    assert main(["doctor", "--redis", unfit(**options).url, "--prefix", "p"]) == code
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(text, out), out


REFUSED = {
    NO_COMMAND + b" 'INFO'": ("server", "the server refuses INFO (ResponseError: unknown command 'INFO')"),
    b"NOPERM this user has no permissions to run the 'info' command": ("rights", "this user may not call INFO"),
}


@pytest.mark.parametrize("reply", REFUSED)
def test_a_missing_command_is_no_missing_right(reply: bytes, unfit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    url, (about, what) = unfit(faults={"INFO": reply}).url, REFUSED[reply]
    assert main(["doctor", "--redis", url, "--prefix", "p", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["what"] for one in found if one["about"] == about] == [what + ", so that was not checked"]
    assert main(["stats", "--redis", url, "--prefix", "p"]) == 0
    assert capsys.readouterr().err == what + "\n"
