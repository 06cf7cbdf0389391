"""The commands that change threads: `ttl`, `pin`, `unpin`, `delete`, `prune`, `copy`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, TypeAlias

import typer

from redis_saver._checkpoint.pruning import Pruned, added
from redis_saver._checkpoint.threads import ThreadQuery
from redis_saver._cli import screen
from redis_saver._cli.arguments import Json, Postgres, Prefix, Redis, Thread, count, duration, span
from redis_saver._cli.opening import Savers, opened_savers
from redis_saver._cli.overview import about
from redis_saver._common.display import counted, printable
from redis_saver.errors import EndpointError, KeyConflict, RedisSaverError, ThreadDamaged, ThreadNotFound

_CODES = (
    "Exit code: 0, done, or nothing was to be done; 1, some of the threads were not there or could not be changed (stderr names them); 2, the words, "
    "a URL, a login or a missing package is at fault."
)
_Threads: TypeAlias = Annotated[list[str], typer.Argument(metavar="THREAD", help="The names of the threads.")]
_CLEAR = "none"


def add(app: typer.Typer) -> None:
    """Add the commands."""
    commands: tuple[tuple[str, Callable[..., int], str | None], ...] = (
        ("ttl", _ttl, None),
        ("pin", _pinning(pinned=True), "Keep threads in Redis until unpin, whatever their TTL."),
        (
            "unpin",
            _pinning(pinned=False),
            "End a pin. Threads expire again from their next write on, if its saver has a TTL.",
        ),
        ("delete", _delete, None),
        ("prune", _prune, None),
        ("copy", _copy, None),
    )
    for name, command, text in commands:
        app.command(name, help=text, epilog=_CODES)(command)


def _ttl(
    thread: Thread,
    ttl: Annotated[
        str | None,
        typer.Argument(metavar="DURATION", help="A TTL of its own, such as 7d or 90m; none: its saver's TTL again."),
    ] = None,
    *,
    url: Redis = None,
    postgres: Postgres = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Show when a thread expires in Redis, or give it a TTL of its own, which starts now and again with each write."""
    own_ttl = None if ttl is None or ttl == _CLEAR else duration(ttl, "DURATION")
    with opened_savers(url, prefix, postgres, readable=False) as savers:
        if ttl is not None:
            savers.saver.set_thread_ttl(thread, own_ttl)
        found = savers.thread(thread)
    if as_json:
        screen.emit({"thread_id": thread, "ttl": found.ttl, "pinned": found.pinned})
    else:
        screen.line(f"{screen.named(thread)} expires: {screen.left(found.ttl, pinned=found.pinned)}")
    if ttl == _CLEAR and found.ttl is None and not found.pinned:
        screen.note("an idle thread now stays for ever: its saver's TTL counts again from its next write on")
    return 0


def _pinning(*, pinned: bool) -> Callable[..., int]:
    """The command `pin`, or `unpin`."""

    def command(
        threads: _Threads,
        *,
        url: Redis = None,
        postgres: Postgres = None,
        prefix: Prefix = "langgraph",
        as_json: Json = False,
    ) -> int:
        with opened_savers(url, prefix, postgres, readable=False) as savers:
            change = savers.saver.pin if pinned else savers.saver.unpin
            return _each(threads, change, "pinned" if pinned else "unpinned", {"pinned": pinned}, as_json=as_json)

    return command


def _each(
    threads: Sequence[str], change: Callable[[str], None], done: str, told: Mapping[str, Any], *, as_json: bool
) -> int:
    """Change some threads. Those that are not there, or cannot be changed, are named.

    Args:
        threads: Their names.
        change: What changes one.
        done: What is said of one that was changed.
        told: The same, for JSON.
        as_json: Whether JSON is printed.

    Returns:
        The exit code.
    """
    failed = 0
    for thread in dict.fromkeys(threads):
        if not _attempt(thread, change, done):
            failed += 1
        elif as_json:
            screen.emit({"thread_id": thread, **told})
        else:
            screen.line(f"{done}: {screen.named(thread)}")
    return 1 if failed else 0


def _attempt(thread: str, change: Callable[[str], None], done: str) -> bool:
    """Change a thread. Returns whether it was; if not, it was said why."""
    try:
        change(thread)
    except EndpointError:
        raise
    except (RedisSaverError, NotImplementedError) as error:
        screen.note(f"not {done}: {screen.named(thread)}: {printable(str(error))}")
        return False
    return True


