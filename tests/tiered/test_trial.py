"""The trial of a cold saver says what a saver changes, and nothing of one that changes nothing."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from redis_saver._cli.main import main
from tests.support.tiering import Tiers
from tests.support.uniform import Target

pytestmark = [
    pytest.mark.parametrize("target_name", ["redis"], indirect=True),
    pytest.mark.plain("it is of commands, which get no keys"),
]


class Forgetful(InMemorySaver):
    """A saver with one fault. A subclass says which."""

    changed = staticmethod(lambda saved: saved)

    def get_tuple(self, config: Any) -> Any:
        saved = super().get_tuple(config)
        return saved and self.changed(saved)

    def list(self, config: Any, **options: Any) -> Any:
        for saved in super().list(config, **options):
            yield self.changed(saved)


def changing(name: str, change: Callable[[Any], Any]) -> Any:
    """Return a class of savers that change what they return."""
    return type(name, (Forgetful,), {"changed": staticmethod(change)})


def with_part(saved: Any, **part: Any) -> Any:
    return saved._replace(checkpoint={**saved.checkpoint, **part})


def without_nones(saved: Any) -> Any:
    kept = {name: value for name, value in saved.checkpoint["channel_values"].items() if name != "nothing"}
    return with_part(saved, channel_values=kept)


def with_text_versions(saved: Any) -> Any:
    versions = {name: str(version) for name, version in saved.checkpoint["channel_versions"].items()}
    return with_part(saved, channel_versions=versions)


def without_metadata(saved: Any) -> Any:
    return saved._replace(metadata={name: saved.metadata[name] for name in ("source", "step", "parents")})


def without_order(saved: Any) -> Any:
    """The writes of a task come in another order."""
    return saved._replace(pending_writes=(saved.pending_writes or [])[::-1])


def ordered_by_tasks(saved: Any) -> Any:
    """The writes come by their tasks' ids, as from savers that know no paths."""
    return saved._replace(pending_writes=sorted(saved.pending_writes or (), key=lambda write: write[0]))


OfTasks = changing("OfTasks", ordered_by_tasks)
OfTasks.get_delta_channel_history = BaseCheckpointSaver.get_delta_channel_history


class OfIds(Forgetful):
    """It takes the last checkpoint that was put for the newest one."""

    def get_tuple(self, config: Any) -> Any:
        ids = list(self.storage[config["configurable"]["thread_id"]][config["configurable"].get("checkpoint_ns", "")])
        if ids and "checkpoint_id" not in config["configurable"]:
            config = {"configurable": {**config["configurable"], "checkpoint_id": ids[-1]}}
        return super().get_tuple(config)


class OfBefore(Forgetful):
    def list(self, config: Any, **options: Any) -> Any:
        return super().list(config, **{**options, "before": None})


class OfSubgraphs(Forgetful):
    def list(self, config: Any, **options: Any) -> Any:
        return super().list({"configurable": {"checkpoint_ns": "", **config["configurable"]}}, **options)


class OfDeletions(Forgetful):
    def delete_thread(self, thread_id: str) -> None:
        kept = dict(self.writes)
        super().delete_thread(thread_id)
        self.writes.update(kept)


class OfNoDeletion(Forgetful):
    def delete_thread(self, thread_id: str) -> None:
        raise NotImplementedError


class Failing(Forgetful):
    def put_writes(self, *_: Any, **__: Any) -> None:
        raise OSError("the disk is full")


def unreachable() -> Any:
    """A function of a service whose database is down."""
    raise OSError("connection refused")


FAULTS: dict[type[Any], str] = {
    changing("OfMetadata", without_metadata): "metadata",
    changing("OfNones", without_nones): "values",
    changing("OfVersions", with_text_versions): "versions of channels",
    changing(
        "OfNodes", lambda saved: with_part(saved, versions_seen=defaultdict(dict))
    ): "versions that nodes have seen",
    changing("OfParents", lambda saved: saved._replace(parent_config=None)): "parents",
    changing("OfOrder", without_order): "pending writes",
    OfTasks: "histories of a DeltaChannel",
    OfIds: "clocks that differ",
    OfBefore: "lists",
    OfSubgraphs: "lists of a whole thread",
    OfDeletions: "deletions",
    OfNoDeletion: "deletions: delete_thread raises NotImplementedError: cold=OfNoDeletion has no delete_thread(), so ",
    Failing: "could not be tried: OSError: the disk is full",
}


MINOR = {OfTasks, OfIds, OfSubgraphs}
"""Faults that do not matter to every service."""


def colds(url: str, path: Path) -> dict[str, Any]:
    """Return names for `--cold`: savers, functions that return one, and context managers, sync and async."""
    return {
        "saver": InMemorySaver(),
        "function": InMemorySaver,
        "manager": lambda: SqliteSaver.from_conn_string(str(path / "a.db")),
        "async_manager": lambda: AsyncSqliteSaver.from_conn_string(str(path / "b.db")),
        "async_postgres": lambda: AsyncPostgresSaver.from_conn_string(url),
        "postgres": lambda: PostgresSaver.from_conn_string(url),
    }


@pytest.fixture
def tried(target: Target, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[[Any], tuple[int, list[str]]]:
    """Try a saver. It is a URL, or stands in a module. Return the command's exit code, and its lines about cold."""

    def run(cold: Any) -> tuple[int, list[str]]:
        if not isinstance(cold, str):
            module = ModuleType("savers_of_a_test")
            module.cold = cold  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, module.__name__, module)
            cold = "savers_of_a_test:cold"
        code = main(["doctor", "--redis", target.url, "--prefix", target.prefix, "--cold", cold])
        said = capsys.readouterr()
        assert not target.keys()
        lines = [line for line in said.out.splitlines() if "  cold  " in line]
        return code, lines or said.err.splitlines()

    return run


@pytest.mark.parametrize("kind", ["saver", "function", "manager", "async_manager", "postgres", "async_postgres"])
def test_a_saver_that_changes_nothing_can_be_cold(kind: str, tiers: Tiers, tmp_path: Path, tried: Any) -> None:
    code, lines = tried(colds(tiers.url, tmp_path)[kind])
    assert len(lines) == 1 and " can be cold: 9" in lines[0] and code in (0, 1), lines


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_saver_changes_is_named(fault: type[Any], tried: Any) -> None:
    code, lines = tried(fault)
    assert code == 1 and any(f"{fault.__name__}: {FAULTS[fault]}: " in line or FAULTS[fault] in line for line in lines)
    assert lines[0].startswith("warning" if fault in MINOR else "error"), lines
    assert len(lines) <= 2, lines  # a filter of metadata finds less, and histories follow parents


@pytest.mark.parametrize(
    "wrong", ["no_such_module:cold", "json:nothing", "json:loads", "mysql://host/db", "?", unreachable]
)
def test_what_is_no_saver_is_refused(wrong: Any, tried: Any) -> None:
    code, lines = tried(wrong)
    if wrong is unreachable:
        assert lines[-1].endswith("which is a saver or makes one. OSError: connection refused"), lines
    else:
        assert wrong.partition("//")[0] in lines[-1], lines
    assert code == 2


def test_an_error_at_the_end_of_a_saver_hides_no_finding(tried: Any) -> None:
    @contextmanager
    def unclosed() -> Iterator[InMemorySaver]:
        yield InMemorySaver()
        raise RuntimeError("it is closed already")

    code, lines = tried(unclosed)
    assert code == 1
    assert any("InMemorySaver can be cold" in line for line in lines)
    assert any("InMemorySaver cannot be closed: RuntimeError: it is closed already" in line for line in lines)
