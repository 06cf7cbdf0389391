"""`RedisLLMCache`: exact keys, and answers without loss."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import FakeListLLM
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, Generation, GenerationChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import MessagesState, StateGraph

from redis_saver import DecodeError, EncodeError, RedisLLMCache
from redis_saver._cache.entries import CacheKeyspace
from redis_saver._cache.llm import _name
from tests.support.caching import UniformCache, cache_of, keys_of, llm_cache_of
from tests.support.uniform import Target


@pytest.fixture
def models(target: Target) -> UniformCache:
    return llm_cache_of(cache_of(target, on_error="raise"))


MESSAGE = AIMessage(
    content=[{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x"}}],
    id="run-1",
    name="bot",
    tool_calls=[{"name": "f", "args": {"a": [1, None]}, "id": "c1"}],
    invalid_tool_calls=[{"name": "g", "args": "{", "id": "c2", "error": "bad"}],
    usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "input_token_details": {"cache_read": 1}},
    response_metadata={"model": "m", "logprobs": [{"token": "hi", "logprob": -0.1}]},
    additional_kwargs={"x": {"y": 1}},
)
ANSWERS = {
    "none": [],
    "text": [Generation(text="hello", generation_info={"finish_reason": "stop"}), Generation(text="")],
    "chat": [ChatGeneration(message=MESSAGE, generation_info={"finish_reason": "tool_calls", "n": 1.5})],
    "chunks": [ChatGenerationChunk(message=AIMessageChunk(content="a", id="1")), GenerationChunk(text="b")],
    "other roles": [
        ChatGeneration(message=ToolMessage("t", tool_call_id="1")),
        ChatGeneration(message=HumanMessage("h")),
    ],
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_answers_round_trip(models: UniformCache, name: str) -> None:
    assert await models.lookup("prompt", "model") is None
    await models.update("prompt", "model", ANSWERS[name])
    found = await models.lookup("prompt", "model")
    assert type(found) is list
    answers = [_without_id(one) for one in ANSWERS[name]]
    assert found == answers
    for one, other in zip(found, answers, strict=True):
        assert type(one) is type(other) and one.model_dump() == other.model_dump()
        assert getattr(one, "message", None) == getattr(other, "message", None)


def _without_id(answer: Generation) -> Generation:
    if not isinstance(answer, ChatGeneration):
        return answer
    return answer.model_copy(update={"message": answer.message.model_copy(update={"id": None})})


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_cached_answer_is_a_new_message_of_its_thread(target: Target) -> None:
    """With the id of the stored message, `add_messages` would replace the first answer."""
    models, asynchronous = llm_cache_of(cache_of(target)), target.flavour == "async"
    model = GenericFakeChatModel(messages=iter([AIMessage("answer", id="stored")]), cache=models.cache)

    def bot(_: Any) -> Any:
        return {"messages": [model.invoke("hi")]}

    async def abot(_: Any) -> Any:
        return {"messages": [await model.ainvoke("hi")]}

    builder = StateGraph(MessagesState).add_node("bot", abot if asynchronous else bot).set_entry_point("bot")
    graph, config = builder.compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "t"}}
    for count in (1, 2, 3):
        state: Any = {"messages": ("human", "hi")}
        found = await graph.ainvoke(state, config) if asynchronous else graph.invoke(state, config)
        assert [one.content for one in found["messages"]] == ["hi", "answer"] * count
    assert len({one.id for one in found["messages"]}) == 6 and models.stats().hits == 2


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_changed_text_is_kept(models: UniformCache) -> None:
    answer = ChatGeneration(message=AIMessage("said"))
    answer.text = "shown"
    await models.update("p", "m", (answer,))
    assert (await models.lookup("p", "m"))[0].text == "shown"


async def test_keys_are_exact(models: UniformCache) -> None:
    asked = [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", ""), ("1:a", "b"), ("a", "1:b"), ("\ud800", "\0")]
    asked.append(("p" * 10**6, "m"))
    for number, (prompt, model) in enumerate(asked):
        await models.update(prompt, model, [Generation(text=str(number))])
    for number, (prompt, model) in enumerate(asked):
        assert await models.lookup(prompt, model) == [Generation(text=str(number))]


@pytest.mark.parametrize("target_name", ["redis"])
async def test_an_llm_cache_may_have_its_own_ttl(target: Target) -> None:
    cache = cache_of(target, ttl="1h")
    await llm_cache_of(cache, ttl="100ms").update("short", "m", [Generation(text="x")])
    await llm_cache_of(cache).update("long", "m", [Generation(text="x")])
    assert -1 not in [target.raw.pttl(key) for key in keys_of(target)], "a key has no deadline"
    await asyncio.sleep(0.15)
    models = llm_cache_of(cache)
    assert await models.lookup("short", "m") is None
    assert await models.lookup("long", "m") == [Generation(text="x")]


@pytest.mark.parametrize("target_name", ["redis", "cluster"])
async def test_clear_removes_all_answers(target: Target, models: UniformCache) -> None:
    for number in range(40):
        await models.update(str(number), "m", [Generation(text="x")])
    await models.clear()
    assert [await models.lookup(str(number), "m") for number in range(40)] == [None] * 40
    assert not [key for key in target.keys() if b":entry:" in key]
    with pytest.raises(TypeError, match="no argument 'llm_string'"):
        await models.clear(llm_string="m")


class OfAProvider(Generation):
    """A provider's subclass with an extra field."""

    more: int = 1