def _delete(
    threads: _Threads,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Redis = None,
    postgres: Postgres = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Delete threads, with all their history. It asks first.

    A damaged thread is deleted, too. To delete all threads and items of a user, use forget.
    """
    wanted = list(dict.fromkeys(threads))
    with opened_savers(url, prefix, postgres, readable=False) as savers:
        for thread in wanted:
            savers.refuse_cold_backed(thread, "deleted")
        if not yes and not _agreed([_described(savers, thread) for thread in wanted]):
            screen.note("nothing was deleted")
            return 0
        delete = partial(_delete_one, savers)
        return _each(wanted, delete, "deleted", {"deleted": True}, as_json=as_json)


def _find(savers: Savers, thread: str) -> Any:
    """What there is of a thread: None, or the error of one that is damaged, which can be deleted all the same."""
    try:
        return savers.saver.get_thread(thread)
    except (ThreadDamaged, KeyConflict) as error:
        return error


def _described(savers: Savers, thread: str) -> str:
    """A thread that is about to be deleted, in a line."""
    found = _find(savers, thread)
    if found is None:
        text = "it is not there"
    elif isinstance(found, RedisSaverError):
        text = printable(str(found))
    else:
        text = f"{counted(found.checkpoints, 'checkpoint')}, {counted(found.bytes, 'byte')}, updated {screen.ago(found.updated_at)}"
    return f"{screen.named(thread)}: {text}"


def _agreed(lines: Sequence[str]) -> bool:
    """Ask whether to go on.

    Raises:
        EndpointError: Nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise EndpointError("nobody can be asked, as this is no terminal: say --yes. Nothing was deleted")
    for text in lines:
        screen.note(text)
    return bool(typer.confirm("Delete?", err=True))


def _delete_one(savers: Savers, thread: str) -> None:
    if _find(savers, thread) is None:
        raise ThreadNotFound("it is not there")
    savers.saver.delete_thread(thread)


def _prune(
    threads: Annotated[list[str] | None, typer.Argument(metavar="THREAD", help="The names of the threads.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All threads.")] = False,
    thread_prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="All threads whose names begin with TEXT.")
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            metavar="N", parser=count("checkpoints", 1), help="Keep the newest N of each namespace. Default: 1."
        ),
    ] = None,
    older_than: Annotated[
        timedelta | None, typer.Option(metavar="DURATION", parser=span, help="Remove only what is older, such as 30d.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it nothing is removed.")] = False,
    url: Redis = None,
    postgres: Postgres = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
) -> int:
    """Remove old checkpoints, and what only they needed. Without --yes it says what it would remove."""
    if sum((bool(threads), every, thread_prefix is not None)) != 1:
        raise typer.BadParameter("name the threads, or say --all, or --thread-prefix TEXT.", param_hint="THREAD")
    if thread_prefix == "":
        raise typer.BadParameter("every thread's name begins with '': say --all.", param_hint="--thread-prefix")
    settings: dict[str, Any] = {"keep_last": keep_last, "older_than": older_than, "dry_run": not yes}
    removed: list[Pruned] = []

    def prune(thread: str) -> None:
        if threads:  # of all threads, some may expire meanwhile
            savers.thread(thread)
        removed.append(savers.saver.prune([thread], **settings))

    with opened_savers(url, prefix, postgres, readable=False) as savers:
        names = list(dict.fromkeys(threads or _names(savers, thread_prefix or "")))
        for thread in names:
            savers.refuse_cold_backed(thread, "pruned")
        failed = [thread for thread in names if not _attempt(thread, prune, "pruned")]
    total, pruned = Pruned(), sum(one.checkpoints > 0 for one in removed)
    for one in removed:
        total = added(total, one)
    if as_json:
        screen.emit({**total._asdict(), "threads": pruned, "dry_run": not yes})
    else:
        what = f"{counted(total.checkpoints, 'checkpoint')} of {counted(pruned, 'thread')}, {counted(total.writes, 'pending write')}, {counted(total.blobs, 'value')}, {counted(total.bytes, 'byte')}"
        screen.line(f"removed: {what}" if yes else f"Nothing was removed. --yes removes {what}")
    return 1 if failed else 0


def _names(savers: Savers, prefix: str) -> list[str]:
    """The threads whose names begin so, damaged ones too."""
    return [one.thread_id for one in savers.threads(ThreadQuery(prefix))]


def _copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The name of the thread.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The name of the copy.")],
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Replace TARGET, if it is there.")] = False,
    url: Redis = None,
    postgres: Postgres = None,
    prefix: Prefix = "langgraph",
    as_json: Json = False,
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
        found = savers.thread(target)
    if as_json:
        screen.emit({**about(found), "copied_from": source})
    else:
        screen.line(
            f"copied: {screen.named(target)} has {counted(found.checkpoints, 'checkpoint')}, {counted(found.bytes, 'byte')}"
        )
    return 0
