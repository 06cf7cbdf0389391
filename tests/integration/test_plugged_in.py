"""Errors in what a program plugs in, such as log filters, telemetry, serializers and models.

They change no other call's result, and end no worker. Here each plug-in raises on each call.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import psycopg
import pytest
import redis
from tests.support.caching import cache_of
from tests.support.embedding import DIMS, Model
from tests.support.factories import checkpoint, config
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.store.memory import InMemoryStore
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler
from tests.support.uniform import Target, Uniform
from tests.support.wrappers import Around, script_of

from redis_saver import AsyncTieredSaver, AsyncTieredStore, DecodeError, EncodeError, TieredSaver, TieredStore
from redis_saver._client import loops
from redis_saver._common import logs
from redis_saver._checkpoint import scripts
from redis_saver._tiered import backlog, flush_queue
from redis_saver.telemetry import instrument, log_slow_calls

pytestmark = pytest.mark.parametrize("target_name", ["redis"])
UNSET: contextvars.ContextVar[str] = contextvars.ContextVar("unset")
"""Variable that log filters of real programs read. It is set in requests, but not in background workers."""
NS, ITEM = ("memories", "ann"), (("node",), "key")


class Raising:
    """An object that raises in each method, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.calls += 1
        return UNSET.get()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


# -- plug-ins, each for the length of a block


@contextmanager
def a_filter(_: Any) -> Iterator[Raising]:
    raising = Raising()
    with _levels() as loggers:
        for logger in loggers:
            logger.addFilter(raising)
        yield raising
        for logger in loggers:
            logger.removeFilter(raising)


@contextmanager
def a_handler(_: Any) -> Iterator[Raising]:
    raising, logger = Raising(), logging.getLogger("redis_saver")
    raising.level = 0  # type: ignore[attr-defined]
    with _levels():
        logger.addHandler(raising)  # type: ignore[arg-type]
        yield raising
        logger.removeHandler(raising)  # type: ignore[arg-type]


@contextmanager
def a_record_factory(_: Any) -> Iterator[Raising]:
    raising, before = Raising(), logging.getLogRecordFactory()

    def factory(name: str, *arguments: Any, **options: Any) -> Any:
        return raising() if name.startswith("redis_saver") else before(name, *arguments, **options)

    with _levels():
        logging.setLogRecordFactory(factory)
        yield raising
        logging.setLogRecordFactory(before)


def a_span_processor(method: str) -> Any:
    @contextmanager
    def plugged(thing: Any) -> Iterator[Raising]:
        raising, provider = Raising(), TracerProvider()
        provider.add_span_processor(type("Processor", (SpanProcessor,), {method: lambda *_, **__: raising()})())
        instrument(thing, tracer_provider=provider)
        yield raising

    return plugged


@contextmanager
def a_sampler(thing: Any) -> Iterator[Raising]:
    raising = Raising()
    methods = {"should_sample": lambda *_, **__: raising(), "get_description": lambda _: "raises"}
    instrument(thing, tracer_provider=TracerProvider(sampler=type("Raises", (Sampler,), methods)()))
    yield raising


class Meter:
    """A meter whose histograms are given, and whose other instruments do nothing."""

    def __init__(self, histogram: Any) -> None:
        self.histogram = histogram

    def get_meter(self, *_: Any, **__: Any) -> Any:
        return self

    def create_histogram(self, *_: Any, **__: Any) -> Any:
        return self.histogram

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@contextmanager
def a_meter(thing: Any) -> Iterator[Raising]:
    raising = Raising()
    instrument(thing, Meter(raising))
    yield raising


@contextmanager
def warnings_as_errors(_: Any) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield None


LOGGERS = [
    f"redis_saver.{name}" for name in ("client", "checkpoint", "store", "cache", "tiered", "tiered_store", "telemetry")
]
KINDS: dict[str, Callable[[Any], Any]] = {
    "a_filter": a_filter,
    "a_handler": a_handler,
    "a_record_factory": a_record_factory,
    "a_span_processor_at_the_start": a_span_processor("on_start"),
    "a_span_processor_at_the_end": a_span_processor("on_end"),
    "a_sampler": a_sampler,
    "a_meter": a_meter,
    "warnings_as_errors": warnings_as_errors,
}


