"""The texts that operations need vectors of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis_saver._store.vectors import Floats, Rows


class Texts:
    """The texts of some operations, each once; and their vectors, when they are embedded.

    Operations do no I/O, and to embed is I/O. So to make an operation notes its texts here, and finds what is wrong with its arguments; then the store has
    them embedded (`embedding.Embedder`), which finds what is wrong with a vector; and then the operation runs, which finds the vectors here.
    """

    __slots__ = ("documents", "queries", "vectors")

    def __init__(self) -> None:
        """Begin with none."""
        self.documents: dict[str, int] = {}
        """The texts of items, each with its place in `vectors`."""
        self.vectors: Rows | None = None
        self.queries: dict[str, Floats | None] = {}
        """The queries with their vectors."""

    def __bool__(self) -> bool:
        """Whether there is anything to embed."""
        return bool(self.documents or self.queries)

    def note(self, documents: Iterable[str]) -> None:
        """Note texts of an item."""
        for text in documents:
            self.documents.setdefault(text, len(self.documents))

    def rows(self, documents: Iterable[str]) -> Rows:
        """The vectors of texts of an item."""
        assert self.vectors is not None  # noqa: S101 - they are embedded before an operation runs
        return self.vectors[[self.documents[text] for text in documents]]

    def vector(self, query: str) -> Floats:
        """The vector of a query."""
        vector = self.queries[query]
        assert vector is not None  # noqa: S101
        return vector
