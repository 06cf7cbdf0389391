"""The command `inspect`: serves the inspector."""

from __future__ import annotations

import secrets
import socket
from typing import Annotated
from urllib.parse import urlencode

import typer

from redis_saver._cli import screen
from redis_saver._cli.arguments import Postgres, Prefix, Redis
from redis_saver._cli.opening import opened_savers
from redis_saver._common.display import printable
from redis_saver.errors import EndpointError

_CODES = (
    "Exit code: 130, it was ended by Ctrl-C; 2, the words, a URL, a login or a missing package (extra inspector) is at fault, or the port is taken. With "
    "LANGGRAPH_AES_KEY set, values are decrypted. Objects are made only of classes that LangGraph calls safe."
)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect", epilog=_CODES)(_inspect)


def _inspect(
    thread: Annotated[
        str | None,
        typer.Argument(metavar="THREAD", help="Print the URL of this thread; by default that of all threads."),
    ] = None,
    *,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST", help="The address to listen on. Any but the loopback lets other machines connect."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0: a free one.")] = 0,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another host name by which browsers may reach the pages. May be repeated."),
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Hide what stands under channels, keys and fields with such a name (*token*); '*' hides all values. May be repeated.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            envvar="REDIS_SAVER_INSPECTOR_TOKEN",
            help="The token that the URL has to carry. Default: a random one.",
        ),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let threads be deleted, pinned, and given a TTL.")
    ] = False,
    url: Redis = None,
    postgres: Postgres = None,
    prefix: Prefix = "langgraph",
) -> int:
    """Show threads, checkpoints and their values in the browser, until Ctrl-C.

    It prints a URL with a token. Without --allow-changes it only reads.
    """
    try:
        import uvicorn  # noqa: PLC0415 - the extra may be missing

        from redis_saver import inspector  # noqa: PLC0415
    except ImportError as error:
        raise EndpointError(f"this needs more packages: pip install 'redis-saver[inspector]' ({error})") from error
    token = token or secrets.token_urlsafe(24)
    names = [host, *_LOOPBACK, *(allowed_host or ())]
    with opened_savers(url, prefix, postgres, long_running=True) as savers, _listening(host, port) as listening:
        app = inspector.app(
            savers.saver,
            token=token,
            hosts=[f"[{name}]" if ":" in name else name for name in names],
            mask=mask or (),
            allow_changes=allow_changes,
        )
        place = f"[{host}]" if ":" in host else host
        path = "" if thread is None else "thread"
        query = urlencode({**({} if thread is None else {"id": thread}), "token": token}, errors="surrogatepass")
        screen.line(f"http://{place}:{listening.getsockname()[1]}/{path}?{query}")
        screen.note("Ctrl-C ends it.")
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])
    return 130  # it ends by a signal alone, also where its parent ignores that


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        EndpointError: It cannot: the port is taken, or the address is not of this machine.
    """
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
    except OSError as error:
        raise EndpointError(f"--host {printable(host)} --port {port}: {printable(str(error))}") from error
