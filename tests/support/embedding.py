"""Embedding models for tests, and a reference search."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

DIMS = 16


def vector(text: str, dims: int = DIMS) -> list[float]:
    """Return a pseudo-random vector for a text.

    Texts with the same first word are near; `zero` gets the zero vector.
    """
    if text.startswith("zero"):
        return [0.0] * dims
    return [float(one) for one in np.float32(_noise(text.split(" ")[0], dims) * 3 + _noise(text, dims))]


def _noise(text: str, dims: int) -> Any:
    return np.random.default_rng(int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)).standard_normal(dims)


class Model:
    """An embedding function that counts its calls. If `wrong` is set, it returns `wrong[0]` instead of vectors."""

    def __init__(self, dims: int = DIMS) -> None:
        self.dims, self.calls = dims, list[list[str]]()
        self.wrong: tuple[Any, ...] = ()

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        self.calls.append(list(texts))
        return [vector(text, self.dims) for text in texts] if not self.wrong else self.wrong[0]

    def take(self) -> list[list[str]]:
        found, self.calls = self.calls, []
        return found

    def index(self, **settings: Any) -> Any:
        return {"dims": self.dims, "embed": self, **settings}


def score(distance: str, one: Sequence[float], other: Sequence[float]) -> float:
    """Compute a score in float64 with the textbook formula."""
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if distance == "l2":
        return -float(np.linalg.norm(a - b))
    if distance == "inner_product":
        return float(a @ b)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


def best(distance: str, query: Sequence[float], items: dict[Any, Any], most: int) -> list[tuple[Any, float]]:
    """Return the items nearest to a query.

    `items` maps names to vectors; the nearest one counts, and ties are by name.
    """
    scored = [(name, max(score(distance, query, one) for one in rows)) for name, rows in items.items() if len(rows)]
    return sorted(scored, key=lambda one: (-one[1], one[0]))[:most]


MODEL = Model()
"""A model that a command can load by its name."""
