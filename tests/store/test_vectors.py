"""Vectors in a process's memory, without a server. The search is exact, and an index never changes."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from tests.support.embedding import best
from tests.support.seeds import seeds

from redis_saver._store import vectors
from redis_saver._store.vectors import VectorIndex

pytestmark = pytest.mark.also_on(cluster="sync", redis62="async", fakeredis="async")

DISTANCES = ["cosine", "inner_product", "l2"]


def name(number: int) -> bytes:
    return b"%05d" % number


def index_of(rows: Any) -> VectorIndex:
    """Return an index with one vector per item."""
    return VectorIndex(rows.shape[1]).changed((), {name(n): rows[n : n + 1] for n in range(len(rows))})


def unique(field: bytes) -> bytes:
    return field


def random_rows(random: Any, count: int, dims: int) -> Any:
    return random.standard_normal((count, dims), dtype=np.float32)


def clustered_rows(random: Any, count: int, dims: int) -> Any:
    """Return a hundred tight clusters with duplicates, so that there are ties and near ties."""
    centers = random.standard_normal((100, dims))
    rows = centers[random.integers(0, 100, count)] + 0.01 * random.standard_normal((count, dims))
    rows[::20] = rows[1::20]
    return rows.astype(np.float32)


@pytest.mark.random
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("kind", [random_rows, clustered_rows])
@pytest.mark.parametrize("seed", seeds(range(1)))
def test_results_equal_brute_force_in_float64(kind: Any, distance: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = kind(random, 20_000, 96)
    index, wide = index_of(rows), rows.astype(np.float64)
    for query in (random.standard_normal(96), wide[7], wide[8] + 0.001 * random.standard_normal(96), 1e6 * wide[9]):
        products, lengths = wide @ query, np.linalg.norm(wide, axis=1)
        scores = {
            "cosine": lambda: products / lengths / np.linalg.norm(query),
            "inner_product": lambda: products,
            "l2": lambda: -np.linalg.norm(wide - query, axis=1),
        }[distance]()
        found = index.search(query, 100, distance, unique)
        size = float(np.abs(scores).max())
        assert np.allclose([one.score for one in found], np.sort(scores)[::-1][:100], rtol=0, atol=1e-12 * size)
        assert all(abs(one.score - scores[int(one.field)]) <= 1e-12 * size for one in found)
        assert found == sorted(found, key=lambda one: (-one.score, one.field)), "ties are by field"
        for most in (1, 10):
            assert index.search(query, most, distance, unique) == found[:most], (
                "a search with a lower limit gives the first of these"
            )


@pytest.mark.parametrize("distance", DISTANCES)
def test_near_ties_in_float32_are_ordered_by_float64(distance: Any) -> None:
    random = np.random.default_rng(2)
    rows = np.float32(random.standard_normal(200) + 1e-6 * random.standard_normal((2000, 200)))
    index, query = index_of(rows), random.standard_normal(200)
    found = [score for score, _ in index.search(query, 10, distance, unique)]
    assert np.ptp(np.float32(found)) < 2e-6 * abs(found[0]), "the scores are nearly equal"
    wanted = best(distance, query.tolist(), {name(n): rows[n : n + 1] for n in range(2000)}, 10)
    assert np.allclose(found, [score for _, score in wanted], rtol=1e-13, atol=0)


@pytest.mark.random
@pytest.mark.parametrize("seed", seeds(range(8)))
def test_random_changes_match_a_model(seed: int) -> None:
    """Items have several vectors or none, and return after removal. Earlier indexes stay unchanged."""
    random = np.random.default_rng(seed)
    index, model = VectorIndex(12), dict[bytes, Any]()
    for _ in range(25):
        before, before_model = index, dict(model)
        given = {
            name(random.integers(0, 60)): random_rows(random, random.integers(0, 4), 12)
            for _ in range(random.integers(0, 20))
        }
        removed = [name(random.integers(0, 60)) for _ in range(random.integers(0, 15))]
        index = before.changed(removed, given)
        model = {field: rows for field, rows in model.items() if field not in removed} | given
        model = {field: rows for field, rows in model.items() if len(rows)}
        if random.random() < 0.3:
            other = before.changed((), {b"other": random_rows(random, 5, 12)})
            check(random, other, {**before_model, b"other": other_rows(other)})
        check(random, index, model)
        check(random, before, before_model)
    assert index.size < 100_000, "rows of removed items are dropped"


def other_rows(index: VectorIndex) -> Any:
    return index._gathered(np.arange(len(index._lengths) - 5, len(index._lengths)))


def check(random: Any, index: VectorIndex, model: dict[bytes, Any]) -> None:
    assert set(index) == set(model) and len(index) == len(model)
    query, most = random.standard_normal(12), int(random.integers(0, 25))
    step = int(random.integers(1, 9))
    allowed = None if step == 1 else [name(number) for number in range(0, 60, step)]
    within = model if allowed is None else {field: rows for field, rows in model.items() if field in allowed}
    for distance in DISTANCES:
        found = index.search(query, most, distance, unique, allowed)
        wanted = best(distance, query.tolist(), within, most)
        assert [one.field for one in found] == [field for field, _ in wanted]
        assert np.allclose([one.score for one in found], [score for _, score in wanted])


@pytest.mark.parametrize("distance", DISTANCES)
def test_equal_vectors_have_equal_scores_in_any_block(monkeypatch: pytest.MonkeyPatch, distance: Any) -> None:
    """Each copy lies at another place of a block, and reaches the second pass with other rows."""
    monkeypatch.setattr(vectors, "BLOCK_BYTES", 2**16)
    random = np.random.default_rng(1)
    rows = random_rows(random, 3000, 33)
    copies = list(range(5, 3000, 13))
    rows[copies] = rows[5]
    index = VectorIndex(33)
    for start in range(0, 3000, 37):
        index = index.changed((), {name(n): rows[n : n + 1] for n in range(start, min(3000, start + 37))})
    assert len(index._blocks) > 5
    for query in (rows[5].astype(np.float64), rows[5] + 0.1 * random.standard_normal(33)):
        found = index.search(query, 3 * len(copies), distance, unique)
        same = [one for one in found if int(one.field) in copies]
        assert len({one.score for one in same}) == 1 and [int(one.field) for one in same] == copies
        few = index.search(query, 10, distance, unique, [name(n) for n in copies[-20:]])
        assert [one.score for one in few] == [same[0].score] * 10


def test_zero_vectors_have_cosine_0() -> None:
    index = VectorIndex(2).changed((), {b"zero": np.zeros((1, 2), np.float32), b"far": np.array([[-1, 0]], np.float32)})
    assert index.search(np.array([1.0, 0.0]), 2, "cosine", unique) == [(0.0, b"zero"), (-1.0, b"far")]
    assert index.search(np.zeros(2), 2, "cosine", unique) == [(0.0, b"far"), (0.0, b"zero")]


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("length", [vectors.MIN_LENGTH * 2, 1e-8, 1e8, vectors.MAX_LENGTH / 2])
def test_vectors_of_any_allowed_length_are_compared(distance: Any, length: float) -> None:
    random = np.random.default_rng(3)
    rows = random_rows(random, 500, 20)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True) * length).astype(np.float32)
    query = rows[3].astype(np.float64) * 0.9
    assert [one.field for one in index_of(rows).search(query, 5, distance, unique)] == [
        field for field, _ in best(distance, query.tolist(), {name(n): rows[n : n + 1] for n in range(500)}, 5)
    ]


def test_an_index_stays_unchanged_while_os_threads_derive_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The OS threads also merge its blocks."""
    monkeypatch.setattr(vectors, "BLOCK_BYTES", 4096)
    first = index_of(random_rows(np.random.default_rng(4), 9, 16))
    made: dict[int, VectorIndex] = {}

    def write(number: int) -> None:
        index = first
        for step in range(30):
            rows = np.full((1, 16), number * 100 + step + 1, np.float32)
            index = index.changed((), {b"%d-%d" % (number, step): rows})
        made[number] = index

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, index in made.items():
        assert len(index) == 39
        found = index.search(np.full(16, 1.0), 30, "inner_product", unique)
        assert [one.score for one in found] == [16.0 * (number * 100 + step) for step in range(30, 0, -1)]
    assert len(first) == 9 == len(first.search(np.ones(16), 100, "l2", unique))


def test_memory_stays_bounded_over_many_updates() -> None:
    random = np.random.default_rng(5)
    index = index_of(random_rows(random, 1000, 64))
    size = index.size
    for _ in range(300):
        index = index.changed((), {name(n): random_rows(random, 1, 64) for n in random.integers(0, 1000, 10).tolist()})
    gc.collect()
    assert len(index) == 1000 and index.size < 3.5 * size


def test_a_selective_filter_limits_the_rows_of_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(random_rows(np.random.default_rng(6), 5000, 8))
    gathered: list[int] = []
    gather = VectorIndex._gathered
    monkeypatch.setattr(
        VectorIndex, "_gathered", lambda self, rows: (gathered.append(len(rows)), gather(self, rows))[1]
    )
    assert len(index.search(np.ones(8), 5, "l2", unique, map(name, range(0, 5000, 50)))) == 5
    assert gathered[0] == 100 and gathered[1] < 20
