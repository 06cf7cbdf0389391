"""Each term has one spelling, the glossary's."""

import re
from pathlib import Path

from tests.support.cases import each

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

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


def prose(path: Path) -> str:
    """Return the sentences of a page or the docstrings of a module, without code in backticks and names in brackets."""
    text = path.read_text()
    if path.suffix == ".py":
        text = "\n".join(re.findall(r'"""(.*?)"""', text, re.DOTALL))
    return re.sub(r"```.*?```|`[^`]*`|\[[^\]]*\]", "", text, flags=re.DOTALL)


TEXTS = {path.relative_to(ROOT): prose(path) for path in [*PAGES, *sorted((ROOT / "redis_saver").rglob("*.py"))]}


@each(REFUSED)
def test_a_term_has_one_spelling(term: str) -> None:
    spellings = REFUSED[term].replace(", ", "|").replace(" ", r"\s+")
    refused = re.compile(rf"\b({spellings})\b", re.IGNORECASE)
    assert [f"{path}: {hit[0]}" for path, text in TEXTS.items() for hit in refused.finditer(text)] == []


def test_the_glossary_has_all_these_terms() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    assert [term for term in REFUSED if not re.search(rf"\b{term}\b", glossary)] == []
