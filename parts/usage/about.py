"""Usage and budgets."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Usage",
    "Counts tokens and requests by key, tenant, model and day, and holds keys to token budgets.",
    "docs/usage.md",
)
