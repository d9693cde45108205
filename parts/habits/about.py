"""Names of other servers."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Habits",
    "Answers flags, commands, variables and routes of other servers, and has their metric names.",
    "docs/guides/from-vllm.md",
)