@contextmanager
def _levels() -> Iterator[list[logging.Logger]]:
    """Let all our loggers log; yield them."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.INFO)
    yield loggers
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Errors that `sys.unraisablehook` received."""
    errors = list[BaseException]()
    monkeypatch.setattr(sys, "unraisablehook", lambda args: errors.append(args.exc_value))
    monkeypatch.setattr(logs, "_ignored", logs._Throttle())
    return errors


# -- calls


def failing_once(thing: Any) -> None:
    """Let each kind of request fail once, so that there is something to log."""
    seen = set[Any]()

    def around(request: Any) -> Any:
        kind = script_of(request) or type(request)
        if kind not in seen:
            seen.add(kind)
            raise redis.ConnectionError("fails on purpose")
        return (yield request)

    Around(thing, around)


async def calls_of_a_saver(saver: Uniform) -> list[Any]:
    one = checkpoint({"n": [1, "two"]}, checkpoint_id="1f0c8f00-0000-6000-8000-000000000001")
    return await results(
        saver,
        ("put", config("t"), one, {"step": 1}, one["channel_versions"]),
        ("put_writes", config("t", checkpoint_id=one["id"]), [("n", 1)], "task"),
        *(("get_tuple", config("t")), ("list", config("t")), ("get_tuple", config("nothing")), ("prune", ["t"])),
        *(("copy_thread", "t", "u"), ("delete_thread", "t"), ("get_tuple", config("t")), ("list", config("u"))),
    )


async def calls_of_a_store(store: Uniform) -> list[Any]:
    calls = [("put", NS, "k", {"text": "apple"}), ("get", NS, "k"), ("search", NS), ("list_namespaces",)]
    return [_plain(each) for each in await results(store, *calls, ("delete", NS, "k"), ("get", NS, "k"))]


async def calls_of_a_cache(cache: Any) -> list[Any]:
    return await results(cache, ("set", {ITEM: (1, None)}), ("get", [ITEM]), ("clear", [ITEM[0]]), ("get", [ITEM]))


async def results(thing: Any, *calls: tuple[Any, ...]) -> list[Any]:
    """Return each call's result, or the type of its error. A call is a method's name, and its arguments."""
    found = list[Any]()
    for method, *arguments in calls:
        try:
            found.append(await getattr(thing, method)(*arguments))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
            found.append(type(error))
    return found


def _plain(answer: Any) -> Any:
    """Return an answer of a store without times."""
    if isinstance(answer, list):
        return [_plain(each) for each in answer]
    return answer.value if hasattr(answer, "updated_at") else answer


async def made(kind: str, target: Target, prefix: str) -> tuple[Any, Any, Callable[[Any], Awaitable[list[Any]]]]:
    """Make a saver, store or cache. Returns it, the object to instrument, and the function that calls it."""
    is_async = target.flavour == "async"
    if kind == "cache":
        cache = cache_of(target, prefix=prefix, client=target.client(retry=None))
        cache.cache._health._now = lambda: 0.0  # the clock stands still, so a cache that failed is not tried again
        return cache, cache.cache, calls_of_a_cache
    if kind == "store":
        store = target.store(prefix=prefix)
        return store, store.saver, calls_of_a_store
    if kind == "tiered store":
        both: Any = (AsyncTieredStore if is_async else TieredStore)(target.store(prefix=prefix).saver, InMemoryStore())
        return Uniform(both), both, calls_of_a_store
    saver = target.uniform(prefix=prefix)
    if kind == "tiers":
        tiers: Any = (AsyncTieredSaver if is_async else TieredSaver)(saver.saver, InMemorySaver())
        return Uniform(tiers), tiers, calls_of_a_saver
    return saver, saver.saver, calls_of_a_saver


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("kind", ["saver", "store", "cache", "tiers", "tiered store"])
@pytest.mark.parametrize("plugged", KINDS)
@pytest.mark.by_turns
async def test_a_raising_plug_in_changes_no_result(
    target: Target, plugged: str, kind: str, fails: bool, told: list[BaseException]
) -> None:
    """All calls are logged, and some requests fail once. The results must equal those without a plug-in."""
    answers = list[Any]()
    for turn in ("without", "with"):
        uniform, thing, calls = await made(kind, target, f"{target.prefix}-{turn}")
        if fails:
            failing_once(thing if kind not in ("tiers", "tiered store") else thing.hot)
        if turn == "without":
            answers.append(await calls(uniform))
            continue
        log_slow_calls(thing, 0)
        with KINDS[plugged](thing) as raising:
            answers.append(await calls(uniform))
    assert answers[0] == answers[1]
    if raising is not None:
        assert raising.calls >= len(answers[0])
        assert LookupError in {type(error) for error in told}


