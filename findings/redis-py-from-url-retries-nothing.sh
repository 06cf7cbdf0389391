#!/usr/bin/env bash
# One would expect: since redis-py retries by default (three times since 6.0, ten since 8.0), each client of redis-py
# does, however it was made, and retry= of a client counts, whatever else it is given.
#
# What happens: only Redis(host=...) has that default. Redis.from_url(url), Redis(connection_pool=pool) and
# Sentinel.master_for(name) retry nothing, and retry= beside connection_pool= is ignored without a word. In valkey-py,
# which has no default, retry= alone retries nothing either: it needs retry_on_error= beside it.
#
# Versions: redis 8.1.0, valkey 6.2.0. The server is a loopback socket that drops the first connection it gets a GET on.
# Source: redis/client.py (Redis.__init__), redis/connection.py (AbstractConnection.__init__), valkey/client.py
# (_disconnect_raise).
#
# Output seen:
#   redis:  Redis(host)                     b'value'
#   redis:  from_url                        ConnectionError
#   redis:  from_url, retry=                b'value'
#   redis:  connection_pool=                ConnectionError
#   redis:  connection_pool=, retry=        ConnectionError
#   redis:  master_for                      ConnectionError
#   valkey: Valkey(host), retry=            ConnectionError
#   valkey: Valkey(host), retry=, on_error= b'value'
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q redis==8.1.0 valkey==6.2.0

cat >"$folder/retry.py" <<'PYTHON'
import contextlib
import socketserver
import threading

import redis
import redis.sentinel
import valkey
from redis.backoff import NoBackoff
from redis.retry import Retry


class Handler(socketserver.StreamRequestHandler):
    """Answers in RESP2. It ends the first connection with a GET, without the reply."""

    def handle(self):
        with contextlib.suppress(ConnectionError):
            while count := self.rfile.readline():
                words = []
                for _ in range(int(count[1:])):
                    length = int(self.rfile.readline()[1:])
                    words.append(self.rfile.read(length + 2)[:-2].upper())
                if words[0] == b"HELLO":
                    self.wfile.write(b"-ERR unknown command 'HELLO'\r\n")
                elif words[0] != b"GET":
                    self.wfile.write(b"+OK\r\n")
                elif self.server.drops:
                    self.server.drops = False
                    return
                else:
                    self.wfile.write(b"$5\r\nvalue\r\n")


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True


server = Server(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = server.server_address[1]
url, where = f"redis://127.0.0.1:{port}?protocol=2", {"host": "127.0.0.1", "port": port, "protocol": 2}


class Known(redis.sentinel.Sentinel):
    """Sentinels that need not be asked."""

    def discover_master(self, service_name):
        return "127.0.0.1", port


retry = {"retry": Retry(NoBackoff(), 3)}
of_valkey = {"retry": valkey.retry.Retry(valkey.backoff.NoBackoff(), 3)}
clients = {
    "redis:  Redis(host)": redis.Redis(**where),
    "redis:  from_url": redis.Redis.from_url(url),
    "redis:  from_url, retry=": redis.Redis.from_url(url, **retry),
    "redis:  connection_pool=": redis.Redis(connection_pool=redis.ConnectionPool(**where)),
    "redis:  connection_pool=, retry=": redis.Redis(connection_pool=redis.ConnectionPool(**where), **retry),
    "redis:  master_for": Known([("127.0.0.1", 1)]).master_for("service", protocol=2),
    "valkey: Valkey(host), retry=": valkey.Valkey(**where, **of_valkey),
    "valkey: Valkey(host), retry=, on_error=": valkey.Valkey(
        **where, **of_valkey, retry_on_error=[valkey.ConnectionError]
    ),
}
found = {}
for name, client in clients.items():
    server.drops = True
    try:
        found[name] = repr(client.get("key"))
    except (redis.ConnectionError, valkey.ConnectionError) as error:
        found[name] = type(error).__name__
    assert not server.drops, name
    print(f"{name:39} {found[name]}")
value, failed = "b'value'", "ConnectionError"
assert list(found.values()) == [value, failed, value, failed, failed, failed, failed, value], found
PYTHON
"$folder/venv/bin/python" "$folder/retry.py"
