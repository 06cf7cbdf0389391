"""The pages of the documentation, as HTML with the anchors of `redis-saver docs PAGE#SECTION`."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from redis_saver._common.display import shown
from redis_saver._inspector import manual
from redis_saver._inspector.pages import Pages, linked, root_of

_TABLE = '<div class="scroll"><table>\n'
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
_MARKDOWN.add_render_rule("table_open", lambda *_: _TABLE)
_MARKDOWN.add_render_rule("table_close", lambda *_: "</table></div>\n")
_ELSEWHERE = re.compile(r"https?://")


def show(pages: Pages, request: Request) -> Response:
    """Show the page that the path names, or the index."""
    name, there = request.path_params.get("name", "index").removesuffix(".md"), manual.files()
    if name not in there:
        wrong = f"the documentation has no page {shown(name)}"
        return pages.page(request, "error", status=404, wrong=wrong, near=())
    text, root = manual.read(there[name]), root_of(request)
    if name in manual.FILES:
        html = Markup('<h1>{}</h1><pre class="code">{}</pre>').format(manual.FILES[name], linked(text, root))
    else:
        html = rendered(text, root)
    return pages.page(request, "docs", name=name, html=html)


def rendered(text: str, root: str) -> Markup:
    """Render a page. Its text is escaped, and links to other pages lead to those of this inspector.

    Args:
        text: The page in Markdown.
        root: Beginning of the inspector's paths.
    """
    tokens = _MARKDOWN.parse(text)
    for opening, inside in pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", manual.anchor(inside.content))
    for token in tokens:
        for child in token.children or ():
            if child.type == "link_open":
                _lead(child, root)
    return Markup(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))  # noqa: S704 - it escapes the text


def _lead(link: Token, root: str) -> None:
    """Let a link lead to a page of the inspector. One to a file that the package lacks becomes text."""
    target: Any = link.attrGet("href") or ""
    path, _, section = target.partition("#")
    name = path.removesuffix(".md")
    if name in manual.files():
        link.attrSet("href", f"{root}/docs/{name}{'#' if section else ''}{section}")
    elif _ELSEWHERE.match(target):
        link.attrSet("rel", "noreferrer")
    elif path:
        del link.attrs["href"]
