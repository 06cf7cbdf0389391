"""Questions to the provider of keys. Callers that need the same answer at the same time share one question."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeAlias, TypeVar, cast

from redis_saver._common import forks
from redis_saver._engine.requests import Ask
from redis_saver._engine.runner import arun, run

AnswerT = TypeVar("AnswerT")


Result: TypeAlias = tuple[AnswerT | None, Exception | None]
"""An answer or an error, or neither if the caller was cancelled."""
Question: TypeAlias = Future[Result[AnswerT]]


class Questions(Generic[AnswerT]):
    """The questions that this process is asking.

    The first caller asks, and the others wait. They get its answer, or its error: if a provider is down, callers do not
    wait for it one after the other. If the first caller is cancelled, another one asks.

    Blocking callers wait for blocking callers, and tasks for tasks of their own event loop. So nobody waits for a loop
    that it blocks, or that another caller may end.
    """

    def __init__(self) -> None:
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, nobody is asking."""
        self._lock, self._under_way = threading.Lock(), dict[Hashable, Question[AnswerT]]()

    def request(
        self, key: Hashable, question: Ask, known: Callable[[], AnswerT | None], learn: Callable[[Any], AnswerT]
    ) -> Ask:
        """Return the request that asks a question, or waits until another caller has.

        Args:
            key: Callers with the same key need the same answer.
            question: Asks the provider.
            known: Returns the answer if this process has it, else None.
            learn: Makes the answer of the provider's reply, and stores it, so that `known` returns it.
        """

        def blocking() -> AnswerT:
            def answer(request: Question[AnswerT] | Ask) -> Any:
                return request.ask(*request.arguments) if isinstance(request, Ask) else request.result()

            return run(self._asking(key, question, known, learn), answer)

        async def on_loop() -> AnswerT:
            async def answer(request: Question[AnswerT] | Ask) -> Any:
                if isinstance(request, Ask):
                    return await request.aask(*request.arguments)
                # `shield`, because the cancellation of one waiting task must not reach the others
                return await asyncio.shield(asyncio.wrap_future(request))

            of_loop = asyncio.get_running_loop(), key
            return await arun(self._asking(of_loop, question, known, learn), answer)

        return Ask(blocking, on_loop, ())

    def _asking(
        self, key: Hashable, question: Ask, known: Callable[[], AnswerT | None], learn: Callable[[Any], AnswerT]
    ) -> Generator[Question[AnswerT] | Ask, Any, AnswerT]:
        mine: Question[AnswerT] = Future()
        result: Result[AnswerT] = None, None
        try:
            while (asked := self._join(key, mine)) is not mine:
                answer, error = yield asked
                if error is not None:
                    raise error
                if answer is not None:
                    return cast("AnswerT", answer)
            if (answer := known()) is None:  # the caller before may have learned it
                answer = learn((yield question))
            result = answer, None
        except Exception as error:
            result = None, error
            raise
        finally:
            self._end(key, mine, result)
        return answer

    def _join(self, key: Hashable, mine: Question[AnswerT]) -> Question[AnswerT]:
        """Return the question under way, or make the caller's own one that."""
        with self._lock:
            return self._under_way.setdefault(key, mine)

    def _end(self, key: Hashable, mine: Question[AnswerT], result: Result[AnswerT]) -> None:
        with self._lock:
            if self._under_way.get(key) is mine:
                del self._under_way[key]
        mine.set_result(result)