@pytest.mark.parametrize("flavour", ["async"])
async def test_a_logging_error_fails_no_caller_of_a_shared_pipeline(target: Target, told: list[BaseException]) -> None:
    saver, failed = target.uniform(), list[int]()
    batcher = saver.saver._driver.batcher()
    pipeline = batcher.client.pipeline

    def failing(*arguments: Any, **options: Any) -> Any:
        made = pipeline(*arguments, **options)
        if not failed:
            failed.append(1)

            async def execute(**_: Any) -> Any:
                raise redis.ConnectionError("fails on purpose")

            made.execute = execute
        return made

    batcher.client.pipeline = failing
    with a_filter(None) as raising:
        answers = await asyncio.gather(*(saver.get_tuple(config(f"t{number}")) for number in range(60)))
    assert answers == [None] * 60
    assert (failed, raising.calls, len(told)) == ([1], 1, 1)


async def test_a_keyboard_interrupt_in_a_log_filter_propagates(target: Target) -> None:
    class Stops(logging.Filter):
        def filter(self, _: Any) -> bool:
            raise KeyboardInterrupt

    saver, stops = target.uniform(), Stops()
    log_slow_calls(saver.saver, 0)
    logger = logging.getLogger("redis_saver.telemetry")
    logger.addFilter(stops)
    try:
        with pytest.raises(KeyboardInterrupt):
            saver.saver._counting.call(_ for _ in ()).send(None)
    finally:
        logger.removeFilter(stops)


# -- serializers and embedders


