"""The command `docs`: shows the pages of `docs/`, which a wheel has, too."""

from __future__ import annotations

import pydoc
import re
import sys
from pathlib import Path

import typer

from redis_saver._cli import screen
from redis_saver._cli.options import command
from redis_saver._common.display import shown
from redis_saver._common.keywords import did_you_mean
from redis_saver._engine.scripts import folder

_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")
_FILES = {"alerts.yaml": "Alert rules for Prometheus", "grafana.json": "Dashboard for Grafana"}


@command("docs")
def _docs(page: str | None = None) -> int:
    """Show a page of the documentation, or list all pages.

    On a terminal the page opens in a pager, $PAGER or less.

    Options:
        page PAGE: Name of a page, such as operations. With operations#rights, the page begins at that section.

    Exit codes:
        0: success.
        2: there is no such page or section.
    """
    if page is None:
        titles = [(name, _FILES.get(name) or _HEADING.findall(_read(path))[0]) for name, path in _pages().items()]
        screen.table(("page", "title"), titles)
        return 0
    text = text_of(page)
    if sys.stdout.isatty():
        pydoc.pager(text)
    else:
        screen.line(text.removesuffix("\n"))
    return 0


def text_of(page: str) -> str:
    """Return the text of a page, from the section on that follows its name after a `#`.

    Raises:
        BadParameter: There is no such page or section.
    """
    name, _, anchor = page.partition("#")
    name, pages = name.removesuffix(".md"), _pages()
    if name not in pages:
        what = f"there is no page {shown(name)}{did_you_mean(name, pages) or '.'}"
        raise typer.BadParameter(f"{what} All pages: redis-saver docs", param_hint="PAGE")
    text = _read(pages[name])
    starts = sections(text)
    if anchor and anchor not in starts:
        what = f"page {name} has no section {shown(anchor)}{did_you_mean(anchor, starts) or '.'}"
        raise typer.BadParameter(f"{what} The whole page: redis-saver docs {name}", param_hint="PAGE")
    return text[starts.get(anchor, 0) :]


def _pages() -> dict[str, Path]:
    """Return the files of the pages by their names."""
    there = folder("docs")
    return {path.stem: path for path in sorted(there.glob("*.md"), key=lambda path: path.stem)} | {
        name: there / name for name in _FILES
    }


def _read(path: Path) -> str:
    return path.read_text("utf-8")


def sections(text: str) -> dict[str, int]:
    """Return the offset of each heading by its anchor, made as GitHub makes it."""
    without_code = _CODE.sub(lambda block: " " * len(block[0]), text)
    return {
        _NOT_IN_ANCHORS.sub("", heading[1].lower()).replace(" ", "-"): heading.start()
        for heading in _HEADING.finditer(without_code)
    }
