"""A TCP proxy that loses a request or its reply, or lets a test act before a command."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.asyncio.retry
import redis.backoff
import redis.retry
from tests.support.uniform import Target, Uniform


class Proxy:
    """A relay to a server on this host. A test names a command by bytes in it."""

    def __init__(self, server_port: int, port: int = 0) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.lost = 0
        self.seen: bytearray | None = None
        """Receives all bytes in both directions, if a test sets it."""
        self._marker, self._countdown, self._half, self._drops = b"", 0, False, False
        self._steps: list[tuple[bytes, Callable[[], object]]] = []
        self._sockets: list[socket.socket] = []
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def lose_reply(self, marker: bytes, position: int = 1, *, half: bool = False) -> None:
        """Lose the reply to the `position`th request from now that contains `marker`; the server executes the request.

        The connection breaks before the reply, or after half of it. `lost` counts lost replies from now on.
        """
        self.lost, self._marker, self._countdown, self._half, self._drops = 0, marker, position, half, False

    def drop_request(self, marker: bytes, position: int = 1) -> None:
        """Lose the request itself: the connection breaks, and the server does not execute the request."""
        self.lose_reply(marker, position)
        self._drops = True

    def before(self, marker: bytes, step: Callable[[], object]) -> None:
        """Call `step` once, before the next request that contains `marker` is relayed."""
        self._steps.append((marker, step))

    @property
    def waiting(self) -> int:
        """Number of steps not yet called."""
        return len(self._steps)

    def close(self) -> None:
        self._is_closed = True
        for each in (self._listener, *self._sockets):
            _end(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                try:
                    server = socket.create_connection(("127.0.0.1", self._server_port))
                except ConnectionRefusedError:  # the server is down
                    _end(client)
                    continue
                self._sockets += (client, server)
                if self._is_closed:  # meanwhile
                    self.close()
                doomed = threading.Event()
                for pump in (self._requests, self._replies):
                    threading.Thread(target=pump, args=(client, server, doomed), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with contextlib.closing(_Both(client, server)), contextlib.suppress(OSError):
            while request := client.recv(1 << 20):
                self._note(request)
                for waiting in [one for one in self._steps if one[0] in request]:
                    self._steps.remove(waiting)
                    waiting[1]()
                if self._countdown and self._marker in request:
                    self._countdown -= 1
                    if self._countdown == 0 and self._drops:
                        self.lost += 1
                        break
                    if self._countdown == 0:
                        doomed.set()
                server.sendall(request)

    def _replies(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with contextlib.closing(_Both(client, server)), contextlib.suppress(OSError):
            while reply := server.recv(1 << 20):
                self._note(reply)
                if doomed.is_set():
                    self.lost += 1
                    client.sendall(reply[: len(reply) // 2 if self._half else 0])
                    break
                client.sendall(reply)

    def _note(self, data: bytes) -> None:
        if self.seen is not None:
            self.seen += data


class _Both:
    """The two connections of a relay, which end together."""

    def __init__(self, *sockets: socket.socket) -> None:
        self._sockets = sockets

    def close(self) -> None:
        self._is_closed = True
        for each in self._sockets:
            _end(each)


def _end(each: socket.socket) -> None:
    """End a connection at once, also for a thread that waits for it."""
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@pytest.fixture
def proxy(target: Target) -> Iterator[Proxy]:
    """A proxy of the target, which is a single server."""
    made = Proxy(int(target.url.rpartition(":")[2]))
    yield made
    made.close()


def retrying(flavour: str, retries: int) -> Any:
    """Return a client's `retry` for a number of retries without a pause."""
    module: Any = redis.asyncio if flavour == "async" else redis
    return module.retry.Retry(redis.backoff.NoBackoff(), retries)


def through(proxy: Proxy, target: Target, retries: int = 0, **options: Any) -> Uniform:
    """Make a saver that connects through the proxy."""
    beyond = target.elsewhere(proxy.url)
    return beyond.uniform(client=beyond.client(retry=retrying(target.flavour, retries)), **options)
