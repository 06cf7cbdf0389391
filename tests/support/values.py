"""Values and keys that several tests use."""

from __future__ import annotations

import dataclasses
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer


@dataclasses.dataclass
class Point:
    x: int
    label: str = "MARKER of a dataclass"
    inner: Any = None


class Quoting(JsonPlusSerializer):
    """A serializer whose errors quote what cannot be decoded."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        raise ValueError(f"is that JSON: {data[1]!r}?")


KEY = b"0123456789abcdef0123456789abcdef"
