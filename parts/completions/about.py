"""Completions."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Completions",
    "OpenAI's older API for raw prompts: `/v1/completions`, and its `render` route.",
    "docs/api.md",
)
