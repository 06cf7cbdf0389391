"""Several questions to the provider of keys at once, in OS threads or in tasks of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from time import perf_counter
from typing import Any

from redis_saver._engine.requests import Ask

AT_ONCE = 8
"""Maximum number of questions at the same time."""
_SLOW = 0.001
"""Duration in seconds of an answer that does not come from memory. Then the next questions are asked at once."""


def ask_all(questions: Sequence[Ask]) -> list[Any]:
    """Return the provider's answers and errors. A fast provider, such as a `Keyset`, needs no OS threads."""
    answers = list[Any]()
    for question in questions:
        began = perf_counter()
        answers.append(_answer(question))
        if perf_counter() - began > _SLOW:
            break
    if not (left := questions[len(answers) :]):
        return answers
    contexts = [copy_context() for _ in left]  # each OS thread needs a copy of its own
    try:
        with ThreadPoolExecutor(min(AT_ONCE, len(left)), "redis_saver keys") as pool:
            return answers + list(pool.map(lambda context, question: context.run(_answer, question), contexts, left))
    except RuntimeError:  # the interpreter is shutting down and starts no threads
        return answers + list(map(_answer, left))


async def aask_all(questions: Sequence[Ask]) -> list[Any]:
    """`ask_all` for asyncio."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def answer(question: Ask) -> Any:
        async with turns:
            try:
                return await question.aask(*question.arguments)
            except Exception as error:  # noqa: BLE001 - it is raised in the operation that asked
                return error

    return await asyncio.gather(*map(answer, questions))


def _answer(question: Ask) -> Any:
    try:
        return question.ask(*question.arguments)
    except Exception as error:  # noqa: BLE001 - it is raised in the operation that asked
        return error
