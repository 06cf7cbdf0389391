"""Values and keys that several tests use."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class Point:
    x: int
    label: str = "MARKER of a dataclass"
    inner: Any = None


KEY = b"0123456789abcdef0123456789abcdef"
