"""Several questions to the provider of keys at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from redis_saver._client.asking import AT_ONCE, aask_all, ask_all
from redis_saver._engine.requests import Ask

NAME = ContextVar("NAME", default="")


def questions(answer: Callable[[int], Any], count: int) -> list[Ask]:
    async def aanswer(number: int) -> Any:
        return await asyncio.to_thread(answer, number)

    return [Ask(answer, aanswer, (number,)) for number in range(count)]


async def answers(flavour: str, asked: list[Ask]) -> list[Any]:
    return await aask_all(asked) if flavour == "async" else ask_all(asked)


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_an_error_answers_its_own_question_alone(flavour: str) -> None:
    def answer(number: int) -> int:
        time.sleep(0.002)
        if number == 3:
            raise ConnectionError("no answer")
        return number

    found = await answers(flavour, questions(answer, 10))
    assert [each for each in found if not isinstance(each, ConnectionError)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert isinstance(found[3], ConnectionError)
    assert await answers(flavour, []) == []


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_a_slow_provider_gets_a_few_questions_at_a_time_in_the_context_of_the_caller(flavour: str) -> None:
    NAME.set("caller")
    now, most, lock = 0, 0, threading.Lock()

    def answer(number: int) -> str:
        nonlocal now, most
        with lock:
            now += 1
            most = max(now, most)
        time.sleep(0.01)
        with lock:
            now -= 1
        return f"{number} {NAME.get()}"

    assert await answers(flavour, questions(answer, 40)) == [f"{number} caller" for number in range(40)]
    assert 1 < most <= AT_ONCE


def test_a_fast_provider_needs_no_threads() -> None:
    asked = ask_all(questions(lambda _: threading.get_ident(), 1000))
    assert asked[0] == threading.get_ident() and len(asked) == 1000


def test_questions_are_answered_while_the_interpreter_ends() -> None:
    program = """
import atexit, time
from redis_saver._client.asking import ask_all
from redis_saver._engine.requests import Ask
answer = lambda number: time.sleep(0.005) or number
atexit.register(lambda: print(ask_all([Ask(answer, None, (number,)) for number in range(5)])))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[0, 1, 2, 3, 4]\n" and not ran.stderr
