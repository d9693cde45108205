"""Responses."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Responses",
    "OpenAI's Responses API: `/v1/responses`, stored, resumable and in the background.",
    "docs/api.md",
)
