"""The pages about a store and caches. A method for each page returns the values of its template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langgraph.store.base import InvalidNamespaceError

from redis_saver._common.display import shown
from redis_saver._inspector.changes import Change
from redis_saver._inspector.memory import ItemRow, Labels, Memory, read_labels
from redis_saver._inspector.pages import Query, Refused, Values, needed, number
from redis_saver._inspector.values import WHOLE_TEXT, Hides, ago, plain, visible
from redis_saver.errors import EndpointError

ITEMS = 50
"""Page size of a namespace's items."""
NAMESPACES = 200
"""Maximum number of namespaces on a page. A search finds the others."""
SECONDS = 2.0
"""Time limit for measuring bytes, and for scanning the caches."""
_SHORT = 400
"""Maximum number of characters of a value in a list."""


class MemoryPages:
    """The pages of namespaces, items and caches."""

    def __init__(self, memory: Memory, hides: Hides) -> None:
        """Show this memory. `hides` hides values by keys and fields."""
        self._memory, self._hides = memory, hides

    def memory(self, arguments: Query) -> Values:
        """Show the namespaces, or the items of one and the namespaces below it."""
        labels, part = _labels(arguments), arguments.get("find", "").strip().lower()
        query, where = arguments.get("q", "").strip(), arguments.get("filter", "").strip()
        page = max(number(arguments, "page"), 1)
        tree = self._memory.tree(labels, SECONDS)
        found = [branch for branch in tree if branch.namespace != labels and part in ".".join(branch.namespace).lower()]
        rows: list[ItemRow] = []
        if labels:
            try:
                matching = json.loads(where) if where else None
                rows = self._memory.items(labels, query, matching, ITEMS + 1, (page - 1) * ITEMS)
            except (ValueError, TypeError, EndpointError) as error:
                raise Refused(f"the search is not valid: {error}") from error
        return {
            "labels": labels, "tree": found[:NAMESPACES], "more": len(found) - NAMESPACES, "rows": rows[:ITEMS],
            "own": next((branch for branch in tree if branch.namespace == labels), None),
            "has_more": len(rows) > ITEMS, "page": page, "has_index": self._memory.has_index,
            "text": lambda row: self._text(row, _SHORT),
            "unreadable": next((row.unreadable for row in rows if row.unreadable), ""),
            "is_partial": any(branch.bytes is None for branch in tree),
        }  # fmt: skip

    def item(self, arguments: Query) -> Values:
        """Show an item."""
        labels, key = _labels(arguments), needed(arguments, "key")
        row = self._memory.item(labels, key) if labels else None
        if row is None:
            wrong = f"There is no item {shown(key)} in {shown(labels)}. It was deleted, or has expired."
            return {"status": 404, "labels": labels, "name": key, "row": None, "wrong": wrong}
        return {"labels": labels, "name": key, "row": row, "text": self._text(row, WHOLE_TEXT), "wrong": ""}

    def caches(self, _: Query) -> Values:
        """Show the namespaces of caches."""
        rows, is_partial = self._memory.entries(SECONDS)
        return {"rows": rows, "is_partial": is_partial, "seconds": SECONDS}

    def planned(self, arguments: Query, form: Mapping[str, str]) -> Change:
        """Return the change that a form asks for.

        Raises:
            Refused: The form names no known item or namespace.
        """
        if form.get("do") == "delete":
            labels, key = _labels(arguments), needed(arguments, "key")
            if (row := self._memory.item(labels, key)) is None:
                raise Refused("there is no such item")
            return Change(
                f"Delete: {' / '.join(labels)} / {key}",
                f"The item will be deleted for good: {row.bytes:,} bytes, changed {ago(row.updated_at)}.",
                lambda: self._memory.delete(labels, key),
                ("memory", {"ns": ".".join(labels)}),
            )
        rows, wanted = self._memory.entries()[0], form.get("do", "")
        rows = [row for row in rows if wanted == "all" or json.dumps(row.namespace) == wanted]
        if not rows:
            raise Refused("there is no such namespace in the caches")
        entries = sum(row.entries for row in rows)
        names = ["models' answers" if row.namespace is None else " / ".join(row.namespace) for row in rows]
        return Change(
            f"Clear: {'all caches' if wanted == 'all' else names[0]}",
            f"{entries:,} cached results will be computed again when they are needed.",
            lambda: self._memory.clear(rows),
            ("caches", {}),
        )

    def _text(self, row: ItemRow, most: int) -> str:
        """Return the value as JSON: one line in a list, else with line breaks."""
        if self._hides(row.key):
            return "masked"
        value: Any = plain(row.value, self._hides)
        text = json.dumps(value, ensure_ascii=False, indent=None if most == _SHORT else 2)
        return visible(text if len(text) <= most else f"{text[:most]} …")


def _labels(arguments: Query) -> Labels:
    """Return the namespace in `ns`, whose labels are joined by points.

    Raises:
        Refused: It is not valid.
    """
    try:
        return read_labels([arguments["ns"]]) if arguments.get("ns") else ()
    except InvalidNamespaceError as error:
        raise Refused(str(error)) from error
