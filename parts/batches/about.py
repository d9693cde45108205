"""Files and batches."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Batches",
    "Serves OpenAI's files and batches: thousands of requests in one file, run when there is room.",
    "docs/batches.md",
)
