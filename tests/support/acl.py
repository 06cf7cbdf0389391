"""ACL rules of restricted users, as the docs give them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def acl_rule(section: str, page: str = "docs/operations.md") -> str:
    """Return the rule in a section of a page."""
    match = re.search(rf"<!-- acl {section} -->\n+```text\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert match, f"{page} has no ACL rule for {section}"
    return match[1].replace("\\\n", " ")
