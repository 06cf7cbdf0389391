"""Opens sources and targets by their URLs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from redis.exceptions import RedisClusterException, RedisError

from redis_saver._checkpoint.sync import RedisSaver
from redis_saver._client import clients, urls
from redis_saver._client.sync import SyncDriver
from redis_saver._common import postgres
from redis_saver._common.display import printable, shown
from redis_saver._migrate import langgraph_dev, new_files
from redis_saver._migrate.adapters import endpoint_of
from redis_saver._migrate.dumpfile import FileSource
from redis_saver._migrate.dumpfile_target import FileTarget
from redis_saver._migrate.foreign import ForeignSource
from redis_saver._migrate.redis_documents import RedisDocuments
from redis_saver._migrate.valkey_saver import ValkeyStrings
from redis_saver._storage.opaque import OpaqueSerializer
from redis_saver.errors import EndpointError, RedisSaverError

FORMS = (
    "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster:// (ours), postgresql://..., sqlite:PATH, "
    "inmem:FOLDER (what langgraph dev wrote) or file:PATH (what export wrote)"
)
SOURCE_FORMS = f"{RedisDocuments.kind}:URL (its RedisSaver and ShallowRedisSaver) or {ValkeyStrings.kind}:URL (its ValkeySaver), with the URL of their server"
"""What else a source may be."""
_OURS = urls.SCHEMES | {"memory"}
_FOREIGN: Mapping[str, type[ForeignSource]] = {each.kind: each for each in (RedisDocuments, ValkeyStrings)}
"""Savers of other packages on Redis or Valkey, by the name of the package."""


@contextmanager
def opened(
    url: str,
    *,
    target: bool,
    prefix: str | None = None,
    ttl: timedelta | None = None,
    require_encryption: bool = False,
) -> Iterator[Any]:
    """A source, or a target, for `migrate`. A file is complete at the end of the `with`.

    Values keep the bytes that are stored, so their classes need not be installed. If LANGGRAPH_AES_KEY is set, encrypted values are read, and
    all values are written encrypted.

    Args:
        url: `redis://...` and the other forms of `RedisSaver.from_conn_string`, `postgresql://...`, `sqlite:PATH`,
            `inmem:FOLDER`, `file:PATH`. A source may also be `langgraph-checkpoint-redis:URL` or `langgraph-checkpoint-aws:URL`: what these packages' savers
            keep on the server with that URL.
        target: Whether it is written. If not, it must exist, and is not changed.
        prefix: For Redis: the beginning of all keys; None: `langgraph`. For `langgraph-checkpoint-redis:` the `checkpoint_prefix`; None: whatever it is.
        ttl: For Redis: when the threads that are written expire.
        require_encryption: For Redis: whether plain values are refused. Default: no, as plain threads are moved, too.

    Raises:
        EndpointError: The URL is not understood, or it leads nowhere, or a package is missing. The message says which, without a password.
    """
    scheme, separator, path = url.partition(":")
    if scheme in _FOREIGN and path:
        with _opened_foreign(scheme, path, target=target, prefix=prefix, ttl=ttl) as source:
            yield source
        return
    opener = _open_ours if scheme in _OURS else _OPENERS.get(scheme)
    if not separator or opener is None or not path.strip("/"):
        others = "" if target else f"; or {SOURCE_FORMS}"
        raise EndpointError(f"{urls.without_login(url)} is not the URL of a source or target: write {FORMS}{others}")
    if scheme in urls.PATHS and not urls.is_path(url):
        raise EndpointError(f"{scheme}: takes a path, and not the URL {urls.without_login(path)}. Write {scheme}:PATH")
    if ttl is not None and scheme not in _OURS:
        raise EndpointError(
            f"ttl={ttl}: {urls.without_login(url)} cannot expire threads, only Redis can. Leave the TTL out"
        )
    with ExitStack() as stack:
        with opening(url):
            ours = "langgraph" if prefix is None else prefix
            endpoint = opener(_Wanted(url, path, serializer(), target, ours, ttl, require_encryption), stack)
        yield endpoint


@contextmanager
def _opened_foreign(
    kind: str, url: str, *, target: bool, prefix: str | None, ttl: timedelta | None
) -> Iterator[ForeignSource]:
    """The source `kind:url`."""
    name = f"{kind}:{urls.without_login(url)}"
    if target or ttl is not None:
        raise EndpointError(
            f"{name}: threads are moved from there, and not to there. Write a target, such as redis://host:6379"
        )
    if prefix is not None and kind == ValkeyStrings.kind:
        raise EndpointError(
            f"{name}: the keys of a ValkeySaver have no prefix to choose. Leave prefix {shown(prefix)} out"
        )
    with ExitStack() as stack:
        with opening(url):
            client = clients.connect(url, asynchronous=False)
            stack.callback(clients.close, client)
            driver = SyncDriver(client)
            driver.check_version()
        yield _FOREIGN[kind](driver, serializer(), name, prefix)


def serializer() -> SerializerProtocol:
    """The serializer of what is moved: objects stay packed. It encrypts if the environment has a key.

    Raises:
        ImportError, ValueError: The key cannot be used.
    """
    serde: SerializerProtocol = OpaqueSerializer()
    return EncryptedSerializer.from_pycryptodome_aes(serde) if "LANGGRAPH_AES_KEY" in os.environ else serde


class _Wanted(NamedTuple):
    """An endpoint to open."""

    url: str
    path: str
    """What is behind the scheme and its colon."""
    serde: SerializerProtocol
    target: bool
    prefix: str
    ttl: timedelta | None
    require_encryption: bool

    @property
    def local(self) -> Path:
        """The path of the file or folder. `//` may stand in front of an absolute one."""
        return Path(self.path.removeprefix("//"))


@contextmanager
def opening(url: str) -> Iterator[None]:
    """A context in which errors are about an endpoint that is being opened."""
    try:
        yield
    except RedisSaverError:
        raise
    except _failures() as error:
        said = printable(urls.without_password(str(error), url))
        raise EndpointError(f"{urls.without_login(url)}: {said}") from urls.cause_of(error, url)


def _failures() -> tuple[type[Exception], ...]:
    """The errors that opening an endpoint may raise, of the database drivers that are loaded."""
    return (ImportError, ValueError, OSError, RedisError, RedisClusterException, *postgres.failures())


def needs(extra: str, package: str) -> Any:
    """Import a package that an extra of ours brings.

    Raises:
        EndpointError: It is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise EndpointError(
            f"this endpoint needs more packages: pip install 'redis-saver[{extra}]' ({error})"
        ) from error


