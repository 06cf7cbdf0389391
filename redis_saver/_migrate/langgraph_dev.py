"""Read and write the folder of `langgraph dev` (`.langgraph_api`): an `InMemorySaver`, pickled in three files.

Unpickling can run any code. The unpickler here makes only dicts, str, numbers and bytes, and refuses everything else.
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
from redis_saver._migrate.files import make_folder, new_file
from redis_saver.errors import EndpointError

_FILES = {name: f".langgraph_checkpoint.{number}.pckl" for number, name in enumerate(("storage", "writes", "blobs"), 1)}
_PROTOCOL = 2
"""Pickle protocol of `langgraph.checkpoint.memory.PersistentDict`."""
_UNREADABLE = (
    *(pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError),
    *(OverflowError, RecursionError, MemoryError),
)
"""Errors of unpickling invalid bytes, or bytes that claim to be terabytes."""


def load(folder: Path, serde: SerializerProtocol, *, empty_too: bool) -> InMemorySaver:
    """Read the files of a folder. With `empty_too` all files may be missing.

    Raises:
        EndpointError: The files are missing, unreadable or invalid.
    """
    saver = InMemorySaver(serde=serde)
    missing = [name for name in _FILES.values() if not (folder / name).exists()]
    if missing and not (empty_too and len(missing) == len(_FILES)):
        raise EndpointError(f"folder {shown(str(folder))} has no {missing[0]}; write the folder .langgraph_api")
    if not missing:
        storage, writes, blobs = (_load(folder / name) for name in _FILES.values())
        for thread, namespaces in storage.items():
            each = {ns: dict(_mapping(stored)) for ns, stored in _mapping(namespaces).items()}
            saver.storage[str(thread)] = defaultdict(dict, each)
        for key, stored in writes.items():
            saver.writes[(str(key[0]), *key[1:])] = dict(_mapping(stored))
        for key, value in blobs.items():
            saver.blobs[(str(key[0]), *key[1:])] = value
    return saver


def save(saver: InMemorySaver, folder: Path) -> None:
    """Write the files of a folder, each atomically, and the one with the checkpoints last."""
    make_folder(folder)
    for name, file_name in reversed(_FILES.items()):
        with new_file(folder / file_name) as file:
            pickle.dump(dict(getattr(saver, name)), file, _PROTOCOL)


def _load(path: Path) -> Mapping[Any, Any]:
    try:
        with path.open("rb") as file:
            return _mapping(_Restricted(file).load())
    except _UNREADABLE as error:
        raise EndpointError(f"{shown(str(path))} is not a file of langgraph dev: {printable(str(error))}") from error


def _mapping(value: object) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise EndpointError(f"a file there is not of langgraph dev: it has a {type(value).__name__}, not a dict")
    return value


def _latin(text: str, encoding: str) -> bytes:
    """Replace `_codecs.encode`, which protocol 2 uses for bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in the encoding {shown(encoding)}")
    return text.encode("latin1")


def _bytes(*arguments: Any) -> bytes:
    """Replace `bytes`, and refuse a number, which would make that many zeros."""
    if any(isinstance(argument, int) for argument in arguments):
        raise pickle.UnpicklingError("it makes bytes from a number")
    return bytes(*arguments)


_ALLOWED: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "dict"): dict,
    ("__builtin__", "bytes"): _bytes,
    ("__builtin__", "bytearray"): lambda *arguments: bytearray(_bytes(*arguments)),
    ("_codecs", "encode"): _latin,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few allowed callables."""
        try:
            return _ALLOWED[module, name]
        except KeyError:
            text = f"it names {printable(f'{module}.{name}')}, which redis_saver refuses, because it could run code"
            raise pickle.UnpicklingError(text) from None
