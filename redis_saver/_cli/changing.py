"""Commands that change threads (`ttl`, `pin`, `unpin`, `delete`, `prune`, `copy`), and `forget`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import typer

from redis_saver._cache.cache import RedisCache
from redis_saver._checkpoint.pruning import Pruned, added
from redis_saver._checkpoint.threads import ThreadQuery
from redis_saver._cli import screen
from redis_saver._cli.looking import thread_json
from redis_saver._cli.options import EVERY, JSON, MAX_NUMBER, command, duration, labels_of, past, span
from redis_saver._cli.servers import Savers, Servers, postgres_url, redis_url
from redis_saver._common.config import Address
from redis_saver._common.display import counted, printable, shown
from redis_saver._inspector.values import ago, named
from redis_saver._migrate.opening import opened_cold, opened_store
from redis_saver._store import store as stores
from redis_saver._store.store import RedisStore
from redis_saver._tiered_store import copies
from redis_saver.encryption import KeyStatus, Rotated
from redis_saver.errors import (
    EndpointError,
    KeyConflict,
    KeyUnavailable,
    RedisSaverError,
    StoreDamaged,
    ThreadDamaged,
    ThreadNotFound,
)

_CODES = """Exit codes:
    0: it is done.
    1: some threads are missing, or could not be changed. Their names are on stderr.
    2: an argument, a URL or a login is wrong, or a package is missing.
"""


@command("ttl", _CODES)
def _ttl(servers: Servers, thread: str, ttl: str | None = None, *, as_json: bool = JSON) -> int:
    """Show when a thread expires in Redis, or set a TTL of its own, which starts now and again with each write.

    Options:
        ttl DURATION: The TTL, such as 7d or 90m; none to use its saver's TTL again.
    """
    is_cleared = ttl == "none"
    own_ttl = None if ttl is None or is_cleared else duration(ttl, "DURATION")
    with servers.savers(readable=False) as savers:
        if ttl is not None:
            savers.saver.set_thread_ttl(thread, own_ttl)
        info = savers.thread(thread)
    fields = {"thread_id": thread, "ttl": info.ttl, "pinned": info.pinned}
    screen.show(fields, f"{named(thread)} expires: {info.expires}", as_json=as_json)
    if is_cleared and info.ttl is None and not info.pinned:
        screen.note("an idle thread now stays forever. Its saver's TTL starts again with the next write")
    return 0


@command("pin", _CODES)
def _pin(servers: Servers, threads: list[str], *, as_json: bool = JSON) -> int:
    """Keep threads in Redis until unpin, regardless of their TTL."""
    with servers.savers(readable=False) as savers:
        return _each(threads, savers.saver.pin, "pinned", {"pinned": True}, as_json=as_json)


@command("unpin", _CODES)
def _unpin(servers: Servers, threads: list[str], *, as_json: bool = JSON) -> int:
    """Let pinned threads expire again. A TTL of the saver starts with the next write to the thread."""
    with servers.savers(readable=False) as savers:
        return _each(threads, savers.saver.unpin, "unpinned", {"pinned": False}, as_json=as_json)


_KEY_CODES = """Exit codes:
    0: it is done.
    1: something cannot be read or rotated, or threads are also in a cold tier that was not named. stderr says so.
    2: a URL, a login or a key is wrong, or a package is missing.
