"""A run's result as JSON: the machine, versions, rows."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from bench.budgets import judge
from bench.measuring import Run
from redis_saver._serde import messages

FOLDER = Path(__file__).parent / "results"
Result = dict[str, Any]


def cpu() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def system() -> str:
    """Return the name of the operating system, and the first two numbers of the kernel's version."""
    kernel = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    except OSError:
        return kernel


def machine() -> dict[str, Any]:
    """Describe the machine of the run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu(),
        "cores": cores,
        "memory_gib": round(memory / 2**30, 1),
        "os": system(),
        "native": messages.native is not None,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def packages() -> dict[str, str]:
    """Return the versions of all installed packages by name."""
    found = {str(each.metadata["Name"]).lower(): each.version for each in distributions()}
    return dict(sorted(found.items()))


def collect(run: Run, absent: dict[str, str], started: datetime, seconds: float) -> Result:
    """Collect all that a reader of the numbers needs."""
    return {
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds),
        "command": shlex.join(["python", "-m", "bench", *_said(sys.argv[1:])]),
        "machine": machine(),
        "servers": {each.name: each.server for each in run.contestants if each.server},
        "packages": packages(),
        "savers": [each.name for each in run.contestants],
        "not_run": absent,
        "failures": run.failures,
        "notes": run.notes,
        "budgets": judge(run.rows),
        "rows": run.rows,
    }


def _said(arguments: list[str]) -> list[str]:
    """Hide URLs and paths in the command line."""
    return ["..." if "://" in argument or "/" in argument else argument for argument in arguments]


def now() -> datetime:
    return datetime.now(timezone.utc)


def save(result: Result, folder: Path, name: str | None, *, latest: bool = True) -> Path:
    """Write the result under its name (default: its start time), and by default as `latest.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name or result['started'][:16].replace(':', '')}.json"
    text = json.dumps(result, indent=1).replace("\n   ", " ").replace("\n  }", "}")
    file.write_text(text + "\n")
    if latest:
        (folder / "latest.json").write_text(text + "\n")
    return file


def load(file: Path) -> Result:
    found: Result = json.loads(file.read_text())
    return found
