"""Messages."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Messages",
    "Anthropic's Messages API: `/v1/messages` and `/v1/messages/count_tokens`.",
    "docs/api.md",
)