"""


@contextmanager
def _with_keys(servers: Servers) -> Iterator[list[Any]]:
    """Open all that has data keys under the prefix: the saver, the store, the cache."""
    url = redis_url(servers.url)
    options: Any = {"prefix": servers.prefix, "encryption": servers.encryption}
    with servers.savers() as savers, ExitStack() as stack:
        others = [stack.enter_context(kind.from_conn_string(url, **options)) for kind in (RedisStore, RedisCache)]
        yield [savers.saver, *others]


@command("keys status", _KEY_CODES)
def _keys_status(servers: Servers, *, as_json: bool = JSON) -> int:
    """Count what each key protects, by the key's id: threads, partitions of stores, caches. This needs no keys.

    An old key may go when it protects nothing, and if it still protects nothing five minutes later.
    With --keys-file or REDIS_SAVER_KEYS, the primary key is marked, and keys that are not there.
    The primary key wraps the data keys of whatever has no key of its own name.

    Options:
        postgres URL: The cold tier, whose rows are counted, too.
    """
    with _with_keys(servers) as parts:
        status, *others = [part.key_status() for part in parts]
    for other in others:  # each counts something else
        merged = {field: getattr(status, field) | getattr(other, field) for field in ("failed", "partitions", "caches")}
        status = status._replace(**merged, plain=status.plain + other.plain)
    held = [*getattr(servers.encryption and servers.encryption.keys, "ids", ())]
    primary = held[0] if held else None
    counts = [status.threads, status.partitions, status.caches, *([status.rows] if servers.postgres else [])]
    names = ("THREADS", "PARTITIONS", "CACHES", "ROWS")[: len(counts)]
    if as_json:
        screen.emit({**status._asdict(), "primary": primary, "keys": held})
    else:
        keys = sorted({key_id for count in counts for key_id in count} | {*held})
        marks = {key_id: " (not among your keys)" for key_id in keys if held and key_id not in held}
        marks[primary] = " (primary)"
        rows = [
            (named(key_id) + marks.get(key_id, ""), *(f"{count.get(key_id, 0):,}" for count in counts))
            for key_id in keys
        ]
        screen.table(("KEY", *names), rows, right=names)
        screen.line(f"not encrypted: {status.plain:,}")
        if not servers.postgres:
            screen.line("rows in Postgres: not counted. If there is a cold tier, name it with --postgres URL")
    return max(_failures(status.failed), _of_cold(status, "counted"))


@command("keys rotate", _KEY_CODES)
def _keys_rotate(
    servers: Servers,
    *,
    data: bool = False,
    before: datetime | None = typer.Option(None, parser=past),
    as_json: bool = JSON,
) -> int:
    """Wrap all data keys by the newest key of the same name, or the primary key, while the data are in use.

    These are the data keys of threads, of partitions of stores, and of caches with this prefix.

    First give the new key to all processes, before the old one. If it is interrupted, run it again.

    Options:
        data: After a data key was stolen, make new data keys, and encrypt all data of the threads in Redis again.
            Stores, caches and Postgres stay as they are.
        before TIME: With --data, only data keys that were made before: how long ago, or ISO 8601. To continue, say when
            the first run began.
        postgres URL: The cold tier, in whose rows data keys are wrapped, too.
    """
    if servers.encryption is None:
        raise EndpointError("write --keys-file FILE, or set REDIS_SAVER_KEYS in the environment")
    if before and not data:
        raise EndpointError("--before is only for --data")
    if data:
        with servers._replace(postgres=None).savers(readable=False) as savers:
            result = savers.hot.rotate_keys(data=True, before=before)
    else:
        with _with_keys(servers) as parts:
            results = [part.rotate_keys() for part in parts]
        failed = {name: text for each in results for name, text in each.failed.items()}
        rotated, unchanged, plain = (sum(column) for column in zip(*(each[:3] for each in results), strict=True))
        result = Rotated(rotated, unchanged, plain, failed, sum(each.cold_backed for each in results))
    text = f"{counted(result.rotated, 'data key')} rotated, {result.unchanged:,} unchanged, {result.plain:,} plain"
    screen.show(result, f"{text}, {len(result.failed):,} failed", as_json=as_json)
    return max(_failures(result.failed), _of_cold(result, "rotated", is_named=data))


def _of_cold(result: KeyStatus | Rotated, done: str, *, is_named: bool = False) -> int:
    """Say that threads are also in a cold tier whose rows were left out, and return the exit code.

    Its rows are looked at if it is named, except with `--data`.
    """
    if not result.cold_backed:
        return 0
    threads = counted(result.cold_backed, "thread")
    remedy = "They keep their data keys" if is_named else "Name it with --postgres URL"
    screen.note(f"in a cold tier, too: {threads}, whose rows were not {done}. {remedy}")
    return 1


def _failures(failed: Mapping[str, str]) -> int:
    """Print the errors of threads on stderr, and return the exit code."""
    for thread, text in failed.items():
        screen.note(f"failed: {named(thread)}: {printable(text)}")
    return 1 if failed else 0


def _each(threads: Sequence[str], change: Callable[[str], Any], done: str, fields: Any, *, as_json: bool) -> int:
    """Change each thread, print `done` as text or `fields` as JSON, and return the exit code."""
    failed = 0
    for thread in dict.fromkeys(threads):
        if not _attempt(named(thread), partial(change, thread), f"not {done}"):
            failed += 1
        else:
            screen.show({"thread_id": thread, **fields}, f"{done}: {named(thread)}", as_json=as_json)
    return 1 if failed else 0


def _attempt(name: str, change: Callable[[], object], failure: str) -> bool:
    """Change a thread or a namespace. If that fails, say why, and return False."""
    try:
        change()
    except EndpointError:
        raise
    except (RedisSaverError, NotImplementedError) as error:
        screen.note(f"{failure}: {name}: {printable(str(error))}")
        return False
    return True


@command("delete", _CODES)
def _delete(servers: Servers, threads: list[str], *, yes: bool = False, as_json: bool = JSON) -> int:
    """Delete threads with all their history. It asks first.

    Damaged threads are deleted, too. To delete all threads and items of a user, use forget.

    Options:
        yes: Do not ask.
    """
    names = list(dict.fromkeys(threads))
    with servers.savers(readable=False) as savers:

        def delete(thread: str) -> None:
            if _find(savers, thread) is None:
                raise ThreadNotFound("it is not there")
            savers.saver.delete_thread(thread)

        for thread in names:
            savers.refuse_cold_backed(thread, "deleted")
        about = (f"{named(thread)}: {_description(_find(savers, thread))}" for thread in names)
        if not confirmed(about, "Delete?", "deleted", yes=yes):
            return 0
        return _each(names, delete, "deleted", {"deleted": True}, as_json=as_json)


def confirmed(about: Iterable[str], question: str, done: str, *, yes: bool) -> bool:
    """Ask a user on a terminal, unless `yes` is set. True if the answer is yes, and the caller may go on.

    Args:
        about: What it is about, a line each.
        question: The question.
        done: What then happens, in messages: "deleted".
        yes: True: do not ask.

    Raises:
        EndpointError: There is no terminal.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise EndpointError(f"this is no terminal, so nobody can confirm: add --yes. Nothing was {done}")
    for each in about:
        screen.note(each)
    if typer.confirm(question, err=True):
        return True
    screen.note(f"nothing was {done}")
    return False