class Serializer(JsonPlusSerializer):
    """A serializer that raises while `failing` is not empty. Savers copy it, and all copies share `failing`."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = set[str]()

    def dumps_typed(self, obj: Any) -> Any:
        if self.failing:
            raise LookupError("cannot write this")
        return super().dumps_typed(obj)

    def loads_typed(self, data: Any) -> Any:
        if self.failing:
            raise LookupError("cannot read this")
        return super().loads_typed(data)


async def test_a_serializer_error_fails_only_its_own_call(target: Target) -> None:
    serde = Serializer()
    saver, store = target.uniform(serde=serde), target.store(serde=serde)
    cache = cache_of(target, serde=serde, on_error="raise")
    one = checkpoint({"n": [1, "two"]})
    writes: list[Callable[[], Awaitable[Any]]] = [
        lambda: saver.put(config("t"), one, {}, one["channel_versions"]),
        lambda: saver.put_writes(config("t", checkpoint_id=one["id"]), [("n", [1, "two"])], "task"),
        lambda: store.put(NS, "k", {"text": "apple"}),
        lambda: cache.set({ITEM: (["one"], None)}),
    ]
    reads: list[Callable[[], Awaitable[Any]]] = [
        lambda: saver.get_tuple(config("t")),
        lambda: saver.list(config("t")),
        lambda: store.get(NS, "k"),
        lambda: cache.get([ITEM]),
    ]
    for call in (*writes, *reads):
        serde.failing.add("each call")
        with pytest.raises(EncodeError if call in writes else DecodeError) as caught:
            await call()
        assert type(caught.value.__cause__) is LookupError
        serde.failing.clear()
        answer = await call()
        assert answer or call in writes


async def test_an_embedder_error_fails_only_its_own_call(target: Target) -> None:
    model = Model()
    is_failing = [True]

    def embed(texts: Any) -> Any:
        if is_failing[0]:
            raise LookupError("no model here")
        return model(texts)

    store = target.store(index={"dims": DIMS, "embed": embed, "fields": ["text"]})
    for call in (lambda: store.put(NS, "k", {"text": "apple"}), lambda: store.search(NS, query="apple")):
        is_failing[0] = True
        with pytest.raises(LookupError, match="no model here"):
            await call()
        is_failing[0] = False
        await call()
    assert [item.key for item in await store.search(NS, query="apple")] == ["k"]


# -- workers


class Cold(InMemorySaver):
    """A cold saver that raises the error in `raises`, if any, on each call."""

    def __init__(self) -> None:
        super().__init__()
        self.raises: BaseException | None = None
        self.calls = 0

    def put(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.raises is not None:
            raise self.raises
        return super().put(*arguments, **options)

    async def aput(self, *arguments: Any, **options: Any) -> Any:
        return self.put(*arguments, **options)


async def until(done: Callable[[], Any]) -> None:
    for _ in range(1500):
        if done():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen in time")


@pytest.fixture
async def behind(target: Target, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A saver in write-behind mode with short pauses after outages, and its cold saver."""
    monkeypatch.setattr(flush_queue, "MAX_BACKOFF", 0.1)
    monkeypatch.setattr(backlog, "SCAN_INTERVAL", 0.1)
    cold = Cold()
    kind: Any = AsyncTieredSaver if target.flavour == "async" else TieredSaver
    saver = kind(target.uniform().saver, cold, mode="write-behind", flush_interval=0.02, flush_workers=3)
    yield Uniform(saver), cold
    cold.raises = None
    # A worker that was ended keeps its claim for a while, so a flush of all would wait for that.
    await (saver.aclose(timeout=0.5) if target.flavour == "async" else asyncio.to_thread(saver.close, timeout=0.5))


async def put(uniform: Uniform, thread: str) -> None:
    await uniform.get_tuple(config(thread))
    one = checkpoint({"n": [1]})
    await uniform.put(config(thread), one, {}, one["channel_versions"])


def at_work(uniform: Uniform) -> int:
    """Return the number of running workers of the flusher."""
    return sum(thread.is_alive() for thread in uniform.saver._flusher._threads.values())


@pytest.mark.parametrize("plugged", ["a_filter", "a_handler", "a_record_factory"])
async def test_a_logging_error_during_an_outage_ends_no_worker(
    behind: Any, plugged: str, told: list[BaseException]
) -> None:
    uniform, cold = behind
    cold.raises = psycopg.OperationalError("down")
    with KINDS[plugged](None) as raising:
        for number in range(6):
            await put(uniform, f"t{number}")
        await until(lambda: raising.calls)
        await until(lambda: cold.calls > 10)
        assert at_work(uniform) == 4
        cold.raises = None
        await until(lambda: uniform.saver.stats().tiers.flushed == 6)
    assert uniform.saver.stats().tiers.worker_errors == 0
    assert LookupError in {type(error) for error in told}


async def test_a_log_handler_may_use_the_saver_that_logs(behind: Any) -> None:
    uniform, cold = behind
    noted, queue = list[str](), uniform.saver._context.flush_queue

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            queue.note("another", 0.0)
            noted.append(record.getMessage())

    handler = Notes()
    logging.getLogger("redis_saver.tiered").addHandler(handler)
    try:
        cold.raises = psycopg.OperationalError("down")
        await put(uniform, "t")
        await until(lambda: noted)
        cold.raises = None
        await until(lambda: uniform.saver.stats().tiers.flushed == 1)
    finally:
        logging.getLogger("redis_saver.tiered").removeHandler(handler)


