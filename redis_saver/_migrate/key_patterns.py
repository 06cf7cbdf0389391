"""Says what a server has, where no thread was found: threads under other prefixes, and threads of other savers."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from redis_saver._common.display import shown
from redis_saver._engine.requests import Operation, Page, Scan
from redis_saver._engine.runner import Pump
from redis_saver._migrate.adapters import OurEndpoint
from redis_saver._migrate.foreign import ForeignSource
from redis_saver._migrate.redis_documents import RedisDocuments
from redis_saver._migrate.valkey_saver import ValkeyStrings
from redis_saver.errors import EndpointError

_OUR_DATA = re.compile(rb"([^{}]+):\{[^{}]*\}:data", re.DOTALL)
_MAX_SHOWN = 3


def check_empty(source: Any) -> None:
    """Look what else there is, where a source on Redis has no thread at all, and its user may look.

    Raises:
        EndpointError: There are threads under another prefix, or of another saver. It names their keys, how many there are, and how to move them.
    """
    if not isinstance(source, (OurEndpoint, ForeignSource)):
        return
    with source.doing("the threads"):
        try:
            seen = source.driver.run(_seen())
        except source.failures as error:
            if type(error).__name__ != "NoPermissionError":
                raise
            return  # a user that may read its own keys only, and has none
    if seen:
        said = "; ".join(f"{count:,} keys {pattern} ({remedy})" for (pattern, remedy), count in seen[:_MAX_SHOWN])
        more = f"; and {len(seen) - _MAX_SHOWN} other patterns" if len(seen) > _MAX_SHOWN else ""
        under = f" with the prefix {shown(source.prefix)}" if source.prefix is not None else ""
        raise EndpointError(f"{source.name} has no threads{under} to move. It has {said}{more}")


def _seen() -> Operation[list[tuple[tuple[str, str], int]]]:
    """What there is of savers: patterns of keys, each with how to move them, and how many keys there are; the most first."""
    counts: Counter[tuple[str, str]] = Counter()
    position: Any = None
    while True:
        position, keys = yield Scan(b"*}:data", position)
        for found in filter(None, map(_OUR_DATA.fullmatch, keys)):
            name = shown(found[1].decode("utf-8", "backslashreplace"))
            counts[f"{name}:{{...}}:data", f"of redis_saver: the prefix is {name}"] += 1
        if position is None:
            break
    for source in (RedisDocuments, ValkeyStrings):
        pump = Pump(source.scan())
        for step in pump:
            if isinstance(step, Page):
                prefixes = [each.prefix for each in step.items if each.prefix is not None]
                remedy = f"of {source.kind}: write {source.kind}:URL"
                counts.update((f"{shown(prefix)}:*", remedy) for prefix in prefixes)
                continue
            with pump:
                pump.reply = yield step
    return counts.most_common()
