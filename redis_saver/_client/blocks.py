"""`with` blocks over savers, stores and caches: that of `from_conn_string` closes its client, others close nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import Self

from redis_saver._client import clients
from redis_saver._common.display import kind_of

T = TypeVar("T")


class Block:
    """A `with` over a blocking saver, store or cache. It closes nothing: the client is the caller's."""

    __slots__ = ()

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing, because the client is the caller's."""


class AsyncBlock:
    """An `async with` over an asyncio saver, store or cache. It closes nothing: the client is the caller's."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        """Return the object itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close nothing, because the client is the caller's."""


class _Unopened(Generic[T]):
    """A saver, store or cache that a block makes, together with a client, and closes."""

    def __init__(
        self, kind: type[T], url: str, client_options: Mapping[str, Any] | None, settings: Mapping[str, Any]
    ) -> None:
        """Connect nothing yet.

        Args:
            kind: The class to make.
            url: The URL of its client.
            client_options: Options of the client.
            settings: Keywords of the constructor, whose names are known to be right.

        Raises:
            TypeError: `url` is no text.
        """
        self._kind, self._url, self._options, self._settings = kind, url, client_options or {}, settings
        self._opened: list[Any] = []
        if not isinstance(url, str):
            name = kind.__name__
            raise TypeError(
                f"url: {kind_of(url)}; {name}.from_conn_string takes a URL, such as 'redis://localhost:6379'. "
                f"For a client write {name}(client)"
            )

    def _open(self, *, asynchronous: bool) -> T:
        client = clients.connect(self._url, asynchronous=asynchronous, **self._options)
        opened = self._kind(client, **self._settings)  # type: ignore[call-arg]  # as each of ours takes it
        self._opened.append(opened)
        return opened

    def _driver_to_close(self) -> Any:
        return self._opened.pop()._driver  # noqa: SLF001 - the object is of this package

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name):  # noqa: ANN001, ANN204
            """Say that the block is missing."""
            if name.startswith("_"):  # `copy` asks before there is a kind
                raise AttributeError(name)
            call = f"{self._kind.__name__}.from_conn_string(url)"
            raise AttributeError(
                f"{call} has no attribute {name!r}: nothing is open before its block begins. Write `{self._block} {call} as "
                f"opened:`, and use `opened.{name}` in the block"
            )


class NeedsWith(_Unopened[T]):
    """One that blocks. Errors show the name of this class, such as that of a graph that is compiled with it."""

    _block = "with"

    def __enter__(self) -> T:
        """Make the client, and the object over it."""
        return self._open(asynchronous=False)

    def __exit__(self, *_: object) -> None:
        """Close both."""
        self._driver_to_close().close()


class NeedsAsyncWith(_Unopened[T]):
    """One for asyncio."""

    _block = "async with"

    async def __aenter__(self) -> T:
        """Make the client, and the object over it."""
        return self._open(asynchronous=True)

    async def __aexit__(self, *_: object) -> None:
        """Close both."""
        await self._driver_to_close().aclose()
