"""Changes of threads, stores and caches that a user has to confirm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from redis_saver._common import ttl as ttls
from redis_saver._common.display import counted, printable, shown
from redis_saver._inspector.pages import Query, Refused, number
from redis_saver._inspector.source import Source
from redis_saver._inspector.values import named, size


class Change(NamedTuple):
    """A change that a form asks for."""

    title: str
    """A verb, a colon, and what is changed."""
    effect: str
    """Sentences that say what it will do."""
    run: Callable[[], object]
    back: tuple[str, Mapping[str, str]]
    """The page of the form, and its arguments."""
    then: tuple[str, Mapping[str, str]] | None = None
    """The page to show next, if it is another one."""


def of_thread(source: Source, arguments: Query, form: Mapping[str, str]) -> Change:
    """Return the change of a thread that a form asks for.

    Raises:
        Refused: The form is invalid.
        ThreadNotFound: There is no such thread.
    """
    thread, what = arguments["id"], form.get("do")
    saver, info = source.saver, source.thread(thread)
    name, back, has = named(thread), ("thread", {"id": thread}), _amount(info.checkpoints, info.bytes)
    now = f"It has {has}, and expires now: {info.expires}."
    if what == "pin":
        effect = f"It will not expire until it is unpinned. {now}"
        return Change(f"Pin: {name}", effect, partial(saver.pin, thread), back)
    if what == "unpin":
        effect = f"The saver's TTL will count from now. {now}"
        return Change(f"Unpin: {name}", effect, partial(saver.unpin, thread), back)
    if what == "delete":
        effect = f"All its history, {has}, will be deleted for good."
        return Change(f"Delete: {name}", effect, partial(saver.delete_thread, thread), back, ("", {}))
    if what == "copy":
        return _copy(source, thread, form.get("to", ""), form.get("at", ""))
    try:
        if what == "ttl":
            ttl = form.get("ttl", "").strip() or None
            ttls.parse(ttl, name="TTL")
            text = f"It will expire {ttl} after now and after each write" if ttl else "The saver's TTL will apply again"
            return Change(f"Set TTL: {name}", f"{text}. {now}", partial(saver.set_thread_ttl, thread, ttl), back)
        if what == "prune":
            older_than = form.get("older_than", "").strip() or None
            rules: dict[str, Any] = {"keep_last": number(form, "keep_last") or None, "older_than": older_than}
            gone = saver.prune([thread], **rules, dry_run=True)
            effect = f"{_amount(gone.checkpoints, gone.bytes)} will be removed for good, of {has}."
            return Change(f"Prune: {name}", effect, partial(saver.prune, [thread], **rules), back)
    except ValueError as error:
        raise Refused(str(error)) from error
    raise Refused("the form names no known action")


def _copy(source: Source, thread: str, target: str, newest: str) -> Change:
    if source.tiers is not None:
        raise Refused("a copy up to a checkpoint needs a saver of one tier. The command redis-saver copy copies all")
    if not target or target == thread:
        raise Refused("write the name of another thread")
    count = sum((each.checkpoint_id or "") <= newest for each in source.addresses(thread))
    if not count:
        raise Refused("there is no such checkpoint")
    those = f"{counted(count, 'checkpoint')} up to {printable(newest)}, of the root and of subgraphs,"
    text = f"{those} will be copied to {shown(target)}. The pending writes of the last one of the root and of each "
    text += "subgraph are left out, so a resume runs their tasks again."
    if (there := source.in_redis(target)) is not None:
        text += f" It replaces that thread: {_amount(there.checkpoints, there.bytes)} will go."
    title, copy = f"Copy: {named(thread)} to {named(target)}", partial(source.copy, thread, target, newest)
    return Change(title, text, copy, ("thread", {"id": thread}), ("thread", {"id": target}))


def _amount(checkpoints: int, amount: int) -> str:
    return f"{counted(checkpoints, 'checkpoint')} ({size(amount)})"
