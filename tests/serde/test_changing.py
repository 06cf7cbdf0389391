"""Values that other OS threads change while they are stored cause no crash and no unreadable bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict, deque
from contextlib import nullcontext
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from tests.support.factories import config, put
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from tests.support.compiled import compiled_left_out, needs_compiled
from tests.support.uniform import Target

from redis_saver import EncodeError, RedisSaver, TieredSaver
from redis_saver._serde.serializer import FastSerializer, SafeSerializer, safe

FAST, JSONPLUS = FastSerializer(), JsonPlusSerializer()


@pytest.fixture
def target_name() -> str:
    return "redis62"


def run(*arguments: str) -> None:
    """Run tests/serde/changing.py in a process that may crash. Rust's traces are off, as they take long to print."""
    command = [sys.executable, str(Path(__file__).with_name("changing.py")), *arguments]
    environment = {**os.environ, "RUST_BACKTRACE": "0", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]


@pytest.mark.random
@pytest.mark.parametrize("compiled", [pytest.param("with", marks=needs_compiled), "without"])
def test_encoding_survives_changes_at_every_depth(compiled: str) -> None:
    """`python tests/serde/changing.py unsafe` uses LangGraph's own serializer, which dies of SIGSEGV or SIGABRT."""
    run("serializer", compiled)


@pytest.mark.random
@pytest.mark.parametrize("flavour", ["sync", pytest.param("async", marks=pytest.mark.slow)], indirect=True)
async def test_storing_survives_changes_at_every_depth(target: Target) -> None:
    """Covers every kind of serializer and two tiers. Without `safe` in `Base` and `TwoTiers` it crashes too."""
    run("savers", target.flavour, target.url, target.prefix)


# -- which serializers are made safe


class Own(JsonPlusSerializer):
    """A user's serializer with state, whose `dumps_typed` calls its parent."""

    calls = 0

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        self.calls += 1
        return super().dumps_typed(obj)


def test_a_safe_serializer_keeps_its_behaviour() -> None:
    given = Own(pickle_fallback=True, allowed_msgpack_modules=[("a", "B")])
    found: Any = safe(given)
    assert isinstance(found, Own)
    assert isinstance(found, SafeSerializer)
    assert (type(found).__qualname__, type(given)) == ("Own", Own)
    assert found.dumps_typed([datetime(2026, 1, 1)]) == JSONPLUS.dumps_typed([datetime(2026, 1, 1)])
    assert (found.calls, given.calls, found.pickle_fallback) == (1, 0, True)
    assert found.dumps_typed({1j})[0] == "pickle"
    assert isinstance(found.with_msgpack_allowlist([("c", "D")]), SafeSerializer)
    assert safe(found) is found
    assert safe(FAST) is FAST
    cipher = EncryptedSerializer.from_pycryptodome_aes(key=b"0" * 16)
    kept = cipher.serde
    wrapped: Any = safe(cipher)
    assert (type(wrapped), type(wrapped.serde), cipher.serde) == (EncryptedSerializer, SafeSerializer, kept)
    assert cipher.loads_typed(wrapped.dumps_typed([1, {2}])) == [1, {2}]
    other: Any = object()
    assert safe(other) is other


def test_a_cold_saver_gets_a_safe_serializer_in_place() -> None:
    """A copy of the saver would have its own connections, which nobody closes."""
    serde, cold = Own(), InMemorySaver()
    cold.serde = serde
    with RedisSaver.from_conn_string("memory://") as hot:
        tiers = TieredSaver(hot, cold)
    assert tiers.cold is cold
    assert isinstance(cold.serde, SafeSerializer)
    assert isinstance(cold.serde, Own)
    assert type(serde) is Own


def test_mutable_bytes_are_copied() -> None:
    value = bytearray(b"x")
    kind, data = FAST.dumps_typed(value)
    value[0] = 0
    assert (kind, data) == ("bytearray", b"x")


# -- copies have the same bytes


@pytest.fixture(params=["with", "without"])
def compiled_part(request: pytest.FixtureRequest) -> Any:
    """Run a test with the compiled part, and without."""
    with compiled_left_out(FAST) if request.param == "without" else nullcontext():
        yield


class Liar(list):  # type: ignore[type-arg]
    """A list whose methods lie about its contents."""

    def __iter__(self) -> Any:
        return iter(["other"])

    def __len__(self) -> int:
        return 0

    def __getitem__(self, at: Any) -> Any:
        raise AssertionError

    copy = __getitem__


