"""Whether a history of calls is linearizable: each call takes effect at once, at a moment between its begin and its end, as a thread with an owner does.

The search is Wing and Gong's: take a call that no other one ended before, apply it to the model, and go on; what was tried from a state is not tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

UNKNOWN = "unknown"
"""The result of a call whose reply was lost: it took effect at any moment after its begin, or never."""


class Event(NamedTuple):
    """A call of a client."""

    begin: float
    end: float
    """`inf` where the result is unknown."""
    kind: str
    """`take`, `renew`, `release`, `put`, `read`, `lapse` (the lease runs out), or `delete`."""
    argument: str
    """The owner's nonce for `take`, with a `!` behind it if it takes from anybody; else the token, or nothing without one; for `put`, the id behind a space."""
    result: str
    """The token of who has taken, or `busy`; `yes` or `no`; for `read` the newest id."""


class State(NamedTuple):
    """A thread."""

    token: str = ""
    """Of its owner."""
    is_late: bool = False
    """Whether the owner's lease has run out."""
    epoch: int = 0
    """The greatest that there was."""
    newest: str = ""


def after(state: State, event: Event) -> Iterable[State]:
    """The states in which a call may leave a thread; none where it cannot have answered that."""
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
    """Whoever takes a thread twice by the same nonce has it once, and its lease begins anew."""
    nonce = argument.rstrip("!")
    if state.token == "?-" + nonce:
        is_greater = result.endswith("-" + nonce) and int(result.partition("-")[0]) > state.epoch
        return [State(result, False, int(result.partition("-")[0]), state.newest)] if is_greater else []
    if state.token.endswith("-" + nonce):
        return [state._replace(is_late=False)] if result == state.token else []
    if state.token and not state.is_late and not argument.endswith("!"):
        return [state] if result == "busy" else []
    epoch, _, name = result.partition("-")
    if name != nonce or int(epoch) <= state.epoch:  # ("busy" has no name)
        return []
    return [State(result, False, int(epoch), state.newest)]


def _after_any(state: State, event: Event) -> list[State]:
    """The reply was lost. Whatever token a take gave, its client does not know it, so nobody ever writes with it; its epoch is greater by some."""
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
    """Whether there is an order."""
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
