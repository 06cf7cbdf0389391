"""Arguments that several commands take."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any

from redis_saver._common import ttl as ttls


def add_prefix(command: Any) -> None:
    """Add `--prefix` to a command's parser."""
    said = "the beginning of all keys in Redis (default: %(default)s)"
    command.add_argument("--prefix", metavar="PREFIX", default="langgraph", help=said)


def duration(text: str) -> timedelta:
    """Read a TTL, such as `7d` or `90m`."""
    try:
        return timedelta(milliseconds=ttls.parse(text, name="--ttl").milliseconds or 0)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--ttl=")) from error
