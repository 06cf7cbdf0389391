"""The Lua scripts: `lua/` beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import re
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

_INCLUDE = re.compile(r"^--- @include (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)\((?:(?!^local function ).)*?^end\n", re.MULTILINE | re.DOTALL)


def _folder() -> Path:
    inside = Path(__file__).parent / "lua"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "lua"


class Script(NamedTuple):
    """A script's name, its text as it is sent, and the digest that EVALSHA names it by."""

    name: str
    text: str
    sha: str


def _used(text: str) -> str:
    """A script without the functions that nothing calls: the server makes those in use anew at each call."""
    for function in reversed(list(_FUNCTION.finditer(text))):
        # From the last on, as each calls only those before it.
        name, behind = rf"\b{function[1]}\b", text[function.end() :]
        if not re.search(name, behind):
            text = text[: function.start()] + behind
    return text


def load(name: str) -> Script:
    """Read a script, with what it uses of what it includes in place, and comments left out."""
    folder = _folder()

    def included(match: re.Match[str]) -> str:
        return (folder / f"{match[1]}.lua").read_text("utf-8")

    text = _INCLUDE.sub(included, (folder / f"{name}.lua").read_text("utf-8"))
    return _made(name, _used(_COMMENT.sub("", text)))


def _made(name: str, text: str) -> Script:
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


PUT = load("put")
PUT_WRITES = load("put_writes")
GET = load("get")
DOUBT = load("doubt")
TRUST = load("trust")
ADOPT = load("adopt")
MEND = load("mend")
PUT_THROUGH = load("put_through")
PUT_WRITES_THROUGH = load("put_writes_through")
PUT_BEHIND = load("put_behind")
PUT_WRITES_BEHIND = load("put_writes_behind")
BURY = load("bury")
ERASE = load("erase")
TAKE = load("take")
SETTLE = load("settle")
RELEASE = load("release")
LAG = load("lag")
ANNOUNCE = load("announce")
LEASE = load("lease")
RESTORE = load("restore")
LIST = load("list")
LOAD = load("load")
HISTORY = load("history")
RUNS = load("runs")
SURVEY = load("survey")
PARTS = load("parts")
REMOVE = load("remove")
WIPE = load("wipe")
FETCH = load("fetch")
STAGE = load("stage")
INSTALL = load("install")
CHECK = load("check")
DESCRIBE = load("describe")
EXPIRE = load("expire")

_GUARD = """
local refused = redis.pcall('UNLINK', KEYS[1] .. '.primary')
if type(refused) == 'table' and refused.err and not string.find(refused.err, 'NOREPLICAS') and not string.find(refused.err, 'MISCONF') then
  return refused
end
"""
"""In front of a script: a write that changes nothing, which only a primary takes. (One that refuses writes as it lacks replicas or cannot save may be
read.) It must not be in front of a script that stores values: a full server does not refuse what follows a script's first write."""
_READING = (GET, LIST, LOAD, HISTORY, RUNS, SURVEY, PARTS, FETCH, CHECK, DESCRIBE, EXPIRE, LAG)
ON_PRIMARY = {script: _made(script.name, _GUARD + script.text) for script in _READING}
"""Those that may end without a write, as a replica refuses them (READONLY)."""
ACKNOWLEDGED = frozenset((PUT, PUT_WRITES, PUT_BEHIND, PUT_WRITES_BEHIND, BURY, WIPE, INSTALL, EXPIRE))
"""Those that write what a caller may rely on from then on, with `min_replicas`. Removing old checkpoints again does no harm, nor does writing what cold has."""
