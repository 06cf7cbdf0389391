#!/usr/bin/env bash
# One would expect: with a CachePolicy and a cache that processes share, a node with the same messages is computed
# once.
#
# What happens: each process computes it again. The default key is a hash of the pickled input. A pickled message
# contains a set (of the fields that were given), and the order of a set of texts differs between processes. So equal
# messages have another key in almost every process. Plain dicts of texts have the same key in each.
#
# Versions: langgraph 1.2.24, langchain-core 1.8.3, Python 3.11.
# Source: langgraph/_internal/_cache.py (default_cache_key) and pydantic's __getstate__.
#
# Output seen:
#   of one message, in 8 processes: several keys
#   of one dict, in 8 processes: 1 key
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24 langchain-core==1.8.3

cat >"$folder/try.py" <<'PYTHON'
import subprocess
import sys

from langchain_core.messages import AIMessage
from langgraph._internal._cache import default_cache_key


def key(value):
    made = default_cache_key(value)
    return made.hex() if isinstance(made, bytes) else made


if len(sys.argv) > 1:
    print(key({"messages": [AIMessage("hi", id="1", name="bot")]}), key({"text": "hi"}))
    raise SystemExit
command = [sys.executable, __file__, "key"]
keys = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(8)]
of_message, of_dict = (len(set(each)) for each in zip(*keys))
print("of one message, in 8 processes:", "several keys" if of_message > 1 else "1 key")
print("of one dict, in 8 processes:", of_dict, "key")
assert of_message > 1 and of_dict == 1, keys
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
