"""What `migrate`, `export` and `import` do with the items of a store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, Protocol

from redis_saver._cli import screen
from redis_saver._cli.arguments import labels_of
from redis_saver._cli.show import progress_bar, tell_problems
from redis_saver._common.display import counted, shown
from redis_saver._migrate.engine import ItemsReport, migrate_items
from redis_saver._migrate.opening import opened_store


class Settings(Protocol):
    """What of a command's options it is about."""

    @property
    def source(self) -> str: ...

    @property
    def target(self) -> str: ...

    @property
    def source_prefix(self) -> str | None: ...

    @property
    def target_prefix(self) -> str: ...

    @property
    def namespace(self) -> Sequence[str] | None: ...

    @property
    def ttl(self) -> timedelta | None: ...

    @property
    def replace(self) -> Literal["older", "all"] | None: ...

    @property
    def dry_run(self) -> bool: ...

    @property
    def as_json(self) -> bool: ...


def run(given: Settings) -> int:
    """Copy items. Returns the exit code."""
    labels = labels_of(given.namespace or ())
    prefix = "langgraph" if given.source_prefix is None else given.source_prefix
    with (
        opened_store(given.source, target=False, prefix=prefix) as source,
        opened_store(given.target, target=True, prefix=given.target_prefix) as target,
        progress_bar("items") as show,
    ):
        report = migrate_items(
            source,
            target,
            namespace=labels,
            replace=given.replace,
            ttl=given.ttl,
            dry_run=given.dry_run,
            progress=lambda report: show(report.items, None, f"{report.written + report.replaced:,} written"),
        )
    if given.as_json:
        screen.emit(report)
    else:
        _tell(report, dry_run=given.dry_run)
    if labels and not report.items:
        sys.stderr.write(f"no item's namespace begins with {shown(labels)}\n")
    return 1 if report.conflicts or report.failed else 0


def _tell(report: ItemsReport, *, dry_run: bool) -> None:
    would = "to be " if dry_run else ""
    sys.stdout.write(
        f"{counted(report.items, 'item')}: {report.written:,} {would}copied, {report.replaced:,} {would}replaced, {report.unchanged:,} there already, "
        f"{report.expired:,} expired, {counted(report.conflicts, 'conflict')}, {report.failed:,} failed, {report.seconds:.1f} s\n"
    )
    for kind, count in (("conflict", report.conflicts), ("failed", report.failed)):
        tell_problems([said for said in report.problems if said.startswith(f"{kind}: ")], count, kind)
