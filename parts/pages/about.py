"""The playground and the catalogue."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Pages",
    "Serves a playground at `/`, and at `/docs` every route with an example.",
    "docs/api.md",
)
