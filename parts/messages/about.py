"""Messages."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Messages",
    "Anthropic's Messages API: `/v1/messages` and `/v1/messages/count_tokens`.",
    "docs/api.md",
)
