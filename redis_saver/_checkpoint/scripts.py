"""The scripts of checkpoints: `lua/checkpoint/`."""

from __future__ import annotations

from redis_saver._engine.scripts import load
from redis_saver._storage.rewrapping import DATA_KEY  # noqa: F401 - one of these scripts

PUT = load("checkpoint/put")
PUT_WRITES = load("checkpoint/put_writes")
GET = load("checkpoint/get")
LIST = load("checkpoint/list")
GET_MANY = load("checkpoint/get_many")
HISTORY = load("checkpoint/history")
HAS_RUNS = load("checkpoint/has_runs")
LIST_REFERENCES = load("checkpoint/list_references")
CHUNK_LISTS = load("checkpoint/chunk_lists")
REMOVE = load("checkpoint/remove")
DELETE_THREAD = load("checkpoint/delete_thread")
READ_FIELDS = load("checkpoint/read_fields")
STAGE = load("checkpoint/stage")
PROMOTE = load("checkpoint/promote")
CHECK = load("checkpoint/check")
THREAD_INFO = load("checkpoint/thread_info")
AUDIT = load("checkpoint/audit")
GET_CHANNEL = load("checkpoint/get_channel")
GET_TTL = load("checkpoint/get_ttl")
SET_TTL = load("checkpoint/set_ttl")
TAKE_OWNERSHIP = load("checkpoint/take_ownership")
RENEW_OWNERSHIP = load("checkpoint/renew_ownership")
RELEASE_OWNERSHIP = load("checkpoint/release_ownership")
