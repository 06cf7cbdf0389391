"""The scripts of two tiers: `lua/tiered/`. `ClaimArguments` and the like have the names of the headers."""

# ruff: noqa: PYI024 - all arguments have one type, `Argument`, so their names are enough
from __future__ import annotations

from collections import namedtuple

from redis_saver._engine.scripts import load

BEGIN_INTENT = load("tiered/begin_intent")
BeginIntentArguments = namedtuple("BeginIntentArguments", "token default writes fill_token record need gone")
END_INTENT = load("tiered/end_intent")
ENROLL = load("tiered/enroll")
REPAIR = load("tiered/repair")
PUT_THROUGH = load("tiered/put_through")
PUT_WRITES_THROUGH = load("tiered/put_writes_through")
PUT_BEHIND = load("tiered/put_behind")
PUT_WRITES_BEHIND = load("tiered/put_writes_behind")
PUT_TOMBSTONE = load("tiered/put_tombstone")
ERASE = load("tiered/erase")
CLAIM = load("tiered/claim")
ClaimArguments = namedtuple("ClaimArguments", "token length most at_once gone")
ACK = load("tiered/ack")
AckArguments = namedtuple("AckArguments", "token n m kept gaps")
RELEASE = load("tiered/release")
ROLL_BACK = load("tiered/roll_back")
BACKLOG_STATS = load("tiered/backlog_stats")
PUBLISH = load("tiered/publish")
REPORT_BACKLOG = load("tiered/report_backlog")
ReportBacklogArguments = namedtuple("ReportBacklogArguments", "written flushed scan limit length generation known new")
PUBLISH_BACKLOG = load("tiered/publish_backlog")
NEW_THREAD = load("tiered/new_thread")
PAUSE_FLUSHING = load("tiered/pause_flushing")
FILL_LEASE = load("tiered/fill_lease")
FillLeaseArguments = namedtuple("FillLeaseArguments", "token oldest length ns id")
FILL = load("tiered/fill")
FillArguments = namedtuple("FillArguments", "token writes newest last n")
