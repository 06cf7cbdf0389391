"""The scripts of two tiers: `lua/tiered/`."""

from __future__ import annotations

from redis_saver._engine.scripts import load

BEGIN_INTENT = load("tiered/begin_intent")
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
ACK = load("tiered/ack")
RELEASE = load("tiered/release")
ROLL_BACK = load("tiered/roll_back")
BACKLOG_STATS = load("tiered/backlog_stats")
PUBLISH = load("tiered/publish")
REPORT_BACKLOG = load("tiered/report_backlog")
PUBLISH_BACKLOG = load("tiered/publish_backlog")
NEW_THREAD = load("tiered/new_thread")
PAUSE_FLUSHING = load("tiered/pause_flushing")
FILL_LEASE = load("tiered/fill_lease")
FILL = load("tiered/fill")
