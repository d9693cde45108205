"""Files and batches."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Batches",
    "Serves OpenAI's files and batches: thousands of requests in one file, run when there is room.",
    "docs/batches.md",
)
