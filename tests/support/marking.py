"""A harmless class whose construction only sets a flag: it shows what decodes planted bytes."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

made: list[str] = []
"""The flag: an entry for each `Marker` that was made."""


@dataclasses.dataclass
class Marker:
    text: str = "planted"

    def __post_init__(self) -> None:
        made.append(self.text)

    def __reduce__(self) -> Any:
        return Marker, (self.text,)


TRUSTING: Any = {"pickle_fallback": True, "allowed_json_modules": True}
"""Settings of LangGraph's serializer with which it makes objects of each of `PLANTED`."""


def _typed(value: Any) -> tuple[str, bytes]:
    return JsonPlusSerializer().dumps_typed(value)


_as_json = {"lc": 2, "type": "constructor", "id": [*__name__.split("."), "Marker"], "kwargs": {}}
PLANTED: dict[str, tuple[str, bytes]] = {
    "an object": _typed(Marker()),
    "an object in a list": _typed([Marker()]),
    "a snapshot of an object": _typed(_DeltaSnapshot(Marker())),
    "an object as JSON": ("json", json.dumps(_as_json).encode()),
    "a pickle": ("pickle", pickle.dumps(Marker())),
}
"""Types and bytes that make a `Marker` when LangGraph's serializer decodes them."""
made.clear()
