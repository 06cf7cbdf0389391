"""Headers of the Lua scripts match the bodies, and the scripts run on every supported server."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path

from tests.support.cases import each
from tests.support.lua_server import lua51, lua54

from redis_saver import errors
from redis_saver._cache import cache as cache_scripts
from redis_saver._checkpoint import retention, scripts as checkpoint_scripts
from redis_saver._engine import probe as probe_scripts, replies, scripts
from redis_saver._store import scripts as store_scripts
from redis_saver._tiered import scripts as tiered_scripts

FOLDER = scripts.folder("lua")
NAMES = sorted(f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("*/*.lua") if path.parent.name != "lib")
COMMANDS = re.compile(r"redis\.p?call\('(\w+)'")


def split(name: str) -> tuple[str, str]:
    """Return the header and the body of a script."""
    text = (FOLDER / f"{name}.lua").read_text()
    match = re.match(r"(?:--(?!-).*\n)+", text)
    assert match, f"{name} has no header"
    return match[0], text[match.end() :]


def test_the_loaded_scripts_are_those_in_the_folder() -> None:
    modules = (cache_scripts, checkpoint_scripts, probe_scripts, store_scripts, tiered_scripts)
    values = [value for module in modules for value in vars(module).values()]
    loaded = {value.name for value in values if isinstance(value, scripts.Script)}
    assert loaded == {name.rpartition("/")[2] for name in NAMES}


def reachable(text: str) -> str:
    """Return a script without the functions that nothing in it calls."""
    for function in reversed(
        list(re.finditer(r"^local function (\w+)\((?:(?!^local function ).)*?^end\n", text, re.M | re.S))
    ):
        behind = text[function.end() :]
        if not re.search(rf"\b{function[1]}\b", behind):
            text = text[: function.start()] + behind
    return text


@each(NAMES)
def test_the_header_declares_keys_arguments_results_and_errors(name: str) -> None:
    header, body = split(name)
    full = reachable(scripts.load(name).text)
    for kind in ("KEYS", "ARGV"):
        declared = {int(n) for n in re.findall(rf"^-- {kind}\[(\d+)\b", header, re.MULTILINE)}
        for first, last in re.findall(rf"^-- {kind}\[(\d+)\.\.(\d+)\]", header, re.MULTILINE):
            declared.update(range(int(first), int(last) + 1))
        many = {int(n) for n in re.findall(rf"^-- {kind}\[(\d+)\.\.\]", header, re.MULTILINE)}
        assert declared == set(range(1, len(declared) + 1)), f"{kind} of {name} are not declared one by one"
        used = {int(n) for n in re.findall(rf"{kind}\[(\d+)\]", body)}
        for names in re.findall(rf"^local ([\w, ]+) = unpack\({kind}\)$", body, re.MULTILINE):
            used |= set(range(1, len(names.split(",")) + 1))
        assert used <= declared, f"{name} uses {kind} that its header does not name"
        assert kind == "ARGV" or used >= declared - many
        assert kind == "ARGV" or not many or re.search(r"\bKEYS\n|\bKEYS,", body), f"{name} does not use all KEYS"
    assert re.search(r"^-- (Returns|What .*\. Returns)", header, re.MULTILINE), f"{name} does not say what it returns"
    said = re.search(r"^-- Errors: (.*)\.$", header, re.MULTILINE)
    assert said, f"{name} does not say which errors it answers"
    codes = set(re.findall(r"'([A-Z]{5,}) ", full))
    assert codes <= set(errors._REMEDIES)
    # Callers of the other scripts name no parent.
    names_parent = name in ("checkpoint/put", "tiered/put_behind", "tiered/begin_intent")
    assert said[1] == (", ".join(sorted(codes - (set() if names_parent else {"STALEPARENT"}))) or "none of ours")
    for key in re.findall(r"^-- KEYS.*<prefix>.*", header, re.MULTILINE):
        ours = r"(sorted set|hash) +<prefix>:\{<thread>\}:(index|data|intents|lease|dirty|flush|waiters)\b|hash +<prefix>:unflushed\b|string +<prefix>:(scanning|\{<thread>\}:owner)\b"
        of_stores = (
            r"hash +<prefix>:store:\{<partition>\}:(items|namespaces|vectors|notes)\b"
            r"|sorted set +<prefix>:store:\{<partition>\}:(order|expiring|noted)\b"
            r"|string +<prefix>:store:\{<partition>\}:retired\b|sorted set +<prefix>:store:\{%\}:(partitions|deadlines)\b"
            r"|hash +<prefix>:store:\{%\}:tokens\b|hashes +<prefix>:store:documents:\{<partition>\}:<item>"
        )
        ours += r"|(string|sorted set) +<prefix>:cache:\{<shard>\}:(generation|index)\b"
        assert re.search(of_stores if name.startswith("store/") else ours, key)


def encoders() -> dict[str, tuple[str, ...]]:
    """Return the fields of the named arguments of scripts, by the script's name."""
    modules = (checkpoint_scripts, store_scripts, tiered_scripts)
    kinds = {name: kind for module in modules for name, kind in vars(module).items() if name.endswith("Arguments")}
    return {
        re.sub("(?<!^)([A-Z])", r"_\1", name.removesuffix("Arguments")).lower(): kind._fields
        for name, kind in kinds.items()
    }


