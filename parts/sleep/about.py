"""Sleep when idle."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Sleep",
    "Ends the engine's process after a time without requests, which frees the GPU, and starts it "
    "again for the next one. Off until `NIM_SLEEP_IDLE_S` is set.",
    "docs/guides/sleep.md",
)
