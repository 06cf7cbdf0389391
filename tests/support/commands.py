"""Commands run by tests: in this process, or in one of their own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from redis_saver._cli.main import main
from tests.support import programs

ROOT = Path(__file__).parents[2]


class Ran:
    """A command that has run in this process, with its output."""

    def __init__(self, *arguments: str) -> None:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            self.code = main(arguments)
        self.out, self.err = out.getvalue(), err.getvalue()

    @property
    def all_well(self) -> bool:
        assert (self.code, self.err) == (0, ""), self.err
        return True

    def refused_with(self, text: str, code: int = 2) -> bool:
        """True if the error is one line with this text, and without the password `secret`."""
        assert self.code == code and self.err.count("\n") == 1 and "secret" not in self.err, self.err
        return text in self.err


def run_python(*words: str, environment: dict[str, str] | None = None, is_forked: bool = False, **options: Any) -> Any:
    """Run Python with the project, to its end: as users do, or forked from a process with the imports done."""
    options = {"capture_output": True, "timeout": 280, **options}
    env = {**(os.environ if environment is None else environment), "PYTHONPATH": str(ROOT)}
    if is_forked:
        return programs.run(*words, environment=env, folder=ROOT)
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=env, text=True, encoding="utf-8", **options)
