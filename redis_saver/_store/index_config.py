"""The configuration of a store's index, in LangGraph's form."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from langgraph.store.base import IndexConfig

from redis_saver._common import config as configs
from redis_saver._common.display import shown

if TYPE_CHECKING:
    from redis_saver._store.embedding import Embedder

Distance: TypeAlias = Literal["cosine", "inner_product", "l2"]
"""What makes two vectors near, named as LangGraph names it."""
_KEYS = ("dims", "embed", "fields", "distance_type")


class RedisIndexConfig(IndexConfig, total=False):
    """LangGraph's `IndexConfig` (`dims`, `embed`, `fields`), and what scores are."""

    distance_type: Distance
    """`cosine` (default): the cosine of the angle; `inner_product`; `l2`: the Euclidean distance times -1. The greater a score, the nearer."""


def load(given: RedisIndexConfig | IndexConfig | None) -> Embedder | None:
    """Check the configuration of an index, and load what it needs; None if there is none.

    Raises:
        ImportError: numpy is not installed.
        TypeError, ValueError: It makes no sense.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(
            f"index={shown(given)}: write a dict, such as {{'dims': 1536, 'embed': 'openai:text-embedding-3-small'}}"
        )
    _check(given)
    try:
        import_module("numpy")
    except ImportError as error:
        raise ImportError("index= needs the extra: pip install 'redis-saver[vectors]'") from error
    from redis_saver._store.embedding import Embedder  # noqa: PLC0415 - it imports numpy

    return Embedder(given)


def _check(given: Mapping[str, Any]) -> None:
    for name in given:
        if name not in _KEYS:
            raise ValueError(f"index={shown(list(given))}: {shown(name)} is unknown; known are {' '.join(_KEYS)}")
    for name in ("dims", "embed"):
        if given.get(name) is None:
            raise ValueError(f"index={shown(list(given))}: {name} is missing")
    configs.number("index['dims']", given["dims"], 1, whole=True)
    check_paths("index['fields']", given.get("fields"))
    if (distance := given.get("distance_type", "cosine")) not in get_args(Distance):
        raise ValueError(f"index['distance_type']={shown(distance)}: write one of {' '.join(get_args(Distance))}")


def check_paths(name: str, paths: Any) -> None:
    """Check a list of paths to texts; None is none.

    Raises:
        TypeError: It is none.
    """
    if paths is not None and not (
        isinstance(paths, (list, tuple)) and all(isinstance(path, str) and path for path in paths)
    ):
        raise TypeError(f"{name}={shown(paths)}: write a list of paths, such as ['text', 'messages[*].content']")
