"""A store's TTL, in the forms that savers take and in LangGraph's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.store.base import TTLConfig

from redis_saver._common import ttl as ttls
from redis_saver._common.display import shown
from redis_saver._common.ttl import TTL

_OF_STORES = ("omit_expired", "sweep_interval_minutes")


def to_config(given: TTL | TTLConfig) -> TTLConfig | None:
    """A TTL as LangGraph's stores have it.

    Raises:
        TypeError, ValueError: It makes no sense.
    """
    if given is None:
        return None
    of_stores: dict[str, Any] = {}
    refreshes: Any = True
    if isinstance(given, Mapping):
        said: Mapping[str, Any] = given
        of_stores = {name: said[name] for name in _OF_STORES if name in said}
        _check(of_stores, given)
        refreshes = said.get("refresh_on_read", True)
        given = {
            **{name: value for name, value in said.items() if name not in _OF_STORES},
            "refresh_on_read": refreshes,
        }
    amount = ttls.parse(given).milliseconds
    config: Any = {
        **of_stores,
        "refresh_on_read": refreshes,
        "default_ttl": None if amount is None else amount / 60_000,
    }
    return config  # type: ignore[no-any-return]


def _check(of_stores: Mapping[str, Any], given: object) -> None:
    if not isinstance(of_stores.get("omit_expired", True), bool):
        raise TypeError(f"ttl={shown(given)}: omit_expired is True or False")
    interval = of_stores.get("sweep_interval_minutes")
    if interval is not None and (isinstance(interval, bool) or not isinstance(interval, (int, float)) or interval <= 0):
        raise ValueError(f"ttl={shown(given)}: sweep_interval_minutes is a positive number of minutes, or None")
