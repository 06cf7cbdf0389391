"""The scripts of checkpoints: `lua/checkpoint/`.

`GetArguments` and the like give the arguments of scripts with many of them the names of the header.
"""

# ruff: noqa: PYI024 - all arguments have one type, `Argument`, so their names are enough
from __future__ import annotations

from collections import namedtuple

from redis_saver._engine.scripts import load
from redis_saver._storage.rewrapping import DATA_KEY  # noqa: F401 - one of these scripts

PUT = load("checkpoint/put")
PutArguments = namedtuple("PutArguments", "checkpoint by_age run header flags default own history tag random n p q key")
PUT_WRITES = load("checkpoint/put_writes")
PutWritesArguments = namedtuple("PutWritesArguments", "member regular count default own key tags")
GET = load("checkpoint/get")
GetArguments = namedtuple("GetArguments", "ns id refresh default roots told tag known")
LIST = load("checkpoint/list")
ListArguments = namedtuple("ListArguments", "upper lower limit budget what refresh default")
GET_MANY = load("checkpoint/get_many")
HISTORY = load("checkpoint/history")
HistoryArguments = namedtuple("HistoryArguments", "ns id target lowest limit budget refresh default n m")
HAS_RUNS = load("checkpoint/has_runs")
LIST_REFERENCES = load("checkpoint/list_references")
CHUNK_LISTS = load("checkpoint/chunk_lists")
REMOVE = load("checkpoint/remove")
DELETE_THREAD = load("checkpoint/delete_thread")
READ_FIELDS = load("checkpoint/read_fields")
STAGE = load("checkpoint/stage")
PROMOTE = load("checkpoint/promote")
PromoteArguments = namedtuple("PromoteArguments", "token pages default bytes blobs writes format state")
CHECK = load("checkpoint/check")
THREAD_INFO = load("checkpoint/thread_info")
ThreadInfoArguments = namedtuple("ThreadInfoArguments", "root interrupt failure state least within pinned dirty owned")
AUDIT = load("checkpoint/audit")
AuditArguments = namedtuple("AuditArguments", "upper lower limit budget channel longest")
GET_CHANNEL = load("checkpoint/get_channel")
GET_TTL = load("checkpoint/get_ttl")
SET_TTL = load("checkpoint/set_ttl")
TAKE_OWNERSHIP = load("checkpoint/take_ownership")
TakeOwnershipArguments = namedtuple("TakeOwnershipArguments", "nonce lease kept mode run by arrival")
RENEW_OWNERSHIP = load("checkpoint/renew_ownership")
RELEASE_OWNERSHIP = load("checkpoint/release_ownership")
