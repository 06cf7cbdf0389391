"""A serializer that writes and reads what `JsonPlusSerializer` does, byte for byte, several times as fast.

Most of what a chat's checkpoint holds are LangChain's messages; those that are plain go the short road of
`redis_saver.messages`. Whatever else there is, and every error, is `JsonPlusSerializer`'s own: its functions run here with
this module's in place of the calls with which they go into nested values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import CellType, FunctionType, NoneType
from typing import Any, Final

import ormsgpack
from langgraph.checkpoint.serde import _msgpack, jsonplus
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from redis_saver.messages import DECODERS, ENCODERS, KEY_LENGTH

_SAMPLE: Final = 16
"""So many elements tell whether the elements of a container are small."""
_SMALL: Final = 32
"""Elements of fewer bytes than this on average share pieces."""
_BLOCK: Final = 1024
"""About as many bytes make a piece then."""
_SCALARS: Final = frozenset({bool, int, float, NoneType})
_SIZED: Final = frozenset({str, list, dict})


def _default(value: Any) -> Any:
    """What the packer calls for a value it does not know."""
    encode = ENCODERS.get(type(value))
    if encode is not None:
        data = encode(value)
        if data is not None:
            return ormsgpack.Ext(5, data)
    return _ordinary_default(value)


# A partial is no Python frame: values nest as deep as they do in the ordinary functions.
_encode: Callable[[Any], bytes] = functools.partial(ormsgpack.packb, default=_default, option=jsonplus._option)  # noqa: SLF001

_ordinary_default = FunctionType(jsonplus._msgpack_default.__code__, {**vars(jsonplus), "_msgpack_enc": _encode})  # noqa: SLF001
"""`jsonplus._msgpack_default`, except that it finds the messages in the values it takes apart through `_default`."""


def _ext_hook(ordinary: Any) -> Callable[[int, bytes], Any]:
    """A hook that answers what an ordinary one does, and is called for nested values, too."""
    decoders = {key: decode for key, (name, decode) in DECODERS.items() if name in _msgpack.SAFE_MSGPACK_TYPES}

    def hook(code: int, data: bytes) -> Any:
        if code == 5:
            decode = decoders.get(data[:KEY_LENGTH])
            if decode is not None:
                message = decode(data)
                if message is not None:
                    return message
        return inner(code, data)

    free = zip(ordinary.__code__.co_freevars, ordinary.__closure__, strict=True)
    cells = tuple(CellType(hook) if name == "ext_hook" else cell for name, cell in free)
    inner = FunctionType(ordinary.__code__, ordinary.__globals__, closure=cells)
    return hook


class FastSerializer(JsonPlusSerializer):
    """A `JsonPlusSerializer` that is faster at messages.

    Output, allowlists, warnings, events and settings are the same. With a hook of your own (`__unpack_ext_hook__`) it reads
    just as `JsonPlusSerializer` does.
    """

    def __init__(self, **settings: Any) -> None:
        """Take the settings of `JsonPlusSerializer`."""
        super().__init__(**settings)
        if not self._custom_unpack_ext_hook:
            self._unpack_ext_hook = _ext_hook(self._unpack_ext_hook)

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> JsonPlusSerializer:
        """A serializer that allows these types, too; itself if it does already."""
        clone = super().with_msgpack_allowlist(extra_allowlist)
        if clone is not self and not clone._custom_unpack_ext_hook:  # noqa: SLF001 - a copy of this one
            clone._unpack_ext_hook = _ext_hook(clone._unpack_ext_hook)  # noqa: SLF001
        return clone

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Encode a value: its type and its bytes."""
        if obj is None or isinstance(obj, (bytes, bytearray)):
            return super().dumps_typed(obj)
        try:
            if type(obj) is list and len(obj) > 1 and type(obj[0]) in ENCODERS:
                # Without an Ext per message, and its copy, it is faster.
                return "msgpack", b"".join(_pieces(obj))
            return "msgpack", _encode(obj)
        except ormsgpack.MsgpackEncodeError:
            # The ordinary road raises the error, or pickles.
            return super().dumps_typed(obj)

    def dumps_pieces(self, obj: Any) -> tuple[str, list[bytes]]:
        """Encode a value: its type, and pieces which, joined, are the bytes that `dumps_typed` answers.

        A list, or a dict whose keys are strings, is cut between its elements: the first piece is its header, the others are
        an element each (a key with its value). Small elements share pieces, as many in each, so that a list that grows
        keeps the pieces it had but for the last. A `_DeltaSnapshot` of such a list or dict is cut likewise. Anything else
        is one piece, and so is what has fewer than two elements.
        """
        try:
            pieces = _snapshot_pieces(obj) if type(obj) is _DeltaSnapshot else _pieces(obj)
        except (ormsgpack.MsgpackEncodeError, RuntimeError):
            # It cannot be encoded, or is being changed by another thread: `dumps_typed` answers or raises what is right.
            pieces = []
        if pieces:
            return "msgpack", pieces
        kind, data = self.dumps_typed(obj)
        return kind, [data]


