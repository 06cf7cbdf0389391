from __future__ import annotations

import gc
import itertools
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from tests.support import seeds
from hypothesis import HealthCheck, settings
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.store.postgres import PostgresStore
from tests.support.servers import TARGETS, new_database, url_of
from tests.support.store_tiering import StoreTiers
from tests.support.tiering import Tiers
from tests.support.uniform import Target, Uniform

from bench.servers import postgres_server
from redis_saver._storage import keys as data_keys, sealing

_counter = itertools.count()
settings.register_profile(
    "of these tests", derandomize=False, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("of these tests")  # no deadline, as the machine may be busy
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each program that a test starts compiles the package
sys.dont_write_bytecode = False  # otherwise each worker rewrites the assertions of all tests
gc.disable()  # imports and collected tests stay in memory, and scanning them takes a quarter of the collection time


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give Hypothesis the seed of the other random tests."""
    seed = seeds.given()
    config.option.hypothesis_seed = str(seeds.of_code() if seed is None else seed)


def pytest_xdist_auto_num_workers() -> int:
    """Return three workers more than processors for `-n auto`, as many tests wait. Each worker collects for 14 s."""
    return (os.cpu_count() or 1) + 3


FLAVOURS = ["sync", "async"]
ALWAYS_ON = "redis"
"""Server on which each test of behaviour runs."""
ALSO_ON = {"cluster": "async"}
"""Other servers of each test of behaviour, with the flavour there. The mark `also_on` overrides them.

The flavours differ only in their drivers, which `tests/client` tests. So on Redis a test runs in the flavour that its
first other server leaves over. The slow suite runs the other flavour on Redis, too.
"""


ENCRYPTED_TOO = {"cache", "checkpoint", "store", "tiered"}
"""Folders whose tests of behaviour run with encryption, too."""


@pytest.hookimpl(hookwrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Make only the cases that the suite runs, because each worker makes all of its own.

    Redundant combinations are left out, unless the environment names the servers. The slow suite has the cases that
    the mark `by_turns` leaves out, and Redis in the flavour of another server.
    """
    yield
    _with_encryption(metafunc)
    calls, test = metafunc._calls, metafunc.definition
    if not os.environ.get(seeds.ON):
        calls[:] = [call for call in calls if not _shows_nothing_more(test, call.params)]
        is_elsewhere = any(call.params.get("target_name", ALWAYS_ON) != ALWAYS_ON for call in calls)
        for call in (*_not_their_turn(test, calls), *(c for c in calls if is_elsewhere and _repeats(test, c.params))):
            call.marks.append(pytest.mark.slow.mark)
    if metafunc.config.option.markexpr == "not slow":
        calls[:] = [call for call in calls if all(mark.name != "slow" for mark in call.marks)] or calls[:1]


def _with_encryption(metafunc: pytest.Metafunc) -> None:
    """Run tests of behaviour with encryption, too, except those with the mark `plain`."""
    marks = {mark.name: mark for mark in metafunc.definition.iter_markers()}
    if "plain" in marks:
        assert marks["plain"].args, f"{metafunc.definition.nodeid}: say what encryption changes: plain('...')"
    shows_behaviour = metafunc.definition.path.parent.name in ENCRYPTED_TOO and "target" in metafunc.fixturenames
    if marks.keys() & {"encrypted_too", "encrypted_slow"} or (shows_behaviour and "plain" not in marks):
        more = pytest.param(
            True,
            id="encrypted",
            marks=[] if "encrypted_too" in marks and "encrypted_slow" not in marks else pytest.mark.slow,
        )
        metafunc.parametrize("is_encrypted", [pytest.param(False, id=""), more])


@pytest.fixture
def is_encrypted() -> bool:
    """True if the target's savers encrypt."""
    return False


@pytest.fixture
def same_data_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all data keys equal, so that a test can compare what is stored."""
    monkeypatch.setattr(data_keys, "os", SimpleNamespace(urandom=bytes))
    for module in (data_keys, sealing):
        monkeypatch.setattr(module, "new_id", lambda: bytes(sealing.ID))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze the million objects that were imported and collected, so that the garbage collector skips them."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Unfreeze, as Hypothesis looks for references to its arguments at the end, and cannot find frozen ones."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print each reason for which tests were skipped, so that a server that is not here is not missed in silence."""
    skipped = terminalreporter.stats.get("skipped", ())
    for reason, count in Counter(report.longrepr[-1] for report in skipped).items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


def _shows_nothing_more(test: pytest.Item, given: dict[str, Any]) -> bool:
    if "flavour" not in given:
        return False
    named, also = _named(test), _also_on(test)
    server = given.get("target_name", ALWAYS_ON)
    if given.get("is_encrypted") and server != ALWAYS_ON:
        return True
    if server == ALWAYS_ON or "target_name" in named or test.get_closest_marker("everywhere"):
        return False
    return server not in also or ("flavour" not in named and given["flavour"] != also[server])


def _not_their_turn(test: pytest.Item, calls: Sequence[Any]) -> Iterator[Any]:
    """Yield the cases that `by_turns` leaves out: even ones in the second flavour, odd ones in the first."""
    cases: dict[Any, int] = {}
    for call in calls if test.get_closest_marker("by_turns") else ():
        if all(mark.name != "slow" for mark in call.marks):
            case = tuple((name, id(value)) for name, value in call.params.items() if name != "flavour")
            if call.params["flavour"] != FLAVOURS[cases.setdefault(case, len(cases)) % 2]:
                yield call


def _repeats(test: pytest.Item, given: dict[str, Any]) -> bool:
    """True if the case is on Redis in the flavour of the test's first other server."""
    if given.get("target_name") != ALWAYS_ON or {"target_name", "flavour"} & _named(test):
        return False
    if test.get_closest_marker("everywhere") or test.get_closest_marker("by_turns"):
        return False
    return given.get("flavour") == next(iter(_also_on(test).values()), None)


def _named(test: pytest.Item) -> set[str]:
    """Return the parameters whose values the test names itself."""
    return {name.strip() for mark in test.iter_markers("parametrize") for name in _names(mark.args[0])}


def _names(argument: str | Sequence[str]) -> Sequence[str]:
    return argument.split(",") if isinstance(argument, str) else argument


def _also_on(test: pytest.Item) -> dict[str, str]:
    mark = test.get_closest_marker("also_on")
    return ALSO_ON if mark is None else dict(mark.kwargs)


@pytest.fixture(params=TARGETS)
def target_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def target(target_name: str, flavour: str, is_encrypted: bool) -> AsyncIterator[Target]:
    """A target for each kind of server, in each flavour."""
    prefix = f"t{os.getpid()}-{next(_counter)}"
    made = Target(target_name, flavour, url_of(target_name), prefix, is_encrypted=is_encrypted)
    yield made
    if keys := made.keys():  # otherwise each scan of the keys takes longer than the one before
        made.raw.unlink(*keys)
    await made.close()


@pytest.fixture
def saver(target: Target) -> Uniform:
    """A saver on each kind of server, in each flavour."""
    return target.uniform()


@pytest.fixture
def store(target: Target) -> Uniform:
    """A store on each kind of server, in each flavour."""
    return target.store()


UNSAFE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off", "max_wal_size=4GB")
"""Settings of a Postgres that trade durability for speed."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A Postgres, started on first use."""
    with postgres_server(*UNSAFE) as url:
        yield url


@pytest.fixture
def empty_database(postgres: str) -> str:
    """A database of the test's own."""
    return new_database(postgres)


@pytest.fixture(scope="session")
def database(postgres: str) -> str:
    """A database with LangGraph's tables. Tests empty it, as making one takes longer than most tests."""
    url = new_database(postgres)
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
    return url


@pytest.fixture(scope="session")
def emptying(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that empties the tables, as opening one takes longer than that."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def tiers(target: Target, database: str, emptying: psycopg.Connection[Any]) -> AsyncIterator[Tiers]:
    emptying.execute("DELETE FROM checkpoints; DELETE FROM checkpoint_blobs; DELETE FROM checkpoint_writes")
    made = Tiers(target, database)
    yield made
    await made.close()


@pytest.fixture(scope="session")
def store_database(postgres: str) -> str:
    """A database with the tables of LangGraph's store. Tests empty it."""
    url = new_database(postgres)
    with PostgresStore.from_conn_string(url) as store:
        store.setup()
    return url


@pytest.fixture(scope="session")
def emptying_store(store_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(store_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def store_tiers(
    target: Target, store_database: str, emptying_store: psycopg.Connection[Any]
) -> AsyncIterator[StoreTiers]:
    emptying_store.execute("DELETE FROM store")
    made = StoreTiers(target, store_database)
    yield made
    await made.close()
