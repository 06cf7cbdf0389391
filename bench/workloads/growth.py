from __future__ import annotations

from typing import Any

from bench.contestants import Contestant
from bench.history import following
from bench.measuring import Run
from bench.meters import RedisMeter
from bench.prepared import Prepared, chat_recording, check_chat

LENGTHS = {10: 20, 30: 20, 100: 20, 300: 12, 1000: 8, 3000: 4}


def run(run: Run) -> None:
    """One get_tuple and one put with one more message, on histories of 10 to 3,000 messages; milliseconds and bytes."""
    for length in run.size(list(LENGTHS), [10, 100, 1000], [10]):
        prepared: dict[str, Prepared] = {}

        def prepare(contestant: Contestant, _: int, length: int = length, prepared: Any = prepared) -> None:
            prepared[contestant.name] = chat_recording(contestant, length).play()

        def act(contestant: Contestant, repetition: int, length: int = length, prepared: Any = prepared) -> None:
            measure(run, contestant, prepared[contestant.name], length, warm=bool(repetition) or run.smallest)

        run.rotate(f"growth: preparing {length} messages", 1, prepare)
        run.rotate(f"growth: {length} messages", run.size(LENGTHS[length], 4, 0) + 1, act)
        for contestant in run.contestants:
            contestant.clear()


def measure(run: Run, contestant: Contestant, thread: Prepared, length: int, *, warm: bool) -> None:
    """Load the newest checkpoint, and put the next one with one more message, as LangGraph does."""
    saver = contestant.saver
    meter = contestant.meter if isinstance(contestant.meter, RedisMeter) else None
    thread.reset()
    reading = meter.traffic() if meter else None
    get_seconds, found = run.timed(lambda: saver.get_tuple(thread.config))
    received = meter.between(reading, meter.traffic()).received if meter and reading else None
    checkpoint = found.checkpoint
    check_chat(checkpoint["channel_values"], length)
    messages = checkpoint["channel_values"]["messages"]
    new = {"messages": saver.get_next_version(checkpoint["channel_versions"]["messages"], None)}
    following_checkpoint: Any = {
        **checkpoint,
        "id": thread.new_id(),
        "channel_values": {**checkpoint["channel_values"], "messages": [*messages, following(messages[-1])]},
        "channel_versions": {**checkpoint["channel_versions"], **new},
    }
    metadata: Any = {"source": "loop", "step": (found.metadata.get("step") or 0) + 1, "parents": {}}
    reading = meter.traffic() if meter else None
    put_seconds, _ = run.timed(lambda: saver.put(found.config, following_checkpoint, metadata, new))
    sent = meter.between(reading, meter.traffic()).sent if meter and reading else None
    check_chat(thread.stored(), length + 1)
    if not warm:
        return
    case = {"messages": length, "flavour": "sync"}
    run.sample(contestant, case, "get_tuple", "ms", get_seconds * 1000)
    run.sample(contestant, case, "put", "ms", put_seconds * 1000)
    run.sample(contestant, case, "put and get_tuple", "ms", (get_seconds + put_seconds) * 1000)
    if sent is not None and received is not None:
        run.sample(contestant, case, "sent by put", "kB", sent / 1000)
        run.sample(contestant, case, "received by get_tuple", "kB", received / 1000)
