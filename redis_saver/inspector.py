"""Pages in the browser for threads, checkpoints, values and costs (extra `inspector`)."""

from __future__ import annotations

try:
    from redis_saver._inspector.app import app
except ImportError as _error:
    raise ImportError(f"the inspector needs more packages: pip install 'redis-saver[inspector]' ({_error})") from _error

__all__ = ["app"]
