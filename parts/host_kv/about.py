"""Host memory for evicted K/V blocks."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Host KV tier",
    "Keeps evicted K/V blocks in host memory, and copies them back when a prompt begins with them.",
    "docs/decisions/0026-evicted-blocks-go-to-host-memory.md",
)
