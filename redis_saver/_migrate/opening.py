"""Open sources and targets by URL, for threads and for items of a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from redis.exceptions import RedisClusterException, RedisError

from redis_saver._checkpoint.saver import RedisSaver, context_of, driver_of, with_context
from redis_saver._client import clients, urls
from redis_saver._client.sync import SyncDriver
from redis_saver._common import postgres
from redis_saver._common.display import printable, shown
from redis_saver._migrate import langgraph_dev
from redis_saver._migrate.files import ItemFile, ThreadFile, make_empty
from redis_saver._migrate.foreign import ForeignSource, RedisDocuments, ValkeyStrings
from redis_saver._migrate.savers import endpoint_of
from redis_saver._migrate.stores import OurItems, PostgresItems
from redis_saver._storage.opaque import OpaqueSerializer
from redis_saver._store.store import RedisStore, use_values
from redis_saver.encryption import Encryption
from redis_saver.errors import EndpointError, RedisSaverError

_OUR_FORMS = "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster:// (ours), postgresql://..."
FORMS = f"{_OUR_FORMS}, sqlite:PATH, inmem:FOLDER (of langgraph dev) or file:PATH (of export)"
SOURCE_FORMS = f"{RedisDocuments.kind}:URL or {ValkeyStrings.kind}:URL (with the URL of that package's server)"
"""Additional URLs of sources."""
STORE_FORMS = f"{_OUR_FORMS} (LangGraph's PostgresStore), or file:PATH (of export --store)"
CONNECTING = 5
"""Seconds to wait for a connection to Postgres, unless the URL says otherwise."""
_OURS = urls.SCHEMES | {"memory"}
_FOREIGN: Mapping[str, type[ForeignSource]] = {source.kind: source for source in (RedisDocuments, ValkeyStrings)}


class _Wanted(NamedTuple):
    """An endpoint to open."""

    url: str
    target: bool
    prefix: str | None = None
    ttl: timedelta | None = None
    require_encryption: bool = False
    encryption: Encryption | None = None

    @property
    def our_prefix(self) -> str:
        """Beginning of all keys in Redis."""
        return "langgraph" if self.prefix is None else self.prefix

    @property
    def scheme(self) -> str:
        """The part of the URL before its first colon."""
        return self.url.partition(":")[0]

    @property
    def path(self) -> Path:
        """Path of a file or folder. `//` may precede an absolute path."""
        return Path(self.url.partition(":")[2].removeprefix("//"))

    @property
    def name(self) -> str:
        """Name in messages."""
        return urls.without_login(self.url)


_Opener: TypeAlias = Callable[[_Wanted, ExitStack], Any]


def opened(
    url: str,
    *,
    target: bool,
    prefix: str | None = None,
    ttl: timedelta | None = None,
    require_encryption: bool = False,
    encryption: Encryption | None = None,
) -> AbstractContextManager[Any]:
    """Open a source or a target for `migrate`. A file is complete when the `with` block exits.

    Values keep the bytes that are stored, so their classes need not be installed. If LANGGRAPH_AES_KEY is set,
    encrypted values are read, and all values are written encrypted.

    Args:
        url: `redis://...` and the other forms of `RedisSaver.from_conn_string`, `postgresql://...`, `sqlite:PATH`,
            `inmem:FOLDER`, `file:PATH`. A source may also be `langgraph-checkpoint-redis:URL` or
            `langgraph-checkpoint-aws:URL`, with the URL of the server of that package's saver.
        target: True for a target. A source must exist, and is not changed.
        prefix: Beginning of all keys in Redis; by default `langgraph`. For `langgraph-checkpoint-redis:` it is the
            `checkpoint_prefix`; by default any.
        ttl: TTL of threads that are written to Redis; by default they do not expire.
        require_encryption: True to refuse plain values in Redis. By default they are moved, too.
        encryption: Keys of encrypted threads in Redis. A source in Redis may have encrypted and plain threads; those
            that are written to Redis are encrypted, by these keys alone. Databases and files have no keys: they get
            the values as without `encryption`.

    Raises:
        EndpointError: The URL is invalid, its server or file cannot be opened, or a package is missing. The message
            contains no password.
    """
    wanted = _Wanted(url, target, prefix, ttl, require_encryption, encryption)
    if ttl is not None and wanted.scheme in _OPENERS.keys() - _OURS - _FOREIGN.keys():
        raise EndpointError(f"ttl={ttl}: only threads in Redis can expire, not in {wanted.name}. Leave the TTL out")
    forms = f"source or target: write {FORMS}{'' if target else f'; or {SOURCE_FORMS}'}"
    return _opened(wanted, _OPENERS, forms)


def opened_store(
    url: str, *, target: bool, prefix: str | None = None, encryption: Encryption | None = None
) -> AbstractContextManager[Any]:
    """Open a source or a target for `migrate_items`. A file is complete when the `with` block exits.

    Values keep the bytes that are stored, so their classes need not be installed. A `PostgresStore` keeps JSON. If
    LANGGRAPH_AES_KEY is set, encrypted values are read, all values are written encrypted, and a target in Postgres is
    refused.

    Args:
        url: `redis://...` and the other forms of `RedisStore.from_conn_string`, `postgresql://...`, `file:PATH`.
        target: True for a target. A source must exist, and is not changed.
        prefix: Beginning of all keys in Redis; by default `langgraph`.
        encryption: Keys of encrypted items in Redis. A source in Redis may have encrypted and plain partitions; items
            that are written to Redis are encrypted, by these keys alone. Postgres and files have no keys.

    Raises:
        EndpointError: The URL is invalid, its server or file cannot be opened, or a package is missing. The message
            contains no password.
    """
    forms = f"store, or a file of items: write {STORE_FORMS}"
    return _opened(_Wanted(url, target, prefix, encryption=encryption), _STORE_OPENERS, forms)


@contextmanager
def _opened(wanted: _Wanted, openers: Mapping[str, _Opener], forms: str) -> Iterator[Any]:
    scheme, _, rest = wanted.url.partition(":")
    if scheme not in openers or not rest.strip("/"):
        raise EndpointError(f"{wanted.name} is not the URL of a {forms}")
    if scheme in urls.PATHS and not urls.is_path(wanted.url):
        raise EndpointError(f"{scheme}: takes a path, not the URL {urls.without_login(rest)}. Write {scheme}:PATH")
    with ExitStack() as stack:
        with _opening(rest if scheme in _FOREIGN else wanted.url):
            endpoint = openers[scheme](wanted, stack)
        yield endpoint


@contextmanager
def _opening(url: str) -> Iterator[None]:
    """Turn errors of the block into ours, which name the endpoint."""
    try:
        yield
    except RedisSaverError:
        raise
    except _failures() as error:
        text = printable(urls.without_password(str(error), url))
        raise EndpointError(f"{urls.without_login(url)}: {text}") from urls.cause_of(error, url)


def _failures() -> tuple[type[Exception], ...]:
    """Return the errors of opening an endpoint, including those of the imported database drivers."""
    return (ImportError, ValueError, OSError, RedisError, RedisClusterException, *postgres.failures())


def is_encrypted() -> bool:
    """True if the environment has a key, so that all values are written encrypted."""
    return "LANGGRAPH_AES_KEY" in os.environ


def serializer(serde: SerializerProtocol | None = None) -> SerializerProtocol:
    """Return a serializer, by default one that leaves objects packed. If the environment has a key, it encrypts.

    Raises:
        EndpointError: The key is invalid, or a package is missing.
    """
    serde = serde or OpaqueSerializer()
    try:
        return EncryptedSerializer.from_pycryptodome_aes(serde) if is_encrypted() else serde
    except (ImportError, ValueError) as error:
        raise EndpointError(f"LANGGRAPH_AES_KEY: {error}") from error


def needs(extra: str, package: str) -> Any:
    """Import a package of one of our extras.

    Raises:
        EndpointError: The package is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise EndpointError(f"this needs more packages: pip install 'redis-saver[{extra}]' ({error})") from error


