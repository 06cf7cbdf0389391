from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench import graphs
from bench.contestants import Contestant
from bench.history import following
from bench.measuring import Run
from bench.prepared import Prepared, chat_recording, check_chat

LENGTHS = {10: 12, 100: 12, 400: 10, 1000: 6}
WORKERS: dict[str, int] = {"one": 1, "eight in turn": 8, "always a new one": 0}


def run(run: Run) -> None:
    """A turn of a growing chat, by one worker, eight in turn, or always a new one that has not seen it; milliseconds."""
    for length in run.size(list(LENGTHS), [10, 400], [10]):
        for workers, count in WORKERS.items():
            chats: dict[str, Chat] = {}
            case = {"messages": length, "workers": workers, "flavour": "sync", "durability": "sync"}

            def prepare(
                contestant: Contestant, _: int, length: int = length, count: int = count, chats: Any = chats
            ) -> None:
                thread = chat_recording(contestant, length).play()
                savers = [contestant.unacquainted() for _ in range(count)]
                chats[contestant.name] = Chat(thread, savers, thread.stored()["messages"][-1])

            def act(contestant: Contestant, turn: int, case: dict[str, Any] = case, chats: Any = chats) -> None:
                take(run, contestant, chats[contestant.name], turn, case)

            run.rotate(f"fleet: preparing {length} messages", 1, prepare)
            run.rotate(f"fleet: {length} messages, {workers}", run.size(LENGTHS[length] + count, 4 + count, 1), act)
        for contestant in run.contestants:
            contestant.clear()


@dataclass
class Chat:
    """A growing chat, and the workers that serve it. Without any, each turn has a new one."""

    thread: Prepared
    savers: list[Any]
    last: Any
    """Its last message."""


def take(run: Run, contestant: Contestant, chat: Chat, turn: int, case: dict[str, Any]) -> None:
    """Take a turn of the chat."""
    count = len(chat.savers)
    graph = graphs.chat(chat.savers[turn % count] if count else contestant.unacquainted())
    question = {"messages": [following(chat.last)]}
    seconds, state = run.timed(lambda: graph.invoke(question, chat.thread.config, durability="sync"))
    check_chat(state, case["messages"] + 4 * (turn + 1))
    chat.last = state["messages"][-1]
    if turn >= count or run.smallest:  # each worker warms up
        run.sample(contestant, case, "turn", "ms", seconds * 1000)
