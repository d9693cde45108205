"""Responses."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Responses",
    "OpenAI's Responses API: `/v1/responses`, stored, resumable and in the background.",
    "docs/api.md",
)
