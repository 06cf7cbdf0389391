"""What the URL of a page asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request

from redis_saver._common.config import Address
from redis_saver._inspector.values import At


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
    """The arguments of a request's URL, by name: of two with one name the last."""
    return dict(pairs(request.scope["query_string"].decode("latin-1")))


def query_of(arguments: Mapping[str, Any]) -> str:
    """Arguments as they stand in a URL; those that are None are left out."""
    return urlencode({name: one for name, one in arguments.items() if one is not None}, errors="surrogatepass")


def needed(given: Mapping[str, str], name: str) -> str:
    """An argument that has to be there.

    Raises:
        Refused: It is not.
    """
    if name not in given:
        raise Refused(f"this page needs {name}= in its URL")
    return given[name]


def number(given: Mapping[str, str], name: str) -> int:
    """A number; 0 where there is none.

    Raises:
        Refused: It is no number.
    """
    text = given.get(name) or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Refused(f"{name}= in the URL is no number")
    return int(text)


def place(given: Mapping[str, str]) -> Address:
    """A checkpoint, by `thread`, `ns` and `id`; without an id the newest of its namespace."""
    return Address(needed(given, "thread"), given.get("ns", ""), given.get("id") or None)


def at(given: Mapping[str, str]) -> At:
    """Where a part of a value is: positions with points between them."""
    return tuple(number({"at": one}, "at") for one in given.get("at", "").split(".") if one)


def address_text(where: Address) -> str:
    """A checkpoint as one argument of a URL. It is encoded in itself, as a browser changes line breaks in the fields of a form."""
    return query_of({"thread": where.thread_id, "ns": where.checkpoint_ns, "id": where.checkpoint_id})


def read_address(text: str) -> Address:
    """The checkpoint that such an argument names.

    Raises:
        Refused: It names none.
    """
    found = dict(pairs(text))
    if not {"thread", "id"} <= found.keys():
        raise Refused("this page needs checkpoints in a= and b=, as the links of a thread's tree have them")
    return Address(found["thread"], found.get("ns", ""), found["id"])