def _find(savers: Savers, thread: str) -> Any:
    """Return the information about a thread, the error if it is damaged, or None if there is none."""
    try:
        return savers.saver.get_thread(thread)
    except (ThreadDamaged, KeyConflict) as error:
        return error


def _description(info: Any) -> str:
    if info is None:
        return "it is not there"
    if isinstance(info, RedisSaverError):
        return printable(str(info))
    return f"{_size(info)}, updated {ago(info.updated_at)}"


def _size(info: Any) -> str:
    return f"{counted(info.checkpoints, 'checkpoint')}, {counted(info.bytes, 'byte')}"


@command("prune", _CODES)
def _prune(
    servers: Servers,
    threads: list[str] | None = None,
    *,
    every: bool = EVERY,
    thread_prefix: str | None = None,
    keep_last: int | None = typer.Option(None, min=1, max=MAX_NUMBER),
    older_than: timedelta | None = typer.Option(None, parser=span),
    yes: bool = False,
    as_json: bool = JSON,
) -> int:
    """Remove old checkpoints and the values that only they use. Without --yes it only shows what it would remove.

    With --all or --thread-prefix, threads whose keys are unavailable are skipped and named.

    Options:
        every: All threads.
        thread_prefix TEXT: All threads whose names begin with TEXT.
        keep_last N: Keep the newest N checkpoints of each namespace. Default: 1.
        older_than DURATION: Remove only older checkpoints, such as 30d.
        yes: Remove them.
    """
    if sum((bool(threads), every, thread_prefix is not None)) != 1:
        raise typer.BadParameter("name the threads, or use --all or --thread-prefix TEXT.", param_hint="THREAD")
    if thread_prefix == "":
        raise typer.BadParameter("every name begins with '': use --all.", param_hint="--thread-prefix")
    total, pruned = Pruned(), 0

    def prune(thread: str) -> None:
        nonlocal total, pruned
        if threads:  # with --all, some may expire meanwhile
            savers.thread(thread)
        try:
            removed = savers.saver.prune([thread], keep_last=keep_last, older_than=older_than, dry_run=not yes)
        except KeyUnavailable as error:
            if threads:
                raise
            screen.note(f"skipped: {named(thread)}: {printable(str(error))}")
            return
        total, pruned = added(total, removed), pruned + (removed.checkpoints > 0)

    with servers.savers(readable=False) as savers:
        query = ThreadQuery(thread_prefix or "")
        infos = () if threads else savers.source.threads(query)  # includes damaged threads
        names = list(dict.fromkeys(threads or [info.thread_id for info in infos]))
        for thread in names:
            savers.refuse_cold_backed(thread, "pruned")
        done = [_attempt(named(thread), partial(prune, thread), "not pruned") for thread in names]
    numbers = {"pending write": total.writes, "value": total.blobs, "byte": total.bytes}
    what = f"{counted(total.checkpoints, 'checkpoint')} of {counted(pruned, 'thread')}, "
    what += ", ".join(counted(number, unit) for unit, number in numbers.items())
    text = f"removed: {what}" if yes else f"Nothing was removed. --yes removes {what}"
    screen.show({**total._asdict(), "threads": pruned, "dry_run": not yes}, text, as_json=as_json)
    return 0 if all(done) else 1


