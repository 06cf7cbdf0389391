"""Load the Lua scripts, from `lua/` beside the package in a checkout, or inside the package in a wheel."""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

_INCLUDE = re.compile(r"^[ \t]*--- @include (\S+)\n", re.MULTILINE)
_ENDS_OWNERSHIP = "--- @include lib/ends_ownership\n"
_RULES = re.compile(r"^-- Rules: (.*)\.$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)


def folder(name: str) -> Path:
    """Return a folder of the checkout, such as `lua`. A wheel has it inside the package, as `_lua`."""
    package = Path(__file__).parent.parent
    inside = package / f"_{name}"
    return inside if inside.is_dir() else package.parent / name


class Script(NamedTuple):
    """A Lua script with the rules of its header."""

    name: str
    text: str
    """The text as it is sent."""
    sha: str
    """Its digest for EVALSHA."""
    on_primary: Script | None = None
    """Rule `reads`: the script may end without a write. With `require_primary` this form of it is sent, which replicas
    refuse."""
    is_confirmed: bool = False
    """Rule `confirmed`: callers rely on its writes, so with `min_replicas` the driver waits for replicas."""
    is_owned: bool = False
    """Rule `owned`: it checks the writer, so it takes one more key and argument (`lua/lib/may_write.lua`)."""
    ends_ownership: bool = False
    """It includes `lua/lib/ends_ownership.lua`, so it takes the key of the waiters, too."""


def load(path: str) -> Script:
    """Read a script, with its includes and without comments. The script has the name of its file."""
    source = _read(path)
    rules = set(rule[1].split(", ")) if (rule := _RULES.search(source)) else set[str]()
    text = _COMMENT.sub("", _included(source, set()))
    return _made(path.rpartition("/")[2], text, rules)._replace(ends_ownership=_ENDS_OWNERSHIP in source)


def _read(path: str) -> str:
    return (folder("lua") / f"{path}.lua").read_text("utf-8")


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
"""The version of the storage format (`docs/storage-format.md`)."""
