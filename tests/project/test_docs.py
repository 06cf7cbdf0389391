"""README and docs: every code block runs, every link has a target, and no line is too long."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import string
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

import redis_saver
from redis_saver._cli.docs import text_of
from redis_saver._inspector.manual import NAMED, sections
from tests.support import programs
from tests.support.cases import check_each, each
from tests.support.key_services import KeyServices
from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "api").glob("*.md"))]
BY_NAME = {str(page.relative_to(ROOT)): page for page in PAGES}
ELSEWHERE = {"docs/deployment.md", "docs/service.md", "docs/workers.md"}
"""Pages whose programs `tests/integration/test_deployment.py` runs."""
ALONE = {"docs/coming-from.md"}
"""Pages on which each block is its own program, as readers go to one section."""
COMMANDS_OF_THE_README = 2
"""Number of commands that set up an environment; a check of a clean clone runs them.

`.ci/run` runs the commands of the tests, and `tests/cli/test_demo.py` what the other one starts.
"""
SHOWN = ("ACL SETUSER ", "redis-cli ", "   ")
"""Beginnings of a `text` block: a command of another program, or a drawing.

`tests/integration/test_install.py` tests the ACL rules.
"""


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [
        Block(*found) for found in re.findall(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    ]


def test_no_line_is_longer_than_120_characters() -> None:
    pages = {**{name: ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md")}, **BY_NAME}
    lines = [(name, *line) for name, page in pages.items() for line in enumerate(page.read_text().split("\n"), 1)]
    long = [f"line {number} of {name} has {len(line)}" for name, number, line in lines if len(line) > 120]
    assert not long, "\n".join(long)


@each(BY_NAME)
def test_every_link_has_a_target(name: str) -> None:
    page = BY_NAME[name]
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)

    def check(target: str) -> None:
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists()
        is_on_site = page.name == "README.md" or there.is_relative_to(ROOT / "docs")
        assert is_on_site, "the site has only what is in docs/"
        assert not anchor or anchor in sections(there.read_text())

    targets = re.findall(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)", text)
    check_each([target for target in targets if not target.startswith("https://")], check)
    labels = re.findall(r"\]\[(\w+)\]", text)
    assert not [label for label in labels if f"\n[{label}]: https://" not in text]


def texts(module: Path) -> Iterator[str]:
    """Yield the texts of a module, without its docstrings."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_pages_are_named_by_the_command_that_shows_them() -> None:
    """An installed package has no folder `docs/`."""
    said = [text for module in (ROOT / "redis_saver").rglob("*.py") for text in texts(module)]
    assert not [text for text in said if re.search(r"\bdocs/[\w/-]+\.\w", text) and "://" not in text]
    said += [page.read_text() for page in (*PAGES, ROOT / "docs" / "alerts.yaml")]
    named = {name for text in said for name in NAMED.findall(text)}
    assert {"operations#rights", "servers"} <= named
    check_each(sorted(named), text_of)


def test_the_index_names_all_pages() -> None:
    named = set(re.findall(r"\]\(([a-z-]+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert named == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}


def test_the_reference_describes_all_public_names() -> None:
    pages = {page.stem: page.read_text() for page in PAGES if page.parent.name == "api"}
    assert set(re.findall(r"\]\(api/([a-z-]+)\.md\)", (ROOT / "docs" / "api.md").read_text())) == set(pages)
    described = set(re.findall(r"^\.\. [\w:]+:: redis_saver\.([\w.]+)", "\n".join(pages.values()), re.MULTILINE))
    assert {*redis_saver.__all__} - {"__version__"} <= described


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split("\n")) < 180
    assert len([block for block in blocks(ROOT / "README.md") if not block.language]) == COMMANDS_OF_THE_README


# -- terms

REFUSED = {
    "backlog": "back-log, back log",
    "checkpoint": "check-point, check point, snap shot, snap-shot",
    "chunk cache": "chunk-cache, cache of chunks",
    "flush queue": "flush-queue, flushing queue",
    "history limit": "history-limit, limit of history, limit of the history",
    "namespace": "name-space, name space",
    "pending writes": "pending-writes, intermediate writes",
    "replica": "slave",
    "rollback": "roll-back, roll-backs",
    "round trip": "round-trip, round-trips, roundtrip, roundtrips",
    "set aside": "set-aside, poison record, dead letter",
    "single flight": "single-flight, singleflight",
    "superstep": "super-step, super-steps, super step, super steps",
    "tombstone": "tomb-stone, tomb stone",
    "TTL": "time-to-live, time to live",
    "write-behind": "writebehind, write-back, write back",
    "write-through": "writethrough",
}
"""Spellings that the glossary's terms do not have."""


def prose(path: Path) -> str:
    """Return the sentences of a page or the docstrings of a module, without code in backticks and names in brackets."""
    text = path.read_text()
    if path.suffix == ".py":
        text = "\n".join(re.findall(r'"""(.*?)"""', text, re.DOTALL))
    return re.sub(r"```.*?```|`[^`]*`|\[[^\]]*\]", "", text, flags=re.DOTALL)


@cache
def proses() -> dict[str, str]:
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "redis_saver").rglob("*.py")]
    return {str(path.relative_to(ROOT)): prose(path) for path in paths}


