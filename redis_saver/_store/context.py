"""What every operation needs to know of the store it works for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from redis_saver._common.store_names import StoreKeyspace
from redis_saver._storage.context import Context
from redis_saver._store.places import Places
from redis_saver._store.remembered import Remembered

if TYPE_CHECKING:
    from redis_saver._store.embedding import Embedder


class StoreContext(NamedTuple):
    """A store on one server, as its operations see it."""

    values: Context
    """The settings that it has in common with a saver: of values, limits, encryption."""
    keyspace: StoreKeyspace
    places: Places
    remembered: Remembered
    """Pages and mirrors."""
    reads_plain: bool
    """Whether a read may be a command, where that is exact. Not with `require_primary`, which scripts guard; nor in a cluster, whose client may send it to a replica."""
    is_replicated: bool
    """Whether writes wait for replicas: then each is sent alone."""
    embedder: Embedder | None = None
    """What is embedded, and how vectors are compared; None: nothing is."""

    @property
    def has_documents(self) -> bool:
        """Whether items get documents, for the server's own index of vectors."""
        return self.embedder is not None and self.embedder.server is not None
