"""`harmonium verify`."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Verify",
    "Compares the engine with transformers: perplexity and greedy tokens of fixed texts.",
    "docs/weights.md",
)