@command("copy", _CODES)
def _copy(
    servers: Servers,
    source: str,
    target: str,
    *,
    until: str | None = None,
    replace: bool = False,
    as_json: bool = JSON,
) -> int:
    """Copy a thread with all its history. The copy appears in one step, and has no TTL.

    To rename a thread, copy it, and delete the old one while no run writes it. Metadata are copied unchanged.
    An encrypted copy has a data key of its own. The key that key_for chooses for the new name wraps it.

    Options:
        source SOURCE: Name of the thread.
        target TARGET: Name of the copy.
        until CHECKPOINT: Copy only this checkpoint and older ones, without the pending writes of the last one of each
            namespace, so a resume runs their tasks again. Id of a checkpoint, or its beginning or end. Not for threads
            that a cold tier has, too.
        replace: Replace TARGET if it exists.
    """
    with servers.savers(readable=False) as savers:
        savers.thread(source)
        if until is not None and (savers.has_cold or any(map(savers.lacks_cold, (source, target)))):
            raise EndpointError(
                "--until is only for threads that no cold tier has, and without --postgres. Nothing was copied. To go "
                "on from CHECKPOINT in the thread itself, pass its checkpoint_id in the config of invoke(). To copy "
                "the whole thread, leave out --until, and name the cold tier with --postgres URL"
            )
        savers.refuse_cold_backed(source, "copied")
        if not replace and savers.saver.get_thread(target) is not None:
            raise EndpointError(f"thread {named(target)} exists already: add --replace, or name another TARGET")
        savers.refuse_cold_backed(target, "copied")
        if until is None:
            savers.saver.copy_thread(source, target)
        else:
            savers.source.copy(source, target, savers.source.search(Address(source, "", until)).checkpoint["id"])
        info = savers.thread(target)
    text = f"copied: {named(target)} has {_size(info)}"
    screen.show({**thread_json(info), "copied_from": source}, text, as_json=as_json)
    return 0


_MAX_NAMED = 5
"""Maximum number of parts to name if the command ends early."""


@dataclass(frozen=True)
class _Part:
    """A thread or a namespace to delete."""

    name: str
    unit: str
    """`checkpoints` or `items`."""
    count: Callable[[], int]
    delete: Callable[[], object]


@command("forget")
def _forget(
    servers: Servers,
    *,
    thread: list[str] | None = None,
    thread_prefix: list[str] | None = None,
    namespace: list[str] | None = None,
    store_prefix: str | None = None,
    yes: bool = False,
) -> int:
    """Delete the data of a user: threads, and all items of the store under namespaces.

    Without --yes it only shows what it would delete.
    Missing threads and items are no error. So run it again if it ended early.

    Options:
        thread THREAD: Name of a thread; may be repeated.
        thread_prefix TEXT: All threads whose names begin with TEXT; may be repeated.
        namespace NAMESPACE: All items of the namespace and of its children, such as memories.user-1; may be repeated.
        store_prefix PREFIX: Prefix of the store's keys, if it differs from --prefix, as for the RedisStore of a
            TieredStore. Default: --prefix.
        yes: Delete them.
        postgres URL: The cold tier. Its threads and items are deleted, too, because Redis would be filled from it.

    Exit codes:
        0: everything is deleted, or --yes is missing.
        1: something could not be deleted, or was written again meanwhile.
        2: a URL or a login is wrong, or a package is missing.

    Example: redis-saver forget --redis redis://host:6379 --thread-prefix user-1: --namespace memories.user-1 --yes
    """
    namespaces = dict.fromkeys(labels_of([each]) for each in namespace or ())
    threads, prefixes = thread or (), tuple(thread_prefix or ())
    if not (threads or prefixes or namespaces):
        raise typer.BadParameter("name what to delete.", param_hint="--thread, --thread-prefix or --namespace")
    if "" in prefixes:
        raise EndpointError("--thread-prefix '': every name begins with it. Write how this user's names begin")
    url, postgres = redis_url(servers.url), postgres_url(servers.postgres)
    parts: list[_Part] = []
    with ExitStack() as stack:
        if threads or prefixes:
            savers = stack.enter_context(servers.savers(readable=False))
            parts += _of_threads(savers, threads, prefixes)
        if namespaces:
            store_prefix = servers.prefix if store_prefix is None else store_prefix
            hot = stack.enter_context(opened_store(url, target=False, prefix=store_prefix))
            cold = opened_cold(postgres, stack) if postgres else []
            for labels in namespaces:
                parts += _of_namespace(hot, cold, labels)
        return _forget_parts(parts, yes=yes)


