"""Vectors: embedding, stored form, index in memory, and exact search. Needs numpy (extra `vectors`).

A search has two passes. The first multiplies all rows with the query in float32, as fast as memory is read. Its error
has a known bound. The second computes the scores of all items that may be among the best within that bound, in float64.
So the result is the same as if all scores were computed in float64.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from langgraph.store.base import ensure_embeddings, get_text_at_path, tokenize_path
from numpy.typing import NDArray

from redis_saver._common import limits, names
from redis_saver._common.display import counted, kind_of, printable, shown
from redis_saver._common.store_names import Partition, namespace_and_key
from redis_saver._storage import framing
from redis_saver._storage.context import Context
from redis_saver._storage.sealing import ENCRYPTED, SEALED
from redis_saver._store.index_config import WHOLE, Distance, Texts, check_paths, server_index
from redis_saver._store.items import seal, unseal
from redis_saver.errors import IsEncrypted, decoding_item, encoding

Rows: TypeAlias = NDArray[np.float32]
"""Vectors as rows: `(vectors, dims)`."""
Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.intp]

MIN_LENGTH, MAX_LENGTH = 1e-15, 1e15
"""Minimum and maximum length of a vector, so that products stay in the range of float32. Embeddings have a length of
about 1."""
BLOCK_BYTES = 2**25
"""Maximum size of a merged block of rows, and of the float64 rows that the second pass compares at a time."""
SPARSE = 4
"""If a search is limited to fewer than one row in 4, these rows are copied, and other rows are not read."""
WASTE = 3
"""If more than one row in 3 is unused, the other rows are copied into a new block."""
_ROUNDING = 2.0**-24
"""Relative rounding error of float32."""
_STORED = np.dtype("<f4")


class Scored(NamedTuple):
    """An item with its score."""

    score: float
    """Cosine similarity, inner product, or (for l2) the distance times -1. Greater is nearer. An item with several
    vectors has the score of the nearest one."""
    field: bytes


def lengths(rows: Rows) -> Floats:
    """Return the Euclidean length of each row. It does not depend on the other rows."""
    wide = rows.astype(np.float64)
    result: Floats = np.sqrt((wide * wide).sum(axis=1))
    return result


class VectorIndex:
    """Vectors of items at one moment.

    An index is never changed. `changed` makes another one, which shares the memory of the rows that stay.
    """

    def __init__(self, dims: int) -> None:
        """Make an empty index of vectors of `dims` dimensions."""
        self.dims = dims
        self._blocks: list[Rows] = []
        """Rows. A block is never changed."""
        self._lengths: Floats = np.zeros(0)
        """Length of each row."""
        self._fields: list[bytes] = []
        """Field of the item of each row, including removed ones."""
        self._alive = np.zeros(0, np.bool_)
        """For each row: true if its item is present, and has this row."""
        self._numbers: dict[bytes, range] = {}
        """Row numbers of each present item, in ascending order."""
        self._most = 0
        """Maximum number of rows of an item."""

    def __len__(self) -> int:
        """Return the number of items with vectors."""
        return len(self._numbers)

    def __contains__(self, field: bytes) -> bool:
        """True if an item has vectors."""
        return field in self._numbers

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the fields of the items with vectors."""
        return iter(self._numbers)

    @property
    def size(self) -> int:
        """Approximate memory in bytes."""
        return sum(block.nbytes for block in self._blocks) + 150 * len(self._fields) + self._lengths.nbytes

    # -- changes

    def changed(self, removed: Iterable[bytes], changes: Mapping[bytes, Rows]) -> VectorIndex:
        """Return an index with these changes.

        Args:
            removed: Fields of items to remove. They need not be in the index.
            changes: All vectors of each changed item by field, `(k, dims)`. k may be 0.
        """
        alive, numbers, new = self._alive.copy(), dict(self._numbers), VectorIndex(self.dims)
        for field in (*removed, *changes):
            if (gone := numbers.pop(field, None)) is not None:
                alive[gone.start : gone.stop] = False
        living = np.flatnonzero(alive)
        if WASTE * (len(alive) - len(living)) <= len(alive):
            new._fields, new._numbers, new._alive = list(self._fields), numbers, alive
            new._lengths, new._blocks, new._most = self._lengths, self._blocks, self._most
        elif len(living):
            new._append({field: len(rows) for field, rows in numbers.items()}, self._gathered(living))
        if added := {field: rows for field, rows in changes.items() if len(rows)}:
            new._append({field: len(rows) for field, rows in added.items()}, np.concatenate(list(added.values())))
        return new

    def _append(self, counts: Mapping[bytes, int], rows: Rows) -> None:
        """Append the rows of new items. The last blocks are merged while they have similar sizes, so they stay few."""
        for field, count in counts.items():
            self._numbers[field] = range(len(self._fields), len(self._fields) + count)
            self._fields += [field] * count
            self._most = max(self._most, count)
        self._alive = np.concatenate([self._alive, np.ones(len(rows), np.bool_)])
        self._lengths = np.concatenate([self._lengths, lengths(rows)])
        blocks = [*self._blocks, rows]
        while len(blocks) > 1 and len(blocks[-2]) < 2 * len(blocks[-1]):
            *others, left, right = blocks
            if left.nbytes + right.nbytes > BLOCK_BYTES:
                break
            blocks = [*others, np.concatenate([left, right])]
        self._blocks = blocks

    def _gathered(self, rows: Integers) -> Rows:
        """Return copies of rows by their ascending numbers."""
        parts, begin, first = [], 0, 0
        for block in self._blocks:
            end = int(np.searchsorted(rows, first + len(block)))
            parts.append(block[rows[begin:end] - first])
            begin, first = end, first + len(block)
        return np.concatenate(parts)

    # -- search

    def search(
        self,
        query: Floats,
        most: int,
        distance: Distance,
        order: Callable[[bytes], Any],
        among: Iterable[bytes] | None = None,
    ) -> list[Scored]:
        """Return the items nearest to a query, best first.

        Args:
            query: A vector, `(dims,)`.
            most: Maximum number of items.
            distance: Measure of the score.
            order: Sort key of a field, for items with the same score.
            among: Fields of the items that may be found, each once, or None for all. Items without vectors are skipped.
        """
        query, length = _scaled(query, distance)
        rows = np.flatnonzero(self._alive)
        if among is not None:
            rows = np.array(sorted([row for field in among for row in self._numbers.get(field, ())]), np.intp)
        if most <= 0 or not len(rows):
            return []
        rows = self._candidates(query, length, rows, most * self._most, distance)
        best: dict[bytes, float] = {}
        for row, score in zip(rows.tolist(), self._exact(query, rows, distance), strict=True):
            field = self._fields[row]
            best[field] = max(score, best.get(field, score))
        result = [Scored(score, field) for field, score in best.items()]
        result.sort(key=lambda scored: (-scored.score, order(scored.field)))
        return result[:most]

    def _candidates(self, query: Floats, length: float, rows: Integers, most: int, distance: Distance) -> Integers:
        """Return the rows that may be among the `most` best ones. The upper bound of any other row is too low.

        `most` rows belong to as many items as the search wants, or to more.
        """
        if most >= len(rows):
            return rows
        narrow = query.astype(np.float32)
        if SPARSE * len(rows) < len(self._fields):
            products = self._gathered(rows) @ narrow
        else:
            products = np.concatenate([block @ narrow for block in self._blocks])[rows]
        scores, errors = self._rough(products, self._lengths[rows], length, distance)
        low = scores - errors
        best: Integers = rows[scores + errors >= np.partition(low, len(low) - most)[len(low) - most]]
        return best

    def _rough(self, products: Rows, long: Floats, length: float, distance: Distance) -> tuple[Floats, Floats | float]:
        """Return scores from products in float32, and bounds of their errors.

        The scores of l2 are other numbers in the same order.
        """
        # A sum of n products errs by at most n roundings, in any order; 8 more for roundings before and after it.
        error = length * (self.dims + 8) * _ROUNDING
        if distance == "cosine":
            return products / np.where(long > 0, long, 1.0), error
        if distance == "inner_product":
            return products.astype(np.float64), error * long
        squares = long * long
        return 2.0 * products - squares, (2.0 * error) * long + _ROUNDING * squares

    def _exact(self, query: Floats, rows: Integers, distance: Distance) -> list[float]:
        """Compute the scores of rows in float64."""
        scores: list[float] = []
        step = max(1, BLOCK_BYTES // (8 * self.dims))
        for start in range(0, len(rows), step):
            window = rows[start : start + step]
            scores += _scores(self._gathered(window), self._lengths[window], query, distance).tolist()
        return scores


def _scaled(query: Floats, distance: Distance) -> tuple[Floats, float]:
    """Return the query, scaled to the length 1 for cosines, and its length."""
    length = float(np.sqrt((query * query).sum()))
    return (query / length, 1.0) if distance == "cosine" and length > 0 else (query, length)


def _scores(rows: Rows, long: Floats, query: Floats, distance: Distance) -> Floats:
    """Compute the scores of rows in float64.

    Each row is computed separately (unlike in BLAS), so equal vectors have equal scores.
    """
    if distance == "l2":
        apart = rows - query
        apart *= apart
        distances: Floats = np.sqrt(apart.sum(axis=1))
        return -distances
    products: Floats = (rows * query).sum(axis=1)
    if distance == "inner_product":
        return products
    cosines: Floats = np.divide(products, long, out=np.zeros_like(products), where=long > 0)
    return np.clip(cosines, -1.0, 1.0)


# -- embedding


class Embedder:
    """A store's index: paths to texts, the model, and the stored form of vectors."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Take a configuration that was checked.

        Raises:
            ImportError, ValueError: The embedding model cannot be loaded by its name.
        """
        self.config: Any = config
        self.dims: int = config["dims"]
        self.distance: Distance = config.get("distance_type", "cosine")
        self.embeddings = ensure_embeddings(config["embed"])
        self.fields = _tokenized(config["fields"])
        self.server = server_index(config)
        """The server's own index, or None if the process compares vectors."""
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
            ValueError: The server's index has no room for this number of vectors.
        """
        if paths is False:
            return []
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
        """Embed texts: one call for the texts of all items, and one for each query.

        Raises:
            ValueError: The model did not return vectors of `dims` numbers.
        """
        if texts.documents:
            texts.vectors = self._rows(self.embeddings.embed_documents(list(texts.documents)), len(texts.documents))
        for query in texts.queries:
            texts.queries[query] = self._query(self.embeddings.embed_query(query))

    async def aembed(self, texts: Texts) -> None:
        """`embed` for asyncio. The calls run concurrently."""
        documents, queries = list(texts.documents), list(texts.queries)
        calls: list[Any] = [self.embeddings.aembed_query(query) for query in queries]
        if documents:
            calls.append(self.embeddings.aembed_documents(documents))
        answers = await asyncio.gather(*calls)
        if documents:
            texts.vectors = self._rows(answers.pop(), len(documents))
        for query, answer in zip(queries, answers, strict=True):
            texts.queries[query] = self._query(answer)

    def _query(self, vector: Any) -> Floats:
        return np.asarray(self._rows([vector], 1)[0], np.float64)

    def _rows(self, vectors: Any, count: int) -> Rows:
        """Check and convert the answer of an embedding function.

        Raises:
            ValueError: The answer is not `count` vectors, or they cannot be searched.
        """
        try:
            return _converted(vectors, count, self.dims)
        except (TypeError, ValueError) as error:
            asked = f"the embedding function was given {counted(count, 'text')}"
            raise ValueError(f"{asked}, and answered {error}. Nothing was written") from error

    def score(self, rows: Rows, query: Floats) -> float:
        """Compute the score of an item's vectors, as the exact search does."""
        query, _ = _scaled(query, self.distance)
        return float(_scores(rows, lengths(rows), query, self.distance).max())

    # -- vectors as they are stored

    def encode(self, context: Context, partition: Partition, field: bytes, put: bytes, rows: Rows) -> bytes:
        """Encode the vectors of an item: the dimensions, a frame of the serializer's type, the serializer's bytes."""
        namespace, key = namespace_and_key(partition, field)
        with encoding("the vectors of item {!r} of namespace {!r}", key, namespace):
            type_name, data = context.serde.dumps_typed(rows.astype(_STORED).tobytes())
        kind = names.encode(type_name)
        return b"%d %b" % (self.dims, seal(context, field, put, framing.pack([kind]) + data, b"vectors"))

    def decode(self, context: Context, partition: Partition, field: bytes, put: bytes, stored: bytes) -> Rows:
        """Decode the vectors of an item. Returns an empty array if nothing is stored.

        Raises:
            DecodeError: The bytes are not vectors of this index, or the dimensions differ.
        """
        if not stored:
            return np.zeros((0, self.dims), np.float32)
        namespace, key = namespace_and_key(partition, field)
        with decoding_item("the vectors of item {!r} of namespace {!r}", key, namespace):
            return self._decoded(context, field, put, stored)

    def _decoded(self, context: Context, field: bytes, put: bytes, stored: bytes) -> Rows:
        dims, _, framed = stored.partition(b" ")
        if dims != b"%d" % self.dims:
            raise ValueError(
                f"they have {printable(dims.decode('ascii', 'replace'))} dimensions, and index['dims'] says "
                f"{self.dims}: another model made them. Put the items again, or give the store another prefix"
            )
        framed = unseal(context, field, put, framed, b"vectors")
        kind, start = framing.first(framed)
        if kind.endswith(SEALED):
            raise IsEncrypted(ENCRYPTED)
        data = context.serde.loads_typed((names.decode(kind), framed[start:]))
        if not isinstance(data, bytes):
            raise ValueError(f"they are {kind_of(data)}, and not bytes")  # noqa: TRY004 - it becomes a DecodeError
        rows: Rows = np.frombuffer(data, _STORED).astype(np.float32, copy=False).reshape(-1, self.dims)
        if not len(rows):
            raise ValueError("there is none")
        if (wrong := _unusable(rows)) is not None:
            raise ValueError(f"there is one {wrong}")
        return rows


def _tokenized(paths: Sequence[str]) -> list[str | list[str]]:
    return [path if path == WHOLE else tokenize_path(path) for path in paths]


def _converted(vectors: Any, count: int, dims: int) -> Rows:
    try:
        with np.errstate(over="ignore"):  # numbers that are too large become infinity
            rows: Rows = np.asarray(vectors, np.float64).astype(np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"vectors that are not lists of numbers, or have different lengths: {error}") from error
    if rows.shape != (count, dims):
        raise ValueError(
            f"vectors of the shape {rows.shape}, and not {(count, dims)}: index['dims'] must be the model's"
        )
    if (wrong := _unusable(rows)) is not None:
        raise ValueError(f"a vector {wrong}")
    return rows


def _unusable(rows: Rows) -> str | None:
    """Describe the first fault of these vectors. None if there is none."""
    if not np.isfinite(rows).all():
        return "with NaN or infinity in it"
    long = lengths(rows)
    wrong = long[(long != 0) & ((long < MIN_LENGTH) | (long > MAX_LENGTH))]
    if len(wrong):
        return f"of length {wrong[0]:.3g}; between {MIN_LENGTH:g} and {MAX_LENGTH:g} it can be compared, or at 0"
    return None
