"""Messages of a chat, the same in every run: human, AI with a tool call, tool, AI, and so on."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

_WORDS = (
    "account agent answer balance before between branch change charge checkpoint city client compare country customer "
    "data date delivery depends detail door early every evening field first found garden given house invoice item "
    "journey key language late letter list market measure message money month morning never number offer open order "
    "paper past payment people place plan price question rate reason record report result river road room rule same "
    "season second serial service shop since small station step street summer system table their there thing ticket "
    "time total town train travel under until value visit water week where which winter without world year"
).split()


@cache
def text(seed: str) -> str:
    """Return 200 to 400 bytes of words, the same ones for a seed."""
    chosen = random.Random(seed)
    size, words = chosen.randint(200, 400), list[str]()
    while size > 0:
        words.append(chosen.choice(_WORDS))
        size -= len(words[-1]) + 1
    return " ".join(words)


def _said_by_model(n: int, finish: str) -> dict[str, Any]:
    counts = {"input_tokens": 900 + n, "output_tokens": 60 + n % 40, "total_tokens": 960 + n + n % 40}
    return {
        "usage_metadata": {**counts, "input_token_details": {"cache_read": 512}},
        "response_metadata": {
            "model_name": "model-2026-01-01", "finish_reason": finish, "system_fingerprint": f"fp_{n % 7:08}",
            "token_usage": {"prompt_tokens": 900 + n, "completion_tokens": 60 + n % 40},
        },
    }  # fmt: skip


def message(n: int) -> AnyMessage:
    """Return message number `n`: human, AI with a tool call, tool, or AI answer, in turn."""
    name, said = f"message-{n:06}", text(f"message {n}")
    kind = n % 4
    if kind == 0:
        return HumanMessage(said, id=name)
    if kind == 1:
        call = {"name": "look_up", "args": {"query": said[:40], "limit": 10}, "id": f"call-{n:06}", "type": "tool_call"}
        return AIMessage(said, id=name, tool_calls=[call], **_said_by_model(n, "tool_calls"))
    if kind == 2:
        return ToolMessage(said, id=name, tool_call_id=f"call-{n - 1:06}", name="look_up")
    return AIMessage(said, id=name, **_said_by_model(n, "stop"))


def following(last: AnyMessage) -> AnyMessage:
    """Return the message after `last`."""
    return message(int(str(last.id).removeprefix("message-")) + 1)


def history(length: int) -> list[AnyMessage]:
    """Return `length` messages that end with an AI answer, so that a human message is next."""
    first = -length % 4
    return [message(n) for n in range(first, first + length)]