def _pieces(value: Any) -> list[bytes]:
    """The pieces of a list or dict; none if it is to stay whole."""
    if type(value) is list and len(value) > 1:
        # A copy: another thread may append to the list meanwhile.
        return _cut(value[:], _encode, _list_elements, _ARRAY)
    if type(value) is dict and len(value) > 1 and set(map(type, value)) == {str}:
        return _cut(list(value.items()), _encode_items, _dict_elements, _MAP)
    return []


def _cut(
    elements: list[Any],
    encode: Callable[[list[Any]], bytes],
    encode_each: Callable[[list[Any]], list[bytes]],
    headers: tuple[int, bytes, bytes],
) -> list[bytes]:
    """The header of a container, and its elements in pieces."""
    sample = elements[:_SAMPLE]
    # To encode each element by itself only to find that it is small would take its time in a short list of numbers.
    pieces = [] if all(map(_slight, sample)) else encode_each(sample)
    size = sum(map(len, pieces)) if pieces else len(encode(sample)) - _header_length(len(sample))
    if size >= _SMALL * len(sample):
        pieces = pieces or encode_each(sample)
        if len(elements) > _SAMPLE:
            pieces += encode_each(elements[_SAMPLE:])
    else:
        # A power of two, so that what the sample holds changes it seldom.
        count = 1 << (_BLOCK * len(sample) // size).bit_length() - 1
        runs = (elements[start : start + count] for start in range(0, len(elements), count))
        pieces = [encode(run)[_header_length(len(run)) :] for run in runs]
    return [_header(len(elements), headers), *pieces]


def _slight(element: Any) -> bool:
    """Whether an element of a list, or a key with its value, is hardly more than small."""
    if type(element) is tuple and len(element) == 2:
        key, element = element
        if type(key) is not str or len(key) > 2 * _SMALL:
            return False
    kind = type(element)
    return kind in _SCALARS or (kind in _SIZED and len(element) <= (2 * _SMALL if kind is str else 0))


def _list_elements(elements: list[Any]) -> list[bytes]:
    """The elements of a list, each encoded."""
    encoder_of, headers = ENCODERS.get, _MESSAGE_HEADERS
    pieces = []
    for element in elements:
        encode = encoder_of(type(element))
        data = None if encode is None else encode(element)
        if data is None:
            # In a list, as it is no deeper nested then than it is in the whole.
            pieces.append(_encode([element])[1:])
        else:
            size = len(data)
            pieces.append((headers[size] if size < 2048 else _ext_header(5, size)) + data)
    return pieces


def _dict_elements(items: list[tuple[str, Any]]) -> list[bytes]:
    """The items of a dict, each encoded."""
    return [_encode({key: value})[1:] for key, value in items]


def _encode_items(items: list[tuple[str, Any]]) -> bytes:
    return _encode(dict(items))


def _snapshot_pieces(snapshot: _DeltaSnapshot) -> list[bytes]:
    """The pieces of a snapshot: the header of the Ext and that of the container are one."""
    pieces = _pieces(snapshot.value)
    size = sum(map(len, pieces))
    if size <= 16:
        # So short an Ext may have one of the headers for fixed lengths.
        return []
    pieces[0] = _ext_header(7, size) + pieces[0]
    return pieces


_ARRAY: Final = (0x90, b"\xdc", b"\xdd")
_MAP: Final = (0x80, b"\xde", b"\xdf")


def _header(count: int, headers: tuple[int, bytes, bytes]) -> bytes:
    """The header of an array or a map."""
    short, medium, long = headers
    if count < 16:
        return bytes([short | count])
    return medium + count.to_bytes(2, "big") if count < 0x10000 else long + count.to_bytes(4, "big")


def _header_length(count: int) -> int:
    return 1 if count < 16 else 3 if count < 0x10000 else 5


def _ext_header(code: int, size: int) -> bytes:
    """The header of an Ext of more than 16 bytes."""
    if size < 0x100:
        return bytes([0xC7, size, code])
    if size < 0x10000:
        return b"\xc8" + size.to_bytes(2, "big") + bytes([code])
    return b"\xc9" + size.to_bytes(4, "big") + bytes([code])


_MESSAGE_HEADERS: Final = tuple(_ext_header(5, size) for size in range(2048))
"""The headers of messages by their length: to look one up takes a fraction of the time of making it."""
