"""The compiled parts: each does what a module in Python does, only faster, and is there if a C compiler was."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from redis_saver._common.logs import Log

_LOG = Log("redis_saver.common")


def load(name: str) -> Any:
    """A compiled module; None if it was not built, or cannot be loaded, which is logged."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        _LOG.warning(
            "redis_saver goes on without its compiled part, which cannot be loaded, and is slower: %s. Install it again for this machine",
            error,
        )
        return None
