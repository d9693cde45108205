"""Host memory for evicted K/V blocks."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Host KV tier",
    "Keeps evicted K/V blocks in host memory, and copies them back when a prompt begins with them.",
    "docs/decisions/0026-evicted-blocks-go-to-host-memory.md",
)