def test_long_lists_of_arguments_have_the_names_of_the_header() -> None:
    """Those of an item come after `key`, and `ask` adds an announcement before all others."""
    found = encoders()
    for name in NAMES:
        declared = re.findall(r"^-- ARGV\[\d+\] +(\w+)", split(name)[0], re.MULTILINE)
        own = tuple(declared[2:] if declared[:2] == ["token", "announced"] else declared)
        own = own[1:] if own[:2] == ("key", "field") else own
        fields = found.pop(name.rpartition("/")[2], ())
        assert fields == own or (not fields and len(own) < 5), f"{name}: name its arguments as its header: {own}"
    assert not found, f"no script takes these: {sorted(found)}"


def test_all_fields_of_a_thread_are_known_and_explained() -> None:
    """A field that is in no list is foreign to `check`, and a rotation of keys drops it."""
    texts = [scripts.load(name).text for name in NAMES if name.startswith(("checkpoint/", "tiered/"))]
    fields = {field.decode() for field in retention.FIELDS}
    assert set(re.findall("'(@[a-z_]+)", "".join(texts))) <= fields
    explained = (FOLDER.parent / "docs" / "storage-format.md").read_text().partition("## The data")[2]
    assert set(re.findall(r"^\| `(@[a-z_]+)`", explained.partition("\n## ")[0], re.M)) == fields


@each(NAMES)
def test_the_script_compiles_in_each_lua(name: str) -> None:
    """Redis runs Lua 5.1, Dragonfly and Garnet 5.4."""
    for module in (lua51, lua54):
        compiles = module.LuaRuntime(encoding=None).eval(b"loadstring or load")
        assert compiles(scripts.load(name).text.encode()) is not None


@each(NAMES)
def test_the_body_names_its_keys_first(name: str) -> None:
    """KEYS are bound to names at the top, and not used below."""
    _, body = split(name)
    lines = [line for line in body.splitlines() if line and not line.startswith("--")]
    uses = [number for number, line in enumerate(lines) if "KEYS" in line]
    assert uses
    assert max(uses) < 6


@each(NAMES)
def test_scripts_use_only_commands_of_every_server(name: str) -> None:
    text = scripts.load(name).text
    assert not text.startswith("#!")
    assert not re.search(r"\b(cjson|cmsgpack|struct|bit)\.", text)
    core = {
        "EXISTS", "GET", "GETRANGE", "HDEL", "HEXISTS", "HGET", "HLEN", "HMGET", "HSET", "HSTRLEN", "PERSIST", "PEXPIRE",
        "PEXPIREAT", "PTTL", "RENAME", "SET", "TIME", "UNLINK", "ZADD", "ZCARD", "ZCOUNT", "ZLEXCOUNT", "ZRANDMEMBER",
        "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZREM", "ZREMRANGEBYRANK", "ZREVRANGEBYLEX", "ZSCORE",
    }  # fmt: skip
    of_stores = {"HSCAN", "ZREVRANGE", "ZREVRANGEBYSCORE"}
    assert set(COMMANDS.findall(text)) <= (core | of_stores if name.startswith("store/") else core)


@each(NAMES)
def test_error_texts_have_no_names_of_keys_and_no_control_characters(name: str) -> None:
    """Some servers cut an error at a zero byte, or end the reply at a line break."""
    text = scripts.load(name).text
    assert len(re.findall(r"\berror\(", text)) == len(
        re.findall(r"\berror\(\(string.gsub\(text, '%c', '\?'\)\)\)", text)
    )
    keys = r"data|index|items|order|expiring|namespaces|vectors|retired|notes|partitions|tokens|KEYS"
    assert not re.search(rf"\b(error_reply|fail|stop)\([^\n]*\.\. ({keys})\b", text)


WRITES = {
    "HDEL", "HSET", "PERSIST", "PEXPIRE", "PEXPIREAT", "RENAME", "SET", "UNLINK", "ZADD", "ZREM", "ZREMRANGEBYRANK",
}  # fmt: skip


