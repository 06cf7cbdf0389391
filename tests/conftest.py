from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator

import pytest
from faces import Face, Target
from servers import TARGETS, url_of

_counter = itertools.count()


@pytest.fixture(params=TARGETS)
def target_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def target(target_name: str, flavour: str) -> AsyncIterator[Target]:
    """Each kind of server, for each flavour of saver."""
    made = Target(target_name, flavour, url_of(target_name), f"t{os.getpid()}-{next(_counter)}")
    yield made
    await made.close()


@pytest.fixture
def saver(target: Target) -> Face:
    """A saver on each kind of server, in each flavour."""
    return target.face()
