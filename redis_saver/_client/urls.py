"""URLs of Redis: a strict parser, which never takes a part of a password for a host or an option, and masking."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_plus

from redis_saver._common.display import MAX_NAME, printable, shown

FORMS = (
    "redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster://, rediss+cluster:// or "
    "memory:// (valkey for redis, valkeys for rediss)"
)
_TRANSPORTS = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}
"""First parts of schemes, each with True if it uses TLS."""
_KINDS = ("", "+sentinel", "+cluster")
SCHEMES = frozenset({"unix", *(transport + kind for transport in _TRANSPORTS for kind in _KINDS)})
"""Schemes of servers, without `memory`."""
_PORTS = {"": 6379, "sentinel": 26379, "cluster": 6379}
_REMEDY = "percent-encode all but letters and digits in user, password and options (/ is %2F, ? %3F, # %23, @ %40)"

PATHS = ("sqlite", "inmem", "file")
"""Schemes of files and folders, before a colon and the path."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.%-]*)(?::\d{1,5})?"
_ADDRESS = re.compile(rf"{_HOST}(?:,{_HOST})*(?P<path>/[^?#@]*)?")
_SECRET_OPTION = re.compile(r"(?:passw(?:or)?d|username)\s*=\s*(.*)", re.DOTALL | re.IGNORECASE)
_BEGINS_AS_URL = re.compile(r"(?:rediss?|valkeys?|unix|postgres(?:ql)?)[:+]")
_PIECE = 4
"""Length of the shortest part of a password that is masked in messages."""


class Url(NamedTuple):
    """The parts of a URL."""

    kind: str
    """`sentinel`, `cluster` or empty (the scheme after its `+`), or `unix`."""
    tls: bool
    hosts: list[tuple[str, int]]
    """Host names, which may be empty, and ports."""
    path: str
    """Path of a unix socket, or the service for sentinels."""
    options: dict[str, Any]
    """Options of the client, including `username`, `password` and `db`."""


def wrong(url: str, why: str) -> ValueError:
    """Return the error for an invalid URL."""
    return ValueError(f"url={shown(without_login(url))}: {why}")


def parse(url: str, readers: Mapping[str, Callable[[str], Any]]) -> Url:
    """Parse a URL of Redis, except `memory://`.

    Args:
        url: The URL.
        readers: Functions that parse options, by name. Other options stay str.

    Raises:
        ValueError: The URL is invalid. The message says what to write, and contains no part of a password.
    """
    scheme, separator, rest = url.partition("://")
    transport, _, kind = scheme.partition("+")
    if not separator or scheme not in SCHEMES:
        raise wrong(url, f"not understood; write {FORMS}")
    authority, path, query = _divided(url, rest)
    if "#" in rest:
        raise wrong(url, f"it has a '#': {_REMEDY}")
    login, _, hosts = authority.rpartition("@")
    user, _, password = login.partition(":")
    options = dict(_options(url, query, kind, readers))
    options |= {name: _decoded(url, text) for name, text in (("username", user), ("password", password)) if text}
    if transport == "unix":
        if hosts or not path:
            raise wrong(url, "write unix:///path, or unix://user:password@/path")
        return Url("unix", tls=False, hosts=[], path="/" + _decoded(url, path), options=options)
    addresses = [_address(url, host, kind) for host in hosts.split(",")]
    if not kind and len(addresses) > 1:
        raise wrong(url, "only redis+sentinel:// and redis+cluster:// take several hosts")
    service, db = _service_and_db(url, path, kind, is_given="db" in options)
    return Url(kind, _TRANSPORTS[transport], addresses, _decoded(url, service), options | db)


def check_postgres(url: str) -> None:
    """Refuse a URL of Postgres in which libpq may take a part of a password for a host, a port or an option.

    libpq would show that part in an error.

    Raises:
        ValueError: The URL is ambiguous. The message says what to write.
    """
    authority, _, _ = _divided(url, url.partition("://")[2])
    if authority.count("@") > 1:
        raise wrong(url, f"it has more than one '@': {_REMEDY}")


def _divided(url: str, rest: str) -> tuple[str, str, str]:
    """Split into three parts: the hosts with user and password, the path, and the options."""
    hosts_and_path, _, query = rest.partition("?")
    authority, _, path = hosts_and_path.partition("/")
    if "@" in path or "@" in query or " " in rest or not rest.isprintable():
        raise wrong(url, f"it has a space, a line break, or an '@' after a '/' or '?': {_REMEDY}")
    return authority, path, query


def _service_and_db(url: str, path: str, kind: str, *, is_given: bool) -> tuple[str, dict[str, int]]:
    """Return the service (for sentinels) and the database, as an option, that a path names."""
    service, _, db = path.partition("/") if kind == "sentinel" else ("", "", path)
    if kind == "sentinel" and not service:
        raise wrong(url, "the name of the service is missing: write /service or /service/db after the hosts")
    if not db:
        return service, {}
    if is_given or not re.fullmatch("[0-9]{1,9}", db) or (kind == "cluster" and int(db)):
        form = {"": "/db", "sentinel": "/service/db", "cluster": "no path, because a cluster has only database 0"}[kind]
        raise wrong(url, f"after the hosts write {form}; db is a number, and is given once")
    return service, {"db": int(db)}


