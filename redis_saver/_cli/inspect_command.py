"""The command `inspect`: serves the inspector."""

from __future__ import annotations

import secrets
import socket
from urllib.parse import urlencode

import typer

from redis_saver._cli import screen
from redis_saver._cli.options import Servers, command
from redis_saver._common.display import printable
from redis_saver.errors import EndpointError

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@command("inspect")
def _inspect(
    servers: Servers,
    thread: str | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = typer.Option(0, min=0, max=65535),
    allowed_host: list[str] | None = None,
    mask: list[str] | None = None,
    token: str | None = typer.Option(None, envvar="REDIS_SAVER_INSPECTOR_TOKEN"),
    allow_changes: bool = False,
) -> int:
    """Show threads, checkpoints and their values in the browser, until Ctrl-C.

    It prints a URL with a token. Without --allow-changes it only reads.

    Options:
        thread THREAD: Print the URL of this thread; by default that of all threads.
        host HOST: The address to listen on. Any but the loopback lets other machines connect.
        port N: The port; 0: a free one.
        allowed_host NAME: Another host name by which browsers may reach the pages. May be repeated.
        mask PATTERN: Hide what stands under channels, keys and fields with such a name (*token*); '*' hides all
            values. May be repeated.
        token TEXT: The token that the URL has to carry. Default: a random one.
        allow_changes: Let threads be deleted, pinned, and given a TTL.

    Exit code: 130, it was ended by Ctrl-C; 2, the words, a URL, a login or a missing package (extra inspector) is at
    fault, or the port is taken. With LANGGRAPH_AES_KEY set, values are decrypted. Objects are made only of classes
    that LangGraph calls safe.
    """
    try:
        import uvicorn  # noqa: PLC0415 - the extra may be missing

        from redis_saver import inspector  # noqa: PLC0415
    except ImportError as error:
        raise EndpointError(f"this needs more packages: pip install 'redis-saver[inspector]' ({error})") from error
    token = token or secrets.token_urlsafe(24)
    is_ipv6 = ":" in host
    with servers.savers(connections=4) as savers, _listening(host, port) as listening:
        pages = inspector.app(
            savers.saver,
            token=token,
            hosts=[f"[{name}]" if ":" in name else name for name in (host, *_LOOPBACK, *(allowed_host or ()))],
            mask=mask or (),
            allow_changes=allow_changes,
        )
        address = f"{f'[{host}]' if is_ipv6 else host}:{listening.getsockname()[1]}"
        arguments = {"token": token} if thread is None else {"id": thread, "token": token}
        path = "" if thread is None else "thread"
        screen.line(f"http://{address}/{path}?{urlencode(arguments, errors='surrogatepass')}")
        screen.note("Ctrl-C ends it.")
        config = uvicorn.Config(pages, log_level="warning", access_log=False, server_header=False, lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])
    return 130  # it ends only by a signal, even if its parent ignores that


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        EndpointError: The port is taken, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise EndpointError(f"--host {printable(host)} --port {port}: {printable(str(error))}") from error
