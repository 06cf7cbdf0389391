"""Imports go one way between the rooms of the package (ARCHITECTURE.md), so that each can be read, tested and changed without those that use it."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "redis_saver"
LEAVES = {"config", "display", "errors", "filters", "forks", "limits", "names", "postgres", "times", "ttl", "versions"}
MAY_IMPORT = {
    "engine": set[str](),
    "client": {"engine"},
    "serde": set[str](),
    "storage": {"serde"},
    "checkpoint": {"engine", "storage"},
    "migrate": {"client", "engine", "storage", "checkpoint"},
    "tiered": {"engine", "serde", "storage", "checkpoint", "migrate"},
    "cli": {"client", "engine", "serde", "storage", "checkpoint", "migrate", "tiered", "telemetry", "__init__"},
    "telemetry": {"tiered"},
    "agent_server": {"checkpoint"},
    "__init__": {"checkpoint", "serde", "tiered"},
    "__main__": {"cli"},
}
"""Beside the leaves, which import only one another."""
JOINTS = {"checkpoint": {"saver", "sync", "aio"}, "tiered": {"drivers", "flush.workers", "cold_connections"}}
"""Where operations and a client, or a value and its bytes, are joined: these may also import `client` and `serde`."""


def modules() -> dict[str, Path]:
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports, also inside of functions."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "redis_saver":
            base = (node.module or "").removeprefix("redis_saver").removeprefix(".")
            names = [f"{base}.{each.name}".removeprefix(".") for each in node.names]
            found.update(name if name in known or name == "native" else base or "__init__" for name in names)
        if isinstance(node, ast.Import):
            found.update(
                each.name.removeprefix("redis_saver.") for each in node.names if each.name.startswith("redis_saver.")
            )
    return found


def test_imports_go_one_way() -> None:
    known, wrong = modules(), []
    assert len(known) > 90
    for module, path in known.items():
        room, _, name = module.partition(".")
        allowed = LEAVES | {room} | MAY_IMPORT.get(room, set())
        if name in JOINTS.get(room, ()):
            allowed |= {"client", "serde"}
        wrong += [f"{module} -> {other}" for other in imported(path, known) if other.partition(".")[0] not in allowed]
    assert not wrong, "\n".join(wrong)


def test_each_module_has_a_room_or_is_a_leaf() -> None:
    tops = {module.partition(".")[0] for module in modules()}
    assert tops - LEAVES == MAY_IMPORT.keys()
