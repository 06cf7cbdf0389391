#!/usr/bin/env bash
# One would expect: LANGGRAPH_STRICT_MSGPACK=true makes a process refuse classes that nobody allowed, with an error,
# when it reads or writes them.
#
# What happens: it writes them as before. When it reads one, it returns a dict of the fields and logs a warning. So
# the same checkpoint is an object for one worker and a dict for the next, and the strict one stores the dict with its
# next checkpoint: then the object is a dict for everybody.
#
# Versions: langgraph-checkpoint 4.3.2.
# Source: langgraph/checkpoint/serde/jsonplus.py (_create_msgpack_ext_hook).
#
# Output seen:
#   not strict, reads: Order
#   strict, writes the same bytes: True
#   strict, reads: dict
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
import os
import subprocess
import sys
from dataclasses import dataclass

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer


@dataclass
class Order:
    number: int


if __name__ == "__main__":
    from try_ import Order as Shared

    kind, data = JsonPlusSerializer().dumps_typed(Shared(7))
    if len(sys.argv) > 1:
        value = JsonPlusSerializer().loads_typed((kind, bytes.fromhex(sys.argv[1])))
        print(type(value).__name__, data.hex() == sys.argv[1])
        raise SystemExit
    read = JsonPlusSerializer().loads_typed((kind, data))
    strict = subprocess.run(
        [sys.executable, __file__, data.hex()],
        env={**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    kind_read, same = strict.stdout.split()
    print("not strict, reads:", type(read).__name__)
    print("strict, writes the same bytes:", same)
    print("strict, reads:", kind_read)
    assert (type(read).__name__, same, kind_read) == ("Order", "True", "dict"), strict
PYTHON
cp "$folder/try.py" "$folder/try_.py"
"$folder/venv/bin/python" "$folder/try.py"
