"""Threads that are prepared outside the clock, and reset to the same state before each measurement."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from bench import graphs
from bench.contestants import Contestant
from bench.history import following, history
from bench.measuring import WrongResult
from bench.noop import Recorder

MAX_STEPS = 100


class Recording:
    """Checkpoints that LangGraph made from updates, for any number of replays.

    They have a contestant's channel versions.
    """

    def __init__(self, contestant: Contestant, build: Any, updates: Sequence[dict[str, Any]], node: str) -> None:
        recorder = Recorder(contestant.saver)
        graph = build(recorder)
        config: Any = {"configurable": {"thread_id": "recording"}}
        for update in updates:
            graph.update_state(config, update, as_node=node)
        self.puts = recorder.puts
        self.contestant = contestant

    def of(self, contestant: Contestant) -> Recording:
        """Return the recording for another saver that makes the same channel versions."""
        other = copy(self)
        other.contestant = contestant
        return other

    def play(self) -> Prepared:
        """Put the checkpoints into a new thread."""
        thread = self.contestant.thread()
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        parent = config
        for checkpoint, metadata, new_versions in self.puts:
            parent, config = config, self.contestant.saver.put(config, checkpoint.copy(), metadata, new_versions)
        return Prepared(self, thread, parent)


class Prepared:
    """A thread with a state from which any number of measurements can start."""

    def __init__(self, recording: Recording, thread: str, parent: Any) -> None:
        self.recording, self.thread, self._parent = recording, thread, parent
        self.config: Any = {"configurable": {"thread_id": thread}}

    def reset(self) -> None:
        """Make the prepared state the thread's newest again.

        It forks as LangGraph does: a new checkpoint names the stored channel versions. So no value is written again,
        and a turn reads what a real chat left in the storage.
        """
        checkpoint, metadata, _ = self.recording.puts[-1]
        fork: Any = {**checkpoint, "id": self.new_id()}
        self.recording.contestant.saver.put(self._parent, fork, {**metadata, "source": "fork"}, {})

    @staticmethod
    def new_id() -> str:
        """Return the id of a checkpoint newer than all others."""
        return empty_checkpoint()["id"]

    def stored(self) -> dict[str, Any]:
        """Return the values of the thread's newest checkpoint."""
        found = self.recording.contestant.saver.get_tuple(self.config)
        return dict(found.checkpoint["channel_values"]) if found else {}


def chat_recording(contestant: Contestant, length: int, most_steps: int = MAX_STEPS) -> Recording:
    """Record a chat of `length` messages that grows turn by turn, in at most `most_steps` steps."""
    messages = history(length)
    stride = max(4, -(-length // most_steps))
    updates = [{"messages": messages[first : first + stride]} for first in range(0, length, stride)]
    return Recording(contestant, graphs.chat, updates, "agent")


def check_chat(found: Any, length: int) -> None:
    """Check that a state has `length` consecutive messages of the chat.

    Raises:
        WrongResult: It does not.
    """
    messages = found.get("messages", [])
    if len(messages) != length:
        raise WrongResult(f"{len(messages)} messages where there have to be {length}")
    for earlier, later in zip(messages, messages[1:], strict=False):
        wanted = following(earlier)
        if (later.id, later.content, later.type) != (wanted.id, wanted.content, wanted.type):
            raise WrongResult(f"{later.id} behind {earlier.id}")