@each(NAMES)
def test_declared_rules_are_known_and_hold(name: str) -> None:
    """A script without a write has only the rule `reads`."""
    said = re.findall(r"^-- Rules: (.*)\.$", split(name)[0], re.MULTILINE)
    rules = set(said[0].split(", ")) if said else set[str]()
    assert len(said) <= 1 and rules <= {"reads", "confirmed", "owned"}
    writes = set(COMMANDS.findall(scripts.load(name).text)) & WRITES
    assert writes or rules == {"reads"}
    script = scripts.load(name)
    assert (script.on_primary is not None, script.is_confirmed, script.is_owned) == tuple(
        rule in rules for rule in ("reads", "confirmed", "owned")
    )


BLOCK = re.compile(
    r"""--.*|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\b(?P<begins>function|do|if|repeat)\b|\b(?P<ends>end|until)\b"""
)
"""A keyword that begins or ends a block. Comments and strings have none."""


def included_inside_a_block(source: str) -> list[str]:
    """Return the files that a script includes where the rest of the script would not see their functions."""
    found = []
    for include in re.finditer(r"^[ \t]*--- @include (\S+)\n", source, re.MULTILINE):
        words = [
            match.lastgroup
            for match in BLOCK.finditer(re.sub(r"^\s*--.*\n", "", source[: include.start()], flags=re.M))
        ]
        found += [include[1]] if words.count("begins") != words.count("ends") else []
    return found


def test_no_include_is_inside_a_block() -> None:
    assert not [path.name for path in FOLDER.glob("*/*.lua") if included_inside_a_block(path.read_text())]


@each(
    {
        "if a then\n  --- @include lib/f\n  f()\nend\n": True,
        "if a then\n--- @include lib/f\nf()\nend\n": True,
        "local function g()\n--- @include lib/f\nend\n": True,
        "for i = 1, 2 do repeat\n--- @include lib/f\nuntil f()\nend\n": True,
        "do\n--- @include lib/f\nend\n": True,
        "--- @include lib/f\nif f() then f() end\n": False,
        "local a = 'if' -- do\nif a then return end\n--- @include lib/f\n": False,
    }.items()
)
def test_an_include_inside_a_block_is_found(case: tuple[str, bool]) -> None:
    source, is_inside = case
    assert included_inside_a_block(source) == (["lib/f"] if is_inside else [])


def test_a_checkout_has_the_scripts_in_its_folder_lua() -> None:
    assert Path("lua").resolve() == FOLDER.resolve()


def test_every_lua_function_is_called() -> None:
    sources = [re.sub(r"--.*", "", path.read_text()) for path in FOLDER.glob("*/*.lua")]
    names = {name for source in sources for name in re.findall(r"\bfunction (\w+)\(", source)}
    assert not [name for name in names if not any(re.search(rf"(?<!function )\b{name}\b", each) for each in sources)]


@each(NAMES)
def test_every_called_lua_function_is_defined(name: str) -> None:
    text = scripts.load(name).text
    made = set(re.findall(r"\bfunction (\w+)\(", text))
    called = set(re.findall(r"(?<![.\w])\b([a-z_]+)\(", re.sub(r"\bfunction (\w+)\(", "", text)))
    words = set(
        "and function if not or return visit error ipairs pairs pcall select tonumber tostring type unpack".split()
    )
    assert called - words <= made


KINDS = [kind for kind in vars(replies).values() if isinstance(kind, type) and issubclass(kind, IntEnum)][1:]
CODES = {name: kind for kind in KINDS for name in re.findall(r"`lua/(\w+/\w+)\.lua`", kind.__doc__ or "")}
"""The codes of each script. The docstring of the codes names it."""


@each(NAMES)
def test_reply_codes_match_in_lua_and_python(name: str) -> None:
    """The header, the body and `redis_saver/_engine/replies.py` agree, and each code is returned somewhere."""
    header, body = split(name)
    declared = {code: int(number) for code, number in re.findall(r"^--   ([A-Z_]+) +(-?\d+)  \S", header, re.MULTILINE)}
    known = {code.name: code.value for code in CODES.get(name, replies.StoreReply)}
    if name.startswith("store/"):  # each script has some of them
        assert declared.items() <= known.items()
    else:
        assert declared == (known if name in CODES else {})
    made = re.search(rf"^local {', '.join(declared)} = {', '.join(map(str, declared.values()))}$", body, re.MULTILINE)
    assert made or not declared
    for code in declared:
        assert len(re.findall(rf"\b{code}\b", reachable(scripts.load(name).text))) > 1, f"{name} never answers {code}"


def test_every_reply_code_belongs_to_a_script() -> None:
    assert {*KINDS} == {*CODES.values(), replies.StoreReply} and {*CODES} <= {*NAMES}
    of_stores = {
        code
        for name in NAMES
        if name.startswith("store/")
        for code in re.findall(r"^--   ([A-Z_]+) +\d", split(name)[0], re.MULTILINE)
    }
    assert of_stores == {code.name for code in replies.StoreReply}