@pytest.mark.parametrize("target_name", ["redis"])
async def test_answers_that_would_lose_data_are_refused(target: Target, models: UniformCache) -> None:
    for answers in ([OfAProvider(text="x")], ["text"], [Generation(text="x", generation_info={"f": object()})]):
        with pytest.raises(EncodeError):
            await models.update("p", "m", answers)
    assert target.keys() == []
    with pytest.raises(TypeError, match="pass a RedisCache or an AsyncRedisCache"):
        RedisLLMCache(target.raw)


MALFORMED = [
    b"7:msgpack\x01", b"7:msgpack\x91\x80", b'4:json[{"kind": "Generation", "text": 1}]', b'4:json[{"kind": "X"}]'
]  # fmt: skip


@pytest.mark.parametrize("target_name", ["redis"])
async def test_a_malformed_answer_is_a_miss_and_counts_as_an_error(target: Target, models: UniformCache) -> None:
    await models.update("p", "m", [Generation(text="x")])
    entry = CacheKeyspace(target.prefix, b"llm_cache").address(_name("p", "m")).entry
    stamp = target.raw.get(entry)[:17]
    for raw in MALFORMED:
        target.raw.set(entry, stamp + raw)
        with pytest.raises(DecodeError):
            await models.lookup("p", "m")
        skipping = llm_cache_of(cache_of(target))
        assert await skipping.lookup("p", "m") is None
        assert skipping.stats().errors == 1


@pytest.mark.parametrize("target_name", ["redis"])
async def test_an_encrypting_cache_hides_prompts_and_answers(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "k" * 32)
    models = llm_cache_of(cache_of(target, serde=EncryptedSerializer.from_pycryptodome_aes()))
    await models.update("the secret prompt", "m", [Generation(text="the secret")])
    assert await models.lookup("the secret prompt", "m") == [Generation(text="the secret")]
    for key in target.keys():
        assert b"secret" not in key
        assert b"secret" not in (target.raw.get(key) if target.raw.type(key) == b"string" else b"")


@pytest.mark.parametrize("target_name", ["redis"])
async def test_langchain_models_use_the_cache(target: Target) -> None:
    """It is LangChain's global cache, or a model's own."""
    models, asynchronous = llm_cache_of(cache_of(target)), target.flavour == "async"

    async def ask(model: Any, prompt: str) -> Any:
        return await model.ainvoke(prompt) if asynchronous else model.invoke(prompt)

    set_llm_cache(models.cache)
    try:
        chat = GenericFakeChatModel(messages=iter([MESSAGE, AIMessage("second")]))
        first = await ask(chat, "hi")
        again = await ask(chat, "hi")
        assert (again.content, again.tool_calls) == (first.content, first.tool_calls)
        assert (await ask(chat, "other")).content == "second"
    finally:
        set_llm_cache(None)
    llm = FakeListLLM(responses=["one", "two"], cache=models.cache)
    assert [await ask(llm, "a"), await ask(llm, "a"), await ask(llm, "b")] == ["one", "one", "two"]
    assert models.stats().hits == 2


@pytest.mark.parametrize("target_name", ["redis"])
async def test_single_flight_asks_the_model_once(target: Target) -> None:
    from test_single_flight import alone

    models, asked = llm_cache_of(cache_of(target, single_flight="20s")), list[int]()

    async def ask() -> Any:
        if (found := await models.in_thread("lookup", "p", "m")) is None:
            asked.append(1)
            await asyncio.sleep(0.1)
            found = [Generation(text="x")]
            await models.in_thread("update", "p", "m", found)
        return found

    assert await asyncio.gather(*(alone(ask()) for _ in range(4))) == [[Generation(text="x")]] * 4
    assert len(asked) == 1