@pytest.mark.parametrize("method", ["remember_witnesses", "due", "after_claim"])
async def test_a_worker_survives_an_error_and_counts_it(
    behind: Any, method: str, monkeypatch: pytest.MonkeyPatch, told: list[BaseException]
) -> None:
    uniform, _ = behind
    queue, failures = uniform.saver._context.flush_queue, 5
    right = getattr(queue, method)

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise DeprecationWarning("a warning that was made an error")
        return right(*arguments, **options)

    monkeypatch.setattr(queue, method, failing)
    for number in range(8):
        await put(uniform, f"t{number}")
    await until(lambda: uniform.saver.stats().tiers.flushed >= 8)
    await until(lambda: uniform.saver.stats().tiers.worker_errors == 5)
    assert at_work(uniform) == 4
    assert uniform.saver.stats().tiers.last_error == "DeprecationWarning"
    assert [type(error) for error in told] == [DeprecationWarning], "repeated errors are reported once per interval"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_worker_that_ends_is_replaced(behind: Any, told: list[BaseException]) -> None:
    """SystemExit in the cold saver ends the OS thread, or the task and its turn of the loop."""
    uniform, cold = behind
    cold.raises = SystemExit(1)
    for number in range(3):
        await put(uniform, f"t{number}")
    await until(lambda: cold.calls >= 3)
    cold.raises = None
    await until(lambda: uniform.saver.stats().tiers.worker_errors >= 1)
    await put(uniform, "another")
    await until(lambda: at_work(uniform) == 4)
    await until(lambda: uniform.saver.stats().tiers.flushed >= 1)


@pytest.mark.parametrize("flavour", ["async"])
async def test_a_cancelled_flush_ends_no_worker(behind: Any) -> None:
    """For example, the end of cold's event loop cancels a flush."""
    uniform, cold = behind
    aput, cancelled = cold.aput, list[str]()

    async def hang(where: Any, *arguments: Any, **options: Any) -> Any:
        if where["configurable"]["thread_id"] != "another":
            cancelled.append(where)
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(60)
        return await aput(where, *arguments, **options)

    cold.aput = hang
    for thread in ("t", "u"):
        await put(uniform, thread)
    await until(lambda: len(cancelled) >= 2)
    await put(uniform, "another")
    await until(lambda: uniform.saver.stats().tiers.flushed == 1)
    assert at_work(uniform) == 4
    assert uniform.saver.stats().tiers.worker_errors == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("flavour", ["sync"])
def test_the_background_loop_survives_system_exit_and_keyboard_interrupt(target: Target) -> None:
    async def stops() -> None:
        raise SystemExit(3)

    async def slow() -> str:
        await asyncio.sleep(0.2)
        return "answer"

    slowly = loops.start(slow())
    loop = loops._background.loop()
    with pytest.raises(SystemExit):
        loops.call(stops())
    assert slowly.result(30) == "answer", "another caller gets its own answer"
    loop.call_soon_threadsafe(lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert loops.call(slow()) == "answer"
    assert loops._background.loop() is loop


@pytest.mark.parametrize("error", [redis.ConnectionError("fails on purpose"), SystemExit(1)])
@pytest.mark.parametrize("plugged", ["a_filter", "a_handler", "a_record_factory"])
async def test_logging_errors_do_not_stop_lease_renewal(
    target: Target, plugged: str, error: BaseException, told: list[BaseException]
) -> None:
    """Three renewals fail, and cannot be logged. Later ones succeed, so no one else gets the thread."""
    uniform, renewals, failures = target.uniform(), list[int](), [1, 2, 3]

    def around(request: Any) -> Any:
        if script_of(request) is scripts.RENEW_OWNERSHIP:
            if failures:
                failures.pop()
                raise error
            renewals.append(1)
        return (yield request)

    Around(uniform.saver, around)
    with KINDS[plugged](None):
        async with AsyncExitStack() as stack:
            owned = uniform.saver.own("t", lease="1s")
            (await stack.enter_async_context(owned)) if uniform.native_async else stack.enter_context(owned)
            await until(lambda: len(renewals) >= 3)
            assert not failures
            assert not owned.is_lost
            other = target.uniform()
            with pytest.raises(Exception, match="own"):
                async with AsyncExitStack() as inner:
                    theirs = other.saver.own("t")
                    (await inner.enter_async_context(theirs)) if other.native_async else inner.enter_context(theirs)
