"""With encryption, errors that may quote a value are stored and logged by their class alone."""

from __future__ import annotations

import logging
from typing import Any

import psycopg
import pytest
import redis
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from tests.support.factories import config, put
from tests.support.tiering import BEHIND, Tiers, keys_of
from tests.support.uniform import Target, encryption

from redis_saver import RedisCache
from redis_saver._common.logs import log_text
from redis_saver.encryption import Encryption, KeyContext, Keyset, WrappedKey
from redis_saver.errors import BacklogFull, DecodeError, KeyUnavailable, StoreDamaged, decoding

pytestmark = [pytest.mark.plain("each of its tests sets encryption= itself"), pytest.mark.also_on()]
SECRET = "a secret of the user"


class Quoting(JsonPlusSerializer):
    """A serializer that refuses some values, and quotes them."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if SECRET in repr(obj):
            raise TypeError(f"cannot serialize {obj!r}")
        return super().dumps_typed(obj)


@pytest.mark.parametrize("encrypts", [True, False])
async def test_a_record_that_cold_refuses_quotes_no_value(
    tiers: Tiers, encrypts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cold = await tiers.cold()
    cold.serde = Quoting()
    hot = {"encryption": encryption()} if encrypts else {}
    uniform = await tiers.uniform(hot=hot, cold=cold, **BEHIND)
    caplog.set_level(logging.INFO)
    await uniform.get_tuple(config())  # so that hot may answer alone
    await put(uniform, config(), {"text": [SECRET]})
    while not uniform.saver.stats().tiers.refused:
        await uniform.flush(timeout=0.5)
    stored = b" ".join(value for pair in tiers.target.raw.hgetall(keys_of(tiers).flush).items() for value in pair)
    said = " ".join([*caplog.messages, uniform.saver.stats().tiers.last_error])
    assert b"TypeError" in stored and "TypeError" in said and "'thread'" in said
    assert (SECRET.encode() in stored, SECRET in said) == (not encrypts, not encrypts)


def of_decoding(error: Exception) -> Exception:
    with pytest.raises(DecodeError) as raised, decoding("the value of channel {!r}", "text"):
        raise error
    return raised.value


SAME = [BacklogFull("too many"), KeyUnavailable("the key 'a' is gone")]
SAME += [redis.ConnectionError("no answer"), psycopg.OperationalError("no answer"), OSError("no answer")]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TypeError(SECRET), "TypeError"),
        (ValueError(SECRET), "ValueError"),
        (psycopg.errors.InvalidTextRepresentation(SECRET), "InvalidTextRepresentation 22P02"),
        (of_decoding(TypeError(SECRET)), "DecodeError: cannot decode the value of channel 'text' (TypeError)"),
        (StoreDamaged(f"'key' holds other data: ValueError: {SECRET}"), "StoreDamaged: 'key' holds other data"),
        *((error, f"{type(error).__name__}: {error}") for error in SAME),
    ],
)
def test_a_log_line_names_the_class_and_the_place(error: Exception, text: str) -> None:
    assert log_text(error, is_encrypted=True) == text


async def test_a_provider_that_quotes_a_key_is_named_by_its_error(target: Target) -> None:
    class Broken(Keyset):
        def wrap(self, data_key: bytes, context: KeyContext, name: str | None) -> WrappedKey:
            raise RuntimeError(f"invalid parameter {data_key!r}: {SECRET}")

    cache = RedisCache[Any](target.raw, prefix=target.prefix, encryption=Encryption(Broken({"a": bytes(32)})))
    cache.set({(("a",), "key"): ("value", None)})
    assert "RuntimeError" in cache.stats().last_error
    assert SECRET not in cache.stats().last_error
