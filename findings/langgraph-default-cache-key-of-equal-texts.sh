#!/usr/bin/env bash
# One would expect: equal inputs have the same key in LangGraph's cache of nodes, at least within one process.
#
# What happens: the default key is a hash of the pickled input, and pickle writes an object that occurs twice as a
# reference to the first one. So {"question": a, "title": b} has one key if a and b are the same text object, and
# another if they are equal texts that were made apart, for example by reading them from a checkpoint. The entry is
# not found, and the node runs again.
#
# Versions: langgraph 1.2.24, Python 3.11.
# Source: langgraph/_internal/_cache.py (default_cache_key), and pickle's memo in the Python documentation.
#
# Output seen:
#   equal inputs: True
#   equal keys: False
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph==1.2.24

cat >"$folder/try.py" <<'PYTHON'
from langgraph._internal._cache import default_cache_key

text = "where is my order?"
apart = "".join(text.partition(" "))
one, other = {"question": text, "title": text}, {"question": text, "title": apart}
print("equal inputs:", one == other)
print("equal keys:", default_cache_key(one) == default_cache_key(other))
assert one == other and default_cache_key(one) != default_cache_key(other)
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
