"""Control of running answers."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Control",
    "Has a running chat completion end its reasoning and answer.",
    "docs/api.md",
)
