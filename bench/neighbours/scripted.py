"""A chat model that says what a script says, and an embedding that counts letters."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

DIMENSIONS = len(string.ascii_lowercase)


class Scripted(GenericFakeChatModel):
    disable_streaming: bool = True

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


def model(*says: str | AIMessage, **settings: Any) -> Scripted:
    return Scripted(messages=iter(says), **settings)


def call(tool: str, **arguments: Any) -> AIMessage:
    """Return a message that calls a tool. The id of the call is that of the arguments."""
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"{tool} {arguments}"}])


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0 + text.lower().count(letter) for letter in string.ascii_lowercase] for text in texts]


def asking(text: str) -> dict[str, Any]:
    return {"messages": [("user", text)]}


def thread(name: str = "1", **configurable: Any) -> Any:
    return {"configurable": {"thread_id": name, **configurable}}
