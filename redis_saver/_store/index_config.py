"""Configuration of a store's index in LangGraph's form, and the texts to embed. Needs no numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from langgraph.store.base import IndexConfig

from redis_saver._common import config, names
from redis_saver._common.display import shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Distance: TypeAlias = Literal["cosine", "inner_product", "l2"]
"""Measure of the distance of two vectors, by LangGraph's names."""
SearchedBy: TypeAlias = Literal["process", "server"]
"""Side that compares vectors."""
Algorithm: TypeAlias = Literal["flat", "hnsw"]
"""Algorithm of the server's index."""
_OF_SERVER = ("algorithm", "vectors_per_item")
_WORDS = {"distance_type": get_args(Distance), "search": get_args(SearchedBy), "algorithm": get_args(Algorithm)}
"""Allowed words of these settings. The first is the default."""
_KEYS = ("dims", "embed", "fields", "text_fields", "distance_type", "search", *_OF_SERVER)
MAX_VECTORS_PER_ITEM = 64
WHOLE = "$"
"""The path of a whole value."""


class RedisIndexConfig(IndexConfig, total=False):
    """LangGraph's `IndexConfig` (`dims`, `embed`, `fields`), with the score and the side that compares vectors."""

    text_fields: list[str] | None
    """Another name of `fields`, that of LangGraph's SqliteStore."""
    distance_type: Distance
    """`cosine` (default) is the cosine of the angle; `l2` is the Euclidean distance times -1; or `inner_product`. A
    greater score is nearer."""
    search: SearchedBy
    """`process` (default): each process compares all vectors, on any server. `server`: the server's module for vector
    search finds candidates, which the process compares."""
    algorithm: Algorithm
    """With `search="server"`: `flat` (default) compares all vectors, and `hnsw` only some of them, along a graph."""
    vectors_per_item: int
    """With `search="server"`: maximum number of vectors of an item. Default: the number of `fields`, or 1. A put of an
    item with more is refused."""


class ServerIndex(NamedTuple):
    """An index of vectors that the server has."""

    algorithm: Algorithm
    distance: Distance
    dims: int
    vectors_per_item: int

    def name(self, prefix: str) -> bytes:
        """Return the name of the index. It contains all settings, so that other settings make another index."""
        return names.encode(
            f"{prefix}:store:documents:{self.algorithm}:{self.distance}:{self.dims}:{self.vectors_per_item}"
        )


def checked(index: RedisIndexConfig | IndexConfig) -> dict[str, Any]:
    """Check the configuration of an index. Return it with `fields` as a list, and without `text_fields`.

    Raises:
        TypeError, ValueError: It is invalid.
    """
    if not isinstance(index, Mapping):
        raise TypeError(
            f"index={shown(index)}: write a dict, such as {{'dims': 1536, 'embed': 'openai:text-embedding-3-small'}}"
        )
    settings = _normalized(index)
    _check(settings)
    return settings


def _normalized(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with `fields` as a list, and without `text_fields`, the name of SqliteStore."""
    index = dict(config)
    fields, others = index.get("fields"), index.pop("text_fields", None)
    others = [others] if isinstance(others, str) else others
    if fields and others and fields != others:
        raise ValueError(
            f"index: 'text_fields'={shown(others)} is another name of 'fields'={shown(fields)}: leave one of them out"
        )
    return {**index, "fields": fields or others or [WHOLE]}


def _check(index: Mapping[str, Any]) -> None:
    for name in index:
        if name not in _KEYS:
            raise ValueError(f"index={shown(list(index))}: {shown(name)} is unknown; known are {' '.join(_KEYS)}")
    for name in ("dims", "embed"):
        if index.get(name) is None:
            raise ValueError(f"index={shown(list(index))}: {name} is missing")
    config.number("index['dims']", index["dims"], 1, whole=True)
    check_paths("index['fields']", index.get("fields"))
    for name, words in _WORDS.items():
        if (word := index.get(name, words[0])) not in words:
            raise ValueError(f"index[{name!r}]={shown(word)}: write one of {' '.join(words)}")
    for name in _OF_SERVER:
        if name in index and index.get("search") != "server":
            raise ValueError(
                f"index[{name!r}] is a setting of the server's index: add 'search': 'server', or leave it out"
            )
    most = MAX_VECTORS_PER_ITEM  # each search asks for each of them
    config.number("index['vectors_per_item']", index.get("vectors_per_item", 1), 1, whole=True, most=most)


def server_index(index: Mapping[str, Any]) -> ServerIndex | None:
    """Return the server's index of a checked configuration, or None if the process compares vectors."""
    if index.get("search") != "server":
        return None
    many = index.get("vectors_per_item") or min(len(index["fields"]), MAX_VECTORS_PER_ITEM)
    return ServerIndex(index.get("algorithm", "flat"), index.get("distance_type", "cosine"), index["dims"], many)


def check_paths(name: str, paths: Any) -> None:
    """Check a list of paths to texts. None means that there are none.

    Raises:
        TypeError: It is not a list of paths.
    """
    if paths is not None and not (
        isinstance(paths, (list, tuple)) and all(isinstance(path, str) and path for path in paths)
    ):
        raise TypeError(f"{name}={shown(paths)}: write a list of paths, such as ['text', 'messages[*].content']")


class Texts:
    """Texts of operations, each once, and their vectors.

    Embedding is I/O, which operations do not do. So making an operation checks its arguments and adds its texts here.
    The store embeds them (`vectors.Embedder`). When the operation runs, it takes the vectors from here.
    """

    __slots__ = ("documents", "queries", "vectors")

    def __init__(self) -> None:
        """Start empty."""
        self.documents: dict[str, int] = {}
        """Texts of items, each with its row in `vectors`."""
        self.vectors: NDArray[np.float32] | None = None
        self.queries: dict[str, NDArray[np.float64] | None] = {}
        """Queries with their vectors."""

    def __bool__(self) -> bool:
        """True if there is anything to embed."""
        return bool(self.documents or self.queries)

    def note(self, documents: Iterable[str]) -> None:
        """Add the texts of an item."""
        for text in documents:
            self.documents.setdefault(text, len(self.documents))

    def rows(self, documents: Iterable[str]) -> NDArray[np.float32]:
        """Return the vectors of an item's texts."""
        assert self.vectors is not None  # noqa: S101 - they are embedded before an operation runs
        return self.vectors[[self.documents[text] for text in documents]]

    def vector(self, query: str) -> NDArray[np.float64]:
        """Return the vector of a query."""
        vector = self.queries[query]
        assert vector is not None  # noqa: S101
        return vector
