"""Texts of items, embedding them, and the stored form of vectors. Needs numpy (extra `vectors`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from langgraph.store.base import ensure_embeddings, get_text_at_path, tokenize_path

from redis_saver._common import limits, names
from redis_saver._common.display import kind_of, printable, shown
from redis_saver._storage import encryption
from redis_saver._storage.context import Context
from redis_saver._storage.framing import first
from redis_saver._store.index_config import Distance, Texts, check_paths, server_index
from redis_saver._store.vectors import MAX_LENGTH, MIN_LENGTH, Floats, Rows, VectorIndex, lengths
from redis_saver.errors import encoding

_WHOLE = "$"
"""The path of a whole value."""
_STORED = np.dtype("<f4")


class Embedder:
    """Index of a store: its paths to texts, its model, and the form in which vectors are stored and compared."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Take a configuration that was checked.

        Raises:
            ImportError, ValueError: The embedding model cannot be loaded by its name.
        """
        self.dims: int = config["dims"]
        self.distance: Distance = config.get("distance_type", "cosine")
        self.embeddings = ensure_embeddings(config["embed"])
        self.fields = _tokenized(config.get("fields") or [_WHOLE])
        self.server = server_index(config)
        """The server's own index; None if the process compares vectors."""
        self.nothing = VectorIndex(self.dims)
        """The index of a partition without vectors."""

    # -- texts

    def texts_of(self, context: Context, namespace: tuple[str, ...], key: str, value: Any, paths: Any) -> list[str]:
        """Return the texts of an item that are to be embedded.

        Args:
            context: The store's settings.
            namespace: Namespace of the item.
            key: Its key.
            value: Its value.
            paths: Paths of the put: None for those of the configuration, False for none, or a list.

        Raises:
            TypeError: `paths` is none of these.
            EncodeError: JSON does not know a part of a dict or list that is to be embedded as JSON.
            LimitExceeded: There would be too many vectors.
            ValueError: The server's index has no room for as many vectors.
        """
        if paths is False:
            return []
        if paths is True:
            raise TypeError("index=True: write None for the store's fields, False for none, or a list of paths")
        check_paths("index", paths)
        with encoding("the texts of item {!r} of namespace {!r}", key, namespace):
            texts = [
                text
                for path in (self.fields if paths is None else _tokenized(paths))
                for text in get_text_at_path(value, path)
            ]
        size = 4 * self.dims * len(texts)
        limits.check(context.limits, "value_bytes", size, "the vectors of item {!r} have {} bytes", key)
        if self.server is not None and len(texts) > self.server.vectors_per_item:
            raise ValueError(
                f"item {shown(key)} of namespace {shown(namespace)} has {len(texts)} texts to embed, and the server's "
                f"index has room for {self.server.vectors_per_item} vectors of an item. Nothing was written. "
                "Set index['vectors_per_item'] higher and call setup(), or embed fewer"
            )
        return texts

    # -- embedding

    def embed(self, texts: Texts) -> None:
        """Have texts embedded: one call for those of all items, one for each query.

        Raises:
            ValueError: The model did not answer such vectors.
        """
        if texts.documents:
            texts.vectors = self._rows(self.embeddings.embed_documents(list(texts.documents)), len(texts.documents))
        for query in texts.queries:
            texts.queries[query] = self._query(self.embeddings.embed_query(query))

    async def aembed(self, texts: Texts) -> None:
        """Have texts embedded on asyncio; the calls run concurrently."""
        documents, queries = list(texts.documents), list(texts.queries)
        rows, *answers = await asyncio.gather(
            self.embeddings.aembed_documents(documents) if documents else _nothing(),
            *[self.embeddings.aembed_query(query) for query in queries],
        )
        if documents:
            texts.vectors = self._rows(rows, len(documents))
        for query, answer in zip(queries, answers, strict=True):
            texts.queries[query] = self._query(answer)

    def _query(self, vector: Any) -> Floats:
        return np.asarray(self._rows([vector], 1)[0], np.float64)

    def _rows(self, vectors: Any, count: int) -> Rows:
        """Check and convert the answer of an embedding function.

        Raises:
            ValueError: It is not `count` vectors, or they cannot be searched.
        """
        asked = f"the embedding function was given {count} {'text' if count == 1 else 'texts'}"
        if not hasattr(vectors, "__len__") or not hasattr(vectors, "__iter__"):
            raise ValueError(f"{asked}, and answered {kind_of(vectors)}: it has to answer a list of vectors")
        if len(vectors) != count:
            raise ValueError(f"{asked}, and answered {len(vectors)} vectors. Nothing was written")
        for vector in vectors:
            if not hasattr(vector, "__len__"):
                raise ValueError(f"{asked}, and answered a vector of {kind_of(vector)}. Nothing was written")
            if (dims := len(vector)) != self.dims:
                raise ValueError(
                    f"{asked}, and answered a vector of {dims} dimensions, where index['dims'] says {self.dims}. "
                    "Nothing was written. Write the dimensions that the model has"
                )
        try:
            with np.errstate(over="ignore"):  # numbers that are too large become infinity
                rows: Rows = np.asarray(vectors, np.float64).astype(np.float32).reshape(count, self.dims)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{asked}, and answered vectors that are not of numbers: {error}. Nothing was written"
            ) from error
        if (wrong := _unusable(rows)) is not None:
            raise ValueError(f"{asked}, and answered a vector {wrong}. Nothing was written")
        return rows

    # -- vectors as they are stored

    def encode(self, context: Context, namespace: tuple[str, ...], key: str, rows: Rows) -> bytes:
        """Encode the vectors of an item: the dimensions, a frame of the serializer's type, the serializer's bytes."""
        with encoding("the vectors of item {!r} of namespace {!r}", key, namespace):
            type_name, data = context.serde.dumps_typed(rows.astype(_STORED).tobytes())
            encryption.check_written(context, type_name)
        kind = names.encode(type_name)
        return b"%d %d:%b%b" % (self.dims, len(kind), kind, data)

    def decode(self, context: Context, stored: bytes) -> Rows:
        """Decode the vectors of an item; an empty array if nothing is stored.

        Raises:
            ValueError: The bytes are no such vectors, or have other dimensions.
        """
        if not stored:
            return np.zeros((0, self.dims), np.float32)
        dims, _, framed = stored.partition(b" ")
        if dims != b"%d" % self.dims:
            raise ValueError(
                f"they have {printable(dims.decode('ascii', 'replace'))} dimensions, and index['dims'] says "
                f"{self.dims}: another model made them. Put the items again, or give the store another prefix"
            )
        kind, start = first(framed)
        encryption.check_read(context, kind)
        data = context.serde.loads_typed((names.decode(kind), framed[start:]))
        if not isinstance(data, bytes):
            raise ValueError(f"they are {kind_of(data)}, and not bytes")  # noqa: TRY004 - it becomes a DecodeError
        rows: Rows = np.frombuffer(data, _STORED).astype(np.float32, copy=False).reshape(-1, self.dims)
        if not len(rows):
            raise ValueError("there is none")
        if (wrong := _unusable(rows)) is not None:
            raise ValueError(f"there is one {wrong}")
        return rows


async def _nothing() -> list[Any]:
    return []


def _tokenized(paths: Sequence[str]) -> list[str | list[str]]:
    return [path if path == _WHOLE else tokenize_path(path) for path in paths]


def _unusable(rows: Rows) -> str | None:
    """Describe the first fault of these vectors; None if there is none."""
    if not np.isfinite(rows).all():
        return "with NaN or infinity in it"
    long = lengths(rows)
    wrong = long[(long != 0) & ((long < MIN_LENGTH) | (long > MAX_LENGTH))]
    if len(wrong):
        return f"of length {wrong[0]:.3g}; between {MIN_LENGTH:g} and {MAX_LENGTH:g} it can be compared, or at 0"
    return None
