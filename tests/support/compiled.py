"""The serializer without its compiled part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from redis_saver._serde import cutter, fallback, fingerprint, messages
from redis_saver._serde.serializer import FastSerializer

needs_compiled = pytest.mark.skipif(
    messages.native is None, reason="redis_saver._serde.native was not built: there was no C compiler"
)


@contextmanager
def compiled_left_out(*serializers: FastSerializer) -> Iterator[None]:
    """Run a block as if the compiled part had not been built.

    Resets the given serializers, which must have no settings.
    """
    native, classes = messages.native, set(messages.CLASSES)

    def bind(native: object, classes: set[type]) -> None:
        messages.native = fallback.native = fingerprint.native = cutter.native = native
        messages.CLASSES.clear()
        messages.CLASSES.update(classes)
        for serializer in serializers:
            FastSerializer.__init__(serializer)

    bind(None, set())
    try:
        yield
    finally:
        bind(native, classes)
