"""Run the random tests with new seeds, on one server after the other, until the time is up or a test fails.

    python -m tests.soak --minutes 30
    python -m tests.soak --minutes 5 --only own_answers --target cluster

Run it in the project's root. At the first failure it prints the seed and a command that repeats the failure, and exits
with 1.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
sys.path.insert(0, str(ROOT))

from tests.support.seeds import ON, SEED  # noqa: E402
from tests.support.servers import TARGETS  # noqa: E402

MARKED = "(random or hypothesis) and not slow"
IS_RANDOM = re.compile(r"pytest\.mark\.random|^from hypothesis", re.MULTILINE)
WHOLE = ("drain", "batching")
"""Suites that run all their tests, which depend on timing instead of a seed."""
SUITES = {
    name: path
    for path in sorted(TESTS.rglob("test_*.py"))
    if (name := path.stem.removeprefix("test_")) in WHOLE or (IS_RANDOM.search(path.read_text()) and name != "soak")
}
"""Files with random tests, by name."""
ON_THEIR_OWN = (
    "chunks", "drain", "batching", "kills", "changing", "serializer", "native", "migrate", "foreign", "failovers", "vectors",
    "hostile_replies", "hostile_tier_replies", "names_in_texts", "row_attacks", "urls", "header", "rivals",
)  # fmt: skip
"""Suites that name their servers themselves, and run once per round instead of once per server."""
NOTHING_TO_RUN = 5
"""Exit code of pytest if no test is selected, as when a suite has none for a server."""


def rounds(names: Sequence[str], targets: Sequence[str]) -> list[tuple[str, str | None]]:
    """Return the runs of one round: each suite on each server."""
    return [(name, target) for target in targets for name in names if name not in ON_THEIR_OWN] + [
        (name, None) for name in names if name in ON_THEIR_OWN
    ]


def pytest_of(name: str) -> list[str]:
    """Return the arguments of pytest that run a suite. A name of no suite is a file of tests."""
    file = SUITES.get(name, Path(name))
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return ["-m", "pytest", "-m", "not slow" if name in WHOLE else MARKED, "--tb=short", str(shown)]


def soak(names: Sequence[str], targets: Sequence[str], minutes: float, seed: int) -> int:
    """Run round after round. A run that has started is not interrupted.

    Args:
        names: Suites, or files of tests.
        targets: Servers.
        minutes: No run starts later.
        seed: Determines the seeds of all runs.

    Returns:
        1 if a test failed, else 0.
    """
    chance, began, runs = random.Random(seed), time.monotonic(), 0
    print(f"soak with --seed {seed}", flush=True)
    while True:
        for name, target in rounds(names, targets):
            if runs and time.monotonic() - began > minutes * 60:
                print(f"{runs} runs in {(time.monotonic() - began) / 60:.1f} minutes, and none failed")
                return 0
            settings = {SEED: str(chance.randrange(10**9)), **({ON: target} if target else {})}
            on = f" on {target}" if target else ""
            print(
                f"{(time.monotonic() - began) / 60:6.1f} min  {name}{on}, seed {settings[SEED]}: ", end="", flush=True
            )
            arguments = pytest_of(name)
            done = subprocess.run(
                [sys.executable, *arguments], env={**os.environ, **settings}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
            )  # fmt: skip
            runs += 1
            if done.returncode not in (0, NOTHING_TO_RUN):
                print(f"FAILED\n\n{done.stdout[-20_000:]}")
                said = shlex.join([f"{key}={value}" for key, value in settings.items()] + ["python", *arguments])
                print(f"{name}{on} failed with seed {settings[SEED]}. Repeat with:\n  {said}")
                return 1
            passed = re.findall(r"\d+ passed.*", done.stdout)
            print(passed[-1] if passed else "nothing to run", flush=True)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30, help="no run begins later (30)")
    parser.add_argument("--seed", type=int, help="the seed from which those of all runs follow; else a fresh one")
    names = f"a suite, or a file of tests; may be repeated: {', '.join(SUITES)}"
    parser.add_argument("--only", action="append", metavar="NAME", help=names)
    parser.add_argument("--target", action="append", choices=TARGETS, help="a server; may be repeated (all)")
    said = parser.parse_args(given)
    for name in said.only or ():
        if name not in SUITES and not Path(name).is_file():
            parser.error(f"--only {name}: there is no such suite, and no such file; suites are {', '.join(SUITES)}")
    seed = random.SystemRandom().randrange(10**9) if said.seed is None else said.seed
    return soak(said.only or list(SUITES), said.target or TARGETS, said.minutes, seed)


if __name__ == "__main__":
    sys.exit(main())
