"""A checker for linearizability: each call takes effect at one moment between its begin and its end.

The model is a thread with an owner. The search is Wing and Gong's: apply to the model a call that began before any
other call ended, and continue. States that were tried are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

UNKNOWN = "unknown"
"""Result of a call whose reply was lost. It took effect at any moment after its begin, or never."""


class Event(NamedTuple):
    """A call of a client, with its times and its result."""

    begin: float
    end: float
    """`inf` if the result is unknown."""
    kind: str
    """`take`, `renew`, `release`, `put`, `read`, `lapse` (the lease expires), or `delete`."""
    argument: str
    """The owner's nonce for `take`, with a `!` if it takes from any owner. Else the token; for `put` also the id."""
    result: str
    """For `take`, the new token or `busy`. For `read`, the newest id. Else `yes` or `no`."""


class State(NamedTuple):
    """State of a thread."""

    token: str = ""
    """Token of its owner."""
    is_late: bool = False
    """True if the owner's lease has expired."""
    epoch: int = 0
    """The greatest epoch so far."""
    newest: str = ""


def after(state: State, event: Event) -> Iterable[State]:
    """The states of a thread after a call. Empty if the call cannot have that result."""
    kind, argument, result = event.kind, event.argument, event.result
    if result == UNKNOWN:
        return _after_any(state, event)
    if kind == "take":
        return _taken(state, argument, result)
    if kind == "read":
        return [state] if result == state.newest else []
    if kind == "lapse":
        return [state._replace(is_late=bool(state.token))]
    token, _, made = argument.partition(" ")
    is_allowed = token == state.token or (kind in ("put", "delete") and not token and state.is_late)
    if result != ("yes" if is_allowed else "no"):
        return []
    if result == "no":
        return [state]
    if kind == "put":
        return [state._replace(newest=max(state.newest, made))]
    if kind == "renew":
        return [state._replace(is_late=False)]
    return [state._replace(token="", is_late=False, newest="" if kind == "delete" else state.newest)]


def _taken(state: State, argument: str, result: str) -> list[State]:
    """A second take with the same nonce only renews the lease."""
    nonce = argument.rstrip("!")
    if state.token == "?-" + nonce:
        is_greater = result.endswith("-" + nonce) and int(result.partition("-")[0]) > state.epoch
        return [State(result, False, int(result.partition("-")[0]), state.newest)] if is_greater else []
    if state.token.endswith("-" + nonce):
        return [state._replace(is_late=False)] if result == state.token else []
    if state.token and not state.is_late and not argument.endswith("!"):
        return [state] if result == "busy" else []
    epoch, _, name = result.partition("-")
    if name != nonce or int(epoch) <= state.epoch:  # "busy" has no name
        return []
    return [State(result, False, int(epoch), state.newest)]


def _after_any(state: State, event: Event) -> list[State]:
    """States after a lost reply. A lost token is never used, but its epoch is greater than those before."""
    if event.kind == "take":
        nonce = event.argument.rstrip("!")
        is_refused = state.token and not state.is_late and not event.argument.endswith("!")
        if state.token.endswith("-" + nonce):
            return [state, state._replace(is_late=False)]
        if is_refused:
            return [state]
        return [state._replace(token=f"?-{nonce}", is_late=False)]
    results = ("", "yes", "no")
    return [one for result in results for one in after(state, event._replace(result=result))] or [state]


def is_linearizable(history: Sequence[Event]) -> bool:
    """True if an order of the calls explains all results."""
    events = sorted(history)
    everything = sum(1 << number for number, event in enumerate(events) if event.result != UNKNOWN)
    tried: set[tuple[int, State]] = set()
    left = [(0, State())]
    while left:
        at = left.pop()
        if at in tried:
            continue
        tried.add(at)
        done, state = at
        if done & everything == everything:
            return True
        first_end = min((one.end for number, one in enumerate(events) if not done >> number & 1), default=inf)
        for number, event in enumerate(events):
            if event.begin > first_end:
                break
            if not done >> number & 1:
                left += [(done | 1 << number, then) for then in after(state, event)]
    return False
