"""Compares two outcomes by type and content, except for ids and times."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from langgraph.types import PregelTask

ID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
DIGITS = 5
"""Significant digits of floats. Stores compute scores with floats of different sizes."""


class Plain:
    """Makes dicts, lists and atoms of values. An id becomes its number, in order of appearance.

    Args:
        named: Number ids. False for results of nodes: `add_messages` gives ids to their messages while the saver stores
            them, so the ids are there or not, even with `InMemorySaver`.
    """

    def __init__(self, named: bool = True) -> None:
        self._ids: dict[str, str] = {}
        self._named = named

    def _number(self, found: re.Match[str]) -> str:
        return self._ids.setdefault(found[0].replace("-", ""), f"<id {len(self._ids)}>") if self._named else "<id>"

    def of(self, value: Any) -> Any:
        if isinstance(value, str):
            return TIME.sub("<time>", ID.sub(self._number, value))
        if isinstance(value, (int, bytes, type(None))):
            return value
        if isinstance(value, float):
            return float(f"{value:.{DIGITS}g}")
        if isinstance(value, Mapping):
            return {self.of(key): self.of(part) for key, part in value.items()}
        if type(value) is list:
            return [self.of(part) for part in value]
        if isinstance(value, PregelTask):
            value = value._replace(result=Plain(named=False).of(value.result))
        if hasattr(value, "_asdict"):
            return self._object(value, value._asdict())
        if isinstance(value, (list, tuple)):
            return self._object(value, {"parts": list(value)})
        if isinstance(value, (set, frozenset)):
            return self._object(value, {"parts": sorted(repr(self.of(part)) for part in value)})
        if hasattr(value, "model_fields_set"):  # pydantic
            fields = value.__dict__ | (value.model_extra or {})
            return self._object(value, fields if self._named else fields | {"id": None})
        if dataclasses.is_dataclass(value):
            return self._object(value, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
        return self.of(f"{type(value).__name__} {value}")

    def _object(self, value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"class": type(value).__qualname__} | {name: self.of(part) for name, part in fields.items()}


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """Return the path of the first difference between two plain values, with both parts, or None."""
    if type(one) is type(other) is dict and list(one) == list(other):
        pairs = [(f"{path}.{key}".lstrip("."), one[key], other[key]) for key in one]
    elif type(one) is type(other) is list and len(one) == len(other):
        pairs = [(f"{path}[{n}]", one[n], other[n]) for n in range(len(one))]
    elif type(one) is type(other) and one == other:
        return None
    else:
        return f"{path}: {_brief(one)} / {_brief(other)}"
    return next((found for at, *parts in pairs if (found := difference(*parts, at))), None)


def _brief(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"{len(value)} parts" if isinstance(value, list) else f"keys {', '.join(map(str, value))}"
    return repr(value)[:100]
