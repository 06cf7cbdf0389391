"""`RedisLLMCache`: LangChain's cache of models' answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

from langchain_core.caches import BaseCache
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, Generation, GenerationChunk
from langgraph.cache.base import FullKey
from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_saver._cache.cache import Cache
from redis_saver._cache.entries import MODELS
from redis_saver._common import ttl as ttls
from redis_saver._common.display import kind_of
from redis_saver._common.names import encode
from redis_saver._engine.counting import Measured
from redis_saver._engine.stats import CacheStats

_KINDS: Mapping[str, type[Generation]] = {
    kind.__name__: kind for kind in (Generation, GenerationChunk, ChatGeneration, ChatGenerationChunk)
}


class RedisLLMCache(BaseCache):
    """LangChain's cache of models' answers, on the server of a `RedisCache` or `AsyncRedisCache`.

        set_llm_cache(RedisLLMCache(cache, ttl="7d"))

    It shares the client, the serializer, `on_error`, `single_flight` and the counts of that cache. Their keys differ:
    neither cache reads or clears entries of the other. `lookup` and `update` take one round trip each.
    """

    def __init__(self, cache: Cache[Any, Any], *, ttl: timedelta | str | None = None) -> None:
        """Use the server of a cache.

        Args:
            cache: The cache. With an `AsyncRedisCache`, call models by their `a...` methods.
            ttl: TTL of an answer. Default: the cache's `ttl`.

        Raises:
            TypeError, ValueError: An argument is invalid.
        """
        if not isinstance(cache, Cache):
            raise TypeError(f"cache is {kind_of(cache)}: pass a RedisCache or an AsyncRedisCache")
        milliseconds = ttls.parse(ttl, refresh_allowed=False).milliseconds
        self._seconds: Any = None if milliseconds is None else milliseconds / 1000
        self._entries: Cache[Any, Sequence[Generation]] = cache._in_room(  # noqa: SLF001 - it is of ours
            MODELS, _GenerationSerializer(cache.serde)
        )

    def stats(self) -> CacheStats:
        """Return the counts of both caches in this process."""
        return self._entries.stats()

    def _measured(self) -> Measured:
        return self._entries._measured()  # noqa: SLF001 - it is of ours

    def lookup(self, prompt: str, llm_string: str) -> Sequence[Generation] | None:
        """Return the answers to a prompt, or None if there are none. Each message is a new one, without an id."""
        name = _name(prompt, llm_string)
        return self._entries.get([name]).get(name)

    async def alookup(self, prompt: str, llm_string: str) -> Sequence[Generation] | None:
        """`lookup` for asyncio."""
        name = _name(prompt, llm_string)
        return (await self._entries.aget([name])).get(name)

    def update(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        """Store the answers to a prompt.

        Raises:
            EncodeError: An answer is not a `Generation`, a `ChatGeneration` or a chunk of these, or the serializer
                cannot encode it.
        """
        self._entries.set({_name(prompt, llm_string): (return_val, self._seconds)})

    async def aupdate(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        """`update` for asyncio."""
        await self._entries.aset({_name(prompt, llm_string): (return_val, self._seconds)})

    def clear(self, **kwargs: Any) -> None:
        """Clear all answers, of all models, as `RedisCache.clear` does without namespaces.

        Raises:
            TypeError: There are keywords. Clearing a part of the answers is not supported.
        """
        _refuse(kwargs)
        self._entries.clear()

    async def aclear(self, **kwargs: Any) -> None:
        """`clear` for asyncio."""
        _refuse(kwargs)
        await self._entries.aclear()


class _GenerationSerializer:
    """Dumps generations as lists and dicts, and leaves messages to the serializer.

    A serializer would dump only the declared fields of a generation. Then a message would lose the fields of its own
    class, such as tool calls.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return self._serde.dumps_typed(None if obj is None else [_plain(generation) for generation in obj])

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return [_generation(**fields) for fields in self._serde.loads_typed(data)]


def _plain(generation: Generation) -> dict[str, Any]:
    kind = type(generation)
    if _KINDS.get(kind.__name__) is not kind:
        raise TypeError(f"it is {kind_of(generation)}, and only {', '.join(_KINDS)} can be stored")
    fields = {"kind": kind.__name__, "text": generation.text, "generation_info": generation.generation_info}
    return {**fields, "message": generation.message} if isinstance(generation, ChatGeneration) else fields


def _generation(kind: str, text: str, **fields: Any) -> Generation:
    made = _KINDS[kind](text=text, **fields)
    if isinstance(made, ChatGeneration):
        made.message.id = None  # by the id, `add_messages` would replace an earlier answer of the thread
    if made.text != text:  # a chat generation takes its text from the message
        made.text = text
    return made


def _name(prompt: str, llm_string: str) -> FullKey:
    """Return a digest of both. Its first digit is the namespace, which spreads the answers over all shards."""
    digest = sha256()
    for part in (encode(prompt), encode(llm_string)):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    name = digest.hexdigest()
    return (name[0],), name


def _refuse(keywords: Mapping[str, object]) -> None:
    if keywords:
        raise TypeError(f"clear() has no argument {min(keywords)!r}: it clears all answers")
