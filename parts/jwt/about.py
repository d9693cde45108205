"""Tokens of an identity provider."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "JWT and OpenID Connect",
    "Recognises callers by the tokens of an identity provider.",
    "docs/guides/oidc.md",
)
