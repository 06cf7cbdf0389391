"""Speed of `FastSerializer` relative to `JsonPlusSerializer`: `python bench/wire_format.py`.

Each number is the minimum of many runs. The serializers take turns, so other load slows all of them. `pieces` is
`dumps_elements` against `JsonPlusSerializer.dumps_typed`. `grown` is the same, given the result for a value without the
last two elements. Times are microseconds of processor time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from redis_saver._serde.serializer import FastSerializer

ROUNDS, BUDGET = 25, 0.01


def mixed(count: int) -> list[Any]:
    """Return the messages of a chat with tools."""
    usage = {
        "input_tokens": 120, "output_tokens": 30, "total_tokens": 150,
        "input_token_details": {"audio": 0, "cache_read": 10}, "output_token_details": {"audio": 0, "reasoning": 5},
    }  # fmt: skip
    response = {
        "model_name": "gpt-4o", "finish_reason": "tool_calls", "system_fingerprint": "fp_1234", "logprobs": None,
        "token_usage": {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150},
    }  # fmt: skip
    found: list[Any] = []
    while len(found) < count:
        name = str(uuid.uuid4())
        call = {"name": "search", "args": {"query": "weather in Paris", "n": 3}, "id": "call_" + name}
        found += [
            HumanMessage("What is the weather like in Paris today, and should I take an umbrella?", id=name),
            AIMessage("Let me look.", id=name, tool_calls=[call], usage_metadata=usage, response_metadata=response),
            ToolMessage("Rain in the morning, sun later. " * 4, tool_call_id="call_" + name, name="search", id=name),
            AIMessage("It will rain in the morning, so take an umbrella. " * 3, id=name),
            SystemMessage("You are a helpful assistant.", id=name),
        ]
    return found[:count]


VALUES: dict[str, Any] = {
    **{f"{count} mixed messages": mixed(count) for count in (1, 10, 100, 1000)},
    **{f"100 x {type(one).__name__} {n}": [one] * 100 for n, one in enumerate(mixed(5))},
    "messages in a dict": {"messages": mixed(20), "n": 1},
    "1536 floats": [n / 7 for n in range(1536)],
    "100,000 ints": list(range(100_000)),
    "200 strings of 2 kB": {f"key{n}": "x" * 2000 for n in range(200)},
    "5 strings of 2 kB": ["x" * 2000] * 5,
    "20 dicts": [{"page_content": "x" * 500, "metadata": {"source": "a", "n": n}} for n in range(20)],
    "nested dict": {f"key{n}": {"a": {"b": [1, 2, 3], "c": "hello"}, "d": None} for n in range(20)},
    "metadata": {"source": "loop", "step": 1, "parents": {}, "thread_id": "x" * 36},
    "string": "hello",
}


def least(acts: list[Callable[[], Any]]) -> list[float]:
    """Return the minimum time of each function in microseconds."""
    start = time.perf_counter()
    acts[0]()
    count = max(1, int(BUDGET / ROUNDS / max(time.perf_counter() - start, 1e-7)))
    found = [float("inf")] * len(acts)
    for _ in range(ROUNDS):
        for n, act in enumerate(acts):
            start = time.thread_time()
            for _ in range(count):
                act()
            found[n] = min(found[n], (time.thread_time() - start) / count * 1e6)
    return found


def main() -> None:
    theirs, ours = JsonPlusSerializer(), FastSerializer()
    print(f"{'':24}{'encode':>10}{'':>8}{'pieces':>10}{'':>8}{'grown':>10}{'':>8}{'decode':>10}")
    for name, value in VALUES.items():
        stored = theirs.dumps_typed(value)
        assert ours.dumps_typed(value) == stored
        last = ours.dumps_elements(value[:-2] if isinstance(value, list) else value)
        acts = (
            lambda: theirs.dumps_typed(value),
            lambda: ours.dumps_typed(value),
            lambda: ours.dumps_elements(value),
            lambda: ours.dumps_elements(value, last),
        )
        ordinary, fast, pieces, grown = least(list(acts))
        slow_read, fast_read = least([lambda: theirs.loads_typed(stored), lambda: ours.loads_typed(stored)])
        columns = ((fast, ordinary), (pieces, ordinary), (grown, ordinary), (fast_read, slow_read))
        print(f"{name:24}" + "".join(f"{mine:10.2f} x{other / mine:<6.2f}" for mine, other in columns))


if __name__ == "__main__":
    main()