class Fibber(dict):  # type: ignore[type-arg]
    """A dict whose methods lie about its contents."""

    def items(self) -> Any:
        return [("other", 1)]

    def keys(self) -> Any:
        return ["other"]

    __iter__ = Liar.__iter__
    __len__ = Liar.__len__
    __getitem__ = copy = Liar.__getitem__


class Rows(list, Enum):  # type: ignore[type-arg]
    A = ((1, 2),)


class Color(Enum):
    RED = "red"


def moved() -> OrderedDict[str, Any]:
    """Return an `OrderedDict` in another order than the packer finds it in."""
    found = OrderedDict(a=1, b=2, c={3})
    found.move_to_end("a")
    return found


WHEN = datetime(2026, 1, 1)


@pytest.mark.usefixtures("compiled_part")
@pytest.mark.parametrize(
    "value",
    [
        Liar([1, WHEN, [{2}]]),
        Fibber(a=WHEN, b=[{1}]),
        Fibber({"a": [WHEN], Color.RED: 1}),
        moved(),
        Rows.A,
        {WHEN: 1, Color.RED: 2, (1, "x"): 3, 4: {5}, None: 6, "\ud800x": "\ud800"},
        ([], (), ((WHEN,),), {"a": ()}, {}),
        [[[Rows.A]], [Liar([Fibber(a=Liar([WHEN]))])]],
    ],
    ids=repr,
)
def test_a_copy_is_packed_like_the_value(value: Any) -> None:
    for each in (value, [value, 1], {"a": value, "b": 1}, deque([value]), [{1}, value]):
        try:
            wanted = JSONPLUS.dumps_typed(each)
        except TypeError:  # a key with a lone surrogate
            with pytest.raises(TypeError):
                FAST.dumps_typed(each)
            continue
        assert FAST.dumps_typed(each) == wanted
        assert FAST.dumps_rest(each)[:2] == wanted


@pytest.mark.usefixtures("compiled_part")
def test_a_copy_does_not_see_later_changes() -> None:
    """This includes changes that `default` makes during packing."""

    class Clearing:
        def model_dump(self) -> Any:
            value["list"].clear()
            value["dict"].clear()
            return 1

    value: dict[str, Any] = {"list": [Clearing(), 1, [2]], "dict": {"a": Clearing(), "b": [3]}, "last": 4}
    kept = [[None, 1, [2]], {"a": None, "b": [3]}, 4]
    found = FAST.loads_typed(FAST.dumps_typed(value))
    found["list"][0] = found["dict"]["a"] = None
    assert list(found.values()) == kept


# -- errors of values that cannot be stored


class Changing:
    """An object whose encoding fails `times` times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def model_dump(self) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise RuntimeError("dictionary changed size during iteration")
        return {"a": 1}


async def test_a_changing_value_is_retried_and_then_named(target: Target) -> None:
    uniform = target.uniform()
    await put(uniform, config(), {"a": [Changing(3)]})
    with pytest.raises(EncodeError, match=r"'a'.*Changing cannot be encoded: dictionary changed size.*a copy"):
        await put(uniform, config(), {"a": {"b": [deque([Changing(9)])]}})
    with pytest.raises(EncodeError, match="not msgpack serializable: object"):
        await put(uniform, config(), {"a": [object()]})


def test_a_value_that_contains_itself_raises_an_error() -> None:
    """In its own process, as it exhausts the C stack of LangGraph's JsonPlusSerializer."""
    code = """
from collections import deque
from contextlib import nullcontext
from redis_saver._serde.serializer import FastSerializer, safe
from tests.support.compiled import compiled_left_out
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
def outcomes():
    for depth in (1, 200, 2000):
        value = inner = deque()
        for _ in range(depth):
            inner = [inner]
        value.append(inner)
        twice = []
        twice += [twice, twice]
        for each in (value, inner, twice, {"a": twice}):
            for encode in (FastSerializer().dumps_typed, FastSerializer().dumps_rest, safe(JsonPlusSerializer()).dumps_typed):
                try:
                    encode(each)
                except TypeError as error:
                    yield str(error)
for left_out in (nullcontext, compiled_left_out):
    with left_out():
        found = list(outcomes())
    assert len(found) == 3 * 4 * 3
    assert sum("may contain itself" in one or "contains itself" in one for one in found) > 15, found
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
