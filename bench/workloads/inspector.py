from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
from langgraph.checkpoint.base import create_checkpoint, empty_checkpoint

from bench.contestants import OURS, Contestant
from bench.history import history
from bench.measuring import Run, WrongResult

PAGES = {
    "list of threads": "/",
    "server": "/server",
    "thread": "/thread?id={chat}",
    "find a text": "/thread?id={chat}&q=nowhere",
    "checkpoint": "/checkpoint?thread={chat}",
    "cost": "/cost?thread={chat}",
    "writes": "/writes?thread={chat}",
}
PAGES_OF_LARGE = {
    "a large checkpoint": "/checkpoint?thread={large}",
    "a large value": "/value?thread={large}&channel=text",
    "a large value, as JSON": "/json?thread={large}&channel=text",
}
METRIC, LARGE = "processor time", "memory grown"


def run(run: Run) -> None:
    """The inspector's pages: processor time of this process for a chat of 10,000 checkpoints; memory for 50 MB of values."""
    length, texts = run.size(10_000, 1_000, 4), run.size(50_000, 50_000, 50)

    def act(contestant: Contestant, _: int) -> None:
        from redis_saver import inspector

        chat, large = contestant.thread(), contestant.thread()
        write_chat(contestant.saver, chat, length)
        put(contestant.saver, {"configurable": {"thread_id": large}}, {"text": [f"{n} " * 200 for n in range(texts)]})
        pages = inspector.app(contestant.saver, token="", hosts=["*"])
        client = httpx.AsyncClient(transport=httpx.ASGITransport(pages), base_url="http://inspector")
        for page, url in PAGES.items():
            for repetition in range(run.size(12, 6, 2)):
                _, got = run.atimed(lambda url=url: client.get(url.format(chat=chat)))
                if got.status_code != httpx.codes.OK:
                    raise WrongResult(f"{page}: {got.text[:200]}")
                if repetition:  # the first warms up
                    case = {"page": page, "checkpoints": length}
                    run.sample(contestant, case, METRIC, "ms", run.processor * 1000)
        for page, url in PAGES_OF_LARGE.items():
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before = memory("VmRSS")
            run.atimed(lambda url=url: client.get(url.format(large=large)))
            run.sample(contestant, {"page": page}, LARGE, "MB", memory("VmHWM") - before)
        run.wait(client.aclose())

    run.rotate("inspector", 1, act, [who for who in run.contestants if who.name == OURS])


def memory(name: str) -> float:
    """Return a size of this process in MB, as Linux counts it."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1000


def write_chat(saver: Any, thread: str, length: int) -> None:
    """Write a chat with pending writes. As in an agent's turn, four of five checkpoints add a message."""
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    coming, messages = iter(history(length)), list[Any]()
    for step in range(length):
        added = [next(coming)] if step % 5 else []
        messages = [*messages, *added]
        config = put(saver, config, {"messages": messages, "n": step}, step)
        saver.put_writes(config, [("messages", added), ("n", step)], f"task-{step}", "~__pregel_pull, agent")


def put(saver: Any, config: Any, values: dict[str, Any], step: int = 0) -> Any:
    """Put a checkpoint with new versions of these values."""
    checkpoint: Any = create_checkpoint(empty_checkpoint(), None, step)
    versions = dict.fromkeys(values, f"{step + 1:032}.1")
    checkpoint |= {"channel_values": values, "channel_versions": versions}
    about: Any = {"source": "loop" if step else "input", "step": step, "parents": {}}
    config = {"configurable": {"checkpoint_ns": "", **config["configurable"]}}
    return saver.put(config, checkpoint, about, versions)
