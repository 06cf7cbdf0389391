"""Opens stores, and files of items, by their URLs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from redis_saver._client import urls
from redis_saver._migrate.item_endpoints import OurItems
from redis_saver._migrate.item_postgres import PostgresItems
from redis_saver._migrate.itemfile import FIRST_LINE, ItemFileSource, ItemFileTarget
from redis_saver._migrate.opening import needs, opening, serializer
from redis_saver._store.sync import RedisStore
from redis_saver.errors import EndpointError

STORE_FORMS = (
    "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster:// (ours), postgresql://... (LangGraph's PostgresStore), "
    "or file:PATH (what export --store wrote)"
)


class _Wanted(NamedTuple):
    """A store to open."""

    url: str
    path: Path
    """What is behind the scheme and its colon. `//` may stand in front of an absolute path."""
    target: bool
    prefix: str


@contextmanager
def opened_store(url: str, *, target: bool, prefix: str = "langgraph") -> Iterator[Any]:
    """A source, or a target, for `migrate_items`. A file is complete at the end of the `with`.

    Values keep the bytes that are stored, so their classes need not be installed. A `PostgresStore` keeps JSON. If LANGGRAPH_AES_KEY is set, encrypted values
    are read, all values are written encrypted, and a target in Postgres is refused.

    Args:
        url: `redis://...` and the other forms of `RedisStore.from_conn_string`, `postgresql://...`, `file:PATH`.
        target: Whether it is written. If not, it must exist, and is not changed.
        prefix: For Redis: the beginning of all keys.

    Raises:
        EndpointError: The URL is not understood, or it leads nowhere, or a package is missing. The message says which, without a password.
    """
    scheme, separator, path = url.partition(":")
    opener = _OPENERS.get(scheme)
    if not separator or opener is None or not path.strip("/"):
        raise EndpointError(
            f"{urls.without_login(url)} is not the URL of a store, or a file of items: write {STORE_FORMS}"
        )
    if scheme in urls.PATHS and not urls.is_path(url):
        raise EndpointError(f"{scheme}: takes a path, and not the URL {urls.without_login(path)}. Write {scheme}:PATH")
    with ExitStack() as stack:
        with opening(url):
            endpoint = opener(_Wanted(url, Path(path.removeprefix("//")), target, prefix), stack)
        yield endpoint


def is_file_of_items(path: Path) -> bool:
    """Whether a file begins as those of items do. A file that cannot be read is none: whoever opens it says why."""
    try:
        with path.open("rb") as file:
            return file.readline(len(FIRST_LINE)) == FIRST_LINE
    except OSError:
        return False


def _open_ours(wanted: _Wanted, stack: ExitStack) -> OurItems:
    made = RedisStore.from_conn_string(
        wanted.url, serde=serializer(), prefix=wanted.prefix, cache_bytes=0, require_encryption=False
    )
    store = stack.enter_context(made)
    store.setup()
    return OurItems(store, urls.without_login(wanted.url))


def opened_cold(url: str, stack: ExitStack) -> list[PostgresItems]:
    """The `PostgresStore` of a cold tier; nothing if its database has none.

    Raises:
        EndpointError: The URL is none of Postgres, or leads nowhere, or a package is missing.
    """
    with opening(url):
        endpoint = _connected(url, stack)
    return [endpoint] if endpoint.has_table() else []


def _connected(url: str, stack: ExitStack) -> PostgresItems:
    urls.check_postgres(url)
    psycopg = needs("postgres", "psycopg")
    connection = stack.enter_context(psycopg.Connection.connect(url, autocommit=True, prepare_threshold=0))
    return PostgresItems(connection, urls.without_login(url))


def _open_postgres(wanted: _Wanted, stack: ExitStack) -> PostgresItems:
    if wanted.target and "LANGGRAPH_AES_KEY" in os.environ:
        raise EndpointError(
            f"{urls.without_login(wanted.url)}: a PostgresStore keeps plain JSON, and with LANGGRAPH_AES_KEY set all values are to be written encrypted. "
            "Nothing was written. Unset it to move plain items"
        )
    endpoint = _connected(wanted.url, stack)
    stores, psycopg = needs("postgres", "langgraph.store.postgres"), needs("postgres", "psycopg")
    if wanted.target:
        with psycopg.Connection.connect(
            wanted.url, autocommit=True, prepare_threshold=0, row_factory=psycopg.rows.dict_row
        ) as for_setup:
            stores.PostgresStore(for_setup).setup()
    if not endpoint.has_table():
        raise EndpointError(
            f"{endpoint.name} has no table of LangGraph's PostgresStore: give the database of the store, or let its setup() make the table"
        )
    return endpoint


def _open_file(wanted: _Wanted, stack: ExitStack) -> Any:
    if not wanted.target:
        return stack.enter_context(closing(ItemFileSource(wanted.path, serializer())))
    return stack.enter_context(ItemFileTarget(wanted.path, serializer()))


_OPENERS: Mapping[str, Callable[[_Wanted, ExitStack], Any]] = {
    **dict.fromkeys(urls.SCHEMES | {"memory"}, _open_ours),
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
    "file": _open_file,
}