def _open_ours(wanted: _Wanted, stack: ExitStack) -> Any:
    settings: Any = {"ttl": wanted.ttl, "encryption": wanted.encryption, "prefix": wanted.our_prefix}
    settings["require_encryption"] = None if wanted.encryption else wanted.require_encryption
    serde = OpaqueSerializer() if wanted.encryption and wanted.target else serializer()
    context = RedisSaver.from_conn_string(wanted.url, serde=serde, **settings)
    saver: Any = stack.enter_context(context)
    if not wanted.require_encryption:
        saver = with_context(saver, context_of(saver)._replace(reads_plain_threads=True))
    if wanted.target:
        saver.setup()
    else:
        driver_of(saver).check_version()
    return endpoint_of(saver, wanted.name)


def _open_foreign(wanted: _Wanted, stack: ExitStack) -> ForeignSource:
    kind, _, url = wanted.url.partition(":")
    name = f"{kind}:{urls.without_login(url)}"
    if wanted.target or wanted.ttl is not None:
        raise EndpointError(f"{name} can only be a source. Write another target, such as redis://host:6379")
    if wanted.prefix is not None and kind == ValkeyStrings.kind:
        raise EndpointError(f"{name}: keys of a ValkeySaver have no prefix. Leave prefix {shown(wanted.prefix)} out")
    client = clients.connect(url, asynchronous=False)
    stack.callback(clients.close, client)
    driver = SyncDriver(client)
    driver.check_version()
    return _FOREIGN[kind](driver, serializer(), name, wanted.prefix)


def _connected(url: str, stack: ExitStack, **options: Any) -> Any:
    """Return a connection to Postgres, in autocommit."""
    urls.check_postgres(url)
    psycopg = needs("postgres", "psycopg")
    if "connect_timeout" not in psycopg.conninfo.conninfo_to_dict(url):
        options["connect_timeout"] = CONNECTING
    return stack.enter_context(psycopg.Connection.connect(url, autocommit=True, prepare_threshold=0, **options))


