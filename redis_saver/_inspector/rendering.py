"""Templates, links, and what a request asks for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from redis_saver import __version__
from redis_saver._common.config import Address
from redis_saver._inspector import text

_HERE = Path(__file__).parent
STATIC = {"icon.svg": "image/svg+xml", "style.css": "text/css", "htmx.min.js": "text/javascript"}


class Refused(ValueError):
    """A page was asked for something that makes no sense. The message says what to write."""


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


def asked(request: Request) -> dict[str, str]:
    """The arguments of a URL. Names may hold any character, lone surrogates too."""
    query = request.scope["query_string"].decode("latin-1")
    return dict(parse_qsl(query, keep_blank_values=True, errors="surrogatepass"))


def query_of(arguments: Mapping[str, Any]) -> str:
    """Arguments as they stand in a URL; those that are None are left out."""
    return urlencode({name: one for name, one in arguments.items() if one is not None}, errors="surrogatepass")


def address_text(where: Address) -> str:
    """A checkpoint as one argument of a URL. It is encoded in itself, as a browser changes line breaks in the fields of a form."""
    return query_of({"thread": where.thread_id, "ns": where.checkpoint_ns, "id": where.checkpoint_id})


def read_address(text: str) -> Address:
    """The checkpoint that such an argument names.

    Raises:
        Refused: It names none.
    """
    found = dict(parse_qsl(text, keep_blank_values=True, errors="surrogatepass"))
    if not {"thread", "id"} <= found.keys():
        raise Refused("this page needs checkpoints in a= and b=, as the links of a thread's tree have them")
    return Address(found["thread"], found.get("ns", ""), found["id"])


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
            **self._about, link=link, now=datetime.now(timezone.utc), asked=asked(request), **values
        )
        return HTMLResponse(html.encode("utf-8", "backslashreplace"), status)


def static_file(name: str) -> bytes:
    """A file that pages refer to."""
    return (_HERE / "static" / name).read_bytes()
