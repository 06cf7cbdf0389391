"""Arguments of URLs, templates, and links between pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from redis_saver import __version__
from redis_saver._common import times
from redis_saver._common.config import Address
from redis_saver._inspector.manual import NAMED
from redis_saver._inspector.values import At, ago, expiry, moment, named, owner_text, size, state_of, unmarked, visible

Query: TypeAlias = Mapping[str, str]
"""The arguments of a page's URL, by name."""
Values: TypeAlias = dict[str, Any]
"""The values of a template, and the `status` of the answer if it is not 200."""
NO_CONTENT = 204
_DIGITS = 19
"""Numbers in URLs have fewer digits."""


class Refused(ValueError):
    """The request is invalid. The message says what to write."""


def pairs(query: str) -> list[tuple[str, str]]:
    """Return the arguments of a URL. Names may have any character, even lone surrogates.

    Raises:
        Refused: The URL is not UTF-8.
    """
    try:
        return parse_qsl(query, keep_blank_values=True, errors="surrogatepass")
    except UnicodeDecodeError as error:
        raise Refused("the arguments in the URL are not UTF-8") from error


def asked(request: Request) -> dict[str, str]:
    """Return the arguments of a request's URL by name. If a name is repeated, the last one counts.

    A form has the arguments of its page in `in`, encoded twice, because browsers change line breaks in fields.
    """
    arguments = dict(pairs(request.scope["query_string"].decode("latin-1")))
    return {**dict(pairs(arguments.pop("in", ""))), **arguments}


def query_of(arguments: Mapping[str, Any]) -> str:
    """Encode arguments for a URL, without those that are None."""
    return urlencode({name: value for name, value in arguments.items() if value is not None}, errors="surrogatepass")


def needed(arguments: Query, name: str) -> str:
    """Return a required argument.

    Raises:
        Refused: It is missing.
    """
    if name not in arguments:
        raise Refused(f"this page needs {name}= in its URL")
    return arguments[name]


def number(arguments: Query, name: str) -> int:
    """Return a number, by default 0.

    Raises:
        Refused: It is no number.
    """
    text = arguments.get(name, "").strip() or "0"
    if not (text.isascii() and text.isdigit() and len(text) < _DIGITS):
        raise Refused(f"{name}= in the URL is no number")
    return int(text)


def address_in(arguments: Query) -> Address:
    """Return the address of a checkpoint, from `thread`, `ns` and `id`. By default it is the newest of the root."""
    return Address(needed(arguments, "thread"), arguments.get("ns", ""), arguments.get("id") or None)


def position_in(arguments: Query) -> At:
    """Return the position of a part of a value, from numbers joined by points."""
    return tuple(number({"at": text}, "at") for text in arguments.get("at", "").split(".") if text)


def address_text(address: Address) -> str:
    """Return an address as one argument of a URL.

    It is encoded twice, because browsers change line breaks in the fields of a form.
    """
    return query_of(_fields(address))


def _fields(address: Address) -> dict[str, str | None]:
    return {"thread": address.thread_id, "ns": address.checkpoint_ns, "id": address.checkpoint_id}


def read_address(text: str) -> Address:
    """Return the address that such an argument names.

    Raises:
        Refused: It names none.
    """
    fields = dict(pairs(text))
    if not {"thread", "id"} <= fields.keys():
        raise Refused("this page needs checkpoints in a= and b=, as the links of a thread's tree have them")
    return Address(fields["thread"], fields.get("ns", ""), fields["id"])


def root_of(request: Request) -> str:
    """Return the path under which a service has mounted the inspector, by default empty."""
    root: str = request.scope.get("root_path", "").rstrip("/")
    return root


def url_of(request: Request, to: str, arguments: Mapping[str, Any]) -> str:
    """Return the URL of a page of the inspector, with those arguments that are not None."""
    query = query_of(arguments)
    return f"{root_of(request)}/{to}{'?' if query else ''}{query}"


def linked(text: str, root: str) -> Markup:
    """Escape a message, and make links of the pages that it names as `redis-saver docs PAGE`."""
    href = escape(f"{root}/docs/")
    escaped = str(escape(visible(text)))
    return Markup(NAMED.sub(lambda found: f'<a href="{href}{found[1]}">{found[0]}</a>', escaped))  # noqa: S704


_MARKDOWN = MarkdownIt("commonmark", {"html": False, "breaks": True}).disable(
    ["autolink", "entity", "html_block", "html_inline", "image", "link", "reference"]
)
"""Links and images stay text, so no page leads or loads from elsewhere. An entity could hide a direction mark."""


def markdown(text: str) -> Markup:
    """Render a text as Markdown, without HTML, links and images. Headings are of one level."""
    tokens = _MARKDOWN.parse(text)
    for token in tokens:
        token.tag = "h4" if token.type.startswith("heading") else token.tag
    return Markup(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))  # noqa: S704 - it escapes the text


_HERE = Path(__file__).parent
STATIC = {"icon.svg": "image/svg+xml", "style.css": "text/css", "htmx.min.js": "text/javascript"}


@cache
def _environment() -> Environment:
    """Load and compile the templates, once in a process, so that no page waits for it. Every value is escaped."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    environment.filters |= {
        "ago": ago, "markdown": markdown, "moment": moment, "named": named, "owner": owner_text,
        "size": size, "state": state_of, "expiry": expiry, "json": json.dumps, "unmarked": unmarked, "visible": visible,
        "address": address_text, "query": query_of,
        "duration": lambda seconds: times.shown(timedelta(seconds=int(seconds))),
    }  # fmt: skip
    for template in environment.list_templates():
        environment.get_template(template)
    return environment


class Pages:
    """Fills templates."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        """Load the templates. Every page gets the values in `about`."""
        self._about = {"version": __version__, **about}
        self._environment = _environment()

    def page(self, request: Request, template: str, /, *, status: int = 200, **values: Any) -> Response:
        """Fill a template, and return the answer."""
        if status == NO_CONTENT:
            return Response(status_code=status)
        if "json" in values:
            return Response(values["json"], media_type="application/json")

        def link(to: str, where: Address | None = None, /, **arguments: Any) -> str:
            return url_of(request, to, (_fields(where) if where else {}) | arguments)

        values |= {
            "link": link,
            "linked": partial(linked, root=root_of(request)),
            "now": datetime.now(timezone.utc),
            "asked": asked(request),
        }
        values["without_cold"] = getattr(request.state, "without_cold", "")
        html = self._environment.get_template(f"{template}.html").render(self._about, **values)
        return HTMLResponse(html.encode("utf-8", "backslashreplace"), status)


def static_file(name: str) -> bytes:
    """Return the content of a static file."""
    return (_HERE / "static" / name).read_bytes()
