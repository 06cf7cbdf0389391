"""The pages of `docs/`, which a wheel has, too: their files, sections, and names in messages and alerts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from redis_saver._engine.scripts import folder

FILES = {"alerts.yaml": "Alert rules for Prometheus", "grafana.json": "Dashboard for Grafana"}
"""Titles of the pages that are no Markdown."""
NAMED = re.compile(r"redis-saver docs ([\w-]+(?:\.\w+)?(?:#[\w-]+)?)")
"""A page, perhaps with a section, as messages and alerts name it."""
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


@cache
def files() -> Mapping[str, Path]:
    """Return the files of the pages by their names."""
    there = folder("docs")
    return {path.stem: path for path in sorted(there.glob("*.md"), key=lambda path: path.stem)} | {
        name: there / name for name in FILES
    }


def read(path: Path) -> str:
    """Return the text of a page."""
    return path.read_text("utf-8")


def sections(text: str) -> dict[str, int]:
    """Return the offset of each heading by its anchor."""
    without_code = _CODE.sub(lambda block: " " * len(block[0]), text)
    return {anchor(heading[1]): heading.start() for heading in HEADING.finditer(without_code)}


def anchor(heading: str) -> str:
    """Return the anchor of a heading, made as GitHub makes it."""
    return _NOT_IN_ANCHORS.sub("", heading.lower()).replace(" ", "-")
