"""Ollama."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Ollama",
    "Ollama's API for clients that know no other: `/api/chat`, `/api/generate`, and what they ask "
    "of the model. Off until `NIM_OLLAMA_PORT` is set.",
    "docs/guides/from-ollama.md",
)
