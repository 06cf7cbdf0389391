"""The scripts of the cache: `lua/cache/`."""

from __future__ import annotations

from redis_saver._engine.scripts import load

SET_ENTRIES = load("cache/set_entries")
SWEEP_ENTRIES = load("cache/sweep_entries")
