"""The operations behind a tiered store's methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from langgraph.store.base import GetOp, ListNamespacesOp, Op, PutOp, Result, SearchOp

from redis_saver._common import ttl as ttls
from redis_saver._common.display import kind_of, shown
from redis_saver._common.store_names import Partition
from redis_saver._store.namespaces import check as check_listing
from redis_saver._store.searching import check as check_search
from redis_saver._tiered.requests import Tiered
from redis_saver._tiered_store import reading, searching, writing
from redis_saver._tiered_store.context import StoreTiers
from redis_saver._tiered_store.reading import Get, Reads, Search

METHODS: Mapping[type[Op], str] = {GetOp: "get", SearchOp: "search", ListNamespacesOp: "list_namespaces"}
"""LangGraph's methods that are a batch of one operation."""


def method_of(ops: Sequence[Op]) -> str:
    """What method of LangGraph's a batch was made by: its methods are batches of one."""
    if len(ops) != 1:
        return "batch"
    if isinstance(ops[0], PutOp):
        return "delete" if ops[0].value is None else "put"
    return METHODS.get(type(ops[0]), "batch")


def batch(tiers: StoreTiers, ops: Iterable[Op]) -> Tiered[list[Result]]:
    """Many operations; reads see what was there before the puts. The call itself checks the arguments, before anything is sent.

    Raises:
        TypeError, ValueError: An operation makes no sense.
    """
    given = list(ops)
    places, reads = tiers.hot.places, Reads()
    puts: list[PutOp] = []
    writes: dict[Partition, dict[bytes, PutOp]] = {}
    for position, op in enumerate(given):
        if isinstance(op, GetOp):
            place = places.of(op.namespace)
            fields = reads.gets.setdefault(place.partition, {})
            fields.setdefault(place.field(places.key(op.key)), []).append(Get(position, op))
        elif isinstance(op, PutOp):
            place = places.of(op.namespace) if op.value is None else places.to_put(op.namespace)
            _check_ttl(tiers, op)
            puts.append(op)
            writes.setdefault(place.partition, {})[place.field(places.key(op.key))] = op
        elif isinstance(op, SearchOp):
            labels, _ = check_search(op)
            if searching.may_be_hot(op):
                reads.searches.append(Search(position, op, places.of(labels)))
            else:
                reads.others.append((position, op))
        elif isinstance(op, ListNamespacesOp):
            check_listing(op)
            reads.others.append((position, op))
        else:
            raise TypeError(f"{kind_of(op)} is no operation of a store: GetOp, PutOp, SearchOp or ListNamespacesOp")
    return _batch(tiers, len(given), reads, puts, writes)


def _batch(
    tiers: StoreTiers, count: int, reads: Reads, puts: list[PutOp], writes: writing.Writes
) -> Tiered[list[Result]]:
    results: list[Result] = [None] * count
    yield from reading.run(tiers, reads, results)
    if puts:
        yield from writing.write(tiers, puts, writes)
    return results


def _check_ttl(tiers: StoreTiers, op: PutOp) -> None:
    if op.ttl is None:
        return
    if isinstance(op.ttl, bool) or not isinstance(op.ttl, (int, float)) or not 0 < op.ttl < float("inf"):
        raise ValueError(f"ttl={shown(op.ttl)}: the TTL of an item is a positive number of minutes, or None for none")
    ttls.parse({"default_ttl": op.ttl})
    if not tiers.ttl:
        raise ValueError(
            f"ttl={shown(op.ttl)}: hot has no TTL, so it might answer the item when cold has let it expire. Give the RedisStore a ttl=, of half of the shortest TTL "
            "in cold at the most"
        )
