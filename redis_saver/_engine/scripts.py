"""The Lua scripts: `lua/` beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

_INCLUDE = re.compile(r"^--- @include (lib/\w+)\n", re.MULTILINE)
_RULES = re.compile(r"^-- Rules: (.*)\.$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)


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
    """`owned`: it looks who may write, so it takes one more key and argument (`lua/lib/may_write.lua`)."""


def load(path: str) -> Script:
    """Read a script, with its includes and without comments. Its name is that of its file."""
    source = _read(path)
    rules = set(rule[1].split(", ")) if (rule := _RULES.search(source)) else set[str]()
    text = _COMMENT.sub("", _included(source, set()))
    return _made(path.rpartition("/")[2], text, rules)


def _read(path: str) -> str:
    return (_folder() / f"{path}.lua").read_text("utf-8")


def _included(source: str, files: set[str]) -> str:
    """Return a source with the files that it includes, and those that they include, each once."""

    def content(include: re.Match[str]) -> str:
        if include[1] in files:
            return ""
        files.add(include[1])
        return _included(_read(include[1]), files)

    return _INCLUDE.sub(content, source)


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
