"""Names of other servers."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Habits",
    "Answers flags, commands, variables and routes of other servers, and has their metric names.",
    "docs/guides/from-vllm.md",
)
