"""The command `forget`: deletes a user's threads and items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import typer

from redis_saver._cli import screen
from redis_saver._cli.options import (
    PREFIX,
    REDIS,
    Savers,
    Words,
    app,
    flag,
    labels_of,
    opened_savers,
    option,
    postgres_url,
    redis_url,
    words_of,
)
from redis_saver._common.display import counted, printable, shown
from redis_saver._migrate.opening import opened_cold, opened_store
from redis_saver._store import store as stores
from redis_saver._tiered_store import copies
from redis_saver.errors import EndpointError, RedisSaverError, StoreDamaged, ThreadDamaged

_MAX_NAMED = 5
"""Maximum number of parts that are named when the command ends early."""
_CODES = (
    "Exit code: 0, all is deleted, or nothing was to be (no --yes); 1, something could not be deleted, or came anew "
    "meanwhile; 2, a URL, a login or a missing package is at fault. Example: redis-saver forget --redis "
    "redis://host:6379 --thread-prefix user-1: --namespace memories user-1 --yes"
)


@dataclass(frozen=True)
class _Part:
    """A thread or a namespace to delete."""

    name: str
    unit: str
    """Name of what `count` counts, in the plural."""
    count: Callable[[], int]
    delete: Callable[[], int | None]
    """Deletes the part. It returns the number deleted, or None if the part was damaged."""


class _Words(Words):
    """Here `--thread` takes several names, too."""

    OPTIONS = Words.OPTIONS | {"--thread"}


@app.command("forget", cls=_Words, epilog=_CODES)
def _forget(
    *,
    thread: list[str] | None = option("Threads by their names; may be repeated.", "ID..."),
    thread_prefix: list[str] | None = option("All threads whose names begin with TEXT; may be repeated.", "TEXT"),
    namespace: list[str] | None = option(
        "All items of the namespace with these labels, and of those below it, such as --namespace memories user-1; "
        "may be repeated.",
        "LABEL...",
    ),
    url: str | None = REDIS,
    postgres: str | None = option(
        "The cold tier behind it: its threads and items are deleted, too, which otherwise would come back.", "URL"
    ),
    prefix: str = PREFIX,
    store_prefix: str | None = option(
        "The same of the store, where it has another one, as the RedisStore of a TieredStore has. "
        "Default: that of --prefix.",
        "PREFIX",
    ),
    yes: bool = flag("--yes", "Delete; without it nothing is deleted."),
) -> int:
    """Delete what is kept of a user: threads, and all items of the store under namespaces.

    Without --yes it deletes nothing, and says what it would delete.
    What is gone already is no error: run it again after one that ended early.
    """
    namespaces = dict.fromkeys(labels_of(words) for words in words_of(namespace))
    threads, prefixes = [name for words in words_of(thread) for name in words], tuple(thread_prefix or ())
    if not (threads or prefixes or namespaces):
        raise typer.BadParameter("say what to delete.", param_hint="--thread, --thread-prefix or --namespace")
    if "" in prefixes:
        raise EndpointError(
            "--thread-prefix '': every thread's name begins so. Write what the names of this user's threads begin with"
        )
    url, postgres = redis_url(url), postgres_url(postgres)
    parts: list[_Part] = []
    with ExitStack() as stack:
        if threads or prefixes:
            savers = stack.enter_context(opened_savers(url, prefix, postgres, readable=False))
            parts += _of_threads(savers, threads, prefixes)
        if namespaces:
            store_prefix = prefix if store_prefix is None else store_prefix
            hot = stack.enter_context(opened_store(url, target=False, prefix=store_prefix))
            cold = opened_cold(postgres, stack) if postgres else []
            for labels in namespaces:
                parts += _of_namespace(hot, cold, labels)
        return _delete(parts) if yes else _count(parts)


def _of_threads(savers: Savers, names: Sequence[str], prefixes: tuple[str, ...]) -> Iterator[_Part]:
    """List the threads, each once.

    Raises:
        EndpointError: A thread is in a cold tier, too, and none was named.
    """
    wanted = dict.fromkeys(names)
    for endpoint in savers.endpoints if prefixes else ():
        wanted |= dict.fromkeys(sorted({name for name in endpoint.threads() if name.startswith(prefixes)}))
    for name in wanted:
        savers.refuse_cold_backed(name, "deleted")
    for name in wanted:
        count, delete = partial(_checkpoints, savers, name), partial(_delete_thread, savers, name)
        yield _Part(f"thread {shown(name)}", "checkpoints", count, delete)


def _checkpoints(savers: Savers, name: str) -> int:
    info = savers.saver.get_thread(name)
    return info.checkpoints if info else 0


def _delete_thread(savers: Savers, name: str) -> int | None:
    try:
        count: int | None = _checkpoints(savers, name)
    except ThreadDamaged:
        count = None  # it is deleted all the same
    savers.saver.delete_thread(name)
    return count


def _of_namespace(hot: Any, cold: Sequence[Any], labels: tuple[str, ...]) -> Iterator[_Part]:
    """List the items of a namespace, those of Postgres first, because Redis may be filled from there.

    Raises:
        EndpointError: The items of Redis are copies of what a cold store has, and none was found.
    """
    driver, context = stores.driver_of(hot.store), stores.context_of(hot.store)
    if not cold and driver.run(copies.holds_copies(context, labels)):
        raise EndpointError(
            f"namespace {shown(labels)} in {hot.name}: its items are copies of what a cold store has, and what is "
            "deleted in Redis alone comes back from there. Nothing was deleted. Name it with --postgres URL. If it is "
            "another store, delete the items in Python, through the TieredStore; if there is none any more, with "
            "delete_namespace() of the RedisStore"
        )

    def delete_copies() -> int:
        driver.run(copies.forget_misses(context, labels))  # readers who asked cold before store no copy any more
        return int(hot.delete_namespace(labels))

    for store in (*cold, hot):
        delete = delete_copies if cold and store is hot else partial(store.delete_namespace, labels)
        yield _Part(f"namespace {shown(labels)} in {store.name}", "items", partial(store.count, labels), delete)


def _count(parts: Sequence[_Part]) -> int:
    """Say what would be deleted."""
    total: Counter[str] = Counter()
    code = 0
    for part in parts:
        try:
            count: int | None = part.count()
        except (ThreadDamaged, StoreDamaged):
            count = None
        except EndpointError:
            raise
        except RedisSaverError as error:
            screen.note(f"cannot be deleted: {part.name}: {printable(str(error))}")
            code = 1
            continue
        _add(total, part, count)
        is_damaged = f"damaged, so its {part.unit} cannot be counted"
        screen.line(f"{part.name}: {is_damaged if count is None else counted(count, part.unit.removesuffix('s'))}")
    screen.line(f"Nothing was deleted. --yes deletes {_sums(total)}")
    return code


def _delete(parts: Sequence[_Part]) -> int:
    """Delete all parts, and look whether they are gone."""
    total: Counter[str] = Counter()
    left, deleted = list(parts), list[_Part]()
    try:
        for part in parts:
            try:
                _add(total, part, part.delete())
                deleted.append(part)
            except EndpointError:
                raise
            except RedisSaverError as error:
                screen.note(f"not deleted: {part.name}: {printable(str(error))}")
            left.pop(0)
        again = [part for part in deleted if part.count()]
    finally:
        if left:
            names = ", ".join(part.name for part in left[:_MAX_NAMED])
            more = f" and {len(left) - _MAX_NAMED:,} more" if len(left) > _MAX_NAMED else ""
            screen.note(f"still to be deleted: {names}{more}. Run it again")
    for part in again:
        screen.note(f"not deleted: {part.name}: something was put there meanwhile. Run it again when nobody uses it")
    screen.line(f"Deleted {_sums(total)}")
    return 1 if again or len(deleted) < len(parts) else 0


def _add(total: Counter[str], part: _Part, count: int | None) -> None:
    total[part.unit] += count or 0
    total["threads"] += part.unit == "checkpoints" and count != 0


def _sums(total: Counter[str]) -> str:
    threads, checkpoints = counted(total["threads"], "thread"), counted(total["checkpoints"], "checkpoint")
    return f"{threads} with {checkpoints}, and {counted(total['items'], 'item')}"
