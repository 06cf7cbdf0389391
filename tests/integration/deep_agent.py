"""A Deep Agent (package `deepagents`) with a scripted model, whose answers depend only on the messages it gets."""

from __future__ import annotations

import asyncio
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from redis_saver import AsyncRedisSaver, RedisSaver

SESSION = {"configurable": {"thread_id": "deep"}}


class Scripted(BaseChatModel):
    """A model that takes the same steps for each request. The last word of the person's message names the request."""

    delegates: bool = True
    """True if a subagent does a part."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - it knows them
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        asked = max(number for number, one in enumerate(messages) if isinstance(one, HumanMessage))
        what = str(messages[asked].content).split()[-1]
        is_part = str(messages[asked].content).startswith("part")
        steps = self._part(what) if is_part else self._request(what)
        done = sum(isinstance(one, AIMessage) for one in messages[asked + 1 :])
        calls = [
            {"name": name, "args": args, "id": f"call-{what}-{done}-{is_part}", "type": "tool_call"}
            for name, args in steps[done : done + 1]
        ]
        said = AIMessage(f"step {done} of {what}" if calls else f"done with {what}", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=said)])

    def _part(self, what: str) -> list[tuple[str, dict[str, Any]]]:
        return [("write_file", {"file_path": f"/parts/{what}.md", "content": f"part of {what} " * 20})]

    def _request(self, what: str) -> list[tuple[str, dict[str, Any]]]:
        todos = [{"content": f"{what}.{number}", "status": "pending"} for number in range(3)]
        part = {"description": f"part {what}", "subagent_type": "general-purpose"}
        return [
            ("write_todos", {"todos": todos}),
            ("write_file", {"file_path": f"/notes/{what}.md", "content": f"notes of {what} " * 40}),
            *([("task", part)] if self.delegates else []),
            ("read_file", {"file_path": f"/notes/{what}.md"}),
            ("write_todos", {"todos": [{**one, "status": "completed"} for one in todos]}),
        ]


def agent(saver: Any, *, asks: bool = False, delegates: bool = True) -> Any:
    """Make the graph. If it asks, it waits for a person before it or its subagent writes a file."""
    return create_deep_agent(
        model=Scripted(delegates=delegates), checkpointer=saver, interrupt_on={"write_file": True} if asks else None
    )


def request(what: object) -> dict[str, Any]:
    """Return a person's message."""
    return {"messages": [HumanMessage(f"please do {what}", id=f"request-{what}")]}


def plain(values: Any) -> Any:
    """Return a state without what differs each time: message ids, and times of files."""
    return {
        "messages": [
            (one.type, one.content, getattr(one, "tool_calls", None), getattr(one, "tool_call_id", None))
            for one in values.get("messages", ())
        ],
        "files": {name: file["content"] for name, file in (values.get("files") or {}).items()},
        "todos": values.get("todos"),
    }


class Session:
    """A session of the agent on one saver."""

    def __init__(self, saver: Any, *, native_async: bool) -> None:
        self.graph, self.native_async = agent(saver, asks=True), native_async

    async def call(self, method: str, *args: Any) -> Any:
        """Call the graph in the saver's flavour."""
        if self.native_async:
            return await getattr(self.graph, "a" + method)(*args)
        return getattr(self.graph, method)(*args)

    async def states(self) -> list[Any]:
        """Return all states, newest first."""
        if self.native_async:
            return [one async for one in self.graph.aget_state_history(SESSION)]
        return list(self.graph.get_state_history(SESSION))

    async def act(self, method: str, given: Any = None, at: int | None = None) -> Any:
        """Act now, or at an old state (`at` is its position in the history); return the new state."""
        where = SESSION if at is None else (await self.states())[at].config
        if method == "invoke":
            await self.call("invoke", given, where)
        elif method == "update":
            where = await self.call("update_state", where, given)
            await self.call("invoke", None, where)
        found = await self.call("get_state", SESSION)
        return plain(found.values), found.next, len(found.interrupts)

    async def history(self) -> list[Any]:
        """Return all states, each read on its own."""
        found = [await self.call("get_state", one.config) for one in await self.states()]
        return [(plain(one.values), one.next, len(one.interrupts)) for one in found]


class Worker:
    """A session that lasts as long as its process."""

    session: Session
    runner: asyncio.Runner


def begin(url: str, prefix: str, flavour: str) -> None:
    """Start the session of this process."""

    async def made() -> Session:
        kind: Any = AsyncRedisSaver if flavour == "async" else RedisSaver
        return Session(await _open(kind, url, prefix), native_async=flavour == "async")

    Worker.runner = asyncio.Runner()
    Worker.session = Worker.runner.run(made())


async def _open(kind: Any, url: str, prefix: str) -> Any:
    opened = kind.from_conn_string(url, prefix=prefix)  # open until the process ends
    return await opened.__aenter__() if kind is AsyncRedisSaver else opened.__enter__()


def act(method: str, *args: Any) -> Any:
    """Call a method of this process's session."""
    return Worker.runner.run(getattr(Worker.session, method)(*args))
