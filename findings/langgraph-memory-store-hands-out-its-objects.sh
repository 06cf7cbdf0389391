#!/usr/bin/env bash
# One would expect: a store returns values, as PostgresStore and SqliteStore do: to change what is stored, one puts.
#
# What happens: InMemoryStore keeps the dict that it was given, and hands it out. Whoever changes a value that was
# read, or the dict after the put, changes the store, and other readers see it. A test with InMemoryStore passes where
# the put was forgotten, and fails over any other store.
#
# Versions: langgraph-checkpoint 4.3.2.
# Source: langgraph/store/memory/__init__.py.
#
# Output seen:
#   changed after get: {'facts': ['likes tea', 'and coffee']}
#   changed after put: {'facts': ['likes tea', 'and milk']}
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q langgraph-checkpoint==4.3.2

cat >"$folder/try.py" <<'PYTHON'
from langgraph.store.memory import InMemoryStore

store = InMemoryStore()
store.put(("user", "1"), "read", {"facts": ["likes tea"]})
store.get(("user", "1"), "read").value["facts"].append("and coffee")
given = {"facts": ["likes tea"]}
store.put(("user", "1"), "given", given)
given["facts"].append("and milk")
read, put = (store.get(("user", "1"), key).value for key in ("read", "given"))
print("changed after get:", read)
print("changed after put:", put)
assert read == {"facts": ["likes tea", "and coffee"]}, read
assert put == {"facts": ["likes tea", "and milk"]}, put
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
