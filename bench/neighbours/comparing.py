"""Compares two outcomes by type and content, except for ids and times."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from langgraph.types import PregelTask

ID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
DIGITS = 5
"""Significant digits of floats. Stores compute scores with floats of different sizes."""


class Plain:
    """Makes dicts, lists and atoms of values. An id becomes its number, in order of appearance.

    Args:
        named: Keep ids of messages. `add_messages` gives an id to a message of a node while the saver stores it as the
            node's result. So the result has the id or not, also with `InMemorySaver`.
    """

    def __init__(self, named: bool = True) -> None:
        self._ids: dict[str, str] = {}
        self._named = named

    def _number(self, found: re.Match[str]) -> str:
        return self._ids.setdefault(found[0].replace("-", ""), f"<id {len(self._ids)}>")

    def of(self, value: Any) -> Any:
        if isinstance(value, str):
            return TIME.sub("<time>", ID.sub(self._number, value))
        if isinstance(value, datetime):
            return "<time>"
        if isinstance(value, float):
            return float(f"{value:.{DIGITS}g}")
        if isinstance(value, Mapping):
            return {self.of(key): self.of(part) for key, part in value.items()}
        if isinstance(value, PregelTask):
            value = value._replace(result=Plain(named=False).of(value.result))
        if hasattr(value, "_asdict"):
            return self._object(value, value._asdict())
        if type(value) is list:
            return [self.of(part) for part in value]
        if isinstance(value, (list, tuple)):
            return {"class": type(value).__name__, "parts": [self.of(part) for part in value]}
        if isinstance(value, (set, frozenset)):
            return {"class": type(value).__name__, "parts": sorted(map(repr, map(self.of, value)))}
        if isinstance(value, Enum):
            return str(value)
        if dataclasses.is_dataclass(value):
            return self._object(value, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
        if hasattr(value, "model_fields_set"):
            fields = value.__dict__ | (value.model_extra or {})
            return self._object(value, fields if self._named else fields | {"id": None})
        if hasattr(value, "__slots__"):
            return self._object(value, {name: getattr(value, name) for name in value.__slots__})
        return self.of(repr(value)) if not isinstance(value, (int, bytes, type(None))) else value

    def _object(self, value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"class": type(value).__qualname__} | {name: self.of(part) for name, part in fields.items()}


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """Return the path of the first difference between two plain values, with both parts, or None."""
    if type(one) is type(other) and isinstance(one, dict) and list(one) == list(other):
        pairs = [(f"{path}.{key}" if path else key, one[key], other[key]) for key in one]
    elif type(one) is type(other) is list and len(one) == len(other):
        pairs = [(f"{path}[{n}]", *parts) for n, parts in enumerate(zip(one, other, strict=True))]
    elif type(one) is type(other) and one == other:
        return None
    else:
        return f"{path}: {_brief(one)} / {_brief(other)}"
    return next((found for part in pairs if (found := difference(part[1], part[2], part[0]))), None)


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return f"keys {', '.join(map(str, value))}"
    return f"{len(value)} parts" if isinstance(value, list) else repr(value)[:100]
