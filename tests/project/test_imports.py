"""Imports between packages go one way (ARCHITECTURE.md).

So each package can be read, tested and changed without its users.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

from redis_saver._client import link
from redis_saver._engine import requests
from redis_saver._tiered import requests as tiered

PACKAGE = Path(__file__).resolve().parents[2] / "redis_saver"
LEAVES = {"_common", "errors", "sentinels"}
MAY_IMPORT = {
    "_engine": set[str](),
    "_client": {"_engine"},
    "_serde": set[str](),
    "_storage": {"_engine", "_serde"},
    "_cache": {"_engine", "_storage", "encryption"},
    "_checkpoint": {"_engine", "_storage", "encryption"},
    "_store": {"_engine", "_storage", "encryption"},
    "_migrate": {
        *("_client", "_engine", "_storage", "_checkpoint", "_store", "_tiered", "_tiered_store", "encryption"),
    },
    "_tiered": {"_engine", "_serde", "_storage", "_checkpoint", "encryption"},
    "_tiered_store": {"_engine", "_store", "_tiered"},
    "_inspector": {
        *("_cache", "_engine", "_storage", "_checkpoint", "_migrate", "_store", "_tiered", "_tiered_store", "__init__"),
    },
    "_cli": {
        *("_cache", "_client", "_engine", "_serde", "_storage", "_checkpoint", "_store", "_migrate", "_tiered"),
        *("_tiered_store", "_inspector", "encryption", "inspector", "telemetry", "__init__"),
    },
    "_telemetry": {"_cache", "_engine", "_tiered", "_tiered_store"},
    "telemetry": {"_cache", "_checkpoint", "_engine", "_store", "_telemetry", "_tiered", "_tiered_store"},
    "agent_server": {"_checkpoint", "_engine", "_store", "encryption"},
    "encryption": {"_serde", "_storage"},
    "__init__": {"_cache", "_checkpoint", "_engine", "_serde", "_store", "_tiered", "_tiered_store"},
    "__main__": {"_cli"},
    "inspector": {"_inspector"},
    "migrate": {"_migrate"},
    "serde": {"_serde"},
}
"""Allowed imports of each package, besides the leaves, which import only one another."""
JOINTS = {
    "_cache": {"cache"},
    "_checkpoint": {"ownership", "saver"},
    "_store": {"store"},
    "_tiered": {"connections", "drivers"},
    "_tiered_store": {"store"},
}
"""Modules that join operations with a client, or a value with its bytes. They may also import `client` and `serde`."""


def modules() -> dict[str, Path]:
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a module imports, including imports in functions."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "redis_saver":
            base = (node.module or "").removeprefix("redis_saver").removeprefix(".")
            names = [f"{base}.{each.name}".removeprefix(".") for each in node.names]
            found.update(name if name in known else base or "__init__" for name in names)
        if isinstance(node, ast.Import):
            ours = [each.name for each in node.names if each.name.startswith("redis_saver.")]
            found.update(name.removeprefix("redis_saver.") for name in ours)
    return found


def test_imports_go_one_way() -> None:
    known, wrong = modules(), []
    assert len(known) > 90
    for module, path in known.items():
        package, _, name = module.partition(".")
        allowed = LEAVES | {package} | MAY_IMPORT.get(package, set())
        if name in JOINTS.get(package, ()):
            allowed |= {"_client", "_serde"}
        wrong += [f"{module} -> {other}" for other in imported(path, known) if other.partition(".")[0] not in allowed]
    assert not wrong, "\n".join(wrong)


def test_each_module_is_in_a_package_or_is_a_leaf() -> None:
    tops = {module.partition(".")[0] for module in modules()}
    assert tops - LEAVES == MAY_IMPORT.keys()


def test_architecture_names_each_module() -> None:
    page = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
    names = {module.rpartition(".")[2] for module in modules()}
    assert not sorted(name for name in names if not re.search(rf"`({name}|[a-z_]*/?{name}\.py)`", page))


def test_architecture_names_each_request() -> None:
    page = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
    kinds = (*get_args(requests.Request), *get_args(get_args(link.Exchange)[0]), requests.Page)
    names = {kind.__name__ for kind in kinds} | {*str(tiered.TieredRequest).split(" | ")[1:]}
    assert len(names) == 15
    assert not sorted(name for name in names if f"`{name}`" not in page)