def _open_ours(wanted: _Wanted, stack: ExitStack) -> Any:
    made = RedisSaver.from_conn_string(
        wanted.url,
        serde=wanted.serde,
        prefix=wanted.prefix,
        ttl=wanted.ttl,
        require_encryption=wanted.require_encryption,
    )
    saver = stack.enter_context(made)
    saver.setup()
    return endpoint_of(saver, urls.without_login(wanted.url))


def _open_postgres(wanted: _Wanted, stack: ExitStack) -> Any:
    urls.check_postgres(wanted.url)
    postgres, psycopg = needs("postgres", "langgraph.checkpoint.postgres"), needs("postgres", "psycopg")
    settings: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": psycopg.rows.dict_row}
    saver = postgres.PostgresSaver(
        stack.enter_context(psycopg.Connection.connect(wanted.url, **settings)), serde=wanted.serde
    )
    if wanted.target:
        saver.setup()
    return endpoint_of(saver, urls.without_login(wanted.url))


def _open_sqlite(wanted: _Wanted, stack: ExitStack) -> Any:
    sqlite, sqlite3 = needs("sqlite", "langgraph.checkpoint.sqlite"), needs("sqlite", "sqlite3")
    path = wanted.local
    if not wanted.target and not path.is_file():
        raise EndpointError(
            f"{urls.without_login(wanted.url)}: there is no such file as {printable(str(path))}; write sqlite:PATH"
        )
    if wanted.target:
        new_files.make_empty(path)
    where = f"file:{quote(str(path.absolute()))}{'' if wanted.target else '?mode=ro'}"
    connection = stack.enter_context(closing(sqlite3.connect(where, uri=True, check_same_thread=False)))
    saver = sqlite.SqliteSaver(connection, serde=wanted.serde)
    if wanted.target:
        saver.setup()
        connection.execute("PRAGMA synchronous=NORMAL")  # what a power cut loses, another run brings again
    else:
        saver.is_setup = True  # or the saver would write to it
        columns = {column[1] for column in connection.execute("PRAGMA table_info(writes)")}
        if not columns:
            raise EndpointError(
                f"{urls.without_login(wanted.url)}: the file has no tables of LangGraph's SqliteSaver; give the file that it wrote"
            )
        saver._has_task_path = "task_path" in columns  # noqa: SLF001
    return endpoint_of(saver, urls.without_login(wanted.url))


def _open_memory_dump(wanted: _Wanted, stack: ExitStack) -> Any:
    saver = langgraph_dev.load(wanted.local, wanted.serde, empty_too=wanted.target)

    def save() -> None:
        with opening(wanted.url):
            langgraph_dev.save(saver, wanted.local)

    if wanted.target:
        stack.callback(save)  # also after an error: another run goes on from there
    return endpoint_of(saver, urls.without_login(wanted.url))


def _open_file(wanted: _Wanted, stack: ExitStack) -> Any:
    if not wanted.target:
        return stack.enter_context(closing(FileSource(wanted.local, wanted.serde)))
    return stack.enter_context(FileTarget(wanted.local, wanted.serde))


_OPENERS: Mapping[str, Callable[[_Wanted, ExitStack], Any]] = {
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
    "sqlite": _open_sqlite,
    "inmem": _open_memory_dump,
    "file": _open_file,
}
