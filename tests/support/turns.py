"""Operations that take turns, one request at a time, in every order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Turn:
    """An operation that advances one request at a time, and can be abandoned before any."""

    def __init__(self, saver: Any, make: Callable[[Any], Any]) -> None:
        self._driver, self._operation = saver._driver, make(saver._context)
        self.is_over, self.steps = False, 0
        self._next(None)

    def _next(self, reply: Any) -> None:
        try:
            self.request = self._operation.send(reply)
        except StopIteration:
            self.is_over = True

    def step(self) -> None:
        self.steps += 1
        self._next(self._driver.request(self.request))

    def finish(self, after_each: Callable[[], object] = lambda: None) -> None:
        while not self.is_over:
            self.step()
            after_each()


def schedules() -> Iterator[Callable[[int], int]]:
    """Yield functions that choose one of so many. Together they make every sequence of choices."""
    path: list[list[int]] = []
    while True:
        position = 0

        def choose(among: int) -> int:
            nonlocal position
            if position == len(path):
                path.append([0, among])
            position += 1
            return path[position - 1][0]

        yield choose
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        path[-1][0] += 1
