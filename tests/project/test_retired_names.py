"""Names that were replaced by those of `docs/glossary.md` stay away: in code, data, tests and docs. The changelog may tell of them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RETIRED = """
    ForeignKey FOREIGNKEY WrongThread NotReplicated ServerTooOld UndecodableValue UnserializableValue PlaceFailed ThreadNotMoved
    flush_every backlog_wait replica_wait waits_on_interrupt
    doubts? Doubt(s|ful)? put_in_doubt bury _?is_buried
    @home @whole @newest @pathless @gaps @dirty @stray @copied
    (doubt|trust|bury|take|settle|mend|lease|restore|adopt|lag|announce|survey|runs|wipe|install|load|fetch|describe|expire)\\.lua
    (drivers|instead|base|thread_methods|parts|cutting|known|frames|headers|surveying|expiry|pieces|chats|columns|road|compiled|lag|flusher|flushing|loads)\\.py
    _a?exchange parted PartMissing Outline(?!s) Holdings holdings spine Survey Proof dumps_pieces loads_pieces Pieces Closed(Serializer)? closed_if_encrypted
    (Our|Saver|Memory|Sqlite|Postgres)Place place_of Told Lag look_in_turn by_choice noting Moody moody faces? Face victims\\.py killing\\.py
    (MOST|LONGEST|SHORTEST)(_[A-Z]+)+ [A-Z]+_A_(PAGE|PIPELINE|BATCH|SCAN|CHUNK|LIST|TURN|REPLY|STEP)
    (parts|lib_parts|lib_frames|lib_behind)\\.lua
    _depart _carry _arrived _gates? teaching _BY_ITSELF floors columnar postgres_runs carriers? _is_home on_its_loop LONGER
"""
RETIRED_IN_NAMES = "doubts? mend(s|ed|ing)? adopt(s|ed|ing|ions?)? spar(ed|ing) bur(y|ied)"
"""Words that are not in longer names either, between underscores."""
LOOKED_AT = (
    "redis_saver/**/*.py",
    "redis_saver/**/*.c",
    "lua/**/*.lua",
    "tests/**/*.py",
    "bench/**/*.py",
    "docs/**/*.md",
    "README.md",
    "ARCHITECTURE.md",
)


def test_no_retired_name_is_left() -> None:
    whole, parts = "|".join(RETIRED.split()), "|".join(RETIRED_IN_NAMES.split())
    retired = re.compile(rf"(?<![\w@])({whole})(?!\w)|(?<![a-zA-Z0-9])({parts})(?![a-zA-Z0-9])")
    files = {path for pattern in LOOKED_AT for path in ROOT.glob(pattern) if path.is_file()} - {Path(__file__)}
    assert len(files) > 150
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in sorted(files)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := retired.search(line))
    ]
    assert not found, "\n".join(found)
