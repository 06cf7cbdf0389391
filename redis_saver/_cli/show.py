"""How the command line shows servers, times, messages, threads and progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from redis_saver._checkpoint.threads import ThreadInfo
from redis_saver._cli.lanes import lanes
from redis_saver._client.clients import connect
from redis_saver._client.urls import without_login
from redis_saver._common import times

if TYPE_CHECKING:  # what the extra `cli` brings is imported where a command needs it
    from langchain_core.runnables import RunnableConfig
    from langgraph.types import StateSnapshot
    from rich.text import Text

MAX_PROBLEMS = 20
"""The most conflicts, and the most failures, that are shown."""
_BRANCHES = {"├": "blue", "│": "blue", "└": "magenta", " ": "magenta"}


def time_left(ttl: timedelta | None) -> str:
    """When a thread expires."""
    return (
        "does not expire" if ttl is None else f"expires in {times.shown(timedelta(seconds=int(ttl.total_seconds())))}"
    )


def facts(info: ThreadInfo) -> str:
    """What is known of a thread, in one line."""
    said = {
        **info._asdict(),
        "ttl": info.ttl and times.shown(info.ttl),
        "updated_at": info.updated_at and info.updated_at.isoformat(),
    }
    return "  ".join(f"{name}={value}" for name, value in said.items())


@contextmanager
def progress_bar(unit: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """A progress bar, if this is a terminal and rich (extra `cli`) is installed. It takes how many are done, of how many, and what else to say."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield lambda _done, _total, _said: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    words = TextColumn(f"{unit}  {{task.description}}")
    with Progress(BarColumn(), MofNCompleteColumn(), words, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        row = bar.add_task("", total=None)
        yield lambda done, total, said: bar.update(row, completed=done, total=total, description=said)


def tell_problems(problems: Sequence[str], count: int, kind: str) -> None:
    """Name conflicts, or what failed, on stderr: the first ones, each in a line, and how many more there are."""
    for said in problems[:MAX_PROBLEMS]:
        sys.stderr.write(f"{' '.join(said.split())}\n")
    if count > MAX_PROBLEMS:
        sys.stderr.write(f"{kind}: and {count - MAX_PROBLEMS:,} more\n")


def count_keys(url: str, thread: str) -> int:
    """The keys on a server that have a thread's name in them."""
    with closing(connect(url, asynchronous=False)) as client:
        return sum(1 for _ in client.scan_iter(match=f"*{thread}*", count=1000))


def ending(url: str, thread: str, *, kept: bool) -> str:
    """What happened to the demo's thread, and how to look at it."""
    if not kept:
        return f"Deleted: {count_keys(url, thread)} keys of {thread} are left. With --keep it stays."
    if url.startswith("memory:"):
        return f"The embedded server ends with this process, and {thread} with it: --redis redis://host:6379 keeps it."
    server = without_login(url)
    return (
        f"Kept: {thread}. What to do with it next:\n"
        f"  redis-saver check {thread} --redis {server}\n"
        f"  redis-cli -u {server} --scan --pattern '*{thread}*'\n"
        "Or in Python:\n"
        "  from redis_saver import RedisSaver\n\n"
        f"  with RedisSaver.from_conn_string({server!r}) as saver:\n"
        f'      for found in saver.list({{"configurable": {{"thread_id": {thread!r}}}}}):\n'
        "          print(found.metadata['step'], found.metadata['source'], len(found.checkpoint['channel_values'].get('messages', ())))"
    )


def gist(message: Any) -> tuple[str, str]:
    """The speaker and the text of a LangChain message."""
    calls = [
        f"{call['name']}({', '.join(map(str, call['args'].values()))})" for call in getattr(message, "tool_calls", ())
    ]
    who = {"human": "you", "ai": "agent"}.get(message.type, message.type)
    return who, f"calls {', '.join(calls)}" if calls else str(message.content)


def tree(history: Sequence[StateSnapshot], costs: Mapping[str, int], hidden: Collection[str]) -> Iterator[Text]:
    """Lines with a thread's checkpoints, the oldest first: a chain runs straight down, a fork opens a lane per branch.

    Args:
        history: The checkpoints, newest first, of a graph whose state has `messages`.
        costs: The bytes of each checkpoint id.
        hidden: Ids of checkpoints to leave out.
    """
    from rich.text import Text  # noqa: PLC0415

    if not hidden:
        yield Text("checkpoint  step  source  next        bytes  last message", "dim")
    gists: dict[str, str] = {}
    for (lane, here, parent), found in lanes([(_id_of(one.config), _id_of(one.parent_config), one) for one in history]):
        mark, style, gists[here] = _seen(found)
        if here not in hidden:
            about: Mapping[str, Any] = found.metadata or {}
            name = here[-6:].ljust(8 - len(lane))
            columns = f"  {about['step']:4}  {about['source']:6}  {', '.join(found.next) or '-':9}  {costs[here]:6,}  "
            said = ('"', "dim") if gists.get(parent) == gists[here] else (gists[here], style)
            branch = style or _BRANCHES.get(lane[:1], "cyan")
            yield Text.assemble((lane, "dim"), (f"{mark} ", branch), name, columns, said)


def _id_of(config: RunnableConfig | None) -> str:
    return config["configurable"]["checkpoint_id"] if config else ""


def _seen(found: StateSnapshot) -> tuple[str, str, str]:
    """A checkpoint's mark, the mark's style, and its last message in short, or what it asks a human."""
    for task in found.tasks:
        for asked in task.interrupts:
            mark, style, does = ("◆", "bold yellow", "waits") if task.result is None else ("◇", "yellow", "asked")
            return mark, style, f"{does}: {asked.value}"
    of_input = (found.metadata or {}).get("source") == "input"
    state: Any = found.tasks[0].result if of_input else found.values
    return "●", "", ": ".join(gist(state["messages"][-1])) if state else ""
