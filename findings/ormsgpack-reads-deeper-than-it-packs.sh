#!/usr/bin/env bash
# One would expect: one limit of nesting, and the 1,024 that a page about msgpack in Python names: what can be read
# can be packed again.
#
# What happens: lists can be packed to 255 levels, and read to 1,022. So a value of 256 levels that another program
# packed can be read from a checkpoint, and the next checkpoint cannot be written.
#
# Versions: ormsgpack 1.13.1, langgraph-checkpoint 4.3.2 (JsonPlusSerializer has the same limits).
# Source: ormsgpack's README (limits of recursion), and langgraph/checkpoint/serde/jsonplus.py.
#
# Output seen:
#   packed: at most 255 levels
#   read: at most 1022 levels
#   read and packed again: MsgpackEncodeError: Recursion limit reached
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph-checkpoint==4.3.2 ormsgpack==1.13.1

cat >"$folder/try.py" <<'PYTHON'
import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def most(works, top):
    """Return the highest number of levels that works."""
    return max(levels for levels in range(1, top) if passes(works, levels))


def passes(works, levels):
    try:
        works(levels)
    except (ormsgpack.MsgpackEncodeError, ormsgpack.MsgpackDecodeError):
        return False
    return True


def packed(levels):
    return b"\x91" * levels + b"\x01"


serde = JsonPlusSerializer()
pack, unpack = lambda levels: ormsgpack.packb(nested(levels)), lambda levels: ormsgpack.unpackb(packed(levels))
found = most(pack, 600), most(unpack, 1100)
print("packed: at most", found[0], "levels")
print("read: at most", found[1], "levels")
assert found == (255, 1022), found
read = serde.loads_typed(("msgpack", packed(256)))
try:
    serde.dumps_typed(read)
except ormsgpack.MsgpackEncodeError as error:
    print("read and packed again: MsgpackEncodeError:", error)
else:
    raise AssertionError("it was packed")
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
