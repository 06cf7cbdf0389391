"""Which calls need cold: the table of `docs/tiered.md`, call by call, over a cold saver that does not answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from redis_saver import ColdTimeout, ThreadNotFound, TieredSaver
from tests.support.cases import case
from tests.support.factories import chain, config
from tests.support.methods import SAVER, methods_of
from tests.support.tiering import DEAD, TABLES, Tiers, both_modes, drained, id_of, locked, put_new
from tests.support.uniform import Uniform

PAGE = (Path(__file__).parents[2] / "docs" / "tiered.md").read_text()
COLUMN = {"new": 1, "dirty": 2, "clean": 2, "newest": 3, "absent": 4}
"""Column of the table by the state of the thread: new; all of it in hot, dirty or clean; its newest checkpoint in hot;
not in hot."""


class Talk:
    """A thread, and two savers: one over Postgres, and one over a cold saver that does not answer."""

    def __init__(self, thread: str, works: Uniform, dead: Uniform) -> None:
        self.thread, self.works, self.dead, self.ids = thread, works, dead, ["1", "2"]

    async def bring(self, tiers: Tiers, state: str) -> None:
        if state == "new":
            self.thread = await self.works.new_thread()
            return
        await self.works.get_tuple(config(self.thread))
        self.ids = list(map(id_of, await chain(self.works, self.thread, 2, run_id="run")))
        if state != "dirty" and self.works.saver._context.flush_queue:
            await drained(self.works)
        if state in ("newest", "absent"):
            tiers.evict(thread=self.thread)
        if state == "newest":
            await self.works.get_tuple(config(self.thread))

    async def turn(self) -> None:
        """Write as a graph does: read the newest checkpoint, then put its child and pending writes."""
        parent = await self.dead.get_tuple(config(self.thread))
        stored = await put_new(self.dead, parent.config if parent else config(self.thread))
        await self.dead.put_writes(stored, [("n", 1)], "task")

    async def own(self) -> None:
        async with self.dead.own(self.thread):
            pass

    async def roll_back(self) -> None:
        async with self.works.own(self.thread, run_id="run"), self.dead.own(self.thread, on_busy="rollback"):
            pass


CALLS: dict[str, Callable[[Talk], Awaitable[Any]]] = {
    "get_tuple with a checkpoint_id": lambda talk: talk.dead.get_tuple(config(talk.thread, "", talk.ids[0])),
    "list(None)": lambda talk: talk.dead.list(None),
    "put": Talk.turn,
    "put_writes": Talk.turn,
    "own": Talk.own,
    'own(on_busy="rollback")': Talk.roll_back,
    "flush": lambda talk: talk.dead.flush(timeout=0.1),
}
"""Calls that need more than the arguments of `tests/support/methods.py`."""
PAUSES = {"pause_flushing", "resume_flushing"}
"""They write to hot alone, and a pause would stop the other calls."""


async def call(talk: Talk, name: str) -> None:
    """Call a method of the table, for the talk's thread."""
    if name in CALLS:
        await CALLS[name](talk)
        return
    method = SAVER[name]

    def of_talk(given: Any) -> Any:
        if isinstance(given, list):
            return [of_talk(each) for each in given]
        return talk.thread if given == "t" else config(talk.thread) if given == config("t") else given

    options = {key: of_talk(value) for key, value in method.options.items()}
    await getattr(talk.dead, name)(*map(of_talk, method.arguments), **options)


def table() -> dict[str, list[str]]:
    """Return the rows of the page's table, by call."""
    _, _, rest = PAGE.partition("## Which calls need cold")
    rows = [row.strip("|").split("|") for row in re.findall(r"^\| `.*\|$", rest.partition("\n## ")[0], re.MULTILINE)]
    return {call: [cell.strip() for cell in cells] for cells in rows for call in re.findall(r"`([^`]+)`", cells[0])}


def test_the_table_has_all_calls() -> None:
    methods = {name for name, method in methods_of(TieredSaver, twins=False).items() if method.is_counted}
    differ = table().keys() ^ ((methods | CALLS.keys() | {"setup"}) - PAUSES)
    assert not differ, f"in the table or among the methods, but not in both: {sorted(differ)}"


@pytest.mark.also_on()
@pytest.mark.by_turns
@both_modes
@pytest.mark.parametrize("outage", ["raises", "hangs"])
async def test_a_call_needs_cold_as_the_table_says(tiers: Tiers, mode: dict[str, Any], outage: str) -> None:
    """Of calls that need cold, `test_hanging_cold.py` shows what they do while it hangs."""
    hangs = outage == "hangs"
    cold, error = (None, ColdTimeout) if hangs else (await tiers.dead_cold(), DEAD)
    works, dead = await tiers.uniform(**mode), await tiers.uniform(cold=cold, **mode)
    states = [state for state in COLUMN if state != "dirty" or mode]
    rows = {name: cells for name, cells in table().items() if name != "rotate_keys" or tiers.target.is_encrypted}
    for name, cells in rows.items():
        for state in states:
            wanted = {"–": False, "yes": True, "through": not mode, "clean": state == "clean"}[cells[COLUMN[state]]]
            if hangs and wanted:
                continue
            with case(name, state):
                talk = Talk(f"{name} {state}", works, dead)
                await talk.bring(tiers, state)
                with locked(tiers.url, TABLES) if hangs else nullcontext():
                    try:
                        await call(talk, name)
                        asked = False
                    except (error, ThreadNotFound) as raised:
                        asked = isinstance(raised, error)
                assert asked == wanted
