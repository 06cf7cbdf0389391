"""Templates, and links between pages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from redis_saver import __version__
from redis_saver._inspector import text
from redis_saver._inspector.arguments import address_text, asked, query_of

_HERE = Path(__file__).parent
STATIC = {"icon.svg": "image/svg+xml", "style.css": "text/css", "htmx.min.js": "text/javascript"}


def environment() -> Environment:
    """The templates. All that they show is escaped."""
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ago": text.ago,
        "left": text.left,
        "moment": text.moment,
        "named": text.named,
        "size": text.size,
        "state": text.state_of,
        "visible": text.visible,
        "address": address_text,
        "query": query_of,
    }
    return made


class Pages:
    """Fills templates."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        """Give every page some values."""
        self._environment = environment()
        self._about = {"version": __version__, **about}

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """A page."""
        root = request.scope.get("root_path", "").rstrip("/")

        def link(to: str, **arguments: Any) -> str:
            query = query_of(arguments)
            return f"{root}/{to}{'?' if query else ''}{query}"

        html = self._environment.get_template(template).render(
            **self._about,
            link=link,
            now=datetime.now(timezone.utc),
            asked=asked(request),
            without_cold=getattr(request.state, "without_cold", ""),
            **values,
        )
        return HTMLResponse(html.encode("utf-8", "backslashreplace"), status)


def static_file(name: str) -> bytes:
    """A file that pages refer to."""
    return (_HERE / "static" / name).read_bytes()
