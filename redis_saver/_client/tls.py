"""TLS connections that say so if the server answers without TLS.

A Redis without TLS waits for the end of a line, which the beginning of a TLS handshake need not have. So the handshake
times out, and redis-py tries it three times more. After a first handshake that fails, these connections ask the server
`PING` in plain text.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import redis
import redis.asyncio

_FAILURES = (TimeoutError, asyncio.TimeoutError, ssl.SSLError)
_MAX_SECONDS = 1.0


class HintingSSLConnection(redis.SSLConnection):
    """A blocking connection."""

    _is_plain: bool | None = None
    """None: no handshake has failed."""

    def _connect(self) -> Any:
        if self._is_plain and _answers_plain(self):  # another try, which would take as long
            raise _refusal(self)
        try:
            return super()._connect()  # type: ignore[no-untyped-call]
        except _FAILURES as error:
            if self._is_plain is None and not isinstance(error, ssl.SSLCertVerificationError):
                self._is_plain = _answers_plain(self)
                if self._is_plain:
                    raise _refusal(self) from error
            raise


class AsyncHintingSSLConnection(redis.asyncio.SSLConnection):
    """An asyncio connection."""

    _is_plain: bool | None = None

    async def _connect(self) -> None:
        if self._is_plain and await asyncio.to_thread(_answers_plain, self):
            raise _refusal(self)
        try:
            await super()._connect()  # type: ignore[no-untyped-call]
        except _FAILURES as error:
            if self._is_plain is None and not isinstance(error, ssl.SSLCertVerificationError):
                self._is_plain = await asyncio.to_thread(_answers_plain, self)
                if self._is_plain:
                    raise _refusal(self) from error
            raise


def _answers_plain(connection: Any) -> bool:
    """True if the server answers in plain text."""
    seconds = min(_MAX_SECONDS, connection.socket_connect_timeout or _MAX_SECONDS)
    try:
        with socket.create_connection((connection.host, connection.port), seconds) as probe:
            probe.sendall(b"PING\r\n")
            return probe.recv(1) in (b"+", b"-")
    except OSError:
        return False


def _refusal(connection: Any) -> redis.RedisError:
    """The error of a server without TLS. A blocking client does not try again after it."""
    return redis.RedisError(
        f"the server at {connection.host}:{connection.port} answers without TLS, which rediss:// asks for. Write the "
        "port where it speaks TLS; or redis://, if nobody else can listen on the network"
    )
