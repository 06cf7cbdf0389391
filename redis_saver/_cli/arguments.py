"""Arguments that several commands take."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from langgraph.store.base import InvalidNamespaceError

from redis_saver._common import ttl as ttls
from redis_saver._common.display import printable
from redis_saver._store.places import check_labels
from redis_saver.errors import EndpointError


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


def add_namespace(command: Any, *, said: str, action: str) -> None:
    """Add `--namespace` to a command's parser: its labels, one word each."""
    command.add_argument("--namespace", metavar="LABEL", nargs="+", action=action, help=said)


def labels_of(words: Sequence[str]) -> tuple[str, ...]:
    """The namespace that `--namespace` was given.

    Raises:
        EndpointError: A word is no label.
    """
    try:
        return check_labels(tuple(words), "--namespace")
    except InvalidNamespaceError as error:
        raise EndpointError(printable(str(error))) from error


def refuse_embedded(url: str) -> None:
    """Refuse `memory:`.

    Raises:
        EndpointError: It is one.
    """
    if url.startswith("memory:"):
        raise EndpointError(
            f"{url}: an embedded server is empty when this command begins, and ends with it. Name a server, such as redis://host:6379"
        )
