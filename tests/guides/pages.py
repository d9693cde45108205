"""Blocks of the guides that other tests parse or run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

GUIDES: Final = Path(__file__).parents[2] / "docs" / "guides"


def block(guide: str, language: str) -> str:
    """The only block of this language in a guide."""
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    written: str = found
    return written
