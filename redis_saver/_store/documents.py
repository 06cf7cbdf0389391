"""Documents: hashes by which the server's own index finds vectors, where a store has it rank (`search="server"`).

The scripts that store, refresh and remove the vectors of an item do so with its document, too, whichever store calls them: who does not know that there are
documents is told (DOCUMENTED). A document is a hint, never an answer: it leads to an item, and what counts is what the partition has of that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from redis_saver._common.store_names import Partition, member
from redis_saver._store.places import namespace_and_key

ZERO = b"zero"
"""What documents with a vector of length 0 are under, too (`lua/lib/documents.lua`)."""


def tag(labels: Sequence[str]) -> bytes:
    """What stands for a namespace in documents: no label can be read in a query as anything else."""
    return hashlib.sha256(member(tuple(labels))).hexdigest()[:32].encode()


def under(partition: Partition, field: bytes) -> bytes:
    """The tags of the namespaces that an item is in or below."""
    namespace, _ = namespace_and_key(partition, field)
    return b",".join([tag(namespace[:many]) for many in range(1, len(namespace) + 1)])
