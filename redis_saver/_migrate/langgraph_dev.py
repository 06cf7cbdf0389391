"""Reads and writes what `langgraph dev` leaves in a folder (`.langgraph_api`): an `InMemorySaver`, pickled, in three files.

Unpickling can run any code. The unpickler here only knows what such files are made of: dicts, texts, numbers and bytes. Anything else is an error.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._common.display import printable, shown
from redis_saver._migrate.new_files import NewFile, make_folder
from redis_saver.errors import EndpointError

_FILES = {name: f".langgraph_checkpoint.{number}.pckl" for number, name in enumerate(("storage", "writes", "blobs"), 1)}
_PROTOCOL = 2
"""As `langgraph.checkpoint.memory.PersistentDict` writes it."""


def load(folder: Path, serde: SerializerProtocol, *, empty_too: bool) -> InMemorySaver:
    """Read the files of a folder. With `empty_too` the folder, or its files, may be missing.

    Raises:
        EndpointError: The files are missing, cannot be read, or hold something else.
    """
    saver = InMemorySaver(serde=serde)
    missing = [name for name in _FILES.values() if not (folder / name).exists()]
    if missing and not (empty_too and len(missing) == len(_FILES)):
        raise EndpointError(
            f"folder {shown(str(folder))} has no {missing[0]}; name the folder .langgraph_api that langgraph dev writes"
        )
    if not missing:
        saver.storage.update(
            {
                str(thread): defaultdict(dict, {ns: dict(_mapping(some)) for ns, some in _mapping(found).items()})
                for thread, found in _load(folder / _FILES["storage"]).items()
            }
        )
        saver.writes.update(
            {
                (str(where[0]), *where[1:]): dict(_mapping(some))
                for where, some in _load(folder / _FILES["writes"]).items()
            }
        )
        saver.blobs.update(
            {(str(where[0]), *where[1:]): value for where, value in _load(folder / _FILES["blobs"]).items()}
        )
    return saver


_UNREADABLE = (
    pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError,
)  # fmt: skip
"""What unpickling raises for bytes that are no such pickle, or that claim to be terabytes."""


def _load(path: Path) -> Mapping[Any, Any]:
    try:
        with path.open("rb") as file:
            return _mapping(_Restricted(file).load())
    except _UNREADABLE as error:
        raise EndpointError(f"{shown(str(path))} is not what langgraph dev writes: {printable(str(error))}") from error


def _mapping(found: object) -> Mapping[Any, Any]:
    if not isinstance(found, dict):
        raise EndpointError(
            f"this folder is not what langgraph dev writes: a file in it has a {type(found).__name__} in place of a dict"
        )
    return found


def _latin(text: str, encoding: str) -> bytes:
    """`_codecs.encode`, as protocol 2 writes bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in the encoding {shown(encoding)}")
    return text.encode("latin1")


def _bytes(*given: Any) -> bytes:
    """`bytes`, but not of a number, which would make so many zeros."""
    if any(isinstance(one, int) for one in given):
        raise pickle.UnpicklingError("it makes bytes of a number")
    return bytes(*given)


_ALLOWED: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "dict"): dict,
    ("__builtin__", "bytes"): _bytes,
    ("__builtin__", "bytearray"): lambda *given: bytearray(_bytes(*given)),
    ("_codecs", "encode"): _latin,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """One of the few names that are allowed."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            named = printable(f"{module}.{name}")
            raise pickle.UnpicklingError(
                f"it names {named}, which redis_saver does not load from a pickle, as that could run code"
            ) from None


def save(saver: InMemorySaver, folder: Path) -> None:
    """Write the files of a folder, each in one step, the one that names checkpoints last."""
    make_folder(folder)
    for name, file_name in reversed(_FILES.items()):
        with NewFile(folder / file_name) as new:
            pickle.dump(dict(getattr(saver, name)), new.file, _PROTOCOL)
