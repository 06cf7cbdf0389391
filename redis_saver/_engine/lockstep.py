"""Operations in lockstep: their requests of the same step are sent together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis_saver._engine.requests import Ask, AskAll, Batch, Call, Command, Operation, T
from redis_saver._engine.runner import Pump

MAX_TOGETHER = 256
"""Maximum number of operations whose requests are sent together."""


def together(operations: Sequence[Operation[T]], *, is_replicated: bool = False) -> Operation[list[T]]:
    """Run operations in lockstep. Each step is one batch, and one list of questions to the provider of keys.

    An error of a batch ends all operations. An error of the provider is raised in the operation that asked.

    Args:
        operations: The operations.
        is_replicated: True if writes wait for replicas. Then a step with a write sends each request alone, because WAIT
            travels with a single script.

    Returns:
        Their results.
    """
    if len(operations) == 1:
        return [(yield from operations[0])]
    results: list[Any] = [None] * len(operations)
    for start in range(0, len(operations), MAX_TOGETHER):
        running = dict(enumerate(map(Pump, operations[start : start + MAX_TOGETHER]), start))
        while running:
            requests, questions = dict[int, Any](), dict[int, Ask]()
            for position, pump in list(running.items()):
                for request in pump:
                    if isinstance(request, Ask):
                        questions[position] = request
                        break
                    if isinstance(request, Call | Command | Batch):
                        requests[position] = request
                        break
                    with pump:
                        pump.reply = yield request
                else:
                    results[position] = pump.result
                    del running[position]
            for position, reply in (yield from _replies(requests, is_replicated)).items():
                running[position].reply = reply
            answers = (yield AskAll([*questions.values()])) if questions else ()
            for position, answer in zip(questions, answers, strict=True):
                with running[position]:
                    if isinstance(answer, Exception):
                        raise answer
                    running[position].reply = answer
    return results


def _replies(requests: Mapping[int, Any], is_replicated: bool) -> Operation[dict[int, Any]]:
    replies: dict[int, Any] = {}
    waits = is_replicated and any(isinstance(each, Call) and each.script.is_confirmed for each in requests.values())
    if waits or len(requests) <= 1:
        for position, request in requests.items():
            replies[position] = yield request
        return replies
    parts = [request.requests if isinstance(request, Batch) else (request,) for request in requests.values()]
    answers = iter((yield Batch([request for part in parts for request in part])))
    for (position, request), part in zip(requests.items(), parts, strict=True):
        own = [next(answers) for _ in part]
        replies[position] = own if isinstance(request, Batch) else own[0]
    return replies
