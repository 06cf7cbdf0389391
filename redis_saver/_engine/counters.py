"""Counters, each declared once, as a field of a class of stats.

`counter` declares one, or `field` of an `Instrument` that has several. From it come `stats()`, the OpenTelemetry
instrument (`_telemetry.py`), and the text on the site. `tests/project/test_dashboard.py` compares the tables of
`docs/metrics.md` and the dashboard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias

from redis_saver._common import forks

RESULT = "redis_saver.result"
"""Attribute for the result of a read, or of flushing a record."""
Kind: TypeAlias = Literal["counter", "up_down_counter", "gauge"]


@dataclass(frozen=True)
class Instrument:
    """An OpenTelemetry instrument, which exports one or several counters of a source."""

    path: str
    """The source, and the rest of the name."""
    unit: str
    about: str
    kind: Kind = "counter"
    """Counters only grow. Counters of both kinds of several sources are added; for gauges, the maximum is exported."""
    attribute: str = RESULT
    """Attribute that tells several counters apart."""

    @property
    def source(self) -> str:
        """`Live.kind` of its source."""
        return self.path.partition(".")[0]

    @property
    def name(self) -> str:
        """Its name."""
        return f"redis_saver.{self.path.removeprefix('traffic.')}"

    def field(self, value: str = "", about: str = "", default: Any = 0) -> Any:
        """Declare a counter: a field of a dataclass. `value` is that of the attribute, if there are several."""
        return field(default=default, metadata={"instrument": self, "value": value, "about": about or self.about})


def counter(path: str, unit: str, about: str, kind: Kind = "counter", default: Any = 0) -> Any:
    """Declare the only counter of an instrument. A default of None is not exported."""
    return Instrument(path, unit, about, kind).field(default=default)


def instruments(*stats: Any) -> dict[Instrument, dict[str, str]]:
    """Return the instruments of classes of stats. Each has its fields, with their values of the attribute."""
    found: dict[Instrument, dict[str, str]] = {}
    for each in [each for kind in stats for each in fields(kind) if each.metadata]:
        found.setdefault(each.metadata["instrument"], {})[each.name] = each.metadata["value"]
    return found


class Live:
    """The live numbers of a source, which inherits a class of stats. Users get copies."""

    kind: ClassVar[str]
    """Source of the instruments whose counters are its own. The class of stats may also have those of other sources."""

    def __init__(self) -> None:
        """Start at the defaults."""
        super().__init__()
        forks.watch(self)

    def after_fork(self) -> None:
        """In the child, start again."""
        for each in self._own():
            setattr(self, each.name, each.default)

    def numbers(self) -> dict[str, Any]:
        """Return the counters, and the last error."""
        return {each.name: getattr(self, each.name) for each in self._own()}

    @classmethod
    def _own(cls) -> Iterator[Field[Any]]:
        """Yield the fields of its counters, and of texts."""
        for each in fields(cls):  # type: ignore[arg-type]  # the other base class is a dataclass
            if each.default is not MISSING and (not each.metadata or each.metadata["instrument"].source == cls.kind):
                yield each
