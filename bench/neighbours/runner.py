"""Installs each package in an environment of its own, runs its scenario there, and shows the results as a table."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMON = ("langgraph==1.2.24", "langgraph-checkpoint==4.3.2", "langgraph-prebuilt==1.1.3", "langchain-core==1.8.3")
"""Installed in each environment, with the newest versions of their dependencies."""
LANGCHAIN = "langchain==1.5.2"
NEIGHBOURS: dict[str, tuple[str, ...]] = {
    "functional": ("langgraph==1.2.24",),
    "middlewares": (LANGCHAIN,),
    "deep_agent": ("deepagents==0.7.32", LANGCHAIN),
    "supervisor": ("langgraph-supervisor==0.0.31", LANGCHAIN),
    "swarm": ("langgraph-swarm==0.1.0", LANGCHAIN),
    "memory_tools": ("langmem==0.0.30", LANGCHAIN),
    "memory_engine": ("langgraph-memory==0.1.0", LANGCHAIN),
    "extraction": ("trustcall==0.0.39",),
    "migrations": ("langmigrate==1.3.0",),
    "ag_ui": ("ag-ui-langgraph[fastapi]==0.0.47", LANGCHAIN),
}
"""The scenarios, with their package and what else they need."""
MINUTES = 10
PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")


class Failed(Exception):
    """A program has failed. The text is the last line of its output."""


def output(*command: object, cwd: Path) -> str:
    """Run a program, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "REDIS_URL")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=60 * MINUTES
    )
    if done.returncode:
        raise Failed((done.stderr or done.stdout).strip().splitlines()[-1])
    return done.stdout


def build(folder: Path) -> Path:
    """Build a wheel of this checkout."""
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "*.so", "tests", "docs", "bench")
    source = shutil.copytree(ROOT, folder / "source", ignore=left_out)
    output(*PIP, "wheel", "--no-deps", "-w", folder, source, cwd=folder)
    return next(folder.glob("*.whl"))


def run(name: str, wheel: Path, folder: Path) -> dict[str, Any]:
    """Run a scenario in a new environment."""
    venv.create(folder)
    python = folder / "bin" / "python"
    ours = f"redis-saver[memory,vectors] @ {wheel.as_uri()}"
    output(*PIP, "--python", python, "install", "--no-compile", *COMMON, *NEIGHBOURS[name], ours, cwd=folder)
    result: dict[str, Any] = json.loads(output(python, HERE / "inside.py", name, cwd=folder).splitlines()[-1])
    return result


def show(names: Iterable[str], console: Console) -> bool:
    """Run scenarios, and print a table for bench/README.md. Return True if all outcomes are equal."""
    table = Table("Package", "Version", "Scenario", "Checkpoints", "Items", "Result", box=MARKDOWN)
    equal = True
    with TemporaryDirectory() as temporary:
        wheel = build(Path(temporary))
        for name in names:
            console.print(f"{name} ...")
            try:
                result = run(name, wheel, Path(temporary, name))
                said = result["difference"] or "equal"
            except (Failed, subprocess.TimeoutExpired) as failed:
                result, said = {}, f"did not run: {failed}"
            equal = equal and said == "equal"
            counts = (str(result.get(kind, "")) for kind in ("checkpoints", "items"))
            table.add_row(*NEIGHBOURS[name][0].split("=="), name, *counts, said)
            shutil.rmtree(Path(temporary, name), ignore_errors=True)
    console.print(table, markup=False)
    return equal
