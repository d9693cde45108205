"""KV events."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "KV events",
    "Publishes what the prefix cache stores and drops, for routers, in vLLM's format.",
    "docs/guides/kv-events.md",
)
