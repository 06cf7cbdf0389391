"""The command `docs`: shows the pages of `docs/`, which a wheel has, too."""

from __future__ import annotations

import pydoc
import re
import sys

import typer

from redis_saver._cli import screen
from redis_saver._cli.options import command
from redis_saver._common.display import did_you_mean, shown
from redis_saver._inspector.manual import FILES, HEADING, files, read, sections

_ALERTS = "alerts.yaml"
_RUNBOOK = re.compile(r"^( *)runbook: redis-saver docs (\S+)$", re.MULTILINE)
_INSPECTOR = re.compile(r"""https?://[^\s/?#'"][^\s?#'"]*""")


@command("docs")
def _docs(page: str | None = None, *, inspector: str | None = None) -> int:
    """Show a page of the documentation, or list all pages.

    On a terminal the page opens in a pager, $PAGER or less.

    Options:
        page PAGE: Name of a page, such as operations. With operations#rights, the page begins at that section.
        inspector URL: URL of an inspector, such as https://inspector.example.org. It adds to each rule of alerts.yaml
            a runbook_url, which shows the section on that inspector.

    Exit codes:
        0: success.
        2: there is no such page or section, or the URL is not one of an inspector.
    """
    if page is None:
        titles = [(name, FILES.get(name) or HEADING.findall(read(path))[0]) for name, path in files().items()]
        screen.table(("page", "title"), titles)
        return 0
    text = text_of(page) if inspector is None else with_urls(page, inspector)
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
    name, pages = name.removesuffix(".md"), files()
    if name not in pages:
        what = f"there is no page {shown(name)}{did_you_mean(name, pages) or '.'}"
        raise typer.BadParameter(f"{what} All pages: redis-saver docs", param_hint="PAGE")
    text = read(pages[name])
    starts = sections(text)
    if anchor and anchor not in starts:
        what = f"page {name} has no section {shown(anchor)}{did_you_mean(anchor, starts) or '.'}"
        raise typer.BadParameter(f"{what} The whole page: redis-saver docs {name}", param_hint="PAGE")
    return text[starts.get(anchor, 0) :]


def with_urls(page: str, inspector: str) -> str:
    """Return the alert rules with a `runbook_url` for each `runbook`.

    Args:
        page: `alerts.yaml`.
        inspector: URL of an inspector. Its token would be readable in each alert, so it may have none.

    Raises:
        BadParameter: It is another page, or no URL of an inspector.
    """
    if page != _ALERTS:
        raise typer.BadParameter(f"only {_ALERTS} has runbooks", param_hint="--inspector")
    if not _INSPECTOR.fullmatch(inspector):
        what = "write https://inspector.example.org, or with a path, but without a token"
        raise typer.BadParameter(what, param_hint="--inspector")
    url = f"{inspector.rstrip('/')}/docs/"
    return _RUNBOOK.sub(lambda found: f"{found[0]}\n{found[1]}runbook_url: {url}{found[2]}", text_of(page))
