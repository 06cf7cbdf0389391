"""URLs: their settings, refusals, and texts that never contain a password."""

from __future__ import annotations

import io
import logging
import re
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from urllib.parse import quote

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from redis_saver import AsyncRedisSaver, RedisSaver, TieredSaver
from redis_saver._cli.watched import Cold, Hot
from redis_saver._cli.main import main
from redis_saver._client import clients, urls
from redis_saver.errors import RedisSaverError
from redis_saver.migrate import opened

LETTERS = "QXZJЖЩé§"
"""Letters of passwords, which no text of ours contains."""
PASSWORDS = st.text(alphabet="/?#@:%[]&=+ \n\x1b'\"\\,12" + LETTERS, min_size=4, max_size=24)
HERE = "127.0.0.1:1"
FORGOTTEN = "redis://me:{}"
"""A URL without a host. If the password contained '@', its rest would be the host."""
REDIS = [
    f"redis://me:{{}}@{HERE}/0",
    f"rediss://:{{}}@{HERE}",
    "unix://me:{}@/nowhere/socket?db=1",
    f"redis+sentinel://:{{}}@{HERE},{HERE}/service/1?sentinel_password=x",
    f"rediss+sentinel://{HERE}/service?sentinel_password={{}}&db=2",
    f"redis://{HERE}/0?password={{}}",
    f"redis://{HERE}?socket_timeout=1&username={{}}&password=x",
    f"rediss://{HERE}?ssl_password={{}}&nothing=1",
    FORGOTTEN,
    f"redis:{{}}@{HERE}",
    f"https://me:{{}}@{HERE}",
    "https://host?password={}",
    "redis+cluster://:{}@host:x",
]
CLUSTERS = [f"redis+cluster://me:{{}}@{HERE},{HERE}", f"rediss+cluster://{HERE}?password={{}}"]
POSTGRES = [
    f"postgresql://me:{{}}@{HERE}/db",
    f"postgresql://me@{HERE}/db?password={{}}",
    f"postgresql://me@{HERE}/db?sslmode=no&sslpassword={{}}",
    "postgresql:host=127.0.0.1 port=1 password={} dbname=x",
    "host=127.0.0.1 port=1 sslpassword='{}'",
]


class Said:
    """All output of a call that may fail: errors with their causes, lines, warnings and logs."""

    def __init__(self, do: Callable[[], Any]) -> None:
        out, log = io.StringIO(), logging.StreamHandler()
        log.stream = out
        logging.getLogger().addHandler(log)
        self.error: BaseException | None = None
        try:
            with redirect_stdout(out), redirect_stderr(out), warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                try:
                    do()
                except (RedisSaverError, ValueError, TypeError, OSError, redis.RedisError, SystemExit) as error:
                    self.error = error
        finally:
            logging.getLogger().removeHandler(log)
        lines = traceback.format_exception(self.error) if self.error else []
        said = [line for line in lines if not line.startswith("  File")]  # these include source code
        self.text = "\n".join([*said, out.getvalue(), *(str(one.message) for one in warned)])

    def has_nothing_of(self, password: str) -> bool:
        for spelled in {password, quote(password), quote(password, safe=""), repr(password)[1:-1]}:
            for at in range(len(spelled) - 3):
                piece = spelled[at : at + 4]
                if set(piece) & set(LETTERS) and piece in self.text:
                    return False
        return True


def ways(form: str) -> list[Callable[[str], Any]]:
    """Functions that parse a URL of this form without sending a request."""

    def connect(url: str) -> None:
        for asynchronous in (False, True):
            said = Said(lambda: clients.connect(url, asynchronous=asynchronous))
            assert said.error is None or isinstance(said.error, ValueError), said.text
            if said.error:
                raise said.error

    if form in POSTGRES:
        return [lambda url: Cold(url, 1, setup=False)]
    return [connect, lambda url: Hot(url, "langgraph")._make_saver()]


@pytest.mark.parametrize("form", [*REDIS, *POSTGRES])
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(password=PASSWORDS)
@example(password="ab/QXZJЖЩ")
@example(password="QXZJ?ЖЩé§#QXZJ")
@example(password="[QXZJ]@ЖЩé§")
@example(password="QXZJ&ЖЩé§=QXZJ")
@example(password="1@QXZJ/ЖЩé§")
@example(password="1,QX+&\\")
def test_no_text_contains_part_of_a_password(form: str, password: str) -> None:
    if form == FORGOTTEN:
        password = password.replace("@", "")
    for spelled in (password, quote(password, safe="")):
        url = form.replace("{}", spelled)
        for way in ways(form):
            said = Said(lambda: way(url))
            assert said.has_nothing_of(password), said.text
        shown = Said(lambda: print(urls.without_login(url)))
        assert shown.has_nothing_of(password), shown.text


NASTY = ["ab/QXZJЖЩ", "QXZJ?ЖЩé§#QXZJ", "[QXZJ]@ЖЩé§", "QXZJ&ЖЩé§=QXZJ", "12:QXZJ\nЖЩé§", "1234/QXZJ", "QXZJ'ЖЩ \\é§"]


