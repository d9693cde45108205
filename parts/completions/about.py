"""Completions."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Completions",
    "OpenAI's older API for raw prompts: `/v1/completions`, and its `render` route.",
    "docs/api.md",
)