@each(REFUSED)
def test_a_term_has_one_spelling(term: str) -> None:
    """It is the glossary's."""
    spellings = REFUSED[term].replace(", ", "|").replace(" ", r"\s+")
    refused = re.compile(rf"\b({spellings})\b", re.IGNORECASE)
    assert [f"{path}: {hit[0]}" for path, text in proses().items() for hit in refused.finditer(text)] == []


def test_the_glossary_has_all_these_terms() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    assert [term for term in REFUSED if not re.search(rf"\b{term}\b", glossary)] == []


# -- code blocks, last as they take minutes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def key_services() -> Iterator[KeyServices]:
    made = KeyServices("redis-saver", "tenant-7")
    yield made
    made.stop()


@pytest.fixture
def environment(server: Server, database: str, key_services: KeyServices) -> dict[str, str]:
    with psycopg.connect(database, autocommit=True) as connection:
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
            connection.execute(f"DELETE FROM {table}")
    server.client().flushall()
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {
        **os.environ,
        "REDIS_URL": server.url,
        "POSTGRES_URL": database,
        **key_services.environment,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error::RuntimeWarning",
    }


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in ELSEWHERE])
def test_every_code_block_runs_unchanged(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    """On most pages each block continues the one before. Shell commands run after the Python programs."""
    if name == "docs/encryption.md":
        environment["REDIS_SAVER_KEYS"] = "2026-11=" + "A" * 43 + "="
    page = blocks(BY_NAME[name])
    in_python = [block.text for block in page if block.language == "python"]
    for text in in_python if name in ALONE else filter(None, ["\n".join(in_python)]):
        (tmp_path / "page.py").write_text(text)
        done = programs.run("page.py", environment=environment, folder=tmp_path)
        check(done)
        assert name != "README.md" or " bytes, expires in 6d23h\n" in done.stdout
        if name == "README.md":  # also in a new interpreter without a server, as readers paste it
            without = {key: value for key, value in environment.items() if key != "REDIS_URL"}
            run([sys.executable, "page.py"], without, tmp_path)
    for block in page:
        if block.language == "sh":
            if commands := of_redis_saver(block.text, environment):
                for arguments in commands:
                    check(programs.run("-m", "redis_saver", *arguments, environment=environment, folder=tmp_path))
            else:
                run(["bash", "-euo", "pipefail", "-c", block.text], environment, tmp_path)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "text":
            assert block.text.startswith(SHOWN), block.text
        elif block.language == "{eval-rst}":
            assert name.startswith("docs/api/")  # CI builds these
        else:
            assert block.language == "python" or (
                name == "README.md" and block.text.startswith("python3 -m venv .venv && ")
            ), block


def of_redis_saver(text: str, environment: dict[str, str]) -> list[list[str]]:
    """Return the arguments of each command if a block has only commands of `redis-saver`, else nothing.

    Forking a process for each takes a tenth of the time of a shell and a new interpreter.
    """
    lines = text.replace("\\\n", " ").splitlines()
    words = [shlex.split(string.Template(line).safe_substitute(environment)) for line in lines]
    if re.search(r"[|<>;&`~*#]|\$\(", text) or not all(each[:1] == ["redis-saver"] for each in words):
        return []
    return [each[1:] for each in words]


def run(command: list[str], environment: dict[str, str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    check(done)


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
