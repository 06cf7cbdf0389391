"""A stand-in for servers that run scripts otherwise than Redis does.

It passes ordinary commands on to a real server, and runs scripts itself, in Lua 5.4 or 5.1. Like Dragonfly it refuses
undeclared keys, and offers `unpack`. It is stricter than any server about numbers: a float that a script returns, or
passes to a command, is an error, because Dragonfly returns it as a string and Garnet passes `5.0`. Faults make it a
server that cannot work.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping, Sequence
from hashlib import sha1
from typing import Any, BinaryIO

import hiredis
from lupa import lua51, lua54  # before fakeredis, which loads one of them for all modules: then the other one crashes

_PRELUDE = b"""
local call = ...
unpack = table.unpack or unpack
redis = { pcall = call }
function redis.call(...)
  local reply = call(...)
  if type(reply) == 'table' and reply.err then error('reply: ' .. reply.err, 0) end
  return reply
end
function redis.error_reply(text) return { err = text } end
function redis.status_reply(text) return { ok = text } end
setmetatable(_G, {
  __index = function(_, name) error("Script attempted to access nonexistent global variable '" .. name .. "'", 2) end,
  __newindex = function(_, name, value)
    if name ~= 'KEYS' and name ~= 'ARGV' then error("Script attempted to create global variable '" .. name .. "'", 2) end
    rawset(_G, name, value)
  end,
})
"""
_MANY_KEYS = {b"EXISTS", b"UNLINK"}


class ScriptError(Exception):
    """An error reply."""


class LuaServer:
    """Such a server on a free port.

    Args:
        port: Port of the real server.
        lua: Module of `lupa`.
        isolated: False to let other commands come between those of a script, like Garnet without transactions.
        faults: Error reply for each command of a client, and for each command of a script under `script NAME`.
        forgets: True to reply NOSCRIPT to each EVALSHA.
        prelude: Lua code that spoils the functions of scripts.
        max_arguments: Maximum number of arguments of a command.
        bits: Bits of an integer in a reply.
    """

    def __init__(
        self,
        port: int,
        *,
        lua: str = "lua54",
        isolated: bool = True,
        faults: Mapping[str, bytes] | None = None,
        forgets: bool = False,
        prelude: bytes = b"",
        max_arguments: int = 1 << 20,
        bits: int = 64,
    ) -> None:
        self.behind, self.forgets, self.prelude = port, forgets, prelude
        self.lua: Any = {"lua51": lua51, "lua54": lua54}[lua]
        self.faults, self.max_arguments = {name.encode(): text for name, text in (faults or {}).items()}, max_arguments
        self.largest = 1 << (bits - 1)
        self.scripts: dict[bytes, bytes] = {}
        self.turn: Any = threading.RLock() if isolated else contextlib.nullcontext()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self._sockets = {self._listening}
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> LuaServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for each in [*self._sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def connect(self) -> socket.socket:
        """Connect to the real server."""
        made = socket.create_connection(("127.0.0.1", self.behind))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.add(made)
        return made

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.add(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        session = _Session(self)
        requests = hiredis.Reader()
        with contextlib.suppress(OSError), contextlib.closing(client), contextlib.closing(session):
            while data := client.recv(1 << 20):
                requests.feed(data)
                while (request := requests.gets()) is not False:
                    client.sendall(session.answer(request))
        self._sockets.discard(client)


class _Session:
    """A client's connection: one to the real server for its commands, and one for its scripts."""

    def __init__(self, server: LuaServer) -> None:
        self._server = server
        self._plain, self._scripts = server.connect(), server.connect()
        self._replies = self._scripts.makefile("rb")
        self._reader, self._protocol = hiredis.Reader(), 2
        self._functions: dict[bytes, Any] = {}
        self._runtime: Any = None
        self._keys: Sequence[bytes] = ()

    def close(self) -> None:
        for each in (self._replies, self._plain, self._scripts):
            each.close()

    def answer(self, request: Sequence[bytes]) -> bytes:
        name = request[0].upper()
        with self._server.turn:
            if name in self._server.faults:
                return b"-" + self._server.faults[name] + b"\r\n"
            if len(request) > self._server.max_arguments:
                return b"-ERR too many arguments\r\n"
            if name in (b"EVAL", b"EVALSHA"):
                return self._eval(name, request[1], request[2:])
            if name == b"HELLO" and len(request) > 1:
                self._protocol = int(request[1])
                self._command([name, b"2", *request[2:]])
            if name in (b"SELECT", b"AUTH"):
                self._command(request)
            return self._passed_on(request)

    def _passed_on(self, request: Sequence[bytes]) -> bytes:
        self._plain.sendall(packed(request))
        reply = b""
        while self._reader.gets() is False:
            data = self._plain.recv(1 << 20)
            if not data:
                raise OSError("the real server is gone")
            self._reader.feed(data)
            reply += data
        return reply

    def _command(self, request: Sequence[bytes]) -> Any:
        self._scripts.sendall(packed(request))
        return parsed(self._replies)

    def _eval(self, name: bytes, script: bytes, rest: Sequence[bytes]) -> bytes:
        sha = script.lower() if name == b"EVALSHA" else sha1(script).hexdigest().encode()
        if name == b"EVAL":
            self._server.scripts[sha] = script
        elif self._server.forgets or sha not in self._server.scripts:
            return b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
        count = int(rest[0])
        self._keys = rest[1 : count + 1]
        try:
            if self._runtime is None:
                self._runtime = self._server.lua.LuaRuntime(encoding=None, register_eval=False)
                self._runtime.execute(_PRELUDE, self._call)
                self._runtime.execute(b"rawset(_G, 'python', nil)\n" + self._server.prelude)
            if sha not in self._functions:
                source = b"return function() " + self._server.scripts[sha] + b"\nend"
                self._functions[sha] = self._runtime.execute(source, name=b"@user_script")
            for table, values in ((b"KEYS", self._keys), (b"ARGV", rest[count + 1 :])):
                self._runtime.globals()[table] = self._runtime.table_from(values)
            return self._reply(self._functions[sha]())
        except ScriptError as error:
            return b"-" + error.args[0] + b" script: " + sha + b", on @user_script:1.\r\n"
        except self._server.lua.LuaError as error:
            text = str(error).split("\nstack traceback")[0].encode("utf-8", "replace")
            if text.startswith(b"reply: "):
                return b"-" + text[7:] + b" script: " + sha + b", on @user_script:1.\r\n"
            return b"-ERR Error running script (call to f_" + sha + b"): @" + text.lstrip(b"@") + b"\r\n"

    def _call(self, *words: Any) -> Any:
        try:
            command = [word if isinstance(word, bytes) else _integer(word) for word in words]
        except ScriptError as error:
            return self._as_lua(error)
        name = command[0].upper()
        named = command[1:] if name in _MANY_KEYS else command[1 : 3 if name == b"RENAME" else 2]
        reply: Any = None
        if b"script " + name in self._server.faults:
            reply = ScriptError(self._server.faults[b"script " + name])
        elif any(key not in self._keys for key in named):
            reply = ScriptError(b"ERR script tried accessing undeclared key")
        else:
            reply = self._command(command)
        return self._as_lua(reply)

    def _as_lua(self, reply: Any) -> Any:
        if isinstance(reply, ScriptError):
            return self._runtime.table_from({b"err": reply.args[0]})
        if isinstance(reply, list):
            return self._runtime.table_from([self._as_lua(each) for each in reply])
        if isinstance(reply, str):
            return self._runtime.table_from({b"ok": reply.encode()})
        return False if reply is None else reply

    def _reply(self, value: Any) -> bytes:
        null = b"_\r\n" if self._protocol == 3 else b"$-1\r\n"
        if value is None or value is False:
            return null
        if value is True:
            return b":1\r\n"
        if isinstance(value, bytes):
            return b"$%d\r\n%b\r\n" % (len(value), value)
        if isinstance(value, (int, float)):
            return b":" + _integer(min(value, self._server.largest)) + b"\r\n"
        if value[b"err"] is not None:
            return b"-" + value[b"err"] + b"\r\n"
        if value[b"ok"] is not None:
            return b"+" + value[b"ok"] + b"\r\n"
        parts: list[bytes] = []
        while (part := value[len(parts) + 1]) is not None:
            parts.append(self._reply(part))
        return b"*%d\r\n" % len(parts) + b"".join(parts)


def _integer(value: float) -> bytes:
    # lupa gives integral numbers of Lua 5.1 as int.
    if isinstance(value, float):
        raise ScriptError(b"ERR a script uses the float %r as an integer" % value)
    return b"%d" % value


def packed(request: Sequence[bytes]) -> bytes:
    """Return a command as it is sent."""
    return b"*%d\r\n" % len(request) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in request)


def parsed(replies: BinaryIO) -> Any:
    """Read a reply: bytes, an int, None, a list, a str for a status, or a `ScriptError`."""
    line = replies.readline()
    if not line:
        raise OSError("the real server is gone")
    kind, rest = line[:1], line[1:-2]
    if kind == b"+":
        return rest.decode()
    if kind == b"-":
        return ScriptError(rest)
    size = int(rest)
    if kind == b":":
        return size
    if size < 0:
        return None
    if kind == b"*":
        return [parsed(replies) for _ in range(size)]
    return replies.read(size + 2)[:-2]
