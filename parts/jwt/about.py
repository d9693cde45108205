"""Tokens of an identity provider."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "JWT and OpenID Connect",
    "Recognises callers by the tokens of an identity provider.",
    "docs/guides/oidc.md",
)