@pytest.mark.parametrize("form", [*REDIS, *CLUSTERS, *POSTGRES])
def test_no_output_of_a_command_contains_part_of_a_password(form: str) -> None:
    """The URLs are invalid, or valid ones of servers that do not run."""
    for password in NASTY[: 2 if "sentinel" in form else None]:  # a search for a primary takes long
        if form == FORGOTTEN:
            password = password.replace("@", "")
        for spelled in (password, quote(password, safe="")):
            url = form.replace("{}", spelled)
            commands = [["migrate", url, f"redis://{HERE}"], ["import", url, f"redis://{HERE}"]]
            if form not in POSTGRES and spelled == password:
                commands += [["demo", "--redis", url], ["flush", "--redis", url, "--postgres", "x"]]
            elif form in POSTGRES:
                commands = commands[:1] if "host=" not in form else []
                commands += [["flush", "--redis", f"redis://{HERE}", "--postgres", url, "--once", "--timeout", "0"]]
            for command in commands:
                said = Said(lambda: main(command))
                assert said.has_nothing_of(password) and "Traceback" not in said.text, (command, said.text)
        if form.startswith("redis://me") and spelled == password:
            for kind in (RedisSaver, AsyncRedisSaver):
                assert Said(lambda: kind(url)).has_nothing_of(password)
            assert Said(lambda: TieredSaver(RedisSaver(redis.Redis()), url)).has_nothing_of(password)


@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("scheme", ["sqlite", "inmem", "file"])
def test_a_url_instead_of_a_path_is_refused(scheme: str, target: bool) -> None:
    """The arguments of `import` are swapped."""

    def open() -> None:
        with opened(f"{scheme}:redis://me:QXZJЖЩ@host/0", target=target):
            pass

    said = Said(open)
    assert said.has_nothing_of("QXZJЖЩ") and "takes a path, not the URL redis://host/0" in said.text


@pytest.mark.parametrize("sign", "/?#")
@pytest.mark.parametrize("form", [form for form in REDIS if ":{}@" in form and re.match("redis.*://", form)])
def test_an_unescaped_character_in_a_password_is_refused(form: str, sign: str) -> None:
    for asynchronous in (False, True):
        with pytest.raises(ValueError, match="percent-encode.*%2F.*%3F.*%23"):
            clients.connect(form.replace("{}", f"12{sign}QX"), asynchronous=asynchronous)


@settings(max_examples=25, deadline=None)
@example(password="%2F")
@example(password="/?#@:%[]&=+ \\")
@given(password=st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable() or text.isascii()))
def test_a_percent_encoded_password_arrives(password: str) -> None:
    spelled = quote(password, safe="")
    for number, url in enumerate((
        f"redis://me:{spelled}@host:7/3",
        f"redis://host:7/3?password={spelled}&username=me",
        f"redis+sentinel://me:{spelled}@host/s/3",
    )):  # fmt: skip
        asynchronous = bool((number + len(password)) % 2)
        found = clients.connect(url, asynchronous=asynchronous).connection_pool.connection_kwargs
        assert (found["username"], found["password"], found["db"]) == ("me", password, 3)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://host/zero", "after the hosts write /db"),
        ("redis://host/1?db=2", "given once"),
        ("redis://host:70000", "a host is missing, or a port is above 65535"),
        ("redis://one,two", "take several hosts"),
        ("redis+cluster://host/1", "only database 0"),
        ("redis+cluster://host?db=1", "only database 0: leave out db"),
        ("redis+sentinel://host/s/x", "/service/db"),
        ("redis://host?db", "option 1 is not name=value"),
        ("redis://host?socket_timeout=1&socket_timeout=2", "option 2 is not name=value, or is given twice"),
        ("redis://host?socket_timeout=soon", "redis-py cannot parse the value of option socket_timeout"),
        ("redis://host/0 ", "a space"),
        ("redis://:%ff@host", "not UTF-8"),
        ("unix://host/path", "unix:///path"),
        ("redis+cluster://host?nothing=1", "'nothing'"),
        ("redis+sentinel://host/s?nothing=1", "'nothing'"),
        ("redis+sentinel://host/s?sentinel_nothing=1", "'nothing'|nothing"),
    ],
)  # fmt: skip
def test_an_error_says_what_is_wrong_with_a_url(url: str, why: str) -> None:
    """redis-py itself ignores some of these, like an invalid database or an unknown option of a cluster."""
    for asynchronous in (False, True) if "db=" in url else (False,):
        with pytest.raises(ValueError, match=why) as caught:
            clients.connect(url, asynchronous=asynchronous)
        assert str(caught.value).startswith("url=")


def test_error_messages_name_a_client_by_its_class() -> None:
    """The `repr` of a client in redis-py 6 contains the password."""

    class Talkative(redis.Redis):
        def __repr__(self) -> str:
            return "password=QXZJЖЩ"

    with pytest.raises(TypeError, match="Talkative") as caught:
        AsyncRedisSaver(Talkative())  # type: ignore[arg-type]
    assert "QXZJ" not in str(caught.value)
