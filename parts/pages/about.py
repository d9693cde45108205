"""The playground and the catalogue."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Pages",
    "Serves a playground at `/`, and at `/docs` every route with an example.",
    "docs/api.md",
)