def _of_threads(savers: Savers, names: Sequence[str], prefixes: tuple[str, ...]) -> Iterator[_Part]:
    """List the threads, each once.

    Raises:
        EndpointError: A thread is also in a cold tier, but --postgres is missing.
    """
    wanted = dict.fromkeys(names)
    for endpoint in savers.endpoints if prefixes else ():
        wanted |= dict.fromkeys(sorted({name for name in endpoint.threads() if name.startswith(prefixes)}))
    for name in wanted:
        savers.refuse_cold_backed(name, "deleted")
    for name in wanted:
        count, delete = partial(_checkpoints, savers, name), partial(savers.saver.delete_thread, name)
        yield _Part(f"thread {shown(name)}", "checkpoints", count, delete)


def _checkpoints(savers: Savers, name: str) -> int:
    info = savers.saver.get_thread(name)
    return info.checkpoints if info else 0


def _of_namespace(hot: Any, cold: Sequence[Any], labels: tuple[str, ...]) -> Iterator[_Part]:
    """List the items of a namespace, Postgres first, because Redis may be filled from there.

    Raises:
        EndpointError: The items in Redis are copies of a cold store's, but --postgres is missing.
    """
    driver, context = stores.driver_of(hot.store), stores.context_of(hot.store)
    if not cold and driver.run(copies.holds_copies(context, labels)):
        raise EndpointError(
            f"namespace {shown(labels)} in {hot.name}: its items are copies of a cold store's, and would come back. "
            "Nothing was deleted. Name the cold store with --postgres URL. If it is not Postgres, or is gone, call "
            "delete_namespace() of the TieredStore, or of the RedisStore"
        )

    def delete_copies() -> None:
        driver.run(copies.forget_misses(context, labels))  # so that a reader that asked cold before stores no copy
        hot.delete_namespace(labels)

    for store in (*cold, hot):
        delete = delete_copies if cold and store is hot else partial(store.delete_namespace, labels)
        yield _Part(f"namespace {shown(labels)} in {store.name}", "items", partial(store.count, labels), delete)


def _forget_parts(parts: Sequence[_Part], *, yes: bool) -> int:
    """Count all parts, and print what would be deleted. With `yes`, delete them, and check that they are gone."""
    total: Counter[str] = Counter()
    left, deleted = list(parts), list[_Part]()

    def forget(part: _Part) -> None:
        try:
            number, text = part.count(), ""
        except (ThreadDamaged, StoreDamaged):
            number, text = 0, f"damaged, so its {part.unit} cannot be counted"
        if yes:
            part.delete()
            deleted.append(part)
        else:
            screen.line(f"{part.name}: {text or counted(number, part.unit.removesuffix('s'))}")
        total[part.unit] += number
        total["threads"] += part.unit == "checkpoints" and bool(number or text)

    try:
        done = []
        for part in parts:
            done.append(_attempt(part.name, partial(forget, part), "not deleted" if yes else "cannot be deleted"))
            left.pop(0)
        again = [part for part in deleted if part.count()]
    finally:
        if yes and left:
            names = ", ".join(part.name for part in left[:_MAX_NAMED])
            more = f" and {len(left) - _MAX_NAMED:,} more" if len(left) > _MAX_NAMED else ""
            screen.note(f"still to be deleted: {names}{more}. Run this again")
    for part in again:
        screen.note(f"not deleted: {part.name}: it was written meanwhile. Run this again when nobody uses it")
    threads, checkpoints = counted(total["threads"], "thread"), counted(total["checkpoints"], "checkpoint")
    what = f"{threads} with {checkpoints}, and {counted(total['items'], 'item')}"
    screen.line(f"Deleted {what}" if yes else f"Nothing was deleted. --yes deletes {what}")
    return 0 if all(done) and not again else 1
