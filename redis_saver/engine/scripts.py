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
    package = Path(__file__).parent.parent
    return package / "lua" if (package / "lua").is_dir() else package.parent / "lua"


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


FORMAT = int(re.findall(r"^local FORMAT = (\d+)$", (_folder() / "lib_thread.lua").read_text("utf-8"), re.MULTILINE)[0])
"""The format of what is stored (`docs/storage-format.md`)."""

PUT = load("put")
PUT_WRITES = load("put_writes")
GET = load("get")
BEGIN_INTENT = load("begin_intent")
END_INTENT = load("end_intent")
ENROLL = load("enroll")
REPAIR = load("repair")
PUT_THROUGH = load("put_through")
PUT_WRITES_THROUGH = load("put_writes_through")
PUT_BEHIND = load("put_behind")
PUT_WRITES_BEHIND = load("put_writes_behind")
PUT_TOMBSTONE = load("put_tombstone")
ERASE = load("erase")
CLAIM = load("claim")
ACK = load("ack")
RELEASE = load("release")
BACKLOG_STATS = load("backlog_stats")
PUBLISH = load("publish")
FILL_LEASE = load("fill_lease")
FILL = load("fill")
LIST = load("list")
GET_MANY = load("get_many")
HISTORY = load("history")
HAS_RUNS = load("has_runs")
LIST_REFERENCES = load("list_references")
CHUNK_LISTS = load("chunk_lists")
REMOVE = load("remove")
DELETE_THREAD = load("delete_thread")
READ_FIELDS = load("read_fields")
STAGE = load("stage")
PROMOTE = load("promote")
CHECK = load("check")
THREAD_INFO = load("thread_info")
SET_TTL = load("set_ttl")

_GUARD = """
local refused = redis.pcall('UNLINK', KEYS[1] .. '.primary')
if type(refused) == 'table' and refused.err and not string.find(refused.err, 'NOREPLICAS') and not string.find(refused.err, 'MISCONF') then
  return refused
end
"""
"""In front of a script: a write that changes nothing, which only a primary takes. (One that refuses writes as it lacks replicas or cannot save may be
read.) It must not be in front of a script that stores values: a full server does not refuse what follows a script's first write."""
_READING = (
    GET,
    LIST,
    GET_MANY,
    HISTORY,
    HAS_RUNS,
    LIST_REFERENCES,
    CHUNK_LISTS,
    READ_FIELDS,
    CHECK,
    THREAD_INFO,
    SET_TTL,
    BACKLOG_STATS,
)
ON_PRIMARY = {script: _made(script.name, _GUARD + script.text) for script in _READING}
"""Those that may end without a write, as a replica refuses them (READONLY)."""
ACKNOWLEDGED = frozenset(
    (PUT, PUT_WRITES, PUT_BEHIND, PUT_WRITES_BEHIND, PUT_TOMBSTONE, DELETE_THREAD, PROMOTE, SET_TTL)
)
"""Those that write what a caller may rely on from then on, with `min_replicas`. Removing old checkpoints again does no harm, nor does writing what cold has."""
