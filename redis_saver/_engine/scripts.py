"""The Lua scripts: `lua/` beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

_INCLUDE = re.compile(r"^--- @include (lib/\w+)\n", re.MULTILINE)
_RULES = re.compile(r"^-- Rules: (.*)\.$", re.MULTILINE)
_CONDITION = re.compile(r"^-- (Ends ownership if|Waits if): (.*)\.$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)\((?:(?!^local function ).)*?^end\n", re.MULTILINE | re.DOTALL)


def _folder() -> Path:
    package = Path(__file__).parent.parent
    return package / "_lua" if (package / "_lua").is_dir() else package.parent / "lua"


class Script(NamedTuple):
    """A Lua script, and what the line `Rules:` of its header says of it."""

    name: str
    text: str
    """The text as it is sent."""
    sha: str
    """The digest that EVALSHA names it by."""
    on_primary: Script | None = None
    """`reads`, it may end without a write: its form that a replica refuses (READONLY), for `require_primary`."""
    is_confirmed: bool = False
    """`confirmed`: callers rely on what it wrote, so it waits for replicas, with `min_replicas`."""
    is_owned: bool = False
    """`owned`: it has a form that first looks who may write."""


def _used(text: str) -> str:
    """Return a script without unused functions, as the server makes all functions anew at each call."""
    for function in reversed(list(_FUNCTION.finditer(text))):
        # From the last one backwards, because each calls only those before it.
        name, behind = function[1], text[function.end() :]
        at = behind.find(name)  # much faster than the expression, which then has little to look at
        if at < 0 or not re.compile(rf"\b{name}\b").search(behind, at):
            text = text[: function.start()] + behind
    return text


def load(path: str) -> Script:
    """Read a script, with its includes, and without comments and unused functions. Its name is that of its file."""
    source = _read(path)
    rules = set(rule[1].split(", ")) if (rule := _RULES.search(source)) else set[str]()
    text = _used(_COMMENT.sub("", _INCLUDE.sub(_included, source)))
    return _made(path.rpartition("/")[2], text, rules)


def _read(path: str) -> str:
    return (_folder() / f"{path}.lua").read_text("utf-8")


def _included(include: re.Match[str]) -> str:
    return _read(include[1])


def _made(name: str, text: str, rules: Collection[str]) -> Script:
    on_primary = None
    if "reads" in rules:
        on_primary = _made(name, _COMMENT.sub("", _read("lib/on_primary")) + text, {*rules} - {"reads"})
    sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha, on_primary, "confirmed" in rules, "owned" in rules)


FORMAT = int(re.findall(r"^local FORMAT = (\d+)$", _read("lib/thread"), re.MULTILINE)[0])
"""The format of what is stored (`docs/storage-format.md`)."""

PUT = load("checkpoint/put")
PUT_WRITES = load("checkpoint/put_writes")
GET = load("checkpoint/get")
BEGIN_INTENT = load("tiered/begin_intent")
END_INTENT = load("tiered/end_intent")
ENROLL = load("tiered/enroll")
REPAIR = load("tiered/repair")
PUT_THROUGH = load("tiered/put_through")
PUT_WRITES_THROUGH = load("tiered/put_writes_through")
PUT_BEHIND = load("tiered/put_behind")
PUT_WRITES_BEHIND = load("tiered/put_writes_behind")
PUT_TOMBSTONE = load("tiered/put_tombstone")
ERASE = load("tiered/erase")
CLAIM = load("tiered/claim")
ACK = load("tiered/ack")
RELEASE = load("tiered/release")
ROLL_BACK = load("tiered/roll_back")
BACKLOG_STATS = load("tiered/backlog_stats")
PUBLISH = load("tiered/publish")
REPORT_BACKLOG = load("tiered/report_backlog")
PUBLISH_BACKLOG = load("tiered/publish_backlog")
FILL_LEASE = load("tiered/fill_lease")
FILL = load("tiered/fill")
FILL_NOTHING = load("tiered/fill_nothing")
LIST = load("checkpoint/list")
GET_MANY = load("checkpoint/get_many")
HISTORY = load("checkpoint/history")
HAS_RUNS = load("checkpoint/has_runs")
LIST_REFERENCES = load("checkpoint/list_references")
CHUNK_LISTS = load("checkpoint/chunk_lists")
REMOVE = load("checkpoint/remove")
DELETE_THREAD = load("checkpoint/delete_thread")
READ_FIELDS = load("checkpoint/read_fields")
STAGE = load("checkpoint/stage")
PROMOTE = load("checkpoint/promote")
CHECK = load("checkpoint/check")
THREAD_INFO = load("checkpoint/thread_info")
AUDIT = load("checkpoint/audit")
GET_CHANNEL = load("checkpoint/get_channel")
SET_TTL = load("checkpoint/set_ttl")
TAKE_OWNERSHIP = load("checkpoint/take_ownership")
RENEW_OWNERSHIP = load("checkpoint/renew_ownership")
RELEASE_OWNERSHIP = load("checkpoint/release_ownership")
PUT_ITEMS = load("store/put_items")
IMPORT_ITEMS = load("store/import_items")
EXPORT_ITEMS = load("store/export_items")
GET_ITEMS = load("store/get_items")
SEARCH_ITEMS = load("store/search_items")
GET_VECTORS = load("store/get_vectors")
DOCUMENT_ITEMS = load("store/document_items")
LIST_ITEMS = load("store/list_items")
COUNT_NAMESPACES = load("store/count_namespaces")
SWEEP_ITEMS = load("store/sweep_items")
ANNOUNCE = load("store/announce")
WITHDRAW = load("store/withdraw")
LIST_PARTITIONS = load("store/list_partitions")
SET_ENTRIES = load("cache/set_entries")
SWEEP_ENTRIES = load("cache/sweep_entries")
GET_COPIES = load("store/get_copies")
FILL_COPIES = load("store/fill_copies")
BEGIN_WRITES = load("store/begin_writes")
END_WRITES = load("store/end_writes")
MARK_COMPLETE = load("store/mark_complete")
CHECK_COMPLETE = load("store/check_complete")


def _guarded(package: str) -> dict[Script, Script]:
    """Return the owned scripts of a package, each with its form that first looks who may write.

    The form takes one more key, `owner`, and one more argument, `writer`: the writer's token, or nothing; a space; `!` if
    it has no token and the saver requires one; and, to have the parent looked at, the checkpoint's member of the index,
    and its parent's id as a component.

    A header may have two conditions: `Ends ownership if`, to remove the owner's key, and `Waits if`, to answer
    `IntentReply.WAIT` because the parent has to be the newest, and others still write to cold.
    """
    front, ending = (_INCLUDE.sub(_included, _read(f"lib/{name}")) for name in ("may_write", "ends_ownership"))
    made = {}
    for script in [each for each in globals().values() if isinstance(each, Script) and each.is_owned]:
        if not (_folder() / package / f"{script.name}.lua").exists():
            continue
        header = dict(_CONDITION.findall(_read(f"{package}/{script.name}")))
        refusal = f"if {header['Waits if']} then return {{ 5, 0, 0 }} end" if "Waits if" in header else ""
        text = script.text
        if "Ends ownership if" in header:
            text = ending.replace("ENDED", header["Ends ownership if"]).replace("--- @script\n", text + "\n")
        text = _used(_COMMENT.sub("", front.replace("--- @waits\n", refusal + "\n"))) + _COMMENT.sub("", text)
        made[script] = _made(script.name, text, {"confirmed"} if script.is_confirmed else ())
    return made


GUARDED = _guarded("checkpoint")
"""Owned scripts on one server, in the form that looks who may write."""
GUARDED_TIERED = _guarded("tiered")
"""The same over two tiers. Scripts that end a write are not among them, as cold has it by then."""
