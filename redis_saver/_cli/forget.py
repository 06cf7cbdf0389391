"""The command `forget`: deletes what is kept of a user, threads and items of the store."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from redis_saver._cli.arguments import Prefix, Redis, Words, labels_of, postgres_url, redis_url, words_of
from redis_saver._cli.opening import Savers, cold_failed
from redis_saver._common.display import counted, printable, shown
from redis_saver._migrate.item_endpoints import OurItems
from redis_saver._migrate.item_opening import opened_cold, opened_store
from redis_saver._migrate.opening import opened
from redis_saver._store import store as stores
from redis_saver._tiered.sync import TieredSaver
from redis_saver._tiered_store import copies
from redis_saver.errors import EndpointError, RedisSaverError, StoreDamaged, ThreadDamaged

_SHOWN = 5
"""The most parts that are named when the command ends early."""


_CODES = (
    "Exit code: 0, all is deleted, or nothing was to be (no --yes); 1, something could not be deleted, or came anew meanwhile; 2, a URL, a login or a "
    "missing package is at fault. Example: redis-saver forget --redis redis://host:6379 --thread-prefix user-1: --namespace memories user-1 --yes"
)


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command("forget", cls=_Words, epilog=_CODES)(_forget)


@dataclass(frozen=True)
class Options:
    """What the command was given."""

    threads: Sequence[str]
    thread_prefixes: Sequence[str]
    url: str
    postgres: str | None
    prefix: str
    store_prefix: str | None


@dataclass(frozen=True)
class _Part:
    """Something that is to be deleted."""

    name: str
    """As the user is told of it."""
    unit: str
    """What is counted of it."""
    count: Callable[[], int]
    """How much of it there is."""
    delete: Callable[[], int | None]
    """Deletes it. Returns how much went; None: it was damaged, and cannot be counted."""


class _Words(Words):
    """Here `--thread` takes several names, too."""

    OPTIONS = Words.OPTIONS | {"--thread"}


def _forget(
    *,
    thread: Annotated[
        list[str] | None, typer.Option(metavar="ID...", help="Threads by their names; may be repeated.")
    ] = None,
    thread_prefix: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="All threads whose names begin with TEXT; may be repeated."),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL...",
            help="All items of the namespace with these labels, and of those below it, such as --namespace memories user-1; may be repeated.",
        ),
    ] = None,
    url: Redis = None,
    postgres: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The cold tier behind it: its threads and items are deleted, too, which otherwise would come back.",
        ),
    ] = None,
    prefix: Prefix = "langgraph",
    store_prefix: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX",
            help="The same of the store, where it has another one, as the RedisStore of a TieredStore has. Default: that of --prefix.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it nothing is deleted.")] = False,
) -> int:
    """Delete what is kept of a user: threads, and all items of the store under namespaces.

    Without --yes it deletes nothing, and says what it would delete. What is gone already is no error: run it again after one that ended early.
    """
    namespaces = [labels_of(words) for words in words_of(namespace or ())]
    threads = [name for words in words_of(thread or ()) for name in words]
    if not (threads or thread_prefix or namespaces):
        raise typer.BadParameter("say what to delete.", param_hint="--thread, --thread-prefix or --namespace")
    if "" in (thread_prefix or ()):
        raise EndpointError(
            "--thread-prefix '': every thread's name begins so. Write what the names of this user's threads begin with"
        )
    given = Options(threads, thread_prefix or (), redis_url(url), postgres_url(postgres), prefix, store_prefix)
    with ExitStack() as stack:
        parts: list[_Part] = []
        if given.threads or given.thread_prefixes:
            parts += _Threads(given, stack).parts()
        if namespaces:
            parts += _of_namespaces(given, stack, list(dict.fromkeys(namespaces)))
        return _delete(parts) if yes else _count(parts)


class _Threads:
    """The threads that are named, in Redis, or in both tiers."""

    def __init__(self, given: Options, stack: ExitStack) -> None:
        self._names: Sequence[str] = given.threads
        self._prefixes: tuple[str, ...] = tuple(given.thread_prefixes)
        hot = stack.enter_context(opened(given.url, target=False, prefix=given.prefix))
        self._hot, self._endpoints, self._saver = hot.saver, [hot], hot.saver
        self._failures: tuple[type[Exception], ...] = ()
        if given.postgres:
            cold = stack.enter_context(opened(given.postgres, target=False))
            self._endpoints.append(cold)
            self._saver, self._failures = TieredSaver(hot.saver, cold.saver), cold.failures

    def parts(self) -> list[_Part]:
        """Each thread once.

        Raises:
            EndpointError: One is in a cold tier, too, and none was named.
        """
        found = dict.fromkeys(self._names)
        for endpoint in self._endpoints if self._prefixes else ():
            names = {name for name in endpoint.threads() if name.startswith(self._prefixes)}
            found.update(dict.fromkeys(sorted(names)))
        if self._saver is self._hot:
            self._refuse_cold_backed(found)
        return [
            _Part(f"thread {shown(name)}", "checkpoints", partial(self._count, name), partial(self._delete, name))
            for name in found
        ]

    def _refuse_cold_backed(self, names: Iterable[str]) -> None:
        for name in names:
            Savers(self._hot, self._hot, has_cold=False).refuse_cold_backed(name, "deleted")

    def _count(self, name: str) -> int:
        with self._asking_cold():
            found = self._saver.get_thread(name)
        return found.checkpoints if found else 0

    def _delete(self, name: str) -> int | None:
        try:
            count: int | None = self._count(name)
        except ThreadDamaged:
            count = None  # it goes all the same
        with self._asking_cold():
            self._saver.delete_thread(name)
        return count

    @contextmanager
    def _asking_cold(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            raise cold_failed(error) from error


def _of_namespaces(given: Options, stack: ExitStack, namespaces: Sequence[tuple[str, ...]]) -> list[_Part]:
    """The items of each namespace: in Postgres first, as Redis may be filled from there.

    Raises:
        EndpointError: Some are copies of what a cold store has, and none was found.
    """
    cold = opened_cold(given.postgres, stack) if given.postgres else []
    prefix = given.prefix if given.store_prefix is None else given.store_prefix
    hot = stack.enter_context(opened_store(given.url, target=False, prefix=prefix))
    parts: list[_Part] = []
    for labels in namespaces:
        if not cold and stores.driver_of(hot.store).run(copies.holds_copies(stores.context_of(hot.store), labels)):
            raise EndpointError(
                f"namespace {shown(labels)} in {hot.name}: its items are copies of what a cold store has, and what is deleted in Redis alone comes back from "
                "there. Nothing was deleted. Name it with --postgres URL. If it is another store, delete the items in Python, through the TieredStore; if "
                "there is none any more, with delete_namespace() of the RedisStore"
            )
        parts += [_of_namespace(store, labels, store.delete_namespace) for store in cold]
        parts.append(_of_namespace(hot, labels, partial(_delete_copies, hot) if cold else hot.delete_namespace))
    return parts


def _delete_copies(hot: OurItems, labels: tuple[str, ...]) -> int:
    """Delete in hot what cold has deleted. A reader who asked cold before stores no copy of it any more."""
    stores.driver_of(hot.store).run(copies.forget_misses(stores.context_of(hot.store), labels))
    return hot.delete_namespace(labels)


def _of_namespace(store: Any, labels: tuple[str, ...], delete: Callable[[tuple[str, ...]], int]) -> _Part:
    name = f"namespace {shown(labels)} in {store.name}"
    return _Part(name, "items", partial(store.count, labels), partial(delete, labels))


def _count(parts: Sequence[_Part]) -> int:
    """Say what would be deleted."""
    told: Counter[str] = Counter()
    code = 0
    for part in parts:
        try:
            count: int | None = part.count()
        except (ThreadDamaged, StoreDamaged):
            count = None
        except EndpointError:
            raise
        except RedisSaverError as error:
            sys.stderr.write(f"cannot be deleted: {part.name}: {printable(str(error))}\n")
            code = 1
            continue
        _add(told, part, count)
        said = (
            f"damaged, so its {part.unit} cannot be counted"
            if count is None
            else counted(count, part.unit.removesuffix("s"))
        )
        sys.stdout.write(f"{part.name}: {said}\n")
    sys.stdout.write(f"Nothing was deleted. --yes deletes {_sums(told)}\n")
    return code


def _delete(parts: Sequence[_Part]) -> int:
    """Delete all parts, and look whether they are gone."""
    told: Counter[str] = Counter()
    left, deleted = list(parts), list[_Part]()
    try:
        for part in parts:
            try:
                _add(told, part, part.delete())
                deleted.append(part)
            except EndpointError:
                raise
            except RedisSaverError as error:
                sys.stderr.write(f"not deleted: {part.name}: {printable(str(error))}\n")
            left.pop(0)
        again = [part for part in deleted if part.count()]
    finally:
        if left:
            some = ", ".join(part.name for part in left[:_SHOWN])
            more = f" and {len(left) - _SHOWN:,} more" if len(left) > _SHOWN else ""
            sys.stderr.write(f"still to be deleted: {some}{more}. Run it again\n")
    for part in again:
        sys.stderr.write(
            f"not deleted: {part.name}: something was put there meanwhile. Run it again when nobody uses it\n"
        )
    sys.stdout.write(f"Deleted {_sums(told)}\n")
    return 1 if again or len(deleted) < len(parts) else 0


def _add(told: Counter[str], part: _Part, count: int | None) -> None:
    told[part.unit] += count or 0
    told["threads"] += part.unit == "checkpoints" and count != 0


def _sums(told: Counter[str]) -> str:
    return f"{counted(told['threads'], 'thread')} with {counted(told['checkpoints'], 'checkpoint')}, and {counted(told['items'], 'item')}"
