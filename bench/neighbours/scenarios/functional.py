"""LangGraph's functional API: cached tasks, an interrupt, `previous`, and a second thread that hits the cache."""

from typing import Any

from langgraph.func import entrypoint, task
from langgraph.types import CachePolicy, Command, interrupt
from scripted import thread


def run(saver: Any, store: Any, cache: Any) -> Any:
    ran: list[int] = []

    @task(cache_policy=CachePolicy(key_func=str, ttl=3600))
    def square(number: int) -> dict[str, Any]:
        ran.append(number)
        return {"of": number, "is": number**2, "pair": (number, number)}

    @entrypoint(checkpointer=saver, store=store, cache=cache)
    def sums(numbers: list[int], *, previous: Any = None) -> Any:
        squares = [future.result() for future in [square(number) for number in numbers]]
        total = sum(each["is"] for each in squares) + (previous or 0)
        answer = interrupt({"total": total, "squares": squares})
        store.put(("sums",), str(total), {"answer": answer})
        return entrypoint.final(value={"total": total, "answer": answer}, save=total)

    one, other = thread("one"), thread("other")
    seen = [sums.invoke([1, 2, 3], one), sums.invoke(Command(resume="yes"), one)]
    seen += [sums.invoke([3, 4], one), sums.invoke(Command(resume={"sure": True}), one)]
    seen += [sums.invoke([1, 4], other), sorted(ran)]
    return sums, [one, other], seen
