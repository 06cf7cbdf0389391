"""The compiled part of this package, if `native.c` could be built. `framing` and `version_table` ask it first, and do without where it answers None."""

from __future__ import annotations

from typing import Any

from redis_saver._common import compiled

native: Any = compiled.load("redis_saver._storage.native")
