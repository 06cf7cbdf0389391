"""The arguments of a URL, templates, and links between pages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from redis_saver import __version__
from redis_saver._common.config import Address
from redis_saver._inspector.values import At, ago, left, moment, named, size, state_of, visible

Query: TypeAlias = Mapping[str, str]
"""The arguments of a page's URL, by name."""
Values: TypeAlias = dict[str, Any]
"""The values of a template, and the `status` of the answer, if it is not 200."""
NO_CONTENT = 204
_DIGITS = 19


class Refused(ValueError):
    """A page was asked for something that makes no sense. The message says what to write."""


def pairs(query: str) -> list[tuple[str, str]]:
    """The arguments of a URL. Names may hold any character, lone surrogates too.

    Raises:
        Refused: It is not UTF-8.
    """
    try:
        return parse_qsl(query, keep_blank_values=True, errors="surrogatepass")
    except UnicodeDecodeError as error:
        raise Refused("the arguments in the URL are not UTF-8") from error


def asked(request: Request) -> dict[str, str]:
    """The arguments of a request's URL by name. If a name is repeated, the last one counts."""
    return dict(pairs(request.scope["query_string"].decode("latin-1")))


def query_of(arguments: Mapping[str, Any]) -> str:
    """Encode arguments for a URL, without those that are None."""
    return urlencode({name: one for name, one in arguments.items() if one is not None}, errors="surrogatepass")


def needed(arguments: Query, name: str) -> str:
    """An argument that has to be there.

    Raises:
        Refused: It is not.
    """
    if name not in arguments:
        raise Refused(f"this page needs {name}= in its URL")
    return arguments[name]


def number(arguments: Query, name: str) -> int:
    """A number; 0 where there is none.

    Raises:
        Refused: It is no number.
    """
    text = arguments.get(name, "").strip() or "0"
    if not (text.isascii() and text.isdigit() and len(text) < _DIGITS):
        raise Refused(f"{name}= in the URL is no number")
    return int(text)


def address_in(arguments: Query) -> Address:
    """A checkpoint, by `thread`, `ns` and `id`; without an id the newest of its namespace."""
    return Address(needed(arguments, "thread"), arguments.get("ns", ""), arguments.get("id") or None)


def position_in(arguments: Query) -> At:
    """Read the position of a part of a value: numbers with points between them."""
    return tuple(number({"at": one}, "at") for one in arguments.get("at", "").split(".") if one)


def address_text(address: Address) -> str:
    """Write a checkpoint as one argument of a URL.

    It is encoded twice, as browsers change line breaks in the fields of a form.
    """
    return query_of({"thread": address.thread_id, "ns": address.checkpoint_ns, "id": address.checkpoint_id})


def read_address(text: str) -> Address:
    """The checkpoint that such an argument names.

    Raises:
        Refused: It names none.
    """
    found = dict(pairs(text))
    if not {"thread", "id"} <= found.keys():
        raise Refused("this page needs checkpoints in a= and b=, as the links of a thread's tree have them")
    return Address(found["thread"], found.get("ns", ""), found["id"])


_HERE = Path(__file__).parent
STATIC = {"icon.svg": "image/svg+xml", "style.css": "text/css", "htmx.min.js": "text/javascript"}


class Pages:
    """Fills templates. All that they show is escaped."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        """Give every page some values."""
        self._about = {"version": __version__, **about}
        self._environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._environment.filters |= {
            "ago": ago, "left": left, "moment": moment, "named": named, "size": size, "state": state_of,
            "visible": visible, "address": address_text, "query": query_of,
        }  # fmt: skip

    def page(self, request: Request, template: str, /, *, status: int = 200, **values: Any) -> Response:
        """Answer with a page."""
        if status == NO_CONTENT:
            return Response(status_code=status)
        root = request.scope.get("root_path", "").rstrip("/")

        def link(to: str, **arguments: Any) -> str:
            query = query_of(arguments)
            return f"{root}/{to}{'?' if query else ''}{query}"

        values |= {"link": link, "now": datetime.now(timezone.utc), "asked": asked(request)}
        without_cold = getattr(request.state, "without_cold", "")
        html = self._environment.get_template(f"{template}.html").render(
            self._about, without_cold=without_cold, **values
        )
        return HTMLResponse(html.encode("utf-8", "backslashreplace"), status)


def static_file(name: str) -> bytes:
    """A file that pages refer to."""
    return (_HERE / "static" / name).read_bytes()
