"""Commands that change threads: `ttl`, `pin`, `unpin`, `delete`, `prune`, `copy`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, TypeAlias

import typer

from redis_saver._checkpoint.pruning import Pruned, added
from redis_saver._checkpoint.threads import ThreadQuery
from redis_saver._cli import rows, screen
from redis_saver._cli.options import (
    JSON,
    POSTGRES,
    PREFIX,
    REDIS,
    Savers,
    Thread,
    app,
    count,
    duration,
    flag,
    opened_savers,
    option,
    span,
)
from redis_saver._common.display import counted, printable
from redis_saver._inspector.values import ago
from redis_saver.errors import EndpointError, KeyConflict, RedisSaverError, ThreadDamaged, ThreadNotFound

_CODES = (
    "Exit code: 0, done, or nothing was to be done; 1, some of the threads were not there or could not be changed "
    "(stderr names them); 2, the words, a URL, a login or a missing package is at fault."
)
_Threads: TypeAlias = Annotated[list[str], typer.Argument(metavar="THREAD", help="The names of the threads.")]


@app.command("ttl", epilog=_CODES)
def _ttl(
    thread: Thread,
    ttl: Annotated[
        str | None,
        typer.Argument(metavar="DURATION", help="A TTL of its own, such as 7d or 90m; none: its saver's TTL again."),
    ] = None,
    *,
    url: str | None = REDIS,
    postgres: str | None = POSTGRES,
    prefix: str = PREFIX,
    as_json: bool = JSON,
) -> int:
    """Show when a thread expires in Redis, or give it a TTL of its own, which starts now and again with each write."""
    is_cleared = ttl == "none"
    own_ttl = None if ttl is None or is_cleared else duration(ttl, "DURATION")
    with opened_savers(url, prefix, postgres, readable=False) as savers:
        if ttl is not None:
            savers.saver.set_thread_ttl(thread, own_ttl)
        info = savers.thread(thread)
    if as_json:
        screen.emit({"thread_id": thread, "ttl": info.ttl, "pinned": info.pinned})
    else:
        screen.line(f"{screen.named(thread)} expires: {rows.left(info.ttl, pinned=info.pinned)}")
    if is_cleared and info.ttl is None and not info.pinned:
        screen.note("an idle thread now stays for ever: its saver's TTL counts again from its next write on")
    return 0


@app.command("pin", epilog=_CODES)
def _pin(
    threads: _Threads,
    *,
    url: str | None = REDIS,
    postgres: str | None = POSTGRES,
    prefix: str = PREFIX,
    as_json: bool = JSON,
) -> int:
    """Keep threads in Redis until unpin, whatever their TTL."""
    with opened_savers(url, prefix, postgres, readable=False) as savers:
        return _each(threads, savers.saver.pin, "pinned", {"pinned": True}, as_json=as_json)


@app.command("unpin", epilog=_CODES)
def _unpin(
    threads: _Threads,
    *,
    url: str | None = REDIS,
    postgres: str | None = POSTGRES,
    prefix: str = PREFIX,
    as_json: bool = JSON,
) -> int:
    """End a pin. Threads expire again from their next write on, if its saver has a TTL."""
    with opened_savers(url, prefix, postgres, readable=False) as savers:
        return _each(threads, savers.saver.unpin, "unpinned", {"pinned": False}, as_json=as_json)


def _each(
    threads: Sequence[str], change: Callable[[str], Any], done: str, fields: Mapping[str, Any], *, as_json: bool
) -> int:
    """Change each thread, print `done` in words or `fields` as JSON, and return the exit code."""
    failed = 0
    for thread in dict.fromkeys(threads):
        if not _attempt(thread, change, done):
            failed += 1
        elif as_json:
            screen.emit({"thread_id": thread, **fields})
        else:
            screen.line(f"{done}: {screen.named(thread)}")
    return 1 if failed else 0


def _attempt(thread: str, change: Callable[[str], Any], done: str) -> bool:
    """Change a thread. If that fails, say why, and return False."""
    try:
        change(thread)
    except EndpointError:
        raise
    except (RedisSaverError, NotImplementedError) as error:
        screen.note(f"not {done}: {screen.named(thread)}: {printable(str(error))}")
        return False
    return True


@app.command("delete", epilog=_CODES)
def _delete(
    threads: _Threads,
    *,
    yes: bool = flag("--yes", "Do not ask."),
    url: str | None = REDIS,
    postgres: str | None = POSTGRES,
    prefix: str = PREFIX,
    as_json: bool = JSON,
) -> int:
    """Delete threads, with all their history. It asks first.

    A damaged thread is deleted, too. To delete all threads and items of a user, use forget.
    """
    names = list(dict.fromkeys(threads))
    with opened_savers(url, prefix, postgres, readable=False) as savers:

        def delete(thread: str) -> None:
            if _find(savers, thread) is None:
                raise ThreadNotFound("it is not there")
            savers.saver.delete_thread(thread)

        for thread in names:
            savers.refuse_cold_backed(thread, "deleted")
        if not yes:
            if not sys.stdin.isatty():
                raise EndpointError("nobody can be asked, as this is no terminal: say --yes. Nothing was deleted")
            for thread in names:
                screen.note(f"{screen.named(thread)}: {_description(_find(savers, thread))}")
            if not typer.confirm("Delete?", err=True):
                screen.note("nothing was deleted")
                return 0
        return _each(names, delete, "deleted", {"deleted": True}, as_json=as_json)


def _find(savers: Savers, thread: str) -> Any:
    """Return the information about a thread, None, or the error of a damaged one, which can be deleted all the same."""
    try:
        return savers.saver.get_thread(thread)
    except (ThreadDamaged, KeyConflict) as error:
        return error


def _description(info: Any) -> str:
    if info is None:
        return "it is not there"
    if isinstance(info, RedisSaverError):
        return printable(str(info))
    checkpoints, size = counted(info.checkpoints, "checkpoint"), counted(info.bytes, "byte")
    return f"{checkpoints}, {size}, updated {ago(info.updated_at)}"


@app.command("prune", epilog=_CODES)
def _prune(
    threads: Annotated[list[str] | None, typer.Argument(metavar="THREAD", help="The names of the threads.")] = None,
    *,
    every: bool = flag("--all", "All threads."),
    thread_prefix: str | None = option("All threads whose names begin with TEXT.", "TEXT"),
    keep_last: int | None = option(
        "Keep the newest N of each namespace. Default: 1.", "N", parser=count("checkpoints", 1)
    ),
    older_than: timedelta | None = option("Remove only what is older, such as 30d.", "DURATION", parser=span),
    yes: bool = flag("--yes", "Remove; without it nothing is removed."),
    url: str | None = REDIS,
    postgres: str | None = POSTGRES,
    prefix: str = PREFIX,
    as_json: bool = JSON,
) -> int:
    """Remove old checkpoints, and what only they needed. Without --yes it says what it would remove."""
    if sum((bool(threads), every, thread_prefix is not None)) != 1:
        raise typer.BadParameter("name the threads, or say --all, or --thread-prefix TEXT.", param_hint="THREAD")
    if thread_prefix == "":
        raise typer.BadParameter("every thread's name begins with '': say --all.", param_hint="--thread-prefix")
    total, pruned = Pruned(), 0

    def prune(thread: str) -> None:
        nonlocal total, pruned
        if threads:  # of all threads, some may expire meanwhile
            savers.thread(thread)
        removed = savers.saver.prune([thread], keep_last=keep_last, older_than=older_than, dry_run=not yes)
        total, pruned = added(total, removed), pruned + (removed.checkpoints > 0)

    with opened_savers(url, prefix, postgres, readable=False) as savers:
        infos = () if threads else savers.threads(ThreadQuery(thread_prefix or ""))  # damaged threads, too
        names = list(dict.fromkeys(threads or [info.thread_id for info in infos]))
        for thread in names:
            savers.refuse_cold_backed(thread, "pruned")
        done = [_attempt(thread, prune, "pruned") for thread in names]
    if as_json:
        screen.emit({**total._asdict(), "threads": pruned, "dry_run": not yes})
    else:
        what = f"{counted(total.checkpoints, 'checkpoint')} of {counted(pruned, 'thread')}"
        what += f", {counted(total.writes, 'pending write')}, {counted(total.blobs, 'value')}"
        what += f", {counted(total.bytes, 'byte')}"
        screen.line(f"removed: {what}" if yes else f"Nothing was removed. --yes removes {what}")
    return 0 if all(done) else 1


@app.command("copy", epilog=_CODES)
def _copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The name of the thread.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The name of the copy.")],
    *,
    replace: bool = flag("--replace", "Replace TARGET, if it is there."),
    url: str | None = REDIS,
    postgres: str | None = POSTGRES,
    prefix: str = PREFIX,
    as_json: bool = JSON,
) -> int:
    """Copy a thread with all its history. The copy shows up in one step, and has no TTL."""
    with opened_savers(url, prefix, postgres, readable=False) as savers:
        savers.thread(source)
        savers.refuse_cold_backed(source, "copied")
        if not replace and savers.saver.get_thread(target) is not None:
            raise EndpointError(
                f"thread {screen.named(target)} is there already: say --replace, or name another TARGET"
            )
        savers.refuse_cold_backed(target, "copied")
        savers.saver.copy_thread(source, target)
        info = savers.thread(target)
    if as_json:
        screen.emit({**rows.thread_json(info), "copied_from": source})
    else:
        size = f"{counted(info.checkpoints, 'checkpoint')}, {counted(info.bytes, 'byte')}"
        screen.line(f"copied: {screen.named(target)} has {size}")
    return 0