def _open_postgres(wanted: _Wanted, stack: ExitStack) -> Any:
    package, rows = needs("postgres", "langgraph.checkpoint.postgres"), needs("postgres", "psycopg.rows")
    connection = _connected(wanted.url, stack, row_factory=rows.dict_row)
    saver = package.PostgresSaver(connection, serde=serializer())
    if wanted.target:
        saver.setup()
    return endpoint_of(saver, wanted.name)


def _open_sqlite(wanted: _Wanted, stack: ExitStack) -> Any:
    sqlite, sqlite3 = needs("sqlite", "langgraph.checkpoint.sqlite"), needs("sqlite", "sqlite3")
    path = wanted.path
    if not wanted.target and not path.is_file():
        raise EndpointError(f"{wanted.name}: there is no such file as {printable(str(path))}; write sqlite:PATH")
    if wanted.target:
        make_empty(path)
    address = f"file:{quote(str(path.absolute()))}{'' if wanted.target else '?mode=ro'}"
    connection = stack.enter_context(closing(sqlite3.connect(address, uri=True, check_same_thread=False)))
    saver = sqlite.SqliteSaver(connection, serde=serializer())
    if wanted.target:
        saver.setup()
        connection.execute("PRAGMA synchronous=NORMAL")  # after a power cut, another run writes the lost part again
    else:
        saver.is_setup = True  # or the saver would write to the file
        columns = {column[1] for column in connection.execute("PRAGMA table_info(writes)")}
        if not columns:
            raise EndpointError(f"{wanted.name}: not a file of LangGraph's SqliteSaver, because its tables are missing")
        saver._has_task_path = "task_path" in columns  # noqa: SLF001
    return endpoint_of(saver, wanted.name)


def _open_memory_dump(wanted: _Wanted, stack: ExitStack) -> Any:
    saver = langgraph_dev.load(wanted.path, serializer(), empty_too=wanted.target)

    def save() -> None:
        with _opening(wanted.url):
            langgraph_dev.save(saver, wanted.path)

    if wanted.target:
        stack.callback(save)  # even after an error: another run continues from there
    return endpoint_of(saver, wanted.name)


def _open_file(kind: type[ThreadFile | ItemFile], wanted: _Wanted, stack: ExitStack) -> Any:
    return stack.enter_context(kind.opened(wanted.path, serializer(), target=wanted.target))


_OPENERS: Mapping[str, _Opener] = {
    **dict.fromkeys(_OURS, _open_ours),
    **dict.fromkeys(_FOREIGN, _open_foreign),
    **dict.fromkeys(("postgresql", "postgres"), _open_postgres),
    "sqlite": _open_sqlite,
    "inmem": _open_memory_dump,
    "file": partial(_open_file, ThreadFile),
}


def _open_our_store(wanted: _Wanted, stack: ExitStack) -> OurItems:
    settings: Any = {"cache_bytes": 0, "require_encryption": False, "encryption": wanted.encryption}
    serde = OpaqueSerializer() if wanted.encryption and wanted.target else serializer()
    context = RedisStore.from_conn_string(wanted.url, serde=serde, prefix=wanted.our_prefix, **settings)
    store = stack.enter_context(context)
    use_values(store, reads_plain_threads=True)
    store.setup()
    return OurItems(store, wanted.name)


def _open_postgres_store(wanted: _Wanted, stack: ExitStack) -> PostgresItems:
    if wanted.target and is_encrypted():
        raise EndpointError(f"{wanted.name} keeps plain JSON: unset LANGGRAPH_AES_KEY to move plain items")
    endpoint = PostgresItems(_connected(wanted.url, stack), wanted.name)
    package = needs("postgres", "langgraph.store.postgres")
    if wanted.target:
        with package.PostgresStore.from_conn_string(wanted.url) as store:
            store.setup()
    if not endpoint.has_table():
        raise EndpointError(f"{endpoint.name} has no table of a PostgresStore: write its database, or call its setup()")
    return endpoint


_STORE_OPENERS: Mapping[str, _Opener] = {
    **dict.fromkeys(_OURS, _open_our_store),
    **dict.fromkeys(("postgresql", "postgres"), _open_postgres_store),
    "file": partial(_open_file, ItemFile),
}


def opened_cold(url: str, stack: ExitStack) -> list[PostgresItems]:
    """Open the `PostgresStore` of a cold tier. Returns a list, which is empty if the database has no store.

    Raises:
        EndpointError: The URL is invalid, its database cannot be opened, or a package is missing.
    """
    with _opening(url):
        endpoint = PostgresItems(_connected(url, stack), urls.without_login(url))
    return [endpoint] if endpoint.has_table() else []


def is_file_of_items(url: str) -> bool:
    """True for the URL of a file of items. An unreadable file is False, and opening it raises the error."""
    wanted = _Wanted(url, target=False)
    try:
        with wanted.path.open("rb") as file:
            return wanted.scheme == "file" and file.readline(len(ItemFile.FIRST_LINE)) == ItemFile.FIRST_LINE
    except OSError:
        return False
