"""KV events."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "KV events",
    "Publishes what the prefix cache stores and drops, for routers, in vLLM's format.",
    "docs/guides/kv-events.md",
)