def _address(url: str, text: str, kind: str) -> tuple[str, int]:
    if not (match := re.fullmatch(r"(\[[^\[\]@]+\]|[^:\[\]]*)(?::(\d{1,5}))?", text)):
        raise wrong(url, f"host:port is missing or invalid; if a part of the password is there, {_REMEDY}")
    name, port = _decoded(url, match[1]).strip("[]"), int(match[2] or _PORTS[kind])
    if (kind and not name) or port > 65535:
        raise wrong(url, "a host is missing, or a port is above 65535")
    return name, port


def _options(url: str, query: str, kind: str, readers: Mapping[str, Callable[[str], Any]]) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for number, option in enumerate(query.split("&") if query else (), 1):
        name, is_there, text = option.partition("=")
        if not is_there or not re.fullmatch(r"\w+", name, re.ASCII) or name in seen:
            raise wrong(url, f"option {number} is not name=value, or is given twice: {_REMEDY}")
        seen.add(name)
        if value := _decoded(url, text, unquote_plus):
            read = readers.get(name.removeprefix("sentinel_") if kind == "sentinel" else name, str)
            yield name, _read(url, value, read, f"redis-py cannot parse the value of option {name}")


def _decoded(url: str, text: str, decode: Callable[..., str] = unquote) -> str:
    return str(_read(url, text, partial(decode, errors="strict"), "its percent-encoded characters are not UTF-8"))


def _read(url: str, text: str, read: Callable[[str], Any], why: str) -> Any:
    try:
        return read(text)
    except (TypeError, ValueError):
        pass
    raise wrong(url, why)  # outside the except block, because the cause would quote the text


# -- masking


def is_path(url: str) -> bool:
    """True if an endpoint of a migration is a file or folder, whose name is not secret."""
    scheme, _, path = url.partition(":")
    return scheme in PATHS and "://" not in path and not _BEGINS_AS_URL.match(path)


def without_login(url: str) -> str:
    """Return a URL for messages, without user, password and options.

    Of an invalid URL, return only the parts that cannot belong to a password.
    """
    if is_path(url):
        return printable(url)
    scheme, separator, rest = url.partition("://")
    if separator and not _SCHEME.fullmatch(scheme):
        return "***"
    scheme, rest = (scheme, rest) if separator else ("", url)
    login, at, address = rest.rpartition("@")
    address = re.split(r"[?#]", address, maxsplit=1)[0]
    is_ambiguous = re.search(r"[?&]\w*=", login) or (at and not separator)  # the '@' may belong to an option
    if is_ambiguous or not _is_address(scheme, address):
        return f"{scheme}{separator}***"
    return printable(f"{scheme}{separator}{address}", MAX_NAME)


def _is_address(scheme: str, address: str) -> bool:
    """True if a URL of this scheme may have this after its login. Otherwise it may have a part of the password."""
    match = _ADDRESS.fullmatch(address)
    if not match or not address.isprintable():
        return False
    path = (match["path"] or "").strip("/")
    if not scheme:
        return not path
    transport, _, kind = scheme.partition("+")
    is_one = transport in _TRANSPORTS and not kind
    has_db_alone = is_one or kind == "cluster"
    return not (is_one and "," in address) and not (has_db_alone and path.strip("0123456789"))


def without_password(text: str, url: str) -> str:
    """Return a message without any part of the URL's password, even if the URL is ambiguous."""
    if is_path(url):
        return text
    secrets = {spelled for secret in _secrets(url) for spelled in (secret, unquote(secret), unquote_plus(secret))}
    secrets |= {repr(secret)[1:-1] for secret in secrets}
    for short in filter(None, secrets):
        if len(short) < _PIECE:
            text = re.sub(rf"(?<!\w){re.escape(short)}(?!\w)", "***", text)
    pieces = {secret[at : at + _PIECE] for secret in secrets for at in range(len(secret) - _PIECE + 1)}
    kept, until = [], 0
    for at, letter in enumerate(text):
        if text[at : at + _PIECE] in pieces:
            kept += ["***"] if at >= until else []
            until = at + _PIECE
        if at >= until:
            kept.append(letter)
    return "".join(kept)


def cause_of(error: Exception, url: str) -> Exception | None:
    """Return an error, or None if its text or that of one of its causes holds a part of the URL's password."""
    cause: BaseException | None = error
    while cause is not None:
        if without_password(str(cause), url) != str(cause):
            return None
        cause = cause.__cause__ or cause.__context__
    return error


def _secrets(url: str) -> Iterator[str]:
    scheme, separator, rest = url.partition("://")
    rest = rest if separator else url
    login, at, address = rest.rpartition("@")
    if at:
        _, colon, password = login.partition(":")
        if colon or not scheme.startswith("postgres"):
            yield password if colon else login
    elif not _ADDRESS.fullmatch(re.split(r"[?#]", address, maxsplit=1)[0]):  # user:password without a host
        yield address.partition(":")[2]
    yield from _SECRET_OPTION.findall(rest)
